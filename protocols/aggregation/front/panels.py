"""Panels of a Grafana dashboard: rounds, how they ended, how long they took, and what went wrong in them."""

from __future__ import annotations

from typing import Final

from peerd.models.panels import a_second, panel, quantiles

P: Final = "peerd_aggregation_"

PANELS: Final = (
    panel(
        "Rounds",
        "cps",
        {"{{outcome}}": a_second(f"{P}rounds_total", by="outcome")},
        "Answers a second, by whether all nodes are in them.",
    ),
    panel(
        "Time of a round",
        "s",
        quantiles(f"{P}round_duration_seconds"),
        "Half, 90 % and 99 % of the rounds took at most so long.",
    ),
    panel("Rounds under way", "short", {"{{instance}}": f"{P}open_rounds"}, "In which each node takes part now."),
    panel(
        "Swaps",
        "cps",
        {"{{outcome}}": a_second(f"{P}swaps_total", by="outcome")},
        "Exchanges of partial results between two nodes, by what became of them.",
    ),
    panel(
        "Rejected",
        "cps",
        {"{{reason}}": a_second(f"{P}rejected_total", by="reason")},
        "What others sent and no correct node sends, by reason.",
    ),
    panel("Invitations", "cps", {"sent": a_second(f"{P}invites_total")}, "Messages that ask nodes to take part."),
)
