"""The publisher's memory of leaves, and the order in which its events go to them."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from hypothesis import given, settings, strategies as st

from peerd.testing.host import peer
from protocols.pubsub.names import Tree
from protocols.pubsub.publishing import lanes as lanes_module
from protocols.pubsub.publishing.coverage import Coverage
from protocols.pubsub.publishing.lanes import FLIGHTS_MAX, FURTHER_EVENTS, PUT_OFF_MAX_S, LaneBook, Lanes
from protocols.pubsub.publishing.leaf_cache import LeafCache
from protocols.pubsub.publishing.probing import probe_region
from protocols.pubsub.tree.cell_map import CellMap
from protocols.pubsub.tree.cells import SIDE, WHOLE, Target, are_related, cell_of_text, lies_within
from tests.support.examples import examples

TREE, OTHER_TREE = Tree("trades", 1), Tree("trades", 2)
LEFT, RIGHT = cell_of_text("0"), cell_of_text("1")
GRAINS = [cell for cell in range(1 << 6, 2 << 6) if Target(None).meets(cell)]
"""No leaf of the random trees is smaller."""
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


@given(
    st.lists(st.tuples(cells, st.integers(0, 4), st.sampled_from(["answer", "forget", "lose", "wait"])), max_size=60)
)
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
    book.set_out(TREE, LEFT, [1], due_s=1.0, now=0.0)
    for number in (2, 3, 4):
        book.add(TREE, LEFT, number)
    assert free(book, LEFT) == []
    book.remove(TREE, LEFT, 1)
    assert free(book, LEFT) == [(LEFT, [2, 3, 4])]


def test_a_later_event_waits_for_an_earlier_one_in_an_overlapping_cell() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1, is_leaf=True)
    book.add(TREE, WHOLE, 2)
    book.add(TREE, RIGHT, 3, is_leaf=True)
    book.add(TREE, LEFT, 4, is_leaf=True)
    assert free(book, WHOLE, LEFT, RIGHT) == [(LEFT, [1])], "3 waits for 2, and 2 for 1"
    book.remove(TREE, LEFT, 1)
    assert free(book, LEFT) == [(WHOLE, [2])], "and 4 for 2"
    book.remove(TREE, WHOLE, 2)
    assert free(book, WHOLE) == [(LEFT, [4]), (RIGHT, [3])]


def test_guesses_of_different_events_wait_for_each_other_for_they_may_be_in_one_leaf() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.add(TREE, RIGHT, 1)
    book.add(TREE, RIGHT, 2)
    assert free(book, LEFT, RIGHT) == [(LEFT, [1]), (RIGHT, [1])]
    book.remove(TREE, RIGHT, 1)
    assert free(book, RIGHT) == [(LEFT, [1])]
    book.remove(TREE, LEFT, 1)
    assert free(book, LEFT) == [(RIGHT, [2])], "the next event's guesses are looked at wherever they are"


def test_known_leaves_do_not_wait_for_each_other_nor_for_guesses_elsewhere() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.add(TREE, RIGHT, 2, is_leaf=True)
    assert free(book, LEFT, RIGHT) == [(LEFT, [1]), (RIGHT, [2])]


def test_a_guess_that_turns_out_to_be_a_leaf_does_not_wait_any_longer_for_events_elsewhere() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.add(TREE, RIGHT, 2)
    assert free(book, RIGHT) == [(LEFT, [1])]
    book.is_a_leaf(TREE, RIGHT)
    assert free(book, RIGHT) == [(RIGHT, [2]), (LEFT, [1])]
    book.is_a_leaf(TREE, WHOLE)
    book.validate()


def test_a_guess_waits_for_earlier_events_at_known_leaves_for_these_may_have_been_merged() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1, is_leaf=True)
    book.add(TREE, RIGHT, 2)
    assert free(book, LEFT, RIGHT) == [(LEFT, [1])]
    book.remove(TREE, LEFT, 1)
    assert free(book, LEFT) == [(RIGHT, [2])]


def test_what_is_not_acknowledged_in_time_sets_out_again_with_what_came_meanwhile() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1, is_leaf=True)
    book.set_out(TREE, LEFT, [1], due_s=1.0, now=0.0)
    book.add(TREE, LEFT, 2)
    assert book.due_s == 1.0
    assert book.overdue(0.9) == []
    assert book.overdue(1.0) == [(TREE, LEFT)]
    assert not book.is_leaf(TREE, LEFT), "perhaps it is a leaf no more"
    assert free(book, LEFT) == [(LEFT, [1, 2])]
    assert book.attempt(TREE, LEFT, [1, 2]) == 1
    book.set_out(TREE, LEFT, [1, 2], due_s=3.0, now=0.0)
    assert book.overdue(3.0) == [(TREE, LEFT)]
    assert book.attempt(TREE, LEFT, [1, 2]) == 2


def test_a_try_can_be_put_off_but_not_for_ever() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1)
    book.set_out(TREE, LEFT, [1], due_s=1.0, now=0.0)
    book.put_off(TREE, WHOLE, {1}, due_s=2.0)
    assert book.overdue(1.5) == []
    for _ in range(10):
        book.put_off(TREE, LEFT, {1}, due_s=1000.0)
    book.put_off(TREE, LEFT, {2}, due_s=0.0)
    assert book.overdue(1.0 + PUT_OFF_MAX_S) == [(TREE, LEFT)]


def test_only_a_first_try_can_be_hurried_on() -> None:
    book = LaneBook()
    book.add(TREE, LEFT, 1, is_leaf=True)
    book.set_out(TREE, LEFT, [1], due_s=1.0, now=0.0)
    book.put_off(TREE, LEFT, {1}, due_s=0.2)
    assert book.overdue(0.2) == [(TREE, LEFT)]
    book.set_out(TREE, LEFT, [1], due_s=1.0, now=0.0)
    book.put_off(TREE, LEFT, {1}, due_s=0.3)
    assert book.overdue(0.9) == []


def test_an_event_on_its_way_stays_so_when_its_cell_is_replaced_by_smaller_ones() -> None:
    book = LaneBook()
    coverage = Coverage({1: Target(None)})
    coverage.expect(1, [WHOLE])
    book.add(TREE, WHOLE, 1)
    book.set_out(TREE, WHOLE, [1], due_s=1.0, now=0.0)
    book.add(TREE, RIGHT, 2)
    book.change(TREE, 1, coverage.cover(1, LEFT), LEFT)
    assert free(book, LEFT, RIGHT) == [], "the right half is still on its way"
    assert book.overdue(1.0) == [(TREE, RIGHT)]
    assert free(book, RIGHT) == [(RIGHT, [1, 2])]


def test_further_batches_go_to_a_leaf_before_the_first_is_acknowledged_if_they_are_large() -> None:
    book = LaneBook()
    numbers = list(range(1, 1 + FURTHER_EVENTS * (FLIGHTS_MAX + 1)))
    batches = [numbers[at : at + FURTHER_EVENTS] for at in range(0, len(numbers), FURTHER_EVENTS)]
    for number in numbers:
        book.add(TREE, LEFT, number, is_leaf=True)
    for count, batch in enumerate(batches[:FLIGHTS_MAX]):
        assert free(book, LEFT)[0][1][: len(batch)] == batch
        assert book.last_flying(TREE, LEFT) == FURTHER_EVENTS * count
        book.set_out(TREE, LEFT, batch, due_s=1.0 + count, now=float(count))
    assert free(book, LEFT) == [], "as many as may be are on their way"
    assert [book.since_s(TREE, LEFT, batch[0]) for batch in batches] == [*map(float, range(FLIGHTS_MAX)), None]
    book.remove(TREE, LEFT, *batches[0][1:])
    assert free(book, LEFT) == [], "the first is not over"
    book.remove(TREE, LEFT, batches[0][0])
    assert free(book, LEFT) == [(LEFT, batches[-1])]
    book.remove(TREE, LEFT, numbers[-1])
    assert free(book, LEFT) == [], "what is small waits"
    assert book.due_s == 2.0
    book.remove(TREE, LEFT, *numbers[:-FURTHER_EVENTS])
    assert free(book, LEFT) == [(LEFT, batches[-1][:-1])], "until nothing is on its way"
    book.validate()


def test_no_further_batch_goes_to_a_guess_nor_where_one_at_a_time_may_go() -> None:
    book = LaneBook()
    numbers = list(range(1, 1 + 3 * FURTHER_EVENTS))
    for number in numbers:
        book.add(TREE, LEFT, number)
    book.set_out(TREE, LEFT, numbers[:FURTHER_EVENTS], due_s=1.0, now=0.0)
    assert free(book, LEFT) == []
    book.is_a_leaf(TREE, LEFT)
    assert list(book.free([(TREE, LEFT)], flights_max=1)) == []
    assert free(book, LEFT) == [(LEFT, numbers[FURTHER_EVENTS:])]


def test_after_a_loss_all_that_was_on_its_way_to_a_leaf_goes_again_from_the_first_on() -> None:
    book = LaneBook()
    numbers = list(range(1, 1 + 2 * FURTHER_EVENTS))
    first, second = numbers[:FURTHER_EVENTS], numbers[FURTHER_EVENTS:]
    for number in numbers:
        book.add(TREE, LEFT, number, is_leaf=True)
    book.set_out(TREE, LEFT, first, due_s=1.0, now=0.0)
    book.set_out(TREE, LEFT, second, due_s=2.0, now=0.5)
    book.put_off(TREE, LEFT, set(second), due_s=0.6)  # the leaf has not had the first
    assert book.overdue(0.6) == [(TREE, LEFT)]
    assert free(book, LEFT) == [(LEFT, numbers)]
    assert book.last_flying(TREE, LEFT) == 0
    book.set_out(TREE, LEFT, first, due_s=3.0, now=0.7)
    assert free(book, LEFT) == [], "one batch at a time, until the leaf answers"


class Publisher:
    """Events of one publisher, the leaves of a tree, and a network between that loses, repeats and overtakes.

    Leaves are split and merged, and move to roots that know of nothing (``moves``).
    """

    def __init__(self, seed: int, moves: float = 0.0) -> None:
        self.rng, self.moves = Random(seed), moves
        self.book = LaneBook()
        self.known: CellMap[None] = CellMap()
        self.leaves = _random_leaves(self.rng)
        self.seen: dict[int, list[int]] = {grain: [] for grain in GRAINS}
        """What subscribers in a part of the square have had, in this order."""
        self.had: dict[int, set[int]] = {leaf: set() for leaf in self.leaves}
        """What the root of a leaf has had."""
        self.targets: dict[int, Target] = {}
        self.pending: dict[int, Coverage] = {}
        self.under_way: list[tuple[int, list[int], int, bool]] = []
        """Cell, events, the one before them, and whether the cell is taken for a leaf."""
        self.further = self.early = 0
        self.now = 0.0

    def publish(self, number: int) -> list[tuple[Tree, int]]:
        """An event gets its first cells."""
        target = self.targets[number] = Target(self.rng.randrange(SIDE))
        leaves, guesses = probe_region(target, self.rng, 0.3, 1, 8, self.known)
        self.pending[number] = coverage = Coverage({1: target})
        coverage.expect(1, (*leaves, *guesses))
        spots = [self.book.add(TREE, cell, number, is_leaf=True) for cell in leaves]
        return spots + [self.book.add(TREE, cell, number) for cell in guesses]

    def set_out(self, spots: list[tuple[Tree, int]]) -> None:
        """Give the network all that may go."""
        for tree, cell, ready in self.book.free(spots):
            numbers = ready[: self.rng.randrange(1, 5)]
            after = self.book.last_flying(tree, cell)
            self.further += after > 0
            self.under_way.append((cell, numbers, after, self.book.is_leaf(tree, cell)))
            self.book.set_out(tree, cell, numbers, self.now + self.rng.uniform(0.5, 2.0), self.now)

    def arrive(self) -> list[tuple[Tree, int]]:
        """Something arrives where it belongs, and is acknowledged; or it does not arrive, or the answer is lost."""
        if not self.under_way:
            return []
        place = self.rng.randrange(len(self.under_way))
        cell, numbers, after, remembered = self.under_way[place]
        if self.rng.random() < 0.9:  # else it comes once more
            self.under_way.pop(place)
        spots = []
        for leaf in self.leaves:
            if not are_related(leaf, cell) or self.rng.random() > 0.8:
                continue
            is_early, is_merged = after and after not in self.had[leaf], remembered and leaf < cell
            if is_early or is_merged:
                self.early += bool(is_early)
                self.book.put_off(TREE, cell, set(numbers), self.now + 0.1)
                continue
            self.had[leaf].update(numbers)
            for grain in (grain for grain in GRAINS if lies_within(grain, leaf)):
                wanted = [number for number in numbers if self.targets[number].meets(grain)]
                self.seen[grain] += [number for number in wanted if number not in self.seen[grain]]
            if self.rng.random() < 0.8:
                spots += self.acknowledged(leaf, numbers)
        return spots

    def change(self) -> None:
        """Now and then a leaf is split, merged with the one beside it, or has another root."""
        if self.rng.random() >= self.moves:
            return
        leaf, what = self.rng.choice(self.leaves), self.rng.randrange(3)
        if what == 0:
            self.had[leaf] = set()
        elif what == 1 and leaf not in GRAINS:
            had = self.had.pop(leaf)
            halves = [half for half in (leaf << 1, leaf << 1 | 1) if Target(None).meets(half)]
            self.leaves = [each for each in self.leaves if each != leaf] + halves
            self.had.update({half: set(had) for half in halves})
        elif what == 2 and leaf != WHOLE and (leaf ^ 1 in self.leaves or not Target(None).meets(leaf ^ 1)):
            self.leaves = [each for each in self.leaves if each | 1 != leaf | 1] + [leaf >> 1]
            self.had[leaf >> 1] = set()

    def acknowledged(self, leaf: int, numbers: list[int]) -> list[tuple[Tree, int]]:
        """As `Publishing` does when a leaf answers."""
        self.known.set(leaf, None)
        spots = []
        for number in numbers:
            coverage = self.pending.get(number)
            if coverage is not None and (change := coverage.cover(1, leaf)).gone:
                spots += self.book.change(TREE, number, change, leaf)
                if coverage.is_complete:
                    del self.pending[number]
        for number in self.book.near(TREE, leaf):
            spots += self.book.change(TREE, number, self.pending[number].refine(1, leaf), leaf)
        return spots


def run(world: Publisher, count: int, further: int) -> None:
    """Publish so many events and let all be acknowledged. ``further``: how large a further batch has to be."""
    published = 0
    with patch.object(lanes_module, "FURTHER_EVENTS", further):
        while published < count or world.pending:
            assert world.now < 10_000
            spots = [(TREE, cell) for _, cell in world.book.overdue(world.now)]
            if published < count and world.rng.random() < 0.5:
                published += 1
                spots += world.publish(published)
            world.change()
            world.set_out([*spots, *world.arrive()])
            world.book.validate()
            world.now += world.rng.uniform(0.0, 0.5)
        assert not list(world.book.free([(TREE, WHOLE)]))
    for grain, numbers in world.seen.items():
        assert numbers == sorted(numbers), f"at {grain:b}"


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 30), st.integers(1, 25), st.integers(1, 3), st.sampled_from([0.0, 0.1]))
def test_a_leaf_sees_the_events_of_a_publisher_in_order_whatever_is_lost(
    seed: int, count: int, further: int, moves: float
) -> None:
    run(Publisher(seed, moves), count, further)


def test_batches_overtake_each_other_in_such_runs() -> None:
    worlds = [Publisher(seed, 0.05) for seed in range(20)]
    for world in worlds:
        run(world, 60, 1)
    assert sum(world.further for world in worlds) > 100
    assert sum(world.early for world in worlds) > 20


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
    assert not lanes.cells_of
