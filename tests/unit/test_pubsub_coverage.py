"""Cells, guesses and coverage: an event is done when all that it may match has been looked at."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.names import Tree
from protocols.pubsub.publishing.coverage import NO_CHANGE, OUTSTANDING_MAX, Coverage, CoverageChange
from protocols.pubsub.publishing.probing import GAPS_MAX, PROBES_MAX, LevelGuide, probe_region
from protocols.pubsub.tree.cell_map import CellMap
from protocols.pubsub.tree.cells import (
    LEVEL_LIMIT,
    SIDE,
    WHOLE,
    Target,
    alternate,
    are_related,
    area_of,
    cell_at,
    cell_of_text,
    enclosing,
    holds_point,
    home,
    is_alternate,
    level,
    lies_within,
    parent,
    text,
)
from tests.support.examples import examples

DEPTH = 8
"""The finest grain at which these tests look at the square."""
GRAINS = range(1 << DEPTH, 2 << DEPTH)
TREE = Tree("trades", 1)

homes = st.integers(0, DEPTH).flatmap(lambda depth: st.integers(1 << depth, (2 << depth) - 1))
cells = homes | homes.map(alternate)
targets = st.builds(
    Target,
    st.none() | st.integers(0, SIDE - 1),
    st.sampled_from([SIDE, SIDE // 4, SIDE // 50]),
)


def grains_of(target: Target) -> set[int]:
    """The target, at the finest grain."""
    return {grain for grain in GRAINS if target.meets(grain)}


def grains_in(some: set[int] | list[int], target: Target) -> set[int]:
    """What of the target lies in these cells."""
    return {grain for grain in grains_of(target) if any(lies_within(grain, home(cell)) for cell in some)}


def deep_cell(rng: Random, depth: int) -> int:
    """A cell that some range lies in."""
    low, high = sorted((rng.randrange(SIDE), rng.randrange(SIDE)))
    return cell_at(low, high, depth)


# Cells


@given(cells, cells)
def test_of_two_cells_one_encloses_the_other_or_they_are_apart(one: int, other: int) -> None:
    assert cell_of_text(text(one)) == one
    assert (other in enclosing(one)) == lies_within(one, other)
    assert not (lies_within(one, other) and lies_within(other, one)) or one == other
    assert lies_within(home(one), home(other)) or not lies_within(one, other)
    assert parent(one) in (*enclosing(one), 0) and parent(one) != one


@given(homes, st.integers(0, SIDE - 1), st.integers(0, SIDE - 1))
def test_an_alternate_is_the_same_rectangle_directly_below_its_home(cell: int, x: int, y: int) -> None:
    other = alternate(cell)
    assert parent(other) == cell and home(other) == cell and level(other) == level(cell)
    assert area_of(other) == area_of(cell) and holds_point(other, x, y) == holds_point(cell, x, y)
    assert lies_within(other, cell) and not lies_within(cell, other)
    assert lies_within(cell << 1, other) and lies_within(cell << 1 | 1, other)


@pytest.mark.parametrize("bits", ["2", "0b", "aa", "a0", "0" * (LEVEL_LIMIT + 1)])
def test_what_names_no_cell_is_refused(bits: str) -> None:
    with pytest.raises(ValueError, match="zeros and ones"):
        cell_of_text(bits)


# Cell maps


@given(st.lists(cells, max_size=40), st.lists(cells, max_size=40), cells)
def test_a_cell_map_finds_what_lies_above_and_below(put: list[int], taken: list[int], asked: int) -> None:
    cell_map: CellMap[str] = CellMap()
    model: dict[int, str] = {}
    for cell in put:
        cell_map.set(cell, text(cell))
        model[cell] = text(cell)
    for cell in taken:
        assert cell_map.pop(cell) == model.pop(cell, None)
    assert set(cell_map) == set(model)
    assert len(cell_map) == len(model)
    assert all(cell_map.get(cell) == model[cell] for cell in model)
    strictly_below = {cell for cell in model if cell != asked and lies_within(cell, asked)}
    assert set(cell_map.below(asked)) == strictly_below
    assert is_alternate(asked) or cell_map.has_below(asked) == bool(strictly_below)
    places = [place for place in (asked, alternate(asked)) if place in model]
    assert is_alternate(asked) or cell_map.at(asked) == (places[0] if places else None)
    assert set(cell_map.above(asked)) == {cell for cell in model if cell != asked and lies_within(asked, cell)}
    assert set(cell_map.related(asked)) == {cell for cell in model if cell != asked and are_related(cell, asked)}


# Guesses


@given(targets, st.integers(0, 1 << 30), st.floats(0, 1), st.integers(0, 4), st.integers(4, 8), st.lists(cells))
def test_guesses_and_remembered_leaves_hold_the_target_and_do_not_overlap(
    target: Target, seed: int, probability: float, level_min: int, level_max: int, remembered: list[int]
) -> None:
    known: CellMap[str] = CellMap()
    for cell in remembered:
        if not known.related(cell):
            known.set(cell, "root")
    leaves, guesses = probe_region(target, Random(seed), probability, level_min, level_max, known)
    chosen = [*leaves, *guesses]
    assert grains_in(chosen, target) == grains_of(target)
    assert all(target.meets(cell) for cell in chosen)
    assert not any(lies_within(one, other) for one in chosen for other in chosen if one != other)
    assert all(leaf in known for leaf in leaves)
    assert not any(known.has_below(guess) for guess in guesses)


def test_guesses_are_between_the_levels_and_only_at_the_deepest_without_probability() -> None:
    for probability, expected in ((0.0, {6}), (1.0, {2}), (0.5, {2, 3, 4, 5, 6})):
        tries = [probe_region(Target(None), Random(seed), probability, 2, 6)[1] for seed in range(10)]
        assert {level(cell) for guesses in tries for cell in guesses} == expected


def test_without_luck_an_event_is_guessed_at_a_bounded_number_of_cells() -> None:
    _, guesses = probe_region(Target(None), Random(1), 0.0, 2, 40)
    assert PROBES_MAX / 2 < len(guesses) <= 2 * PROBES_MAX


def test_remembered_leaves_that_somebody_made_up_do_not_have_an_event_go_everywhere_between_them() -> None:
    rng, known = Random(1), CellMap[str]()
    for _ in range(1024):
        known.set(deep_cell(rng, 40), "root")
    leaves, guesses = probe_region(Target(None), rng, 0.5, 2, 10, known)
    assert GAPS_MAX < len(leaves) + len(guesses) < 3 * GAPS_MAX
    assert sum(1 << LEVEL_LIMIT - level(cell) for cell in guesses if known.has_below(cell)), "the rest is not left out"


def test_the_levels_follow_the_leaves_that_answered() -> None:
    guide = LevelGuide(PubSubConfig(probe_level_min=2, probe_level_max=10))
    assert guide.range_of(TREE) == (2, 10), "nothing is known yet"
    guide.saw(TREE, 0)
    assert guide.range_of(TREE) == (0, 0), "the tree is one leaf, so nothing else is probed"
    for _ in range(100):
        guide.saw(TREE, 14)
    assert guide.range_of(TREE) == (2, 14), "deeper than what was configured for a start"
    assert guide.range_of(Tree("trades", 2)) == (2, 10), "each tree has its own depth"
    rng = Random(3)
    assert {guide.install_levels(TREE, rng, 2) for _ in range(500)} == {(each,) for each in range(2, 15)}


def test_a_subscription_is_first_tried_around_the_depth_that_was_seen_in_the_tree_or_its_schema() -> None:
    guide, rng = LevelGuide(PubSubConfig()), Random(3)
    assert guide.install_levels(TREE, rng, 1) == (2, 3, 4), "nothing is known yet"
    guide.saw(TREE, 6)
    assert guide.install_levels(TREE, rng, 1) == (5, 6, 7)
    assert guide.install_levels(Tree(TREE.schema, 7), rng, 1) == (5, 6, 7)
    assert guide.install_levels(Tree("other", 1), rng, 1) == (2, 3, 4)
    guide = LevelGuide(PubSubConfig(level_max=10))
    guide.saw(TREE, 0)
    assert guide.install_levels(TREE, rng, 1) == (0, 1, 2)
    guide.saw(TREE, 200)
    assert guide.install_levels(TREE, rng, 1) == (10,)


def test_the_levels_stay_within_the_deepest_that_a_tree_may_have() -> None:
    guide = LevelGuide(PubSubConfig(level_max=12))
    guide.saw(TREE, 60)
    assert guide.range_of(TREE) == (2, 12)


# Coverage


@settings(max_examples=examples(200))
@given(targets, st.integers(0, 1 << 30), st.lists(st.tuples(cells, st.booleans()), max_size=30))
def test_an_event_is_done_exactly_when_the_leaves_that_answered_hold_its_target(
    target: Target, seed: int, answers: list[tuple[int, bool]]
) -> None:
    """Leaves of any size answer in any order, as in a tree that changes.

    Of some the publisher learns by another event; of those it wants the whole answer, if it wants any of it.
    """
    coverage = Coverage({1: target})
    leaves, guesses = probe_region(target, Random(seed), 0.3, 1, 6)
    coverage.expect(1, (*leaves, *guesses))
    wanted = grains_of(target)
    for leaf, is_answer in answers:
        before = set(coverage.outstanding.get(1, set()))
        change = coverage.cover(1, leaf) if is_answer else coverage.refine(1, leaf)
        if is_answer:
            wanted -= grains_in([leaf], target)
        elif wanted & grains_in([leaf], target) and leaf not in before:
            inside = [cell for cell in before if lies_within(cell, leaf)]
            wanted |= grains_in([leaf], target) if inside else set()
        outstanding = coverage.outstanding.get(1, set())
        assert outstanding == before - set(change.gone) | set(change.new)
        assert not any(lies_within(one, other) for one in outstanding for other in outstanding if one != other)
        assert all(target.meets(cell) for cell in outstanding)
        assert grains_in(outstanding, target) == wanted
        assert coverage.is_complete == (not wanted)


def test_a_leaf_in_an_outstanding_cell_leaves_the_rest_of_it() -> None:
    coverage = Coverage({1: Target(None)})
    coverage.expect(1, [WHOLE])
    leaf = cell_of_text("010")
    change = coverage.cover(1, leaf)
    # The half "1" is left, and "00" and "011"; all of them reach above the diagonal.
    assert change == CoverageChange((WHOLE,), (cell_of_text("1"), cell_of_text("00"), cell_of_text("011")))
    assert coverage.cover(1, leaf) == NO_CHANGE, "a second answer of the same leaf changes nothing"


def test_what_no_event_can_match_is_not_left_over() -> None:
    coverage = Coverage({1: Target(0)})
    coverage.expect(1, [WHOLE])
    change = coverage.cover(1, cell_of_text("0"))
    assert change == CoverageChange((WHOLE,), ()), "in the half on the right, every range begins above 0"
    assert coverage.is_complete


def test_a_leaf_that_was_guessed_too_deep_covers_all_guesses_in_it() -> None:
    coverage = Coverage({1: Target(None), 2: Target(SIDE // 3)})
    coverage.expect(1, [cell_of_text(bits) for bits in ("00", "010", "011", "1")])
    coverage.expect(2, [WHOLE])
    assert coverage.cover(1, cell_of_text("0")).gone == tuple(cell_of_text(bits) for bits in ("00", "010", "011"))
    assert coverage.outstanding == {1: {cell_of_text("1")}, 2: {WHOLE}}


def test_leaves_that_somebody_made_up_leave_a_bounded_number_of_cells() -> None:
    rng, coverage = Random(1), Coverage({1: Target(None)})
    coverage.expect(1, [WHOLE])
    for number in range(1024):
        leaf = deep_cell(rng, LEVEL_LIMIT)
        change = coverage.refine(1, leaf) if number % 2 else coverage.cover(1, leaf)
        assert len(coverage.outstanding[1]) <= OUTSTANDING_MAX
    assert change == NO_CHANGE, "the answer counts when there is room again"
    cells = len(coverage.outstanding[1])
    assert coverage.cover(1, cell_of_text("01")).gone
    assert len(coverage.outstanding[1]) < cells and not coverage.is_complete


@pytest.mark.parametrize("attribute", [0, 3])
def test_an_answer_about_a_tree_that_the_event_does_not_visit_changes_nothing(attribute: int) -> None:
    coverage = Coverage({1: Target(None)})
    coverage.expect(1, [WHOLE])
    assert coverage.cover(attribute, WHOLE) == NO_CHANGE
    assert not coverage.is_complete
