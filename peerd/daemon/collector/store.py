"""The events of many nodes in one directory of event files: each event once, and on the disk before it is acknowledged.

A sink sends again what was not acknowledged, and numbers its events, so an event is new when its number is higher than
the last one of its node and boot. These numbers are in a file that is written when an event file is finished; after a
crash the event files that are younger than it say the rest. A ``sink.dropped`` line has the number of an event that was
lost, which may be higher than of those that come after it: such lines are counted by themselves.

Synchronous, for one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from peerd.errors import ConfigError, ProtocolError, Unavailable
from peerd.ids import ID_BYTES
from peerd.system.durable_files import write_atomically
from peerd.telemetry.event_files import EventFiles, FileLimits

COLLECTOR_ID: Final = "0" * 8
"""In place of a node's id in the names of files: they have the events of all nodes."""
STATE_FILE: Final = ".collector.json"
LOCK_FILE: Final = ".collector.lock"
NODES_MAX: Final = 1 << 16
"""Nodes of which events are taken; each takes some 200 bytes of memory."""
NUMBER_MAX: Final = (1 << 63) - 1
DROPPED: Final = "sink.dropped"
_NAME: Final = re.compile(rf"events-{COLLECTOR_ID}-(\d+)-(\d+)\.ndjson(\.part|\.gz)?")


class EventLine(msgspec.Struct, frozen=True):
    """What a collector reads of an event."""

    node: str
    boot: int
    id: int
    event: str


class StoredUpTo(msgspec.Struct):
    """Of one node: its latest boot, and the numbers of the last event and of the last ``sink.dropped`` line in it."""

    boot: int
    last: int = 0
    dropped: int = 0

    def is_new(self, line: EventLine) -> bool:
        """Whether this line is not stored yet."""
        if line.boot != self.boot:
            return line.boot > self.boot
        return line.id > (self.dropped if line.event == DROPPED else self.last)

    def note(self, line: EventLine) -> None:
        """It is stored."""
        if line.boot > self.boot:
            self.boot, self.last, self.dropped = line.boot, 0, 0
        if line.boot == self.boot and line.event == DROPPED:
            self.dropped = max(self.dropped, line.id)
        elif line.boot == self.boot:
            self.last = max(self.last, line.id)


class StoreState(msgspec.Struct):
    """What is in `STATE_FILE`. ``file``: the last one (start, number) whose events are all in ``positions``."""

    starts: int = 0
    file: tuple[int, int] = (0, 0)
    positions: dict[str, StoredUpTo] = {}


