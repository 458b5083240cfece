"""The extraction function: from the files of one node to the state of the query's function.

Runs in a process of its own, which is bounded, and killed when its round ends. Nothing in a file stops it: what cannot
be read or understood is counted in the `ExtractionReport` with the first few names. What a pattern may cost is bounded
in `protocols.aggregation.patterns`.

Which files: those below the root whose relative path matches the query's glob, folder by folder in name order.
Links to folders are never followed, links to files only when they end inside the root; links and special files
that match but are not read are counted as skipped. A file is read up to the size that it had when it was opened.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import platform
import re
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import SEEK_END, StringIO
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, TypeAlias, cast

import msgspec

from peerd.api import IN_MEMORY, Scratch
from peerd.errors import Unavailable
from peerd.lib.filter.evaluate import Matcher, matcher
from peerd.lib.filter.patterns import EngineMissing
from protocols.aggregation.config import FileSelection, Share
from protocols.aggregation.functions import Input, Tallying, adder
from protocols.aggregation.groups import Grouped, GroupStates, Remainder, key_of
from protocols.aggregation.listings import is_short
from protocols.aggregation.partial import NOTES_MAX, Extraction, ExtractionReport, State, first_notes
from protocols.aggregation.patterns import LINE_CHARACTERS_MAX, LinePattern, RegexEngine
from protocols.aggregation.query import TAG_PREFIX, Query
from protocols.aggregation.records import input_reader, reader, text_of
from protocols.aggregation.slices import Runs, SlicedGroups

LINE_BYTES_MAX: Final = 1024 * 1024
"""Longest line of NDJSON or CSV; a longer one is rejected. For text see `patterns.LINE_CHARACTERS_MAX`."""
BLOCK_BYTES: Final = 256 * 1024
"""So much of NDJSON or CSV is read at once: no more than a line may have, so that only the first line of a block, which
may have begun before it, can be too long."""
RUN_GROUPS: Final = 200_000
"""So many groups are in memory at a time, of a query whose value goes in slices. The others are on disk."""
RUN_SHARE: Final = 64
"""These get so small a part of the memory that values have before they go to a file: here it is worth more."""
BINARY_PROBE_BYTES: Final = 8192
"""A file with a NUL among so many first bytes is binary."""

ALL: Final = ""
"""The key of all records, where the query has no GROUP BY."""
_ABSENT: Final = object()
BOM: Final = "\ufeff"
_BOMS: Final = re.compile(f"^{BOM}", re.MULTILINE)

FilesProgress = Callable[[int, int], None]
"""Called with (files done, files in all) after every file; an exception from it ends the extraction."""


def extract(
    query: Query,
    root: Path,
    selection: FileSelection | None = None,
    progress: FilesProgress | None = None,
    regex_engine: RegexEngine = RegexEngine.RE2,
    node: str = "",
    tags: Mapping[str, str] = MappingProxyType({}),
    scratch: Scratch = IN_MEMORY,
) -> Extraction:
    """Runs ``query`` over the selected files below ``root``. ``node``: the id of this node, for the field ``@node``;
    ``tags``: what it is, for fields such as ``@tag.role``; ``scratch``: where more groups go than fit into memory.

    Raises `Unavailable` when ``root`` is no folder or this node lacks the engine for the query's pattern, and
    `QueryError` when the engine refuses the pattern.
    """
    selection = selection or FileSelection()
    pattern = query.compiled_pattern(regex_engine)
    tally = _Tally()
    root = root.resolve()
    if not root.is_dir():
        raise Unavailable(f"the data root {root} is not a folder")
    files: list[tuple[Path, str]] = []
    for path, relative in _walk(root, query.files, selection.share, tally):
        if len(files) < selection.files_max:
            files.append((path, relative))
        else:
            tally.skip(relative, f"more than {selection.files_max} files")
    accumulator = _Accumulator(query, tally, pattern, scratch)
    # A tag that this node lacks is none, whatever a record calls so.
    tagged = {name: tags.get(name.removeprefix(TAG_PREFIX)) for name in query.fields() if name.startswith(TAG_PREFIX)}
    origin = {"@node": node, "@host": platform.node(), **tagged}
    for done, (path, relative) in enumerate(files, 1):
        _read_file(query, path, {**origin, "@file": relative}, selection, accumulator)
        if progress is not None:
            progress(done, len(files))
    return Extraction(accumulator.value(), tally.report())


class _Tally:
    """The fields of an `ExtractionReport`, by the same names, while they grow."""

    def __init__(self) -> None:
        self.files_read = self.files_unreadable = self.files_binary = self.files_skipped = 0
        self.folders_unreadable = self.bytes_read = self.lines_truncated = 0
        self.records = self.records_selected = self.records_rejected = 0
        self.notes: tuple[str, ...] = ()

    def note(self, path: str, reason: str) -> None:
        self.notes = first_notes((*self.notes, f"{path}: {reason}"))

    def skip(self, path: str, reason: str) -> None:
        self.files_skipped += 1
        if len(self.notes) < NOTES_MAX:
            self.note(path, reason)

    def report(self) -> ExtractionReport:
        return ExtractionReport(**vars(self))


# --- files --------------------------------------------------------------------------------------------------


class _Glob:
    """A glob as a small automaton over path segments, so that folders that cannot match are not entered."""

    def __init__(self, glob: str) -> None:
        segments = glob.split("/")
        if segments[-1] == "**":
            segments.append("*")
        self._segments = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in segments]
        self.end = len(segments)

    def step(self, positions: frozenset[int], name: str) -> frozenset[int]:
        """Where one more segment leads from ``positions``; `end` among them is a match."""
        reached: set[int] = set()
        for start in positions:
            position = start
            while position < self.end and self._segments[position] is None:
                reached.add(position)
                position += 1
            segment = self._segments[position] if position < self.end else None
            if segment is not None and segment.match(name):
                reached.add(position + 1)
        return frozenset(reached)


def _walk(root: Path, glob: str, share: Share | None, tally: _Tally) -> Iterator[tuple[Path, str]]:
    """Every file of the share that matches, with its relative path; deterministic order. One lstat an entry."""
    matcher = _Glob(glob)
    folders: list[tuple[Path, str, frozenset[int]]] = [(root, "", frozenset({0}))]
    while folders:
        folder, prefix, positions = folders.pop()
        try:
            entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
        except OSError as error:
            tally.folders_unreadable += 1
            tally.note(prefix or ".", error.strerror or type(error).__name__)
            continue
        below = []
        for entry in entries:
            reached = matcher.step(positions, entry.name)
            relative = prefix + entry.name
            if not reached:
                continue
            mode = _mode(entry)
            if stat.S_ISDIR(mode):
                below.append((entry, relative + "/", reached - {matcher.end}))
            elif matcher.end in reached and (share is None or share.owns(relative)):
                if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _leads_inside(entry, root)):
                    yield entry, relative
                else:
                    tally.skip(relative, "a special file, or a link to a folder or out of the data root")
        folders.extend(folder for folder in reversed(below) if folder[2])


def _mode(entry: Path) -> int:
    """Return the mode of the entry itself, not of what it links to; 0, which is no kind of file, when it is gone."""
    try:
        return entry.lstat().st_mode
    except OSError:
        return 0


def _leads_inside(link: Path, root: Path) -> bool:
    """Whether a link leads to a regular file below the root."""
    try:
        return link.is_file() and link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return False


def _read_file(
    query: Query, path: Path, origin: Mapping[str, str | None], selection: FileSelection, accumulator: _Accumulator
) -> None:
    tally, relative = accumulator.tally, str(origin["@file"])
    try:
        with path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            if tally.bytes_read + size > selection.bytes_max:
                tally.skip(relative, f"more than {selection.bytes_max} bytes in all")
                return
            file.seek(0)
            if b"\0" in file.read(BINARY_PROBE_BYTES):
                tally.files_binary += 1
                tally.note(relative, "binary")
                return
            file.seek(0)
            accumulator.add_all(_rows(query, accumulator.pattern, file, size, tally, origin))
            tally.files_read += 1
    except OSError as error:
        tally.files_unreadable += 1
        tally.note(relative, error.strerror or type(error).__name__)


# --- records ------------------------------------------------------------------------------------------------

Row = Sequence[object] | None
"""The values of ``query.fields()``, ``None`` for a missing one; ``None`` as a whole for a malformed record."""


def _rows(
    query: Query,
    pattern: LinePattern | None,
    file: BinaryIO,
    size: int,
    tally: _Tally,
    origin: Mapping[str, str | None],
) -> Iterator[Row]:
    names = query.fields()
    read = tuple(name for name in names if name not in origin)
    rows = _read_rows(query, read, pattern, file, size, tally)
    return rows if len(read) == len(names) else _with_origin(rows, names, origin)


def _with_origin(rows: Iterator[Row], names: tuple[str, ...], origin: Mapping[str, str | None]) -> Iterator[Row]:
    """Put what is known of all records of a file between what was read of each."""
    for row in rows:
        if row is None:
            yield None
            continue
        values = iter(row)
        yield [origin[name] if name in origin else next(values) for name in names]


def _read_rows(
    query: Query, names: tuple[str, ...], pattern: LinePattern | None, file: BinaryIO, size: int, tally: _Tally
) -> Iterator[Row]:
    if pattern is not None:
        return _text_rows(pattern, names, _lines(file, size, LINE_CHARACTERS_MAX, tally), tally)
    blocks = _blocks(file, size, tally)
    return _csv_rows(names, blocks, tally) if query.format == "csv" else _json_rows(names, blocks)


def _blocks(file: BinaryIO, size: int, tally: _Tally) -> Iterator[bytes | None]:
    """Many whole lines at once, each with its ending; ``None`` for a line that is longer than `LINE_BYTES_MAX`."""
    start, left = b"", size
    """``start``: of a line whose end has not been read. No more of it is kept than shows that it is too long."""
    while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
        left -= len(block)
        if left <= 0 and not block.endswith(b"\n"):  # the last line has grown since the file was opened
            block += file.readline(LINE_BYTES_MAX + 2)
        tally.bytes_read += len(block)
        end_of_first, end_of_last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        if not end_of_last:
            start = (start + block)[: LINE_BYTES_MAX + 2]
            continue
        first = start + block[:end_of_first]
        yield _unless_long(first, tally)
        if end_of_first < end_of_last:
            yield block[end_of_first:end_of_last]
        start = block[end_of_last:]
    if start:
        yield _unless_long(start + b"\n", tally)


def _unless_long(line: bytes, tally: _Tally) -> bytes | None:
    if len(line.removesuffix(b"\n").removesuffix(b"\r")) <= LINE_BYTES_MAX:
        return line
    tally.lines_truncated += 1
    return None


def _lines(file: BinaryIO, size: int, limit: int, tally: _Tally) -> Iterator[tuple[bytes, bool]]:
    """Lines without their ending, cut to ``limit`` bytes, and whether they were cut."""
    position = 0
    while position < size:
        line = file.readline(limit + 2)
        if not line:
            return
        position += len(line)
        tally.bytes_read += len(line)
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(limit + 2)):
            position += len(rest)
            tally.bytes_read += len(rest)
        body = line.removesuffix(b"\n").removesuffix(b"\r")
        cut = len(body) > limit
        tally.lines_truncated += cut
        yield body[:limit], cut


def _text_rows(
    pattern: LinePattern, names: tuple[str, ...], lines: Iterator[tuple[bytes, bool]], tally: _Tally
) -> Iterator[Row]:
    def given_up() -> None:
        tally.lines_truncated += 1

    def cut_already() -> None:
        """The line is counted."""

    for body, cut in lines:
        yield from pattern.rows(body, names, cut_already if cut else given_up)


def _json_rows(names: tuple[str, ...], blocks: Iterator[bytes | None]) -> Iterator[Row]:
    decoder, row_of = _row_decoder(names)
    for block in blocks:
        if block is None:
            yield None
            continue
        try:
            found = decoder.decode_lines(block)
        except (ValueError, RecursionError):
            found = []  # one line is none: which one, is found line by line
        # It would also take two objects in a line.
        if len(found) == block.count(b"}\n") == block.count(b"\n"):
            yield from map(row_of, found)
            continue
        for line in block.split(b"\n"):
            if line and not line.isspace():
                yield _json_row(line, names, decoder, row_of)


def _json_row(line: bytes, names: tuple[str, ...], decoder: msgspec.json.Decoder[Any], row_of: _RowOf) -> Row:
    """The row of a line of NDJSON; ``None`` for what is none."""
    try:
        return row_of(decoder.decode(line))
    except (ValueError, RecursionError):
        pass  # json takes more, at many times the cost: NaN, numbers beyond a double, half of a surrogate pair
    try:
        record = json.loads(line.removeprefix(BOM_UTF8).decode())
    except (ValueError, RecursionError):
        return None
    return [_member(record, name) for name in names] if isinstance(record, dict) else None


_RowOf: TypeAlias = Callable[[Any], Row]


def _row_decoder(names: tuple[str, ...]) -> tuple[msgspec.json.Decoder[Any], _RowOf]:
    """What decodes these members of objects, and skips the others, and what makes a row of what it has decoded."""
    outer = (name.split(".")[0] for name in names if "." in name)
    members = {name: number for number, name in enumerate(dict.fromkeys((*names, *outer)))}
    is_nested = any("." in name for name in names)
    absent = msgspec.UNSET if is_nested else None
    fields: list[tuple[str, Any, Any]] = [(f"m{number}", Any, absent) for number in members.values()]
    renamed = {f"m{number}": name for name, number in members.items()}
    decoder = msgspec.json.Decoder(msgspec.defstruct("Record", fields, rename=renamed, gc=False))
    values_of = msgspec.structs.astuple
    if len(members) == len(names) and not is_nested:
        return decoder, values_of
    if not is_nested:  # some more than once
        pick = itemgetter(*map(members.__getitem__, names))
        return decoder, lambda found: pick(values_of(found))

    def row_of(found: Any) -> Row:
        record = {name: value for name, value in zip(members, values_of(found), strict=True) if value is not absent}
        return [_member(record, name) for name in names]

    return decoder, row_of


def _member(record: dict[str, object], name: str) -> object:
    """Return the member with exactly this name, else the nested one that its dots lead to, else ``None``."""
    if name in record or "." not in name:
        return record.get(name)
    value: object = record
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _csv_rows(names: tuple[str, ...], blocks: Iterator[bytes | None], tally: _Tally) -> Iterator[Row]:
    """Rows after the header. Lines that are too long never reach the parser and are rejected here."""

    def texts() -> Iterator[str]:
        for block in blocks:
            if block is None:
                tally.records += 1
                tally.records_rejected += 1
            else:
                text = block.replace(b"\r\n", b"\n").decode("utf-8", "replace")
                text = _BOMS.sub("", text) if BOM in text else text
                yield from StringIO(text, newline="\n")  # a line of CSV ends with a line feed only

    reader = csv.reader(texts())
    header: list[str] | None = None
    while True:
        try:
            for row in reader:
                if not row:
                    continue
                if header is None:
                    header = row
                    pick = _picker([header.index(name) if name in header else None for name in names])
                elif len(row) != len(header):
                    yield None
                else:
                    yield pick(row)
        except csv.Error:
            yield None
        else:
            return


def _picker(columns: Sequence[int | None]) -> Callable[[Sequence[str]], Sequence[object]]:
    """The function from a row to its values in these columns."""
    if columns and None not in columns:
        one, *others = columns
        return itemgetter(*columns) if others else itemgetter(slice(one, cast(int, one) + 1))
    return lambda row: [None if column is None else row[column] for column in columns]


# --- values -------------------------------------------------------------------------------------------------


def _selector(query: Query) -> Matcher | None:
    """The query's ``where`` as a function of a row, ``None`` without one. Raises `Unavailable` where it cannot run."""
    if query.where is None:
        return None
    columns = query.fields()
    try:
        return matcher(
            query.where,
            reader=reader(textual=query.format != "ndjson"),
            accessor=lambda name: itemgetter(columns.index(name)),
        )
    except EngineMissing as error:
        raise Unavailable(error.message) from error


