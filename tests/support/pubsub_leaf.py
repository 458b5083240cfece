"""A leaf's node with everything round it played by the test: schema, tree, subscribers and the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from peerd.api import Plugin
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib.filter import Node, matcher, parse
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.bodies import id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.assembly import Delivering
from protocols.pubsub.delivering.losses import LostEvents
from protocols.pubsub.delivering.messages import COPY_MESSAGES
from protocols.pubsub.explaining.explainer import Explainer
from protocols.pubsub.messages import MESSAGES, EventBody, LeafEntry, SubObject
from protocols.pubsub.names import EventId, SubscriptionKey, Tree
from protocols.pubsub.ports import CellDecision, Here, SchemaView, Values
from protocols.pubsub.subscribing.writes import Writes
from protocols.pubsub.tree.cells import WHOLE, Target

LEAF = (1, WHOLE)
"""The leaf that all subscriptions of these tests are in: the whole tree of the first attribute."""


@dataclass(frozen=True)
class FakeSchema:
    """Implements `protocols.pubsub.ports.SchemaView`; values travel as JSON."""

    name: str = "stocks"
    version: int = 1
    is_signed: bool = False

    def targets(self, values: Values) -> Mapping[int, Target]:
        """The whole of one tree."""
        return {1: Target(None)}

    def pack(self, values: Values) -> bytes:
        """As JSON."""
        return json.dumps(dict(values)).encode()

    def decode_values(self, data: bytes) -> Values:
        """See `pack`."""
        try:
            found = json.loads(data)
        except ValueError as error:
            raise ProtocolError("values", "they are no JSON") from error
        assert isinstance(found, dict)
        return found

    def parse_filter(self, condition: Any, /) -> Node:
        """Read a filter."""
        return parse(condition)

    def covers(self, wide: Node, narrow: Node, /) -> bool:
        """Nobody asks."""
        return False

    def visible(self, values: Values, /) -> Values:
        """All of them."""
        return values


SCHEMA = FakeSchema()


class FakeSchemas:
    """Implements `protocols.pubsub.ports.Schemas`: there is one."""

    def get(self, name: str) -> SchemaView | None:
        """The one."""
        return SCHEMA if name == SCHEMA.name else None

    def written(self, name: str) -> str:
        raise AssertionError("nothing is kept on disk here")

    def remember(self, text: str) -> None:
        raise AssertionError("nothing is kept on disk here")

    def look_again(self, name: str, on_done: Callable[[bool], None]) -> None:
        """There is no later version."""
        on_done(False)

    def fetch(self, name: str, on_done: Callable[[SchemaView | None, str], None]) -> None:
        """At once."""
        on_done(self.get(name), "there is no other")


@dataclass
class FakeLeaves:
    """As `protocols.pubsub.tree.rendezvous.Rendezvous`, over a list of pieces, all of them in `LEAF`."""

    subs: list[SubObject] = field(default_factory=list)
    decision: CellDecision = field(default_factory=Here)
    unwanted_keys: list[SubscriptionKey] = field(default_factory=list)
    noted: int = 0
    copies: int = 0
    forest: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(nodes=list))
    """No leaves are counted here."""

    def decide(
        self, tree: Tree, cell: int, target: Target | None, *, vouched: bool, careful: bool = False
    ) -> CellDecision:
        """What the test has set."""
        return self.decision

    def match(self, schema: SchemaView, cells: Sequence[tuple[int, int]], values: Values) -> list[SubObject]:
        """The pieces of these leaves whose filter is true."""
        return [sub for sub in self.subs if LEAF in cells and matcher(parse(sub.filter))(values)]

    def note_events(self, tree: Tree, cell: int, count: int) -> None:
        """Count them."""
        self.noted += count

    def note_deliveries(self, tree: Tree, cell: int, filters: int, copies: int, size: int) -> None:
        """Count them."""
        self.copies += copies

    def is_helper(self, tree: Tree, cell: int, node: NodeId) -> bool:
        """Nobody helps."""
        return False

    def unwanted(self, key: SubscriptionKey, schema: str) -> None:
        """Note it."""
        self.unwanted_keys.append(key)

    def entries(self, tree: Tree) -> Sequence[LeafEntry]:
        """No tables here."""
        return ()


@dataclass
class FakeSubscribers:
    """As `protocols.pubsub.subscribing.local.LocalSubscriptions`: takes what its filters want, each event once."""

    filters: list[str] = field(default_factory=list)
    pause_ms: int = 0
    taken: list[int] = field(default_factory=list)
    is_slow: bool = False
    """Whether what is taken has to be written to a disk, and is under way."""
    writes: Writes = field(default_factory=Writes)
    lost: int = 0

    def new_writes(self) -> Writes:
        """Over at once, but with a slow disk."""
        self.writes = Writes()
        if self.is_slow:
            self.writes.begin()
        return self.writes

    def take(self, schema: SchemaView, event: EventBody, values: Values, chosen: Sequence[int], replay: bool) -> bool:
        """Note the event's number."""
        if not any(matcher(parse(each))(values) for each in self.filters):
            return False
        if event.sequence not in self.taken:
            self.taken.append(event.sequence)
        return True

    def note_lost(self, schema: str, losses: Sequence[LostEvents], leaf: NodeId) -> None:
        """Count it."""
        self.lost += sum(each.count for each in losses)

    def note_past(self, schema: str, sid: int, leaf: NodeId) -> None:
        """Nobody here asks for the past."""

    def must_pause(self, schema: str) -> int:
        """What the test has set."""
        return self.pause_ms


