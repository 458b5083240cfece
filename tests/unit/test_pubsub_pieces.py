"""Where subscriptions are kept: no event that matches misses all pieces, and pieces keep what the square demands."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from peerd.lib.filter import FilterTooLarge, Node, parse
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.names import EVERY
from protocols.pubsub.ports import PiecePoint
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.subscribing.pieces import PIECES_MAX, SPANS_MAX, joined, pieces_of
from protocols.pubsub.tree.cells import SIDE
from tests.support.examples import examples
from tests.support.pubsub_schemas import DOCUMENT, events, filters, schema, wanted

EXACT = PubSubConfig(widen=0.0)
QUARTER = SIDE // 4
absences = st.sampled_from(["fails", "matches"])
bases = st.sampled_from(["random", "selective"])
groups = st.sampled_from(["", "team"])


def made(
    text: str, config: PubSubConfig = EXACT, group: str = "", used: EventSchema | None = None, seed: int = 1
) -> list[PiecePoint]:
    used = used or schema()
    return pieces_of(used, used.parse_filter(text), config, Random(seed).randrange, group)


def holders(used: EventSchema, points: list[PiecePoint], values: dict[str, Any]) -> list[PiecePoint]:
    """The pieces that an event's targets hold."""
    targets = used.targets(values)
    found = []
    for point in points:
        target = targets.get(point.attribute)
        if target is not None and (target.value is None or point.low <= target.value <= point.high):
            found.append(point)
    return found


@settings(max_examples=examples(300))
@given(
    filters, events, absences, st.sampled_from(["random", "selective"]), st.sampled_from(["", "team"]), st.integers()
)
@example(parse("price = 1 AND price = 2"), {"sym": "A"}, "matches", "random", "", 1)
@example(parse("price = 1 AND price = 2 OR count = 5"), {"count": 9}, "matches", "selective", "", 1)
def test_no_event_that_matches_misses_all_pieces(
    node: Node, values: dict[str, Any], absent: str, base: Any, group: str, seed: int
) -> None:
    used = schema(absent=absent)
    try:
        points = pieces_of(used, node, PubSubConfig(base_attribute=base, widen=0.01), Random(seed).randrange, group)
    except FilterTooLarge:
        return
    assert len(points) <= PIECES_MAX
    for point in points:
        assert 0 <= point.low <= point.high < SIDE
        assert point.attribute == EVERY or point.high - point.low <= used.by_number[point.attribute].length_max
    read = used.read_values(values)
    held = holders(used, points, read)
    if wanted(used, node, read):
        assert held
    if group and all(target.value is not None for number, target in used.targets(read).items() if number):
        assert len(held) <= 1, "an event is in one leaf of a group only"


