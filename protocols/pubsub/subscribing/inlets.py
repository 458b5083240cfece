"""The way of events into the feed of one subscription: in memory, or over a log on disk."""

from __future__ import annotations

import base64
import json
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from peerd.api import Log
from peerd.errors import Unavailable
from peerd.frozen import Frozen
from peerd.ids import format_id, id_from_bytes, id_to_bytes
from peerd.lib.feed import Feed, FeedLoss
from peerd.lib.group_log import charge_bytes
from peerd.lib.saved import records
from peerd.limits import KIB
from protocols.pubsub.bodies import headers_bytes
from protocols.pubsub.delivering.losses import LossReason
from protocols.pubsub.messages import EventBody
from protocols.pubsub.models import ReceivedEvent
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import Values
from protocols.pubsub.subscribing.writes import Writes

ITEM_BYTES_MAX: Final = 128 * KIB
"""No event is larger in a feed; so every feed has room for one at least."""
ITEM_OVERHEAD_BYTES: Final = 900
"""What an event takes in a feed besides its own bytes, measured."""
WAITING_MAX: Final = 1024
"""Events that wait for a blocking reader besides those in its feed: what was on its way when senders were told to
pause. Above it they are dropped, and counted."""
DURABLE_ITEMS_MAX: Final = 200_000
"""Events in the log of one durable subscription."""
DAMAGED: Final = FeedLoss(1, LossReason.DAMAGED.name.lower())
"""What stands in the place of an event that this node's disk has lost."""
CHUNK: Final = 64
CHUNKS_MAX: Final = 8
"""So many pieces of a log, of `CHUNK` records each, are kept in memory for its readers."""
_HEADER: Final = struct.Struct(">Q16sQQ")
"""When it was received (milliseconds since 1970), and the event's id: publisher, boot, number; all 0 for a mark."""
LOSS_BYTES: Final = 64
"""What a mark takes in a feed."""


def shown_event(name: EventId, event: EventBody, values: Values, is_replay: bool) -> ReceivedEvent:
    """Return an event as clients read it."""
    try:
        payload, is_base64 = event.payload.decode(), False
    except UnicodeDecodeError:
        payload, is_base64 = base64.b64encode(event.payload).decode(), True
    return ReceivedEvent(
        event=str(name),
        publisher=format_id(event.publisher.id),
        published_at=event.published_ms / 1000,
        values=values,
        payload=payload,
        is_base64=is_base64,
        content_type=event.content_type,
        retain=event.retain.decode(errors="replace"),
        is_replay=is_replay,
        headers=tuple((header.name, header.value) for header in event.headers),
    )


class TakenEvent(Frozen):
    """An event that a subscription gets."""

    id: EventId
    shown: ReceivedEvent
    size_bytes: int
    received_ms: int


def taken(name: EventId, event: EventBody, values: Values, is_replay: bool, received_ms: int) -> TakenEvent:
    """Prepare an event for the subscriptions that get it."""
    # Bytes that are no text become a third longer.
    size = len(event.values) + len(event.payload) * 4 // 3 + len(event.retain) + ITEM_OVERHEAD_BYTES
    size += headers_bytes(event.headers)
    return TakenEvent(name, shown_event(name, event, values, is_replay), size, received_ms)


class _Inlet:
    """Puts events into a feed, in order; while a reader blocks, they wait."""

    feed: Feed[ReceivedEvent]
    """Made by the class itself."""

    def __init__(self) -> None:
        self.lost = 0
        """Events that were dropped before they reached the feed."""
        self._waiting: deque[tuple[int, ReceivedEvent | FeedLoss]] = deque()
        """Events, and marks of what was lost between them, with their sizes."""

    @property
    def is_blocked(self) -> bool:
        """Whether events wait for a reader: whoever sends should pause."""
        return bool(self._waiting)

    def close(self) -> None:
        """The subscription is over: nothing of it is kept."""
        self._waiting.clear()

    def _drain(self) -> None:
        while self._waiting and self.feed.ended is None:
            size, shown = self._waiting[0]
            if not self.feed.may_push(size):
                return
            self._waiting.popleft()
            self.feed.push(shown, size)


