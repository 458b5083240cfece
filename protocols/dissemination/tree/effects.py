"""What is to be done about a node's edges in a tree: `Upstream` and `Downstream` say it, and `StreamMember` does it.

An effect is done before the next one, and may bring the core the next event at once: who is told that a move has ended
may begin another. So no core is half-way through anything when it returns its effects. Where effects come one by one,
from a generator, each is made when the one before it was done.

Work that is given away (`tree/matching.py`) and the search for a parent (`tree/search.py`) call back instead, because
workers and policies, which have them too, know nothing of these effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import AttachRefusal, ItemBatch, ReplayItems, StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Holder, Interest, ParsedItem
from protocols.dissemination.tree.links import Downlink, Uplink
from protocols.dissemination.tree.search import MoveEnd
from protocols.dissemination.tree.subscription import OwnSubscription


class EdgeEffect(Frozen):
    """Something that is to be done for one member."""


class Send(EdgeEffect):
    peer: PeerRef
    message: Message


class Ended(EdgeEffect):
    """Tell the owner that an attempt to get a parent is over: see `MemberOwner.ended`."""

    peer: PeerRef
    end: MoveEnd
    why: AttachRefusal | None = None
    others: Sequence[PeerRef] = ()


class TakeItems(EdgeEffect):
    """Take these in, in their order, as far as they are right; `Upstream.taken` follows."""

    link: Uplink
    message: ItemBatch | ReplayItems
    """Which has brought them."""
    items: Sequence[StreamItem]
    error: ProtocolError | None = None
    """What is wrong with what has come after them."""
    parsed: ParsedItem | None = None
    """The one that they are, if it was parsed, and matched if it was the next of the stream, before."""


class ReadAside(EdgeEffect):
    """Have a large item read, and matched if it is the next of the stream, meanwhile; `Upstream.read` follows."""

    link: Uplink
    message: ItemBatch | ReplayItems
    item: StreamItem


class TakeOver(EdgeEffect):
    """What a new parent has sent counts from now on. What is wrong with it `Blame` tells, when all else is done."""

    link: Uplink
    sent: Sequence[ParsedItem]


class GoOn(EdgeEffect):
    """Take in what has come on this link meanwhile: `Upstream.go_on`."""

    link: Uplink


class Blame(EdgeEffect):
    """Part with a node because of what it has sent earlier, if that was wrong, whoever's message is handled now."""

    link: Uplink


class Refuse(EdgeEffect):
    """Raise this: the message that is handled now is one that no correct node sends. What comes after is not done."""

    error: ProtocolError


class NewPath(EdgeEffect):
    """The way from the producer is this."""

    ancestors: tuple[PeerRef, ...]


class ItemsLost(EdgeEffect):
    """What came after ``since`` and up to ``until`` is lost, wholly or in part."""

    since: StreamPosition
    until: StreamPosition


class FellBack(EdgeEffect):
    """The stream is not as far as this node was told before, but to this mark: it goes on behind that."""

    watermark: StreamPosition


class Need(EdgeEffect):
    """Have these complete for a child or a subscription: see `Downstream.has` for when they are as complete as can be.

    A child that has yet to begin waits for nothing else any more, whatever was wanted before: it asks anew.
    """

    holder: Holder
    who: Downlink | OwnSubscription
    interests: Sequence[Interest]
    after: StreamPosition | None
    is_more: bool = False
    """The child has begun, and wants these besides."""

    @property
    def ids(self) -> list[bytes]:
        return [interest.id for interest in self.interests]


class Release(EdgeEffect):
    """A child wants these (or anything) no more. ``is_final``: it has said so, and will not come back for them."""

    holder: Holder
    ids: Sequence[bytes] | None = None
    is_final: bool = False


class HearOut(EdgeEffect):
    """Take in what a child has said meanwhile: `Downstream.hear_out`."""

    child: Downlink


class Flush(EdgeEffect):
    """Send a child what waits, or a heartbeat: `Downstream.flush_child`."""

    child: Downlink
    past_bytes: int = 0


class EdgeAct(Enum):
    """The other effects."""

    ANSWERED = "some interests are complete, or as complete as they will be"
    UNSETTLED = "items come from another parent from now on"
    FRESHENED = "whether somebody vouches for what this node has, by `Upstream.is_stale`"
    OFFER_ALL = "see whether somebody has to get what this node has"
    CALL_AGAIN = "there is more to be done, by `StreamMember.go_on`"
    LOOK_UP = "the stream is in a later term than its record: read that again"
    OVER = "the producer has ended the stream, and all of it has come"
    ORPHANED = "there is no parent, and if none is under way the owner is told so"


Effects = list[EdgeEffect | EdgeAct]
OneByOne = Iterator[EdgeEffect | EdgeAct]
"""Each is made when the one before it was done."""
