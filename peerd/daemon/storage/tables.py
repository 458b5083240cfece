"""The tables of ``state.db``: what a daemon keeps across restarts, and in which form.

Every row carries a checksum of its content (the last column, see `checksum`): SQLite checks the structure of its file,
not the bytes of a value, and a disk may flip one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import msgpack

from peerd.frozen import Frozen

FORMAT_VERSION: Final = 2
"""The version of the tables below, kept as SQLite's ``user_version``. Files of other versions are not read."""

Value = int | float | str | bytes
Row = tuple[Value, ...]


class TableSchema(Frozen):
    """One table: its columns with their SQL types. The first ``key_length`` columns are the primary key."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key_length: int = 1

    def definition(self, is_strict: bool) -> str:
        """The SQL statement that creates the table. SQLite before 3.37 has no strict tables."""
        columns = "".join(f"{name} {kind} NOT NULL, " for name, kind in self.columns)
        options = "STRICT, WITHOUT ROWID" if is_strict else "WITHOUT ROWID"
        return f"CREATE TABLE {self.name} ({columns}checksum INTEGER NOT NULL, PRIMARY KEY ({self.key})) {options}"

    @property
    def key(self) -> str:
        """The names of the key's columns."""
        return ", ".join(name for name, _ in self.columns[: self.key_length])

    @property
    def names(self) -> str:
        """The names of all columns but the checksum."""
        return ", ".join(name for name, _ in self.columns)

    def matches(self, key_length: int) -> str:
        """A condition on the first columns of the key."""
        return " AND ".join(f"{name} = ?" for name, _ in self.columns[:key_length]) or "1"

    def checksum(self, row: Iterable[Value]) -> int:
        """Return the checksum of a row's content and its table's name."""
        packed: bytes = msgpack.packb([self.name, *row])
        return zlib.crc32(packed)


NUMBERS: Final = TableSchema("numbers", (("name", "TEXT"), ("value", "INTEGER")))
"""Single numbers by name: the boot epoch."""
PEERS: Final = TableSchema("peers", (("position", "INTEGER"), ("id", "TEXT"), ("host", "TEXT"), ("port", "INTEGER")))
"""Peers that the last run knew, the best ones first."""
JOIN_TOKENS: Final = TableSchema(
    "join_tokens",
    (
        ("digest", "TEXT"),
        ("created_at", "REAL"),
        ("expires_at", "REAL"),
        ("uses_max", "INTEGER"),
        ("uses", "INTEGER"),
        ("is_revoked", "INTEGER"),
    ),
)
"""The book of an issuer, see `peerd.identity.tokens`."""
ACCESS_TOKENS: Final = TableSchema(
    "access_tokens",
    (
        ("id", "TEXT"),
        ("name", "TEXT"),
        ("digest", "TEXT"),
        ("scopes", "TEXT"),
        ("created_at", "REAL"),
        ("expires_at", "REAL"),
    ),
)
"""The book of data clients, see `peerd.daemon.http.access_book`."""
NOTICES: Final = TableSchema(
    "notices",
    (("subject", "TEXT"), ("type_id", "INTEGER"), ("body", "BLOB"), ("signer", "BLOB"), ("signature", "BLOB")),
)
"""The notices of the cluster's CA, as they were signed: see `peerd.identity.ledger`."""
PLUGIN_VALUES: Final = TableSchema(
    "plugin_values", (("plugin", "TEXT"), ("key", "TEXT"), ("value", "BLOB")), key_length=2
)
"""The small stores of plugins, see `peerd.api.KeyValues`."""

TABLES: Final = (NUMBERS, PEERS, JOIN_TOKENS, ACCESS_TOKENS, NOTICES, PLUGIN_VALUES)
TRUSTED_TABLES: Final = (JOIN_TOKENS, ACCESS_TOKENS)
"""Tables that are dropped rather than restored to an older state: that would revive used or revoked tokens."""
