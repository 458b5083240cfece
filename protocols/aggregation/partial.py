"""The value that two nodes swap: an aggregate, who contributed to it, and what extraction met on the way.

The aggregation function may be sensitive to duplication, so a partial carries its contributors and two partials
that share one are never merged (Cappos and Hartman 2008, section 3: each node swaps with exactly one node of each
set). `disjoint` is for callers to ask first; `merge` on overlapping partials is a bug of ours.

Encoding: one flat stream of msgpack scalars, no array and no map anywhere, so hostile bytes cannot make the
decoder allocate more than a small multiple of their length:

    version, function, grouped, contributors (16 bytes each, ascending), the files and the records that each of them
    read (two streams of numbers), 10 report counters, number of notes, notes..., and then either the state's columns or
    number of groups, keys (a stream of str), one stream of numbers for each column of the state,
    remainder groups, the remainder state's columns

Whole numbers beyond 64 bits are written as big-endian two's complement bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice, pairwise
from typing import Any, Final, TypeAlias, cast

import msgpack

from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import ID_BYTES, NodeId, id_from_bytes, id_to_bytes
from protocols.aggregation.functions import (
    COUNT_MAX,
    GROUPS_HARD_MAX,
    KEY_BYTES_MAX,
    MANTISSA_BITS_MAX,
    Function,
    Grouped,
    GroupedAnswer,
    GroupStates,
    Number,
    Remainder,
    function_named,
)
from protocols.aggregation.query import Query

WIRE_VERSION: Final = 2
PARTIAL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest encoded partial. 200,000 counters with the longest keys fit; sums of numbers of wildly different
magnitude may not, and then `Partial.encode` says so."""
CONTRIBUTORS_MAX: Final = 65_536
NOTES_MAX: Final = 8
"""Most problem notes that a report keeps; the counters count them all."""
NOTE_CHARACTERS_MAX: Final = 200
_INTEGER_BYTES_MAX: Final = MANTISSA_BITS_MAX // 8 + 1
_COUNTERS: Final = 10
_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})

State: TypeAlias = Any
"""A state of the query's function, or `GroupStates` of them."""


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


def first_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """The `NOTES_MAX` first in text order, each cut to `NOTE_CHARACTERS_MAX` and made printable."""
    return tuple(sorted(map(_printable, notes))[:NOTES_MAX])


def _printable(note: str) -> str:
    if not note.isprintable():
        note = "".join(part if part.isprintable() else ascii(part)[1:-1] for part in note)
    return note[:NOTE_CHARACTERS_MAX]


def _monoid(query: Query) -> Function[Any] | Grouped[Any]:
    function = function_named(query.function)
    return function if query.by is None else Grouped(function, query.groups_max)


@dataclass(frozen=True, slots=True)
class Partial:
    """Immutable. ``value`` belongs to ``query``: a state of its function, or `GroupStates` when it has a ``by``."""

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
        return Partial(query, value, (contributor,), report, ((report.files_read, report.records),))

    def finish(self, top: int | None = None) -> Number | GroupedAnswer | None:
        """The answer: a number (``None`` for min, max, mean of nothing), or groups, the ``top`` ones only."""
        monoid = _monoid(self.query)
        return monoid.finish(self.value, top) if isinstance(monoid, Grouped) else monoid.finish(self.value)

    def encode(self) -> bytes:
        """At most `PARTIAL_BYTES_MAX` bytes. Raises `Unavailable` when the value needs more."""
        function = function_named(self.query.function)
        stream = _Stream()
        stream.put(WIRE_VERSION, self.query.function, self.query.by is not None)
        stream.put(b"".join(map(id_to_bytes, self.contributors)))
        files, records = zip(*self.shares, strict=True)
        stream.put(_packed(files), _packed(records))
        stream.put(*self.report.counters(), len(self.report.notes), *self.report.notes)
        if self.query.by is None:
            stream.put(*function.to_columns(self.value))
        else:
            _put_groups(stream, function, self.value)
        data = stream.bytes()
        if len(data) > PARTIAL_BYTES_MAX:
            raise Unavailable(f"the value takes {len(data)} bytes, more than {PARTIAL_BYTES_MAX}; lower groups_max")
        return data

    @staticmethod
    def decode(data: bytes | bytearray | memoryview, query: Query) -> Partial:
        """Inverse of `encode`, for a partial of ``query``. Raises `ProtocolError` for anything else."""
        if len(data) > PARTIAL_BYTES_MAX:
            raise ProtocolError("aggregation_partial", f"{len(data)} bytes, more than {PARTIAL_BYTES_MAX}")
        try:
            return _decode(_Reader(data), query)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            detail = str(error) if type(error) is ValueError else f"not msgpack: {type(error).__name__}"
            raise ProtocolError("aggregation_partial", detail) from error


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
    value = _monoid(a.query).combine(a.value, b.value)
    shares = dict(zip(a.contributors, a.shares, strict=True)) | dict(zip(b.contributors, b.shares, strict=True))
    contributors = tuple(sorted(shares))
    ordered = tuple(map(shares.__getitem__, contributors))
    return Partial(a.query, value, contributors, a.report.merge(b.report), ordered)


