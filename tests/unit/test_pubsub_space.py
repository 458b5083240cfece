"""Coordinates keep the order of values, and a range of coordinates holds every value of its range of values."""

from __future__ import annotations

import ipaddress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.lib.filter.ranges import Cut
from protocols.pubsub.schema.axes import Axis, RealAxis, TextAxis, WholeAxis
from protocols.pubsub.tree.cells import SIDE
from tests.support.examples import examples

numbers = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False),
    st.decimals(-(10**6), 10**6, allow_nan=False, places=3),
    st.sampled_from([Decimal("1E+999999"), Decimal("-1E+999999"), Decimal("1E-999999"), 10**400, 2**53, 2**53 + 1]),
)
near = st.integers(-12, 12) | st.floats(-12, 12) | st.decimals(-12, 12, allow_nan=False, places=2)
letters = st.text("ABZaz ~\0\x1f\x7fé\ud7ff\ue000\U0010ffff", max_size=5) | st.text(max_size=3).filter(str.isprintable)
AXES: list[tuple[Axis, st.SearchStrategy[Any]]] = [
    (WholeAxis(-10, 10), numbers | near),
    (WholeAxis(0, 1), st.integers(0, 1)),
    (WholeAxis(-(2**63), 2**63 - 1), numbers),
    (WholeAxis(1 << 32, (1 << 32) + (1 << 128) - 1), st.integers(0, 1 << 129)),
    (RealAxis(Decimal(-10), Decimal(10)), numbers | near),
    (RealAxis(Decimal("0.1"), Decimal("0.10001")), numbers | st.floats(0.1, 0.1001)),
    (RealAxis(Decimal("-1e300"), Decimal("1e300")), numbers),
    (RealAxis(Decimal(-(2**1023)), Decimal(2**1023)), numbers),
    (RealAxis(Decimal("-1.7e308"), Decimal("1.7e308")), numbers),
    (TextAxis("", ""), letters),
    (TextAxis("A", "Z"), letters),
    (TextAxis("AB", "ABZ"), letters.map(lambda text: f"AB{text}") | letters),
    (TextAxis("é", "é"), letters),
    (TextAxis("\x01", "\x02"), letters),
]


@settings(max_examples=examples(400))
@given(st.data())
def test_coordinates_keep_the_order(data: st.DataObject) -> None:
    axis, keys = data.draw(st.sampled_from(AXES))
    low, high = sorted((data.draw(keys), data.draw(keys)))
    assert 0 <= axis.coordinate(low) <= axis.coordinate(high) < SIDE


@settings(max_examples=examples(400))
@given(st.data())
def test_a_range_holds_the_coordinates_of_all_its_values(data: st.DataObject) -> None:
    axis, keys = data.draw(st.sampled_from(AXES))
    is_text = isinstance(axis, TextAxis)
    low: Cut = (data.draw(keys), 0 if is_text else data.draw(st.integers(0, 1)))
    high: Cut = (data.draw(keys), 0 if is_text else data.draw(st.integers(0, 1)))
    ends = [None if data.draw(st.booleans()) else end for end in (low, high)]
    value = data.draw(keys)
    if isinstance(axis, WholeAxis):
        value = max(-(10**30), min(1 << 130, value)).__trunc__()  # what events have is whole
    first, last = axis.span(*ends)
    assert 0 <= first <= max(first, last) < SIDE
    cut = (value, 0)
    if (ends[0] is None or ends[0] <= cut) and (ends[1] is None or cut < ends[1]):
        assert first <= axis.coordinate(value) <= last


@settings(max_examples=examples(400))
@given(st.floats(-12, 12), st.floats(-12, 12), st.floats(-12, 12))
def test_doubles_lie_where_equal_decimals_do(one: float, other: float, key: float) -> None:
    low, high = sorted((one, other))
    axis = RealAxis(Decimal(low), Decimal(high if high > low else low + 1))
    assert axis.coordinate(key) == axis.coordinate(Decimal(key))
    assert axis.holds(key) == axis.holds(Decimal(key))


