"""The publisher's memory of leaves, and the order in which its events go to them."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given, settings, strategies as st

from peerd.testing.host import peer
from protocols.pubsub.cells import WHOLE, Target, are_related, cell_of_text, lies_within, parent
from protocols.pubsub.coverage import Coverage
from protocols.pubsub.lanes import PUT_OFF_MAX_S, LaneBook, Lanes
from protocols.pubsub.leaf_cache import LeafCache
from protocols.pubsub.names import Tree

TREE, OTHER_TREE = Tree("trades", 1), Tree("trades", 2)
LEFT, RIGHT = cell_of_text("0"), cell_of_text("1")
cells = st.integers(0, 6).flatmap(lambda depth: st.integers(1 << depth, (2 << depth) - 1))


# The memory of leaves


def test_a_leaf_that_answers_takes_the_place_of_cells_that_overlap_it() -> None:
    cache = LeafCache(10, 60.0)
    cache.answered(TREE, WHOLE, peer(1), 0.0)
    cache.answered(TREE, LEFT, peer(2), 1.0)
    assert cache.owner(TREE, WHOLE) is None
    assert cache.owner(TREE, LEFT) == peer(2)
    cache.answered(TREE, RIGHT, peer(3), 2.0)
    cache.answered(TREE, LEFT, peer(4), 3.0)
    assert cache.owner(TREE, LEFT) == peer(4), "another root now"
    cache.answered(TREE, WHOLE, peer(5), 4.0)  # the two were merged
    assert len(cache) == 1


def test_leaves_that_do_not_answer_are_forgotten_by_age_by_number_and_with_their_root() -> None:
    cache = LeafCache(2, 60.0)
    cache.answered(TREE, LEFT, peer(1), 0.0)
    cache.answered(TREE, RIGHT, peer(2), 10.0)
    cache.answered(OTHER_TREE, LEFT, peer(2), 20.0)
    assert cache.owner(TREE, LEFT) is None, "the oldest of three"
    cache.forget_owner(peer(2).id)
    assert len(cache) == 0
    cache.answered(TREE, LEFT, peer(1), 30.0)
    assert cache.known(TREE, 90.0) is not None
    assert cache.known(TREE, 90.1) is None


def test_a_memory_of_no_leaves_remembers_none() -> None:
    cache = LeafCache(0, 60.0)
    cache.answered(TREE, LEFT, peer(1), 0.0)
    assert len(cache) == 0


@given(st.lists(st.tuples(cells, st.integers(0, 4), st.sampled_from(["answer", "forget", "lose", "wait"])), max_size=60))
def test_the_memory_keeps_its_invariants(steps: list[tuple[int, int, str]]) -> None:
    cache = LeafCache(8, 60.0)
    now = 0.0
    for cell, number, what in steps:
        match what:
            case "answer":
                cache.answered(TREE if number % 2 else OTHER_TREE, cell, peer(number), now)
                assert cache.owner(TREE if number % 2 else OTHER_TREE, cell) == peer(number)
            case "forget":
                cache.forget(TREE, cell)
                assert cache.owner(TREE, cell) is None
            case "lose":
                cache.forget_owner(peer(number).id)
            case "wait":
                now += 25.0
                cache.known(TREE, now)
        cache.validate()


# Lanes


def free(book: LaneBook, *spots: int) -> list[tuple[int, list[int]]]:
    """What may set out, without the tree; it is only asked."""
    return [(cell, list(numbers)) for _, cell, numbers in book.free([(TREE, spot) for spot in spots])]


def test_one_batch_of_a_lane_is_on_its_way_and_the_next_goes_together() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    assert free(book, LEFT) == [(LEFT, [1])]
    book.set_out(TREE, LEFT, [1], due_s=1.0)
    for number in (2, 3, 4):
        book.add(TREE, LEFT, number)
    assert free(book, LEFT) == []
    book.remove(TREE, LEFT, 1)
    assert free(book, LEFT) == [(LEFT, [2, 3, 4])]


def test_a_later_event_waits_for_an_earlier_one_in_an_overlapping_cell() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.add(TREE, WHOLE, 2)
    book.add(TREE, RIGHT, 3)
    book.add(TREE, LEFT, 4)
    assert free(book, WHOLE, LEFT, RIGHT) == [(LEFT, [1])], "3 waits for 2, and 2 for 1"
    book.remove(TREE, LEFT, 1)
    assert free(book, LEFT) == [(WHOLE, [2])], "and 4 for 2"
    book.remove(TREE, WHOLE, 2)
    assert free(book, WHOLE) == [(LEFT, [4]), (RIGHT, [3])]


def test_what_is_not_acknowledged_in_time_sets_out_again_with_what_came_meanwhile() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.set_out(TREE, LEFT, [1], due_s=1.0)
    book.add(TREE, LEFT, 2)
    assert book.due_s == 1.0
    assert book.overdue(0.9) == []
    assert book.overdue(1.0) == [(TREE, LEFT)]
    assert free(book, LEFT) == [(LEFT, [1, 2])]
    assert book.attempt(TREE, LEFT, [1, 2]) == 1
    book.set_out(TREE, LEFT, [1, 2], due_s=3.0)
    assert book.overdue(3.0) == [(TREE, LEFT)]
    assert book.attempt(TREE, LEFT, [1, 2]) == 2


def test_a_try_can_be_put_off_but_not_for_ever() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.set_out(TREE, LEFT, [1], due_s=1.0)
    book.put_off(TREE, WHOLE, {1}, due_s=2.0)
    assert book.overdue(1.5) == []
    for _ in range(10):
        book.put_off(TREE, LEFT, {1}, due_s=1000.0)
    book.put_off(TREE, LEFT, {2}, due_s=0.0)
    assert book.overdue(1.0 + PUT_OFF_MAX_S) == [(TREE, LEFT)]


def test_an_event_on_its_way_stays_so_when_its_cell_is_replaced_by_smaller_ones() -> None:
    book = LaneBook()
    coverage = Coverage({1: Target(None)})
    coverage.expect(1, [WHOLE])
    book.add(TREE, WHOLE, 1)
    book.set_out(TREE, WHOLE, [1], due_s=1.0)
    book.add(TREE, RIGHT, 2)
    book.change(TREE, 1, coverage.cover(1, LEFT))
    assert free(book, LEFT, RIGHT) == [], "the right half is still on its way"
    assert book.overdue(1.0) == [(TREE, RIGHT)]
    assert free(book, RIGHT) == [(RIGHT, [1, 2])]


@settings(max_examples=200)
@given(st.integers(0, 1 << 30), st.integers(1, 25))
def test_a_leaf_sees_the_events_of_a_publisher_in_order_whatever_is_lost(seed: int, count: int) -> None:
    """Events with random cells; batches get lost, answers too, and leaves of a random tree answer."""
    rng = Random(seed)
    leaves = _random_leaves(rng)
    book = LaneBook()
    pending: dict[int, Coverage] = {}
    seen: dict[int, list[int]] = {leaf: [] for leaf in leaves}
    now, published = 0.0, 0
    while published < count or pending:
        assert now < 10_000
        spots = [(TREE, cell) for _, cell in book.overdue(now)]
        if published < count and rng.random() < 0.5:
            published += 1
            pending[published] = coverage = Coverage({1: Target(None)})
            coverage.expect(1, _random_leaves(rng))
            spots += [book.add(TREE, cell, published) for cell in sorted(coverage.outstanding[1])]
        while spots:
            sent = [(cell, list(numbers)) for _, cell, numbers in book.free(spots)]
            spots = []
            for cell, numbers in sent:
                book.set_out(TREE, cell, numbers, now + rng.uniform(0.5, 2.0))
            for cell, numbers in sent:
                for leaf in leaves:
                    if not are_related(leaf, cell) or rng.random() < 0.3:
                        continue
                    seen[leaf] += [number for number in numbers if number not in seen[leaf]]
                    if rng.random() < 0.8:
                        spots += _acknowledged(book, pending, leaf, numbers)
            book.validate()
        now += rng.uniform(0.0, 1.0)
    assert all(numbers == list(range(1, count + 1)) for numbers in seen.values())
    assert book.due_s >= now or not book.overdue(math.inf)


def _acknowledged(
    book: LaneBook, pending: dict[int, Coverage], leaf: int, numbers: list[int]
) -> list[tuple[Tree, int]]:
    spots = []
    for number in numbers:
        if number in pending:
            spots += book.change(TREE, number, change) if (change := pending[number].cover(1, leaf)).gone else []
            if pending[number].is_complete:
                del pending[number]
    for number in book.near(TREE, leaf):
        spots += book.change(TREE, number, pending[number].refine(1, leaf))
    return spots


def _random_leaves(rng: Random) -> list[int]:
    """A random tree, without what lies below the diagonal."""
    waiting, leaves = [WHOLE], []
    while waiting:
        cell = waiting.pop()
        if not Target(None).meets(cell):
            continue
        if cell.bit_length() > 5 or rng.random() < 0.4:
            leaves.append(cell)
        else:
            waiting += [cell << 1, cell << 1 | 1]
    return leaves


def test_a_lane_goes_when_its_last_event_has_gone() -> None:
    lanes = Lanes()
    lanes.add(LEFT, 1)
    lanes.remove(LEFT, 1)
    assert len(lanes.cells) == 0
    assert lies_within(LEFT, parent(LEFT))
