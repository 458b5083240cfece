"""The order in which one node's events go to the leaves of a tree: first in, first out for each leaf. Pure.

A *lane* is one outstanding cell with the events that have to visit it. What is published while a batch of a lane is on
its way waits, and goes as one batch when that one has been acknowledged. So batches form by themselves.

To a leaf a further batch may set out before the answer, if it is large (`FURTHER_EVENTS`). What is small waits, as in
Nagle's algorithm, so that batches become no smaller. A further batch names the last event before it that is on its way
(`ProbePub.after`), and the leaf takes it only if it has had that one. So a leaf never sees a later event of a publisher
before an earlier one, whatever is lost, overtaken and tried again. When a batch is not answered in time, all that is on
its way there is sent again from the first one on, one batch at a time until the leaf answers.

Two lanes may end at one leaf. Where one cell lies in the other, the lane of the later event waits for that of the
earlier. A guess waits for all that the earlier events have outstanding in the tree, because it may be too deep, and end
at the same leaf. A cell of which a leaf's own answer told, or the root of the tree (`tree_maps`), is no guess. Should
that leaf have been merged into a larger one since, it sends the event back instead of on (`ProbePub.remembered`), and
the cell is a guess until a leaf answers.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

from protocols.pubsub.names import Tree
from protocols.pubsub.publishing.coverage import CoverageChange
from protocols.pubsub.tree.cell_map import CellMap

PUT_OFF_MAX_S: Final = 5.0
"""A node that takes no more events may put off the next try by at most so much."""


MEAN_SHARE: Final = 1 / 8
SPREAD_SHARE: Final = 1 / 4
"""How much one answer counts, in the mean and in the spread."""
SPREADS: Final = 4.0
EVENT_S: Final = 0.01
"""Each event of a batch may keep the leaf busy for so long."""
FIRST_S: Final = 2.0
"""The least pause before any answer has come. Each of the first answers may need a new link, which takes three round
trips; to send the event again to hundreds of leaves that have it costs more than to wait for them."""
ALLOWANCE_MAX_S: Final = 10.0
"""Slow answers make the pause no longer than this, so that one leaf that is slow on purpose holds up little."""


FLIGHTS_MAX: Final = 4
"""So many batches may be on their way to one leaf, so that it has the next one when it has dealt with the first."""
QUICK_S: Final = 1.0
"""Where answers take longer in the mean, one batch at a time is on its way: it is the leaf that is slow, and what waits
there would use up its time limit (``publish_timeout``)."""
CALM_S: Final = 10.0
"""After somebody has taken no more events, or not yet, one batch at a time is on its way for so long: several would be
refused together, and sent twice."""
FURTHER_EVENTS: Final = 64
"""A batch of fewer events waits until all that went before it to the same leaf has been acknowledged."""


class Flight:
    """A batch that is on its way to a cell."""

    __slots__ = ("due_s", "latest_s", "numbers", "since_s")

    def __init__(self, numbers: set[int], due_s: float, latest_s: float, since_s: float | None = None) -> None:
        self.numbers = numbers
        self.due_s = due_s
        """When it is sent again if no answer has come."""
        self.latest_s = latest_s
        """Nobody can put that off for longer."""
        self.since_s = since_s
        """When it set out, in its first try: an answer to a later one may be that to the first."""


class Lane:
    """The events, by number, that have to visit one cell."""

    __slots__ = ("begun_s", "flights", "is_leaf", "order", "tries")

    def __init__(self) -> None:
        self.is_leaf = False
        """The leaf itself has told of it, or the root of the tree; else the cell is a guess."""
        self.order: list[int] = []
        self.tries: dict[int, int] = {}
        """How often each was sent so far."""
        self.begun_s: dict[int, float] = {}
        """When each of those that were sent first set out: its time limit runs from then."""
        self.flights: list[Flight] = []
        """What is on its way, in order."""

    @property
    def due_s(self) -> float:
        """When something is sent again if no answer has come."""
        return min((flight.due_s for flight in self.flights), default=math.inf)

    @property
    def last_flying(self) -> int:
        """The last event that is on its way; 0: none is."""
        return max((max(flight.numbers) for flight in self.flights), default=0)

    def is_flying(self, number: int) -> bool:
        """Whether an event is on its way."""
        return any(number in flight.numbers for flight in self.flights)


class Lanes:
    """All lanes of one tree."""

    def __init__(self) -> None:
        self.cells: CellMap[Lane] = CellMap()
        self.cells_of: dict[int, set[int]] = {}
        """By event, the cells that it has to visit."""
        self.numbers: list[int] = []
        """These events, in order."""

    def _lane(self, cell: int) -> Lane:
        lane = self.cells.get(cell)
        if lane is None:
            lane = Lane()
            self.cells.set(cell, lane)
        return lane

    def enter(self, cell: int, numbers: Sequence[int], *, is_leaf: bool) -> None:
        """The latest events, in order, have to visit a cell."""
        lane = self._lane(cell)
        assert not lane.order or lane.order[-1] < numbers[0]
        lane.is_leaf = lane.is_leaf or is_leaf
        lane.order += numbers
        lane.tries.update(dict.fromkeys(numbers, 0))
        for number in numbers:
            if (cells := self.cells_of.get(number)) is None:
                self.numbers.append(number)
                self.cells_of[number] = {cell}
            else:
                cells.add(cell)

    def add(
        self,
        cell: int,
        number: int,
        *,
        is_leaf: bool = False,
        tries: int = 0,
        due_s: float = math.inf,
        begun_s: float = math.inf,
    ) -> None:
        """An event has to visit a cell. ``due_s``: it is on its way there, and will be tried again then. ``begun_s``:
        it was sent, first at that time."""
        lane = self._lane(cell)
        if number not in lane.tries:
            insort(lane.order, number)
            lane.tries[number] = tries
        else:
            lane.tries[number] = max(tries, lane.tries[number])
        if begun_s < math.inf:
            lane.begun_s[number] = min(begun_s, lane.begun_s.get(number, math.inf))
        lane.is_leaf = lane.is_leaf or is_leaf
        if (cells := self.cells_of.get(number)) is None:
            insort(self.numbers, number)
            self.cells_of[number] = {cell}
        else:
            cells.add(cell)
        if due_s < math.inf and not lane.is_flying(number):
            if not lane.flights:
                lane.flights.append(Flight(set(), due_s, due_s))
            flight = lane.flights[0]
            flight.numbers.add(number)
            flight.due_s = flight.latest_s = min(flight.due_s, due_s)

    def remove(self, cell: int, *numbers: int) -> None:
        """Events have visited a cell, or are given up."""
        lane = self.cells.get(cell)
        if lane is None:
            return
        gone = {number for number in numbers if number in lane.tries}
        over = set()
        for number in gone:
            cells = self.cells_of[number]
            cells.remove(cell)
            if not cells:
                del self.cells_of[number]
                over.add(number)
            del lane.tries[number]
            lane.begun_s.pop(number, None)
        for flight in lane.flights:
            flight.numbers -= gone
        lane.flights = [flight for flight in lane.flights if flight.numbers]
        lane.order = [number for number in lane.order if number not in gone]
        if over:
            self.numbers = [number for number in self.numbers if number not in over]
        if not lane.order:
            self.cells.pop(cell)

    def change(self, number: int, change: CoverageChange, leaf: int) -> None:
        """Because of a leaf, other cells have taken the place of some of an event's.

        If the event was on its way to all of those, it is on its way to these.
        """
        lanes = [lane for cell in change.gone if (lane := self.cells.get(cell)) is not None]
        tries = max((lane.tries.get(number, 0) for lane in lanes), default=0)
        begun_s = min((lane.begun_s.get(number, math.inf) for lane in lanes), default=math.inf)
        is_flying = bool(lanes) and all(lane.is_flying(number) for lane in lanes)
        due_s = min(lane.due_s for lane in lanes) if is_flying else math.inf
        for cell in change.gone:
            self.remove(cell, number)
        for cell in change.new:
            self.add(cell, number, is_leaf=cell == leaf, tries=tries, due_s=due_s, begun_s=begun_s)

    def ready(self, cell: int, flights_max: int = FLIGHTS_MAX) -> list[int]:
        """The events that may set out to a cell now, in order."""
        lane = self.cells.get(cell)
        if lane is None or len(lane.flights) >= (flights_max if lane.is_leaf else 1):
            return []
        limit = math.inf
        if not lane.is_leaf:  # an earlier event's other cells may end at the same leaf; its own do not matter
            # Mostly the first event is one: to look at all of them for each cell would be thousands for each publish.
            elsewhere = next((each for each in self.numbers if self.cells_of[each] != {cell}), math.inf)
            limit = elsewhere + 1
        if lane.order[0] >= limit:
            return []
        related = (other for each in self.cells.related(cell) if (other := self.cells.get(each)) is not None)
        limit = min(limit, min((other.order[0] for other in related), default=math.inf))
        last = lane.last_flying
        found = [number for number in lane.order if last < number < limit]
        return [] if last and len(found) < FURTHER_EVENTS else found

    def next_guesses(self) -> list[int]:
        """The guessed cells of the earliest event: those that may have become free by the end of the one before it."""
        cells = sorted(self.cells_of[self.numbers[0]]) if self.numbers else []
        return [cell for cell in cells if (lane := self.cells.get(cell)) is not None and not lane.is_leaf]

    def attempt(self, cell: int, numbers: list[int]) -> int:
        """Which try it will be when these events set out to a cell, from 0 on."""
        lane = self.cells.get(cell)
        return 0 if lane is None else max(lane.tries[number] for number in numbers)

    def set_out(self, cell: int, numbers: list[int], due_s: float, now: float) -> None:
        """Events set out to a cell, together."""
        lane = self.cells.get(cell)
        assert lane is not None and lane.last_flying < numbers[0]
        attempt = self.attempt(cell, numbers)
        for number in numbers:
            lane.tries[number] = attempt + 1
            lane.begun_s.setdefault(number, now)
        lane.flights.append(Flight(set(numbers), due_s, due_s + PUT_OFF_MAX_S, now if attempt == 0 else None))

    def put_off(self, cell: int, numbers: set[int], due_s: float) -> float | None:
        """Try again at another time, if some of these events are on their way to the cell; returns when.

        Only a first try can be repeated sooner than planned, so that nobody can have this node repeat all the time.
        """
        lane = self.cells.get(cell)
        if lane is None:
            return None
        for flight in lane.flights:
            if flight.numbers & numbers:
                if due_s < flight.due_s and max(lane.tries[number] for number in flight.numbers) > 1:
                    return None
                flight.due_s = min(due_s, flight.latest_s)
                return flight.due_s
        return None

    def give_up_waiting(self, cell: int, now: float) -> bool:
        """Whether no answer has come in time: its events are not on their way any more, and the cell is a guess."""
        lane = self.cells.get(cell)
        if lane is None or lane.due_s > now:
            return False
        lane.flights.clear()
        lane.is_leaf = False
        return True

    def late(self, cell: int, begun_s: float) -> tuple[list[int], list[int]]:
        """Of the events of a cell: those that had set out by then, and those that have not set out yet."""
        lane = self.cells.get(cell)
        if lane is None:
            return [], []
        sent = [number for number in lane.order if lane.begun_s.get(number, math.inf) <= begun_s]
        return sent, [number for number in lane.order if number not in lane.begun_s]

    def oldest_s(self, cell: int) -> float:
        """When the first of the events that are under way to a cell set out."""
        lane = self.cells.get(cell)
        return math.inf if lane is None else min(lane.begun_s.values(), default=math.inf)

    def validate(self) -> None:
        """Assert the invariants."""
        assert self.numbers == sorted(self.cells_of)
        for cell in self.cells:
            lane = self.cells.get(cell)
            assert lane is not None and lane.order and lane.order == sorted(lane.tries)
            flying = [number for flight in lane.flights for number in flight.numbers]
            assert len(flying) == len(set(flying)) and all(flight.numbers for flight in lane.flights)
            assert set(flying) <= lane.begun_s.keys() <= set(lane.order)
            assert len(lane.flights) <= FLIGHTS_MAX
            assert all(cell in self.cells_of[number] for number in lane.order)
            for other_cell in self.cells.above(cell):
                other = self.cells.get(other_cell)
                assert other is not None and not lane.tries.keys() & other.tries.keys(), "an event's cells are apart"


Spot: TypeAlias = tuple[Tree, int]
"""A cell of a tree."""


class LaneBook:
    """The lanes of all trees, and when each is due to be tried again."""

    def __init__(self) -> None:
        self._trees: dict[Tree, Lanes] = {}
        self._due: list[tuple[float, Tree, int]] = []
        """A heap; an entry may be out of date, the lane itself says when it is due."""
        self._begun: list[tuple[float, Tree, int]] = []
        """A heap of when the oldest event of a lane set out, or earlier: the lane itself knows."""
        self._begun_of: dict[Spot, float] = {}
        """What stands there for each lane."""

    def add(self, tree: Tree, cell: int, *numbers: int, is_leaf: bool = False) -> Spot:
        """The latest events have to visit a cell; returns the spot that may have to be looked at."""
        lanes = self._trees.get(tree)
        if lanes is None:
            lanes = self._trees[tree] = Lanes()
        lanes.enter(cell, numbers, is_leaf=is_leaf)
        return tree, cell

    def _lane(self, tree: Tree, cell: int) -> Lane | None:
        lanes = self._trees.get(tree)
        return None if lanes is None else lanes.cells.get(cell)

    def remove(self, tree: Tree, cell: int, *numbers: int) -> Spot:
        """Events have visited a cell, or are given up."""
        if numbers:
            self._trees[tree].remove(cell, *numbers)
            self._tidy(tree)
        return tree, cell

    def change(self, tree: Tree, number: int, change: CoverageChange, leaf: int) -> list[Spot]:
        """Because of a leaf, other cells have taken the place of some of an event's."""
        lanes = self._trees[tree]
        lanes.change(number, change, leaf)
        for cell in change.new:
            lane = lanes.cells.get(cell)
            if lane is not None and lane.flights:
                heappush(self._due, (lane.due_s, tree, cell))
            self._note_begun(tree, cell)
        self._tidy(tree)
        return [(tree, cell) for cell in (*change.gone, *change.new)]

    def is_a_leaf(self, tree: Tree, cell: int) -> None:
        """A leaf has answered: what is to go there is no guess."""
        lane = self._lane(tree, cell)
        if lane is not None:
            lane.is_leaf = True

    def near(self, tree: Tree, leaf: int) -> list[int]:
        """The events, by number, that have to visit cells above or below a leaf."""
        lanes = self._trees.get(tree)
        if lanes is None:
            return []
        found = [lane for cell in lanes.cells.related(leaf) if (lane := lanes.cells.get(cell)) is not None]
        return sorted({number for lane in found for number in lane.order})

    def free(
        self, spots: Iterable[Spot], added: Iterable[Spot] = (), flights_max: int = FLIGHTS_MAX
    ) -> Iterator[tuple[Tree, int, list[int]]]:
        """The lanes that have become free since something happened to these spots, with the events that may set out.

        To ``added`` ones a later event has come, which makes none of the others free. ``flights_max``: how many batches
        may be on their way to a leaf.
        """
        by_tree: dict[Tree, dict[int, None]] = {}
        for tree, cell in spots:
            by_tree.setdefault(tree, {})[cell] = None
        near: dict[Spot, None] = {}
        for tree, cells in by_tree.items():
            if (lanes := self._trees.get(tree)) is not None:
                found = (each for cell in cells for each in (cell, *lanes.cells.related(cell)))
                near.update(((tree, each), None) for each in (*found, *lanes.next_guesses()))
        near.update((spot, None) for spot in added)
        for tree, cell in near:
            if (lanes := self._trees.get(tree)) is not None and (numbers := lanes.ready(cell, flights_max)):
                yield tree, cell, numbers

    def ready(self, tree: Tree, cell: int, flights_max: int) -> list[int]:
        """The events of a lane that may set out now."""
        lanes = self._trees.get(tree)
        return [] if lanes is None else lanes.ready(cell, flights_max)

    def is_leaf(self, tree: Tree, cell: int) -> bool:
        """Whether the leaf itself or the root of the tree has told of the cell, and it is no guess."""
        lane = self._lane(tree, cell)
        return lane is not None and lane.is_leaf

    def attempt(self, tree: Tree, cell: int, numbers: list[int]) -> int:
        """Which try it will be when these events set out to a cell, from 0 on."""
        return self._trees[tree].attempt(cell, numbers)

    def since_s(self, tree: Tree, cell: int, number: int) -> float | None:
        """When an event set out that is on its way to a cell, if this is its first try."""
        lane = self._lane(tree, cell)
        flights = () if lane is None else lane.flights
        return next((flight.since_s for flight in flights if number in flight.numbers), None)

    def last_flying(self, tree: Tree, cell: int) -> int:
        """The last event that is on its way to a cell; 0: none is."""
        lane = self._lane(tree, cell)
        return 0 if lane is None else lane.last_flying

    def set_out(self, tree: Tree, cell: int, numbers: list[int], due_s: float, now: float) -> None:
        """Events set out to a cell; if no answer has come, they are due to be sent again at ``due_s``."""
        self._trees[tree].set_out(cell, numbers, due_s, now)
        heappush(self._due, (due_s, tree, cell))
        self._note_begun(tree, cell)

    def put_off(self, tree: Tree, cell: int, numbers: set[int], due_s: float) -> None:
        """Somebody on the way to a cell takes no more of these events until then."""
        lanes = self._trees.get(tree)
        if lanes is None:
            return
        for each in (cell, *lanes.cells.related(cell)):
            when = lanes.put_off(each, numbers, due_s)
            if when is not None:
                heappush(self._due, (when, tree, each))

    @property
    def due_s(self) -> float:
        """When `overdue` should be asked next."""
        while self._due and not self._is_due(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def _is_due(self, due_s: float, tree: Tree, cell: int) -> bool:
        lane = self._lane(tree, cell)
        return lane is not None and lane.due_s <= due_s

    def overdue(self, now: float) -> list[Spot]:
        """The lanes whose events have not been acknowledged in time; they may set out again."""
        found = []
        while self._due and self._due[0][0] <= now:
            _, tree, cell = heappop(self._due)
            lanes = self._trees.get(tree)
            if lanes is not None and lanes.give_up_waiting(cell, now):
                found.append((tree, cell))
        return found

    @property
    def oldest_s(self) -> float:
        """When the event set out that has been on its way to a cell for longest; infinite while there is none."""
        while self._begun and self._oldest_of(*self._begun[0][1:]) != self._begun[0][0]:
            self._note_begun(*self._pop_begun())
        return self._begun[0][0] if self._begun else math.inf

    def late(self, begun_s: float) -> tuple[list[int], list[int]]:
        """The events that had set out to a cell by then and have had no answer from it, and those that have not set out
        yet because of them. They are to be removed."""
        late: set[int] = set()
        waiting: set[int] = set()
        spots = []
        while self.oldest_s <= begun_s:
            tree, cell = self._pop_begun()
            spots.append((tree, cell))
            sent, behind = self._trees[tree].late(cell, begun_s)
            late.update(sent)
            waiting.update(behind)
        for spot in spots:
            self._note_begun(*spot)
        return sorted(late), sorted(waiting - late)

    def _oldest_of(self, tree: Tree, cell: int) -> float:
        lanes = self._trees.get(tree)
        return math.inf if lanes is None else lanes.oldest_s(cell)

    def _note_begun(self, tree: Tree, cell: int) -> None:
        oldest_s = self._oldest_of(tree, cell)
        if oldest_s < self._begun_of.get((tree, cell), math.inf):
            self._begun_of[tree, cell] = oldest_s
            heappush(self._begun, (oldest_s, tree, cell))

    def _pop_begun(self) -> Spot:
        begun_s, tree, cell = heappop(self._begun)
        if self._begun_of.get((tree, cell)) == begun_s:
            del self._begun_of[tree, cell]
        return tree, cell

    def _tidy(self, tree: Tree) -> None:
        if not self._trees[tree].cells:
            del self._trees[tree]

    def validate(self) -> None:
        """Assert the invariants."""
        for lanes in self._trees.values():
            assert lanes.cells
            lanes.validate()
        begun = {
            (tree, cell)
            for tree, lanes in self._trees.items()
            for cell in lanes.cells
            if lanes.oldest_s(cell) < math.inf
        }
        assert begun <= self._begun_of.keys()
        assert all(self._begun_of[spot] <= self._oldest_of(*spot) for spot in begun)


class Patience:
    """What is known of how long answers take, and so how long to wait for one.

    A batch of many events keeps a leaf busy, and a busy machine keeps its daemons waiting. Asking again too soon makes
    both worse, because what is repeated has to be looked up, sent and compared with what came before. So the pause is
    at least what answers have taken of late, with room for their spread, as TCP does it (RFC 6298, sections 2 and 3).
    Answers to what was sent twice do not count, because nobody knows which of the two they answer.
    """

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._spread_s = 0.0
        self._one_until_s = -math.inf

    def answered(self, took_s: float) -> None:
        """An answer to a first try has come after so long."""
        if self._mean_s is None:
            self._mean_s, self._spread_s = took_s, took_s / 2
            return
        self._spread_s += SPREAD_SHARE * (abs(took_s - self._mean_s) - self._spread_s)
        self._mean_s += MEAN_SHARE * (took_s - self._mean_s)

    def refused(self, now: float) -> None:
        """Somebody takes no more for the moment, or not yet."""
        self._one_until_s = now + CALM_S

    def flights_max(self, now: float) -> int:
        """How many batches may be on their way to a leaf."""
        is_quick = self._mean_s is not None and self._mean_s <= QUICK_S
        return FLIGHTS_MAX if is_quick and now >= self._one_until_s else 1

    def pause_s(self, least_s: float, events: int) -> float:
        """How long to wait before so many events are sent again; ``least_s``: one event, where answers are quick."""
        usual_s = FIRST_S if self._mean_s is None else self._mean_s + SPREADS * self._spread_s
        return max(least_s, min(usual_s, ALLOWANCE_MAX_S)) + EVENT_S * (events - 1)
