"""The two ends of an edge of the tree, as the node above and the node below keep them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.messages import (
    LARGE_FROM_BYTES,
    PACKED_BYTES_MAX,
    PART_BYTES,
    WANTS_MAX,
    ItemBatch,
    ItemPart,
    Narrow,
    ReplayItems,
    StreamGap,
    StreamItem,
    TreeHeartbeat,
    Widen,
    Widened,
)
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import Interest, LastSent, ParsedItem
from protocols.dissemination.tree.past import StreamPast
from protocols.dissemination.tree.seals import Parcel
from protocols.dissemination.tree.state import give
from protocols.dissemination.tree.wants import Ask

EdgeMessage = ItemBatch | TreeHeartbeat | ReplayItems | Widened | StreamGap | ItemPart
"""What a parent sends on an edge once it has begun, numbered."""
PARKED_MAX: Final = 64
"""Messages of one edge and direction that wait for one that was sent earlier."""
PARKED_S: Final = 1.0
"""How long they wait; then it is lost, and the child attaches anew."""
UNTAKEN_MAX: Final = PARKED_MAX // 2
"""Messages that a parent sends after a large item before the child has taken that in: they wait there."""


class Late(Frozen):
    """An interest that is complete once the parent has come as far as this node had when it began to send it."""

    at: StreamPosition
    since: StreamPosition
    answers: int
    """So many questions are answered with that."""


class UplinkStage(Enum):
    """How far a node has come that is the parent, or is to be it."""

    ATTACHING = "attaching"
    """It was asked whether it can begin."""
    ASKED = "asked"
    """It was told to begin."""
    BEGUN = "begun"


UPLINK_STEPS: Final = {
    UplinkStage.ATTACHING: (UplinkStage.ASKED, UplinkStage.BEGUN),
    UplinkStage.ASKED: (UplinkStage.ASKED, UplinkStage.BEGUN),
    UplinkStage.BEGUN: (),
}
"""What may come after each stage. An orphan's parent begins unasked: there is no other parent to fall in step with. Who
says twice that it can begin, because the network repeats it, is told twice to do so."""


class Completeness(Enum):
    """How much of the stream a parent has promised, and so whether a hole in what it sends is a lie."""

    PART = "part"
    ALL = "all"
    """It has promised to send everything, without a break since."""
    WHOLE = "whole"
    """And from where it is now on, it leaves nothing out."""
    NARROWED = "narrowed"
    """It was told once that this node does not want everything any more: what it says of that may cross with that."""


PROMISED: Final = (Completeness.ALL, Completeness.WHOLE)


class Intake(Enum):
    """What is being done with what came last."""

    FREE = "free"
    EARLY = "early"
    """What it sends next is of a later term than the stream's record, which is read again."""
    BUSY = "busy"
    """A large item is being read and matched. What came after it waits."""


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
    stage: UplinkStage = UplinkStage.ATTACHING
    completeness: Completeness = Completeness.PART
    intake: Intake = Intake.FREE
    is_clear: bool = False
    """The way up from it does not lead through this node."""
    watermark: StreamPosition = START
    """It has sent everything up to here. That may be less than this node has had, from the parent before."""
    late: dict[bytes, Late] = field(default_factory=dict)
    """By interest, so that there are never more than this node has asked for."""
    heard_at: float = 0.0
    number: int = 0
    """Of the last message on this edge."""
    asked_number: int = 0
    """Of the last message to the parent on this edge."""
    parked: dict[int, EdgeMessage] = field(default_factory=dict)
    """Messages that came before others that were sent earlier, by number."""
    parked_at: float = 0.0
    path: tuple[PeerRef, ...] | None = None
    """The nodes from the producer to it, as it has said."""
    last_sent: LastSent | None = None
    """While another node is the parent: what this one has sent, for when it is."""
    is_stale: bool | None = None
    """Whether nobody vouches for what it sends; ``None``: that is not known before its first heartbeat."""
    parts: list[bytes] = field(default_factory=list)
    """What has come of a large item."""
    left: int = 0
    """So much of it is still to come."""
    has_ended: bool = False
    """It has said, while an item was being read, that the stream is over."""
    certificate: bytes = b""
    """Of the producer, as it has sent it last."""
    fault: ProtocolError | None = None
    """What was found to be wrong with what it has sent, after its message was handled."""

    @property
    def has_begun(self) -> bool:
        """Whether it sends the stream."""
        return self.stage is UplinkStage.BEGUN

    @property
    def was_asked(self) -> bool:
        """Whether it was told to begin."""
        return not self.is_orphan and self.stage is not UplinkStage.ATTACHING

    @property
    def may_begin(self) -> bool:
        """Whether what it sends is awaited."""
        return self.stage is not UplinkStage.ATTACHING

    @property
    def is_busy(self) -> bool:
        """Whether an item of it is being read and matched."""
        return self.intake is Intake.BUSY

    def comes_to(self, stage: UplinkStage) -> None:
        """Take a step of `UPLINK_STEPS`."""
        assert stage in UPLINK_STEPS[self.stage], (self.stage, stage)
        self.stage = stage

    def promises_all(self) -> None:
        """It says that it sends everything."""
        if self.completeness is Completeness.PART:
            self.completeness = Completeness.ALL

    def came_to(self, watermark: StreamPosition, *, is_proven: bool) -> None:
        """It is so far, and has said so. ``is_proven``: what it sends is signed, so that a hole can be told."""
        self.watermark = watermark
        if self.completeness in PROMISED:
            self.completeness = Completeness.WHOLE if is_proven else Completeness.ALL

    def widens(self, stream: NodeId, asks: Iterable[Ask]) -> Iterator[Widen]:
        """The messages with which it is asked for more."""
        for ask in asks:
            self.asked_number += 1
            after = START if ask.after is None else ask.after
            yield Widen(stream, (ask.interest.text,), after, ask.after is None, self.attempt, self.asked_number)

    def narrows(self, stream: NodeId, ids: Sequence[bytes], everything: bytes) -> Iterator[Narrow]:
        """The messages with which it is told what is wanted no more."""
        for at in range(0, len(ids), WANTS_MAX):
            self.asked_number += 1
            some = tuple(ids[at : at + WANTS_MAX])
            self.forget(some)
            if everything in some:
                self.completeness = Completeness.NARROWED
            yield Narrow(stream, some, self.attempt, self.asked_number)

    def keep(self, parsed: ParsedItem) -> None:
        """While another node is the parent: it has sent this. Raises `ProtocolError`: of too many objects."""
        if self.last_sent is not None:
            give(self.last_sent, parsed)

    def answered(self, ids: Iterable[bytes], at: StreamPosition, since: StreamPosition) -> None:
        """It sends these, which counts once it has come to a mark. What it has said of them before waits for that."""
        for id in ids:
            before = self.late.get(id, Late(at, since, 0))
            answers = min(PARKED_MAX, before.answers + 1)
            self.late[id] = Late(max(at, before.at), min(since, before.since), answers)

    def caught_up(self) -> list[tuple[list[bytes], StreamPosition]]:
        """What it sends that counts by now, and since when: each as often as it is an answer."""
        found = [(id, late) for id, late in self.late.items() if late.at <= self.watermark]
        self.forget(id for id, _ in found)
        return [([id] * late.answers, late.since) for id, late in found]

    def forget(self, ids: Iterable[bytes]) -> None:
        """These are not asked for any more, or are counted."""
        for id in ids:
            self.late.pop(id, None)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self.parked) <= PARKED_MAX
        assert len(self.late) <= WANTS_MAX
        assert self.left + sum(map(len, self.parts)) <= PACKED_BYTES_MAX

    def add(self, part: ItemPart) -> bool:
        """Take in the next part of an item; whether it can be that."""
        size = len(part.data)
        is_next = part.left == self.left - size if self.parts else part.left + size <= PACKED_BYTES_MAX
        if not is_next or (size < PART_BYTES and part.left):
            return False
        self.parts.append(part.data)
        self.left = part.left
        return True

    def whole(self, items: Sequence[bytes]) -> Sequence[bytes] | None:
        """The items of a message, one of which may have come in parts but for its end; ``None``: they are no such."""
        if not self.parts:
            return items
        if len(items) != 1 or len(items[0]) != self.left:
            return None
        whole = b"".join((*self.parts, items[0]))
        self.parts, self.left = [], 0
        return (whole,)


