"""What is to be done where another node becomes a stream's producer: `Role` says it, and `Succession` does it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.messages import HandOverStep
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.stream import StreamRecord


class Effect(Frozen):
    """Something that is to be done for one stream."""


class AskNodes(Effect):
    """Ask these; each answer goes to `Role.answered`, if the stage is the same then."""

    peers: tuple[PeerRef, ...]
    step: HandOverStep
    watermark: StreamPosition = START


class FindRecord(Effect):
    """Look the record up: it goes to `Role.found`, if the stage is the same then. ``owner``: who claims to have it."""

    owner: NodeId | None = None


class WriteRecord(Effect):
    """Write this record: what comes of it goes to `Role.wrote`."""

    record: StreamRecord


class ArmRole(Effect):
    """(Re-)arm the timer, for `Role.due`."""

    delay_s: float


class PausePublishing(Effect):
    """Publish nothing for this reason; empty: go on."""

    why: str = ""


class BecomeProducer(Effect):
    """This node is the producer of this record."""

    record: StreamRecord
    predecessor: PeerRef


class BeginTerm(Effect):
    """This producer begins a term: that of this record."""

    record: StreamRecord


class GoBelow(Effect):
    """This node is a member below the producer of this record. ``is_rival``: its own record may still be there."""

    record: StreamRecord
    is_rival: bool


class KeepRecord(Effect):
    """Renew this node's record from now on."""

    in_s: float


class TellAsker(Effect):
    """Tell who has asked for the stream to be handed over, if nobody was told yet."""

    why: Exception | None


class Emit(Effect):
    event: Event


class LookUp(Effect):
    """Read the record again; ``producer``: who says that it has written it."""

    producer: NodeId | None


class Act(Enum):
    """The other effects. DELETE: `Role.deleted` follows."""

    WANT_ALL = "subscribe to everything"
    WANT_NO_MORE = "end that subscription"
    FLUSH = "send the children what waits"
    DELETE = "delete the record"
    KEEP_ITEMS = "have items of a durable stream on disk from now on"
    NAME_LOST = "end the stream: another one has its name"


Effects = Sequence[Effect | Act]
