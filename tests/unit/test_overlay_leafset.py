"""`peerd.overlay.leafset` against a sorted ring."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.errors import Bug
from peerd.ids import RING, NodeId, clockwise_distance, closest
from peerd.messages import PeerRef
from peerd.overlay.leafset import HALF, Leaves

# A small part of the ring is drawn from often, so that ids come close and lie on one side.
ids = st.one_of(st.integers(0, RING - 1), st.integers(0, 200), st.integers(RING - 200, RING - 1)).map(NodeId)
id_sets = st.sets(ids, min_size=1, max_size=60)
OWN = NodeId(100)


def peer(node_id: int, port: int = 7420) -> PeerRef:
    return PeerRef(NodeId(node_id), "10.0.0.1", port)


def filled(own: NodeId, members: list[NodeId]) -> Leaves:
    leaves = Leaves(own)
    for node_id in members:
        leaves.add(peer(node_id))
        leaves.validate()
    return leaves


def oracle(own: NodeId, others: list[NodeId]) -> tuple[list[NodeId], list[NodeId]]:
    """(smaller, larger) sides as the whole ring has them, nearest first."""
    larger = sorted(others, key=lambda node_id: clockwise_distance(own, node_id))
    return larger[::-1][:HALF], larger[:HALF]


def side_ids(side: list[PeerRef]) -> list[NodeId]:
    return [member.id for member in side]


@given(id_sets, st.data())
def test_sides_are_the_nearest_nodes_in_any_order_of_arrival(found: set[NodeId], data: st.DataObject) -> None:
    own, *others = sorted(found)
    leaves = filled(own, data.draw(st.permutations(others)))
    smaller, larger = oracle(own, others)
    assert side_ids(leaves.smaller()) == smaller
    assert side_ids(leaves.larger()) == larger
    assert leaves.is_complete
    assert leaves.is_gapless == (len(others) <= 2 * HALF)


@given(id_sets, st.data())
def test_removal_never_fills_a_side_from_the_other_one(found: set[NodeId], data: st.DataObject) -> None:
    own, *others = sorted(found)
    leaves = filled(own, others)
    was_gapless = leaves.is_gapless
    before_smaller, before_larger = side_ids(leaves.smaller()), side_ids(leaves.larger())
    gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
    for node_id in sorted(gone):
        assert (leaves.remove(node_id) is not None) == (node_id in before_smaller or node_id in before_larger)
        leaves.validate()
    if was_gapless:
        assert (side_ids(leaves.smaller()), side_ids(leaves.larger())) == oracle(own, sorted(set(others) - gone))
    else:
        assert side_ids(leaves.smaller()) == [node_id for node_id in before_smaller if node_id not in gone]
        assert side_ids(leaves.larger()) == [node_id for node_id in before_larger if node_id not in gone]
        assert leaves.is_larger_short == (len(leaves.larger()) < HALF)
        assert leaves.is_smaller_short == (len(leaves.smaller()) < HALF)


@given(id_sets, st.data())
def test_repair_with_the_rest_of_the_ring_gives_the_exact_sides(found: set[NodeId], data: st.DataObject) -> None:
    own, *others = sorted(found)
    leaves = filled(own, others)
    gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
    for node_id in sorted(gone):
        leaves.remove(node_id)
    left = sorted(set(others) - gone)
    for node_id in left:
        leaves.add(peer(node_id))
    ring = [own, *sorted(left, key=lambda node_id: clockwise_distance(own, node_id))]
    for node_id, successor in zip(ring, [*ring[1:], own], strict=True):
        leaves.note_adjacent(node_id, successor)
    smaller, larger = oracle(own, left)
    assert leaves.is_complete
    assert set(side_ids(leaves.smaller())) | set(side_ids(leaves.larger())) == set(smaller) | set(larger)
    if len(left) >= 2 * HALF or leaves.is_gapless:
        assert (side_ids(leaves.smaller()), side_ids(leaves.larger())) == (smaller, larger)


@given(id_sets, ids, ids)
def test_would_accept_foretells_add(found: set[NodeId], gone: NodeId, candidate: NodeId) -> None:
    own, *others = sorted(found)
    leaves = filled(own, others)
    leaves.remove(gone)
    expected = leaves.would_accept(candidate)
    assert leaves.add(peer(candidate))[0] == expected
    assert (candidate in leaves) or not expected


@given(id_sets, ids, ids)
def test_only_ids_between_known_members_are_overlooked(found: set[NodeId], gone: NodeId, candidate: NodeId) -> None:
    own, *others = sorted(found)
    leaves = filled(own, others)
    leaves.remove(gone)
    is_overlooked = bool(leaves.overlooked([peer(candidate)]))
    if leaves.is_complete:
        assert is_overlooked == leaves.would_accept(candidate)
    elif is_overlooked:
        assert leaves.would_accept(candidate) and leaves.covers(candidate)
    else:
        assert candidate in (own, *side_ids(list(leaves))) or not leaves.covers(candidate)


@given(id_sets, ids)
def test_closest_and_covers_agree_with_the_whole_ring(found: set[NodeId], key: NodeId) -> None:
    own, *others = sorted(found)
    leaves = filled(own, others)
    members = [own, *side_ids(list(leaves))]
    nearest = leaves.closest(key)
    assert (own if nearest is None else nearest.id) == closest(key, members)
    if leaves.covers(key):
        assert closest(key, members) == closest(key, found)


@given(id_sets)
def test_ring_size_is_exact_when_gapless_and_never_below_what_is_known(found: set[NodeId]) -> None:
    own, *others = sorted(found)
    leaves = filled(own, others)
    if leaves.is_gapless:
        assert leaves.estimated_ring_size() == len(found)
    assert leaves.estimated_ring_size() >= len(leaves) + 1


def test_who_lies_in_the_gap_goes_only_where_it_can_be() -> None:
    ring = [NodeId(step * RING // 1000) for step in range(1000)]
    leaves = filled(ring[0], ring[1:])
    leaves.remove(ring[-1])
    assert leaves.is_smaller_short
    assert leaves.add(peer(ring[9]), lambda node_id, is_larger: is_larger) == (False, None)
    assert leaves.add(peer(ring[-9]), lambda node_id, is_larger: not is_larger) == (True, None)
    assert side_ids(leaves.smaller()) == [ring[-place] for place in range(2, 10)]


@pytest.mark.parametrize("can_be_smaller", [False, True])
def test_a_displaced_member_is_handed_over_only_where_it_can_be(can_be_smaller: bool) -> None:
    ring = [NodeId(step * RING // 1000) for step in range(1000)]
    leaves = filled(ring[0], ring[1:4] + ring[5:])
    leaves.remove(ring[-1])
    added, evicted = leaves.add(peer(ring[4]), lambda node_id, is_larger: is_larger or can_be_smaller)
    assert added
    assert evicted == (None if can_be_smaller else peer(ring[9]))
    leaves.validate()


def test_ring_size_from_density() -> None:
    leaves = filled(NodeId(0), [NodeId(step * RING // 1000) for step in range(1, 1000)])
    assert leaves.estimated_ring_size() == pytest.approx(1000, rel=1e-6)


def test_a_known_member_gets_its_new_address() -> None:
    leaves = filled(OWN, [NodeId(101)])
    assert leaves.snapshot().larger[0].port == 7420
    assert leaves.add(peer(101, 7421)) == (False, None)
    assert leaves.snapshot().larger[0].port == 7421


def test_own_id_is_never_a_member() -> None:
    leaves = Leaves(OWN)
    assert leaves.add(peer(OWN)) == (False, None)
    assert not leaves.would_accept(OWN)
    assert OWN not in leaves


def test_losing_a_whole_side_leaves_no_neighbour_there() -> None:
    leaves = filled(OWN, [NodeId(OWN + step) for step in range(-20, 21) if step])
    for step in range(1, HALF + 1):
        leaves.remove(NodeId(OWN + step))
    assert leaves.right_neighbour() is None
    assert leaves.left_neighbour() == peer(OWN - 1)
    assert not leaves.is_complete
    assert not leaves.covers(NodeId(OWN + 1))


def test_the_gap_closes_only_on_the_word_of_its_ends() -> None:
    leaves = filled(OWN, [NodeId(OWN + step) for step in range(1, 2 * HALF + 2)])
    assert not leaves.is_gapless
    dropped = NodeId(OWN + HALF + 1)
    assert dropped not in leaves
    leaves.note_adjacent(NodeId(OWN + HALF - 1), NodeId(OWN + HALF))
    assert not leaves.is_gapless
    leaves.note_adjacent(NodeId(OWN + HALF), NodeId(OWN + HALF + 2))
    assert leaves.is_gapless
    leaves.open_gap()
    assert not leaves.is_gapless


def test_last_of_many_becomes_alone_when_its_own_successor_is_itself() -> None:
    leaves = filled(OWN, [NodeId(OWN + step) for step in range(1, 30)])
    for member in list(leaves)[1:]:
        leaves.remove(member.id)
    leaves.note_adjacent(NodeId(OWN + 1), OWN)
    assert leaves.is_gapless
    assert leaves.estimated_ring_size() == 2.0


def test_validate_sees_a_broken_set() -> None:
    leaves = filled(OWN, [NodeId(101), NodeId(102)])
    leaves._distances.reverse()
    with pytest.raises(Bug):
        leaves.validate()
