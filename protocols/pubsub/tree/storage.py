"""Cells and their subscriptions as records of the replicated store. Pure but for what it asks a Host about neighbours.

Under the key of a cell there is one shared record for each subscription, named by `SubscriptionKey.item`, and one that
says what the cell is, `STATE_ITEM`. The root of the key writes them; a root that takes over has nothing else to go by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from peerd.api import Host, LocalRecord
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.ids import NodeId, closeness
from peerd.messages import Name, Struct, decode_struct, encode_struct
from protocols.pubsub.messages import Attribute, CellState, SubObject
from protocols.pubsub.names import ITEM_MARK, STATE_ITEM, SubscriptionKey, Tree, key_of
from protocols.pubsub.tree.cells import LEVEL_LIMIT, WHOLE, Cell, alternate, cell_at, is_alternate, level, parent

WRITERS_NEAR: Final = 6
"""A cell's records are taken from writers that are at least as close to its key as the so-manieth closest node: the
replica set, and three more for the time in which views of the ring differ."""
REWRITE_BEYOND: Final = 3
"""A root writes again what was written by a node that is farther away than the so-manieth closest now: when the ring
has grown on, newcomers would not take it in any more."""


class CellAddress(NamedTuple):
    """One cell of one tree."""

    tree: Tree
    cell: int

    @property
    def key(self) -> NodeId:
        """Where it is on the ring."""
        return key_of(self.tree, self.cell)

    @property
    def above(self) -> CellAddress:
        """The parent; only for cells below `WHOLE`."""
        return CellAddress(self.tree, parent(self.cell))


class StoredCell(Struct):
    """The record that says what a cell is. ``count`` grows with every change."""

    schema: Name
    attribute: Attribute
    cell: Cell
    state: Annotated[int, Meta(ge=1, le=int(CellState.MOVED))]
    count: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class StoredSub(Struct):
    """The record of one piece of a subscription in one cell."""

    schema: Name
    level: Annotated[int, Meta(ge=0, le=LEVEL_LIMIT)]
    is_moved: bool
    """It is at the alternate of its cell."""
    sub: SubObject

    @property
    def place(self) -> CellAddress:
        """The cell: its level, and the point of the piece, say which one."""
        cell = cell_at(self.sub.low, self.sub.high, self.level)
        return CellAddress(Tree(self.schema, self.sub.attribute), alternate(cell) if self.is_moved else cell)


def decode_cell(key: NodeId, value: bytes) -> StoredCell:
    """Read what a cell is. Raises `ProtocolError` for what is none, or is not this key's."""
    stored = decode_struct(StoredCell, value)
    is_split, is_moved = stored.state == CellState.INNER, stored.state == CellState.MOVED
    if (is_split and level(stored.cell) == LEVEL_LIMIT) or (is_alternate(stored.cell) and (is_split or is_moved)):
        raise ProtocolError("invalid", "a cell that cannot have parts")
    if key_of(Tree(stored.schema, stored.attribute), stored.cell) != key:
        raise ProtocolError("invalid", "a cell under another one's key")
    return stored


def decode_sub(key: NodeId, item: bytes, value: bytes) -> StoredSub:
    """Read a subscription. Raises `ProtocolError` for what is none, or is not in its place."""
    stored = decode_struct(StoredSub, value)
    if stored.sub.key.item != item:
        raise ProtocolError("invalid", "a subscription under another one's name")
    if stored.place.key != key:
        raise ProtocolError("invalid", "a subscription in a cell that its point does not lie in")
    return stored


def is_of_tree(item: bytes) -> bool:
    """Whether a record with this name is a cell's."""
    return item == STATE_ITEM or item.startswith(ITEM_MARK)


def record_allowed(host: Host, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
    """Whether a shared record of a cell may be written so: by a node near the key, and readable.

    Who has died since was near all the same, so the distance is judged and not the neighbours. Ids cannot be chosen.
    """
    if not is_near(host, key, writer, WRITERS_NEAR):
        return False
    try:
        if value is not None and item == STATE_ITEM:
            decode_cell(key, value)
        elif value is not None:
            decode_sub(key, item, value)
    except PeerMisbehaved:
        return False
    return True


def is_near(host: Host, key: NodeId, writer: NodeId, count: int) -> bool:
    """Whether a node is as close to a key as the ``count`` closest ones that are known, or there are fewer."""
    known = host.replica_set(key, count)
    return len(known) < count or closeness(key, writer) <= closeness(key, known[-1].id)


@dataclass(slots=True)
class StoredPiece:
    """A subscription as it was found under a key."""

    sub: SubObject
    remaining_s: float
    writer: NodeId


@dataclass(slots=True)
class Found:
    """All that is kept under one key: what the cell is (if that is known), and which subscriptions are there."""

    place: CellAddress
    state: CellState
    count: int = 0
    pieces: dict[SubscriptionKey, StoredPiece] = field(default_factory=dict)
    state_writer: NodeId | None = None


def read(records: Iterable[LocalRecord]) -> Found | None:
    """Make sense of the records under one key; ``None`` where there are none of a cell.

    What cannot be read is passed over: a member that is near the key wrote it, and nobody misses it.
    """
    found: Found | None = None
    for record in records:
        if record.owner is not None:
            continue
        try:
            found = _read_one(record, found)
        except PeerMisbehaved:
            continue
    return found


def _read_one(record: LocalRecord, found: Found | None) -> Found | None:
    stored: Any
    writer = record.version.writer
    if record.item == STATE_ITEM:
        stored = decode_cell(record.key, record.value)
        place = CellAddress(Tree(stored.schema, stored.attribute), stored.cell)
        found = found or Found(place, CellState.UNKNOWN)
        found.state, found.count, found.state_writer = CellState(stored.state), stored.count, writer
    elif record.item.startswith(ITEM_MARK):
        stored = decode_sub(record.key, record.item, record.value)
        implied = CellState.LEAF if stored.place.cell == WHOLE else CellState.UNKNOWN
        found = found or Found(stored.place, implied)
        found.pieces[stored.sub.key] = StoredPiece(stored.sub, record.remaining_s, writer)
    return found


def state_record(place: CellAddress, state: CellState, count: int) -> bytes:
    """The value of the record `STATE_ITEM`."""
    return encode_struct(StoredCell(place.tree.schema, place.tree.attribute, place.cell, int(state), count))


def sub_record(place: CellAddress, sub: SubObject) -> bytes:
    """The value of the record of a piece in a cell."""
    return encode_struct(StoredSub(place.tree.schema, level(place.cell), is_alternate(place.cell), sub))
