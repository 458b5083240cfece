"""GROUP BY over more groups than memory should hold at once: the value goes in slices by the keys of its groups.

All nodes cut in the same way, so two values are merged slice by slice, and a slice of the result is written before the
next one is made. What lies on disk, or is mapped, is decoded when somebody looks at it, and not kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import msgpack

from peerd.api import Scratch, ScratchWriter
from peerd.errors import Unavailable
from protocols.aggregation.groups import (
    SLICES,
    Grouped,
    GroupStates,
    Remainder,
    in_pairs,
    malformed,
    put_groups,
    take_groups,
)
from protocols.aggregation.numbers import add_counts
from protocols.aggregation.scalars import ScalarReader, ScalarWriter

if TYPE_CHECKING:
    from protocols.aggregation.figures import GroupedAnswer
    from protocols.aggregation.functions import Function

S = TypeVar("S")
Data: TypeAlias = bytes | memoryview

UNEVEN: Final = 4
"""A slice may have its share of the groups and so many standard deviations more: chance does not fill all alike."""
SLICE_BYTES_MAX: Final = 64 * 1024 * 1024
SIZES: Final = struct.Struct(f">{SLICES}I")
"""What each slice takes, before the first one."""


class SlicedStates(Generic[S]):
    """GROUP BY state in `SLICES` slices. Each is made when it is looked at, and may raise `ProtocolError` then."""

    __slots__ = ("data_of", "slice_of", "total_of")

    def __init__(
        self,
        slice_of: Callable[[int], GroupStates[S]],
        total_of: Callable[[int], S],
        data_of: Callable[[int], Data | None],
    ) -> None:
        self.slice_of = slice_of
        self.total_of = total_of
        """All groups of a slice merged, and its remainder."""
        self.data_of = data_of
        """A slice as `SlicedGroups.encoded` would write it, if that is at hand: then nobody need decode it for that."""

    def __iter__(self) -> Iterator[GroupStates[S]]:
        return map(self.slice_of, range(SLICES))

    def __len__(self) -> int:
        return sum(map(len, self))


class SlicedGroups(Generic[S]):
    """A function for each key, in slices; a (capped) monoid as `Grouped` is, of which each slice has its share."""

    def __init__(self, function: Function[S], groups_max: int) -> None:
        self.function = function
        share = -(-groups_max // SLICES)
        self.of_slice = Grouped(function, share + UNEVEN * isqrt(share))
        self.empty = self._encode(self.of_slice.zero)
        """What a slice without groups is written as."""

    @property
    def zero(self) -> SlicedStates[S]:
        """Return the state without groups."""
        return SlicedStates(
            lambda number: self.of_slice.zero, lambda number: self.function.zero, lambda number: self.empty
        )

    def cut(self, value: GroupStates[S]) -> SlicedStates[S]:
        """These groups in slices, all of them in memory."""
        return self.of(list(map(self.of_slice.fold, self.of_slice.split(value, SLICES))).__getitem__)

    def of(self, slice_of: Callable[[int], GroupStates[S]]) -> SlicedStates[S]:
        """The state of these slices."""
        return SlicedStates(slice_of, lambda number: self._total(slice_of(number)), lambda number: None)

    def _total(self, groups: GroupStates[S]) -> S:
        return self.function.zero if _is_empty(groups) else self.of_slice.total(groups)

    def merge(self, a: SlicedStates[S], b: SlicedStates[S]) -> SlicedStates[S]:
        """Both. Nothing is done before a slice is looked at, so a value of many merges holds one slice of each."""

        def data_of(number: int) -> Data | None:
            mine, yours = a.data_of(number), b.data_of(number)
            if mine == self.empty:
                return yours
            return mine if yours == self.empty else None

        return SlicedStates(
            lambda number: self._merged(a.slice_of(number), b.slice_of(number)),
            lambda number: self.function.merge(a.total_of(number), b.total_of(number)),
            data_of,
        )

    def _merged(self, a: GroupStates[S], b: GroupStates[S]) -> GroupStates[S]:
        if _is_empty(a):
            return b
        return a if _is_empty(b) else self.of_slice.merge(a, b)

    def split(self, value: SlicedStates[S], parts: int) -> list[SlicedStates[S]]:
        """Whole slices to each part, the same on every node."""
        return [self._part(value, part, parts) for part in range(parts)]

    def _part(self, value: SlicedStates[S], part: int, parts: int) -> SlicedStates[S]:
        nothing = self.zero

        def of(number: int) -> SlicedStates[S]:
            return value if number % parts == part else nothing

        return SlicedStates(
            lambda number: of(number).slice_of(number),
            lambda number: of(number).total_of(number),
            lambda number: of(number).data_of(number),
        )

    def total(self, value: SlicedStates[S]) -> S:
        """All groups and remainders merged: what the function without groups would give."""
        zero = self.function.zero
        return self.function.merge_all([each for each in map(value.total_of, range(SLICES)) if each is not zero])

    def lower(self, value: SlicedStates[S], top: int | None = None) -> GroupedAnswer:
        """The ``top`` (default all) groups, largest `Function.rank` first, then by key."""
        merge, groups, folded, state = self.function.merge, 0, 0, self.function.zero
        first: dict[str, S] = {}
        for each in value:
            groups += len(each)
            if each.remainder.groups:
                folded = add_counts(folded, each.remainder.groups)
                state = merge(state, each.remainder.state)
            for key, found in self.of_slice.ranked(each, top):
                # A member that lies may have put a key into two slices: that must not hide what others have counted.
                first[key] = merge(first[key], found) if key in first else found
            if top is not None and len(first) > 2 * top:
                first = dict(self.of_slice.ranked(GroupStates(first, self.of_slice.zero.remainder), top))
        answer = self.of_slice.lower(GroupStates(first, Remainder(folded, state)), top)
        return replace(answer, groups_total=groups)

    # Bytes

    def encoded(self, value: SlicedStates[S]) -> Iterator[Data]:
        """Each slice as bytes. Raises `Unavailable` for one that takes too much."""
        for number in range(SLICES):
            data = value.data_of(number)
            if data is None:
                data = self._encode(value.slice_of(number))
            if len(data) > SLICE_BYTES_MAX:
                raise Unavailable(f"a slice of the value takes {len(data)} bytes, more than {SLICE_BYTES_MAX}")
            yield data

    def _encode(self, groups: GroupStates[S]) -> bytes:
        stream = ScalarWriter()
        put_groups(stream, self.function, groups)
        return stream.bytes()

    def decoded(self, data: Data) -> GroupStates[S]:
        """Inverse of `encoded`, for one slice. Raises ``ValueError`` for what no node writes."""
        reader = ScalarReader(data)
        found = take_groups(reader, self.function, self.of_slice.groups_max)
        reader.end()
        return found

    def write(self, writer: ScratchWriter, value: SlicedStates[S], bytes_max: int) -> None:
        """The sizes of all slices, and the slices. Raises `Unavailable` when they take more than ``bytes_max``."""
        at, sizes = writer.size_bytes, []
        writer.write(bytes(SIZES.size))
        for data in self.encoded(value):
            if writer.size_bytes + len(data) > bytes_max:
                raise Unavailable(f"the value takes more than {bytes_max} bytes; lower groups_max")
            sizes.append(len(data))
            writer.write(data)
        writer.overwrite(at, SIZES.pack(*sizes))

    def stored(self, data: memoryview) -> SlicedStates[S]:
        """What `write` has written. Raises ``ValueError`` unless the sizes are those of all of it."""
        if len(data) < SIZES.size:
            raise ValueError("it ends too early")
        sizes = SIZES.unpack_from(data)
        if max(sizes) > SLICE_BYTES_MAX or sum(sizes) != len(data) - SIZES.size:
            raise ValueError("the sizes of slices are not those of the slices")
        starts = list(accumulate(sizes, initial=SIZES.size))
        totals: dict[int, S] = {}

        def data_of(number: int) -> memoryview:
            return data[starts[number] : starts[number + 1]]

        def slice_of(number: int) -> GroupStates[S]:
            slice_data = data_of(number)
            if slice_data == self.empty:  # most slices of a piece are
                return self.of_slice.zero
            try:
                return self.decoded(slice_data)
            except (ValueError, msgpack.exceptions.UnpackException) as error:
                raise malformed(error) from error

        def total_of(number: int) -> S:
            if number not in totals:
                totals[number] = self._total(slice_of(number))
            return totals[number]

        return SlicedStates(slice_of, total_of, data_of)


def _is_empty(value: GroupStates[Any]) -> bool:
    return not value.remainder.groups and not len(value)


class Runs(Generic[S]):
    """A value that does not fit into memory while it is made: what was there is written in slices, again and again."""

    def __init__(self, monoid: SlicedGroups[S], scratch: Scratch) -> None:
        self._monoid = monoid
        self._writer = scratch.writer()
        self._runs: list[list[tuple[int, int]]] = []
        """Of each run, of each slice: where it begins, and what it takes."""

    def add(self, value: GroupStates[S]) -> None:
        """Write these groups. Raises `Unavailable` when the disk refuses."""
        places = []
        for data in self._monoid.encoded(self._monoid.cut(value)):
            places.append((self._writer.size_bytes, len(data)))
            self._writer.write(data)
        self._runs.append(places)

    def value(self) -> SlicedStates[S]:
        """All that was added."""
        return in_pairs(self._monoid.merge, list(map(self._states, self._runs))) if self._runs else self._monoid.zero

    def _states(self, places: list[tuple[int, int]]) -> SlicedStates[S]:
        return self._monoid.of(lambda number: self._monoid.decoded(self._writer.read(*places[number])))
