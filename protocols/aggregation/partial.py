"""The value that two nodes swap: an aggregate, who contributed to it, and what extraction met on the way.

The aggregation function may be sensitive to duplication, so a partial carries its contributors and two partials
that share one are never merged (Cappos and Hartman 2008, section 3: each node swaps with exactly one node of each
set). `disjoint` is for callers to ask first; `merge` on overlapping partials is a bug of ours.

Encoding: one flat stream of msgpack scalars (`protocols.aggregation.scalars`):

    version, functions and keys (text), contributors (16 bytes each, ascending), the files and the records that each of
    them read (two streams of numbers), 10 report counters, number of notes, notes..., and then the state's columns, or
    number of groups, the lengths of their keys, their keys, each column of their states
    (`protocols.aggregation.columns`), remainder groups, the remainder state's columns

A value of more groups than memory should hold goes in slices (`protocols.aggregation.slices`): the length of that
stream up to the notes (4 bytes, big-endian), the stream up to there, the sizes of the slices, and the slices, of which
each is a stream of groups.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgpack

from peerd.api import IN_MEMORY, ScratchWriter
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.frozen import Frozen
from peerd.ids import ID_BYTES, NodeId, id_from_bytes, id_to_bytes
from protocols.aggregation.groups import GroupStates, in_pairs, malformed, put_groups, take_groups
from protocols.aggregation.numbers import COUNT_MAX
from protocols.aggregation.query import Query
from protocols.aggregation.scalars import ScalarReader, ScalarWriter, packed, unpacked

if TYPE_CHECKING:
    from protocols.aggregation.figures import Figure, Figures, GroupedAnswer
    from protocols.aggregation.slices import SlicedGroups

WIRE_VERSION: Final = 3
PARTIAL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest encoded partial. 200,000 counters with the longest keys fit; sums of numbers of wildly different
magnitude may not, and then `Partial.encode` says so."""
SLICED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Longest encoded partial of a query whose value goes in slices."""
CONTRIBUTORS_MAX: Final = 65_536
NOTES_MAX: Final = 8
"""Most problem notes that a report keeps; the counters count them all."""
NOTE_CHARACTERS_MAX: Final = 200
_COUNTERS: Final = 10

HEAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest head of a value in slices: all but the groups."""
_HEAD: Final = struct.Struct(">I")

State: TypeAlias = Any
"""A state of the query's function, or `GroupStates` or `SlicedStates` of them."""


@dataclass(frozen=True, slots=True)
class ExtractionReport:
    """The counts of what extraction met, summed over the contributors. All are at most `COUNT_MAX`."""

    files_read: int = 0
    files_unreadable: int = 0
    """Not opened, or an error in the middle (what was read before counts)."""
    files_binary: int = 0
    """Files that were skipped, as there is a NUL among their first bytes."""
    files_skipped: int = 0
    """Skipped: links out of the root or to folders, special files, and all beyond the caps on files and bytes."""
    folders_unreadable: int = 0
    bytes_read: int = 0
    records: int = 0
    """Read: JSON lines, CSV rows, matches of the pattern; well-formed or not."""
    records_selected: int = 0
    """In the value: well-formed, all conditions hold, all fields there."""
    records_rejected: int = 0
    """Malformed, a field missing, not a finite number, key too long. The other records met no condition."""
    lines_truncated: int = 0
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    """The first few problems in text order, ``path: reason``."""

    def counters(self) -> tuple[int, ...]:
        """Return all numbers, in the order of the fields."""
        return tuple(getattr(self, part.name) for part in fields(self)[:_COUNTERS])

    def merge(self, other: ExtractionReport) -> ExtractionReport:
        """Sums, and the first notes of both. Raises `ProtocolError` beyond `COUNT_MAX`."""
        sums = [a + b for a, b in zip(self.counters(), other.counters(), strict=True)]
        if max(sums) > COUNT_MAX:
            raise ProtocolError("aggregation_overflow", f"a report counter passes {COUNT_MAX}")
        return ExtractionReport(*sums, notes=first_notes((*self.notes, *other.notes)))


class Extraction(Frozen):
    """A state of the query's function (`GroupStates` when it has a ``by``), and how it came about."""

    value: State
    report: ExtractionReport


def first_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """The `NOTES_MAX` first in text order, each cut to `NOTE_CHARACTERS_MAX` and made printable."""
    return tuple(sorted(map(_printable, notes))[:NOTES_MAX])


def _printable(note: str) -> str:
    if not note.isprintable():
        note = "".join(part if part.isprintable() else ascii(part)[1:-1] for part in note)
    return note[:NOTE_CHARACTERS_MAX]


