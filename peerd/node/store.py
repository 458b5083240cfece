"""`Host.store`: the driver's store and logs bound to one plugin, whose callbacks run like its handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerd.api import Files, KeyValues, Log, Scratch, Value
from peerd.driver import Storage
from peerd.errors import Unavailable

Run = Callable[..., None]
"""``run(callback, *arguments)`` runs the callback as the plugin's code, unless the plugin is out of service."""


class BoundStore:
    """Implements `peerd.api.Store`."""

    def __init__(self, storage: Storage, plugin: str, run: Run) -> None:
        self._storage = storage
        self._plugin = plugin
        self._run = run
        self._files: BoundFiles | None = None
        values: KeyValues = storage.store(plugin)
        self.get, self.put, self.delete, self.keys = values.get, values.put, values.delete, values.keys

    def log(self, name: str) -> Log:
        """See `peerd.api.Store.log`."""
        return BoundLog(self._storage.log(self._plugin, name), self._run)

    def scratch(self) -> Scratch:
        """See `peerd.api.Store.scratch`."""
        return self._storage.scratch()

    def files(self) -> Files:
        """See `peerd.api.Store.files`."""
        if self._files is None:
            self._files = BoundFiles(self._storage.files(self._plugin), self._run)
        return self._files


class BoundFiles:
    """Implements `peerd.api.Files`."""

    def __init__(self, files: Files, run: Run) -> None:
        self._files = files
        self._run = run
        self.sizes, self.delete = files.sizes, files.delete

    def write(
        self, name: str, offset: int, piece: Value, done: Callable[[], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """See `peerd.api.Files`."""
        self._files.write(name, offset, piece, lambda: self._run(done), lambda why: self._run(failed, why))

    def read(
        self, name: str, offset: int, size: int, done: Callable[[Value], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """See `peerd.api.Files`."""
        self._files.read(name, offset, size, lambda piece: self._run(done, piece), lambda why: self._run(failed, why))

    def rename(self, name: str, to: str, done: Callable[[], None], failed: Callable[[Unavailable], None]) -> None:
        """See `peerd.api.Files`."""
        self._files.rename(name, to, lambda: self._run(done), lambda why: self._run(failed, why))


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
