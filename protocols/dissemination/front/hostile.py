"""How a hostile node of the simulator misbehaves in streams.

It takes part in every stream that it hears of, and knows more than a real one could: every edge of every tree, with the
numbers that are on it. What it sends to its children instead of the stream is its children's loss until they have
another parent; nothing else may follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.messages import Message, PeerRef
from peerd.sim.hostile.member import Behaviour
from protocols.dissemination.documents.manifest import CHUNK_BYTES_MIN, DIGEST_BYTES, Attachment
from protocols.dissemination.front.hostile_base import StreamBehaviour as StreamBehaviour, altered
from protocols.dissemination.front.hostile_documents import EXCHANGING as EXCHANGING, AbsurdManifests
from protocols.dissemination.messages import (
    Attach,
    Begin,
    Climb,
    DetachFromParent,
    Dismiss,
    ItemBatch,
    MoveAway,
    Narrow,
    Ready,
    ReplayItems,
    StreamEnds,
    StreamGap,
    StreamItem,
    TreeHeartbeat,
    Widen,
    Widened,
)
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.policies.cost.messages import (
    AskToHold,
    CostRelatives,
    CostReport,
    CostToken,
    OrderToMove,
    PlaceOffered,
)
from protocols.dissemination.policies.overlap.messages import (
    AddRequest,
    AddResult,
    ChildHistory,
    FreePlace,
    ItemBits,
    MoveOrder,
    MoveOutcome,
    OverheadAnswer,
    Reorganise,
)

FLOOD: Final = 40
"""Messages at once of one kind."""
MANY_WANTS: Final = 200
FAR: Final = 1 << 40
"""So far ahead of the stream that it never comes there."""


class FalseItems(StreamBehaviour):
    """Gives its children items that are not in the stream."""

    name = "gives false items"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch | ReplayItems):
            return message
        return replace(message, items=tuple(altered(item, payload=b"zzz false") for item in message.items))


class AltersManifests(StreamBehaviour):
    """Gives its children items to which another document is attached than the producer's."""

    name = "alters manifests"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch | ReplayItems) or not message.items:
            return message
        other = Attachment("other.iso", 300_000, CHUNK_BYTES_MIN, bytes(2 * DIGEST_BYTES))
        return replace(message, items=tuple(altered(item, attachment=other) for item in message.items))


class TakesFromElsewhere(StreamBehaviour):
    """Gives its children earlier items in the place of new ones, with all that the producer has signed of them."""

    name = "shows old items again"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch) or not message.seals:
            return message
        before, self.before = self.before, message
        if before is None or len(before.items) != len(message.items):
            return message
        moved = tuple(_put_at(new, old) for new, old in zip(message.items, before.items, strict=True))
        seals = tuple(replace(seal, first=message.seals[0].first) for seal in before.seals)
        return replace(message, items=moved, seals=seals)

    before: ItemBatch | None = None


def _put_at(new: bytes, old: bytes) -> bytes:
    try:
        at = StreamItem.unpack(new).position
    except ProtocolError:
        return old
    return altered(old, epoch=at.epoch, sequence=at.sequence)


class UnreadableItems(StreamBehaviour):
    """Gives its children items that nobody can read."""

    name = "gives unreadable items"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch):
            return message
        return replace(message, items=tuple(altered(item, payload=b"\xff\x00") for item in message.items))


class RepeatsItems(StreamBehaviour):
    """Gives its children every item again, as if it were the next message."""

    name = "repeats items"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch):
            return message
        self.node.say(peer, message)
        return replace(message, number=message.number + 1)


class Withholds(StreamBehaviour):
    """Is a parent that says nothing any more."""

    name = "withholds the stream"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        return None if isinstance(message, ItemBatch | TreeHeartbeat | StreamGap) else message


class LeavesOut(StreamBehaviour):
    """Says that its children have everything, and gives them nothing."""

    name = "leaves items out"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        return replace(message, items=(), seals=()) if isinstance(message, ItemBatch) else message


class RunsAhead(StreamBehaviour):
    """Tells its children that the stream is far ahead of where it is."""

    name = "runs ahead"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if isinstance(message, ItemBatch | TreeHeartbeat):
            return replace(message, watermark=StreamPosition(message.watermark.epoch, message.watermark.sequence + FAR))
        return message


class InventsLosses(StreamBehaviour):
    """Tells its children that everything is lost."""

    name = "invents losses"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch):
            return message
        return StreamGap(message.stream, START, message.watermark, message.attempt, message.number)


class FalsePaths(StreamBehaviour):
    """Tells its children of a way from the producer that there is not."""

    name = "tells false paths"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, TreeHeartbeat):
            return message
        strangers = [self.node.stranger(peer.id, 64) for _ in range(self.rng.choice((0, 1, 60)))]
        path = (*strangers, *self.node.sample(self.node.others(), 3), self.node.peer)
        return replace(message, path=path, is_stale=self.rng.random() < 0.5)


class AttachFlood(StreamBehaviour):
    """Attaches to everybody, again and again, wants all of the past each time, and never takes it."""

    name = "floods with attaches"

    def strike(self) -> int:
        said = 0
        for victim in self.victims():
            stream, first = victim.record.key, self.rng.getrandbits(40)
            for number in range(FLOOD):
                is_orphan = self.rng.random() < 0.5
                said += self.say(victim, Attach(stream, first + number, ("",), START, False, is_orphan))
            said += self.say(victim, Begin(stream, first + FLOOD - 1, START), Climb(stream, self.node.peer, first))
        return said


