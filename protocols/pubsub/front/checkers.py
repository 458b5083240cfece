"""Invariants of publish/subscribe in the simulator, seen from inside all nodes at once.

Where there are hostile nodes only answers to honest clients are judged (`protocols.pubsub.front.judging`): the root of
a leaf may do with the leaf what it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

from peerd.ids import NodeId, short_id
from peerd.messages import Message, PeerRef
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.sim.truth import RingOracle
from protocols.pubsub.delivering.messages import HoldEvents
from protocols.pubsub.messages import CellState, EventBody, EventDelivery
from protocols.pubsub.names import EventId, SubscriptionKey
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.publishing.outcomes import PublishStatus
from protocols.pubsub.subscribing.installation import RENEWALS_PER_LEASE, Installation
from protocols.pubsub.subscribing.installer import VERSIONS_PER_BOOT_BITS
from protocols.pubsub.tree import storage
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE, are_related, text
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.storage import CellAddress

GIVEN_AWAY: Final = (CellState.INNER, CellState.MOVED, CellState.RETIRED)
STREAMS_MAX: Final = 4096
"""Streams of deliveries whose order is compared; of more, the oldest are forgotten."""
EVENTS_MAX: Final = 2048
"""Events of one publisher in one stream that are compared."""


HAD_MAX: Final = 65_536
"""Events that one node has taken and that are remembered: as many as the node itself does by default."""


class HeldPiece(NamedTuple):
    """A piece in a leaf, at the node that is the root of it."""

    place: Place
    node: CellNode
    piece: Piece


def pubsub_of(place: Place) -> PubSub | None:
    """The plugin of a node, if it runs one."""
    plugin = place.node.plugins.get(PubSub.name)
    return plugin if isinstance(plugin, PubSub) else None


def name_of(key: SubscriptionKey) -> str:
    """A piece, in words."""
    return f"piece {key.piece} of {key.sid:x} of {short_id(key.subscriber)}"


def installed(place: Place) -> Iterator[tuple[SubscriptionKey, Installation]]:
    """The pieces of a node's subscriptions that a leaf has confirmed, as the node thinks."""
    plugin = pubsub_of(place)
    for subscription in () if plugin is None else plugin.subscriptions.all():
        for piece in () if plugin is None else plugin.subscriptions.pieces(subscription):
            if piece.is_installed:
                yield SubscriptionKey(place.id, piece.sub.sid, piece.sub.piece), piece


def held_pieces(simulation: Simulation) -> dict[SubscriptionKey, list[HeldPiece]]:
    """All pieces in leaves of running nodes, provisional ones too."""
    found: dict[SubscriptionKey, list[HeldPiece]] = {}
    for place in simulation.live_nodes():
        plugin = pubsub_of(place)
        for node in () if plugin is None else plugin.rendezvous.forest.nodes():
            if node.is_leaf:
                for key, piece in node.pieces.items():
                    found.setdefault(key, []).append(HeldPiece(place, node, piece))
    return found


def recorded_pieces(simulation: Simulation) -> set[SubscriptionKey]:
    """All pieces of which a running node has the record, under a cell that is not known to have given them away."""
    found: set[SubscriptionKey] = set()
    for place in simulation.live_nodes():
        plugin = pubsub_of(place)
        records = () if plugin is None else plugin.host.records.held()
        for key in dict.fromkeys(record.key for record in records if storage.is_of_tree(record.item)):
            cell = None if plugin is None else storage.read(plugin.host.records.items(key))
            if cell is not None and cell.state not in GIVEN_AWAY:
                found.update(cell.pieces)
    return found


class SubscriptionsConserved(Checker):
    """A subscription that was acknowledged is at a live node, or its subscriber looks after it within lease / 3.

    It need not be in a leaf at each moment: a root has died, and the next one has only its record, or a leaf is split.
    """

    name = "pubsub conservation"
    number = 12
    holds_always: ClassVar[bool] = True

    def check(self, simulation: Simulation) -> list[str]:
        if simulation.hostile:
            return []
        held = held_pieces(simulation)
        missing = []
        for place in simulation.live_nodes():
            plugin = pubsub_of(place)
            for key, piece in installed(place):
                lease_s = 0.0 if plugin is None else plugin.config.lease
                is_cared_for = piece.is_asking or piece.due_at <= simulation.now + lease_s / RENEWALS_PER_LEASE
                if key not in held and not is_cared_for:
                    missing.append(key)
        recorded = recorded_pieces(simulation) if missing else ()
        return [f"{name_of(key)} is lost, and not renewed" for key in missing if key not in recorded]