def _values(query: Query) -> Callable[[Sequence[object]], object]:
    """The function from a row to what `Query.function` takes of it: ``None`` when a field lacks that."""
    readers = [input_reader(call, textual=query.format != "ndjson") for call in query.calls]
    if len(readers) == 1:  # by far the most frequent, and what it costs is paid for every record
        (read,) = readers
        return (lambda row: 0) if query.function.takes is Input.NOTHING else lambda row: read(row[0])

    fielded = [number for number, call in enumerate(query.calls) if call.field is not None]
    reads = [(number, place, readers[number]) for place, number in enumerate(fielded)]

    def several(row: Sequence[object]) -> object:
        values: list[object] = [0] * len(readers)
        for number, place, read in reads:
            value = read(row[place])
            if value is None:
                return None
            values[number] = value
        return values

    return several


def _key(query: Query) -> Callable[[Sequence[object]], str | None]:
    """The function from a row to its group's key, a JSON array for several fields; ``None`` when a field lacks it."""
    if not query.by:
        return lambda row: ALL
    first = sum(call.field is not None for call in query.calls)
    if len(query.by) == 1:
        return (lambda row: text_of(row[first])) if query.format == "ndjson" else itemgetter(first)

    def several(row: Sequence[object]) -> str | None:
        texts = list(map(text_of, row[first : first + len(query.by)]))
        try:
            return None if None in texts else key_of(cast(list[str], texts))
        except UnicodeEncodeError:  # half of a surrogate pair
            return None

    return several


