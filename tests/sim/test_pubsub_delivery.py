"""Delivery in whole simulated rings: leaves' roots die, messages are lost, and what was acknowledged arrives.

The tree and the subscriptions are given: eight leaves, known to all nodes. What finds them is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from peerd.api import Host, NeighbourChange, Plugin, handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.lib.filter import matcher, parse
from peerd.messages import PeerRef
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.pubsub.bodies import id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.assembly import Delivering
from protocols.pubsub.delivering.copies import as_trees
from protocols.pubsub.delivering.ledger import LEAF_REASONS, METRICS
from protocols.pubsub.delivering.losses import LostEvents
from protocols.pubsub.delivering.messages import COPY_MESSAGES
from protocols.pubsub.events import EVENTS
from protocols.pubsub.messages import (
    MESSAGES,
    DeliveryAnswer,
    DeliveryNote,
    EventAck,
    EventBody,
    EventDelivery,
    EventName,
    ProbePub,
    SubObject,
)
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.ports import CellDecision, Here, NotMine, SchemaView, Unsettled, Values
from protocols.pubsub.subscribing.writes import Writes
from protocols.pubsub.tree.cells import SIDE, Target, cell_at
from tests.support.long_cases import cases
from tests.support.pubsub_leaf import SCHEMA, FakeLeaves, FakeSchemas

LEVEL = 3
TREE = Tree(SCHEMA.name, 1)
CELLS = tuple(range(1 << LEVEL, 2 << LEVEL))
COPIES = 2


class Leaves(FakeLeaves):
    """A leaf is here where the root of its key is."""

    def __init__(self, host: Host, subs: list[SubObject]) -> None:
        super().__init__(subs)
        self._host = host

    def decide(
        self, tree: Tree, cell: int, target: Target | None, *, vouched: bool, careful: bool = False
    ) -> CellDecision:
        """By who is the root now."""
        try:
            return Here() if self._host.next_hop(key_of(tree, cell)) is None else NotMine()
        except Unavailable:
            return Unsettled()

    def match(self, schema: SchemaView, cells: Sequence[tuple[int, int]], values: Values) -> list[SubObject]:
        """Pieces in these cells, by their points."""
        inside = [sub for sub in self.subs if (1, cell_at(sub.low, sub.high, LEVEL)) in cells]
        return [sub for sub in inside if matcher(parse(sub.filter))(values)]


class Subscribers:
    """This node's subscriptions: each event once."""

    def __init__(self, host: Host, subs: list[SubObject]) -> None:
        self._host, self._subs = host, subs
        self.taken: dict[EventId, set[int]] = {}
        self.lost = 0

    def take(self, schema: SchemaView, event: EventBody, values: Values, chosen: Sequence[int], replay: bool) -> bool:
        """By the subscriptions' own filters."""
        own = [sub for sub in self._subs if sub.subscriber.id == self._host.id]
        found = [sub for sub in own if matcher(parse(sub.filter))(values)]
        sids = {sub.sid for sub in found if not sub.group or sub.sid in chosen}
        if sids:
            self.taken.setdefault(id_of(event), set()).update(sids)
        return bool(found)

    def new_writes(self) -> Writes:
        """Nothing is written."""
        return Writes()

    def note_lost(self, schema: str, losses: Sequence[LostEvents], leaf: NodeId) -> None:
        """Count it."""
        self.lost += sum(each.count for each in losses)

    def note_past(self, schema: str, sid: int, leaf: NodeId) -> None:
        """Nobody here asks for the past."""

    def must_pause(self, schema: str) -> int:
        """Nobody is slow."""
        return 0


