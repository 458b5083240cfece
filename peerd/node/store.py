"""`Host.store`: the driver's store and logs bound to one plugin, whose callbacks run like its handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerd.api import KeyValues, Log
from peerd.driver import Storage

Run = Callable[..., None]
"""``run(callback, *arguments)`` runs the callback as the plugin's code, unless the plugin is out of service."""


class BoundStore:
    """Implements `peerd.api.Store`."""

    def __init__(self, storage: Storage, plugin: str, run: Run) -> None:
        self._storage = storage
        self._plugin = plugin
        self._run = run
        values: KeyValues = storage.store(plugin)
        self.get, self.put, self.delete, self.keys = values.get, values.put, values.delete, values.keys

    def log(self, name: str) -> Log:
        """See `peerd.api.Store.log`."""
        return BoundLog(self._storage.log(self._plugin, name), self._run)


class BoundLog:
    """Implements `peerd.api.Log`."""

    def __init__(self, log: Log, run: Run) -> None:
        self._log = log
        self._run = run
        self.read, self.truncate = log.read, log.truncate

    @property
    def first(self) -> int:
        """See `peerd.api.Log`."""
        return self._log.first

    @property
    def next(self) -> int:
        """See `peerd.api.Log`."""
        return self._log.next

    @property
    def durable(self) -> int:
        """See `peerd.api.Log`."""
        return self._log.durable

    @property
    def bytes_used(self) -> int:
        """See `peerd.api.Log`."""
        return self._log.bytes_used

    def append(
        self,
        record: bytes,
        on_durable: Callable[[int], None] | None = None,
        on_failed: Callable[[int, str], None] | None = None,
    ) -> int:
        """See `peerd.api.Log`."""
        return self._log.append(record, self._as_plugin(on_durable), self._as_plugin(on_failed))

    def _as_plugin(self, callback: Callable[..., None] | None) -> Callable[..., None] | None:
        if callback is None:
            return None
        wanted = callback

        def later(*arguments: Any) -> None:
            self._run(wanted, *arguments)

        return later