class _Accumulator:
    """Takes rows, and adds them up to one state."""

    def __init__(self, query: Query, tally: _Tally, pattern: LinePattern | None, scratch: Scratch) -> None:
        self.tally = tally
        self.pattern = pattern
        self._query = query
        self._function = query.function
        self._grouped = Grouped(self._function, query.groups_max)
        self._groups_most = RUN_GROUPS if query.is_sliced else 2 * query.groups_max
        monoid = query.monoid
        self._runs = Runs(monoid, scratch.less(RUN_SHARE)) if isinstance(monoid, SlicedGroups) else None
        self._groups: dict[str, Any] = {}
        """The tally of each; without GROUP BY, of `ALL`."""
        self._remainder: Remainder[Any] = Remainder(0, self._function.zero)
        self._value_of, self._key_of = _values(query), _key(query)
        self._where = _selector(query)

    def add_all(self, rows: Iterator[Row]) -> None:
        """Count every row, and add it to the state."""
        tally, where, value_of, key_of = self.tally, self._where, self._value_of, self._key_of
        groups, add = self._groups, adder(self._function)
        records = selected = rejected = 0
        try:
            for row in rows:
                records += 1
                if row is None:
                    rejected += 1
                    continue
                if where is not None and not where(row):
                    continue
                value, key = value_of(row), key_of(row)
                if value is None or key is None:
                    rejected += 1
                    continue
                present = groups.get(key, _ABSENT)
                if present is not _ABSENT:
                    groups[key] = add(present, value)
                    selected += 1
                elif is_short(key):
                    groups[key] = self._function.first(value)
                    selected += 1
                    if len(groups) > self._groups_most:
                        groups = self._fold()
                else:
                    rejected += 1
        finally:  # a file that can be read no further
            tally.records += records
            tally.records_selected += selected
            tally.records_rejected += rejected

    def _fold(self) -> dict[str, Any]:
        """Put away what is too much; returns the groups that are left."""
        if self._runs is not None:
            self._runs.add(self._states())
            self._groups = {}
        else:
            folded = self._grouped.fold(GroupStates(self._groups, self._remainder))
            self._groups, self._remainder = folded.groups, folded.remainder
        return self._groups

    def value(self) -> State:
        """Return the state of all rows; none is added after that."""
        if not self._query.by:
            return self._function.end(self._groups.get(ALL, self._function.begin()))
        self._fold()
        return self._states() if self._runs is None else self._runs.value()

    def _states(self) -> GroupStates[Any]:
        groups = self._groups
        if isinstance(self._function, Tallying):
            groups = {key: self._function.end(tally) for key, tally in groups.items()}
        return GroupStates(groups, self._remainder)
