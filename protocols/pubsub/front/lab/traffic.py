"""What nodes send: counts of messages and bytes, by type of the outermost message."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from peerd.lab.experiment import Row
from peerd.messages import message_type
from peerd.sim.simulation import Simulation

CARRIERS: Final = frozenset({"Route", "RouteAck"})
"""The overlay's messages in which those of others travel. Nothing else is routed during a run."""
PROBES: Final = frozenset({"ProbePub", "EventAck"})
"""Messages that bring events to leaves, and the answers. Figures 4.5 to 4.8 count the first (section 4.3.2: "we ignore
the bandwidth cost of EventDeliveryMessages"); what the overlay and the record store do meanwhile is not among them."""
OURS: Final = frozenset((*range(0x0060, 0x0070), *range(0x0200, 0x0300)))
"""Type ids of records (leaves are kept as records) and of publish/subscribe."""
RECORDS: Final = frozenset(
    kind.__name__ for type_id in range(0x0060, 0x0070) if (kind := message_type(type_id)) is not None
)
"""The record store's messages: what replicates leaves. The thesis leaves that to PAST and does not count it."""
SENT_BYTES: Final = 1
"""The column of a node's counts that has the bytes it has sent."""
NOTHING: Final = (0, 0)

Nodes = Mapping[int, Mapping[int, Sequence[int]]]
"""By index of a node and type id of a message: what the node has counted."""


def traffic(simulation: Simulation) -> Nodes:
    """A copy of what each running node, by index, has sent since it began."""
    return {
        place.index: {type_id: tuple(counts) for type_id, counts in place.node.traffic.items()}
        for place in simulation.live_nodes()
    }


def named(type_id: int) -> str:
    """The name of a message type."""
    kind = message_type(type_id)
    return kind.__name__ if kind is not None else str(type_id)


def bytes_sent(nodes: Nodes, without: Collection[str] = ()) -> dict[int, int]:
    """Bytes that each node has sent for publish/subscribe, the overlay's envelopes and acks included."""
    counted = {
        type_id
        for type_id in dict.fromkeys(key for node in nodes.values() for key in node)
        if (type_id in OURS or named(type_id) in CARRIERS) and named(type_id) not in without
    }
    return {
        index: sum(counts[SENT_BYTES] for type_id, counts in sent.items() if type_id in counted)
        for index, sent in nodes.items()
    }


def bytes_of(nodes: Nodes, names: Collection[str]) -> dict[int, int]:
    """Bytes that each node has sent in messages of these types."""
    return {
        index: sum(counts[SENT_BYTES] for type_id, counts in sent.items() if named(type_id) in names)
        for index, sent in nodes.items()
    }


def by_message(before: Nodes, after: Nodes, divided_by: int) -> Row:
    """Bytes a node for each subscription or event, by type of the outermost message, most first."""
    totals: dict[str, int] = {}
    for index, sent in after.items():
        for type_id, counts in sent.items():
            if type_id in OURS or named(type_id) in CARRIERS:
                former = before.get(index, {}).get(type_id, NOTHING)[SENT_BYTES]
                totals[named(type_id)] = totals.get(named(type_id), 0) + counts[SENT_BYTES] - former
    share = max(divided_by, 1) * max(len(after), 1)
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(total / share, 3) for name, total in ordered if total}
