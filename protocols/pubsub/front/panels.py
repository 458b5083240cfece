"""Panels of a Grafana dashboard: what is published, delivered and dropped, how long that takes, and by whom."""

from __future__ import annotations

from typing import Final

from peerd.models.panels import a_second, panel, quantiles
from protocols.pubsub.delivering.ledger import MEMORY_FULL, QUEUE_FULL

P: Final = "peerd_pubsub_"

_MATCHED_BY_NODE: Final = a_second(f"{P}matched_total", by="instance")

PANELS: Final = (
    panel(
        "Published",
        "cps",
        {"{{status}}": a_second(f"{P}published_total", by="status")},
        "Events of clients a second, by what became of them.",
    ),
    panel(
        "Matched and delivered",
        "cps",
        {
            "matched": a_second(f"{P}matched_total"),
            "taken by subscribers' nodes": a_second(f"{P}delivered_total"),
            "{{outcome}}": a_second(f"{P}received_total", by="outcome"),
        },
        "Matches at leaves, what nodes have taken of them, and what became of that there. An event counts once a node.",
    ),
    panel(
        "Dropped",
        "cps",
        {"{{reason}}": a_second(f"{P}dropped_total", by="reason")},
        "Matched events that did not reach their subscriber, a second, by reason.",
    ),
    panel(
        "Queues that were full",
        "cps",
        {
            "deliveries: {{reason}}": a_second(
                f"{P}dropped_total", by="reason", where=f'{{reason=~"{QUEUE_FULL}|{MEMORY_FULL}"}}'
            ),
            "control frames: {{reason}}": a_second("peerd_frames_dropped_total", by="reason"),
            "copies of events refused": a_second(f"{P}hold_refused_total"),
        },
        "What was dropped a second because too much waited already.",
    ),
    panel(
        "From publication to the subscriber's node",
        "s",
        quantiles(f"{P}delivery_seconds"),
        "Half, 90 % and 99 % of the deliveries took at most so long.",
    ),
    panel(
        "Until a publish is acknowledged",
        "s",
        quantiles(f"{P}publish_duration_seconds"),
        "From publish to the last leaf's acknowledgement.",
    ),
    panel(
        "Until a subscription is acknowledged",
        "s",
        quantiles(f"{P}install_seconds"),
        "From a subscription to its acknowledgement by all leaves.",
    ),
    panel(
        "Subscriptions and their installation",
        "short",
        {
            "subscriptions of clients": f"sum({P}local_subscriptions)",
            "installed a second": a_second(f"{P}install_seconds_count"),
            "probes a second": a_second(f"{P}install_probes_total"),
        },
        "Many probes for each installation: leaves are hard to find, or roots change.",
    ),
    panel(
        "Leaves",
        "short",
        {
            "leaves": f"sum({P}leaves)",
            "pieces of subscriptions": f"sum({P}leaf_pieces)",
            "pieces at the fullest node": f"max({P}leaf_pieces)",
        },
        "How large the trees are. A leaf is split when it holds more than leaf_capacity pieces.",
    ),
    panel(
        "Load of the nodes",
        "cps",
        {"{{instance}}": f"topk(5, {_MATCHED_BY_NODE})", "mean": f"avg({_MATCHED_BY_NODE})"},
        "Matches a second at the five most loaded nodes, beside the mean of all.",
    ),
    panel(
        "Waiting",
        "short",
        {
            "deliveries": f"sum({P}pending_deliveries)",
            "bytes of events to be published": f"sum({P}publish_waiting_bytes)",
        },
        "What is matched and not delivered yet, and what publishers have not got rid of yet.",
    ),
    panel(
        "Lost and found again",
        "short",
        {
            "pieces installed again in an hour": f"sum(increase({P}gap_seconds_count[1h]))",
            "probes: {{what}}": a_second(f"{P}probes_total", by="what", where='{what=~"refused|lapsed|lost"}'),
        },
        "Pieces that had been lost with all their copies, and messages with events that did not arrive at once.",
    ),
)