def test_a_domain_fills_the_side_evenly() -> None:
    axis = WholeAxis(0, 99)
    assert [axis.coordinate(key) for key in (0, 25, 50, 75)] == [0, SIDE // 4, SIDE // 2, SIDE // 4 * 3]
    assert axis.coordinate(99) == 99 * SIDE // 100
    assert (axis.coordinate(-5), axis.coordinate(1000)) == (0, axis.coordinate(99))
    real = RealAxis(Decimal(0), Decimal(1))
    assert real.coordinate(0.5) == SIDE // 2
    assert (real.coordinate(-1), real.coordinate(1), real.coordinate(7)) == (0, SIDE - 1, SIDE - 1)


def test_ends_that_do_not_belong_to_a_range_of_whole_numbers_are_left_out() -> None:
    axis = WholeAxis(0, 1)
    is_false, is_true = axis.coordinate(0), axis.coordinate(1)
    assert axis.span((0, 0), (1, 0)) == axis.span(None, (1, 0)) == (is_false, is_false)
    assert axis.span((1, 0), (2, 0)) == (is_true, is_true)
    wide = WholeAxis(0, 9)
    assert wide.span((2, 1), (5, 0)) == (wide.coordinate(3), wide.coordinate(4))
    assert wide.span((2.5, 0), (4.5, 1)) == (wide.coordinate(3), wide.coordinate(4))


def test_what_all_strings_of_a_domain_begin_with_takes_no_room() -> None:
    axis = TextAxis("urn:example:sensor:a", "urn:example:sensor:z")
    places = [axis.coordinate(f"urn:example:sensor:{letter}") for letter in "abyz"]
    assert [round(place / SIDE * 26) for place in places] == [0, 1, 24, 25]
    assert axis.coordinate("urn:example:sensor:b1") > places[1]
    assert not axis.holds("urn:example:actor:b")
    assert axis.holds("urn:example:sensor:zzz")
    assert (axis.coordinate("t"), axis.coordinate("v")) == (0, SIDE - 1)


def test_strings_of_other_scripts_are_told_apart() -> None:
    axis = TextAxis("А", "Я")
    places = [axis.coordinate(word) for word in ("Анна", "Борис", "Вера", "Юлия")]
    assert places == sorted(set(places))
    assert places[-1] - places[0] > SIDE // 2


@pytest.mark.parametrize("network", ["10.0.0.0/8", "10.1.2.0/24", "fd00::/8"])
def test_the_addresses_of_a_network_fill_the_side(network: str) -> None:
    first, last = (int(ipaddress.ip_network(network)[index]) for index in (0, -1))
    axis = WholeAxis(first, last)
    assert axis.coordinate(first) == 0
    assert axis.coordinate(last) >= SIDE - SIDE // (last - first + 1) - 1
    assert axis.coordinate((first + last + 1) // 2) == SIDE // 2


@settings(max_examples=examples(200))
@given(
    st.sampled_from(
        [
            WholeAxis(0, 1),
            WholeAxis(-7, 1_000_000_000),
            WholeAxis(-(2**63), 2**63 - 1),
            RealAxis(Decimal("-0.5"), Decimal("10000")),
            TextAxis("", ""),
            TextAxis("AB", "AZ"),
        ]
    ),
    st.integers(0, 16).flatmap(lambda level: st.tuples(st.just(level), st.integers(0, 1 << level))),
)
def test_the_value_at_the_edge_of_a_rectangle_lies_near_it(axis: Axis, edge: tuple[int, int]) -> None:
    level, number = edge
    coordinate = number * (SIDE >> level)
    near = (coordinate & -coordinate) / 2  # the edge of a large rectangle is written shorter
    value = axis.value(coordinate)
    assert axis.holds(value)
    if number == 1 << level:
        assert value == axis.high
    elif axis != WholeAxis(0, 1):  # which has nothing in between
        assert coordinate - near <= axis.coordinate(value) <= coordinate + near