class ChildStage(Enum):
    """How far the end above has come."""

    WAITING = "waiting"
    """For the interests of the child to be complete here."""
    OFFERED = "offered"
    """The child says when to begin."""
    LIVE = "live"


@dataclass(frozen=True, slots=True, eq=False)
class ChildPast:
    """The part of the past that a child has asked for and that was not looked through yet."""

    past: StreamPast
    is_old: bool
    """The child is already further in the stream than this."""


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
    queue: list[StreamItem] = field(default_factory=list)
    """To be sent at the end of the current call, or when the child has taken what was sent before."""
    queue_bytes: int = 0
    outbox: deque[EdgeMessage | Parcel | ChildPast] = field(default_factory=deque)
    """To be sent before the queue. Items in there are whole: a large one is cut into parts as it is sent."""
    parted: int = 0
    """So much has been sent of the large item that is the first in there."""
    untaken: deque[int] = field(default_factory=deque)
    """The numbers of messages with which large items ended that the child has not taken in."""
    outbox_bytes: int = 0
    """Of the items in there, without those of the past that were not looked through yet."""
    lost_until: StreamPosition = START
    """Its queue was full, and everything up to here that it has not been told of is lost for it."""
    slow_since: float | None = None
    number: int = 0
    """Of the last message on this edge."""
    asked_number: int = 0
    """Of the last message from the child on this edge."""
    parked: dict[int, Widen | Narrow] = field(default_factory=dict)
    """Messages that came before others that were sent earlier, by number."""
    parked_at: float = 0.0
    path_told: int = -1
    last_sent: LastSent | None = None
    """What it was given of each object, where the kind of interests goes by that."""
    certificate: bytes = b""
    """Of the producer, as it was sent last."""
    is_behind: bool = False
    """It missed items while it took nothing; it is to have the newest ones instead."""
    beat_at: float = 0.0

    @property
    def is_untaken(self) -> bool:
        """Whether so much was sent after a large item that this end waits until the child has taken that in."""
        return bool(self.untaken) and self.number - self.untaken[0] >= UNTAKEN_MAX

    def next_message(self, stream: NodeId, first: EdgeMessage | Parcel) -> EdgeMessage:
        """The next message: the first of the outbox, or a part of the large item in it."""
        self.number += 1
        if not isinstance(first, Parcel):
            self.outbox.popleft()
            return replace(first, attempt=self.attempt, number=self.number)
        edge = self.attempt, self.number
        packed = first.packed
        if first.items[0].is_large:
            [whole], begin = packed, self.parted
            if len(whole) - begin > LARGE_FROM_BYTES:
                self.parted += PART_BYTES
                return ItemPart(stream, whole[begin : self.parted], len(whole) - self.parted, *edge)
            packed, self.parted = (whole[begin:],), 0
            self.untaken.append(self.number)
        self.outbox.popleft()
        self.outbox_bytes -= first.size
        seals, certificate = first.seals()
        if seals:
            told, self.certificate = b"" if certificate == self.certificate else certificate, certificate
            certificate = told
        if first.watermark is None:
            return ReplayItems(stream, packed, *edge, seals, certificate)
        return ItemBatch(stream, packed, first.watermark, *edge, seals, certificate)
