"""Messages of measurement queries that nodes have sent, by what the paper counts them as (section 7.4.1).

A message that goes along the tree is sent by each node on its way, and so counts at each hop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.lab.experiment import Row
from peerd.sim.simulation import Place, Simulation
from protocols.measurement.plugin import MeasurementQueries

FOREGROUND: Final = frozenset({"ReadAlong", "AlongRead", "ReadValues", "ValuesRead"})
"""READ and READ_REPLY."""
TREE: Final = frozenset({"Subtree"})
"""Who is below whom in T, whatever is asked: the paper finds that out once (INIT), and does not count it."""
DIRECTORY: Final = frozenset({"NodesQuestion", "NodesAnswer"})
"""Which nodes there are: that is no caching, and the paper does not have it."""
CACHING: Final = ("foreground", "background")
"""What the paper counts: reads, and all else that caching needs."""
SENT: Final = 0
RECEIVED: Final = 2
"""The columns of a node's counts that have the messages it has sent, and received."""
NAMES: Final = {kind.TYPE_ID: kind.__name__ for kind in MeasurementQueries.messages}

Sent = Mapping[str, int]
"""Messages by the name of their type."""


def sent(simulation: Simulation) -> Sent:
    """All that has been sent since the beginning."""
    return {NAMES[type_id]: counts[SENT] for type_id, counts in simulation.traffic().items() if type_id in NAMES}


def received(place: Place) -> Sent:
    """All that a node has received since it began."""
    return {NAMES[type_id]: counts[RECEIVED] for type_id, counts in place.node.traffic.items() if type_id in NAMES}


def difference(before: Sent, after: Sent) -> Sent:
    """What was sent between two moments."""
    return {name: more for name, count in after.items() if (more := count - before.get(name, 0))}


def kinds(counts: Sent) -> dict[str, int]:
    """The messages of reads, all others of caching, and what is said whatever is asked: on T, and which nodes there
    are."""
    apart = {
        kind: sum(count for name, count in counts.items() if name in names)
        for kind, names in (("foreground", FOREGROUND), ("tree", TREE), ("directory", DIRECTORY))
    }
    return {**apart, "background": sum(counts.values()) - sum(apart.values())}


def rates_row(counts: Sent, seconds: float, prefix: str = "") -> Row:
    """Messages a second, of the whole system."""
    rates = {f"{prefix}{kind}_per_s": round(count / seconds, 3) for kind, count in kinds(counts).items()}
    total = rates[f"{prefix}foreground_per_s"] + rates[f"{prefix}background_per_s"]
    return {**rates, f"{prefix}total_per_s": round(total, 3)}


def by_message(counts: Sent, seconds: float) -> Row:
    """Messages a second by type, most first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(count / seconds, 3) for name, count in ordered}
