"""`peerd.overlay.routing`: every hop makes progress, and the walk ends at the root."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.ids import RING, NodeId, closeness, closest, shared_prefix_digits
from peerd.messages import PeerRef
from peerd.overlay.leafset import Leaves
from peerd.overlay.routing import Decision, Step, join_step, next_step
from peerd.overlay.table import RoutingTable

ids = st.one_of(st.integers(0, RING - 1), st.integers(0, 500)).map(NodeId)
Nodes = dict[NodeId, tuple[Leaves, RoutingTable]]


def peer(node_id: NodeId) -> PeerRef:
    return PeerRef(node_id, "10.0.0.1", 7420)


def build(found: set[NodeId], *, with_tables: bool) -> Nodes:
    """A ring whose leaf sets are right, and whose tables are full or empty."""
    nodes: Nodes = {}
    for own in sorted(found):
        leaves, table = Leaves(own), RoutingTable(own)
        for other in sorted(found):
            leaves.add(peer(other))
            if with_tables:
                table.consider(peer(other), lambda _: None)
        nodes[own] = (leaves, table)
    return nodes


@given(st.sets(ids, min_size=1, max_size=80), ids, st.booleans(), st.data())
def test_routing_reaches_the_root(found: set[NodeId], key: NodeId, with_tables: bool, data: st.DataObject) -> None:
    nodes = build(found, with_tables=with_tables)
    current = data.draw(st.sampled_from(sorted(found)))
    visited = [current]
    while True:
        decision = next_step(key, *nodes[current], frozenset())
        if decision.step is Step.DELIVER:
            break
        assert decision.peer is not None
        following = decision.peer.id
        is_closer = closeness(key, following) < closeness(key, current)
        is_longer = shared_prefix_digits(key, following) > shared_prefix_digits(key, current)
        assert is_closer or is_longer
        assert following not in visited
        visited.append(following)
        current = following
    assert current == closest(key, found)


@given(st.sets(ids, min_size=2, max_size=80), ids, st.data())
def test_a_suspected_root_is_waited_for(found: set[NodeId], key: NodeId, data: st.DataObject) -> None:
    nodes = build(found, with_tables=True)
    root = closest(key, found)
    current = data.draw(st.sampled_from(sorted(found - {root})))
    leaves, table = nodes[current]
    decision = next_step(key, leaves, table, {root})
    assert decision.step is not Step.DELIVER
    if leaves.covers(key):
        assert decision == Decision(Step.WAIT)


def test_an_excluded_entry_is_routed_around() -> None:
    own, entry, key = NodeId(0), NodeId(0x9 << 124), NodeId(0x91 << 120)
    leaves, table = Leaves(own), RoutingTable(own)
    for step in range(1, 30):
        leaves.add(peer(NodeId(step)))
        leaves.add(peer(NodeId(RING - step)))
    table.consider(peer(entry), lambda _: None)
    assert next_step(key, leaves, table, ()).peer == peer(entry)
    other = next_step(key, leaves, table, {entry})
    assert other.step is Step.FORWARD
    assert other.peer is not None
    assert closeness(key, other.peer.id) < closeness(key, own)
    everybody = {member.id for member in leaves} | {entry}
    assert next_step(key, leaves, table, everybody) == Decision(Step.WAIT)


@given(st.sets(ids, min_size=2, max_size=60), st.data())
def test_a_join_walks_to_the_closest_other_node(found: set[NodeId], data: st.DataObject) -> None:
    newcomer = data.draw(st.sampled_from(sorted(found)))
    nodes = build(found, with_tables=True)  # the ring still has an old incarnation of the newcomer
    current = data.draw(st.sampled_from(sorted(found - {newcomer})))
    for _ in range(len(found) + 1):
        following = join_step(newcomer, *nodes[current], {newcomer})
        if following is None:
            break
        assert following.id != newcomer
        current = following.id
    others = sorted(found - {newcomer})
    assert current == closest(newcomer, others)
