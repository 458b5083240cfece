"""Routes of aggregation."""

from __future__ import annotations

from typing import Final

from peerd.models.routes import HttpRoute
from protocols.aggregation.answer import LINE
from protocols.aggregation.answers import GIVEN

AGGREGATE: Final = HttpRoute("POST", "/aggregate", LINE, scope="read")
ANSWERS: Final = HttpRoute("GET", "/aggregate/answers", GIVEN)
