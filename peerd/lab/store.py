"""The folder of one experiment's results.

``points/*.json`` has one file a point, written whole or not at all as soon as it is known; ``results.json`` and
``results.csv`` have all rows of the last run that finished. A sweep's ``rows/*.parquet`` have one row each.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from peerd.errors import ConfigError
from peerd.lab.experiment import VERSION, Experiment, Point, Row
from peerd.system.durable_files import write_atomically

FORMAT: Final = 1
MODE: Final = 0o644


class ResultStore:
    """The results of one experiment on disk. Raises `ConfigError` when the folder cannot be made or written."""

    def __init__(self, folder: Path, *, has_parquet: bool = False) -> None:
        self.folder = folder
        self._points = folder / "points"
        self._rows = folder / "rows" if has_parquet else None
        try:
            self._points.mkdir(parents=True, exist_ok=True)
            if self._rows is not None:
                self._rows.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", file=str(folder)) from None

    def _file(self, point: Point) -> Path:
        return self._points / f"{point.nodes}-seed-{point.seed}-{point.digest}.json"

    def keep(self, point: Point, row: Row) -> None:
        """Write the row of one point."""
        self._write(self._file(point), _json({"format": FORMAT, "point": point.to_json(), "row": row}))
        if self._rows is not None:
            self._write(self._rows / f"{self._file(point).stem}.parquet", as_parquet(point, row))

    def kept(self, point: Point) -> Row | None:
        """The row of a point that ran before, in this version and with these very parameters; ``None`` if none did."""
        try:
            data = json.loads(self._file(point).read_bytes())
            is_same = data["format"] == FORMAT and Point.of_json(data["point"]) == point
            return dict(data["row"]) if is_same else None
        except (OSError, ValueError, TypeError, KeyError):
            return None  # the file is missing or damaged: the point is run again, and the file replaced

    def finish(self, experiment: Experiment, settings: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Write all rows."""
        document = {
            "format": FORMAT,
            "experiment": experiment.name,
            "title": experiment.title,
            "reproduces": experiment.reproduces,
            "version": VERSION,
            "settings": dict(settings),
            "columns": {column.key: column.meaning for column in experiment.columns},
            "rows": list(rows),
        }
        self._write(self.folder / "results.json", _json(document))
        self._write(self.folder / "results.csv", as_csv(rows).encode())

    def add_file(self, name: str, content: bytes) -> Path:
        """Write another file into the folder, such as a chart; returns its path."""
        path = self.folder / name
        self._write(path, content)
        return path

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_atomically(path, content, MODE)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def as_parquet(point: Point, row: Row) -> bytes:
    """Return a row as a Parquet file. Measured numbers are doubles, as they may be whole in one row and not in another;
    a list or a table is JSON; what is null is no column. ``digest`` names the point."""
    import pyarrow as pa
    from pyarrow import parquet

    whole = {*point.parameters, "digest"}
    values = {
        name: json.dumps(value)
        if isinstance(value, dict | list)
        else float(value)
        if type(value) is int and name not in whole
        else value
        for name, value in {**row, "digest": point.digest}.items()
        if value is not None
    }
    out = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist([values]), out)
    return bytes(out.getvalue())


def as_csv(rows: Iterable[Row]) -> str:
    """Return CSV, a line a row; nested tables and lists become columns such as ``name.key`` or ``name.0``."""
    flat = [dict(_flat(row)) for row in rows]
    headings = list(dict.fromkeys(heading for row in flat for heading in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Row) -> Iterable[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        elif isinstance(value, list):
            yield from ((f"{name}.{position}", part) for position, part in enumerate(value))
        else:
            yield name, value