class SubscriptionsInPlace(Checker):
    """In a calm ring: each subscription of a live node is in the leaf of its point, once; what was ended is nowhere.

    All cells above such a leaf are inner nodes. Where all replicas of one have died at once, its next root takes it for
    a leaf until one below reports; meanwhile subscriptions go to the one, and events to the other.

    What a node had that has died, or has started again, is left to its lease.
    """

    name = "pubsub subscriptions"
    number = 13

    def check(self, simulation: Simulation) -> list[str]:
        if simulation.hostile:
            return []
        held, oracle = held_pieces(simulation), simulation.oracle()
        found = []
        for place in simulation.live_nodes():
            for key, _ in installed(place):
                copies, name = held.get(key, []), name_of(key)
                if len(copies) != 1:
                    where = ", ".join(f"{text(copy.node.cell)} at {short_id(copy.place.id)}" for copy in copies)
                    found.append(f"{name} is in {len(copies)} leaves{where and ': '}{where}")
                elif (root := oracle.root(copies[0].node.key)) != copies[0].place.id:
                    found.append(f"{name} is at {short_id(copies[0].place.id)}, and {short_id(root)} is the root")
                elif not copies[0].piece.is_kept:
                    found.append(f"{name} is in its leaf for a moment only")
                else:
                    found += self._torn(simulation, oracle, copies[0].node)
        return found + [told for key, copies in held.items() for told in self._zombies(simulation, key, copies)]

    @staticmethod
    def _torn(simulation: Simulation, oracle: RingOracle, leaf: CellNode) -> Iterator[str]:
        """The first cell above a leaf that is no inner node."""
        below, above = leaf.place.cell, leaf.place
        while above.cell != WHOLE:
            below, above = above.cell, above.above
            plugin = pubsub_of(simulation.places[oracle.root(above.key)])
            node = None if plugin is None else plugin.rendezvous.forest.cells.get(above)
            if node is None or not node.is_inner or below not in node.parts:
                yield f"{text(above.cell) or 'the whole'} is no inner node, and above the leaf {text(leaf.cell)}"
                return

    @staticmethod
    def _zombies(simulation: Simulation, key: SubscriptionKey, copies: list[HeldPiece]) -> Iterator[str]:
        """A piece that its subscriber has installed since it started, and does not know any more."""
        subscriber = simulation.places.get(key.subscriber)
        plugin = pubsub_of(subscriber) if subscriber is not None and subscriber.is_live else None
        if plugin is None or subscriber is None or plugin.installer.knows(key.sid, key.piece):
            return
        for copy in copies:
            if copy.piece.sub.version >> VERSIONS_PER_BOOT_BITS == subscriber.boot_epoch:
                where = f"{text(copy.node.cell)} at {short_id(copy.place.id)}"
                yield f"{name_of(key)} was ended, and is in {where}"


class _Event(NamedTuple):
    publisher: NodeId
    epoch: int
    sequence: int

    @classmethod
    def of(cls, event: EventBody) -> _Event:
        return cls(event.publisher.id, event.epoch, event.sequence)


class _Inversion(NamedTuple):
    """From this root an event came after a later one of its publisher."""

    root: NodeId
    earlier: _Event
    later: _Event

    def leaf(self, simulation: Simulation) -> CellAddress | None:
        """The leaf that broke the order: each has matched in one leaf of the root only, and these are one, or one was
        split from the other."""
        place = simulation.places.get(self.root)
        plugin = pubsub_of(place) if place is not None and place.is_live else None
        if plugin is None:
            return None
        first, second = (plugin.delivering.broker.matched_in(EventId(*event)) for event in (self.earlier, self.later))
        if len(first) != 1 or len(second) != 1:
            return None
        ((tree, cell),), ((other_tree, other),) = first, second
        return CellAddress(tree, cell) if tree == other_tree and are_related(cell, other) else None

    def __str__(self) -> str:
        return f"{self.earlier.sequence} of {short_id(self.earlier.publisher)} came after {self.later.sequence}"