class WidenFlood(StreamBehaviour):
    """Attaches, and then wants ever more, and less, and all of the past each time."""

    name = "floods with wants"

    def strike(self) -> int:
        said = 0
        for victim in self.victims():
            stream, attempt = victim.record.key, self.rng.getrandbits(40)
            said += self.say(victim, Attach(stream, attempt, ("a",), START, False, True))
            for number in range(1, FLOOD):
                wants = tuple(f"x{self.rng.getrandbits(30)}" for _ in range(5))
                said += self.say(victim, Widen(stream, (*wants, ""), START, False, attempt, number))
            said += self.say(victim, Narrow(stream, (bytes(8),), attempt, FLOOD))
        return said


class FalseWants(StreamBehaviour):
    """Wants something else of its parent than its clients and children do."""

    name = "lies about its interest"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if isinstance(message, Attach | AddRequest | Widen):
            lies = tuple(f"x{number}" for number in range(MANY_WANTS))
            return replace(message, wants=self.rng.choice((("",), lies, ("!",), ())))
        return message


class FalseStatistics(StreamBehaviour):
    """Lies about what it has needed, what it costs, and what others would cost it."""

    name = "lies about its statistics"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        match message:
            case ChildHistory():
                return replace(message, needed=self._lie(message.needed))
            case Reorganise():
                items = self._lie(message.items)
                return replace(message, items=items, rest=items, shared=1.0, costs=(1.0,) * len(message.costs))
            case OverheadAnswer():
                place = FreePlace(self.node.peer, 0.0, 0.0, MANY_WANTS, 0)
                return replace(message, places=((place,),) * len(message.places))
            case AddResult():
                return replace(message, is_offer=True, missing=0.0, children=0, depth=0)
            case MoveOutcome():
                return replace(message, cost=self.rng.random())
            case CostReport():
                own = replace(message.own, filter_s=3600.0, send_s=0.0, rate=self.rng.choice((0.0, 1e9)), has_room=True)
                return replace(message, own=own, children=(), delays=())
            case PlaceOffered():
                return replace(message, delay_s=0.0, others=-1e15, has_room=True)
            case CostRelatives():
                return replace(message, delay_s=3600.0)
            case _:
                return message

    def _lie(self, bits: ItemBits) -> ItemBits:
        return replace(bits, bits=self.rng.randbytes(len(bits.bits)))


class GivesOrders(StreamBehaviour):
    """Tells others to move, to leave their parents, and that streams are over, as only their parents may."""

    name = "gives orders"

    def strike(self) -> int:
        said = 0
        for victim in self.victims():
            stream, link = victim.record.key, victim.member.up.parent
            attempt = 1 if link is None else link.attempt
            parent = victim.host.peer if link is None else link.peer
            others = tuple(self.node.sample(self.node.others(), 3)) or (self.node.peer,)
            said += self.say(
                victim,
                Dismiss(stream, attempt),
                StreamEnds(stream, attempt),
                MoveAway(stream, attempt, others, True),
                CostToken(stream, True),
                AskToHold(stream),
                OrderToMove(stream, 1, others[0]),
                DetachFromParent(stream, attempt),
            )
            said += self.say(victim, MoveOrder(stream, 1, parent.id, others[0]))
        return said


class SpeaksAsParent(StreamBehaviour):
    """Sends others the stream with the numbers of their parents, on its own link."""

    name = "speaks as parent"

    def strike(self) -> int:
        said = 0
        for victim in self.victims():
            stream, link, watermark = victim.record.key, victim.member.up.parent, victim.member.state.watermark
            if link is None:
                continue
            at = StreamPosition(watermark.epoch, watermark.sequence + 1)
            number = link.number + 1
            item = StreamItem.of(at.epoch, at.sequence, 0, b"zzz false")
            ids = tuple(victim.member.state.wants.sent())[:4]
            said += self.say(
                victim,
                Ready(stream, link.attempt, START, at),
                ItemBatch(stream, (item.packed,), at, link.attempt, number),
                TreeHeartbeat(stream, at, (self.node.peer,), link.attempt, number),
                Widened(stream, ids, START, at, link.attempt, number),
                StreamGap(stream, START, at, link.attempt, number),
            )
        return said


LEAVES: Final[tuple[type[StreamBehaviour], ...]] = (
    *(AttachFlood, WidenFlood, FalseWants, FalseStatistics, GivesOrders, SpeaksAsParent),
)
"""What a member can do that is nobody's parent: it must cost nobody else anything."""
PARENTS: Final[tuple[type[StreamBehaviour], ...]] = (
    *(FalseItems, UnreadableItems, RepeatsItems, Withholds, LeavesOut, RunsAhead, InventsLosses, FalsePaths),
    *(AbsurdManifests, AltersManifests, TakesFromElsewhere),
)
"""What a parent can do to its children."""
KINDS: Final = (*LEAVES, *PARENTS, *EXCHANGING)
BEHAVIOURS: Final[Mapping[str, type[Behaviour]]] = {kind.name: kind for kind in KINDS}
