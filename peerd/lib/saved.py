"""What a plugin keeps on its node's disk: rows in its store, each under a name, and the logs that rows have.

A row is a pydantic model. What changes rarely stands in it, and what comes all the time goes to its log
(`peerd.api.Log`): a row says which log is its own, and from where on the records there are its own. So a log is used
again after its row is gone, and what an earlier one has left in it counts no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from peerd.api import KeyValues, Log, Store
from peerd.errors import Unavailable
from peerd.limits import KIB, LOGS_PER_PLUGIN_MAX

READ_RECORDS: Final = 1024
"""Records that are read in one go, as far as `peerd.limits.LOG_READ_BYTES_MAX` allows."""
PLACES_BYTES: Final = 256 * KIB
"""With more in the log of places, all of them are written anew, and what came before is removed."""
_PLACES: Final = TypeAdapter(dict[str, str])


class SavedRow(BaseModel):
    """What a later version of the plugin has added to a row is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class LoggedRow(SavedRow):
    """A row with the log ``slot``, of which the records count that come after ``base``."""

    slot: Annotated[int, Field(ge=0, lt=LOGS_PER_PLUGIN_MAX)]
    base: Annotated[int, Field(ge=0)]


R = TypeVar("R", bound=BaseModel)
L = TypeVar("L", bound=LoggedRow)


class Rows(dict[str, R], Generic[R]):
    """The rows of one kind by name, as they are on disk. Methods raise `Unavailable` as the disk, changing nothing."""

    def __init__(self, store: KeyValues, prefix: str, kind: type[R]) -> None:
        super().__init__()
        self._store, self._prefix, self._kind = store, prefix, kind

    def load(self, *, keeps_damaged: bool = False) -> int:
        """Read them all; returns how many cannot be read. Those are removed, or (``keeps_damaged``) left alone."""
        damaged = 0
        for key in [key for key in sorted(self._store.keys()) if key.startswith(self._prefix)]:
            try:
                self[key.removeprefix(self._prefix)] = self._kind.model_validate_json(self._store.get(key) or b"")
            except ValueError:
                damaged += 1
                if not keeps_damaged:
                    with suppress(Unavailable):  # the disk refuses: the next start tries again
                        self._store.delete(key)
        return damaged

    def save(self, name: str, row: R) -> None:
        """Write one."""
        self._store.put(self._prefix + name, row.model_dump_json().encode())
        self[name] = row

    def change(self, name: str, **fields: Any) -> None:
        """Write some fields of one, if that changes anything."""
        row = self[name].model_copy(update=fields)
        if row != self[name]:
            self.save(name, row)

    def remove(self, name: str) -> None:
        """Forget one, if it is there."""
        if name in self:
            self._store.delete(self._prefix + name)
            del self[name]

    def drop(self, name: str) -> None:
        """Forget one, although the disk may refuse: then it is back after a restart."""
        if self.pop(name, None) is not None:
            with suppress(Unavailable):
                self._store.delete(self._prefix + name)


class LoggedRows(Rows[L]):
    """Rows that have a log each. ``log_name`` makes the name of a log of the number of its slot."""

    def __init__(self, store: Store, prefix: str, kind: type[L], log_name: str, logs_max: int) -> None:
        super().__init__(store, prefix, kind)
        self._logs, self._log_name, self._logs_max = store, log_name, logs_max

    def log_of(self, row: LoggedRow) -> tuple[Log, int]:
        """Its log, and the number behind which records are its own: numbers begin anew where the log was lost."""
        log = self._log(row.slot)
        return log, min(row.base, log.next - 1)

    def free(self) -> tuple[int, Log] | None:
        """The first slot that no row has, and its log, emptied (``base``: ``log.next - 1``); ``None``: all are used."""
        used = {row.slot for row in self.values()}
        slot = next((slot for slot in range(self._logs_max) if slot not in used), None)
        if slot is None:
            return None
        log = self._log(slot)
        log.truncate(log.next - 1)
        return slot, log

    def remove(self, name: str) -> None:
        """Forget a row, if it is there, and empty its log."""
        if (row := self.get(name)) is not None:
            super().remove(name)
            log = self._log(row.slot)
            log.truncate(log.next - 1)

    def _log(self, slot: int) -> Log:
        return self._logs.log(self._log_name.format(slot))


class ReadPlaces(dict[str, str]):
    """How far readers of named rows have come, by name. That changes all the time, so it goes to a log.

    ``begun`` tells a row of this name from earlier ones, whose places the log may still have; ``None``: there is none.
    """

    def __init__(self, store: Store, begun: Callable[[str], str | None]) -> None:
        super().__init__()
        self._store, self._begun = store, begun

    def load(self) -> None:
        """Read what the disk has. Where it refuses, all begin where they began at first."""
        with suppress(Unavailable):
            for _, record in records(self._store.log("places")):
                with suppress(ValueError):
                    for name, place in _PLACES.validate_json(record).items():
                        at, _, begun = place.partition(" ")
                        if self._begun(name) == begun:
                            self[name] = at

    def note(self, places: Mapping[str, str]) -> None:
        """Write those that have changed. Where the disk refuses, more comes twice after a restart."""
        changed = {name: at for name, at in places.items() if self.get(name) != at}
        if changed:
            with suppress(Unavailable):
                log = self._store.log("places")
                if log.bytes_used <= PLACES_BYTES:
                    log.append(self._record(changed))
                else:
                    log.append(self._record(self | changed), lambda number: log.truncate(number - 1))
                self.update(changed)

    def _record(self, places: Mapping[str, str]) -> bytes:
        return _PLACES.dump_json({name: f"{at} {self._begun(name) or ''}".rstrip() for name, at in places.items()})


def records(log: Log, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """All records behind a number, read some at a time. Raises `Unavailable` as the disk."""
    while found := log.read(after, READ_RECORDS):
        yield from found
        after = found[-1][0]
