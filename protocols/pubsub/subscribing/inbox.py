"""Events that leaves deliver to this node: batches in order, each event to whom it is for, and the answers.

A stream's batches are taken one after the other; what comes early is not taken, and the sender sends from there again.
A stream that this node does not know and that does not begin with 1 was begun before this node started anew: it is
answered with 0, and the sender begins another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.bodies import id_of, is_proven
from protocols.pubsub.messages import (
    EVENTS_MAX,
    DeliveredEvent,
    DeliveryAnswer,
    DeliveryNote,
    EventBody,
    EventDelivery,
    EventName,
    PastForgotten,
)
from protocols.pubsub.ports import Schemas, SchemaView
from protocols.pubsub.subscribing.local import SCHEMA_PAUSE_MS, LocalSubscriptions

STREAMS_MAX: Final = 4096
"""Streams that are remembered; the one that was unused for longest is forgotten, and its sender begins another."""
NOTES_AFTER_S: Final = 0.05
"""What came by multicast is noted to its leaf together, after so long."""
NOTED_LEAVES_MAX: Final = 256


@dataclass(slots=True)
class _Stream:
    """How far a stream has come."""

    accepted: int = 0
    """The number of the last batch whose events were given to subscriptions."""
    durable: int = 0
    """The number up to which all events are also on disk, where that was asked for."""
    written: set[int] = field(default_factory=set)
    """Batches that are on disk before one that came earlier is."""
    tries: int = 0
    """Grows when a write has failed: what earlier writes say is of no interest then."""


class Inbox(Part):
    """Takes deliveries."""

    def __init__(self, host: Host, schemas: Schemas, local: LocalSubscriptions) -> None:
        self._host, self._schemas, self._local = host, schemas, local
        self._streams: OrderedDict[tuple[NodeId, int], _Stream] = OrderedDict()
        self._fetching: set[str] = set()
        self._notes: dict[tuple[str, PeerRef], list[EventName]] = {}
        self._is_noting = False

    @handles(PastForgotten)
    def on_past_forgotten(self, message: PastForgotten, source: PeerRef) -> None:
        """Tell the readers of a subscription. Whoever knows its number may say so, once: it is a hint."""
        self._local.note_past(message.schema, message.sid, source.id)

    @handles(EventDelivery)
    def on_event_delivery(self, message: EventDelivery, source: PeerRef) -> DeliveryAnswer | None:
        """Take a batch, if it is the next one of its stream. What has to be on disk first is not answered yet."""
        if message.number == 0:
            raise ProtocolError("batch_number", "the batches of a stream are numbered from 1 on")
        stream = self._stream(source, message)
        if stream is None:
            return DeliveryAnswer(0, stream=message.stream)
        if message.number != stream.accepted + 1:
            is_being_written = stream.durable < message.number <= stream.accepted
            return None if is_being_written else self._answer(stream, message)
        schema, pause_ms = self._ready_for(message.schema)
        if pause_ms:
            return self._answer(stream, message, pause_ms)
        return self._accept(stream, message, source, schema)

    def received_group(self, schema: str, event: EventBody, chosen: Sequence[int], leaf: PeerRef) -> None:
        """Take an event that came by multicast, and note that to its leaf, which sends it directly otherwise."""
        view, pause_ms = self._ready_for(schema)
        if pause_ms or view is None:
            return
        writes = self._local.new_writes()
        if self._take(view, event, chosen, is_replay=False):
            writes.when_done(lambda is_durable: self._note(schema, event, leaf) if is_durable else None)

    @on_timer("delivery_notes")
    def on_delivery_notes(self, payload: None) -> None:
        """Tell leaves what has come by multicast."""
        self._is_noting = False
        notes, self._notes = self._notes, {}
        for (schema, leaf), names in notes.items():
            self._host.send(leaf, DeliveryNote(schema, tuple(names)))

    # Inside

    def _stream(self, source: PeerRef, message: EventDelivery) -> _Stream | None:
        key = source.id, message.stream
        stream = self._streams.get(key)
        if stream is None:
            if message.number != 1:
                return None
            stream = self._streams[key] = _Stream()
            if len(self._streams) > STREAMS_MAX:
                self._streams.popitem(last=False)
        self._streams.move_to_end(key)
        return stream

    def _ready_for(self, schema: str) -> tuple[SchemaView | None, int]:
        """Return the schema (``None``: nobody here wants its events), and for how long the sender has to wait."""
        if pause_ms := self._local.must_pause(schema):
            return None, pause_ms
        if not self._local.has(schema):
            return None, 0
        view = self._schemas.get(schema)
        if view is not None:
            return view, 0
        if schema not in self._fetching:
            self._fetching.add(schema)
            self._schemas.fetch(schema, lambda found, why_not: self._fetching.discard(schema))
        return None, SCHEMA_PAUSE_MS

    def _accept(
        self, stream: _Stream, message: EventDelivery, source: PeerRef, schema: SchemaView | None
    ) -> DeliveryAnswer | None:
        number, tries = message.number, stream.tries
        writes = self._local.new_writes()
        unwanted = []
        self._local.note_lost(message.schema, message.lost, source.id)
        for index, delivery in enumerate(message.deliveries):
            if not self._is_wanted(message.schema, schema, delivery):
                unwanted.append(index)
        stream.accepted = number
        if writes.is_durable and stream.durable == number - 1:
            stream.durable = number
            return self._answer(stream, message, 0, unwanted)
        writes.when_done(lambda is_durable: self._written(stream, message, source, is_durable, tries))
        return None

    def _is_wanted(self, name: str, schema: SchemaView | None, delivery: DeliveredEvent) -> bool:
        if schema is None:
            return self._local.note_unread(name)
        return self._take(schema, delivery.event, delivery.chosen, delivery.is_replay)

    def _written(self, stream: _Stream, message: EventDelivery, source: PeerRef, is_durable: bool, tries: int) -> None:
        """The events of a batch are on disk, or the disk has refused: then they are taken again."""
        if tries != stream.tries:
            return
        if not is_durable:
            stream.tries += 1
            stream.accepted = stream.durable
            stream.written.clear()
            return
        stream.written.add(message.number)
        before = stream.durable
        while stream.durable + 1 in stream.written:
            stream.durable += 1
            stream.written.discard(stream.durable)
        if stream.durable > before:
            self._host.send(source, self._answer(stream, message))

    def _answer(
        self, stream: _Stream, message: EventDelivery, pause_ms: int = 0, unwanted: Sequence[int] = ()
    ) -> DeliveryAnswer:
        return DeliveryAnswer(stream.durable, pause_ms, tuple(unwanted), message.stream)

    def _take(self, schema: SchemaView, event: EventBody, chosen: Sequence[int], is_replay: bool) -> bool:
        """Give an event to the subscriptions that want it; whether there is any."""
        if not is_proven(self._host, schema, event):  # also where its name was taken before: it may have other values
            # Who delivers it may have checked it before its publisher was denied, so the event is all that is refused.
            self._host.count("peerd_pubsub_received_total", outcome="not_proven")
            return True
        try:
            values = schema.decode_values(event.values)
        except ProtocolError:
            # Its attributes may be those of a later version of the schema than this node knows.
            self._host.count("peerd_pubsub_received_total", outcome="not_readable")
            return True
        is_wanted = self._local.take(schema, event, values, chosen, is_replay)
        if not is_wanted:
            self._host.count("peerd_pubsub_received_total", outcome="unwanted")
        return is_wanted

    def _note(self, schema: str, event: EventBody, leaf: PeerRef) -> None:
        if not self._is_noting:
            self._is_noting = True
            self._host.set_timer("delivery_notes", NOTES_AFTER_S)
        if len(self._notes) >= NOTED_LEAVES_MAX and (schema, leaf) not in self._notes:
            return  # the leaf sends it again, and hears then that it was taken
        names = self._notes.setdefault((schema, leaf), [])
        names.append(EventName(*id_of(event)))
        if len(names) == EVENTS_MAX:
            self._host.send(leaf, DeliveryNote(schema, tuple(names)))
            del self._notes[schema, leaf]
