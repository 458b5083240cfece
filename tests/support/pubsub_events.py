"""Events on a simulated ring whose tree of leaves is given: only publishing and forwarding are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import msgpack

from peerd.api import Host, Plugin, PluginConfig, SendRefusal
from peerd.errors import ProtocolError
from peerd.lib import filter as filters
from peerd.messages import Message, PeerRef
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place as Node, Simulation
from peerd.testing.simulation import ring
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.ledger import LedgerBook
from protocols.pubsub.events import EVENTS
from protocols.pubsub.messages import MESSAGES, EventAck, EventBody, SubObject
from protocols.pubsub.models import AckWord
from protocols.pubsub.names import EVERY, EventId, Tree
from protocols.pubsub.ports import CellDecision, Elsewhere, Here, SchemaView, Unsettled, Values
from protocols.pubsub.publishing import forwarding, publisher
from protocols.pubsub.publishing.answering import Answering
from protocols.pubsub.publishing.event import EventDraft
from protocols.pubsub.publishing.forwarding import Forwarding
from protocols.pubsub.publishing.handing_over import HandingOver
from protocols.pubsub.publishing.outcomes import PublishResult
from protocols.pubsub.publishing.probing import LevelGuide
from protocols.pubsub.publishing.publisher import Publishing
from protocols.pubsub.publishing.spread import AttributeCell, trees_of
from protocols.pubsub.tree.cell_map import CellMap
from protocols.pubsub.tree.cells import SIDE, WHOLE, Target, ancestor, children, level, parent, sibling
from protocols.pubsub.tree.messages import LOAN_MESSAGES

SCHEMA = "trades"


@dataclass
class LineSchema:
    """Implements `SchemaView`. The values of its attributes ("1", "2", ...) are coordinates."""

    name: str = SCHEMA
    attributes: int = 2
    is_signed: bool = False
    version: int = 1
    length_max: int = SIDE

    def targets(self, values: Values) -> Mapping[int, Target]:
        """An attribute without a value has to be looked at everywhere."""
        found = {number: Target(values.get(str(number)), self.length_max) for number in range(1, self.attributes + 1)}
        return {EVERY: Target(None), **found}

    def pack(self, values: Values) -> bytes:
        """As given."""
        return bytes(msgpack.packb(dict(values)))

    def decode_values(self, data: bytes) -> Values:
        """As encoded."""
        try:
            return dict(msgpack.unpackb(data))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError("bad_event", str(error)) from error

    def parse_filter(self, condition: Any, /) -> filters.Node:
        """Read a filter."""
        return filters.parse(condition)

    def covers(self, wide: filters.Node, narrow: filters.Node, /) -> bool:
        """Nobody asks."""
        return False

    def visible(self, values: Values, /) -> Values:
        """All of them."""
        return values


class OneSchema:
    """Implements `Schemas`: each node knows one, if the test has not made it forget."""

    def __init__(self, schema: SchemaView) -> None:
        self.schema = schema
        self.known = True
        self.asked: list[Callable[[SchemaView | None, str], None]] = []

    def get(self, name: str) -> SchemaView | None:
        """Look it up."""
        return self.schema if self.known and name == self.schema.name else None

    def written(self, name: str) -> str:
        raise AssertionError("nothing is kept on disk here")

    def remember(self, text: str) -> None:
        raise AssertionError("nothing is kept on disk here")

    def look_again(self, name: str, on_done: Callable[[bool], None]) -> None:
        """There is no later version."""
        on_done(False)

    def fetch(self, name: str, on_done: Callable[[SchemaView | None, str], None]) -> None:
        """Keep the question for the test to answer."""
        self.asked.append(on_done)


class Forest:
    """The true leaves of the trees of a schema, the same for all nodes of a test."""

    def __init__(self, trees: Mapping[int, Sequence[int]]) -> None:
        self.leaves: dict[int, CellMap[None]] = {}
        for attribute, leaves in trees.items():
            self.leaves[attribute] = CellMap()
            for leaf in leaves:
                self.leaves[attribute].set(leaf, None)

    @classmethod
    def grown(cls, rng: Random, depth: int, attributes: int = 2, branching: float = 0.8) -> Forest:
        """Random trees that are nowhere deeper than ``depth``."""
        return cls({attribute: list(_grow(rng, depth, branching)) for attribute in range(attributes + 1)})

    def met(self, attribute: int, target: Target) -> list[int]:
        """The leaves that an event has to visit."""
        return sorted(leaf for leaf in self.leaves[attribute] if target.meets(leaf))

    def change(self, rng: Random, depth: int) -> None:
        """Split a leaf, or merge two; all nodes know at once."""
        leaves = self.leaves[rng.choice(sorted(self.leaves))]
        leaf = rng.choice(sorted(leaves))
        if leaf != WHOLE and sibling(leaf) in leaves and rng.random() < 0.7:
            leaves.pop(leaf)
            leaves.pop(sibling(leaf))
            leaves.set(parent(leaf), None)
        elif level(leaf) < depth:
            leaves.pop(leaf)
            for child in children(leaf):
                leaves.set(child, None)


def _grow(rng: Random, depth: int, branching: float) -> Iterator[int]:
    waiting = [WHOLE]
    while waiting:
        cell = waiting.pop()
        if level(cell) < depth and rng.random() < branching:
            waiting += children(cell)
        else:
            yield cell


class GivenLeaves:
    """Implements `LeafCells` of one node: it knows what the tree says about a cell, once it is the root of the cell."""

    def __init__(self, forest: Forest, rng: Random, table_share: float = 0.7) -> None:
        self.forest = forest
        self._rng = rng
        self._table_share = table_share
        """How many of the leaves below an inner node it has in its table, rather than just its two halves."""
        self.unsettled: set[AttributeCell] = set()
        """Cells about which nothing can be said now."""
        self.asked: list[AttributeCell] = []

    def decide(
        self, tree: Tree, cell: int, target: Target | None, *, vouched: bool, careful: bool = False
    ) -> CellDecision:
        """As a node does whose table of leaves is not complete."""
        self.asked.append((tree.attribute, cell))
        leaves = self.forest.leaves[tree.attribute]
        if (tree.attribute, cell) in self.unsettled:
            return Unsettled()
        if cell in leaves:
            return Here()
        if leaves.has_below(cell):
            if not careful and self._rng.random() < self._table_share:
                return Elsewhere(
                    tuple(leaf for leaf in leaves.below(cell) if target is None or target.meets(leaf)), False
                )
            return Elsewhere(tuple(each for each in children(cell) if target is None or target.meets(each)), True)
        return Elsewhere((ancestor(cell, level(cell) // 2),), False)

    def match(self, schema: SchemaView, cells: Sequence[AttributeCell], values: Values) -> list[SubObject]:
        """Nobody has subscribed."""
        return []

    def serves(self, schema: str, attribute: int, cell: int) -> bool:
        """It helps no other root."""
        return False

    def visited(self, schema: str, places: Sequence[AttributeCell], publisher: PeerRef) -> None:
        """Nobody helps it."""

    def ask_leaves(self, tree: Tree, told: Callable[[Iterable[int]], None]) -> None:
        """The root of the tree does not say."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Events that reached leaves of a node."""

    at_s: float
    publisher: PeerRef
    events: tuple[EventBody, ...]
    places: tuple[AttributeCell, ...]
    attempt: int


