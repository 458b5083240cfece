"""Squares of the latency space, and which node of one is a candidate cache of whom."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

from hypothesis import given, settings, strategies as st

from peerd.api import Coordinate
from peerd.ids import NodeId
from protocols.measurement.placing.locator import NEAREST, SquareMap
from protocols.measurement.placing.squares import (
    MOVED_MS,
    ORDERS,
    ORIGIN_MS,
    TOP_MS,
    Spot,
    Square,
    common_order,
    spot_of,
    square_of,
)

FAR = 5_000
"""Also outside of the space."""
spots = st.builds(Spot, *[st.integers(-FAR, FAR)] * 3, st.integers(0, 100))
near_spots = st.builds(Spot, *[st.integers(-120, 120)] * 3, st.integers(0, 20))
rings = st.dictionaries(st.integers(0, (1 << 128) - 1).map(NodeId), near_spots, min_size=2, max_size=40)


def is_inside(square: Square, spot: Spot) -> bool:
    corner = square.corner_ms
    return all(low <= each < low + square.side_ms for low, each in zip(corner, (spot.x, spot.y, spot.z), strict=True))


@given(spots)
def test_a_place_is_in_one_square_of_each_order_and_these_are_in_each_other(spot: Spot) -> None:
    low, high = -ORIGIN_MS, TOP_MS - ORIGIN_MS - 1
    clamped = Spot(*(min(max(each, low), high) for each in (spot.x, spot.y, spot.z)))
    for order in range(1, ORDERS):
        square, above = square_of(spot, order), square_of(spot, order + 1)
        assert is_inside(square, clamped)
        assert not any(is_inside(each, clamped) for each in square.siblings())
        assert len({square, *square.siblings()}) == 8
        family = {tuple(at // 2 for at in each.cell) for each in (square, *square.siblings())}
        assert family == {above.cell}
    assert square_of(spot, ORDERS).cell == (0, 0, 0)


@given(spots, spots)
def test_two_places_part_below_their_smallest_common_square(one: Spot, other: Spot) -> None:
    order = common_order(one, other)
    assert order == common_order(other, one)
    assert all((square_of(one, each) == square_of(other, each)) is (each >= order) for each in range(1, ORDERS + 1))
    if order > 1:
        assert square_of(one, order - 1) in square_of(other, order - 1).siblings()


def test_a_small_ring_is_not_at_the_edge_of_any_square() -> None:
    here = Spot(0, 0, 0)
    assert all(common_order(here, Spot(x, y, z)) == 1 for x in (-4, 4) for y in (-4, 4) for z in (-4, 4))


def test_a_node_says_where_it_is_when_it_knows_and_again_when_it_has_moved() -> None:
    told = spot_of(Coordinate(10.4, -3.6, 0.2, 0.5, 0.9), None)
    assert told is None
    told = spot_of(Coordinate(10.4, -3.6, 0.2, 0.5, 0.2), None)
    assert told == Spot(10, -4, 0, 0)
    assert spot_of(Coordinate(10.0 + MOVED_MS * 0.9, -4.0, 0.0, 0.0, 0.2), told) is told
    assert spot_of(Coordinate(30.0, 0.0, 0.0, 0.0, 0.9), told) is told, "it has lost its way"
    assert spot_of(Coordinate(10.0 + MOVED_MS, -4.0, 0.0, 0.0, 0.2), told) == Spot(10 + MOVED_MS, -4, 0, 0)


@given(rings, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_whoever_knows_the_same_nodes_finds_the_same_candidates_in_whatever_order(
    ring: dict[NodeId, Spot], random: Random
) -> None:
    nodes = list(ring)
    one = SquareMap(ring)
    expected = {(a, b): one.closest_candidate(a, b) for a in nodes for b in nodes}
    random.shuffle(nodes)
    other = SquareMap({node: ring[node] for node in nodes})
    assert all(other.closest_candidate(*pair) == found for pair, found in reversed(expected.items()))


@given(rings)
@settings(max_examples=50)
def test_a_candidate_is_in_its_square_and_one_of_the_nearest_by_their_points(ring: dict[NodeId, Spot]) -> None:
    placed = SquareMap(ring)
    for owner, spot in ring.items():
        found = placed.sibling_candidates(owner)
        assert owner not in found.values()
        for square, candidate in found.items():
            assert square_of(ring[candidate], square.order) == square
            points = placed.mapped(square)
            assert all(any(is_inside(each, Spot(*point[:3])) for each in square.siblings()) for point in points)
            by_distance = sorted(points, key=lambda point: (math.dist(point[:3], (spot.x, spot.y, spot.z)), point.rank))
            assert candidate in [each.node for each in by_distance[:NEAREST]]
        nodes = {node for node in ring if common_order(ring[node], spot) > 1}
        in_siblings = {node for square in found for node in ring if square_of(ring[node], square.order) == square}
        assert nodes == in_siblings, "every square with a node has a candidate"


@given(rings)
@settings(max_examples=50)
def test_a_reader_is_told_the_candidate_of_its_own_square_unless_the_owner_is_nearer(ring: dict[NodeId, Spot]) -> None:
    placed = SquareMap(ring)
    for reader, here in ring.items():
        for owner, there in ring.items():
            found = placed.closest_candidate(reader, owner)
            order = common_order(here, there)
            if order == 1:
                assert found is None
                continue
            expected = placed.sibling_candidates(owner)[square_of(here, order - 1)]
            is_nearer = expected == reader or here.rtt_ms(ring[expected]) < here.rtt_ms(there)
            assert found == (expected if is_nearer else None)
    assert placed.closest_candidate(NodeId(1 << 127 | 5), next(iter(ring))) is None


def ring_of(count: int, seed: int = 1) -> dict[NodeId, Spot]:
    """Nodes all over a cube of 200 ms."""
    random = Random(seed)
    places = (Spot(*(random.randrange(-100, 100) for _ in range(3))) for _ in range(count))
    return {NodeId(random.getrandbits(128)): place for place in places}


def test_near_owners_share_candidates_more_often_than_far_ones() -> None:
    ring, random = ring_of(250), Random(7)
    placed = SquareMap(ring)
    near: list[int] = []
    far: list[int] = []
    for _ in range(100):
        reader, centre = random.sample(list(ring), 2)
        by_distance = sorted(ring, key=lambda node: ring[node].rtt_ms(ring[centre]))
        for owners, counts in ((by_distance[:12], near), (random.sample(list(ring), 12), far)):
            asked = [placed.closest_candidate(reader, owner) or owner for owner in owners]
            counts.append(len(set(asked)))
    assert sum(near) < 0.8 * sum(far), (sum(near) / 100, sum(far) / 100)
    assert sum(near) < 8 * 100, "12 owners near each other cost hardly more than half as many questions"


def test_where_nodes_are_everywhere_no_node_is_the_candidate_of_most_owners() -> None:
    """Where they are not, one that is alone in its square is everybody's candidate there, by the paper's rule."""
    random, square = Random(1), Square(5, (2, 2, 2))
    places = (Spot(*(corner + random.randrange(square.side_ms) for corner in square.corner_ms)) for _ in range(600))
    ring = {NodeId(random.getrandbits(128)): place for place in places}
    placed = SquareMap(ring)
    counts = Counter(
        candidate
        for owner in ring
        for sibling, candidate in placed.sibling_candidates(owner).items()
        if sibling.order == square.order - 1
    )
    assert counts.total() == 7 * 600
    assert max(counts.values()) <= 5 * 7, counts.most_common(3)
    assert len(counts) > 0.9 * 600


def test_the_nodes_within_a_round_trip_of_a_point() -> None:
    ring = ring_of(100)
    centre = Spot(20, 0, -30)
    found = set(SquareMap(ring).region(centre, 60.0))
    assert found == {node for node, spot in ring.items() if spot.rtt_ms(centre) <= 60.0}
    assert 0 < len(found) < 100


@given(rings)
@settings(max_examples=20)
def test_owners_with_the_same_value_of_a_tag_share_one_candidate_in_a_square_wherever_they_are(
    ring: dict[NodeId, Spot],
) -> None:
    plain, regions = SquareMap(ring), dict.fromkeys(list(ring)[::2], "web")
    tagged = SquareMap(ring, regions)
    chosen: dict[Square, set[NodeId]] = {}
    for owner in ring:
        found = tagged.sibling_candidates(owner)
        assert found.keys() == plain.sibling_candidates(owner).keys()
        if owner not in regions:
            assert found == plain.sibling_candidates(owner), "who has no tag, has its own candidates"
            continue
        for square, candidate in found.items():
            assert square_of(ring[candidate], square.order) == square
            chosen.setdefault(square, set()).add(candidate)
    assert all(len(candidates) == 1 for candidates in chosen.values())
