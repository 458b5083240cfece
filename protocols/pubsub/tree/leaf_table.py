"""LeafNodeRoutingTable: which leaves lie below an inner node, as far as it has heard (section 3.2.2). Pure.

It is soft state and may be wrong: leaves tell of themselves now and then, what was not repeated is forgotten, and
what a forged report claims stays until then. A wrong entry costs a detour and never a loss, because whoever is asked
says what it is itself. Its entries never overlap. Where nothing is known, the table says so with the largest cells that
it knows nothing about, as long as these are not many more than entries: a forged entry deep in the tree has one at each
level above it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from protocols.pubsub.messages import LeafEntry
from protocols.pubsub.tree.cells import (
    LEVEL_LIMIT,
    ancestor,
    cell_at,
    children,
    home,
    is_alternate,
    level,
    lies_within,
    parent,
    part_at,
)

COUNT_MAX: Final = (1 << 32) - 1
GAPS_MAX: Final = 1024
"""Cells that nothing is known about, in a partition, or as many as the table may have entries. In an honest tree each
of them was an entry that has been forgotten."""


class LeafTable:
    """The leaves below one cell, at most ``entries_max`` (and never fewer than two, its halves).

    ``parts``: what it consists of where nothing is known: its halves, or its alternate.
    """

    def __init__(self, cell: int, entries_max: int, parts: Sequence[int] = ()) -> None:
        self.cell = cell
        self._parts = parts or children(cell)
        self._entries_max = max(2, entries_max)
        self._entries: dict[int, tuple[LeafEntry, float]] = {}
        self._starts: list[int] = []
        """The first place of each entry, sorted: see `_start`."""

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[LeafEntry]:
        """All of them, in the order of their places in the tree."""
        return [self._at(start)[0] for start in self._starts]

    def get(self, cell: int) -> LeafEntry | None:
        """The entry of exactly this cell."""
        found = self._entries.get(_start(cell))
        return found[0] if found is not None and found[0].cell == cell else None

    def subs(self, enough: float) -> int:
        """How many subscriptions they have together. It is not counted further than ``enough``."""
        total = 0
        for entry, _ in self._entries.values():
            total += entry.subs
            if total >= enough:
                break
        return total

    def replace(self, below: int, entries: Iterable[LeafEntry], now: float) -> bool:
        """Take over what is said about all leaves in ``below``; returns whether other cells are leaves than before.

        Entries outside it, and those that overlap an earlier one of the same report, are left out.
        """
        if not lies_within(below, self.cell):
            return False
        before = self._cells(below)
        for start in self._starts_related(below):
            self._drop(start)
        for entry in entries:
            is_inside = lies_within(entry.cell, below) and any(_is_of_part(entry.cell, each) for each in self._parts)
            if is_inside and not self._starts_related(entry.cell):
                self._put(entry, now)
        changed = self._cells(below) != before
        self._shrink()
        return changed

    def forget(self, heard_before: float) -> bool:
        """Drop the entries that were not repeated since; returns whether there were any."""
        old = [start for start in self._starts if self._at(start)[1] < heard_before]
        for start in old:
            self._drop(start)
        return bool(old)

    def at(self, x: int, y: int) -> int:
        """The leaf that a point lies in; where none is known, the part of this cell."""
        found = self._around(cell_at(x, y, LEVEL_LIMIT))
        return part_at(self._parts, x, y) if found is None else found.cell

    def partition(self) -> Iterator[int]:
        """All of this cell, cut into the known leaves and the largest cells that nothing is known about, in order.

        Where nothing is known at all these are its parts. After too many gaps, cells with leaves come whole.
        """
        pending, gaps_left = list(reversed(self._parts)), max(GAPS_MAX, self._entries_max)
        while pending:
            cell = pending.pop()
            related = self._starts_related(cell)
            first = self._at(related[0])[0].cell if related else cell
            if home(first) == home(cell):
                gaps_left -= bool(gaps_left and not related)
                yield first
            elif not gaps_left:
                yield cell
            else:
                pending += reversed(children(cell))

    def summary(self, entries_max: int, *, with_gaps: bool = False) -> list[LeafEntry]:
        """The entries, merged until there are at most so many; ``with_gaps``: and the cells that are not known.

        With them it is what the parent is told: there are leaves below, whether they are known or not.
        """
        copy = LeafTable(self.cell, entries_max, self._parts)
        for cell in self.partition():
            parts = [self._at(start)[0] for start in self._starts_related(cell)]
            if parts or with_gaps:
                copy._put(_merged(cell, parts), 0.0)
        copy._shrink()
        return copy.entries()

    def _shrink(self) -> None:
        """Merge the deepest entries into their parents until there are few enough. Such an entry may be inner."""
        if len(self._entries) <= self._entries_max:
            return
        deepest_first = [(-level(self._at(start)[0].cell), start) for start in self._starts]
        heapify(deepest_first)
        while len(self._entries) > self._entries_max:
            negative, first = heappop(deepest_first)
            deepest, _ = self._entries.get(first, (None, 0.0))
            if deepest is None or level(deepest.cell) != -negative:
                continue  # it was merged, with the one before it
            if level(deepest.cell) <= level(self.cell) + 1:
                return
            merged = parent(home(deepest.cell))
            starts = self._starts_related(merged)
            parts = [self._at(start) for start in starts]
            for start in starts:
                self._drop(start)
            self._put(_merged(merged, [part for part, _ in parts]), min(heard for _, heard in parts))
            heappush(deepest_first, (negative + 1, _start(merged)))

    def _cells(self, below: int) -> list[int]:
        return [self._at(start)[0].cell for start in self._starts_related(below)]

    def _at(self, start: int) -> tuple[LeafEntry, float]:
        return self._entries[start]

    def _put(self, entry: LeafEntry, now: float) -> None:
        start = _start(entry.cell)
        self._entries[start] = entry, now
        self._starts.insert(bisect_left(self._starts, start), start)

    def _drop(self, start: int) -> None:
        del self._entries[start]
        del self._starts[bisect_left(self._starts, start)]

    def _around(self, place: int) -> LeafEntry | None:
        """The entry that a cell of the deepest level lies in."""
        index = bisect_left(self._starts, _start(place) + 1) - 1
        if index < 0:
            return None
        entry = self._at(self._starts[index])[0]
        return entry if lies_within(place, entry.cell) else None

    def _starts_related(self, cell: int) -> list[int]:
        """Of the entries that lie in a cell, or that it lies in."""
        low = _start(cell)
        high = low + (1 << (LEVEL_LIMIT - level(cell)))
        found = self._starts[bisect_left(self._starts, low) : bisect_left(self._starts, high)]
        if found:
            return found
        around = self._around(home(cell) << (LEVEL_LIMIT - level(cell)))
        return [] if around is None else [_start(around.cell)]

    def validate(self) -> None:
        """Assert that entries are below this cell, sorted and apart from each other, and not too many."""
        assert self._starts == sorted(self._entries)
        assert len(self) <= self._entries_max
        end = 0
        for start in self._starts:
            entry, _ = self._entries[start]
            assert start >= end and _start(entry.cell) == start
            assert lies_within(entry.cell, self.cell) and entry.cell != self.cell
            assert ancestor(entry.cell, level(self.cell)) == self.cell
            end = start + (1 << (LEVEL_LIMIT - level(entry.cell)))


def _merged(cell: int, parts: list[LeafEntry]) -> LeafEntry:
    """A cell in place of what is known in it."""
    subs, load = (sum(getattr(part, name) for part in parts) for name in ("subs", "load"))
    return LeafEntry(cell, min(subs, COUNT_MAX), min(load, COUNT_MAX))


def _is_of_part(cell: int, part: int) -> bool:
    """Whether a leaf may be below a part, or be it: an alternate is not split, whatever is claimed."""
    return cell == part if is_alternate(part) else lies_within(cell, part)


def _start(cell: int) -> int:
    """The place of a cell's first part of the deepest level, counted through the whole tree."""
    depth = level(cell)
    return (home(cell) - (1 << depth)) << (LEVEL_LIMIT - depth)
