"""The routes, each once: the daemon serves them, the client calls them."""

from __future__ import annotations

from typing import Final

from peerd.models.routes import HttpRoute
from rollcall.front.answers import Label, NodeAnswer, RollAnswer

CALL: Final = HttpRoute("POST", "/rollcall", RollAnswer, scope="read")
HEARD: Final = HttpRoute("GET", "/rollcall/heard", NodeAnswer)
LABEL: Final = HttpRoute("GET", "/rollcall/label", Label)
SET_LABEL: Final = HttpRoute("PUT", "/rollcall/label", Label)
