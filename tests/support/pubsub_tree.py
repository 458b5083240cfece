"""A plugin with the tree of publish/subscribe alone: what it needs of the other parts is played by simple stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import replace

from peerd.api import Host, NeighbourChange, Part, Plugin, PluginConfig, RecordRole, handles, on_timer
from peerd.ids import NodeId, closeness
from peerd.lib.filter import Node, parse
from peerd.messages import Message, PeerRef
from peerd.sim.simulation import Place as Member, Simulation
from peerd.testing.simulation import ring
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import (
    MESSAGES,
    Confirm,
    EndSub,
    Established,
    EventBody,
    InsertAnswer,
    InsertSub,
    Kept,
    PieceStatus,
    ProbeSub,
    SubObject,
)
from protocols.pubsub.names import EventId, SubscriptionKey, Tree, key_of
from protocols.pubsub.ports import Elsewhere, Here, SchemaView, Values
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import SIDE, WHOLE, Target, cell_at, level, lies_within
from protocols.pubsub.tree.messages import LOAN_MESSAGES
from protocols.pubsub.tree.rendezvous import Rendezvous
from protocols.pubsub.tree.storage import CellAddress

SCHEMA = "stock"
TREE = Tree(SCHEMA, 1)
BAD_FILTER = "not a filter"
LASTS_S = 1500
RETRY_S = 3.0
UNANSWERED_S = 25.0
"""A piece that was established, but not replicated, is tried again after so long."""


class FakeIndex:
    """Implements `PieceIndex` with a plain loop; an event's value is a coordinate."""

    def __init__(self) -> None:
        self.subs: dict[tuple[SubscriptionKey, tuple[int, int]], SubObject] = {}

    def add(self, key: SubscriptionKey, cell: tuple[int, int], sub: SubObject) -> None:
        """Add a piece."""
        if sub.filter == BAD_FILTER:
            raise ValueError("expected a condition")
        self.subs[key, cell] = sub

    def remove(self, key: SubscriptionKey, cell: tuple[int, int]) -> None:
        """Take a piece out."""
        self.subs.pop((key, cell), None)

    def has_filter(self, text: str) -> bool:
        """Every one has to be read."""
        return False

    def match(self, values: dict[str, Any], cells: Sequence[tuple[int, int]]) -> list[SubObject]:
        """The pieces whose range holds the value."""
        return [sub for (_, cell), sub in self.subs.items() if cell in cells and sub.low <= values["x"] <= sub.high]


@dataclass(frozen=True)
class FakeSchema:
    """As much of a `SchemaView` as the tree looks at."""

    name: str
    version: int = 1
    is_signed: bool = False

    def targets(self, values: Any) -> Mapping[int, Target]:
        """None: the tree does not ask."""
        return {}

    def pack(self, values: Any) -> bytes:
        """Nothing: the tree does not ask."""
        return b""

    def decode_values(self, data: bytes) -> dict[str, Any]:
        """Nothing: the tree does not ask."""
        return {}

    def parse_filter(self, condition: Any, /) -> Node:
        """Read a filter."""
        return parse(condition)

    def covers(self, wide: Node, narrow: Node, /) -> bool:
        """Nobody asks."""
        return False

    def visible(self, values: Values, /) -> Values:
        """All of them."""
        return values


class FakeSchemas:
    """Implements `Schemas`: ``known`` is there, and ``remote`` can be fetched."""

    def __init__(self, known: Sequence[str] = (SCHEMA,), remote: Sequence[str] = ()) -> None:
        self.known = {name: FakeSchema(name) for name in known}
        self.remote = remote

    def get(self, name: str) -> SchemaView | None:
        """The schema, if it is known."""
        return self.known.get(name)

    def written(self, name: str) -> str:
        raise AssertionError("nothing is kept on disk here")

    def remember(self, text: str) -> None:
        raise AssertionError("nothing is kept on disk here")

    def look_again(self, name: str, on_done: Callable[[bool], None]) -> None:
        """There is no later version."""
        on_done(False)

    def fetch(self, name: str, on_done: Callable[[SchemaView | None, str], None]) -> None:
        """Look it up, at once."""
        if name in self.remote:
            self.known[name] = FakeSchema(name)
        schema = self.known.get(name)
        on_done(schema, "" if schema else "no such schema")


