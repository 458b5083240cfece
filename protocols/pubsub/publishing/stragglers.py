"""Events of this node whose client has been told that the outcome is unknown, and that are still tried.

A leaf that says nothing for ``publish_timeout`` may be back later: its machine was too busy, or the network was cut.
Its subscribers would miss the event, and nobody could tell them. So it goes on being tried at the cells that have not
answered, ever less often, for `LATE_S`. Nothing waits for it. A leaf that has had it answers again, and does not match
it twice.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from peerd.messages import PeerRef
from protocols.pubsub.messages import EVENTS_BYTES_MAX, EVENTS_MAX
from protocols.pubsub.publishing.coverage import Coverage
from protocols.pubsub.publishing.outcomes import PendingPublish
from protocols.pubsub.publishing.spread import AttributeCell, Batch

LATE_S: Final = 600.0
"""So long after its client was told, an event is tried."""
LATE_MAX: Final = 1024
LATE_BYTES_MAX: Final = 2 << 20
"""Of more events, or of more bytes, the oldest are not tried any more."""
PAUSE_MIN_S: Final = 5.0
PAUSE_MAX_S: Final = 60.0
"""Between two tries: it doubles, and begins anew when a leaf answers."""
CELLS_AT_ONCE: Final = 256
"""Most cells that events are sent to in one try; the others have their turn in the next."""
ATTEMPT: Final = 1
"""From this try on, nodes on the way trust no table."""


@dataclass(slots=True)
class _Late:
    event: PendingPublish
    until_s: float

    @property
    def coverage(self) -> Coverage:
        return self.event.coverage


class Stragglers:
    """The events, oldest first. ``send`` gets what is to be sent; ``lost`` is told how many are given up for good."""

    def __init__(self, send: Callable[[Batch, list[AttributeCell]], None], lost: Callable[[int], None]) -> None:
        self._send, self._lost = send, lost
        self._late: OrderedDict[int, _Late] = OrderedDict()
        self._bytes = 0
        self._pause_s = PAUSE_MIN_S
        self._round = 0
        self.due_s = math.inf
        """When `look` has to be called."""

    def __len__(self) -> int:
        return len(self._late)

    def __contains__(self, number: int) -> bool:
        return number in self._late

    def add(self, event: PendingPublish, now: float) -> None:
        """An event's client has been told, and these leaves have not answered."""
        self._late[event.number] = _Late(event, now + LATE_S)
        self._bytes += event.bytes
        while len(self._late) > LATE_MAX or self._bytes > LATE_BYTES_MAX:
            self._remove(next(iter(self._late)))
            self._lost(1)
        if self.due_s == math.inf:
            self._pause_s = PAUSE_MIN_S
            self.due_s = now + self._pause_s

    def covered(self, schema: str, attribute: int, leaf: int, numbers: Iterable[int], now: float) -> None:
        """A leaf has these events, among others."""
        for number in numbers:
            late = self._late.get(number)
            if late is None or late.event.schema.name != schema or not late.coverage.cover(attribute, leaf).gone:
                continue
            if late.coverage.is_complete:
                self._remove(number)
            if self._late and self._pause_s > PAUSE_MIN_S:  # somebody is there again
                self._pause_s = PAUSE_MIN_S
                self.due_s = min(self.due_s, now + self._pause_s)

    def look(self, now: float, publisher: PeerRef) -> None:
        """Try what is due, and give up what has been tried for long enough."""
        if now < self.due_s:
            return
        over = [number for number, late in self._late.items() if late.until_s <= now]
        for number in over:
            self._remove(number)
        if over:
            self._lost(len(over))
        self._round += 1
        for batch, places in self._batches(publisher):
            self._send(batch, places)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self.due_s = now + self._pause_s if self._late else math.inf

    def _batches(self, publisher: PeerRef) -> list[tuple[Batch, list[AttributeCell]]]:
        """What is sent now: events with the same cells together."""
        by_cell: dict[tuple[str, int, int], list[PendingPublish]] = {}
        for number in sorted(self._late):  # a message has events in their publisher's order, however they came here
            late = self._late[number]
            for attribute in sorted(late.coverage.outstanding):
                for cell in sorted(late.coverage.outstanding[attribute]):
                    by_cell.setdefault((late.event.schema.name, attribute, cell), []).append(late.event)
        groups: dict[tuple[str, tuple[int, ...]], list[AttributeCell]] = {}
        start = self._round * CELLS_AT_ONCE % max(1, len(by_cell)) if len(by_cell) > CELLS_AT_ONCE else 0
        cells = [*islice(by_cell, start, None), *islice(by_cell, start)][:CELLS_AT_ONCE]
        for schema, attribute, cell in cells:
            numbers = tuple(_fitting(by_cell[schema, attribute, cell]))
            groups.setdefault((schema, numbers), []).append((attribute, cell))
        attempt = min(ATTEMPT + self._round, 255)
        found = []
        for (schema, numbers), places in groups.items():
            events = [self._late[number].event for number in numbers]
            copies = max(event.copies for event in events)
            bodies = tuple(event.body for event in events)
            found.append((Batch(schema, publisher, bodies, copies, attempt), places))
        return found

    def _remove(self, number: int) -> None:
        self._bytes -= self._late.pop(number).event.bytes
        if not self._late:
            self.due_s = math.inf

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._late) <= LATE_MAX
        assert self._bytes == sum(late.event.bytes for late in self._late.values()) <= LATE_BYTES_MAX
        assert bool(self._late) == (self.due_s < math.inf)
        assert all(not late.coverage.is_complete for late in self._late.values())


def _fitting(events: Sequence[PendingPublish]) -> Iterable[int]:
    """As many of these events, from the first on, as fit into one message."""
    size = 0
    for event in events[:EVENTS_MAX]:
        size += event.bytes
        if size > EVENTS_BYTES_MAX:
            return
        yield event.number