class CollectorStore:
    """Raises `ConfigError` for a directory that cannot be used, `Unavailable` when another collector uses it."""

    def __init__(
        self, directory: Path, limits: FileLimits | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._state = self._recovered()
                self._state.starts += 1
                boot = self._state.starts
                self._files = EventFiles(directory, COLLECTOR_ID, boot=boot, limits=limits, wall_clock=wall_clock)
                self._save()
            except BaseException:
                os.close(self._lock)
                raise
        except BlockingIOError:
            raise Unavailable(f"another collector writes into {directory}") from None
        except OSError as error:
            raise ConfigError(f"cannot be used: {error.strerror}", file=str(directory)) from error

    def last(self, node: str, boot: int) -> int:
        """The number of the last event of a node's boot that is on the disk."""
        position = self._state.positions.get(node)
        return position.last if position is not None and position.boot == boot else 0

    def store(self, batches: Iterable[tuple[str | None, bytes]]) -> list[int | ProtocolError]:
        """Write what is new of these batches to the disk; returns how many lines that were of each.

        A batch is lines, and the node that may send them (``None``: any may). One that is malformed is not stored at
        all, and has its error in the list. Raises ``OSError`` when the disk refuses, and nothing is stored then; and
        `Unavailable` when it has failed, and this store has to be opened anew.
        """
        outcomes: list[int | ProtocolError] = []
        taken: list[bytes] = []
        noted: dict[str, StoredUpTo] = {}
        """Positions as they are once this is written."""
        for sender, data in batches:
            try:
                new = self._new_of(sender, data, noted)
            except ProtocolError as error:
                outcomes.append(error)
                continue
            taken += new
            outcomes.append(len(new))
        if taken:
            self._files.put(taken)
            try:
                self._files.sync()
            except OSError as error:  # nobody can know what of it is on the disk but who reads it again
                raise Unavailable(f"the disk of {self.directory} fails: {error.strerror}; start again") from error
            self._state.positions |= noted
            if self._files.current != self._state.file:
                self._save()
        return outcomes

    def close(self) -> None:
        """Finish the current file. Raises ``OSError``."""
        self._files.close()
        self._save()
        os.close(self._lock)

    def _new_of(self, sender: str | None, data: bytes, noted: dict[str, StoredUpTo]) -> list[bytes]:
        new, positions = [], dict[str, StoredUpTo]()
        for line in data.splitlines(keepends=True):
            event = read_line(line)
            if sender is not None and event.node != sender:
                raise ProtocolError("forged", f"{sender} sent an event of {event.node}")
            position = positions.get(event.node)
            if position is None:
                known = noted.get(event.node) or self._state.positions.get(event.node)
                if known is None and len(self._state.positions) + len(noted) >= NODES_MAX:
                    raise ProtocolError("full", f"events of {NODES_MAX} nodes are stored here, and of no more")
                position = StoredUpTo(event.boot) if known is None else msgspec.structs.replace(known)
                positions[event.node] = position
            if position.is_new(event):
                position.note(event)
                new.append(line)
        noted |= positions
        return new

    def _save(self) -> None:
        number = self._files.current
        # The current file is not whole yet: it is read again after a crash.
        self._state.file = number
        before = StoreState(self._state.starts, (number[0], number[1] - 1), self._state.positions)
        write_atomically(self.directory / STATE_FILE, msgspec.json.encode(before), 0o640)

    def _recovered(self) -> StoreState:
        """Positions as they were saved, and as the younger event files say."""
        path = self.directory / STATE_FILE
        try:
            state = msgspec.json.decode(path.read_bytes(), type=StoreState)
        except FileNotFoundError:
            state = StoreState()
        except ValueError as error:
            raise ConfigError(
                f"is damaged ({error}); remove it, and all event files are read", file=str(path)
            ) from error
        for number, file in sorted(self._younger(state.file)):
            state.starts = max(state.starts, number[0])
            for line in _whole_lines(file):
                with contextlib.suppress(ProtocolError):  # the disk has spoilt it; whoever reads the file counts it
                    event = read_line(line)
                    state.positions.setdefault(event.node, StoredUpTo(event.boot)).note(event)
        return state

    def _younger(self, than: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Path]]:
        for path in self.directory.glob(f"dt=*/hr=*/events-{COLLECTOR_ID}-*"):
            name = _NAME.fullmatch(path.name)
            if name is not None and (number := (int(name[1]), int(name[2]))) > than:
                yield number, path


def read_line(line: bytes) -> EventLine:
    """What one line says of itself. Raises `ProtocolError` for what is no event."""
    try:
        event = _decoder.decode(line)
    except ValueError as error:  # msgspec's own are ValueErrors
        raise ProtocolError("malformed", f"no event: {error}") from error
    is_sane = 0 <= event.boot <= NUMBER_MAX and 0 < event.id <= NUMBER_MAX and len(event.node) == 2 * ID_BYTES
    if not (is_sane and line.endswith(b"\n")):
        raise ProtocolError("malformed", "no whole event")
    return event


_decoder: Final = msgspec.json.Decoder(EventLine)


def _whole_lines(file: Path) -> list[bytes]:
    """The lines of an event file. What a crash has left of a line is cut off: its sink sends it again."""
    if file.suffix == ".gz":
        return gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(file, len(whole))
    return whole.splitlines(keepends=True)