@dataclass(frozen=True, slots=True)
class Partial:
    """Immutable. ``value`` belongs to ``query``: a state of its function, or `GroupStates` when it has a ``by``, or
    `SlicedStates` when it may have many groups (`Query.is_sliced`)."""

    query: Query
    value: State
    contributors: tuple[NodeId, ...]
    """The ids of the contributors: at least one, ascending, without duplicates."""
    report: ExtractionReport
    shares: tuple[tuple[int, int], ...]
    """How many files and records each contributor read, in the same order; the report has their sums."""

    @staticmethod
    def of(query: Query, contributor: NodeId, value: State, report: ExtractionReport) -> Partial:
        """Make one node's own contribution from what extraction has returned."""
        if query.is_sliced and isinstance(value, GroupStates):
            value = sliced(query).cut(value)
        return Partial(query, value, (contributor,), report, ((report.files_read, report.records),))

    @property
    def size(self) -> int:
        """Return how many groups there are; 1 without a ``by``."""
        return len(self.value) if self.query.by else 1

    def finish(self, top: int | None = None) -> Figure | Figures | GroupedAnswer:
        """The answer: of one function, of several, or groups, the ``top`` ones only."""
        monoid: Any = self.query.monoid
        arguments = (self.value, top) if self.query.by else (self.value,)
        return cast("Figure | Figures | GroupedAnswer", monoid.lower(*arguments))

    def encode(self) -> bytes:
        """At most `PARTIAL_BYTES_MAX` bytes, or `SLICED_BYTES_MAX`. Raises `Unavailable` when the value needs more."""
        if self.query.is_sliced:
            writer = IN_MEMORY.writer()
            self.write(writer)
            return bytes(writer.finish())
        function, stream = self.query.function, self._head()
        if not self.query.by:
            stream.put(*function.to_columns(self.value))
        else:
            put_groups(stream, function, self.value)
        data = stream.bytes()
        if len(data) > PARTIAL_BYTES_MAX:
            raise Unavailable(f"the value takes {len(data)} bytes, more than {PARTIAL_BYTES_MAX}; lower groups_max")
        return data

    def write(self, writer: ScratchWriter) -> None:
        """A value in slices, one after the other: the length of the head and the head, the sizes of slices, and these.

        Raises `Unavailable` when it needs too much, or more than there is room for; `ProtocolError` for what cannot be
        merged.
        """
        head = self._head().bytes()
        writer.write(_HEAD.pack(len(head)) + head)
        sliced(self.query).write(writer, self.value, SLICED_BYTES_MAX)

    def _head(self) -> ScalarWriter:
        """Write all but the value."""
        stream = ScalarWriter()
        stream.put(WIRE_VERSION, self.query.head)
        stream.put(b"".join(map(id_to_bytes, self.contributors)))
        files, records = zip(*self.shares, strict=True)
        stream.put(packed(files), packed(records))
        stream.put(*self.report.counters(), len(self.report.notes), *self.report.notes)
        return stream

    def stored(self, data: memoryview) -> Partial:
        """The same with its value where it was written: in what `write` has made of it, which is not checked again."""
        _, slices = _parts(data)
        return replace(self, value=sliced(self.query).stored(slices))

    def split(self, parts: int) -> list[Partial]:
        """The value in so many parts, of which each has the whole report: groups by their keys, so that parts of the
        same number can be merged, wherever they come from. All else is in the first part."""
        monoid: Any = self.query.monoid
        if self.query.by:
            values: list[State] = monoid.split(self.value, parts)
        else:
            values = [self.value, *[monoid.zero] * (parts - 1)]
        return [replace(self, value=value) for value in values]

    @staticmethod
    def join(parts: Sequence[Partial]) -> Partial:
        """Inverse of `split`. Raises `ProtocolError` unless all parts tell of the same nodes and of what these read,
        and together hold what so many records can have."""
        first = parts[0]
        if any(
            (each.contributors, each.shares, each.report) != (first.contributors, first.shares, first.report)
            for each in parts
        ):
            raise ProtocolError("parts_differ", "the parts of a value tell of different nodes, or of other records")
        value = in_pairs(first.query.monoid.merge, [each.value for each in parts])
        try:
            _check_total(first.query, value, first.report)
        except ValueError as error:
            raise ProtocolError("aggregation_partial", str(error)) from error
        return replace(first, value=value)

    @staticmethod
    def decode(data: bytes | bytearray | memoryview, query: Query, *, is_part: bool = False) -> Partial:
        """Inverse of `encode`, for a partial of ``query``, or for one of the parts of one: see `split`.

        Raises `ProtocolError` for anything else.
        """
        bytes_max = SLICED_BYTES_MAX if query.is_sliced else PARTIAL_BYTES_MAX
        if len(data) > bytes_max:
            raise ProtocolError("aggregation_partial", f"{len(data)} bytes, more than {bytes_max}")
        head, slices = _parts(memoryview(data)) if query.is_sliced else (data, memoryview(b""))
        try:
            return _decode(ScalarReader(head), query, is_part, slices)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise malformed(error) from error