@dataclass
class AckingLeaves:
    """Implements `LeafEvents`: notes what arrives for the first time, and acknowledges everything at once."""

    host: Host
    is_silent: bool = False
    arrivals: list[Arrival] = field(default_factory=list)
    visits: dict[AttributeCell, list[EventId]] = field(default_factory=dict)
    """The events of each leaf, in the order in which they came first."""

    def arrived(
        self,
        schema: SchemaView,
        publisher: PeerRef,
        events: Sequence[EventBody],
        cells: Sequence[AttributeCell],
        copies: int,
        attempt: int,
    ) -> None:
        """Acknowledge."""
        self.arrivals.append(Arrival(self.host.now(), publisher, tuple(events), tuple(cells), attempt))
        for place in cells:
            visits = self.visits.setdefault(place, [])
            for event in events:
                name = EventId(event.publisher.id, event.epoch, event.sequence)
                if name not in visits:
                    visits.append(name)
        if not self.is_silent:
            self.host.send(publisher, acknowledgement(schema.name, events, cells, copies))

    def had(self, events: Sequence[EventBody], cell: AttributeCell) -> bool:
        """Whether these have visited the cell."""
        names = [EventId(event.publisher.id, event.epoch, event.sequence) for event in events]
        return set(names) <= set(self.visits.get(cell, ()))

    def has_had(self, event: EventId, cell: AttributeCell) -> bool:
        """Whether an event has visited the cell."""
        return event in self.visits.get(cell, ())


