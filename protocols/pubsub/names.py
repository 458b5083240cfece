"""How events, subscriptions and cells of a tree are named on the ring. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from peerd.ids import NodeId, format_id, id_from_bytes, id_to_bytes, parse_id
from protocols.pubsub.tree.cells import WHOLE

KEYS_KEPT: Final = 1 << 16
"""How many keys of cells are remembered; about 200 bytes each."""
PREFIX_MIN: Final = 8
"""So many digits of a node's id, as people see it, may stand for the whole."""
ITEM_MARK: Final = b"s"
"""Items of a leaf's record that are subscriptions begin with this."""
STATE_ITEM: Final = b"n"
"""The item that says what a cell is: a leaf, an inner node, or given up."""
EVERY: Final = 0
"""Number of the tree for subscriptions that name no range of any attribute: every event visits all of it."""


class Tree(NamedTuple):
    """One 2d-tree: a schema's name, and the number of an attribute (from 1) or `EVERY`."""

    schema: str
    attribute: int


class EventId(NamedTuple):
    """Names one event for ever: who published it, in which boot of the node, and as which one."""

    publisher: NodeId
    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{format_id(self.publisher)}-{self.epoch}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Read an id as people see it. Raises ``ValueError``."""
        publisher, _, numbers = text.partition("-")
        epoch, _, sequence = numbers.partition("-")
        if not (epoch.isascii() and epoch.isdigit() and sequence.isascii() and sequence.isdigit()):
            raise ValueError("expected the id of an event: a node's id, its boot and a number, such as 3fa9...-17-4")
        return cls(parse_id(publisher), int(epoch), int(sequence))


def node_meant(text: str, known: Iterable[NodeId]) -> NodeId:
    """The node that people mean by a whole id, or by the first digits of one that is known. Raises ``ValueError``."""
    if len(text) >= PREFIX_MIN:
        found = {node for node in known if format_id(node).startswith(text.lower())}
        if len(found) == 1:
            return found.pop()
    try:
        return parse_id(text)
    except ValueError as error:
        detail = f"{error}; the first {PREFIX_MIN} of them are enough for one neighbour of this node"
        raise ValueError(detail) from error


class SubscriptionKey(NamedTuple):
    """Names one piece of a subscription on the whole ring; a subscription has several where it needs several points."""

    subscriber: NodeId
    sid: int
    piece: int

    @property
    def item(self) -> bytes:
        """The name of its item under a leaf's key."""
        return ITEM_MARK + id_to_bytes(self.subscriber) + self.sid.to_bytes(8, "big") + self.piece.to_bytes(2, "big")

    @classmethod
    def of_item(cls, item: bytes) -> SubscriptionKey | None:
        """Read the name of an item; ``None`` for what is no subscription's."""
        if len(item) != 27 or item[:1] != ITEM_MARK:
            return None
        return cls(id_from_bytes(item[1:17]), int.from_bytes(item[17:25], "big"), int.from_bytes(item[25:], "big"))


@lru_cache(maxsize=KEYS_KEPT)
def key_of(tree: Tree, cell: int) -> NodeId:
    """The place of a cell on the ring: a hash, so that cells spread evenly (section 3.2.1).

    The whole squares of a schema's trees are next to each other: while none is split, one node is the root of all, and
    an event that visits all of them goes to it once.
    """
    schema, beside = tree.schema.encode(), 0
    attribute = tree.attribute
    if cell == WHOLE:
        attribute, beside = EVERY, attribute
    data = b"peerd-pubsub\0%d\0%b\0%d\0%d" % (len(schema), schema, attribute, cell)
    return NodeId(id_from_bytes(sha256(data).digest()[:16]) ^ beside)


@lru_cache(maxsize=1024)
def schema_key(name: str) -> NodeId:
    """The place on the ring of a schema's record."""
    return id_from_bytes(sha256(b"peerd-pubsub-schema\0" + name.encode()).digest()[:16])