class Leafy(Plugin):
    """All of `protocols.pubsub.delivering`, with the least of a publisher, a subscriber and a tree."""

    name: ClassVar[str] = "pubsub"
    messages = (*MESSAGES, *COPY_MESSAGES)
    events = EVENTS
    metrics = METRICS

    def __init__(self, subs: list[SubObject], **settings: Any) -> None:
        super().__init__(PubSubConfig.model_validate(settings))
        self._subs = subs
        self._streams: dict[tuple[NodeId, int], int] = {}
        self.unacknowledged: dict[int, tuple[EventBody, set[int]]] = {}
        self.published: list[EventBody] = []

    def start(self, host: Host) -> None:
        """Make the parts."""
        super().start(host)
        config: Any = self.config
        schemas, self.leaves = FakeSchemas(), Leaves(host, self._subs)
        self.subscribers = Subscribers(host, self._subs)
        leaves: Any = self.leaves
        own: Any = self.subscribers
        made = Delivering(host, config, schemas, leaves, own, self._received, host.send)
        self.made, self.ledger, self.deliverer, self.holding = made, made.ledger, made.deliverer, made.holding
        self.add_parts(*made.parts)
        made.ledger.start()

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """Tell of all leaves: this node may be the root of others now."""
        for cell in CELLS:
            self.made.broker.tree_changed(TREE, cell)

    def validate(self) -> None:
        """The ledger's law."""
        self.made.validate()

    # Publishing

    def publish(self, **values: Any) -> None:
        """Publish, and try again until every leaf has acknowledged it."""
        number = len(self.published) + 1
        at_ms = int(self.host.wall_time() * 1000)
        body = EventBody(self.host.peer, self.host.boot_epoch, number, at_ms, SCHEMA.pack(values))
        self.published.append(body)
        self.unacknowledged[number] = body, set(CELLS)
        self.host.cancel_timer("again")
        self.host.set_timer("again", 1.0)
        self._probe(body, set(CELLS))

    def _probe(self, body: EventBody, cells: set[int]) -> None:
        for cell in sorted(cells):
            probe = ProbePub(SCHEMA.name, self.host.peer, (body,), as_trees([(1, cell)]), COPIES)
            self.host.route(key_of(TREE, cell), probe)

    @on_timer("again")
    def _again(self, payload: object) -> None:
        for body, cells in self.unacknowledged.values():
            self._probe(body, cells)
        if self.unacknowledged:
            self.host.set_timer("again", 1.0)

    @handles(EventAck)
    def _on_ack(self, message: EventAck, source: PeerRef) -> None:
        for number in message.sequences:
            _, cells = self.unacknowledged.get(number, (None, set()))
            assert message.copies == COPIES or not cells
            cells -= {cell for tree in message.covered for cell in tree.cells}
            if not cells:
                self.unacknowledged.pop(number, None)

    @handles(ProbePub)
    def _on_probe(self, message: ProbePub, source: PeerRef) -> None:
        cells = [(1, cell) for tree in message.places for cell in tree.cells]
        if source.id == self.host.id and message.hops:  # what was held goes to a root that follows a dead one
            self._probe(message.events[0], {cell for _, cell in cells})
        here = [each for each in cells if isinstance(self.leaves.decide(TREE, each[1], None, vouched=False), Here)]
        if here:
            self.made.broker.arrived(SCHEMA, message.publisher, message.events, here, message.copies, message.attempt)

    # Subscribing

    @handles(EventDelivery)
    def _on_delivery(self, message: EventDelivery, source: PeerRef) -> DeliveryAnswer:
        key = source.id, message.stream
        unwanted = []
        if message.number == self._streams.get(key, 0) + 1:
            self._streams[key] = message.number
            for index, each in enumerate(message.deliveries):
                values = SCHEMA.decode_values(each.event.values)
                if not self.subscribers.take(SCHEMA, each.event, values, each.chosen, each.is_replay):
                    unwanted.append(index)
        return DeliveryAnswer(self._streams.get(key, 0), 0, tuple(unwanted))

    def _received(self, schema: str, event: EventBody, chosen: Sequence[int], leaf: PeerRef) -> None:
        if self.subscribers.take(SCHEMA, event, SCHEMA.decode_values(event.values), chosen, False):
            self.host.send(leaf, DeliveryNote(schema, (EventName(*id_of(event)),)))


def leafy(place: Place) -> Leafy:
    """The plugin of a node."""
    plugin = place.node.plugins["pubsub"]
    assert isinstance(plugin, Leafy)
    return plugin


