"""The tree as the other parts of publish/subscribe see it: the parts of this package put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from peerd.api import Host, Part, RecordRole, on_timer
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import CellAnswer, CellState, LeafEntry, SubObject
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.ports import (
    CellDecision,
    Here,
    LeafEvents,
    NotMine,
    Schemas,
    SchemaView,
    Unsettled,
    Values,
)
from protocols.pubsub.tree import storage
from protocols.pubsub.tree.asking import SubscriberQuestions
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE, Target
from protocols.pubsub.tree.forest import Forest, PieceIndex, Standing
from protocols.pubsub.tree.growth import Growth
from protocols.pubsub.tree.heat import Heat
from protocols.pubsub.tree.installing import Installing
from protocols.pubsub.tree.meter import EVENT_BYTES, FILTER_BYTES, MESSAGE_BYTES
from protocols.pubsub.tree.questions import Questions
from protocols.pubsub.tree.reports import TreeReports
from protocols.pubsub.tree.sharing import Sharing
from protocols.pubsub.tree.storage import CellAddress
from protocols.pubsub.tree.transfers import Transfers
from protocols.pubsub.tree.ways import to_target

TICK_S: Final = 1.0
"""Between two looks at splits and merges that are under way, and at what has to be written."""
IDLE_TICK_S: Final = 10.0
"""The same, when there are none."""
WAITING_MAX: Final = 4096
"""Cells that were asked about before it was known what they are."""


class Rendezvous(Part):
    """The cells that this node is the rendezvous of. Implements `protocols.pubsub.ports.LeafCells`.

    The plugin adds `parts`, sets ``events``, and forwards its upcalls.
    """

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        index_of: Callable[[str], PieceIndex | None],
        told: Callable[[str, CellAddress, int, float], None],
    ) -> None:
        """``told``: see `GrowthListener`."""
        self.events: LeafEvents
        self.told = told
        self.forest = Forest(host, config, index_of, self._misread)
        self.subscribers = SubscriberQuestions(host)
        self.questions = Questions(self.forest)
        self.reports = TreeReports(self.forest)
        self.installing = Installing(self.forest, schemas, self.subscribers, self._installed)
        self.transfers = Transfers(self.forest, schemas, self.subscribers, self.installing)
        self.growth = Growth(self.forest, self.questions, self.reports, self.installing, self.transfers, self)
        self.sharing = Sharing(self.forest, schemas, self._installed, self.installing.resume, self.wake, told)
        self.installing.must_wait = self.sharing.must_wait
        self.heat = Heat(self.forest, self.growth.split, self.growth.move, self.sharing.share)
        self.parts: tuple[Part, ...] = (
            self,
            self.heat,
            self.questions,
            self.reports,
            self.installing,
            self.transfers,
            self.growth,
            self.sharing,
        )
        self._host = host
        self._schemas = schemas
        self._looking: set[str] = set()
        """Schemas of which later versions are being looked for, because there are records that do not fit."""
        self._waiting: dict[CellAddress, None] = {}
        self._tick_at = 0.0

    def start(self) -> None:
        """The node is up, and all parts know each other. If the plugin was replaced, there are cells already."""
        self.forest.settle()
        self._tick_at = self._host.now() + IDLE_TICK_S
        self._host.set_timer("tree_tick", IDLE_TICK_S)

    def reconfigured(self, config: PubSubConfig) -> None:
        """Follow a configuration that was read again."""
        self.forest.config = config

    def _installed(self, place: CellAddress, sub: SubObject) -> None:
        self.events.installed(place.tree, place.cell, sub)

    def _misread(self, schema: str) -> None:
        """Read the records once more when there is a later version of the schema."""
        if schema in self._looking:
            return
        self._looking.add(schema)

        def looked(is_later: bool) -> None:
            self._looking.discard(schema)
            if is_later:
                self.forest.settle()

        self._schemas.look_again(schema, looked)

    # `LeafCells`

    def decide(
        self, tree: Tree, cell: int, target: Target | None, *, vouched: bool, careful: bool = False
    ) -> CellDecision:
        """Where an event goes that has reached the root of a cell: see `protocols.pubsub.ports.LeafCells`."""
        place = CellAddress(tree, cell)
        node = self.forest.find(place)
        if node is None:
            if self.forest.standing(place.key) is Standing.OTHER:
                return NotMine()
            self._wait_for(place)
            return Unsettled()
        if node.is_leaf:
            return Here()
        is_stranger = node.state in (CellState.UNKNOWN, CellState.RETIRED)
        if node.is_switching or (is_stranger and vouched and self.growth.ask_parent(place)):
            self._wait_for(place)
            return Unsettled()
        return to_target(node, target, is_careful=careful)

    def match(self, schema: SchemaView, cells: Sequence[tuple[int, int]], values: Values) -> list[SubObject]:
        """The pieces in these leaves of this node that an event matches, each once."""
        return self.forest.matching(schema.name, cells, values)

    def note_events(self, tree: Tree, cell: int, count: int) -> None:
        """So many events have visited the leaf."""
        node = self._worked(tree, cell, count * EVENT_BYTES)
        if node is not None:
            node.events.add(count, self._host.now())

    def note_deliveries(self, tree: Tree, cell: int, filters: int, copies: int, size: int) -> None:
        """Events have met so many filters of the leaf, and go to other nodes so many times: so many bytes."""
        node = self._worked(tree, cell, filters * FILTER_BYTES + copies * MESSAGE_BYTES + size)
        if node is not None:
            node.copies.add(copies, self._host.now())

    def _worked(self, tree: Tree, cell: int, size: int) -> CellNode | None:
        """This node has sent so many bytes for the leaf, or has done as much work."""
        place = CellAddress(tree, cell)
        node = self.forest.cells.get(place) or self.sharing.borrowed(place)
        self.heat.note_sent(size)
        if node is not None:
            node.sent.add(size, self._host.now())
        return node

    def unwanted(self, key: SubscriptionKey, schema: str) -> None:
        """The subscriber itself says that it has no such subscription: delete its pieces."""
        for node in self.forest.nodes():
            if node.place.tree.schema == schema:
                self.forest.remove(node, key, with_record=True)
        self.sharing.unwanted(key, schema)

    def serves(self, schema: str, attribute: int, cell: int) -> bool:
        """Whether this node may do the work of a leaf of another one, for what that one has sent to it."""
        return self.sharing.serves(Tree(schema, attribute), cell)

    def visited(self, schema: str, places: Sequence[tuple[int, int]], publisher: PeerRef) -> None:
        """Events of this publisher have visited these leaves: perhaps the next ones are to go to helpers."""
        for attribute, cell in places:
            self.sharing.tell_publisher(CellAddress(Tree(schema, attribute), cell), publisher)

    def is_helper(self, tree: Tree, cell: int, node: NodeId) -> bool:
        """Whether a node helps this one with a leaf."""
        return self.sharing.is_helper(CellAddress(tree, cell), node)

    def entries(self, tree: Tree) -> Sequence[LeafEntry]:
        """The leaves of a tree that this node is the root of."""
        now = self._host.now()
        return [node.entry(now) for node in self.forest.nodes() if node.place.tree == tree and node.is_leaf]

    def ask_leaves(self, tree: Tree, told: Callable[[Iterable[int]], None]) -> None:
        """Ask the root of a tree which leaves it has. It may be too busy to say, or know of no leaf but itself."""

        def done(answer: CellAnswer | None, who: PeerRef | None) -> None:
            if answer is not None:
                told([entry.cell for entry in answer.entries])

        self.questions.ask(CellAddress(tree, WHOLE), done, is_brief=False)

    # Upcalls of the plugin

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Whether a cell's record may be written so (`storage.is_of_tree` says which records are cells')."""
        return storage.record_allowed(self._host, key, item, value, writer)

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        """A record came to this node, changed or went."""
        self.forest.record_changed(key, role, item)

    def records_settled(self) -> None:
        """This node knows now what there is under the keys that it is the root of."""
        self.forest.settle()
        self.reports.settled()
        self._resume()

    def neighbours_changed(self) -> None:
        """Another node may be the root of some cells."""
        self.sharing.neighbours_changed()
        for place in self.forest.neighbours_changed():
            self.changed(place)
        self._resume()

    # Time

    def wake(self) -> None:
        """There is something to be driven on: look after it more often."""
        if self._tick_at > self._host.now() + TICK_S:
            self._host.cancel_timer("tree_tick")
            self._arm(TICK_S)

    def _arm(self, delay_s: float) -> None:
        self._tick_at = self._host.now() + delay_s
        self._host.set_timer("tree_tick", delay_s)

    @on_timer("tree_tick")
    def _tick(self, payload: None) -> None:
        self.forest.lapse()
        self.forest.renew_states()
        self.forest.write()
        self.growth.tick()
        self.sharing.tick()
        self.heat.tick()
        self.reports.tick()
        is_busy = self.forest.is_busy or self.growth.is_busy or self.sharing.is_busy or bool(self._waiting)
        self._resume()
        self._arm(TICK_S if is_busy else IDLE_TICK_S)

    # Those who wait

    def _wait_for(self, place: CellAddress) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting[place] = None
        self.wake()

    def _resume(self) -> None:
        for place in list(self._waiting):
            if self.forest.standing(place.key) is not Standing.UNSETTLED:
                self.changed(place)
        self.installing.resume_settled()

    def changed(self, place: CellAddress) -> None:
        """See `GrowthListener`."""
        self._waiting.pop(place, None)
        self.events.tree_changed(place.tree, place.cell)
        self.installing.resume(place)

    def validate(self) -> None:
        """Assert that what this node holds of its cells is consistent."""
        for place, node in self.forest.cells.items():
            assert node.place == place and node.key == place.key
            assert (node.table is None) or node.is_inner, (place, node.state)
            if node.table is not None:
                node.table.validate()
            self._validate_pieces(node)
        self.sharing.validate()
        counts = sum(len(node.pieces) for node in self.forest.cells.values())
        assert counts == sum(self.forest.members.values())

    def _validate_pieces(self, node: CellNode) -> None:
        for key, piece in node.pieces.items():
            assert piece.sub.key == key and node.holds(piece.sub)
            assert not piece.is_indexed or node.state is CellState.LEAF
