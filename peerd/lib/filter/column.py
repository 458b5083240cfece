"""One column of the index: for one attribute and one view, which filters a key satisfies.

Filters are bits of whole numbers (*slots*), so that one operation of the processor handles dozens of them. The ends of
all ranges lie sorted in an array; a key's *position* is the number of ends (cuts) that it has passed. Neighbouring
positions share a bucket, and a bucket knows two sets: slots that are satisfied at all of its positions (sure) and those
that are at some (possible). The few that differ are compared with the key's position, and only if all other columns let
them through. Ranges that are single keys are found in a dictionary.

Both sets of a bucket are one number, the possible slots above the sure ones (a *pair*), because what counts is how
many operations Python has to do. How many slots lie in each half is the index's *width*.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from dataclasses import dataclass, field
from typing import Final

from peerd.frozen import Frozen
from peerd.lib.filter.ranges import Cut, Ranges
from peerd.lib.filter.values import Key, View

FEW_SLOTS: Final = 8
FEW_SHARE: Final = 512
"""Up to so many slots under one key, or such a part of all, are kept as a tuple instead of as a set of bits."""
SPARSE_SLOTS: Final = 48
"""So many slots of a set are listed one by one; what is left of a larger set is unpacked at once, which is faster."""
TOUCHED_MIN: Final = 4
"""How many ends of ranges a bucket may hold at least, however small the index is."""
ALWAYS: Final = 2**32 - 1
"""The end position of slots that have no range in a column, or only single keys: such slots are never doubtful."""


def bits_of(slots: Iterable[int]) -> int:
    """Return a set of slots as an integer with one bit for each slot."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


