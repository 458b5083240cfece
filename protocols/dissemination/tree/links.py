"""The two ends of an edge of the tree, as the node above and the node below keep them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import Interest, LastGiven, ParsedItem


@dataclass(frozen=True, slots=True)
class Late:
    """Interests that are complete once the parent has come as far as this node had when it began to send them."""

    at: StreamPosition
    interests: tuple[bytes, ...]
    since: StreamPosition


@dataclass(eq=False, slots=True)
class Uplink:
    """The end below: the parent, or a node that is to be it."""

    peer: PeerRef
    attempt: int
    asked_at: float
    wants: frozenset[bytes]
    """What it was told that this node wants."""
    is_orphan: bool
    """There was no other parent, so it begins by itself."""
    is_asked: bool = False
    """It was told to begin."""
    has_begun: bool = False
    is_clear: bool = False
    """The way up from it does not lead through this node."""
    through: StreamPosition = START
    """It has sent everything up to here. That may be less than this node has had, from the parent before."""
    late: list[Late] = field(default_factory=list)
    heard_at: float = 0.0
    path: tuple[NodeId, ...] | None = None
    """The nodes from the producer to it, as it has said."""
    given: LastGiven | None = None
    """While another node is the parent: what this one has sent, for when it is."""
    is_stale: bool | None = None
    """Whether nobody vouches for what it sends; ``None``: that is not known before its first beat."""


class ChildStage(Enum):
    """How far the end above has come."""

    WAITING = "waiting"
    """For the interests of the child to be complete here."""
    OFFERED = "offered"
    """The child says when to begin."""
    LIVE = "live"


@dataclass(eq=False, slots=True)
class Downlink:
    """The end above: a child."""

    peer: PeerRef
    attempt: int
    since_s: float
    wants: dict[bytes, Interest]
    after: StreamPosition | None
    """What the child has; ``None``: it wants nothing of the past."""
    is_orphan: bool
    stage: ChildStage = ChildStage.WAITING
    told: StreamPosition = START
    """It has been told that it has everything up to here."""
    passed: int = 0
    """Items since then that it did not want."""
    queue: list[ParsedItem] = field(default_factory=list)
    """To be sent at the end of the current call."""
    path_told: int = -1
    given: LastGiven | None = None
    beat_at: float = 0.0
