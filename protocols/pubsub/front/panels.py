"""Panels of a Grafana dashboard: what is published, delivered and dropped, how long that takes, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocols.pubsub.ledger import MEMORY_FULL, QUEUE_FULL

P: Final = "peerd_pubsub_"
QUANTILES: Final = (("0.5", "half"), ("0.9", "90 %"), ("0.99", "99 %"))


def _panel(title: str, unit: str, targets: Mapping[str, str], about: str) -> Mapping[str, Any]:
    """A graph over time; ``targets``: what to ask Prometheus, by the name of the line."""
    return {
        "type": "timeseries",
        "title": title,
        "description": about,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"legendFormat": legend, "expr": ask} for legend, ask in targets.items()],
    }


def _a_second(metric: str, *, by: str = "", where: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{where}[$__rate_interval]))"


def _quantiles(metric: str) -> dict[str, str]:
    return {
        legend: f"histogram_quantile({quantile}, {_a_second(f'{metric}_bucket', by='le')})"
        for quantile, legend in QUANTILES
    }


_MATCHED_BY_NODE: Final = _a_second(f"{P}matched_total", by="instance")

PANELS: Final = (
    _panel(
        "Published",
        "cps",
        {"{{status}}": _a_second(f"{P}published_total", by="status")},
        "Events of clients a second, by what became of them.",
    ),
    _panel(
        "Matched and delivered",
        "cps",
        {
            "matched": _a_second(f"{P}matched_total"),
            "taken by subscribers' nodes": _a_second(f"{P}delivered_total"),
            "{{outcome}}": _a_second(f"{P}received_total", by="outcome"),
        },
        "Matches at leaves, what nodes have taken of them, and what became of that there. An event counts once a node.",
    ),
    _panel(
        "Dropped",
        "cps",
        {"{{reason}}": _a_second(f"{P}dropped_total", by="reason")},
        "Matched events that did not reach their subscriber, a second, by reason.",
    ),
    _panel(
        "Queues that were full",
        "cps",
        {
            "deliveries: {{reason}}": _a_second(
                f"{P}dropped_total", by="reason", where=f'{{reason=~"{QUEUE_FULL}|{MEMORY_FULL}"}}'
            ),
            "control frames: {{reason}}": _a_second("peerd_frames_dropped_total", by="reason"),
            "copies of events refused": _a_second(f"{P}hold_refused_total"),
        },
        "What was dropped a second because too much waited already.",
    ),
    _panel(
        "From publication to the subscriber's node",
        "s",
        _quantiles(f"{P}delivery_seconds"),
        "Half, 90 % and 99 % of the deliveries took at most so long.",
    ),
    _panel(
        "Until a publish is acknowledged",
        "s",
        _quantiles(f"{P}publish_duration_seconds"),
        "From publish to the last leaf's acknowledgement.",
    ),
    _panel(
        "Until a subscription is acknowledged",
        "s",
        _quantiles(f"{P}install_seconds"),
        "From a subscription to its acknowledgement by all leaves.",
    ),
    _panel(
        "Subscriptions and their installation",
        "short",
        {
            "subscriptions of clients": f"sum({P}local_subscriptions)",
            "installed a second": _a_second(f"{P}install_seconds_count"),
            "probes a second": _a_second(f"{P}install_probes_total"),
        },
        "Many probes for each installation: leaves are hard to find, or roots change.",
    ),
    _panel(
        "Leaves",
        "short",
        {
            "leaves": f"sum({P}leaves)",
            "pieces of subscriptions": f"sum({P}leaf_pieces)",
            "pieces at the fullest node": f"max({P}leaf_pieces)",
        },
        "How large the trees are. A leaf is split when it holds more than leaf_capacity pieces.",
    ),
    _panel(
        "Load of the nodes",
        "cps",
        {"{{instance}}": f"topk(5, {_MATCHED_BY_NODE})", "mean": f"avg({_MATCHED_BY_NODE})"},
        "Matches a second at the five most loaded nodes, beside the mean of all.",
    ),
    _panel(
        "Waiting",
        "short",
        {
            "deliveries": f"sum({P}pending_deliveries)",
            "bytes of events to be published": f"sum({P}publish_waiting_bytes)",
        },
        "What is matched and not delivered yet, and what publishers have not got rid of yet.",
    ),
    _panel(
        "Lost and found again",
        "short",
        {
            "pieces installed again in an hour": f"sum(increase({P}gap_seconds_count[1h]))",
            "probes: {{what}}": _a_second(f"{P}probes_total", by="what", where='{what=~"refused|lapsed|lost"}'),
        },
        "Pieces that had been lost with all their copies, and messages with events that did not arrive at once.",
    ),
)
