"""A node that only subscribes: the subscriber's parts on a fake host, with a schema, an index and leaves made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from peerd.api import Host, Plugin, Rng
from peerd.errors import ProtocolError
from peerd.lib.feed import FeedItem, Policy
from peerd.lib.filter import Node, Schema, covers, matcher, parse, write
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.bodies import event_statement
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.events import EVENTS
from protocols.pubsub.matching.index import LeafIndex
from protocols.pubsub.messages import (
    MESSAGES,
    Confirm,
    DeliveredEvent,
    DeliveryAnswer,
    EndSub,
    Established,
    EventBody,
    EventDelivery,
    InsertAnswer,
    Kept,
    PieceStatus,
    ProbeSub,
    SubObject,
)
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest, SubscriptionView
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.ports import PiecePoint, SchemaView, Values
from protocols.pubsub.publishing.probing import LevelGuide
from protocols.pubsub.subscribing.inbox import Inbox
from protocols.pubsub.subscribing.installer import Installer
from protocols.pubsub.subscribing.local import LocalSubscriptions
from protocols.pubsub.subscribing.subscription import Told
from protocols.pubsub.subscribing.subscriptions import METRICS, Subscriptions
from protocols.pubsub.tree.cells import Target, cell_at

OWN = 1
LEAF = peer(9)
PUBLISHER = peer(7)
STOCKS = "stocks"
NAMES = {"price": "int", "volume": "int"}


def packed(values: Mapping[str, Any]) -> bytes:
    """Values as `PlainSchema` has them on the wire."""
    return bytes(msgpack.packb(dict(values)))


class PlainSchema:
    """Implements `protocols.pubsub.ports.SchemaView`, for numbers only."""

    def __init__(self, name: str = STOCKS, version: int = 1, is_signed: bool = False) -> None:
        self.name, self.version, self.is_signed = name, version, is_signed
        self._types = Schema.read(NAMES)

    def targets(self, values: Values) -> Mapping[int, Target]:
        return {}

    def pack(self, values: Values) -> bytes:
        return packed(values)

    def decode_values(self, data: bytes) -> Values:
        try:
            values = msgpack.unpackb(data)
        except ValueError as error:
            raise ProtocolError("event_values", str(error)) from error
        if not isinstance(values, dict):
            raise ProtocolError("event_values", "not a map")
        return values

    def parse_filter(self, condition: Any, /) -> Node:
        return parse(condition, schema=self._types)

    def covers(self, wide: Node, narrow: Node, /) -> bool:
        return covers(wide, narrow)

    def visible(self, values: Values, /) -> Values:
        return values


class PlainSchemas:
    """Implements `protocols.pubsub.ports.Schemas`; the test says what is known, and what fetching answers."""

    def __init__(self, *known: PlainSchema) -> None:
        self.known = {schema.name: schema for schema in known}
        self.is_reachable = True
        self.is_silent = False

    def get(self, name: str) -> SchemaView | None:
        return self.known.get(name)

    def written(self, name: str) -> str:
        return ""

    def remember(self, text: str) -> None:
        """Nothing is written."""

    def look_again(self, name: str, on_done: Callable[[bool], None]) -> None:
        """There is no later version."""
        on_done(False)

    def fetch(self, name: str, on_done: Callable[[SchemaView | None, str], None]) -> None:
        found = self.known.get(name) if self.is_reachable else None
        if not self.is_silent:
            on_done(found, "" if found else f"nobody has declared a schema {name}")


class PlainIndex(LeafIndex):
    """Tries all filters."""

    def __init__(self, schema: SchemaView) -> None:
        self._schema = schema
        self.failed: dict[str, str] = {}
        self._tried: dict[SubscriptionKey, tuple[SubObject, Callable[[Any], bool]]] = {}

    def add(self, key: SubscriptionKey, cell: tuple[int, int], sub: SubObject) -> None:
        self._tried[key] = sub, matcher(self._schema.parse_filter(sub.filter))

    def remove(self, key: SubscriptionKey, cell: tuple[int, int]) -> None:
        del self._tried[key]

    def match(self, values: Values, cells: Sequence[tuple[int, int]]) -> list[SubObject]:
        return [sub for sub, matches in self._tried.values() if matches(values)]


def points_of(schema: SchemaView, node: Node, group: str) -> list[PiecePoint]:
    """One point for each word of the filter that is a number: enough to have one piece or several."""
    numbers = [int(word) for word in write(node).replace("(", " ").replace(")", " ").split() if word.isdigit()]
    return [PiecePoint(1, number << 20, (number << 20) + 9) for number in numbers]


class FixedLevel(LevelGuide):
    """Subscriptions are tried at one level."""

    def install_levels(self, tree: Tree, rng: Rng, attempt: int) -> tuple[int, ...]:
        return (4,)


class Subscriber(Plugin):
    """The subscriber's side alone."""

    name = "pubsub"
    messages = MESSAGES
    metrics = METRICS
    events = EVENTS
    Config = PubSubConfig
    config: PubSubConfig

    def __init__(self, config: PubSubConfig | None = None, schemas: PlainSchemas | None = None) -> None:
        super().__init__(config or PubSubConfig())
        self.schemas = schemas or PlainSchemas(PlainSchema())

    def start(self, host: Host) -> None:
        super().start(host)
        no_leaves: Any = None  # of its own
        self.installer = Installer(host, self.config, FixedLevel(self.config), no_leaves)
        self.local = LocalSubscriptions(host, self.config, PlainIndex)
        self.inbox = Inbox(host, self.schemas, self.local)
        parts = host, self.config, self.schemas, self.installer, self.local
        self.subscriptions = Subscriptions(*parts, points_of)
        self.add_parts(self.installer, self.inbox, self.subscriptions)
        self.subscriptions.start()