class OrderAtLeaves(Checker):
    """First in, first out for one publisher and leaf: judged by what comes from the leaf's root in one stream.

    One stream may have events of several leaves, which are in no order among each other. So two events are compared
    where each has matched in one leaf of the root only, and where these are one, or one was split from the other. The
    root itself is asked for that: that it has acknowledged an event for another leaf, too, may not have arrived yet.
    What its publisher has given up may still arrive, and late. So may what a node has had from another root, and drops:
    the second copy of an event that went on its way again while its leaf was being split. And so may what another root
    of the leaf has acknowledged before it was lost or out of reach, or the same one before it was started anew: it
    comes from those who hold it.
    """

    name = "pubsub order"
    number = 20
    holds_always: ClassVar[bool] = True
    watched_messages: ClassVar[tuple[type[Message], ...]] = (EventDelivery, HoldEvents)

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int, NodeId, int], int] = {}
        """By subscriber's node, its boot, root and number of the stream: the last batch."""
        self._order: dict[tuple[int, int, NodeId, int], dict[tuple[NodeId, int], list[int]]] = {}
        self._had: dict[tuple[int, int], dict[_Event, None]] = {}
        """By subscriber's node and its boot: the events that it took, from whichever root; it drops them afterwards."""
        self._boots: dict[tuple[NodeId, _Event], int] = {}
        """The boot of the root in which it first told somebody of an event."""
        self._inversions: dict[_Inversion, CellAddress] = {}
        """With the leaf that each came from."""

    def handled(self, simulation: Simulation, place: Place, message: Any, source: PeerRef) -> str | None:
        inversions: list[_Inversion] = []
        events = message.events if isinstance(message, HoldEvents) else [each.event for each in message.deliveries]
        boot = simulation.places[source.id].boot_epoch
        for event in events:
            self._boots.setdefault((source.id, _Event.of(event)), boot)
        while len(self._boots) > HAD_MAX:
            del self._boots[next(iter(self._boots))]
        if isinstance(message, EventDelivery):
            inversions = self._delivered(place, message, source.id)
        for inversion in inversions:
            is_of_this_boot = self._boots.get((inversion.root, inversion.earlier), boot) == boot
            if is_of_this_boot and (leaf := inversion.leaf(simulation)) is not None:
                self._inversions[inversion] = leaf
        return None

    def _delivered(self, place: Place, message: EventDelivery, root: NodeId) -> list[_Inversion]:
        """Note a batch; returns what came after later events of its publisher in the same stream."""
        stream = place.index, place.boot_epoch, root, message.stream
        if message.number != self._taken.get(stream, 0) + 1:
            return []
        self._taken[stream] = message.number
        if len(self._taken) > STREAMS_MAX:
            oldest = next(iter(self._taken))
            del self._taken[oldest]
            self._order.pop(oldest, None)
        of_stream = self._order.setdefault(stream, {})
        had = self._had.setdefault((place.index, place.boot_epoch), {})
        while len(had) >= HAD_MAX:
            del had[next(iter(had))]
        inversions: list[_Inversion] = []
        for delivery in message.deliveries:
            event = delivery.event
            name = _Event.of(event)
            if delivery.is_replay or name in had:
                continue
            had[name] = None
            before = of_stream.setdefault((event.publisher.id, event.epoch), [])
            if event.sequence not in before:
                later = (number for number in before if number > event.sequence)
                inversions += [_Inversion(root, name, name._replace(sequence=number)) for number in later]
                before.append(event.sequence)
                del before[:-EVENTS_MAX]
        return inversions

    def check(self, simulation: Simulation) -> list[str]:
        if simulation.hostile:
            return []
        found = [each for each in self._inversions.items() if _is_in_order(simulation, *each)]
        return [
            f"{inversion} from leaf {text(leaf.cell)} of {leaf.tree.schema} at {short_id(inversion.root)}"
            for inversion, leaf in found
        ]


def _is_in_order(simulation: Simulation, inversion: _Inversion, leaf: CellAddress) -> bool:
    """Whether the earlier event should have come first: its publisher lives, has told its client that all leaves have
    it, and had that from no other root of the leaf."""
    event = inversion.earlier
    place = simulation.places.get(event.publisher)
    plugin = pubsub_of(place) if place is not None and place.is_live and place.boot_epoch == event.epoch else None
    outcome = None if plugin is None else plugin.publishing.outcomes.get(EventId(*event))
    if outcome is None or outcome.status not in (PublishStatus.RECEIVED, PublishStatus.REPLICATED):
        return False
    return all(
        answer.owner.id == inversion.root
        for answer in outcome.answers
        if answer.attribute == leaf.tree.attribute and are_related(answer.cell, leaf.cell)
    )
