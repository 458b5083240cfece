"""Panels of a Grafana dashboard, as data that a front returns (`peerd.front.Front.panels`), and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

QUANTILES: Final = (("0.5", "half"), ("0.9", "90 %"), ("0.99", "99 %"))


def panel(title: str, unit: str, targets: Mapping[str, str], about: str) -> Mapping[str, Any]:
    """A graph over time; ``targets``: what to ask Prometheus, by the name of the line."""
    return {
        "type": "timeseries",
        "title": title,
        "description": about,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"legendFormat": legend, "expr": ask} for legend, ask in targets.items()],
    }


def a_second(metric: str, *, by: str = "", where: str = "") -> str:
    """What a counter rises by in a second, over all nodes."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{where}[$__rate_interval]))"


def quantiles(metric: str) -> dict[str, str]:
    """Half, 90 % and 99 % of what a histogram has counted lately."""
    return {
        legend: f"histogram_quantile({quantile}, {a_second(f'{metric}_bucket', by='le')})"
        for quantile, legend in QUANTILES
    }