def event(number: int, *, published_ms: int = 0, publisher: PeerRef = PUBLISHER, **values: int) -> EventBody:
    """An event of a publisher, by its number."""
    return EventBody(publisher, 1, number, published_ms, packed(values))


def signed(body: EventBody) -> EventBody:
    """The same with the proof of its publisher."""
    proof = FakeHost(body.publisher.id, Subscriber()).sign(event_statement(STOCKS, body))
    return EventBody(body.publisher, body.epoch, body.sequence, body.published_ms, body.values, proof=proof)


class Node1:
    """A subscribing node, and all leaves that it hears of."""

    def __init__(
        self, config: PubSubConfig | None = None, schemas: PlainSchemas | None = None, before: Node1 | None = None
    ) -> None:
        """``before``: the same node until it crashed; what it had on disk is still there."""
        self.plugin = Subscriber(config or PubSubConfig(unread_for="1h"), schemas)
        self.host = FakeHost(OWN)
        if before is not None:
            self.host.store._values, self.host.store.logs = before.host.store._values, before.host.store.logs
            self.host.boot_epoch = before.host.boot_epoch + 1
            self.host.time_s = before.host.time_s
        self.host.rng.seed(self.host.boot_epoch)
        self.host.plugin = self.plugin
        self.plugin.start(self.host)
        self.told: list[Told] = []
        self.batches = 0

    # Clients

    def subscribe(self, filter: str, owner: str = "", *, is_bounded: bool = False, **options: Any) -> SubscriptionView:
        request = SubscriptionRequest(schema_name=STOCKS, filter=filter, **options)
        return self.plugin.subscriptions.subscribe(request, self.told.append, owner, is_bounded=is_bounded)

    def change(self, id: str, filter: str) -> None:
        self.plugin.subscriptions.change(id, filter, self.told.append)

    def view(self, id: str) -> SubscriptionView:
        return self.plugin.subscriptions.view(self.plugin.subscriptions.get(id))

    def numbers(self, id: str) -> list[int]:
        """The numbers of the events in a subscription's feed, in order."""
        reader = self.plugin.subscriptions.get(id).feed.reader("start", Policy.DROP_OLDEST)
        found = []
        while isinstance(entry := reader.take(), FeedItem):
            found.append(number_of(entry.value))
        reader.close()
        return found

    # Leaves

    def probes(self) -> list[ProbeSub]:
        """The probes that were routed since the last call."""
        found = [message for _, message in self.host.routed if isinstance(message, ProbeSub)]
        self.host.routed.clear()
        return found

    def establish(self, probe: ProbeSub, leaf: PeerRef = LEAF, *, is_new: bool = True) -> Confirm:
        """A leaf of level 6 has got a probe."""
        sub = probe.sub
        cell = cell_at(sub.low, sub.high, 6)
        answer = self.host.deliver(Established(probe.schema, sub.sid, sub.piece, sub.version, cell, is_new, 6), leaf)
        assert isinstance(answer, Confirm)
        return answer

    def keep(self, probe: ProbeSub, status: PieceStatus = PieceStatus.REPLICATED, leaf: PeerRef = LEAF) -> None:
        """The leaf says what became of the piece."""
        sub = probe.sub
        cell = cell_at(sub.low, sub.high, 6)
        self.host.deliver(Kept(probe.schema, sub.sid, sub.piece, sub.version, cell, status, "no room"), leaf)

    def install(self) -> list[ProbeSub]:
        """A leaf takes and keeps all that was probed for."""
        probes = self.probes()
        for probe in probes:
            self.establish(probe)
            self.keep(probe)
        return probes

    def refuse(self, times: int) -> None:
        """The leaves of so many tries have no room for the last piece that is probed for."""
        for _ in range(times):
            self.keep(self.probes()[-1], PieceStatus.QUOTA)
            self.pass_time(30)

    def ended(self) -> list[EndSub]:
        """The requests to end a piece, which are answered now."""
        requests, self.host.requests = self.host.requests, []
        for request in requests:
            if isinstance(request.message, EndSub):
                request.on_reply(InsertAnswer(PieceStatus.KEPT, request.message.cell), request.peer)
        return [request.message for request in requests if isinstance(request.message, EndSub)]

    # Events

    def deliver(self, *deliveries: EventBody | DeliveredEvent) -> DeliveryAnswer:
        """The leaf sends the next batch; see `batch`."""
        self.batches += 1
        return self.batch(1, self.batches, *deliveries)

    def batch(self, stream: int, number: int, *deliveries: EventBody | DeliveredEvent) -> DeliveryAnswer:
        """The leaf sends a batch; returns the answer, whichever way it comes."""
        all_of_it = tuple(each if isinstance(each, DeliveredEvent) else DeliveredEvent(each) for each in deliveries)
        answer = self.host.deliver(EventDelivery(STOCKS, stream, number, all_of_it), LEAF)
        if answer is None:  # it comes one way when the disk has it; a disk that refuses is silent
            late = [each for each in self.take_sent() if isinstance(each, DeliveryAnswer)]
            answer = late[-1] if late else DeliveryAnswer(0)
        assert isinstance(answer, DeliveryAnswer)
        return answer

    def batch_then_crash(self, *deliveries: EventBody) -> None:
        """The leaf sends the next batch, and the node dies before anything is on disk."""
        self.batches += 1
        batch = EventDelivery(STOCKS, 1, self.batches, tuple(map(DeliveredEvent, deliveries)))
        self.plugin.handlers.messages[EventDelivery](batch, LEAF)

    def take_sent(self) -> list[Any]:
        """What was sent one way since the last call."""
        return [message for _, message in self.host.take_sent()]

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with all timers that fall due."""
        until = self.host.time_s + seconds
        while due := [(at, name, payload) for (name, payload), at in self.host.timers.items() if at <= until]:
            _, name, payload = min(due, key=lambda each: (each[0], each[1], str(each[2])))
            self.host.fire(name, payload)
        self.host.time_s = until


def number_of(shown: ReceivedEvent) -> int:
    """The number of an event that a client got."""
    return int(shown.event.rpartition("-")[2])