class MemoryInlet(_Inlet):
    """For subscriptions that end with their readers."""

    def __init__(self, epoch: str, items_max: int, bytes_max: int) -> None:
        super().__init__()
        self.feed = Feed(epoch, items_max=items_max, bytes_max=max(bytes_max, ITEM_BYTES_MAX), on_writable=self._drain)

    def put(self, item: TakenEvent, writes: Writes) -> None:
        """Take in an event: there is nothing to wait for."""
        if self.feed.ended is not None:
            return
        if len(self._waiting) >= WAITING_MAX:
            self.lost += 1
            self.note_lost(FeedLoss(1, LossReason.SLOW_READER.name.lower()), writes)
            return
        self._waiting.append((item.size_bytes, item.shown))
        self._drain()

    def note_lost(self, loss: FeedLoss, writes: Writes) -> None:
        """At most so many events were dropped before they came here: readers find a mark in their place."""
        last = self._waiting[-1][1] if self._waiting else None
        if isinstance(last, FeedLoss) and (last.reason, last.by) == (loss.reason, loss.by):
            self._waiting.pop()
            loss = replace(last, count=last.count + loss.count)
        self._waiting.append((LOSS_BYTES, loss))
        self._drain()

    def expire(self, before_ms: int) -> None:
        """Do nothing: what is in memory has other bounds."""


class DurableInlet(_Inlet):
    """The same over a log: an event is in the feed, and so has a number for readers, once it is on disk.

    The record with the number ``base + n`` is the item n of the feed. ``on_failed`` is told of an event that could not
    be written: it may be taken again. ``now_ms``: milliseconds since 1970. ``read``: readers had the events up to this
    number of the feed before the node was restarted.
    """

    def __init__(
        self,
        log: Log,
        base: int,
        sid: int,
        bytes_max: int,
        on_failed: Callable[[EventId], None],
        now_ms: Callable[[], int],
        read: int = 0,
    ) -> None:
        super().__init__()
        self._now_ms = now_ms
        self.known: list[EventId] = []
        """The events that were in the log, for `take_known`."""
        self.losses: list[FeedLoss] = []
        """The marks that were in the log."""
        self._log, self._on_failed = log, on_failed
        self._store = _LogStore(log, base)
        held: dict[int, int] = {}
        for number, record in records(log, base):
            if number > log.durable:
                break
            self._note_damaged(held, number - base)
            held[number - base] = charge_bytes(record)
            loss = _loss(record)
            if loss is None:
                self.known.append(_event_id(record))
            else:
                self.losses.append(loss)
        self._note_damaged(held, log.durable - base + 1)
        self.feed = Feed(
            f"{sid:x}.{base:x}",
            items_max=DURABLE_ITEMS_MAX,
            bytes_max=max(bytes_max, ITEM_BYTES_MAX),
            last=log.durable - base,
            store=self._store,
            held=held,
            taken=read,
            on_writable=self._drain,
        )
        self._seen = log.durable
        """The number in the log of what is in the feed, or waits for it."""
        self._is_closed = False

    def _note_damaged(self, held: dict[int, int], number: int) -> None:
        """Readers find a mark in the place of each record between the last one and this that the disk has lost."""
        last = next(reversed(held), max(0, self._log.first - 1 - self._store.base))
        for missing in range(last + 1, number):
            held[missing] = 0
            self.losses.append(DAMAGED)

    def take_known(self) -> list[EventId]:
        """Return the events that were in the log at the start, oldest first, and forget them."""
        known, self.known = self.known, []
        return known

    def put(self, item: TakenEvent, writes: Writes) -> None:
        """Take in an event. While the node stops, the feed has ended, and what still comes is written all the same."""
        if self._is_closed:
            return
        body = item.shown.model_dump_json(exclude_defaults=True).encode()
        publisher = id_to_bytes(item.id.publisher)
        record = _HEADER.pack(item.received_ms, publisher, item.id.epoch, item.id.sequence) + body
        self._append(record, item.shown, writes, lambda: self._on_failed(item.id))

    def note_lost(self, loss: FeedLoss, writes: Writes) -> None:
        """See `MemoryInlet.note_lost`. A mark has a number like an event, and stays as long as one."""
        if not self._is_closed:
            body = json.dumps({"count": loss.count, "reason": loss.reason, "by": loss.by}).encode()
            self._append(_HEADER.pack(self._now_ms(), bytes(16), 0, 0) + body, loss, writes, lambda: None)

    def _append(
        self, record: bytes, shown: ReceivedEvent | FeedLoss, writes: Writes, on_failed: Callable[[], None]
    ) -> None:
        def durable(number: int) -> None:
            # An instance of the plugin that has failed since may have had writes under way: they are in the log, too.
            found = records(self._log, self._seen) if self._seen + 1 < number else ()
            late = dict(takewhile(lambda each: each[0] < number, found))
            for at in range(self._seen + 1, number):
                before = late.get(at)
                self._waiting.append((0, DAMAGED) if before is None else (charge_bytes(before), _shown(before)))
            self._seen = number
            self._waiting.append((charge_bytes(record), shown))
            self._drain()
            writes.end(is_durable=True)

        def failed(number: int, why: str) -> None:
            on_failed()
            writes.end(is_durable=False)

        writes.begin()
        try:
            self._log.append(record, durable, failed)
        except Unavailable:
            failed(0, "")

    def expire(self, before_ms: int) -> None:
        """Let go of what is older."""
        feed, base = self.feed, self._store.base
        while feed.first <= feed.last:
            found = self._log.read(base + feed.first - 1, CHUNK)
            old = [number - base for number, record in found if _HEADER.unpack_from(record)[0] < before_ms]
            if not old:
                return
            feed.expire(min(old[-1], feed.last))

    def close(self) -> None:
        """What is under way to the disk is not kept either."""
        self._is_closed = True
        super().close()