class NotedEvents:
    """Implements `LeafEvents`: notes what it is told."""

    def __init__(self) -> None:
        self.changed: list[tuple[Tree, int]] = []
        self.new: list[tuple[int, SubObject]] = []

    def arrived(
        self,
        schema: SchemaView,
        publisher: PeerRef,
        events: Sequence[EventBody],
        cells: Sequence[tuple[int, int]],
        copies: int,
        attempt: int,
    ) -> None:
        """Not told by the tree."""

    def had(self, events: Sequence[EventBody], cell: tuple[int, int]) -> bool:
        """Nothing."""
        return False

    def has_had(self, event: EventId, cell: tuple[int, int]) -> bool:
        """Nothing."""
        return False

    def installed(self, tree: Tree, cell: int, sub: SubObject) -> None:
        """Note it."""
        self.new.append((cell, sub))

    def tree_changed(self, tree: Tree, cell: int) -> None:
        """Note it."""
        self.changed.append((tree, cell))


@dataclass
class OwnPiece:
    """A piece of a subscription of this node, as a simple subscriber keeps it."""

    sub: SubObject
    cell: int = WHOLE
    owner: PeerRef | None = None
    is_kept: bool = False
    probed_at: float = -1e9
    renew_at: float = 0.0


class FakeSubscriber(Part):
    """Installs, renews and ends the subscriptions of this node."""

    def __init__(self, host: Host, insert: Callable[[InsertSub, PeerRef], InsertAnswer]) -> None:
        self.host = host
        self.pieces: dict[tuple[int, int], OwnPiece] = {}
        self.told: list[Kept] = []
        self.is_silent = False
        self._insert_here = insert
        self._tries = 0

    def start(self) -> None:
        """Begin to look after them."""
        self.host.set_timer("subscriber", RETRY_S)

    def subscribe(self, sid: int, low: int, high: int, text: str = "x") -> None:
        """Install a subscription of one piece."""
        sub = SubObject(self.host.peer, sid, 0, 1, TREE.attribute, low, high, text)
        self.pieces[sid, 0] = OwnPiece(sub)
        self._probe(self.pieces[sid, 0])

    def end(self, sid: int) -> None:
        """End it where it is known to be."""
        piece = self.pieces.pop((sid, 0))
        message = EndSub(SCHEMA, sid, 0, piece.sub.version + 1, TREE.attribute, piece.cell)
        if piece.owner is not None and piece.owner.id != self.host.id:
            self.host.request(piece.owner, message, 10.0, lambda reply, peer: None, lambda: None)
        elif piece.owner is not None:
            self.host.send(piece.owner, message)

    @on_timer("subscriber")
    def _look(self, payload: None) -> None:
        now = self.host.now()
        self.host.set_timer("subscriber", RETRY_S)
        for piece in self.pieces.values():
            if not piece.is_kept and now >= piece.probed_at + (RETRY_S if piece.owner is None else UNANSWERED_S):
                piece.owner = None
                self._probe(piece)
            elif piece.is_kept and now >= piece.renew_at:
                self._renew(piece)

    def _probe(self, piece: OwnPiece) -> None:
        self._tries += 1
        piece.probed_at = self.host.now()
        cell = cell_at(piece.sub.low, piece.sub.high, self.host.rng.randrange(0, 8))
        careful = self._tries % 3 == 0
        self.host.route(key_of(TREE, cell), ProbeSub(SCHEMA, piece.sub, cell, LASTS_S, False, careful))

    def _renew(self, piece: OwnPiece) -> None:
        piece.sub = replace(piece.sub, version=piece.sub.version + 1)
        piece.is_kept = False
        piece.probed_at = self.host.now()
        message = InsertSub(SCHEMA, piece.sub, piece.cell, LASTS_S)

        def answered(reply: Message, peer: PeerRef) -> None:
            if not isinstance(reply, InsertAnswer) or reply.status != PieceStatus.KEPT:
                piece.owner = None
                self._probe(piece)

        if piece.owner is None:
            self._probe(piece)
        elif piece.owner.id == self.host.id:
            answered(self._insert_here(message, self.host.peer), self.host.peer)
        else:
            self.host.request(piece.owner, message, 10.0, answered, lambda: setattr(piece, "owner", None))

    def knows(self, sid: int, piece: int) -> bool:
        """All are paid for."""
        return True

    @handles(Established)
    def on_established(self, message: Established, source: PeerRef) -> Confirm | None:
        """Say whether a piece is this node's."""
        if self.is_silent:
            return None
        piece = self.pieces.get((message.sid, message.piece))
        if piece is None:
            return Confirm(message.sid, message.piece, message.version, is_wanted=False)
        is_deeper = level(message.cell) >= level(piece.cell)
        if piece.owner is None or is_deeper:
            piece.cell, piece.owner = message.cell, source
        return Confirm(message.sid, message.piece, piece.sub.version, is_wanted=True, lasts_s=LASTS_S)

    @handles(Kept)
    def _told(self, message: Kept, source: PeerRef) -> None:
        self.told.append(message)
        piece = self.pieces.get((message.sid, message.piece))
        if piece is not None and message.version == piece.sub.version and message.status == PieceStatus.REPLICATED:
            piece.is_kept = True
            piece.cell, piece.owner = message.cell, source
            piece.renew_at = self.host.now() + LASTS_S / 3


