"""What a publishing node is told about the leaves of trees, and how it guesses with that."""

from __future__ import annotations

from random import Random

from hypothesis import given, strategies as st

from protocols.pubsub.names import Tree
from protocols.pubsub.publishing.probing import PROBES_MAX, probe_region
from protocols.pubsub.publishing.tree_maps import ASK_EVERY_S, MAP_CELLS_MAX, MAPS_MAX, TreeMaps
from protocols.pubsub.tree.cell_map import CellMap
from protocols.pubsub.tree.cells import SIDE, WHOLE, Target, alternate, cell_of_text, home, level, lies_within

TREE = Tree("stock", 1)
cells = st.integers(WHOLE, (1 << 9) - 1) | st.integers(WHOLE, (1 << 9) - 1).map(alternate)
values = st.integers(0, SIDE - 1) | st.none()


def test_the_root_of_a_tree_is_asked_when_a_map_is_wanted_and_not_again_for_a_while() -> None:
    maps = TreeMaps()
    assert not maps.may_ask(TREE, 0.0), "nobody has published there"
    maps.of(TREE)
    assert maps.may_ask(TREE, 0.0)
    assert not maps.may_ask(TREE, ASK_EVERY_S - 1)
    assert maps.may_ask(TREE, ASK_EVERY_S)


def test_what_a_leaf_says_is_believed_rather_than_what_the_root_said() -> None:
    maps = TreeMaps()
    leaves = [cell_of_text(bits) for bits in ("0", "10", "11")]
    maps.of(TREE)
    maps.answered(TREE, cell_of_text("01"))
    maps.told(TREE, leaves)
    assert set(maps.of(TREE)) == {cell_of_text("01"), *leaves[1:]}, "an older answer of the root does not undo a split"
    maps.answered(TREE, cell_of_text("1"))
    assert set(maps.of(TREE)) == {cell_of_text("01"), cell_of_text("1")}, "a merge"
    maps.validate()


def test_a_leaf_that_has_not_answered_is_a_guess_until_it_does() -> None:
    maps = TreeMaps()
    leaf = cell_of_text("0")
    maps.not_answered(TREE, leaf)
    maps.of(TREE)
    maps.told(TREE, [leaf])
    assert maps.of(TREE).get(leaf) is True
    maps.not_answered(TREE, leaf)
    maps.not_answered(TREE, cell_of_text("1"))
    maps.told(TREE, [leaf])
    assert maps.of(TREE).get(leaf) is False, "the root of the tree may know no better"
    assert set(maps.of(TREE)) == {leaf}
    maps.answered(TREE, leaf)
    assert maps.of(TREE).get(leaf) is True
    maps.validate()


def test_a_leaf_of_a_tree_that_nobody_publishes_to_is_not_remembered() -> None:
    maps = TreeMaps()
    maps.answered(TREE, WHOLE)
    assert len(maps) == 0


def test_maps_are_bounded() -> None:
    maps = TreeMaps()
    maps.of(TREE)
    maps.told(TREE, range(1 << 11, (1 << 11) + MAP_CELLS_MAX + 10))
    assert len(maps.of(TREE)) == MAP_CELLS_MAX
    for number in range(MAPS_MAX):
        maps.of(Tree("stock", number + 2))
    assert len(maps) == MAPS_MAX
    assert len(maps.of(TREE)) == 0, "the longest unused one has gone"
    maps.validate()


@given(values, st.integers(0, 1 << 30), st.lists(cells), st.lists(cells))
def test_guesses_with_a_map_hold_the_target_and_do_not_overlap(
    value: int | None, seed: int, remembered: list[int], named: list[int]
) -> None:
    known, mapped = apart(remembered), apart(named)
    target = Target(value)
    leaves, guesses = probe_region(target, Random(seed), 0.5, 1, 6, known, mapped)
    chosen = [*leaves, *guesses]
    assert not any(lies_within(one, other) for one in chosen for other in chosen if one != other)
    assert set(leaves) == {cell for cell in known if target.meets(cell)}
    for cell in mapped:  # a leaf that was named is guessed itself, unless a remembered one overlaps it
        if target.meets(cell) and cell not in known and not known.related(cell):
            assert cell in guesses
    deepest = max(level(cell) for cell in (*known, *mapped, 1 << 6))
    for cell in range(1 << deepest, 2 << deepest, 7):
        if target.meets(cell):
            assert any(lies_within(cell, home(each)) for each in chosen), "some part of the target would not be visited"


def test_where_all_leaves_are_named_nothing_is_drawn() -> None:
    mapped = apart([cell_of_text(bits) for bits in ("0", "10", "110", "111")])
    _, guesses = probe_region(Target(None), Random(1), 1.0, 0, 6, None, mapped)
    assert set(guesses) == {cell for cell in mapped if Target(None).meets(cell)}


def test_a_map_of_many_leaves_does_not_make_more_guesses_than_there_may_be() -> None:
    mapped = apart(list(range(1 << 10, 2 << 10)))
    _, guesses = probe_region(Target(None), Random(1), 0.0, 0, 6, None, mapped)
    assert PROBES_MAX / 2 < len(guesses) <= 2 * PROBES_MAX


def apart(cells_wanted: list[int]) -> CellMap[None]:
    """Those of the cells that do not overlap an earlier one."""
    found: CellMap[None] = CellMap()
    for cell in cells_wanted:
        if not found.related(cell):
            found.set(cell, None)
    return found