def test_the_most_selective_attribute_is_the_base() -> None:
    [point] = made("price BETWEEN 0 AND 20 AND count BETWEEN 0 AND 9")
    assert point.attribute == 2
    assert (point.low, point.high) == (50 * SIDE // 101, 59 * SIDE // 101)


def test_any_attribute_that_is_ranged_over_can_be_the_base() -> None:
    config = PubSubConfig(widen=0.0, base_attribute="random")
    text = "price BETWEEN 0 AND 20 AND count BETWEEN 0 AND 9 AND open IS NOT NULL"
    assert {point.attribute for seed in range(20) for point in made(text, config, seed=seed)} == {1, 2}


def test_ranges_beyond_the_cut_off_line_become_several_that_touch() -> None:
    points = made("price >= 10")
    assert {point.attribute for point in points} == {1}
    assert (points[0].low, points[-1].high) == (SIDE // 10, SIDE - 1)
    lengths = [point.high - point.low for point in points]
    assert len(points) in range(4, 9)
    assert all(QUARTER // 2 <= length <= QUARTER for length in lengths[:-1])
    assert lengths[-1] <= QUARTER
    assert all(after.low - before.high == 1 for before, after in itertools.pairwise(points))


def test_ranges_are_widened_at_random_but_hold_what_they_held() -> None:
    config = PubSubConfig(widen=0.01)
    found = {made("price = 50", config, seed=seed)[0] for seed in range(10)}
    assert len(found) == 10
    for point in found:
        assert SIDE // 2 - SIDE // 100 <= point.low <= SIDE // 2 <= point.high <= SIDE // 2 + SIDE // 100


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("sym STARTS WITH 'IB'", [4]),
        ("sym LIKE 'IB%M'", [4]),
        ("sym MATCHES 'IBM|IBX'", [4]),
        ("sym ENDS WITH 'BM'", [5]),
        ("sym LIKE '%BM'", [5]),
        ("sym CONTAINS 'B'", [EVERY]),
        ("sym IS NULL", [EVERY]),
        ("TRUE", [EVERY]),
        ("price < 5 OR sym CONTAINS 'B'", [EVERY]),
        ("price < 5 OR count > 40", [1, 2]),
        ("price IN (1, 3, 5)", [1, 1, 1]),
        ("open", [6]),
        ("from IN CIDR '10.1.0.0/16'", [8]),
        ("FALSE", []),
        ("price < 1 AND price > 2", []),
    ],
)
def test_filters_go_to_the_trees_of_what_they_range_over(text: str, attributes: list[int]) -> None:
    assert [point.attribute for point in made(text)] == attributes


def test_texts_with_the_same_beginning_are_a_narrow_range() -> None:
    [point] = made("sym LIKE 'IB%M'")
    used = schema()
    assert point.low <= used.attributes["sym"].place("IBM") <= point.high
    assert point.high - point.low < SIDE // 1000
    [point] = made("sym ENDS WITH 'BM'")
    assert point.low <= used.attributes["mys"].place("MBI") <= point.high
    assert point.high - point.low < SIDE // 1000


def test_without_a_shadow_attribute_an_ending_can_be_anywhere() -> None:
    plain = schema(attributes=[each for each in DOCUMENT["attributes"] if each["name"] != "mys"])
    [point] = made("sym ENDS WITH 'BM'", used=plain)
    assert point.attribute == EVERY


def test_attributes_that_are_not_routed_are_no_base() -> None:
    attributes = [{**each, "routed": each["name"] != "price"} for each in DOCUMENT["attributes"]]
    used = schema(attributes=attributes)
    assert [point.attribute for point in made("price = 5 AND count < 0", used=used)][:1] == [2]
    assert [point.attribute for point in made("price = 5", used=used)] == [EVERY]


def test_many_values_are_joined_to_few_ranges() -> None:
    listed = ", ".join(str(number) for number in (*range(0, 60, 2), 99))
    points = made(f"price IN ({listed})")
    assert len(points) <= SPANS_MAX + 8
    assert points[-1].low > SIDE // 100 * 98, "the largest gap is kept"
    spans = joined((number * 100, number * 100 + 1) for number in range(100))
    assert len(spans) == SPANS_MAX
    assert joined([(5, 9), (0, 3), (4, 4), (20, 30), (25, 26)]) == [(0, 9), (20, 30)]


def test_members_of_a_group_choose_the_same_points_whoever_they_are() -> None:
    text = "price BETWEEN 10 AND 90 AND count > 0"
    mine = made(text, PubSubConfig(base_attribute="random", widen=0.5), "team", seed=1)
    assert mine == made(text, EXACT, "team", seed=2)
    assert mine != made(text, EXACT, "other team")
    assert made("TRUE", EXACT, "team", seed=1) == made("TRUE", EXACT, "team", seed=2)


def test_the_pieces_of_a_group_are_in_one_tree() -> None:
    assert {point.attribute for point in made("price < 5 AND count < 0 OR price > 9 AND sym = 'A'", EXACT, "team")} == {
        1
    }
    assert [point.attribute for point in made("price < 5 OR count > 40", EXACT, "team")] == [EVERY]


def test_a_subscription_of_too_many_pieces_is_kept_as_one() -> None:
    many = [{"name": f"a{number}", "type": "int", "low": 0, "high": 1 << 20, "cutoff": 0.001} for number in range(6)]
    used = EventSchema.read({"name": "s", "attributes": many})
    [point] = made(" OR ".join(f"a{number} >= 1" for number in range(6)), used=used)
    assert point.attribute == EVERY