def acknowledgement(
    schema: str, events: Sequence[EventBody], cells: Sequence[AttributeCell], copies: int = 0, matched: int = 1
) -> EventAck:
    """What the root of leaves says when it has these events, which match so many pieces in each leaf."""
    numbers = tuple(event.sequence for event in events)
    return EventAck(schema, events[0].epoch, numbers, trees_of(cells), (matched * len(cells),) * len(numbers), copies)


class Events(Plugin):
    """Publishes and forwards; the tree and the leaves are the test's."""

    name: ClassVar[str] = "events"
    messages = (*MESSAGES, *LOAN_MESSAGES)
    metrics = (*publisher.METRICS, *forwarding.METRICS)
    events = EVENTS
    Config: ClassVar[type[PluginConfig]] = PubSubConfig
    config: PubSubConfig

    def __init__(self, config: PubSubConfig, forest: Forest, schema: SchemaView | None = None) -> None:
        super().__init__(config)
        self.forest = forest
        self.schema: SchemaView = schema or LineSchema()
        self.outcomes: list[PublishResult] = []

    def start(self, host: Host) -> None:
        super().start(host)
        self.schemas = OneSchema(self.schema)
        self.leaves = GivenLeaves(self.forest, Random(int(host.id) % 1000))
        self.acking = AckingLeaves(host)
        self.guide = LevelGuide(self.config)
        leaves: Any = self.leaves  # of the tree, and of what happens at leaves, only what events need is here
        leaves.heat = SimpleNamespace(note_sent=lambda size: None, handing_over=HandingOver(host))
        events: Any = self.acking
        self.forwarding = Forwarding(host, self.config, self.schemas, leaves, events, Answering(host))
        ledger = LedgerBook(host, self.config, leaves)
        self.publishing = Publishing(host, self.config, self.forwarding, self.guide, leaves, ledger)
        self.add_parts(self.forwarding, self.publishing)

    def publish(
        self,
        values: Mapping[str, Any],
        ack: AckWord | None = None,
        on_result: Callable[[PublishResult], None] | None = None,
        **options: Any,
    ) -> EventId:
        """Publish, and note the outcome."""
        draft = EventDraft(dict(values), **options)
        found = self.publishing.enqueue(self.schema, draft, ack, on_result or self.outcomes.append)
        self.publishing.set_out()
        return found

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        self.publishing.send_refused(peer, message_type, reason)
        self.forwarding.send_refused(peer, message_type, reason, count)

    def validate(self) -> None:
        self.publishing.validate()
        self.forwarding.validate()


def events_ring(
    count: int, seed: int, forest: Forest, config: PubSubConfig | None = None, network: NetworkConfig | None = None
) -> Simulation:
    """A settled ring of nodes that share the trees of a test."""
    config = config or PubSubConfig()
    return ring(count, seed, plugins=lambda index: [Events(config, forest)], network=network, check_every=50)


def events_of(node: Node) -> Events:
    """The plugin of a node."""
    plugin = node.node.plugins[Events.name]
    assert isinstance(plugin, Events)
    return plugin