def sliced(query: Query) -> SlicedGroups[Any]:
    """The groups of a query whose value goes in slices."""
    return cast("SlicedGroups[Any]", query.monoid)


def disjoint(a: Partial, b: Partial) -> bool:
    """Whether no node contributed to both, so that they may be merged."""
    return set(a.contributors).isdisjoint(b.contributors)


def merge(a: Partial, b: Partial) -> Partial:
    """Both partials in one; the arguments stay as they are.

    Raises `Bug` when a contributor is in both or the queries differ (callers check), and `ProtocolError` when a
    number or the contributors pass a bound, which true values never do.
    """
    if a.query != b.query:
        raise Bug(f"merging partials of different queries: {a.query} and {b.query}")
    if not disjoint(a, b):
        raise Bug("merging partials with a common contributor would count it twice")
    if len(a.contributors) + len(b.contributors) > CONTRIBUTORS_MAX:
        raise ProtocolError("aggregation_overflow", f"more than {CONTRIBUTORS_MAX} contributors")
    value = a.query.monoid.merge(a.value, b.value)
    shares = dict(zip(a.contributors, a.shares, strict=True)) | dict(zip(b.contributors, b.shares, strict=True))
    contributors = tuple(sorted(shares))
    ordered = tuple(map(shares.__getitem__, contributors))
    return Partial(a.query, value, contributors, a.report.merge(b.report), ordered)


# --- encoding ---------------------------------------------------------------------------------------------


def _parts(data: memoryview) -> tuple[memoryview, memoryview]:
    """The head of a value in slices, and the slices. Raises `ProtocolError` where it is cut off."""
    start = _HEAD.size
    stop = start + (_HEAD.unpack_from(data)[0] if len(data) >= start else 0)
    if not start < stop <= len(data) or stop - start > HEAD_BYTES_MAX:
        raise ProtocolError("aggregation_partial", "the head of a value in slices is cut off, or too long")
    return data[start:stop], data[stop:]


def _decode(reader: ScalarReader, query: Query, is_part: bool, slices: memoryview) -> Partial:
    version, head = reader.take(2)
    if type(version) is not int or version != WIRE_VERSION:
        raise ValueError(f"expected version {WIRE_VERSION}")
    if head != query.head:
        raise ValueError(f"not a value of the query {query!s:.100}")
    contributors = _contributors(reader.blob())
    shares = tuple(zip(*(_counts(reader.blob(), len(contributors)) for _ in range(2)), strict=True))
    counters = [reader.count(COUNT_MAX) for _ in range(_COUNTERS)]
    notes = reader.take(reader.count(NOTES_MAX))
    if not all(isinstance(note, str) and len(note) <= NOTE_CHARACTERS_MAX and note.isprintable() for note in notes):
        raise ValueError("a note is not a short printable text")
    report = ExtractionReport(*counters, notes=tuple(sorted(cast(list[str], notes))))
    function = query.function
    if query.is_sliced:
        value: State = sliced(query).stored(slices)
    elif query.by:
        value = take_groups(reader, function, query.groups_max)
    else:
        value = function.from_scalars(reader.take(function.columns))
    reader.end()
    if not is_part:
        _check_total(query, value, report)
    elif query.is_sliced:
        sliced(query).total(value)  # looks at each slice
    if (sum(files for files, _ in shares), sum(records for _, records in shares)) != (
        report.files_read,
        report.records,
    ):
        raise ValueError("the nodes' files and records do not add up to the report's")
    return Partial(query, value, contributors, report, shares)


def _check_total(query: Query, value: State, report: ExtractionReport) -> None:
    """The value and the report tell of the same records; nothing that a true node sends fails here."""
    monoid: Any = query.monoid
    total = monoid.total(value) if query.by else value
    if not query.function.may_hold(total, report.records_selected):
        raise ValueError(f"a value that {report.records_selected} records cannot have")
    if report.records_selected + report.records_rejected > report.records:
        raise ValueError("more records selected and rejected than read")


def _contributors(blob: bytes) -> tuple[NodeId, ...]:
    if not 0 < len(blob) <= CONTRIBUTORS_MAX * ID_BYTES or len(blob) % ID_BYTES:
        raise ValueError(f"contributors are 1 to {CONTRIBUTORS_MAX} ids of {ID_BYTES} bytes")
    ids = [id_from_bytes(blob[start : start + ID_BYTES]) for start in range(0, len(blob), ID_BYTES)]
    if any(a >= b for a, b in pairwise(ids)):
        raise ValueError("contributors are not ascending")
    return tuple(ids)


def _counts(blob: bytes, count: int) -> Sequence[int]:
    column = unpacked(blob, count)
    if set(map(type, column)) - {int}:
        raise ValueError("a count is not a whole number")
    counts = cast(Sequence[int], column)
    if min(counts) < 0 or max(counts) > COUNT_MAX:
        raise ValueError(f"a count is not from 0 to {COUNT_MAX}")
    return counts
