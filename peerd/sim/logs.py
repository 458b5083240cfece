"""A plugin's logs on a simulated disk: a commit costs time, and what it has not reached is lost in a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from peerd.lib.group_log import GroupLog

LOG_SYNC_S: Final = 0.005
"""How long making bytes durable takes; disks of data centres take 0.1 ms to 20 ms."""

Later = Callable[[float, Callable[[], None]], None]
"""Calls back after so many virtual seconds, unless the node has died by then."""


@dataclass(slots=True)
class LogDisk:
    """The durable part of one log; it outlives the incarnations of its node."""

    records: dict[int, bytes] = field(default_factory=dict)
    first: int = 1
    next: int = 1


class LogOnDisk:
    """Implements `peerd.lib.group_log.LogMedium` for one incarnation."""

    def __init__(self, disk: LogDisk, later: Later) -> None:
        self._disk = disk
        self._later = later

    def write(
        self,
        records: list[tuple[int, bytes]],
        first: int,
        done: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Make all of it durable after `LOG_SYNC_S`, or nothing if the node dies before."""

        def synced() -> None:
            self.write_now(records, first)
            done()

        self._later(LOG_SYNC_S, synced)

    def write_now(self, records: list[tuple[int, bytes]], first: int) -> None:
        """Write at once, in no virtual time."""
        disk = self._disk
        disk.records.update(records)
        disk.next = max([disk.next, first, *(number + 1 for number, _ in records)])
        for number in range(disk.first, first):
            disk.records.pop(number, None)
        disk.first = first

    def records(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Read records from memory, without those that a test has damaged."""
        held = self._disk.records
        return ((number, held[number]) for number in range(first, last + 1) if number in held)


def open_log(disk: LogDisk, later: Later) -> GroupLog:
    """Open a log for a new incarnation."""
    sizes = {number: len(record) for number, record in disk.records.items()}
    return GroupLog(LogOnDisk(disk, later), disk.first, disk.next, sizes)