class TreePlugin(Plugin):
    """The tree and a simple subscriber."""

    name: ClassVar[str] = "pubsub"
    messages = (*MESSAGES, *LOAN_MESSAGES)
    takes_owned_records = False
    Config: ClassVar[type[PluginConfig]] = PubSubConfig
    config: PubSubConfig

    def __init__(self, config: PluginConfig | None = None, schemas: FakeSchemas | None = None) -> None:
        super().__init__(config)
        self.schemas = schemas or FakeSchemas()
        self.indexes: dict[str, FakeIndex] = {}
        self.events_noted = NotedEvents()

    def start(self, host: Host) -> None:
        """Put the parts together."""
        super().start(host)
        self.rendezvous = Rendezvous(host, self.config, self.schemas, self.index_of, lambda *what: None)
        self.rendezvous.events = self.events_noted
        self.subscriber = FakeSubscriber(host, self.rendezvous.installing.insert)
        self.rendezvous.subscribers.own = self.subscriber
        self.add_parts(*self.rendezvous.parts, self.subscriber)
        self.rendezvous.start()
        self.subscriber.start()

    def index_of(self, schema: str) -> FakeIndex | None:
        """The index of a schema that is known."""
        return None if self.schemas.get(schema) is None else self.indexes.setdefault(schema, FakeIndex())

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Forward the upcall."""
        return self.rendezvous.record_allowed(key, item, value, writer)

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        """Forward the upcall."""
        self.rendezvous.record_changed(key, role, item)

    def records_settled(self) -> None:
        """Forward the upcall."""
        self.rendezvous.records_settled()

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """Forward the upcall."""
        self.rendezvous.neighbours_changed()

    def validate(self) -> None:
        """Assert the invariants of the tree."""
        self.rendezvous.validate()


# Simulated rings


def tree_ring(count: int, seed: int, settings: dict[str, Any] | None = None, **arguments: Any) -> Simulation:
    """A settled ring whose nodes all have a `TreePlugin`."""
    config = PubSubConfig(**(settings or {}))
    return ring(count, seed, plugins=lambda index: [TreePlugin(config)], **arguments)


def tree_of(member: Member) -> TreePlugin:
    """The plugin of one node."""
    plugin = member.node.plugins[TreePlugin.name]
    assert isinstance(plugin, TreePlugin)
    return plugin


def leaves(simulation: Simulation) -> dict[int, list[CellNode]]:
    """The live leaves, by cell, at those nodes that are the settled root of them."""
    found: dict[int, list[CellNode]] = {}
    for member in simulation.live_nodes():
        rendezvous = tree_of(member).rendezvous
        for place, node in rendezvous.forest.cells.items():
            if node.is_leaf and rendezvous.forest.find(place) is node:
                found.setdefault(place.cell, []).append(node)
    return found


def root_of(simulation: Simulation, cell: int) -> Member:
    """The live node that is the root of a cell's key, or will be when the others have found out who is dead."""
    key = key_of(TREE, cell)
    return min(simulation.live_nodes(), key=lambda member: closeness(key, member.id))


def visited(simulation: Simulation, x: int, y: int, careful: bool) -> int | None:
    """The leaf that an event for a point finds, asking from the whole tree on as events do; ``None``: no way now."""
    cell, vouched, place = WHOLE, False, cell_at(x, y, 60)
    for _ in range(64):
        rendezvous = tree_of(root_of(simulation, cell)).rendezvous
        decision = rendezvous.decide(TREE, cell, None, vouched=vouched, careful=careful)
        if isinstance(decision, Here):
            return cell
        if not isinstance(decision, Elsewhere):
            return None
        vouched = decision.vouched
        inside = [each for each in decision.cells if lies_within(place, each)]
        cell = inside[0] if inside else decision.cells[0]
    return None


def subscribe_all(simulation: Simulation, count: int, seed: int = 0) -> None:
    """Short ranges all over the domain, from all nodes."""
    live = simulation.live_nodes()
    for number in range(count):
        tree_of(live[number % len(live)]).subscriber.subscribe(number + 1, *range_of(number, seed))


