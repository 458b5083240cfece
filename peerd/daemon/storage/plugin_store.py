"""A plugin's durable key-value store: a map in memory and a log of its changes on disk.

A change is one appended, checksummed, fsynced record, so it costs its own size and not the store's; the log is
rewritten as a snapshot once more than half of it is outdated. File: the line ``peerd-store 1``, then records of
CRC-32 (4 bytes, big endian), length (4 bytes), msgpack ``[key, value]``, where a nil value deletes.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from struct import Struct
from typing import Final

import msgpack

from peerd.errors import Unavailable
from peerd.limits import KIB, MIB, STORE_KEYS_MAX, STORE_VALUE_BYTES_MAX
from peerd.system.durable_files import write_atomically

STORE_BYTES_MAX: Final = 64 * MIB
"""Keys and values of one plugin together."""
STORE_KEY_BYTES_MAX: Final = 256
SNAPSHOT_SLACK_BYTES: Final = 256 * KIB
"""Outdated records that are tolerated whatever the size, so that a tiny store is not rewritten all the time."""

_HEADER: Final = b"peerd-store 1\n"
_RECORD: Final = Struct(">II")
_PAYLOAD_BYTES_MAX: Final = STORE_KEY_BYTES_MAX + STORE_VALUE_BYTES_MAX + 16


class DamagedStore(Exception):
    """A store file that ends in something that is no record. ``entries`` holds what came before the damage."""

    def __init__(self, reason: str, entries: dict[str, bytes]) -> None:
        super().__init__(reason)
        self.entries = entries


class PluginStore:
    """The daemon's `peerd.api.Store`. Bounded: ``STORE_KEYS_MAX`` keys, ``STORE_BYTES_MAX`` bytes in all.

    After a failed write nothing has changed, in memory or for the next reader; the next change writes a snapshot.
    """

    def __init__(self, path: Path, entries: dict[str, bytes]) -> None:
        self._path = path
        self._entries = entries
        self._live_bytes = sum(_entry_bytes(key, value) for key, value in entries.items())
        self._log_bytes = path.stat().st_size if path.exists() else 0
        self._rewrite = self._log_bytes == 0
        self._descriptor: int | None = None

    @classmethod
    def rewritten(cls, path: Path, entries: dict[str, bytes]) -> PluginStore:
        """A store of these entries whose file holds just them, whatever it held. Raises `Unavailable`."""
        store = cls(path, entries)
        try:
            store._write_snapshot(entries)
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}") from error
        return store

    @property
    def bytes_used(self) -> int:
        """Bytes of all keys and values."""
        return self._live_bytes

    def get(self, key: str) -> bytes | None:
        """The value, or ``None`` when there is none."""
        return self._entries.get(key)

    def keys(self) -> list[str]:
        """All keys, sorted."""
        return sorted(self._entries)

    def put(self, key: str, value: bytes) -> None:
        """Set a value, durably. Raises `Unavailable` over a limit or when the disk refuses: nothing changed then."""
        if len(key.encode()) > STORE_KEY_BYTES_MAX or len(value) > STORE_VALUE_BYTES_MAX:
            raise Unavailable(
                f"store entry too large: a key has at most {STORE_KEY_BYTES_MAX} bytes, a value {STORE_VALUE_BYTES_MAX}"
            )
        before = self._entries.get(key)
        live_bytes = self._live_bytes + _entry_bytes(key, value)
        live_bytes -= 0 if before is None else _entry_bytes(key, before)
        if live_bytes > STORE_BYTES_MAX or (before is None and len(self._entries) >= STORE_KEYS_MAX):
            raise Unavailable(f"store full: at most {STORE_KEYS_MAX} keys and {STORE_BYTES_MAX} bytes")
        self._change(key, bytes(value))
        self._live_bytes = live_bytes

    def delete(self, key: str) -> None:
        """Remove a value, durably; nothing happens when there is none. Raises `Unavailable` as `put`."""
        before = self._entries.get(key)
        if before is not None:
            self._change(key, None)
            self._live_bytes -= _entry_bytes(key, before)

    def close(self) -> None:
        """Close the file. Idempotent; there is nothing left to write."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _change(self, key: str, value: bytes | None) -> None:
        changed = {**self._entries, key: value} if self._needs_snapshot() else None
        try:
            if changed is not None:
                self._write_snapshot({name: kept for name, kept in changed.items() if kept is not None})
            else:
                self._append(_encode(key, value))
        except OSError as error:
            self._rewrite = True  # what the file ends in is unknown now
            self.close()
            raise Unavailable(f"cannot write {self._path}: {error.strerror}") from error
        if value is None:
            del self._entries[key]
        else:
            self._entries[key] = value

    def _needs_snapshot(self) -> bool:
        return self._rewrite or self._log_bytes > 2 * self._live_bytes + SNAPSHOT_SLACK_BYTES

    def _write_snapshot(self, entries: dict[str, bytes]) -> None:
        content = _HEADER + b"".join(_encode(key, value) for key, value in entries.items())
        self.close()
        write_atomically(self._path, content)
        self._log_bytes = len(content)
        self._rewrite = False

    def _append(self, record: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        if os.write(self._descriptor, record) != len(record):
            raise OSError(None, "only a part of the record was written")
        os.fdatasync(self._descriptor)
        self._log_bytes += len(record)


def read_store(content: bytes) -> dict[str, bytes]:
    """The entries of a store file. Raises `DamagedStore`, with the entries before the damage.

    A write that a crash cut short looks like damage at the end: what it would have stored was never acknowledged.
    """
    entries: dict[str, bytes] = {}
    if not content.startswith(_HEADER):
        raise DamagedStore("not a store file", entries)
    position = len(_HEADER)
    while position < len(content):
        if len(content) - position < _RECORD.size:
            raise DamagedStore("ends inside a record", entries)
        checksum, length = _RECORD.unpack_from(content, position)
        start, position = position + _RECORD.size, position + _RECORD.size + length
        payload = content[start:position]
        if length > _PAYLOAD_BYTES_MAX or len(payload) != length or zlib.crc32(payload) != checksum:
            raise DamagedStore(f"no valid record at byte {start - _RECORD.size}", entries)
        _apply(payload, entries)
    return entries


def _apply(payload: bytes, entries: dict[str, bytes]) -> None:
    try:
        record = msgpack.unpackb(payload)
    except (msgpack.UnpackException, ValueError) as error:
        raise DamagedStore("a record is not msgpack", entries) from error
    match record:
        case [str(key), bytes(value)]:
            entries[key] = value
        case [str(key), None]:
            entries.pop(key, None)
        case _:
            raise DamagedStore("a record is not [key, value]", entries)


def _encode(key: str, value: bytes | None) -> bytes:
    payload: bytes = msgpack.packb([key, value])
    return _RECORD.pack(zlib.crc32(payload), len(payload)) + payload


def _entry_bytes(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value)
