"""What plugins are told about the network: who is in it and where, and how messages are sent, or why not.

Plugins import it from `peerd.api`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Annotated, Final

from msgspec import Meta

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef, Struct

POSITION_MAX_MS: Final = 60_000.0
"""No honest coordinate is farther out than a round trip of a minute."""
ERROR_WIRE_MAX: Final = 100.0

_Position = Annotated[float, Meta(ge=-POSITION_MAX_MS, le=POSITION_MAX_MS)]


class Priority(IntEnum):
    """Which queued control frame goes first on a link."""

    URGENT = 0
    """For heartbeats, acks and membership: sent before anything else."""
    NORMAL = 1
    BACKGROUND = 2
    """For periodic exchange that may wait, and is dropped first."""


class NeighbourChange(Frozen):
    """How the leaf set changed."""

    added: tuple[PeerRef, ...]
    removed: tuple[PeerRef, ...]


@dataclass(frozen=True, slots=True)
class LeafSet:
    """The numerically closest live nodes, nearest first on each side, without this node.

    ``is_complete``: both sides are full and confirmed, or the ring is known to be smaller than the leaf set; a node
    delivers keys only then. ``covers_ring``: every node of the ring is in it (the sides overlap or meet).
    """

    smaller: tuple[PeerRef, ...]
    larger: tuple[PeerRef, ...]
    is_complete: bool
    covers_ring: bool

    def members(self) -> tuple[PeerRef, ...]:
        """Every distinct member, in id order."""
        return tuple(sorted({peer.id: peer for peer in (*self.smaller, *self.larger)}.values(), key=lambda p: p.id))


class MissingMember(Frozen):
    """A node of the ring that went without goodbye, and how long ago it was given up, seconds."""

    peer: PeerRef
    age_s: float


class RoutedHop(Frozen):
    """One hop of a traced lookup; ``rtt_s`` is the measured round trip from the hop before it."""

    peer: PeerRef
    rtt_s: float | None


class LookupResult(Frozen):
    """Who the root of a key is and how it was reached; ``root`` is ``None`` when nobody answered in time."""

    key: NodeId
    root: PeerRef | None
    hops: tuple[RoutedHop, ...]
    duration_s: float


class Coordinate(Struct):
    """A place in the latency space, ms; ``error`` is the node's own estimate of its relative error.

    Messages may carry it. What a peer says of its place is a hint: nobody has signed or measured it.
    """

    x: _Position
    y: _Position
    z: _Position
    height: Annotated[float, Meta(ge=0.0, le=POSITION_MAX_MS)]
    error: Annotated[float, Meta(ge=0.0, le=ERROR_WIRE_MAX)]

    def rtt_s(self, other: Coordinate) -> float:
        """Predicted round trip between two places, seconds."""
        dx, dy, dz = self.x - other.x, self.y - other.y, self.z - other.z
        plane = math.sqrt(dx * dx + dy * dy + dz * dz)
        return (plane + self.height + other.height) / 1000.0


class SendRefusal(Enum):
    """Why a message will not arrive (`Plugin.send_refused`)."""

    QUEUE_FULL = "queue_full"
    """Too much waits for this peer; a message gives way to more urgent ones."""
    PEER_DOWN = "peer_down"
    """There is no link to the peer, and none could be had; or the link was closed on purpose."""
    UNKNOWN_MESSAGE = "unknown_message"
    """It arrived, and the peer says that no plugin there knows the message."""
