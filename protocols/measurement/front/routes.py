"""The routes of measurement queries, each once: the daemon serves them, the client calls them."""

from __future__ import annotations

from typing import Final

from peerd.models.routes import HttpRoute
from protocols.measurement import models

NODES: Final = HttpRoute("GET", "/measurement/nodes", models.MeasuredNodes)
READ: Final = HttpRoute("POST", "/measurement/read", models.ValueViews, scope="read")
OWN: Final = HttpRoute("GET", "/measurement/own", models.OwnViews)
PUT: Final = HttpRoute("PUT", "/measurement/own/{name}", models.OwnView)
QUERY: Final = HttpRoute("POST", "/measurement/query", models.QueryView, scope="read")
WATCH_QUERY: Final = HttpRoute("GET", "/measurement/query/watch", models.QueryView)
WATCH: Final = HttpRoute("GET", "/measurement/watch", models.ValueView)
