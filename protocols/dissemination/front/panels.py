"""Panels of a Grafana dashboard: what streams bring, how much of it in vain, and how well their trees hold."""

from __future__ import annotations

from typing import Final

from peerd.models.panels import a_second, panel

P: Final = "peerd_dissemination_"

PANELS: Final = (
    panel(
        "Items",
        "cps",
        {"{{direction}}": a_second(f"{P}items_total", by="direction")},
        "Items that nodes got from their parents and sent to their children, a second, over all streams and nodes.",
    ),
    panel(
        "Bytes sent by the busiest nodes",
        "Bps",
        {
            "{{instance}}": "topk(5, " + a_second(f"{P}bytes_total", by="instance", where='{direction="out"}') + ")",
        },
        "What the five busiest nodes send to children. Lower fan_out or set uplink where that is too much.",
    ),
    panel(
        "Spurious share",
        "percentunit",
        {
            "all nodes": f"{a_second(f'{P}spurious_total')} / " + a_second(f"{P}items_total", where='{direction="in"}'),
        },
        "The share of items that nodes got only to pass them on. A policy that reorganises keeps it low.",
    ),
    panel(
        "Moves in the trees",
        "cps",
        {"{{end}}": a_second(f"{P}moves_total", by="end")},
        "Attempts to get a parent a second, by how they ended.",
    ),
    panel(
        "Lost and refused",
        "short",
        {
            "gaps in an hour": f"sum(increase({P}gaps_total[1h]))",
            "refused children a second": a_second(f"{P}refusals_total"),
            "producers replaced in an hour": f"sum(increase({P}take_overs_total[1h]))",
        },
        "Parts of streams that nodes have lost, newcomers that found no room, and producers that a standby replaced.",
    ),
    panel(
        "Trees",
        "short",
        {
            "places in streams": f"sum({P}streams)",
            "children": f"sum({P}children)",
            "without a parent": f"sum({P}orphans)",
            "deepest": f"max({P}depth_max)",
        },
        "How large and how deep the trees are. A node without a parent for long has lost its stream.",
    ),
    panel(
        "Waiting for children",
        "bytes",
        {"all": f"sum({P}queued_bytes)", "most at one node": f"max({P}queued_bytes)"},
        "What waits to be sent: a slow child, or an uplink that is too small.",
    ),
    panel(
        "Documents",
        "Bps",
        {"{{direction}}": a_second(f"{P}document_bytes_total", by="direction")},
        "Bytes of documents that nodes send to each other, a second. They travel beside the stream, not in it.",
    ),
    panel(
        "What became of documents",
        "short",
        {
            "{{outcome}} in an hour": f"sum by (outcome) (increase({P}documents_total[1h]))",
            "wrong chunks in an hour": f"sum(increase({P}chunks_refused_total[1h]))",
        },
        "Documents that nodes have fetched or have stopped fetching, and chunks that were not what they should be.",
    ),
)
