"""The routes of measurement queries, each once: the daemon serves them, the client calls them."""

from __future__ import annotations

from typing import Any, Final, Literal

from peerd.models.routes import HttpRoute
from protocols.measurement import models

NODES: Final = HttpRoute("GET", "/measurement/nodes", models.MeasuredNodes)
READ: Final = HttpRoute("POST", "/measurement/read", models.ValueViews, scope="read")
OWN: Final = HttpRoute("GET", "/measurement/own", models.OwnViews)
PUT: Final = HttpRoute("PUT", "/measurement/own/{name}", models.OwnView)
QUERY: Final = HttpRoute("POST", "/measurement/query", models.QueryView, scope="read")
WATCH_QUERY: Final = HttpRoute("GET", "/measurement/query/watch", models.QueryView)
WATCH: Final = HttpRoute("GET", "/measurement/watch", models.ValueView)


def _prometheus(method: Literal["GET", "POST"], path: str) -> HttpRoute[dict[str, Any]]:
    """A route below the URL that Prometheus' clients are given. All of them only read; long queries come in forms."""
    return HttpRoute(method, f"/measurement/prometheus/api/v1/{path}", dict[str, Any], scope="read")


PROMETHEUS_QUERY: Final = _prometheus("GET", "query")
PROMETHEUS_QUERY_FORM: Final = _prometheus("POST", "query")
PROMETHEUS_RANGE: Final = _prometheus("GET", "query_range")
PROMETHEUS_RANGE_FORM: Final = _prometheus("POST", "query_range")
PROMETHEUS_SERIES: Final = _prometheus("GET", "series")
PROMETHEUS_SERIES_FORM: Final = _prometheus("POST", "series")
PROMETHEUS_LABELS: Final = _prometheus("GET", "labels")
PROMETHEUS_LABELS_FORM: Final = _prometheus("POST", "labels")
PROMETHEUS_VALUES: Final = _prometheus("GET", "label/{name}/values")
PROMETHEUS_METADATA: Final = _prometheus("GET", "metadata")
PROMETHEUS_BUILD: Final = _prometheus("GET", "status/buildinfo")
