"""A plugin's durable key-value store: its rows of one table."""

from __future__ import annotations

from typing import Final

from peerd.daemon.storage.database import Database
from peerd.daemon.storage.tables import PLUGIN_VALUES
from peerd.errors import Unavailable
from peerd.limits import MIB, STORE_KEYS_MAX, STORE_VALUE_BYTES_MAX

STORE_BYTES_MAX: Final = 64 * MIB
"""Keys and values of one plugin together."""
STORE_KEY_BYTES_MAX: Final = 256


class PluginStore:
    """The daemon's `peerd.api.Store`. Bounded: ``STORE_KEYS_MAX`` keys, ``STORE_BYTES_MAX`` bytes in all.

    A change costs one sync of the disk, and its own size in pages of 4 KiB; after one that failed nothing has changed.
    Values stay on disk, and only keys and sizes are in memory.
    """

    def __init__(self, database: Database, plugin: str) -> None:
        self._database = database
        self._plugin = plugin
        self._sizes = {
            str(key): _entry_bytes(str(key), bytes(value)) if isinstance(value, bytes) else 0
            for _, key, value in database.rows(PLUGIN_VALUES, (plugin,))
        }
        self._bytes = sum(self._sizes.values())

    @property
    def bytes_used(self) -> int:
        """Bytes of all keys and values."""
        return self._bytes

    def get(self, key: str) -> bytes | None:
        """The value, or ``None`` when there is none. Raises `Unavailable` when the disk refuses."""
        if key not in self._sizes:
            return None
        rows = self._database.rows(PLUGIN_VALUES, (self._plugin, key))
        return next((value for _, _, value in rows if isinstance(value, bytes)), None)

    def keys(self) -> list[str]:
        """All keys, sorted."""
        return sorted(self._sizes)

    def put(self, key: str, value: bytes) -> None:
        """Set a value, durably. Raises `Unavailable` over a limit or when the disk refuses: nothing changed then."""
        if len(key.encode()) > STORE_KEY_BYTES_MAX or len(value) > STORE_VALUE_BYTES_MAX:
            raise Unavailable(
                f"store entry too large: a key has at most {STORE_KEY_BYTES_MAX} bytes, a value {STORE_VALUE_BYTES_MAX}"
            )
        size, before = _entry_bytes(key, value), self._sizes.get(key)
        total = self._bytes + size - (before or 0)
        if total > STORE_BYTES_MAX or (before is None and len(self._sizes) >= STORE_KEYS_MAX):
            raise Unavailable(f"store full: at most {STORE_KEYS_MAX} keys and {STORE_BYTES_MAX} bytes")
        self._database.change(PLUGIN_VALUES, put=[(self._plugin, key, bytes(value))])
        self._sizes[key], self._bytes = size, total

    def delete(self, key: str) -> None:
        """Remove a value, durably; nothing happens when there is none. Raises `Unavailable` as `put`."""
        if key in self._sizes:
            self._database.change(PLUGIN_VALUES, removed=[(self._plugin, key)])
            self._bytes -= self._sizes.pop(key)


def _entry_bytes(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value)
