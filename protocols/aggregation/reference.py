"""The reference computation that aggregates are compared with: one process, all files, no merging.

Deliberately simple, slow and separate: it shares with the aggregate only the meaning of the query (`Query`), of a
share (`Share`), of a pattern and of a filter, none of the code that walks, parses, folds, merges or rounds. Exact
fractions stand in for the exact sums. It knows no caps on groups, files and bytes, so compare with an aggregate that
met none of them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from peerd.lib.filter.evaluate import truth
from peerd.lib.filter.values import OTHER, STRICT, Reader, View
from protocols.aggregation.extraction import FileSelection
from protocols.aggregation.functions import Number
from protocols.aggregation.patterns import LINE_CHARACTERS_MAX, RegexEngine
from protocols.aggregation.query import Query


def plain(query: Query, root: Path, selections: Sequence[FileSelection]) -> Mapping[str, Number] | Number | None:
    """The answer over the files of all ``selections`` together, each file once.

    A mapping from group to number for a query with ``by``, else a number (``None`` for min, max and mean of
    nothing). Files that cannot be read and binary files are left out, as in the aggregate.
    """
    counts: Counter[str] = Counter()
    numbers: dict[str, list[Number]] = defaultdict(list)
    for file in selected_files(query, root, selections):
        for record in _records(query, file):
            key = "" if query.by is None else _text(_field(record, query.by))
            if key is None or len(key.encode("utf-8", "surrogatepass")) > 256 or _has_surrogates(key):
                continue
            if query.field is None:
                counts[key] += 1
            elif (number := _number(query, _field(record, query.field))) is not None:
                numbers[key].append(number)
    if query.field is None:
        return counts if query.by is not None else counts[""]
    if query.by is not None:
        return {key: _apply(query.function, values) for key, values in numbers.items()}
    if not numbers[""] and query.function != "sum":
        return None
    return _apply(query.function, numbers[""])


def selected_files(query: Query, root: Path, selections: Sequence[FileSelection]) -> list[Path]:
    """Return the files of all selections, in the order of their paths."""
    root = root.resolve()
    glob = query.files + "/*" if query.files.endswith("**") else query.files
    files = set()
    for path in root.glob(glob):
        linked_folder = any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(root))
        if linked_folder or not path.is_file() or not path.resolve().is_relative_to(root):
            continue
        name = path.relative_to(root).as_posix()
        if any(selection.share is None or selection.share.owns(name) for selection in selections):
            files.add(path)
    return sorted(files)


def _records(query: Query, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the well-formed records that meet all conditions."""
    try:
        data = file.read_bytes()
    except OSError:
        return
    if b"\0" in data[:8192]:
        return
    readers = {"ndjson": _json_records, "csv": _csv_records, "text": _text_records}
    for record in readers[query.format](query, data):
        if query.where is None or truth(query.where, record, reader=_reader(query), accessor=_accessor):
            yield record


def _json_records(query: Query, data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        try:
            record = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and len(line.removesuffix(b"\r")) <= 1024 * 1024:
            yield record


def _csv_records(query: Query, data: bytes) -> Iterator[dict[str, Any]]:
    rows = csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"), newline=""))
    header = next((row for row in rows if row), [])
    for row in rows:
        if len(row) == len(header):
            yield dict(zip(reversed(header), reversed(row), strict=True))


def _text_records(query: Query, data: bytes) -> Iterator[dict[str, Any]]:
    pattern = query.compiled_pattern(RegexEngine.RE2)
    assert pattern is not None
    lines = data.split(b"\n")
    for line in lines[:-1] if not lines[-1] else lines:
        for row in pattern.rows(line.removesuffix(b"\r")[:LINE_CHARACTERS_MAX], pattern.names, lambda: None):
            yield dict(zip(pattern.names, row, strict=True))


def _field(record: Any, name: str) -> Any:
    if name in record:
        return record[name]
    first, _, rest = name.partition(".")
    while rest and isinstance(record, dict):
        record = record.get(first)
        first, _, rest = rest.partition(".")
    return record.get(first) if isinstance(record, dict) else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, (list, dict)):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _has_surrogates(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _number(query: Query, value: Any) -> Number | None:
    if isinstance(value, str) and query.format != "ndjson":
        value = value.strip()
        if not re.fullmatch(r"[0-9eE.+-]{1,400}", value):
            return None
        try:
            value = int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 2**1024 and not (isinstance(value, float) and math.isnan(value)) else None


def _reader(query: Query) -> Reader:
    """Scalars as texts; as numbers where they are; what is there and no number differs from all of them."""

    def number(value: Any) -> Any:
        found = _number(query, value)
        is_nothing = _text(value) is None or (isinstance(value, float) and math.isnan(value))
        return found if found is not None else None if is_nothing else OTHER

    def text(value: Any) -> str | None:
        found = _text(value)
        return None if found is None or _has_surrogates(found) else found

    def ending(value: Any) -> str | None:
        found = text(value)
        return None if found is None else found[::-1]

    def boolean(value: Any) -> int | None:
        return {"true": 1, "false": 0}.get((_text(value) or "").lower())

    own: dict[View, Any] = {View.NUMBER: number, View.TEXT: text, View.ENDING: ending, View.BOOLEAN: boolean}
    return {**STRICT, **own}


def _accessor(name: str) -> Any:
    return lambda record: _field(record, name)


def _apply(function: str, values: Iterable[Number]) -> Number:
    values = list(values)
    if function == "min":
        return min(values)
    if function == "max":
        return max(values)
    total = sum(map(Fraction, values), Fraction(0))
    if function == "mean":
        total /= len(values)
    elif all(isinstance(value, int) for value in values):
        return int(total)
    try:
        return float(total)
    except OverflowError:
        return math.floor(total)