# --- encoding -----------------------------------------------------------------------------------------------


def _narrow(value: object) -> object:
    """Convert a scalar to one that msgpack can write."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return value


def _widen(value: object) -> object:
    """Inverse of `_narrow`. Raises ``ValueError`` unless written in the one canonical way."""
    if type(value) is not bytes:
        return value
    if len(value) > _INTEGER_BYTES_MAX:
        raise ValueError("a number is too long")
    number = int.from_bytes(value, "big", signed=True)
    if -(2**63) <= number < 2**64 or len(value) != number.bit_length() // 8 + 1:
        raise ValueError("a number is not written in its shortest form")
    return number


class _Stream:
    """Writes scalars one after another."""

    def __init__(self) -> None:
        self._packer = msgpack.Packer(autoreset=False)

    def put(self, *values: object) -> None:
        """Each value: int of any size, float, str, bytes, bool or ``None``."""
        pack = self._packer.pack
        for value in values:
            pack(_narrow(value))

    def bytes(self) -> bytes:
        """Return all that was written."""
        return cast(bytes, self._packer.bytes())


def _put_groups(stream: _Stream, function: Function[Any], value: GroupStates[Any]) -> None:
    stream.put(len(value.groups), _packed(list(value.groups)))
    for column in function.to_lists(value.groups.values()):
        stream.put(_packed(column))
    stream.put(value.remainder.groups, *function.to_columns(value.remainder.state))


def _packed(values: Sequence[object]) -> bytes:
    """The values one after another: msgpack's array of them, without its header."""
    if not _fit_64_bits(values):
        values = list(map(_narrow, values))
    header = 1 if len(values) < 1 << 4 else 3 if len(values) < 1 << 16 else 5
    return cast(bytes, msgpack.packb(values))[header:]


def _fit_64_bits(values: Sequence[object]) -> bool:
    kinds = set(map(type, values))
    if int not in kinds:
        return True
    if kinds != {int}:
        return False
    whole = cast(Sequence[int], values)
    return min(whole) >= -(2**63) and max(whole) < 2**64