class _LogStore:
    """Implements `peerd.lib.feed.ItemStore` over a log."""

    def __init__(self, log: Log, base: int) -> None:
        self.base = base
        self._log = log
        self._chunks: OrderedDict[int, dict[int, ReceivedEvent | FeedLoss]] = OrderedDict()

    def __getitem__(self, number: int, /) -> ReceivedEvent | FeedLoss:
        chunk = self._chunks.get(number // CHUNK)
        if chunk is None or number not in chunk:
            chunk = self._read(number)
        return chunk[number]

    def __setitem__(self, number: int, value: ReceivedEvent | FeedLoss, /) -> None:
        pass  # it is in the log already

    def __delitem__(self, number: int, /) -> None:
        self._log.truncate(self.base + number)

    def _read(self, number: int) -> dict[int, ReceivedEvent | FeedLoss]:
        first = number // CHUNK * CHUNK
        # Only as far back as the reader is: what is before it was read already, or is gone.
        found = self._log.read(self.base + number - 1, first + CHUNK - number)
        chunk = {each - self.base: _shown(record) for each, record in found}
        chunk.setdefault(number, DAMAGED)
        self._chunks[number // CHUNK] = chunk
        self._chunks.move_to_end(number // CHUNK)
        if len(self._chunks) > CHUNKS_MAX:
            self._chunks.popitem(last=False)
        return chunk


def _event_id(record: bytes) -> EventId:
    _, publisher, epoch, sequence = _HEADER.unpack_from(record)
    return EventId(id_from_bytes(publisher), epoch, sequence)


def _loss(record: bytes) -> FeedLoss | None:
    """The mark that a record is; ``None`` for an event."""
    _, publisher, epoch, sequence = _HEADER.unpack_from(record)
    if any(publisher) or epoch or sequence:
        return None
    told = json.loads(record[_HEADER.size :])
    return FeedLoss(told["count"], told["reason"], told["by"])


def _shown(record: bytes) -> ReceivedEvent | FeedLoss:
    if (loss := _loss(record)) is not None:
        return loss
    return ReceivedEvent.model_validate_json(record[_HEADER.size :])
