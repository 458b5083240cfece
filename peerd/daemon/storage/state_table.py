"""A table that its owner loads as a whole at the start, and replaces as a whole; only the differences are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from peerd.daemon.storage.database import Database
from peerd.daemon.storage.tables import Row, TableSchema

Entry = TypeVar("Entry")


class StateRows(Protocol):
    """What the owner of a table needs of `StateTable`."""

    def load(self, parse: Callable[[Row], Entry]) -> list[Entry]:
        """Return every row as ``parse`` converts it; a row for which it raises ``ValueError`` is left out."""

    def replace(self, rows: Iterable[Row]) -> None:
        """Make these rows the content of the table. Raises `Unavailable`, having changed nothing."""


class StateTable:
    """Implements `StateRows`. If the owner cannot use some rows, one line in ``warnings`` says so."""

    def __init__(self, database: Database, table: TableSchema, warnings: list[str]) -> None:
        self._database = database
        self._table = table
        self._warnings = warnings
        self._written = database.checksums(table)
        self._lock = threading.Lock()
        """A worker may be saving when the end of the daemon saves, too."""

    def load(self, parse: Callable[[Row], Entry]) -> list[Entry]:
        """See `StateRows`."""
        found: list[Entry] = []
        problems: list[str] = []
        for row in self._database.rows(self._table):
            try:
                found.append(parse(row))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            where = f"{self._database.path}, {self._table.name}"
            self._warnings.append(
                f"{where}: {len(problems)} rows cannot be used ({problems[0]}); starting without them"
            )
        return found

    def replace(self, rows: Iterable[Row]) -> None:
        """See `StateRows`."""
        length = self._table.key_length
        wanted = {row[:length]: (row, self._table.checksum(row)) for row in rows}
        with self._lock:
            changed = [row for key, (row, checksum) in wanted.items() if self._written.get(key) != checksum]
            removed = [key for key in self._written if key not in wanted]
            if changed or removed:
                self._database.change(self._table, changed, removed)
                self._written = {key: checksum for key, (_, checksum) in wanted.items()}
