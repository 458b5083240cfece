"""What the parts of the plugin need of each other. Each part is in a package or module of its own; nothing here acts.

Five parts: the book of schemas, the tree (what this machine keeps for others as the root of cells), the leaf's events
(matching and delivery), the publisher, and the subscriptions of this node's own clients. `protocols.pubsub.plugin`
makes them and tells each about the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.lib.filter import Node
from peerd.messages import PeerRef
from protocols.pubsub.messages import EventBody, LeafEntry, SubObject
from protocols.pubsub.names import EventId, SubscriptionKey, Tree
from protocols.pubsub.tree.cells import Target

Values: TypeAlias = dict[str, Any]
"""An event's attributes by name, with values as the filters read them."""


@dataclass(frozen=True, slots=True)
class PiecePoint:
    """Where one piece of a subscription is kept: a range of coordinates of one attribute (0: the tree `EVERY`)."""

    attribute: int
    low: int
    high: int


class SchemaView(Protocol):
    """A schema, as the other parts use it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def is_signed(self) -> bool:
        """Whether events carry a proof of their publisher."""

    def targets(self, values: Values) -> Mapping[int, Target]:
        """For each tree that an event with these values has to visit, its target; the tree `EVERY` is among them."""

    def pack(self, values: Values) -> bytes:
        """For the wire, what was read of an event. Raises `EventError` when it is too large."""

    def decode_values(self, data: bytes) -> Values:
        """Read what came from the network; nobody changes it. Raises `ProtocolError`."""

    def parse_filter(self, condition: Any, /) -> Node:
        """Read a filter, a text or one of its JSON forms, with the attributes' types. Raises `FilterError`."""

    def covers(self, wide: Node, narrow: Node, /) -> bool:
        """Whether all events that match ``narrow`` match ``wide``; "no" is not certain."""

    def visible(self, values: Values, /) -> Values:
        """Return the values without those that the node has filled in for its own use: what clients get."""


class Schemas(Protocol):
    """The book of schemas."""

    def get(self, name: str) -> SchemaView | None:
        """The schema, if this node knows it now."""

    def fetch(self, name: str, on_done: Callable[[SchemaView | None, str], None]) -> None:
        """Look it up on the ring, if need be; ``on_done(schema, why_not)`` is called once, perhaps at once."""

    def written(self, name: str) -> str:
        """A known schema as text for this node's disk, else nothing."""

    def remember(self, text: str) -> None:
        """Know a schema again that was `written` before a restart; what cannot be read is looked up as any other."""

    def look_again(self, name: str, on_done: Callable[[bool], None]) -> None:
        """Something does not fit what is known: ``on_done`` is called once, with whether there is a later version."""


# What the tree says about a cell


class Here(Frozen):
    """This node is the root of the cell, and the cell is a leaf."""


class Elsewhere(Frozen):
    """Go on to these cells. ``vouched``: they are halves of the cell that was asked about, which is an inner node."""

    cells: tuple[int, ...]
    vouched: bool


class Unsettled(Frozen):
    """Ask again when `LeafEvents.tree_changed` tells of the cell: this node has just become its root, or it is being
    split or merged at this moment."""


class NotMine(Frozen):
    """This node is not the root of the cell's key."""


CellDecision: TypeAlias = Here | Elsewhere | Unsettled | NotMine


class LeafCells(Protocol):
    """The tree, as those see it who bring events."""

    def decide(
        self, tree: Tree, cell: int, target: Target | None, *, vouched: bool, careful: bool = False
    ) -> CellDecision:
        """Where an event (or, with no target, a question) goes that has reached the root of a cell.

        Of an inner node: its leaves, as far as it knows them, that the target meets, else its two halves. Of a cell
        that is not known and not vouched for: the ancestor at half its level (section 3.3).
        """

    def match(self, schema: SchemaView, cells: Sequence[tuple[int, int]], values: Values) -> list[SubObject]:
        """The pieces in these leaves (attribute, cell) of this node that an event matches, each once."""

    def note_events(self, tree: Tree, cell: int, count: int) -> None:
        """So many events have visited the leaf: its load."""

    def note_deliveries(self, tree: Tree, cell: int, filters: int, copies: int, size: int) -> None:
        """Events have met so many filters of the leaf, and go to other nodes so many times: so many bytes."""

    def is_helper(self, tree: Tree, cell: int, node: NodeId) -> bool:
        """Whether a node helps this one with a leaf, and so asks for copies of the leaf's events as a root does."""

    def unwanted(self, key: SubscriptionKey, schema: str) -> None:
        """The subscriber itself says that it has no such subscription."""

    def entries(self, tree: Tree) -> Sequence[LeafEntry]:
        """The leaves of a tree that this node is the root of."""


class LeafEvents(Protocol):
    """Matching and delivery, as the tree and the publisher's part see them."""

    def arrived(
        self,
        schema: SchemaView,
        publisher: PeerRef,
        events: Sequence[EventBody],
        cells: Sequence[tuple[int, int]],
        copies: int,
        attempt: int,
    ) -> None:
        """Events have reached these leaves of this node: match, acknowledge (`EventAck`), have them held, deliver."""

    def had(self, events: Sequence[EventBody], cell: tuple[int, int]) -> bool:
        """Whether all of these have visited this very cell while it was a leaf of this node."""

    def has_had(self, event: EventId, cell: tuple[int, int]) -> bool:
        """Whether an event has visited this cell, or the leaf that it was split from, at this node."""

    def installed(self, tree: Tree, cell: int, sub: SubObject) -> None:
        """A piece is new in a leaf of this node: deliver what it asks for of the past (``since_ms``)."""

    def tree_changed(self, tree: Tree, cell: int) -> None:
        """What `LeafCells.decide` says about a cell has changed: what waited for it goes on, and what this node holds
        for a root that is gone is delivered."""


def targets_of(schema: SchemaView, event: EventBody, values: Values) -> Mapping[int, Target]:
    """Where an event has to go. One that replaces the last value of its key goes to every leaf of the trees of its
    attributes: the value that it replaces may be remembered by any of them."""
    found = schema.targets(values)
    if event.retain:
        return {attribute: Target(None, target.length_max) for attribute, target in found.items()}
    return found
