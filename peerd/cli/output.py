"""The formats of ``-o``, for every command: a table for people; JSON, JSON lines, CSV and YAML for programs.

A command has one document (what ``-o json`` and ``-o yaml`` print) and rows (a line each with ``-o jsonl`` and
``-o csv``). In all four, numbers are numbers and points in time are ISO 8601 in UTC. There are no colours in them.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from peerd.cli.terminal import Terminal, print_facts, print_table, printable, stderr, stdout

if TYPE_CHECKING:
    from pydantic import BaseModel

    Document = BaseModel | Mapping[str, Any] | Sequence[Any]

__all__ = [
    "Output",
    "RowWriter",
    "Terminal",
    "nodes",
    "number",
    "print_data",
    "print_facts",
    "print_json",
    "print_result",
    "print_table",
    "printable",
    "seconds",
    "size",
    "stderr",
    "stdout",
]

TIME_NAMES: Final = ("at", "_at", "_until")
"""A field holds a point in time if its name is one of these, or ends with one."""
THIS_CENTURY_S: Final = 946_684_800.0
"""2000-01-01 as Unix time. Smaller numbers in such fields are times of a simulation, which begins at zero."""


class Output(StrEnum):
    """The formats in which a command can print."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    YAML = "yaml"


def print_data(
    output: Output,
    document: Document,
    rows: Iterable[Document] | None = None,
    row_type: type[BaseModel] | None = None,
    before: Sequence[str] = (),
) -> bool:
    """Print for a program, and return whether one is to read it: false, and nothing is printed, for a table.

    ``rows``: the lines of JSONL and CSV; by default the document's items, or the document. ``row_type`` says
    what the rows are, so that CSV has its header also without any; ``before``: columns before that.
    """
    if output is Output.TABLE:
        return False
    whole = plain(document)
    if output is Output.JSON:
        json.dump(whole, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    elif output is Output.YAML:
        _print_yaml(whole)
    else:
        parts = [plain(row) for row in rows] if rows is not None else whole if isinstance(whole, list) else [whole]
        writer = RowWriter(output, columns=_columns(parts))
        for part in parts:
            writer.write(part)
        if not parts and row_type is not None:
            writer.write_head([*before, *row_type.model_fields])
    return True


def print_result(output: Output, document: Document, line: str) -> None:
    """Print what a command has done: one line for people, the document for a program."""
    if not print_data(output, document):
        stdout().print(line)


def print_json(value: Document) -> None:
    """Print one JSON document on standard output."""
    print_data(Output.JSON, value)


class RowWriter:
    """Writes rows while they come, for commands whose rows have no end or are too many to keep.

    With JSON and JSONL each row is a line of JSON. The YAML is one list. The columns of CSV are those of the first row,
    unless ``columns`` names them.
    """

    def __init__(self, output: Output, columns: Sequence[str] = ()) -> None:
        self._output = output
        self._columns = list(columns)
        self._table: csv.DictWriter[str] | None = None

    def write(self, row: Document) -> None:
        """Write one row, at once."""
        shown = plain(row)
        if self._output is Output.CSV:
            self._write_csv(_flat(shown))
        elif self._output is Output.YAML:
            _print_yaml([shown])
        else:
            sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def write_head(self, columns: Sequence[str]) -> None:
        """The header of CSV, which rows may follow; nothing in the other formats."""
        if self._output is Output.CSV:
            self._table = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
            self._table.writeheader()

    def _write_csv(self, row: dict[str, Any]) -> None:
        if self._table is None:
            self.write_head(self._columns or list(row))
        assert self._table is not None
        self._table.writerow(row)


def plain(value: Any, name: str = "") -> Any:
    """Convert to what JSON has: dictionaries, lists, texts, numbers; times, known by the field's name, to ISO 8601."""
    if not isinstance(value, type) and hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float | int) and value >= THIS_CENTURY_S and _is_time(name):
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # A member of an enumeration is a text or a number to JSON, and something unknown to YAML.
    return str(value) if isinstance(value, str) else value


def _is_time(name: str) -> bool:
    return name == TIME_NAMES[0] or name.endswith(TIME_NAMES[1:])


def _print_yaml(value: object) -> None:
    import yaml  # here: half of the commands' start-up time would be spent on it

    yaml.safe_dump(value, sys.stdout, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10**6)


def _columns(rows: Sequence[Any]) -> list[str]:
    """Return the columns of all rows, in the order in which they first occur."""
    return list(dict.fromkeys(name for row in rows for name in _flat(row)))


def _flat(row: Any, prefix: str = "") -> dict[str, Any]:
    """Return a row for CSV: nested tables become columns with dots in their names, lists JSON, null an empty cell."""
    if not isinstance(row, Mapping):
        return {prefix or "value": _cell(row)}
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        found |= _flat(value, name) if isinstance(value, Mapping) and value else {name: _cell(value)}
    return found


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list) else value


# Numbers for people


def nodes(count: float, is_exact: bool) -> str:
    """The size of a ring: "1 node", "about 120 nodes"."""
    shown = f"{count:.0f}"
    return f"{'' if is_exact else 'about '}{shown} node{'' if shown == '1' else 's'}"


def seconds(value: float | None) -> str:
    """A duration for people: three significant digits, in the unit that suits."""
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(value: float) -> str:
    """Bytes for people, in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float | int) -> str:
    """Write a number; one without a fraction is written without a point, whatever its type."""
    return f"{value:,}" if isinstance(value, int) else f"{int(value):,}" if value.is_integer() else f"{value:,}"
