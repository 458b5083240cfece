"""The order in which one node's events go to the leaves of a tree: first in, first out for each leaf. Pure.

A *lane* is one outstanding cell with the events that have to visit it. One batch of a lane is on its way at a time;
what is published meanwhile waits, and goes as one batch when the first has been acknowledged. So a leaf never sees a
later event of a publisher before an earlier one, whatever is lost and tried again. The cells of different events may
overlap, because they were guessed at different times: then the lane of the later event waits for that of the earlier.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, TypeAlias

from protocols.pubsub.cell_map import CellMap
from protocols.pubsub.coverage import Change
from protocols.pubsub.names import Tree


PUT_OFF_MAX_S: Final = 5.0
"""A node that takes no more events may put off the next try by at most so much."""


class Lane:
    """The events, by number, that have to visit one cell."""

    __slots__ = ("due_s", "flying", "latest_s", "order", "tries")

    def __init__(self) -> None:
        self.order: list[int] = []
        self.tries: dict[int, int] = {}
        """How often each was sent so far."""
        self.flying: set[int] = set()
        """Those that are on their way."""
        self.due_s = math.inf
        """When those are sent again if no answer has come."""
        self.latest_s = math.inf
        """Nobody can put that off for longer."""


class Lanes:
    """All lanes of one tree."""

    def __init__(self) -> None:
        self.cells: CellMap[Lane] = CellMap()

    def add(self, cell: int, number: int, tries: int = 0, due_s: float | None = None) -> None:
        """An event has to visit a cell. ``due_s``: it is on its way there, and will be tried again then."""
        lane = self.cells.get(cell)
        if lane is None:
            lane = Lane()
            self.cells.set(cell, lane)
        if number not in lane.tries:
            insort(lane.order, number)
        lane.tries[number] = max(tries, lane.tries.get(number, 0))
        if due_s is not None:
            lane.flying.add(number)
            lane.due_s = lane.latest_s = min(lane.due_s, due_s)

    def remove(self, cell: int, number: int) -> None:
        """An event has visited a cell, or is given up."""
        lane = self.cells.get(cell)
        if lane is None or number not in lane.tries:
            return
        lane.order.remove(number)
        del lane.tries[number]
        lane.flying.discard(number)
        if not lane.flying:
            lane.due_s = math.inf
        if not lane.order:
            self.cells.pop(cell)

    def change(self, number: int, change: Change) -> None:
        """Other cells have taken the place of some of an event's. If all of those were on their way, so are these."""
        lanes = [lane for cell in change.gone if (lane := self.cells.get(cell)) is not None]
        tries = max((lane.tries.get(number, 0) for lane in lanes), default=0)
        is_flying = bool(lanes) and all(number in lane.flying for lane in lanes)
        due_s = min(lane.due_s for lane in lanes) if is_flying else None
        for cell in change.gone:
            self.remove(cell, number)
        for cell in change.new:
            self.add(cell, number, tries, due_s)

    def ready(self, cell: int) -> list[int]:
        """The events that may set out to a cell now, in order."""
        lane = self.cells.get(cell)
        if lane is None or lane.flying:
            return []
        related = (other for each in self.cells.related(cell) if (other := self.cells.get(each)) is not None)
        limit = min((other.order[0] for other in related), default=None)
        return lane.order if limit is None else [number for number in lane.order if number < limit]

    def attempt(self, cell: int, numbers: list[int]) -> int:
        """Which try it will be when these events set out to a cell, from 0 on."""
        lane = self.cells.get(cell)
        return 0 if lane is None else max(lane.tries[number] for number in numbers)

    def set_out(self, cell: int, numbers: list[int], due_s: float) -> None:
        """Events set out to a cell, together."""
        lane = self.cells.get(cell)
        assert lane is not None and not lane.flying
        attempt = self.attempt(cell, numbers)
        for number in numbers:
            lane.tries[number] = attempt + 1
        lane.flying = set(numbers)
        lane.due_s = due_s
        lane.latest_s = due_s + PUT_OFF_MAX_S

    def put_off(self, cell: int, numbers: set[int], due_s: float) -> bool:
        """Try again at another time, if some of these events are on their way to the cell."""
        lane = self.cells.get(cell)
        if lane is None or not lane.flying & numbers:
            return False
        lane.due_s = min(due_s, lane.latest_s)
        return True

    def give_up_waiting(self, cell: int, now: float) -> bool:
        """Whether no answer has come in time, so that a lane's events are not on their way any more."""
        lane = self.cells.get(cell)
        if lane is None or not lane.flying or lane.due_s > now:
            return False
        lane.flying.clear()
        lane.due_s = math.inf
        return True

    def validate(self) -> None:
        """Assert the invariants."""
        for cell in self.cells:
            lane = self.cells.get(cell)
            assert lane is not None and lane.order and lane.order == sorted(lane.tries)
            assert lane.flying <= set(lane.order)
            assert bool(lane.flying) == (lane.due_s < math.inf)
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

    def add(self, tree: Tree, cell: int, number: int) -> Spot:
        """An event has to visit a cell; returns the spot that may have to be looked at."""
        self._trees.setdefault(tree, Lanes()).add(cell, number)
        return tree, cell

    def remove(self, tree: Tree, cell: int, number: int) -> Spot:
        """An event is given up."""
        self._trees[tree].remove(cell, number)
        self._tidy(tree)
        return tree, cell

    def change(self, tree: Tree, number: int, change: Change) -> list[Spot]:
        """Other cells have taken the place of some of an event's."""
        lanes = self._trees[tree]
        lanes.change(number, change)
        for cell in change.new:
            lane = lanes.cells.get(cell)
            if lane is not None and lane.flying:
                heappush(self._due, (lane.due_s, tree, cell))
        self._tidy(tree)
        return [(tree, cell) for cell in (*change.gone, *change.new)]

    def near(self, tree: Tree, leaf: int) -> list[int]:
        """The events, by number, that have to visit cells above or below a leaf."""
        lanes = self._trees.get(tree)
        if lanes is None:
            return []
        found = [lane for cell in lanes.cells.related(leaf) if (lane := lanes.cells.get(cell)) is not None]
        return sorted({number for lane in found for number in lane.order})

    def free(self, spots: Iterable[Spot]) -> Iterator[tuple[Tree, int, list[int]]]:
        """The lanes that have become free since something happened to these spots, with the events that may set out."""
        seen: set[Spot] = set()
        for tree, cell in spots:
            lanes = self._trees.get(tree)
            for each in (cell, *lanes.cells.related(cell)) if lanes is not None else ():
                if lanes is not None and (tree, each) not in seen:
                    seen.add((tree, each))
                    if numbers := lanes.ready(each):
                        yield tree, each, numbers

    def attempt(self, tree: Tree, cell: int, numbers: list[int]) -> int:
        """Which try it will be when these events set out to a cell, from 0 on."""
        return self._trees[tree].attempt(cell, numbers)

    def set_out(self, tree: Tree, cell: int, numbers: list[int], due_s: float) -> None:
        """Events set out to a cell; if no answer has come, they are due to be sent again at ``due_s``."""
        self._trees[tree].set_out(cell, numbers, due_s)
        heappush(self._due, (due_s, tree, cell))

    def put_off(self, tree: Tree, cell: int, numbers: set[int], due_s: float) -> None:
        """Somebody on the way to a cell takes no more of these events until then."""
        lanes = self._trees.get(tree)
        for each in (cell, *lanes.cells.related(cell)) if lanes is not None else ():
            if (
                lanes is not None
                and lanes.put_off(each, numbers, due_s)
                and (lane := lanes.cells.get(each)) is not None
            ):
                heappush(self._due, (lane.due_s, tree, each))

    @property
    def due_s(self) -> float:
        """When `overdue` should be asked next."""
        return self._due[0][0] if self._due else math.inf

    def overdue(self, now: float) -> list[Spot]:
        """The lanes whose events have not been acknowledged in time; they may set out again."""
        found = []
        while self._due and self._due[0][0] <= now:
            _, tree, cell = heappop(self._due)
            lanes = self._trees.get(tree)
            if lanes is not None and lanes.give_up_waiting(cell, now):
                found.append((tree, cell))
        return found

    def _tidy(self, tree: Tree) -> None:
        if not self._trees[tree].cells:
            del self._trees[tree]

    def validate(self) -> None:
        """Assert the invariants."""
        for lanes in self._trees.values():
            assert lanes.cells
            lanes.validate()
