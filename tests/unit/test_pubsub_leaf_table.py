"""The table of leaves below an inner node: always a partition, lookups right, bounded, aged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from protocols.pubsub.messages import LeafEntry
from protocols.pubsub.tree.cells import (
    LEVEL_LIMIT,
    SIDE,
    WHOLE,
    alternate,
    area_of,
    cell_at,
    children,
    home,
    level,
    lies_within,
)
from protocols.pubsub.tree.leaf_table import GAPS_MAX, LeafTable

coordinates = st.integers(0, SIDE - 1)
cells = st.builds(cell_at, coordinates, coordinates, st.integers(0, LEVEL_LIMIT)) | st.integers(1, 63)
places = cells | st.integers(1, 63).map(alternate)


@given(st.lists(places, max_size=8))
def test_nothing_lies_below_an_alternate_whatever_is_reported(claimed: list[int]) -> None:
    """It was cut into halves that are no cells, and the node's part in publish/subscribe failed: seed 340 of the
    swarm, after a partition; and any member could have reported that."""
    table = LeafTable(WHOLE, 100, (alternate(WHOLE),))
    table.replace(alternate(WHOLE), [LeafEntry(cell, 1) for cell in claimed], 0.0)
    assert list(table.partition()) == [alternate(WHOLE)]
    assert [entry.cell for entry in table.entries()] in ([], [alternate(WHOLE)])


def grown(draw_splits: list[int], root: int = WHOLE) -> list[int]:
    """The leaves of a tree that began with one leaf, where each number has one of the leaves split, and the last ones
    have some moved."""
    leaves = [root]
    for number in draw_splits:
        index = number % len(leaves)
        if level(leaves[index]) < LEVEL_LIMIT:
            leaves[index : index + 1] = children(leaves[index])
    moved = {number % len(leaves) for number in draw_splits[:3]} if len(leaves) > 1 else set()
    return [alternate(leaf) if index in moved else leaf for index, leaf in enumerate(leaves)]


trees = st.builds(grown, st.lists(st.integers(0, 1 << 20), min_size=1, max_size=40))


def entry(cell: int, subs: int = 1) -> LeafEntry:
    return LeafEntry(cell, subs, 0)


def assert_partition(found: list[int], cell: int) -> None:
    """The cells lie in the cell, none within another, and they are all of it."""
    places = sum(1 << (LEVEL_LIMIT - level(each)) for each in found)
    assert places == 1 << (LEVEL_LIMIT - level(cell))
    assert all(lies_within(each, cell) for each in found)
    assert not any(lies_within(one, other) for one in found for other in found if one is not other)


@given(trees, st.integers(0, 1 << 16), coordinates, coordinates)
def test_a_full_table_names_the_leaf_of_every_point(leaves: list[int], seed: int, x: int, y: int) -> None:
    table = LeafTable(WHOLE, 1000)
    table.replace(WHOLE, [entry(leaf) for leaf in leaves[seed % len(leaves) :] + leaves[: seed % len(leaves)]], 0.0)
    table.validate()
    assert [each.cell for each in table.entries()] == leaves == list(table.partition())
    assert table.at(x, y) == next(leaf for leaf in leaves if lies_within(cell_at(x, y, LEVEL_LIMIT), leaf))


@given(st.lists(st.tuples(places, st.lists(places, max_size=8)), max_size=12), st.integers(1, 12), cells)
def test_any_reports_leave_a_bounded_table_that_partitions_its_cell(
    reports: list[tuple[int, list[int]]], entries_max: int, root: int
) -> None:
    """Also when they are forged: overlapping, outside, in any order."""
    if level(root) >= LEVEL_LIMIT:
        return
    table = LeafTable(root, entries_max)
    for now, (below, said) in enumerate(reports):
        table.replace(below, [entry(cell) for cell in said], float(now))
        table.validate()
        found = list(table.partition())
        assert_partition(found, root)
        assert {each.cell for each in table.entries()} <= set(found)
        area = area_of(found[0])
        first = table.at(area.x_low, area.y_low)
        assert first == found[0] or first == cell_at(area.x_low, area.y_low, level(root) + 1)


@given(trees, st.integers(2, 10), coordinates, coordinates)
def test_a_table_that_is_too_small_names_cells_above_the_leaf(
    leaves: list[int], entries_max: int, x: int, y: int
) -> None:
    table = LeafTable(WHOLE, entries_max)
    table.replace(WHOLE, [entry(leaf, subs=3) for leaf in leaves], 0.0)
    table.validate()
    leaf = next(leaf for leaf in leaves if lies_within(cell_at(x, y, LEVEL_LIMIT), leaf))
    assert lies_within(leaf, table.at(x, y)) or level(leaf) == 0
    assert_partition(list(table.partition()), WHOLE)
    assert sum(each.subs for each in table.entries()) == (0 if leaves == [WHOLE] else 3 * len(leaves))


def test_what_is_not_repeated_is_forgotten_and_leaves_a_gap() -> None:
    table = LeafTable(WHOLE, 10)
    assert table.replace(0b10, [entry(0b100), entry(0b101)], 1.0)
    assert table.replace(0b11, [entry(0b11)], 2.0)
    assert not table.replace(0b11, [entry(0b11, subs=9)], 2.0), "the same leaves"
    assert table.forget(heard_before=2.0)
    assert not table.forget(heard_before=2.0)
    assert list(table.partition()) == [0b10, 0b11]
    assert table.get(0b11) == entry(0b11, subs=9) and table.get(0b10) is None


def test_a_split_and_a_merge_replace_what_was_known() -> None:
    table = LeafTable(WHOLE, 10)
    table.replace(WHOLE, [entry(0b10), entry(0b11)], 0.0)
    assert table.replace(0b10, [entry(0b100), entry(0b101)], 1.0)
    assert list(table.partition()) == [0b100, 0b101, 0b11]
    assert table.replace(0b10, [entry(0b10)], 2.0)
    assert list(table.partition()) == [0b10, 0b11]
    assert table.replace(0b1010, [entry(0b1010)], 3.0), "a report from below an entry replaces the entry"
    assert table.get(0b10) is None and table.at(0, 0) == 0b10


def test_a_summary_is_small_enough_to_be_told() -> None:
    leaves = grown(list(range(0, 700, 7)))
    table = LeafTable(WHOLE, 1000)
    table.replace(WHOLE, [entry(leaf, subs=2) for leaf in leaves], 0.0)
    short = table.summary(5)
    assert len(short) <= 5 and sum(each.subs for each in short) == 2 * len(leaves) and len(table) == len(leaves)
    assert table.summary(1000) == table.entries()


def test_deep_leaves_that_somebody_made_up_cost_no_more_than_true_ones() -> None:
    """Beside each of them there are dozens of cells that nothing is known about."""
    rng, table, deepest = random.Random(1), LeafTable(WHOLE, 512), 1 << LEVEL_LIMIT
    table.replace(WHOLE, [entry(deepest | rng.getrandbits(LEVEL_LIMIT)) for _ in range(512)], 0.0)
    found = list(table.partition())
    assert len(found) <= GAPS_MAX + len(table) == GAPS_MAX + 512
    assert_partition(found, WHOLE)
    merged = Counter[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeafTable, "_at", counting(LeafTable._at, merged))
        assert len(table.summary(256, with_gaps=True)) <= 256
        assert sum(each.subs for each in table.summary(256)) == 512
    assert merged.total() < 100_000, "it is looked at only once which entries are the deepest"


def counting(function: Callable[[LeafTable, int], object], calls: Counter[int]) -> Callable[[LeafTable, int], object]:
    def counted(table: LeafTable, start: int) -> object:
        calls[0] += 1
        return function(table, start)

    return counted


@given(trees, st.integers(2, 10))
def test_the_deepest_entries_are_merged_first_and_of_these_the_first(leaves: list[int], entries_max: int) -> None:
    table = LeafTable(WHOLE, entries_max)
    table.replace(WHOLE, [entry(leaf) for leaf in leaves], 0.0)
    expected = [leaf for leaf in leaves if leaf != WHOLE]
    expected.sort(key=lambda leaf: home(leaf) << LEVEL_LIMIT - level(leaf))
    while len(expected) > max(2, entries_max):
        merged = home(max(expected, key=level)) >> 1
        first = [home(leaf) for leaf in expected].index(2 * merged)
        expected[first : first + 2] = [merged]
    assert [each.cell for each in table.entries()] == expected