def range_of(number: int, seed: int = 0) -> tuple[int, int]:
    """A short range somewhere."""
    low = (number * 2654435761 + seed * 97) % (SIDE - (SIDE >> 4))
    return low, low + ((number * 40503 + 7) % (SIDE >> 5))


def wanted(simulation: Simulation) -> list[tuple[OwnPiece, Member]]:
    """All pieces that live subscribers want."""
    return [
        (piece, member) for member in simulation.live_nodes() for piece in tree_of(member).subscriber.pieces.values()
    ]


def all_kept(simulation: Simulation) -> bool:
    """Whether all subscribers know that they have what they want."""
    return all(piece.is_kept for piece, _ in wanted(simulation))


def offences(simulation: Simulation) -> Iterator[str]:
    """What is wrong with the tree of a ring at rest: every wanted piece is in exactly the one leaf that events find.

    It is found out as it is asked for: whoever waits for the rest looks no further than the first offence.
    """
    live = leaves(simulation)
    yield from (f"{cell:b} is a leaf at {len(nodes)} nodes" for cell, nodes in live.items() if len(nodes) > 1)
    yield from (
        f"{one:b} and {other:b} are both leaves"
        for one in live
        for other in live
        if one != other and lies_within(other, one)
    )
    for piece, _ in wanted(simulation):
        sub = piece.sub
        holders = [cell for cell, nodes in live.items() if sub.key in nodes[0].pieces]
        ways = [visited(simulation, sub.low, sub.high, careful) for careful in (False, True)]
        if len(holders) != 1 or ways != holders * 2:
            yield f"{sub.sid}: in {[f'{cell:b}' for cell in holders]}, events go to {ways}"
            continue
        node = live[holders[0]][0]
        index = tree_of(root_of(simulation, holders[0])).index_of(SCHEMA)
        is_matched = index is not None and index.subs.get((sub.key, (TREE.attribute, node.cell)))
        if not is_matched:
            yield f"{sub.sid}: kept in {holders[0]:b} but not found by events"


def inner_cells(simulation: Simulation) -> dict[int, tuple[int, ...]]:
    """The cells that their settled roots hold for inner nodes, with their parts."""
    keepers = [tree_of(member).rendezvous for member in simulation.live_nodes()]
    return {
        place.cell: node.parts
        for rendezvous in keepers
        for place, node in rendezvous.forest.cells.items()
        if node.is_inner and rendezvous.forest.find(place) is node
    }


def is_whole_tree(simulation: Simulation) -> bool:
    """Whether leaves and inner cells make one tree, so that every point is in exactly one live leaf."""
    live, inner = set(leaves(simulation)), inner_cells(simulation)
    pending, seen = [WHOLE], set[int]()
    while pending:
        cell = pending.pop()
        if cell in inner and cell not in live:
            pending += inner[cell]
        elif cell in live or cell == WHOLE:
            seen.add(cell)
        else:
            return False
    return live <= seen


def place_of(cell: int) -> CellAddress:
    """A cell of the tree of these tests."""
    return CellAddress(TREE, cell)


def busy_cells(simulation: Simulation) -> list[int]:
    """Cells that are being split or merged, at nodes that are their roots."""
    return [
        node.cell
        for member in simulation.live_nodes()
        for node in tree_of(member).rendezvous.forest.cells.values()
        if node.is_switching or any(job is not None for job in (node.split, node.merge, node.move_up))
    ]


def overfull(simulation: Simulation) -> list[int]:
    """Leaves that hold more than they should."""
    return [
        cell
        for cell, nodes in leaves(simulation).items()
        for node in nodes
        if node.kept_count() > tree_of(simulation.live_nodes()[0]).config.leaf_capacity
    ]


def is_at_rest(simulation: Simulation) -> bool:
    """Whether everybody has what it wants, in a whole tree in which nothing is going on."""
    return (
        all_kept(simulation)
        and not busy_cells(simulation)
        and not overfull(simulation)
        and is_whole_tree(simulation)
        and next(offences(simulation), None) is None
    )


def run_to_rest(simulation: Simulation, limit_s: float = 300.0) -> None:
    """Run until the tree is at rest; a failure says what is wrong."""
    begun = simulation.now
    while not is_at_rest(simulation):
        assert simulation.now < begun + limit_s, (
            [piece.sub.sid for piece, _ in wanted(simulation) if not piece.is_kept],
            busy_cells(simulation),
            overfull(simulation),
            is_whole_tree(simulation),
            [*offences(simulation)],
        )
        simulation.run_for(2.0)