class RigExplainer(Explainer):
    """What publisher and subscriber know is the test's, and so are the pieces."""

    publisher_view: Any
    subscriber_view: Any

    def __init__(self, host: Any, schemas: Any, leaves: FakeLeaves, made: Delivering) -> None:
        nobody: Any = None
        super().__init__(host, schemas, nobody, made, nobody, nobody)
        self.publisher_view = self.subscriber_view = lambda schema, event: None
        self._leaves = leaves

    def pieces_of(self, schema: str, subscriber: NodeId) -> list[tuple[int, SubObject]]:
        """Those that the test has put into the leaf."""
        return [(WHOLE, sub) for sub in self._leaves.subs if sub.subscriber.id == subscriber]

    def names_of(self, schema: str) -> Callable[[int], str]:
        """By number."""
        return "attribute {}".format


class _LeafPlugin(Plugin):
    """Holds the parts, so that the fake host finds their handlers and timers."""

    name = "pubsub"
    messages = (*MESSAGES, *COPY_MESSAGES)


class BrokerRig:
    """A node that is the root of a leaf: all parts of `protocols.pubsub.delivering`, on a fake host."""

    def __init__(self, node_id: int = 1, neighbours: Sequence[int] = (), **settings: Any) -> None:
        self.config = PubSubConfig.model_validate(settings)
        self.host = FakeHost(node_id)
        self.host.neighbours = tuple(map(peer, neighbours))
        host: Any = self.host
        self.leaves, self.subscribers, self.schemas = FakeLeaves(), FakeSubscribers(), FakeSchemas()
        self.received: list[tuple[Any, ...]] = []
        leaves: Any = self.leaves
        subscribers: Any = self.subscribers
        made = Delivering(
            host,
            self.config,
            self.schemas,
            leaves,
            subscribers,
            lambda *received: self.received.append(received),
            host.send,
        )
        self.made, self.broker, self.ledger, self.deliverer = made, made.broker, made.ledger, made.deliverer
        self.multicast, self.holding, self.history = made.multicast, made.holding, made.history
        self.explainer = RigExplainer(host, self.schemas, self.leaves, made)
        self.plugin = _LeafPlugin()
        self.plugin.start(host)
        self.plugin.add_parts(*made.parts, self.explainer)
        self.host.plugin = self.plugin

    def arrive(self, *events: EventBody, copies: int = 0, attempt: int = 0) -> None:
        """Events have reached the leaf."""
        self.broker.arrived(SCHEMA, events[0].publisher, events, [LEAF], copies, attempt)

    def check_law(self) -> None:
        """Matched = delivered + dropped + pending."""
        self.made.validate()


def event(sequence: int, publisher: int = 9, payload: bytes = b"", retain: bytes = b"", **values: Any) -> EventBody:
    """An event; without other values its price is its number."""
    encoded = SCHEMA.pack(values or {"price": sequence})
    return EventBody(peer(publisher), 1, sequence, sequence * 1000, encoded, payload, "", retain)


def event_id(sequence: int, publisher: int = 9) -> EventId:
    """The id of such an event."""
    return id_of(event(sequence, publisher))


def sub(
    node: int | PeerRef, sid: int, filter: str = "TRUE", group: str = "", since_ms: int = 0, piece: int = 0
) -> SubObject:
    """A piece of a subscription."""
    subscriber = peer(node) if isinstance(node, int) else node
    return SubObject(subscriber, sid, piece, 1, 1, 0, 1, filter, group, since_ms)


def node(number: int) -> NodeId:
    """A node's id."""
    return NodeId(number)
