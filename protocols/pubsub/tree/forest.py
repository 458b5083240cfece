"""The cells that this node is the root of: loaded from records, written to records, found in indexes.

All parts of the tree share one `Forest`. A cell is in it from when this node, as the settled root of its key, has found
or made something there, until another node is the root.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from peerd.api import Host, RecordOutcome, RecordResult, RecordRole
from peerd.errors import Unavailable
from peerd.ids import NodeId
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import CellState, SubObject
from protocols.pubsub.names import STATE_ITEM, SubscriptionKey
from protocols.pubsub.tree import storage
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.storage import CellAddress, Found

PUTS_MAX: Final = 128
"""Writes of pieces that are under way at a time."""
KEEP_S_MAX: Final = 7 * 86_400.0
"""No durable piece stays for longer without its subscriber, whatever it says."""
PUT_AGAIN_S: Final = 2.0
"""Pause before a write is tried again whose outcome is not known, or for which no root was found."""
RENEWALS: Final = 3
"""The record that says what a cell is is written so many times in its lifetime."""
DONE: Final = (RecordOutcome.STORED,)
REFUSED: Final = (RecordOutcome.QUOTA, RecordOutcome.OWNED)


class PieceIndex(Protocol):
    """The subscriptions of one schema in leaves of this node, to be matched with events."""

    def add(self, key: SubscriptionKey, cell: tuple[int, int], sub: SubObject) -> None:
        """Add a piece, or put another version in its place. Raises ``ValueError`` for a filter that is not valid."""

    def has_filter(self, text: str) -> bool:
        """Whether a piece has this filter already."""

    def remove(self, key: SubscriptionKey, cell: tuple[int, int]) -> None:
        """Take a piece out; harmless if it is not there."""

    def match(self, values: dict[str, Any], cells: Sequence[tuple[int, int]]) -> list[SubObject]:
        """The pieces in these cells that an event matches, each once."""


class Standing(Enum):
    """What this node is for a key."""

    ROOT = "root"
    UNSETTLED = "unsettled"
    """It is the root, or may be, and does not know yet what there is under the key."""
    OTHER = "other"


class TreeGrowth(Protocol):
    """What the parts of the tree tell `Growth`, which is made after them."""

    def step(self, node: CellNode) -> None:
        """There is one more piece in a leaf, or another version of one."""

    def moved(self, node: CellNode) -> None:
        """Copies of a cell have arrived at another one, or it has got copies."""

    def ask_parent(self, place: CellAddress) -> bool:
        """Find out whether a cell that is not known, but was vouched for, belongs to the tree; whether that is so."""

    def ask_parent_again(self, place: CellAddress) -> bool:
        """The same, for a cell whose parent has begun something new; `Transfers.proved` hears what it says."""

    def claimed(self, node: CellNode, child: int) -> None:
        """A report claims a leaf below a cell that is no inner node."""

    def heard(self, node: CellNode, child: int, is_leaf: bool) -> None:
        """A half of an inner node, or of one that is being merged, has said whether there are leaves in it."""

    def stored(self, node: CellNode, key: SubscriptionKey, piece: Piece) -> None:
        """A piece is at the whole replica set."""

    def refused(self, node: CellNode, key: SubscriptionKey, piece: Piece, why: str) -> None:
        """A piece cannot be stored, and has been taken out."""

    def loaded(self, node: CellNode) -> None:
        """This node has become the root of a cell, and knows it from the records."""

    def overruled(self, node: CellNode, before: CellState, pieces: list[Piece]) -> None:
        """The records say that the cell is something else than this node thought, which held these pieces there."""


class Forest:
    """See the module."""

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        index_of: Callable[[str], PieceIndex | None],
        misread: Callable[[str], None],
    ) -> None:
        """``misread`` is told that a record has a filter that does not fit what is known of its schema."""
        self.host = host
        self.config = config
        self.cells: dict[CellAddress, CellNode] = {}
        self.members: Counter[NodeId] = Counter()
        """How many pieces each subscriber has here."""
        self.growth: TreeGrowth
        self.give_back: Callable[[CellAddress], None]
        """Have this node not help with a leaf any more; set by `Sharing`, which is made after this."""
        self._misread = misread
        self._index_of = index_of
        self._by_key: dict[NodeId, CellAddress] = {}
        self._unstored: dict[tuple[CellAddress, SubscriptionKey], None] = {}
        self._unindexed: set[CellAddress] = set()
        self._puts = 0

    @property
    def is_busy(self) -> bool:
        """Whether something has still to be written."""
        return bool(self._unstored) or any(node.is_switching for node in self.cells.values())

    # Which cells there are

    def standing(self, key: NodeId) -> Standing:
        """What this node is for a key now."""
        if self.host.records.is_settled(key):
            return Standing.ROOT
        try:
            hop = self.host.next_hop(key)
        except Unavailable:
            return Standing.UNSETTLED
        return Standing.UNSETTLED if hop is None else Standing.OTHER

    def find(self, place: CellAddress) -> CellNode | None:
        """The cell, if this node is its settled root. One that there is nothing about is made, and not remembered."""
        key = place.key
        if self.standing(key) is not Standing.ROOT:
            return None
        return self.cells.get(place) or self._load(key) or self._unknown(place)

    def register(self, node: CellNode) -> None:
        """Remember a cell that was made by `find`."""
        if node.place not in self.cells:
            self.give_back(node.place)
            self.cells[node.place] = node
            self._by_key[node.key] = node.place

    def nodes(self) -> Iterator[CellNode]:
        """All of them; cells may be dropped meanwhile."""
        return iter(list(self.cells.values()))

    def is_current(self, node: CellNode) -> bool:
        """Whether this node is still the root of the cell, and this is what it knows of it."""
        return self.cells.get(node.place) is node

    def drop(self, node: CellNode) -> None:
        """Another node is the root now."""
        for key in list(node.pieces):
            self.remove(node, key)
        del self.cells[node.place]
        del self._by_key[node.key]

    def _unknown(self, place: CellAddress) -> CellNode:
        return CellNode(place, place.key, CellState.LEAF if place.cell == WHOLE else CellState.UNKNOWN)

    def _load(self, key: NodeId) -> CellNode | None:
        found = storage.read(self.host.records.items(key))
        if found is None:
            return None
        node = CellNode(found.place, key, found.state, found.count)
        self.register(node)
        node.state_due = self.host.now()  # its writer is gone: write it as this node, if it is to stay
        self._take_pieces(node, found)
        self.growth.loaded(node)
        return node

    # Following the records

    def settle(self) -> None:
        """This node has caught up: load what it is the root of now, and compare what it was the root of before."""
        keys = dict.fromkeys(
            record.key
            for record in self.host.records.held()
            if record.role is RecordRole.ROOT and storage.is_of_tree(record.item)
        )
        for key in keys:
            place = self._by_key.get(key)
            if self.standing(key) is not Standing.ROOT:
                continue
            if place is None:
                self._load(key)
            else:
                self._compare(self.cells[place])

    def neighbours_changed(self) -> list[CellAddress]:
        """Drop the cells that other nodes are the root of now; returns them."""
        lost = [node for node in self.nodes() if self.standing(node.key) is Standing.OTHER]
        for node in lost:
            self.drop(node)
        return [node.place for node in lost]

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        """A record of a cell that this node is the root of was changed, perhaps by somebody else."""
        place = self._by_key.get(key)
        if place is None or not storage.is_of_tree(item) or self.standing(key) is not Standing.ROOT:
            return
        node = self.cells[place]
        record = self.host.records.local(key, item)
        if item == STATE_ITEM:
            self._compare_state(node, None if record is None else storage.read([record]))
            return
        name = SubscriptionKey.of_item(item)
        piece = None if name is None else node.pieces.get(name)
        if record is not None:
            found = storage.read([record])
            if found is not None and not node.is_inner:
                self._take_pieces(node, found)
        elif name is not None and piece is not None and piece.is_stored and not piece.is_putting:
            self.remove(node, name)

    def _compare(self, node: CellNode) -> None:
        found = storage.read(self.host.records.items(node.key))
        self._compare_state(node, found)
        if found is None or node.is_inner:
            return
        self._take_pieces(node, found)
        for key, piece in node.kept():
            if key not in found.pieces:
                piece.stored = None
                self._unstored[node.place, key] = None

    def _compare_state(self, node: CellNode, found: Found | None) -> None:
        if node.is_switching or node.is_putting or found is None or found.state_writer is None:
            return
        if found.state is node.state:
            node.count = max(node.count, found.count)
            return
        before, pieces = node.state, list(node.pieces.values())
        self.became(node, found.state)
        node.count = found.count
        self.growth.overruled(node, before, pieces)

    def _take_pieces(self, node: CellNode, found: Found) -> None:
        if node.is_inner or node.state is CellState.RETIRED:
            return
        now = self.host.now()
        for key, stored in found.pieces.items():
            piece = node.pieces.get(key)
            if piece is not None and piece.sub.version >= stored.sub.version:
                continue
            try:
                piece = self.add(node, stored.sub, stored.remaining_s)
            except ValueError:  # for a later version of the schema, which another root has known
                self._misread(node.place.tree.schema)
                continue
            piece.is_kept, piece.stored = True, stored.sub.version
            if not storage.is_near(self.host, node.key, stored.writer, storage.REWRITE_BEYOND):
                piece.stored = None
                piece.put_after = now + PUT_AGAIN_S
                self._unstored[node.place, key] = None

    # Pieces

    def add(self, node: CellNode, sub: SubObject, lasts_s: float) -> Piece:
        """Have a piece in a cell, in the place of another version of it. Raises ``ValueError`` for a filter that cannot
        be read, where the cell is a leaf and the schema is known."""
        key = sub.key
        self.register(node)
        lasts_s = max(min(lasts_s, self.config.lease), self._stays_s(sub))
        expires_at = self.host.now() + lasts_s
        before = node.pieces.get(key)
        piece = Piece(sub, expires_at)
        if node.state is CellState.LEAF:
            self._index(node, key, piece)
        if before is None:
            self.members[sub.subscriber.id] += 1
        else:
            piece.tells_subscriber, piece.giver = before.tells_subscriber, before.giver
        node.pieces[key] = piece
        return piece

    def _stays_s(self, sub: SubObject) -> float:
        """How long a durable piece stays though nobody renews it; 0 or less for others."""
        left_s = sub.until_ms / 1000 - self.host.wall_time()
        return min(sub.keep_s, KEEP_S_MAX, left_s)

    def lend(self, node: CellNode, sub: SubObject) -> None:
        """Have a piece of another node's leaf in the index. Raises ``ValueError`` for a filter that cannot be read."""
        piece = Piece(sub, math.inf, is_kept=True)
        self._index(node, sub.key, piece)
        node.pieces[sub.key] = piece

    def take_back(self, node: CellNode, key: SubscriptionKey) -> None:
        """Take such a piece out again; harmless if it is not there."""
        piece = node.pieces.pop(key, None)
        if piece is not None:
            self._unindex(node, key, piece)

    def knows_schema(self, name: str) -> bool:
        """Whether pieces of a schema can be matched here."""
        return self._index_of(name) is not None

    def has_filter(self, schema: str, text: str) -> bool:
        """Whether a filter is in the index already, so that it has not to be read for one more piece."""
        index = self._index_of(schema)
        return index is not None and index.has_filter(text)

    def remove(self, node: CellNode, key: SubscriptionKey, *, with_record: bool = False) -> None:
        """Take a piece out of a cell, and delete its record if asked to. Harmless when it is not there."""
        piece = node.pieces.pop(key, None)
        if piece is None:
            return
        self._unstored.pop((node.place, key), None)
        self.members[key.subscriber] -= 1
        if not self.members[key.subscriber]:
            del self.members[key.subscriber]
        self._unindex(node, key, piece)
        if with_record and piece.is_kept:
            self.delete(node, key)

    def delete(self, node: CellNode, key: SubscriptionKey) -> None:
        """Delete the record of a piece. If that fails, the record lapses, or its subscriber says it is unwanted."""
        try:
            self.host.records.delete(node.key, lambda result: None, item=key.item, shared=True)
        except Unavailable:
            return

    def lapse(self) -> None:
        """Take out what was not renewed."""
        now = self.host.now()
        for node in self.nodes():
            for key in [key for key, piece in node.pieces.items() if piece.expires_at <= now]:
                self.remove(node, key)

    def matching(self, schema: str, cells: Sequence[tuple[int, int]], values: dict[str, Any]) -> list[SubObject]:
        """The pieces in these leaves that an event matches."""
        index = self._index_of(schema)
        if index is None:
            return []
        self._index_late()
        return index.match(values, cells)

    def _index(self, node: CellNode, key: SubscriptionKey, piece: Piece) -> None:
        index = self._index_of(node.place.tree.schema)
        if index is None:
            self._unindexed.add(node.place)
            return
        index.add(key, (node.place.tree.attribute, node.cell), piece.sub)
        piece.is_indexed = True

    def _unindex(self, node: CellNode, key: SubscriptionKey, piece: Piece) -> None:
        index = self._index_of(node.place.tree.schema) if piece.is_indexed else None
        if index is not None:
            index.remove(key, (node.place.tree.attribute, node.cell))
        piece.is_indexed = False

    def _index_late(self) -> None:
        """Index what was loaded before its schema was known."""
        for place in sorted(self._unindexed):
            if self._index_of(place.tree.schema) is None:
                continue
            self._unindexed.discard(place)
            if place in self.cells:
                self._index_all(self.cells[place])

    def _index_all(self, node: CellNode) -> None:
        for key, piece in list(node.pieces.items()):
            if not piece.is_indexed and node.state is CellState.LEAF:
                try:
                    self._index(node, key, piece)
                except ValueError:  # stored by another root, or for another version of the schema: nothing to match
                    self.remove(node, key)

    # Writing

    def keep(self, node: CellNode, key: SubscriptionKey) -> None:
        """A piece is to stay: write it, now or soon."""
        node.pieces[key].is_kept = True
        self._unstored[node.place, key] = None
        self.write()

    def write(self) -> None:
        """Write pieces that are not written yet, as many as may be under way."""
        now = self.host.now()
        for place, key in list(self._unstored):
            if self._puts >= PUTS_MAX:
                return
            node = self.cells.get(place)
            piece = None if node is None else node.pieces.get(key)
            if node is None or piece is None or piece.is_stored:
                del self._unstored[place, key]
            elif not piece.is_putting and now >= piece.put_after:
                self._put(node, key, piece)

    def _put(self, node: CellNode, key: SubscriptionKey, piece: Piece) -> None:
        ttl_s = max(1.0, min(piece.expires_at - self.host.now(), self.config.lease))
        value = storage.sub_record(node.place, piece.sub)
        done = partial(self._put_ended, node, key, piece)
        piece.put_after = self.host.now() + PUT_AGAIN_S
        try:
            self.host.records.put(node.key, value, ttl_s, done, item=key.item, ack="replicated", shared=True)
        except Unavailable:
            return
        piece.is_putting = True
        self._puts += 1

    def _put_ended(self, node: CellNode, key: SubscriptionKey, piece: Piece, result: RecordResult) -> None:
        self._puts -= 1
        piece.is_putting = False
        if not self.is_current(node) or node.pieces.get(key) is not piece:
            self.write()
            return
        if result.outcome in DONE or (result.outcome in REFUSED and result.copies):
            piece.stored = piece.sub.version
            self._unstored.pop((node.place, key), None)
            self.growth.stored(node, key, piece)
        elif result.outcome in REFUSED:
            self.remove(node, key)
            self.growth.refused(node, key, piece, result.detail)
        self.write()

    def put_state(self, node: CellNode, state: CellState, then: Callable[[bool], None]) -> None:
        """Write what the cell is from now on; ``then(whether)``. Until then nobody relies on what it is.

        It is written until it is known to be written, or until this node is not the root any more: of a write whose
        outcome is unknown nobody knows what a successor will find.
        """
        self.register(node)
        node.switching_to, node.when_switched = state, then
        self._put_state(node)

    def _put_state(self, node: CellNode) -> None:
        lease_s, is_change = self.config.lease, node.is_switching
        node.state_due = self.host.now() + (PUT_AGAIN_S if is_change else lease_s / RENEWALS)
        if node.is_putting or (is_change and not self._is_unshared(node)):
            return
        state = node.state if node.switching_to is None else node.switching_to
        value = storage.state_record(node.place, state, node.count + int(is_change))
        done = partial(self._state_put, node, node.switching_to)
        try:
            self.host.records.put(node.key, value, lease_s, done, item=STATE_ITEM, ack="replicated", shared=True)
        except Unavailable:
            node.state_due = self.host.now() + PUT_AGAIN_S
        else:
            node.is_putting = True

    def _is_unshared(self, node: CellNode) -> bool:
        """Whether no helper may take events for a leaf any more: before it becomes something else that is so."""
        if node.loans is None:
            return True
        node.loans.is_ending = True
        return node.loans.are_over(self.host.now())

    def _state_put(self, node: CellNode, state: CellState | None, result: RecordResult) -> None:
        node.is_putting = False
        if not self.is_current(node) or node.switching_to is not state:
            return
        if state is None:  # a renewal: meanwhile the other side of a partition may have told what it made of the cell
            record = self.host.records.local(node.key, STATE_ITEM)
            self._compare_state(node, None if record is None else storage.read([record]))
            return
        if result.outcome in DONE or (result.outcome in REFUSED and result.copies):
            then = node.end_switching()
            node.count += 1
            node.state_due = self.host.now() + self.config.lease / RENEWALS
            self.became(node, state)
            then(True)
        elif result.outcome in REFUSED:
            node.end_switching()(False)

    def _renew_absent(self, node: CellNode) -> None:
        """Write durable pieces again whose subscriber is away: a record lasts for one lease only."""
        due_at = self.host.now() - self.config.lease / RENEWALS
        for key, piece in node.pieces.items():
            if piece.sub.keep_s and piece.is_stored and piece.put_after - PUT_AGAIN_S <= due_at:
                piece.stored = None
                self._unstored[node.place, key] = None

    def renew_states(self) -> None:
        """Write again what would lapse, and what is not known to be written."""
        now = self.host.now()
        for node in self.nodes():
            self._renew_absent(node)
            is_lasting = (node.is_inner or node.state is CellState.LEAF) and node.count > 0
            if now >= node.state_due and (is_lasting or node.is_switching):
                self._put_state(node)

    def became(self, node: CellNode, state: CellState) -> None:
        """The cell is something else now: what it was for is over, and a leaf's pieces are found by events."""
        node.state = state
        node.loans = None
        if state is CellState.LEAF:
            node.table = None
            self._index_all(node)
        else:
            for key, piece in node.pieces.items():
                self._unindex(node, key, piece)
