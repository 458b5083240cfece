"""What the rooms of the plugin need of each other. Nothing here acts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.models import PastMove, PlannedMove
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.tree.search import MoveEnd, ParentSearch


class Interest(Frozen):
    """What a member wants of a stream. ``text`` is canonical: two texts that mean the same are one interest.

    ``meaning`` is the kind's own form of it.
    """

    id: bytes
    text: str
    meaning: Any


@dataclass(frozen=True, slots=True, eq=False)
class ParsedItem:
    """An item on its way through a node, parsed once for all interests. Parsed it is large: nobody keeps many."""

    item: StreamItem
    content: Any
    met: set[bytes] | None = None
    """The interests of this node that it meets, where it was matched before it is its turn."""
    position: StreamPosition = field(init=False)
    """Where it stands in its stream: worked out once, as it is looked at for every child."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", self.item.position)


class InterestSet(Protocol):
    """Many interests, matched together: never one after another."""

    def add(self, interest: Interest) -> None:
        """Add one; harmless when it is there already."""

    def remove(self, id: bytes) -> None: ...
    def match(self, content: Any) -> set[bytes]:
        """The ids of the interests that an item's content meets."""

    def __len__(self) -> int: ...


class InterestKind(Protocol):
    """A language of interests: entry point group ``peerd.interests``."""

    name: str

    def parse(self, text: str) -> Interest:
        """Read one; no text at all means everything. Raises `InterestError`: not valid, or too costly to match."""

    def content(self, item: StreamItem) -> Any:
        """Parse an item. Raises `ItemError` for what is malformed or above a limit."""

    def make_set(self) -> InterestSet: ...
    def matches(self, interest: Interest, content: Any) -> bool: ...
    def covers(self, wide: Interest, narrow: Interest) -> bool:
        """Whether every item that meets ``narrow`` meets ``wide``. Sound; a "no" may be wrong."""

    def overlap(self, one: Interest, other: Interest) -> float:
        """The share of ``one``'s items that ``other`` wants too, 0 to 1, guessed from the texts alone."""


class LastSent(Protocol):
    """What one holder (a child, a subscription, or this node itself) was last given, by object.

    For kinds in which an item matters to a holder only by what that one has already: values within a tolerance.
    """

    def want(self, interests: Iterable[Interest]) -> None:
        """What the holder wants from now on. For this node itself: what its parent has promised to send."""

    def offer(self, parsed: ParsedItem, here: Any) -> bool:
        """Whether the holder has to get an item that this node has now; if so it counts as given.

        ``here``: this node's own `LastSent`.
        """

    def give(self, parsed: ParsedItem) -> None:
        """The holder has this item, whatever it had. Raises `ItemError`: above a limit."""

    def has(self, parsed: ParsedItem) -> bool:
        """Whether this is the item that the holder has, of that object."""

    def newest(self) -> Sequence[ParsedItem]:
        """What the holder has, one item for each object, in the order of the stream."""

    def unsettle(self) -> None:
        """This node's items come from elsewhere now: nothing is known of what lies between them and those before."""

    def clear(self) -> None:
        """Nothing that was given counts any more."""


@runtime_checkable
class RememberingKind(Protocol):
    """An `InterestKind` in which it depends on what a holder has whether an item matters to it.

    `InterestSet.match` then tells whom an item may concern, and `LastSent` who gets it. There is no past to ask for:
    who comes is given the newest item of each object.
    """

    def make_last_sent(self, *, is_source: bool = False) -> LastSent: ...
    def object_of(self, content: Any) -> Hashable:
        """The object that an item's content is a value of."""


Holder = Hashable
"""Who wants something: a child's id, or the number of a subscription of this node."""


def total_bytes(items: Iterable[StreamItem]) -> int:
    """What items count for in a message or a buffer."""
    return sum(item.size for item in items)


# What decides the shape of the tree


class ChildInfo(Frozen):
    """A child, as the policy at its parent sees it."""

    peer: PeerRef
    interests: tuple[Interest, ...]
    since_s: float
    """When it came, by `TreeAccess.now`."""
    queued_bytes: int
    """What waits to be sent to it."""


class ItemWork(Frozen):
    """What this node spends on an item. ``filter_s``: for each child, to see whether it gets the item.

    ``send_s``: for each child that gets it, to send it.
    """

    filter_s: float
    send_s: float


