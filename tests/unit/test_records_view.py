"""The nodes that hold each key: ranges between middles, compared with plain sorting by closeness."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from peerd.api import LeafSet, RecordRole
from peerd.ids import RING, NodeId, clockwise_distance, closeness
from peerd.messages import PeerRef
from peerd.services.records.view import PLACES, WHOLE_RING, Arc, ReplicaView, boundary

COPIES = 3
SIDE = 8
SMALL_RING = st.integers(0, 63)


def peer(node_id: int) -> PeerRef:
    return PeerRef(NodeId(node_id), "10.0.0.1", 7420)


def view_of(ids: list[int], own: int, copies: int = COPIES, side: int = SIDE) -> ReplicaView:
    """What the node ``own`` sees when its leaf set is right."""
    others = sorted(
        (NodeId(each) for each in ids if each != own), key=lambda each: clockwise_distance(NodeId(own), each)
    )
    larger, smaller = others[:side], others[::-1][:side]
    covers = len(others) <= 2 * side
    return ReplicaView(peer(own), LeafSet(tuple(map(peer, smaller)), tuple(map(peer, larger)), True, covers), copies)


def holders_of(ids: list[int], key: int, copies: int = COPIES) -> list[int]:
    return sorted(ids, key=lambda each: closeness(NodeId(key), NodeId(each)))[:copies]


def spread(numbers: list[int]) -> list[int]:
    """Small numbers as ids all round the ring, so that ties and neighbours are common."""
    return [number * (RING // 64) for number in numbers]


rings = st.lists(SMALL_RING, min_size=1, max_size=24, unique=True).map(spread)
offsets = st.sampled_from([-1, 0, 1])


@given(rings, st.integers(0, 127), offsets)
@example([0, RING // 64], 1, 0)
def test_roles_are_those_of_sorting_by_closeness(ids: list[int], place: int, offset: int) -> None:
    key = NodeId((place * (RING // 128) + offset) % RING)
    expected = holders_of(ids, key)
    for own in ids:
        view = view_of(ids, own)
        role = view.role(key)
        assert (role is RecordRole.ROOT) == (own == expected[0])
        assert (role is not RecordRole.NONE) == (own in expected)
        assert view.is_settled
    nearest = view_of(ids, expected[0])
    assert [each.id for each in nearest.holders(key, COPIES)] == expected


@given(rings, st.integers(0, 127), offsets)
def test_shared_ranges_are_the_keys_that_both_hold(ids: list[int], place: int, offset: int) -> None:
    key = NodeId((place * (RING // 128) + offset) % RING)
    expected = holders_of(ids, key)
    for own in ids:
        view = view_of(ids, own)
        partners = {each.id for each in view.partners}
        for other in ids:
            arcs = view.shared_arcs(NodeId(other)) if other in partners else ()
            both = own in expected and other in expected and own != other
            assert any(key in arc for arc in arcs) == both, (own, other)


def test_boundary_gives_the_tie_to_the_smaller_id() -> None:
    assert boundary(NodeId(10), NodeId(20)) == 16  # 15 is as far from both, and 10 is smaller
    assert boundary(NodeId(20), NodeId(10)) == (20 + (RING - 10) // 2) % RING
    assert boundary(NodeId(10), NodeId(21)) == 16


def test_a_short_leaf_set_is_not_settled() -> None:
    members = tuple(map(peer, (1, 2)))
    view = ReplicaView(peer(0), LeafSet(members, members[::-1], True, False), COPIES)
    assert not view.is_settled, "two members a side do not reach as far as three copies need"
    assert not ReplicaView(peer(0), LeafSet((), (), False, False), COPIES).is_settled


def test_alone_a_node_is_root_of_everything() -> None:
    view = view_of([5], 5)
    assert view.is_settled and view.is_whole and view.partners == ()
    assert {view.role(NodeId(key)) for key in (0, 5, RING - 1)} == {RecordRole.ROOT}


@given(st.integers(0, RING - 1), st.integers(1, RING), st.integers(2, 64), st.integers(0, RING - 1))
def test_parts_of_a_range_meet_and_cover_it(low: int, width: int, parts: int, offset: int) -> None:
    arc = Arc(NodeId(low), NodeId((low + width) % RING))
    key = NodeId((low + offset % width) % RING)
    pieces = [arc.part(number, parts) for number in range(parts)]
    assert key in arc and sum(piece.low_place != piece.high_place and key in piece for piece in pieces) == 1
    assert [piece.high for piece in pieces[:-1]] == [piece.low for piece in pieces[1:]]
    assert (pieces[0].low, pieces[-1].high) == (arc.low, arc.high)


def test_whole_ring_has_every_key() -> None:
    assert NodeId(0) in WHOLE_RING and NodeId(RING - 1) in WHOLE_RING and WHOLE_RING.width == PLACES


@given(rings, rings, st.integers(0, 127), offsets)
def test_what_has_changed_and_what_is_not_held_are_ranges(
    ids: list[int], later_ids: list[int], place: int, offset: int
) -> None:
    key, own = NodeId((place * (RING // 128) + offset) % RING), ids[0]
    before, view = view_of(ids, own), view_of([own, *(each for each in later_ids if each != own)], own)
    is_changed = any(key in arc for arc in view.changed_arcs(before))
    assert is_changed == (view.role(key) is not before.role(key))
    is_strange = view.strange_arc is not None and key in view.strange_arc
    assert is_strange == (view.role(key) is RecordRole.NONE)


@given(rings)
def test_of_two_partners_one_begins(ids: list[int]) -> None:
    views = {own: view_of(ids, own) for own in ids}
    for own, view in views.items():
        for partner in view.partners:
            assert (partner.id in view.asks) != (own in views[partner.id].asks)
