"""Panels of a Grafana dashboard: what clients ask, what is known where they ask, and what the bounds cost."""

from __future__ import annotations

from typing import Final

from peerd.models.panels import a_second, panel

P: Final = "peerd_measurement_"
_VALUES: Final = f"{P}values_total"
_AT_HAND: Final = a_second(_VALUES, where='{outcome="cached"}')
_ASKS: Final = '{message=~"CacheAsk|ReadValues|NodesQuestion|ReadAlong|SpliceIn|MoveCaches|AggregateAsk|AggregateWord"}'
_CHECKED: Final = f"{P}checked_total"

PANELS: Final = (
    panel(
        "What clients ask",
        "cps",
        {"questions": a_second(f"{P}reads_total"), "values: {{outcome}}": a_second(_VALUES, by="outcome")},
        "A second. Values are known where they are asked (cached), told by owners (fetched), too old, or missing.",
    ),
    panel(
        "Known where it was asked",
        "percentunit",
        {"all nodes": f"{_AT_HAND} / {a_second(_VALUES)}"},
        "The share of values that cost no message, because the node had them, with bounds as tight as was asked for.",
    ),
    panel(
        "Messages",
        "cps",
        {
            "update: {{kind}}": a_second(f"{P}updates_total", by="kind"),
            "{{message}}": a_second("peerd_messages_sent_total", by="message", where=_ASKS),
        },
        "Words to nodes that hold values (broken bounds, time-out updates, no more provided), questions, aggregates.",
    ),
    panel(
        "Held values",
        "short",
        {"held": f"sum({P}held)", "at one node": f"max({P}held)", "holders of one node": f"max({P}holders)"},
        "Values that nodes hold of others, and for how many nodes the one with the most provides.",
    ),
    panel(
        "Values of caches that owners were asked about",
        "short",
        {"in an hour: {{outcome}}": f"sum by (outcome) (increase({_CHECKED}[1h]))"},
        "Each node asks an owner every 16 s whether what a cache has told is true. Violated should be 0.",
    ),
    panel(
        "Sources that fail",
        "short",
        {"now": f"sum({P}failing_sources)", "refused in an hour": f"sum(increase({P}refused_total[1h]))"},
        "Sources whose last reading failed, and what was refused of readings. `peerd measure list` says why.",
    ),
)