class _Reader:
    """Reads scalars one after another; an array, map or extension is an error. Raises ``ValueError``.

    The limits of 0 stop anything with contents; an empty array or map, which they let pass, is stopped by its type.
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        size = max(1, len(data))
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=size, use_list=False, max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._unpacker.feed(data)

    def take(self, count: int) -> list[object]:
        """Read the next ``count`` scalars."""
        values = list(islice(cast(Iterator[object], self._unpacker), count))
        if len(values) != count:
            raise ValueError("it ends too early")
        if not _SCALARS.issuperset(map(type, values)):
            raise ValueError("an array, a map or an extension where a scalar belongs")
        return values

    def end(self) -> None:
        """Check that nothing is left."""
        if list(islice(cast(Iterator[object], self._unpacker), 1)):
            raise ValueError("something follows the end")

    def count(self, most: int, least: int = 0) -> int:
        """Read one integer from ``least`` to ``most``."""
        (value,) = self.take(1)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return value

    def blob(self) -> bytes:
        """Read one byte string."""
        (value,) = self.take(1)
        if type(value) is not bytes:
            raise ValueError("expected bytes")
        return value


def _decode(reader: _Reader, query: Query) -> Partial:
    version, name, grouped = reader.take(3)
    if type(version) is not int or version != WIRE_VERSION:
        raise ValueError(f"expected version {WIRE_VERSION}")
    if name != query.function or grouped is not (query.by is not None):
        raise ValueError(f"not a value of the query {query!s:.100}")
    contributors = _contributors(reader.blob())
    shares = tuple(zip(*(_counts(reader.blob(), len(contributors)) for _ in range(2)), strict=True))
    counters = [reader.count(COUNT_MAX) for _ in range(_COUNTERS)]
    notes = reader.take(reader.count(NOTES_MAX))
    if not all(isinstance(note, str) and len(note) <= NOTE_CHARACTERS_MAX and note.isprintable() for note in notes):
        raise ValueError("a note is not a short printable text")
    report = ExtractionReport(*counters, notes=tuple(sorted(cast(list[str], notes))))
    function = function_named(query.function)
    if query.by is None:
        value: State = function.from_columns([_widen(part) for part in reader.take(function.columns)])
        total = value
    else:
        value = _groups(reader, function, query.groups_max)
        total = Grouped(function, query.groups_max).total(value)
    reader.end()
    _check_total(function, total, report)
    if (sum(files for files, _ in shares), sum(records for _, records in shares)) != (
        report.files_read,
        report.records,
    ):
        raise ValueError("the nodes' files and records do not add up to the report's")
    return Partial(query, value, contributors, report, shares)


def _check_total(function: Function[Any], total: State, report: ExtractionReport) -> None:
    """The value and the report tell of the same records; nothing that a true node sends fails here."""
    known = function.records(total)
    if known is not None and known != report.records_selected:
        raise ValueError(f"a value of {known} records, but {report.records_selected} were selected")
    if (report.records_selected == 0) != (total == function.zero) and (
        report.records_selected == 0 or function.zero is None
    ):
        raise ValueError("a value without records, or records without a value")
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
    column = _column(blob, count)
    if set(map(type, column)) - {int}:
        raise ValueError("a count is not a whole number")
    counts = cast(Sequence[int], column)
    if min(counts) < 0 or max(counts) > COUNT_MAX:
        raise ValueError(f"a count is not from 0 to {COUNT_MAX}")
    return counts


def _groups(reader: _Reader, function: Function[Any], groups_max: int) -> GroupStates[Any]:
    count = reader.count(min(groups_max, GROUPS_HARD_MAX))
    keys = _column(reader.blob(), count)
    columns = [_column(reader.blob(), count) for _ in range(function.columns)]
    columns = [list(map(_widen, column)) if bytes in set(map(type, column)) else column for column in columns]
    if set(map(type, keys)) - {str}:
        raise ValueError("a key is not text")
    texts = cast(list[str], keys)
    longest = max(map(len, texts), default=0)
    if longest * 4 > KEY_BYTES_MAX and any(len(key.encode()) > KEY_BYTES_MAX for key in texts):
        raise ValueError(f"a key has more than {KEY_BYTES_MAX} bytes")
    groups = dict(zip(texts, function.from_lists(columns), strict=True))
    if len(groups) != count:
        raise ValueError("a key comes twice")
    if function.has_empty(groups.values()):
        raise ValueError("a group without records")
    folded = reader.count(COUNT_MAX)
    state = function.from_columns([_widen(part) for part in reader.take(function.columns)])
    if folded == 0 and state != function.zero:
        raise ValueError("a remainder of no groups")
    return GroupStates(groups, Remainder(folded, state))


def _column(blob: bytes, count: int) -> Sequence[object]:
    reader = _Reader(blob)
    values = reader.take(count)
    reader.end()
    return values
