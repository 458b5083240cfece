"""A Grafana dashboard, made of the panels that a protocol's front gives as data (`peerd.front.Front.panels`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

COLUMNS: Final = 2
WIDTH: Final = 24 // COLUMNS
HEIGHT: Final = 8
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
"""The data source that the reader of the dashboard chooses."""


def dashboard(name: str, title: str, panels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it: two panels in a row, in their order."""
    return {
        "uid": f"peerd-{name}",
        "title": title,
        "tags": ["peerd"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_placed(number, panel) for number, panel in enumerate(panels)],
    }


def _placed(number: int, panel: Mapping[str, Any]) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, **target}
        for index, target in enumerate(panel["targets"])
    ]
    place = {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT}
    return {**panel, "id": number + 1, "datasource": SOURCE, "gridPos": place, "targets": targets}