class World:
    """A ring with subscriptions."""

    def __init__(self, count: int, seed: int, loss: float = 0.0, **settings: Any) -> None:
        self.subs: list[SubObject] = []
        self.simulation: Simulation = ring(
            count,
            seed,
            plugins=lambda index: (Leafy(self.subs, **settings),),
            network=NetworkConfig(loss=loss) if loss else None,
            check_every=50,
        )
        self.events: list[tuple[EventBody, dict[str, Any]]] = []
        self.members = {place.node.peer.id: leafy(place) for place in self.simulation.live_nodes()}
        """All plugins, also those of the dead."""

    def subscribe(self, place: Place, sid: int, price_above: int, group: str = "") -> None:
        """Anywhere in the tree."""
        low, high = sorted(self.simulation.rng.randrange(SIDE) for _ in range(2))
        text = f"price > {price_above}"
        self.subs.append(SubObject(place.node.peer, sid, 0, 1, 1, low, high, text, group))

    def publish(self, place: Place, price: int) -> None:
        """Publish an event."""
        plugin = leafy(place)
        plugin.publish(price=price)
        self.events.append((plugin.published[-1], {"price": price}))

    def missing(self) -> list[str]:
        """Acknowledged events that did not come to a live node, or to no member of a group."""
        live = [place.node.peer.id for place in self.simulation.live_nodes()]
        acknowledged = [
            (id_of(body), values)
            for body, values in self.events
            if body.sequence not in self.members[body.publisher.id].unacknowledged
        ]
        assert len(acknowledged) == len(self.events)
        return [
            f"{event} did not come to {sub.sid} at {sub.subscriber}"
            for event, values in acknowledged
            for sub in self.subs
            if sub.subscriber.id in live and matcher(parse(sub.filter))(values) and not self._is_taken(sub, event)
        ]

    def _is_taken(self, sub: SubObject, event: EventId) -> bool:
        takers = [each for each in self.subs if each is sub or (each.group == sub.group != "")]
        return any(each.sid in self.members[each.subscriber.id].subscribers.taken.get(event, ()) for each in takers)

    def is_over(self) -> bool:
        """Whether all is acknowledged and delivered."""
        plugins = [leafy(place) for place in self.simulation.live_nodes()]
        return not any(plugin.unacknowledged or plugin.deliverer.pending() for plugin in plugins)


def populate(world: World) -> None:
    """Subscriptions of every third node, and a group of six."""
    for index, place in enumerate(world.simulation.live_nodes()):
        if index % 3 == 0:
            world.subscribe(place, 1, 0)
            world.subscribe(place, 2, 50)
        if index % 5 == 0:
            low, high = SIDE // 4, SIDE // 2
            world.subs.append(SubObject(place.node.peer, 3, 0, 1, 1, low, high, "price > 10", "g"))


@pytest.mark.parametrize(("seed", "delivery"), [(1, "direct"), (2, "multicast"), (3, "auto")])
def test_all_events_arrive_although_messages_are_lost(seed: int, delivery: str) -> None:
    world = World(24, seed, loss=0.02, delivery=delivery, multicast_min=4)
    populate(world)
    simulation = world.simulation
    publishers = simulation.live_nodes()[:4]
    for number in range(60):
        world.publish(publishers[number % 4], number)
        simulation.run_for(0.05)
    simulation.run_until(world.is_over, limit_s=120.0)
    assert world.missing() == []
    plugins = [leafy(place) for place in simulation.live_nodes()]
    assert sum(plugin.ledger.delivered_count for plugin in plugins) > 500
    assert all(not plugin.ledger.drops for plugin in plugins)
    simulation.validate()


@pytest.mark.parametrize("seed", cases(range(2), (2, 3)))
def test_roots_die_and_what_was_acknowledged_arrives(seed: int) -> None:
    world = World(24, seed, loss=0.05, delivery_keep="30s")
    populate(world)
    simulation = world.simulation
    publishers = simulation.live_nodes()[:3]
    for number in range(60):
        world.publish(publishers[number % 3], number)
        simulation.run_for(0.2)
        if number % 15 == 14:
            root = simulation.honest_root(key_of(TREE, simulation.rng.choice(CELLS)))
            if root not in [place.node.peer.id for place in publishers]:
                simulation.kill(simulation.find(root))
    simulation.run_until(world.is_over, limit_s=180.0)
    simulation.run_for(75.0)  # whatever is held for the dead is delivered or lapses
    assert world.missing() == []
    plugins = [leafy(place) for place in simulation.live_nodes()]
    assert len(plugins) < 24
    assert all(not len(plugin.holding) for plugin in plugins)
    assert {reason for plugin in plugins for reason in plugin.ledger.drops} <= LEAF_REASONS
    simulation.validate()
