"""The lease: heard from both sides in time, and proven anew after an absence."""

from __future__ import annotations

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.leafset import Leaves
from peerd.overlay.lease import Lease

LEASE_S = 30.0
ABSENCE_S = 10.0
LEFT, RIGHT = NodeId(900), NodeId(1100)


def lease_of(*members: int) -> tuple[Lease, dict[NodeId, float]]:
    """The lease of node 1000 on a ring with these others, all heard at time 0."""
    leaves = Leaves(NodeId(1000), 2)
    heard: dict[NodeId, float] = {}
    for member in members:
        leaves.add(PeerRef(NodeId(member), "10.0.0.1", 1))
        heard[NodeId(member)] = 0.0
    lease = Lease(leaves, heard, LEASE_S, ABSENCE_S)
    lease.note_event(0.0)
    return lease, heard


def test_alone_in_its_ring_a_node_always_serves() -> None:
    lease, _ = lease_of()
    assert lease.is_held(1e9)


def test_it_lapses_when_one_side_falls_silent() -> None:
    lease, heard = lease_of(700, 800, 900, 1100, 1200, 1300)
    assert lease.is_held(LEASE_S)
    assert not lease.is_held(LEASE_S + 0.1)
    heard[RIGHT] = 20.0
    assert not lease.is_held(LEASE_S + 0.1), "the smaller side is silent"
    heard[NodeId(800)] = 5.0
    assert lease.is_held(LEASE_S + 0.1), "anybody of a side will do, not only the neighbour"
    assert not lease.is_held(5.0 + LEASE_S + 0.1)


def test_two_nodes_need_each_other() -> None:
    lease, heard = lease_of(1100)
    heard[RIGHT] = 10.0
    assert lease.is_held(40.0)
    assert not lease.is_held(40.1)


def test_after_an_absence_only_a_round_trip_begun_since_counts() -> None:
    lease, heard = lease_of(700, 800, 900, 1100, 1200, 1300)
    assert lease.note_event(ABSENCE_S) == 0.0
    assert lease.note_event(60.0) == 50.0
    assert lease.is_returning
    assert set(heard.values()) == {60.0}, "nobody is accused of the silence that this node slept through"
    heard[LEFT] = heard[RIGHT] = 60.0  # read from the socket's buffer, sent long before
    assert not lease.is_held(60.0)
    lease.confirm(LEFT, 59.0)
    lease.confirm(RIGHT, 60.1)
    assert not lease.is_held(60.2), "the left one answered what was sent before"
    lease.confirm(LEFT, 60.1)
    assert lease.is_held(60.2)
    assert not lease.is_returning
    assert (lease.absences, lease.is_held(60.2)) == (1, True)


def test_who_gave_us_up_proves_nothing_any_more() -> None:
    lease, _ = lease_of(900, 1100)
    lease.disclaim(LEFT, 1.0)
    lease.disclaim(RIGHT, 1.0)
    assert not lease.is_held(1.0)
    lease.disclaim(NodeId(5), 1.0)  # a stranger