class TreeAccess(Protocol):
    """What a policy sees of its node's place in one stream's tree, and what it can do there.

    Everything that changes the tree goes through `move_to`, on the node that moves, so that no policy can lose an item
    or close a circle.
    """

    @property
    def me(self) -> PeerRef: ...
    @property
    def stream(self) -> NodeId: ...
    @property
    def kind(self) -> InterestKind: ...
    @property
    def is_producer(self) -> bool: ...
    @property
    def parent(self) -> PeerRef | None: ...
    @property
    def path(self) -> Sequence[NodeId]:
        """The nodes from the producer to the parent; empty at the producer and at orphans."""

    @property
    def interests(self) -> Sequence[Interest]:
        """What the subscriptions of this node want (without what its children want)."""

    @property
    def wants(self) -> Sequence[Interest]:
        """What this node needs from its parent: its own interests, and its children's, without what others cover."""

    @property
    def producer(self) -> PeerRef: ...
    @property
    def seeds(self) -> Sequence[PeerRef]:
        """Members that the stream's record names for newcomers to begin at; the producer where it names none."""

    def children(self) -> Sequence[ChildInfo]: ...
    def room(self) -> int:
        """How many children more this node would take."""

    def now(self) -> float: ...
    def random(self) -> float:
        """A number from 0 to 1, without 1."""

    def work(self) -> ItemWork | None:
        """What an item costs this node, measured lately; ``None``: it has had none yet. In the simulator: a model."""

    def rtt_s(self, peer: PeerRef) -> float | None:
        """The round trip to a node, where it is known or can be told from coordinates."""

    def send(self, peer: PeerRef, message: Message) -> None:
        """Send one of the policy's messages."""

    def move_to(self, peer: PeerRef) -> bool:
        """Get another parent, or a first one; whether that has begun. `TreePolicy.move_ended` follows if so.

        While a search is under way, only what it tries itself begins.
        """

    def emit(self, event: Event) -> None:
        """Write one of the policy's events to the event log."""


class TreePolicy(Protocol):
    """What decides the shape of one stream's tree, at one node: entry point group ``peerd.policies``.

    An object for each stream and node, made by a `PolicyFactory`. A subclass may leave out what it has no use for, but
    for its messages, a successor, and these two; what it does not leave out calls what is here. Methods run to
    completion; what takes longer is done by messages and `tick`. Times are seconds of `TreeAccess.now`.
    """

    _tree: TreeAccess
    search: ParentSearch
    """All that this node ever looks for a parent with; with the policy's `Question`, if it has one."""

    def look_for_parent(self) -> None:
        """Begin the search at the seeds: the node joins, or is an orphan and nobody who knew its parent has room."""
        self.search.look(self._tree.seeds, self._tree.producer, self._tree.now())

    def received(self, peer: PeerRef, message: Message) -> None:
        """One of the policy's messages. Raises `ProtocolError` for what no correct node sends."""

    def passed(self, item: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """An item has come (or, at the producer, was published): whether a subscription of this node wanted it, and
        to which children it went on. This is where statistics come from; it is called for each item, so be quick."""
        return

    def move_ended(self, peer: PeerRef, end: str, why: int | None, others: Sequence[PeerRef]) -> None:
        """An attempt of `TreeAccess.move_to` is over.

        ``end``: a value of `MoveEnd`. ``why``: one of ``AttachRefusal``. ``others``: whom to ask instead.
        """
        self.search.ended(peer, MoveEnd(end), others)

    def child_came(self, child: NodeId) -> None:
        return

    def child_went(self, child: NodeId) -> None:
        return

    def tick(self) -> None:
        """Called four times a second."""
        self.search.tick(self._tree.now())

    def successor(self) -> NodeId | None:
        """This node leaves: the child that takes its place; the others look for a parent beginning there."""

    def plan(self) -> Sequence[PlannedMove]:
        """What it would change next, and what that is thought to bring. Best asked at the producer."""
        return ()

    def history(self) -> Sequence[PastMove]:
        """What was changed lately, with what was expected of it and what came of it."""
        return ()

    def figures(self) -> Mapping[str, float]:
        """Numbers of this node for ``peerd stream tree`` and metrics, such as ``spurious_share``."""
        return {}


class PolicyFactory(Protocol):
    """A family of policies, such as CoDD's."""

    name: str
    messages: Sequence[type[Message]]
    events: Sequence[type[Event]]

    def settings(self, given: Mapping[str, Any]) -> Any:
        """Check a policy's settings in a stream's record. Raises ``ValueError`` that names key and reason."""

    def make(self, tree: TreeAccess, settings: Any) -> TreePolicy: ...
