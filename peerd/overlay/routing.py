"""Where a key goes next: Pastry's routing decision (Rowstron and Druschel 2001, section 2.3). Pure.

Consistency comes before latency, as in MSPastry (Castro et al. 2004): when the root that this node knows is suspected,
the message waits until the suspicion is settled instead of being delivered to the second closest node.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from peerd.ids import NodeId, closeness, shared_prefix_digits
from peerd.messages import PeerRef
from peerd.overlay.leafset import Leaves
from peerd.overlay.table import RoutingTable


class Step(Enum):
    """What to do with a key at this node."""

    DELIVER = "deliver"
    FORWARD = "forward"
    WAIT = "wait"


class Decision(NamedTuple):
    """A step, and the next hop when it is to forward."""

    step: Step
    peer: PeerRef | None = None


_DELIVER = Decision(Step.DELIVER)
_WAIT = Decision(Step.WAIT)


CostS = Callable[[NodeId, PeerRef], float]
"""How long a key should take to its root by way of a peer, seconds; infinite when the peer must not be used."""


def next_step(
    key: NodeId, leaves: Leaves, table: RoutingTable, excluded: Container[NodeId], cost_s: CostS | None = None
) -> Decision:
    """Deliver here, forward, or wait, given peers that must not be used now.

    With ``cost_s`` the quickest is chosen among all known peers that share a longer prefix with the key, else the
    table's entry is taken.

    No loops among nodes whose leaf sets are right: (length of the prefix shared with the key, closeness to the key)
    grows with each hop, in lexicographic order. Entries and spares of the key's cell lengthen the prefix; the rare case
    keeps or lengthens it, and is closer; and as the pairs of finitely many nodes are in a total order, no node
    comes twice. A hop by the leaf set may shorten the prefix; but it goes to the node closest of all to the key, which
    covers the key as well, and delivers it. What peers say of their places only chooses among hops that all obey this.
    """
    if leaves.covers(key):
        return _within_leaf_set(key, leaves, excluded)
    peer = table.next_hop(key) if cost_s is None else _quickest((key,), table, excluded, cost_s)
    return _by_table(key, peer, leaves, table, excluded)


def next_steps(
    keys: Sequence[NodeId], leaves: Leaves, table: RoutingTable, excluded: Container[NodeId], cost_s: CostS
) -> list[Decision]:
    """What to do with each key of one message, in their order.

    It is what `next_step` says of each alone, but for this: keys of one cell of the table go by the same peer, the one
    that is quickest for them together. So they stay one message, as in a multicast by prefix (Li 2008, Program 3.4),
    and what is said of loops holds for them too.
    """
    if len(keys) == 1:
        return [next_step(keys[0], leaves, table, excluded, cost_s)]
    by_cell: dict[int, list[NodeId]] = {}
    for key in keys:
        if not leaves.covers(key):
            by_cell.setdefault(table.cell(key), []).append(key)
    shared = {cell: _quickest(some, table, excluded, cost_s) for cell, some in by_cell.items()}
    return [
        _within_leaf_set(key, leaves, excluded)
        if leaves.covers(key)
        else _by_table(key, shared[table.cell(key)], leaves, table, excluded)
        for key in keys
    ]


def _within_leaf_set(key: NodeId, leaves: Leaves, excluded: Container[NodeId]) -> Decision:
    peer = leaves.closest(key)
    if peer is None:
        return _DELIVER
    return _WAIT if peer.id in excluded else Decision(Step.FORWARD, peer)


def _by_table(
    key: NodeId, peer: PeerRef | None, leaves: Leaves, table: RoutingTable, excluded: Container[NodeId]
) -> Decision:
    """Go by the peer that the table has, else by whoever is closer."""
    if peer is None or peer.id in excluded:
        peer = _rare_case(key, leaves, table, excluded)
    return _WAIT if peer is None else Decision(Step.FORWARD, peer)


def _quickest(
    keys: Sequence[NodeId], table: RoutingTable, excluded: Container[NodeId], cost_s: CostS
) -> PeerRef | None:
    """Of those that share a longer prefix with these keys of one cell; the entry where nothing is known of anybody."""
    best = table.next_hop(keys[0])
    best_s = float("inf")
    for peer in table.next_hops(keys[0]):
        if peer.id not in excluded:
            peer_s = 0.0
            for key in keys:
                peer_s += cost_s(key, peer)
            if peer_s < best_s:
                best, best_s = peer, peer_s
    return best


def _rare_case(key: NodeId, leaves: Leaves, table: RoutingTable, excluded: Container[NodeId]) -> PeerRef | None:
    """Any known node closer to the key that shares at least as many digits with it."""
    digits = shared_prefix_digits(leaves.own, key)
    best: PeerRef | None = None
    best_closeness = closeness(key, leaves.own)
    for peer in known_peers(leaves, table):
        if peer.id not in excluded and shared_prefix_digits(peer.id, key) >= digits:
            peer_closeness = closeness(key, peer.id)
            if peer_closeness < best_closeness:
                best, best_closeness = peer, peer_closeness
    return best


def join_step(key: NodeId, leaves: Leaves, table: RoutingTable, avoid: Container[NodeId]) -> PeerRef | None:
    """The next hop of a join towards its own id; ``None`` when this node is the closest that may be used."""
    if leaves.covers(key):
        return leaves.closest_avoiding(key, avoid)
    peer = table.next_hop(key)
    if peer is not None and peer.id not in avoid:
        return peer
    return _rare_case(key, leaves, table, avoid)


def known_peers(leaves: Leaves, table: RoutingTable) -> Iterator[PeerRef]:
    """Leaf set clockwise, then the table; a peer in both comes twice."""
    yield from leaves
    yield from table
