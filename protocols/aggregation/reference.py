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
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from peerd.lib.filter.evaluate import truth
from peerd.lib.filter.values import OTHER, STRICT, Reader, View
from protocols.aggregation.calls import Call
from protocols.aggregation.config import FileSelection
from protocols.aggregation.numbers import Number
from protocols.aggregation.patterns import LINE_CHARACTERS_MAX, RegexEngine
from protocols.aggregation.query import Query

Plain: TypeAlias = Number | list[Any] | Mapping[str, Any] | None
"""What one function gives, exactly; of several, by their texts."""


def plain(query: Query, root: Path, selections: Sequence[FileSelection]) -> Mapping[str, Plain] | Plain:
    """The answer over the files of all ``selections`` together, each file once.

    A mapping from group to figures for a query with ``by``. Where the aggregate estimates, the figure here is exact.
    Files that cannot be read and binary files are left out, as in the aggregate.
    """
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for file in selected_files(query, root, selections):
        for record in _records(query, file):
            record["@file"] = file.relative_to(root.resolve()).as_posix()
            keys = [_text(_field(record, name)) for name in query.by]
            values = [_value(query, call, record) for call in query.calls]
            if None in keys or None in values:
                continue
            key = keys[0] if len(keys) == 1 else json.dumps(keys, ensure_ascii=False, separators=(",", ":"))
            if key is not None and not _is_too_long(key):
                found[key].append(values)
    if query.by:
        return {key: _figures(query, rows) for key, rows in found.items()}
    return _figures(query, found["[]"])


def _figures(query: Query, rows: list[list[Any]]) -> Plain:
    figures = [_apply(call, [row[index] for row in rows]) for index, call in enumerate(query.calls)]
    return figures[0] if len(figures) == 1 else dict(zip(map(str, query.calls), figures, strict=True))


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


def _is_too_long(key: str) -> bool:
    return len(key.encode("utf-8", "surrogatepass")) > 256 or _has_surrogates(key)


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


def _value(query: Query, call: Call, record: Any) -> Any:
    """What a function takes of a record; ``None`` where it finds nothing of the kind."""
    if call.field is None:
        return 0
    value = _field(record, call.field)
    if call.name in ("distinct", "values"):
        text = _text(value)
        return None if text is None or (call.name == "values" and _is_too_long(text)) else text
    if call.name == "vector":
        numbers = [_number(query, each) for each in value] if isinstance(value, list) else [None]
        return None if None in numbers or any(isinstance(each, str) for each in value) else numbers
    return _number(query, value)


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


def _apply(call: Call, values: list[Any]) -> Any:
    """What a function gives for the values that it has taken."""
    name, arguments = call.name, call.arguments
    most = int(arguments[0]) if arguments else 100 if name == "values" else 10
    if name == "count":
        return len(values)
    if name == "sum":
        return _sum(values)
    if name == "distinct":
        return len(set(values))
    if name == "values":
        return sorted(set(values))[:most]
    if name in ("top", "bottom"):
        return sorted(values, reverse=name == "top")[:most]
    if name == "histogram":
        edges = (-math.inf, *arguments, math.inf)
        return [sum(low <= value < high for value in values) for low, high in pairwise(edges)]
    if name == "vector":
        return [_sum([value[place] for value in values if place < len(value)]) for place in range(_longest(values))]
    return _of_some(call, values) if values else None


def _of_some(call: Call, values: list[Number]) -> Number | None:
    quantiles = {"median": 0.5, "quantile": call.arguments[0] if call.arguments else 0.5}
    if call.name in ("min", "max"):
        return min(values) if call.name == "min" else max(values)
    if call.name == "mean":
        return _rounded(sum(map(Fraction, values), Fraction(0)) / len(values))
    if call.name in ("variance", "stddev"):
        if len(values) < 2:
            return None
        variance = _rounded(statistics.variance(map(Fraction, values)))
        return variance if call.name == "variance" else math.sqrt(variance)
    q = quantiles.get(call.name, float(f"0.{call.name[1:]}"[:6]) if call.name[1:].isdigit() else 0.5)
    return sorted(values)[math.floor(q * (len(values) - 1))]


def _longest(values: list[Any]) -> int:
    return max(map(len, values), default=0)


def _sum(values: list[Number]) -> Number:
    total = sum(map(Fraction, values), Fraction(0))
    return int(total) if all(isinstance(value, int) for value in values) else _rounded(total)


def _rounded(number: Fraction) -> Number:
    try:
        return float(number)
    except OverflowError:
        return math.floor(number)
