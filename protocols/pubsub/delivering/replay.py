"""What a new subscription asks for of the past: events since a time, and the last values of keys.

It is read from the history of the leaf's node a little at a time, and never faster than the subscriber takes it.
Members of groups get nothing of the past: each event is for one of them, and which one has been decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from peerd.api import Host, Part, on_timer
from peerd.errors import Unavailable
from protocols.pubsub.bodies import id_of
from protocols.pubsub.delivering.deliverer import Deliverer
from protocols.pubsub.delivering.history import EventHistory, Past
from protocols.pubsub.delivering.items import PendingDelivery
from protocols.pubsub.messages import SINCE_RETAINED, PastForgotten, SubObject
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.ports import LeafCells, Schemas, SchemaView
from protocols.pubsub.subscribing.local import LocalSubscriptions

REPLAYS_MAX: Final = 256
"""So many subscriptions are given their past at a time; the oldest of more is given up, and counted."""
STEP: Final = 256
"""Events that are looked at for one subscription in one step."""
STEP_S: Final = 0.05
_STARTED: Final = "started"


@dataclass(slots=True)
class _Replay:
    tree: Tree
    cell: int
    sub: SubObject
    key: SubscriptionKey
    past: Iterator[Past]


class Replays(Part):
    """The replays under way."""

    def __init__(
        self,
        host: Host,
        schemas: Schemas,
        leaves: LeafCells,
        deliverer: Deliverer,
        history: EventHistory,
        subscribers: LocalSubscriptions,
    ) -> None:
        self._host, self._schemas, self._leaves, self._history = host, schemas, leaves, history
        self._deliverer, self._ledger, self._subscribers = deliverer, deliverer.ledger, subscribers
        self._begun_ms = round(host.wall_time() * 1000) if host.store.get(_STARTED) else 0
        """Nothing is remembered from before the last start. Before the first one there was nothing."""
        self._replays: dict[SubscriptionKey, _Replay] = {}
        self._is_stepping = False

    def start(self) -> None:
        """Note for the next start that there was one."""
        with suppress(Unavailable):  # then the next start takes itself for the first one
            self._host.store.put(_STARTED, b"1")

    def add(self, tree: Tree, cell: int, sub: SubObject) -> None:
        """Begin to deliver what a subscription asks for; a replay for the same one begins again."""
        key = sub.key
        self._replays.pop(key, None)
        if sub.since_ms != SINCE_RETAINED and not self._reaches_to(tree.schema, sub.since_ms):
            self._tell_forgotten(tree.schema, sub)
        while len(self._replays) >= REPLAYS_MAX:
            del self._replays[next(iter(self._replays))]
            self._host.count("peerd_pubsub_replays_given_up_total")
        self._replays[key] = _Replay(tree, cell, sub, key, self._past(tree.schema, sub.since_ms))
        if not self._is_stepping:
            self._is_stepping = True
            self._host.set_timer("pubsub_replay", STEP_S)

    def _reaches_to(self, schema: str, since_ms: int) -> bool:
        """Whether all that has come to this node since then is remembered."""
        self._history.forget_old(self._host.now())
        return since_ms >= self._begun_ms and since_ms > self._history.forgotten_ms(schema)

    def _tell_forgotten(self, schema: str, sub: SubObject) -> None:
        if sub.subscriber.id == self._host.id:
            self._subscribers.note_past(schema, sub.sid, self._host.id)
        else:
            self._host.send(sub.subscriber, PastForgotten(schema, sub.sid))

    def _past(self, schema: str, since_ms: int) -> Iterator[Past]:
        first, end = self._history.bounds
        is_retained_only = since_ms == SINCE_RETAINED
        for past in list(self._history.retained(schema)):
            recent = self._history.find(id_of(past.event))
            if is_retained_only or (recent is None and past.event.published_ms >= since_ms):
                yield past
        for number in range(end if is_retained_only else first, end):
            past_event = self._history.get(number)
            if past_event and past_event.schema == schema and past_event.event.published_ms >= since_ms:
                yield past_event

    @on_timer("pubsub_replay")
    def _step(self, payload: object) -> None:
        self._is_stepping = False
        for replay in list(self._replays.values()):
            schema = self._schemas.get(replay.tree.schema)
            if schema is None or not self._go_on(schema, replay):
                del self._replays[replay.key]
        self._deliverer.flush()
        if self._replays:
            self._is_stepping = True
            self._host.set_timer("pubsub_replay", STEP_S)

    def _go_on(self, schema: SchemaView, replay: _Replay) -> bool:
        """Deliver some more; whether there may be more."""
        for _ in range(STEP):
            if not self._deliverer.has_room(replay.key.subscriber):
                return True
            past = next(replay.past, None)
            if past is None:
                return False
            self._deliver(schema, replay, past)
        return True

    def _deliver(self, schema: SchemaView, replay: _Replay, past: Past) -> None:
        values = schema.decode_values(past.event.values)
        pieces = self._leaves.match(schema, [(replay.tree.attribute, replay.cell)], values)
        if all(piece.key != replay.key for piece in pieces):
            return
        event_id = id_of(past.event)
        item = PendingDelivery(past.event, event_id, schema, True, (), (replay.key,), replay.sub.sid)
        self._ledger.matched(event_id, 0, 1)
        self._deliverer.deliver([(replay.sub.subscriber, item)])