@dataclass(slots=True)
class Draft:
    """A column while it is being put together: ends, keys and slots, unsorted."""

    name: str
    view: View
    ends: list[tuple[Cut, int]] = field(default_factory=list)
    """A cut at which a range of a slot begins or ends, and the slot."""
    keys: dict[Key, list[int]] = field(default_factory=dict)
    inside: list[int] = field(default_factory=list)
    """The slots whose ranges begin before the first cut."""
    used: set[int] = field(default_factory=set)

    def add(self, slot: int, ranges: Ranges) -> None:
        """Give a slot its ranges; once for a slot."""
        self.used.add(slot)
        points = ranges.points(self.view)
        if points is not None:
            for key in points:
                self.keys.setdefault(key, []).append(slot)
            return
        if ranges.inside:
            self.inside.append(slot)
        self.ends.extend((cut, slot) for cut in ranges.cuts)

    def build(self, everything: int, width: int, touched_max: int) -> IndexColumn:
        """The column. ``everything``: all slots in use; ``touched_max``: ends that may lie inside a bucket."""
        self.ends.sort(key=lambda end: end[0])
        builder = _Builder(self, everything & ~bits_of(self.used), width, max(TOUCHED_MIN, touched_max))
        few = max(FEW_SLOTS, width // FEW_SHARE)
        keys: dict[Key, int | tuple[int, ...]] = {
            key: tuple(own) if len(own) <= few else bits_of(own) for key, own in self.keys.items()
        }
        return builder.column(keys)


class _Builder:
    """Groups the sorted ends by cut, and the positions between them into buckets."""

    def __init__(self, draft: Draft, unconstrained: int, width: int, touched_max: int) -> None:
        self.draft = draft
        self.unconstrained = unconstrained
        self.width = width
        self.touched_max = touched_max
        self.keys: list[Key] = []
        self.after = bytearray()
        self.slots: list[list[int]] = []
        """At each cut the slots that begin or end there."""
        self._group()
        self.starts = array("I")
        self.bounds: list[Key] = []
        self.bounds_after = bytearray()
        self.pairs: list[int] = []
        self._fill()

    def _group(self) -> None:
        previous: Cut | None = None
        for cut, slot in self.draft.ends:
            if cut != previous:
                self.keys.append(cut[0])
                self.after.append(cut[1])
                self.slots.append([])
                previous = cut
            self.slots[-1].append(slot)

    def _fill(self) -> None:
        # `state` has the slots that are satisfied at the present position. Passing a cut flips those of its slots,
        # since each slot's ranges begin and end by turns.
        state = self.unconstrained | bits_of(self.draft.inside)
        start, start_state, touched, count = 0, state, 0, 0
        for index, slots in enumerate(self.slots):
            changed = bits_of(slots)
            if count + len(slots) <= self.touched_max:
                # The bucket under way takes the cut in: its slots are satisfied in a part of the bucket only.
                touched |= changed
                count += len(slots)
            elif self.after[index] and len(slots) <= self.touched_max:
                # The bucket ends just before this key, not behind it: so `match` finds the right one by the key alone.
                self._close(start, start_state, touched)
                self._bound(index, 0)
                start, start_state, touched, count = index, state, changed, len(slots)
            else:
                # Too many slots change here: the cut becomes the bound of two buckets, and leaves no slot in doubt.
                self._close(start, start_state, touched)
                self._bound(index, self.after[index])
                start, start_state, touched, count = index + 1, state ^ changed, 0, 0
            state ^= changed
        self._close(start, start_state, touched)
        self.starts.append(len(self.keys))

    def _bound(self, index: int, after: int) -> None:
        self.bounds.append(self.keys[index])
        self.bounds_after.append(after)

    def _close(self, start: int, state: int, touched: int) -> None:
        self.starts.append(start)
        possible = state | touched
        self.pairs.append(possible << self.width | (possible ^ touched))

    def column(self, keys: dict[Key, int | tuple[int, ...]]) -> IndexColumn:
        """Return the finished column. Where all ends of ranges are floats, each takes eight bytes."""
        ends: MutableSequence[Key] = self.keys
        if self.keys and all(type(key) is float for key in self.keys):
            ends = array("d", self.keys)
        begins, ends_before, several = self._spans()
        return IndexColumn(
            name=self.draft.name,
            view=self.draft.view,
            bounds=self.bounds,
            bounds_after=bytes(self.bounds_after) if any(self.bounds_after) else None,
            pairs=self.pairs,
            width=self.width,
            ends=ends,
            after=bytes(self.after) if any(self.after) else None,
            starts=self.starts,
            begins=begins,
            ends_before=ends_before,
            several=several,
            keys=keys,
            unconstrained=self.unconstrained << self.width | self.unconstrained,
        )

    def _spans(self) -> tuple[array[int], array[int], dict[int, tuple[int, ...]]]:
        """The spans of a column: of each slot that has one range, and of those that have several."""
        begins, ends_before = array("I", [0]) * self.width, array("I", [ALWAYS]) * self.width
        turns: dict[int, list[int]] = {slot: [0] for slot in self.draft.inside}
        for position, slots in enumerate(self.slots, 1):
            for slot in slots:
                turns.setdefault(slot, []).append(position)
        several = {}
        for slot, own in turns.items():
            if len(own) % 2:  # the last range has no end, so it reaches past the last cut
                own.append(len(self.slots) + 1)
            if len(own) == 2:
                begins[slot], ends_before[slot] = own
            else:
                begins[slot], ends_before[slot] = ALWAYS, 0  # an empty span, so that `holds` looks into `several`
                several[slot] = tuple(own)
        return begins, ends_before, several


class IndexColumn(Frozen):
    """A finished column, as the module's docstring describes it. It is never changed: the index builds a new one."""

    name: str
    view: View
    bounds: list[Key]
    """The key of the cut at which each bucket but the first begins."""
    bounds_after: bytes | None
    """Whether those cuts lie after their keys; ``None`` when none does."""
    pairs: list[int]
    """For each bucket, its possible and its sure slots, as one number."""
    width: int
    ends: MutableSequence[Key]
    after: bytes | None
    """Whether each cut lies after its key; ``None`` when none does."""
    starts: array[int]
    """The first position of each bucket, and the last of all."""
    begins: array[int]
    ends_before: array[int]
    """For each slot, the position from which it is satisfied, and the one before which it ceases to be."""
    several: dict[int, tuple[int, ...]]
    """For each slot with several ranges, the positions where these begin and end; the arrays above leave it out."""
    keys: dict[Key, int | tuple[int, ...]]
    unconstrained: int
    """A pair: slots that have no range here, so that they are satisfied even if the attribute is missing."""

    def at_key(self, key: Key) -> int:
        """A pair: the slots that name this very key."""
        own = self.keys.get(key)
        if own is None:
            return 0
        bits = bits_of(own) if isinstance(own, tuple) else own
        return bits << self.width | bits

    def holds(self, slot: int, key: Key, bucket: int) -> bool:
        """Whether a slot that is possible in the key's bucket is satisfied by the key."""
        begin, end = self.begins[slot], self.ends_before[slot]
        first, last = self.starts[bucket], self.starts[bucket + 1]
        if begin <= first and last < end:  # the whole bucket lies inside the slot's range
            return True
        position = bisect_right(self.ends, key, first, last)
        if self.after is not None and position and self.after[position - 1] and self.ends[position - 1] == key:
            position -= 1
        if begin <= position < end:
            return True
        # After an odd number of turns the position lies inside a range, after an even one between two.
        return slot in self.several and bool(bisect_right(self.several[slot], position) & 1)

    def draft(self, alive: Callable[[int], bool]) -> Draft:
        """Return what belongs to slots that are still in use, as the draft from which the next column is built."""
        draft = Draft(self.name, self.view)
        for slot, turns in self._turns():
            if alive(slot):
                draft.used.add(slot)
                for position in turns:
                    if position == 0:
                        draft.inside.append(slot)
                    elif position <= len(self.ends):
                        draft.ends.append((self._cut(position), slot))
        for key, own in self.keys.items():
            slots = [slot for slot in (own if isinstance(own, tuple) else positions(own)) if alive(slot)]
            if slots:
                draft.keys[key] = slots
                draft.used.update(slots)
        return draft

    def _turns(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The positions at which each slot begins and ends."""
        for slot, (begin, end) in enumerate(zip(self.begins, self.ends_before, strict=True)):
            if begin < end < ALWAYS:
                yield slot, (begin, end)
        yield from self.several.items()

    def _cut(self, position: int) -> Cut:
        """Return the cut that the position comes after."""
        return self.ends[position - 1], 0 if self.after is None else self.after[position - 1]


# --- sets of bits ---------------------------------------------------------------------------------------------------


def positions(bits: int) -> list[int]:
    """List the slots of a set in ascending order."""
    left = bits
    found: list[int] = []
    while left:  # the highest bit first, so that the number gets shorter with each step
        if len(found) == SPARSE_SLOTS:
            return _many_positions(bits)
        highest = left.bit_length() - 1
        found.append(highest)
        left ^= 1 << highest
    found.reverse()
    return found


def _positions_in_python(bits: int) -> list[int]:
    digits, found = bin(bits)[:1:-1], []
    position = digits.find("1")
    while position >= 0:
        found.append(position)
        position = digits.find("1", position + 1)
    return found


def _choose_positions() -> Callable[[int], list[int]]:
    """Choose how `positions` lists large sets: with numpy, where it is installed, that takes a third of the time."""
    try:
        import numpy
    except ImportError:
        return _positions_in_python

    def unpacked(bits: int) -> list[int]:
        data = numpy.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), dtype=numpy.uint8)
        found: list[int] = numpy.flatnonzero(numpy.unpackbits(data, bitorder="little")).tolist()
        return found

    return unpacked


_chosen: Callable[[int], list[int]] | None = None


def _many_positions(bits: int) -> list[int]:
    global _chosen
    if _chosen is None:
        _chosen = _choose_positions()
    return _chosen(bits)
