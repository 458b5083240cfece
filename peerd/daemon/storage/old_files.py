"""The state files of peerd 0.1: they are read once, their content goes into ``state.db``, and they are removed.

Small files began with a line ``peerd-state 1 <SHA-256 of the rest>``; a plugin's store was a log of records: CRC-32
(4 bytes, big endian), length (4 bytes), msgpack ``[key, value]``, where a nil value deletes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, Final

import msgpack

from peerd.daemon.storage.tables import (
    ACCESS_TOKENS,
    JOIN_TOKENS,
    NOTICES,
    NUMBERS,
    PEERS,
    PLUGIN_VALUES,
    Row,
    TableSchema,
)
from peerd.errors import ConfigError
from peerd.limits import MIB

FILE_BYTES_MAX: Final = 192 * MIB
_HEADER: Final = re.compile(rb"peerd-state 1 ([0-9a-f]{64})\n")
_STORE_HEADER: Final = b"peerd-store 1\n"
_STORE_RECORD: Final = Struct(">II")
_TYPES: Final = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}

OldRows = Iterator[tuple[TableSchema, Row]]


class DamagedFile(Exception):
    """An old file is damaged. ``entries``: of a plugin's store, the entries before the damage."""

    def __init__(self, reason: str, entries: dict[str, bytes] | None = None) -> None:
        super().__init__(reason)
        self.entries = entries or {}


def old_files(folder: Path) -> list[Path]:
    """The files of peerd 0.1 that are there."""
    return [path for name in _READERS if (path := folder / name).exists()] + sorted(folder.glob("store-*.log"))


def old_rows(path: Path) -> list[tuple[TableSchema, Row]]:
    """Read the rows of an old file. Raises `DamagedFile`, and `ConfigError` when it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read the state file: {error.strerror}", file=str(path)) from error
    if path.suffix == ".log":
        return store_rows(path, read_store(content))
    header = _HEADER.match(content)
    if header is None or hashlib.sha256(content[header.end() :]).hexdigest().encode() != header[1]:
        raise DamagedFile("its digest does not match")
    try:
        rows = list(_READERS[path.name](json.loads(content[header.end() :])))
        for table, row in rows:
            _check_types(table, row)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise DamagedFile(f"not what it should hold: {error}") from error
    return rows


def store_rows(path: Path, entries: dict[str, bytes]) -> list[tuple[TableSchema, Row]]:
    """The rows of a plugin's store; the name of the file names the plugin."""
    plugin = path.stem.removeprefix("store-")
    return [(PLUGIN_VALUES, (plugin, key, value)) for key, value in entries.items()]


def _check_types(table: TableSchema, row: Row) -> None:
    """Raises ``ValueError`` for a row that SQLite would not take: then the file is damaged, and not the disk full."""
    for (name, kind), value in zip(table.columns, row, strict=True):
        if type(value) is not _TYPES[kind] or (isinstance(value, int) and not -(2**63) <= value < 2**63):
            raise ValueError(f"{name} is no {kind}")
        if isinstance(value, float) and math.isnan(value):  # Python's JSON has it, and SQLite would take it for NULL
            raise ValueError(f"{name} is not a number")
    table.checksum(row)  # of text that is no Unicode there is none


def read_store(content: bytes) -> dict[str, bytes]:
    """The entries of a plugin's store. Raises `DamagedFile`, with the entries before the damage."""
    entries: dict[str, bytes] = {}
    position = len(_STORE_HEADER) if content.startswith(_STORE_HEADER) else len(content) + 1
    while position + _STORE_RECORD.size <= len(content):
        checksum, length = _STORE_RECORD.unpack_from(content, position)
        start, position = position + _STORE_RECORD.size, position + _STORE_RECORD.size + length
        payload = content[start:position]
        if len(payload) != length or zlib.crc32(payload) != checksum:
            break
        try:
            record = msgpack.unpackb(payload)
        except (ValueError, msgpack.exceptions.UnpackException):
            raise DamagedFile(f"a record is no msgpack; keeping the {len(entries)} before it", entries) from None
        match record:
            case [str(key), bytes(value)]:
                entries[key] = value
            case [str(key), None]:
                entries.pop(key, None)
    if position != len(content):
        raise DamagedFile(f"no whole record; keeping the {len(entries)} entries before it", entries)
    return entries


def _peers(rows: list[dict[str, Any]]) -> OldRows:
    for position, row in enumerate(rows):
        yield PEERS, (position, str(row["id"]), str(row["host"]), int(row["port"]))


def _join_tokens(rows: list[dict[str, Any]]) -> OldRows:
    for row in rows:
        times = float(row["created_at"]), float(row["expires_at"])
        uses = int(row["uses_max"]), int(row["uses"])
        yield JOIN_TOKENS, (row["digest"], *times, *uses, " ".join(row["roles"]), int(row["is_revoked"]))


def _access_tokens(rows: list[dict[str, Any]]) -> OldRows:
    for row in rows:
        names = row["id"], row["name"], row["digest"], " ".join(row["scopes"])
        yield ACCESS_TOKENS, (*names, float(row["created_at"]), float(row["expires_at"]))


def _notices(rows: list[list[Any]]) -> OldRows:
    for type_id, *parts in rows:
        body, signer, signature = (base64.b64decode(part, validate=True) for part in parts)
        yield NOTICES, (hashlib.sha256(body).hexdigest(), int(type_id), body, signer, signature)


_READERS: Final[dict[str, Callable[[Any], OldRows]]] = {
    "boot-epoch": lambda epoch: iter([(NUMBERS, ("boot_epoch", int(epoch)))]),
    "known-peers.json": _peers,
    "tokens.json": _join_tokens,
    "access-tokens.json": _access_tokens,
    "trust-records.json": _notices,
}
