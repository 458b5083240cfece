"""Messages of dissemination: type ids 0x0300 to 0x033F. ONLY APPEND: they are the protocol itself.

All come on their sender's own link. A link keeps the order of what is sent on it, and the tree relies on that: what a
parent says about its stream holds for all that it sent before, and for nothing that it sends later. A link that breaks
loses what was on it, and nobody is told; so what is sent on an edge is numbered (``number``, from 1 in each direction,
for each ``attempt`` of the child to attach), and where a number is missing the child attaches anew. The names that the
CoDD paper uses (figures 3, 5, 6 and 7) stand in brackets.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import accumulate
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB, PROOF_BYTES_MAX, SIGNATURE_BYTES
from peerd.messages import (
    U8,
    U32,
    U64,
    Message,
    PeerRef,
    Struct,
    Text,
    decode_struct,
    encode_struct,
    message,
)
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.names import INTEREST_ID_BYTES, PLACE_MAX, TERM_MAX, PlaceNumber, StreamPosition
from protocols.dissemination.sealing import BATCH_MAX, DIGEST_BYTES, DIGESTS_MAX, SealedBatch

INTEREST_BYTES_MAX: Final = 8 * KIB
WANTS_MAX: Final = 256
"""Interests in one message, and of one child."""
ITEM_BYTES_MAX: Final = 1024 * KIB
"""Payload of an item. What is larger is attached to an item, travels in chunks, and is not looked into."""
PACKED_BYTES_MAX: Final = ITEM_BYTES_MAX + 36 * KIB
"""An item as it travels: besides the payload it has a manifest, whose digests and names take the most."""
PART_BYTES: Final = 40 * KIB
"""Every part of a large item has so many bytes. An item with a payload of so many is not large yet."""
ITEMS_BYTES_MAX: Final = 48 * KIB
"""Items in one message."""
ITEMS_MAX: Final = 256
DEPTH_MAX: Final = 64
"""Nodes between the producer and a member."""
FAN_OUT_MAX: Final = 256
"""Children of one node."""
PLACES_TOLD_MAX: Final = 4
"""Children that a node names to who asks it for a place that it has not."""
CONTENT_TYPE_MAX: Final = 128
NODE_BYTES_MAX: Final = 8 * KIB
MOVES_BYTES_MAX: Final = 56 * KIB
ENVELOPE_BYTES: Final = 64
"""What an item takes in a message besides its payload, at most."""
ITEM_COST_BYTES: Final = 32
"""What an item counts for besides its bytes: so that buffers have a limit for small items, too."""
PEER_BYTES: Final = 24
"""What a node takes in a message besides its host, at most."""
LARGE_FROM_BYTES: Final = ENVELOPE_BYTES + PART_BYTES
"""An item that takes more does not fit into a message."""

InterestId = Annotated[bytes, Meta(min_length=INTEREST_ID_BYTES, max_length=INTEREST_ID_BYTES)]
InterestIds = Annotated[tuple[InterestId, ...], Meta(max_length=WANTS_MAX)]
InterestText = Annotated[str, Meta(max_length=INTEREST_BYTES_MAX)]
InterestTexts = Annotated[tuple[InterestText, ...], Meta(max_length=WANTS_MAX)]
Path = Annotated[tuple[PeerRef, ...], Meta(max_length=DEPTH_MAX)]
ItemNumber = Annotated[int, Meta(ge=1, le=PLACE_MAX)]


def peer_bytes(peer: PeerRef) -> int:
    """What a node takes in a message, at most: an address of IPv6 has 16 bytes, however short its text is."""
    return PEER_BYTES + max(16, len(peer.host.encode()))


def that_fit(peers: Iterable[PeerRef], bytes_max: int) -> tuple[PeerRef, ...]:
    """So many of the first of these as take no more bytes than that in a message."""
    total = accumulate(map(peer_bytes, (kept := tuple(peers))))
    return tuple(peer for peer, size in zip(kept, total, strict=True) if size <= bytes_max)


class ItemBody(Struct):
    """What an item says. ``published_ms``: the producer's clock, milliseconds since 1970."""

    epoch: PlaceNumber
    sequence: ItemNumber
    published_ms: U64
    payload: Annotated[bytes, Meta(max_length=ITEM_BYTES_MAX)]
    content_type: Annotated[str, Meta(max_length=CONTENT_TYPE_MAX)] = ""
    attachment: Attachment | None = None
    """A document that belongs to the item, and is fetched by itself."""


class StreamItem(msgspec.Struct, eq=False, gc=False):
    """One item of a stream, at one node. Messages, logs and what is remembered have its bytes, as its producer has made
    them: a node reads them once, and passes them on as they came."""

    packed: bytes
    """The msgpack array of its `ItemBody`."""
    position: StreamPosition
    """Where it stands in its stream."""
    size: int
    """What it counts for in buffers and messages."""
    unpacked: ItemBody | None
    """What it says, until it is only remembered."""
    batch: SealedBatch | None = None
    """What it was signed with, if it was. On the way that is the `Seal` of the message."""

    @classmethod
    def of(
        cls,
        epoch: int,
        sequence: int,
        published_ms: int,
        payload: bytes,
        content_type: str = "",
        attachment: Attachment | None = None,
    ) -> StreamItem:
        """The producer's."""
        body = ItemBody(epoch, sequence, published_ms, payload, content_type, attachment)
        packed = encode_struct(body)
        return cls(packed, StreamPosition(epoch, sequence), ITEM_COST_BYTES + len(packed), body)

    @classmethod
    def unpack(cls, packed: bytes) -> StreamItem:
        """Read what has come. Raises `ProtocolError` for what no correct producer makes."""
        body = decode_struct(ItemBody, packed)
        if body.attachment is not None:
            body.attachment.check()
        return cls(packed, StreamPosition(body.epoch, body.sequence), ITEM_COST_BYTES + len(packed), body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamItem) and self.packed == other.packed

    def rest(self) -> None:
        """It is only remembered from now on: keep its bytes, and not what was read of them besides."""
        self.unpacked = None

    @property
    def body(self) -> ItemBody:
        """What it says."""
        return self.unpacked or decode_struct(ItemBody, self.packed)

    @property
    def payload(self) -> bytes:
        """See `ItemBody`."""
        return self.body.payload

    @property
    def published_ms(self) -> int:
        """See `ItemBody`."""
        return self.body.published_ms

    @property
    def attachment(self) -> Attachment | None:
        """See `ItemBody`."""
        return self.body.attachment

    @property
    def is_large(self) -> bool:
        """Whether it does not fit into a message, so that it goes in parts."""
        return len(self.packed) > LARGE_FROM_BYTES


class Seal(Struct):
    """For the next ``items`` of a message: the batch that they are of, and what the producer has signed.

    ``digests``: of the largest parts of the batch of which the message has nothing, left to right. Without a ``count``
    the items are not signed.
    """

    items: Annotated[int, Meta(ge=1, le=ITEMS_MAX)]
    epoch: PlaceNumber = 0
    first: PlaceNumber = 0
    count: Annotated[int, Meta(ge=0, le=BATCH_MAX)] = 0
    signature: Annotated[bytes, Meta(max_length=SIGNATURE_BYTES)] = b""
    digests: Annotated[bytes, Meta(max_length=DIGESTS_MAX * DIGEST_BYTES)] = b""


PackedItem = Annotated[bytes, Meta(max_length=LARGE_FROM_BYTES)]
"""`StreamItem.packed`; or, after `ItemPart`s, the rest of that."""
Items = Annotated[tuple[PackedItem, ...], Meta(max_length=ITEMS_MAX)]
Seals = Annotated[tuple[Seal, ...], Meta(max_length=ITEMS_MAX)]
Certificate = Annotated[bytes, Meta(max_length=PROOF_BYTES_MAX)]


class AttachRefusal(IntEnum):
    """Why a node does not take a child."""

    FULL = 0
    """It has as many children, or sends as many bytes a second, as it is willing to (the fan-out limit)."""
    NOT_A_MEMBER = 1
    """It is not in the tree itself (any more, or yet)."""
    BELOW = 2
    """It is below the node that asks: that would be a circle."""
    INTEREST = 3
    """An interest is not valid, or too costly; the detail says which limit."""
    DEPTH = 4
    BUSY = 5
    """It is moving itself, or too many others are."""


@message(0x0300, bytes_max=60 * KIB)
class Attach(Message):
    """Be my parent (TYPE_ADDCHILD). `Ready`, or `Declined`, comes back.

    ``wants``: all that this node and those below it want. ``after``: they have everything up to there; ``is_new``: they
    want nothing of the past, so what the producer sends from now on is enough. ``is_orphan``: there is no other
    parent, so begin as soon as you can, without waiting for `Begin`. ``attempt`` numbers what a node tries.
    ``instead_of``: a child of yours that leaves, and whose place this node is to take. ``creator``: the node that has
    created the stream. Two of one name may have been created in two parts of a divided ring, and who is in the tree of
    one is no parent for who is in the other.
    """

    stream: NodeId
    attempt: U64
    wants: InterestTexts
    after: StreamPosition
    is_new: bool = False
    is_orphan: bool = False
    instead_of: NodeId | None = None
    creator: NodeId | None = None


@message(0x0301, bytes_max=128)
class Ready(Message):
    """I hold what you want from ``since`` on, up to ``watermark``; tell me when to `Begin`.

    ``since`` is later than what was asked for where even the producer does not remember so much: a gap.
    """

    stream: NodeId
    attempt: U64
    since: StreamPosition
    watermark: StreamPosition


@message(0x0302, bytes_max=12 * KIB)
class Declined(Message):
    """I will not be your parent. ``children``: where to ask instead."""

    stream: NodeId
    attempt: U64
    why: U8
    children: Annotated[tuple[PeerRef, ...], Meta(max_length=32)] = ()
    detail: Text = ""


@message(0x0303, bytes_max=128)
class Begin(Message):
    """Send me everything that I want after this mark, in order, and go on with what comes."""

    stream: NodeId
    attempt: U64
    after: StreamPosition


@message(0x0304, bytes_max=64)
class DetachFromParent(Message):
    """I am not your child (any more): TYPE_LEAVE."""

    stream: NodeId
    attempt: U64


@message(0x0305, bytes_max=60 * KIB)
class Widen(Message):
    """Child to parent: I want this too (TYPE_ADD_QUERY), with what came after the mark.

    `ReplayItems` and `Widened` follow.
    """

    stream: NodeId
    wants: InterestTexts
    after: StreamPosition
    is_new: bool = False
    attempt: U64 = 0
    number: U64 = 0


@message(0x0306, bytes_max=60 * KIB)
class ReplayItems(Message):
    """Parent to child, before `Widened`: items of the past that the child did not want until now."""

    stream: NodeId
    items: Items
    attempt: U64 = 0
    number: U64 = 0
    seals: Seals = ()
    certificate: Certificate = b""


@message(0x0307, bytes_max=8 * KIB)
class Widened(Message):
    """Parent to child: after this mark you have, and get, everything for these interests."""

    stream: NodeId
    interests: InterestIds
    since: StreamPosition
    watermark: StreamPosition
    """And this is how far you have come with that."""
    attempt: U64 = 0
    number: U64 = 0


@message(0x0308, bytes_max=8 * KIB)
class Narrow(Message):
    """Child to parent: nobody here wants these any more (TYPE_REMOVE_QUERY)."""

    stream: NodeId
    interests: InterestIds
    attempt: U64 = 0
    number: U64 = 0


@message(0x0309, bytes_max=60 * KIB)
class ItemBatch(Message):
    """Parent to child: items that it wants, in order. There is nothing else for it up to ``watermark``.

    ``seals``: what the producer has signed; none where none of the items is signed. ``certificate``: of that producer,
    unless it is that of the message with seals before this one on the edge.
    """

    stream: NodeId
    items: Items
    watermark: StreamPosition
    attempt: U64 = 0
    number: U64 = 0
    seals: Seals = ()
    certificate: Certificate = b""


@message(0x030A, bytes_max=20 * KIB)
class TreeHeartbeat(Message):
    """Parent to child, when there is nothing to carry: it has everything up to ``watermark``; the parent lives.

    ``path``: the nodes from the producer to the parent, when they have changed. ``is_stale``: the parent, or a node
    above it, has no parent, so nobody knows whether what was sent is still so.
    """

    stream: NodeId
    watermark: StreamPosition
    path: Path | None = None
    attempt: U64 = 0
    number: U64 = 0
    is_stale: bool = False


@message(0x030B, bytes_max=128)
class StreamGap(Message):
    """Parent to child: what came after ``since`` and up to ``until`` is lost for you, wholly or in part."""

    stream: NodeId
    since: StreamPosition
    until: StreamPosition
    attempt: U64 = 0
    number: U64 = 0


@message(0x030C, bytes_max=512)
class Climb(Message):
    """From a would-be parent upwards to the producer: is the mover below itself? `Climbed` goes to the mover.

    A node that lets it pass does not move for a while, so that what it says stays true until the mover has moved.
    """

    stream: NodeId
    mover: PeerRef
    attempt: U64
    hops: Annotated[int, Meta(ge=0, le=DEPTH_MAX)] = 0


@message(0x030D, bytes_max=256)
class Climbed(Message):
    """The answer to the mover: the way up from its new parent does not lead through itself; or why not."""

    stream: NodeId
    attempt: U64
    is_clear: bool
    hops: U32 = 0


@message(0x030E, bytes_max=64)
class Dismiss(Message):
    """I am not your parent (any more): look for another one."""

    stream: NodeId
    attempt: U64


@message(0x030F, bytes_max=2 * KIB)
class MoveAway(Message):
    """Parent to child: I will leave the tree (TYPE_NEWPARENT). Move to one of these, as long as I am still here.

    ``is_successor``: the first of them is my own parent, and you take my place there.
    """

    stream: NodeId
    attempt: U64
    parents: Annotated[tuple[PeerRef, ...], Meta(max_length=4)]
    is_successor: bool = False


# Questions, and the end: 0x0310 to 0x031F


@message(0x0310, bytes_max=64)
class TreeQuestion(Message):
    """What are you in the tree of this stream, and who are your children? `TreeAnswer` comes back."""

    stream: NodeId


@message(0x0311, bytes_max=60 * KIB)
class TreeAnswer(Message):
    """``node``: `protocols.dissemination.models.StreamTreeNode` as JSON; empty: not in the tree.

    ``children``: as many as there is room for; with long host names those may be fewer than it has.
    """

    stream: NodeId
    node: Annotated[bytes, Meta(max_length=NODE_BYTES_MAX)] = b""
    children: Annotated[tuple[PeerRef, ...], Meta(max_length=FAN_OUT_MAX)] = ()


@message(0x0312, bytes_max=64)
class PlanQuestion(Message):
    """To the producer: what would the policy change next, or (``is_past``) what has it changed? `PlanAnswer` comes."""

    stream: NodeId
    is_past: bool = False


@message(0x0313, bytes_max=60 * KIB)
class PlanAnswer(Message):
    """``moves``: a list of `protocols.dissemination.models.PlannedMove`, or `PastMove`, as JSON."""

    stream: NodeId
    moves: Annotated[bytes, Meta(max_length=MOVES_BYTES_MAX)] = b"[]"


@message(0x0314, bytes_max=64)
class StreamEnds(Message):
    """Parent to child: the producer has ended the stream."""

    stream: NodeId
    attempt: U64


@message(0x0315, bytes_max=64)
class Reserve(Message):
    """Would you take me if this parent of mine died? `Reserved` comes back. Nothing is sent on before that."""

    stream: NodeId
    parent: NodeId


@message(0x0316, bytes_max=2 * KIB)
class Reserved(Message):
    """I keep a place for you, in case this parent of yours dies; or (``is_kept`` is false) I do not, or not any more.

    ``children``: where to ask instead.
    """

    stream: NodeId
    parent: NodeId
    is_kept: bool
    children: Annotated[tuple[PeerRef, ...], Meta(max_length=PLACES_TOLD_MAX)] = ()


@message(0x0317, bytes_max=64)
class Unreserve(Message):
    """I do not need the place any more that you keep for me."""

    stream: NodeId


class HandOverStep(IntEnum):
    """What a producer asks of the node that is to take its place, and tells others once it is the producer."""

    PREPARE = 0
    """Have everything that the stream remembers, up to a mark."""
    TAKE = 1
    """The record is deleted: write yours, and go on."""
    ASK = 2
    """Have you taken the stream over, although this node has not heard of it?"""
    STAND_BY = 3
    """Have everything, and go on with it: you are to take the stream over when this node is gone."""
    RELEASE = 4
    """Be a standby no more: there are others, or the stream is over."""
    TAKEN = 5
    """This node has taken the stream over, its producer being gone: so says the ring."""


class HandOverState(IntEnum):
    """What that node answers."""

    PREPARING = 0
    READY = 1
    TAKING = 2
    """Its record is on its way to the ring."""
    PRODUCING = 3
    REFUSED = 4


@message(0x0318, bytes_max=128)
class HandOver(Message):
    """Producer to the next one: `HandOverAnswer` comes back at once, and the question again until all is done.

    ``term``: the producer's own. ``watermark``: the next one has to have everything up to here.
    """

    stream: NodeId
    step: U8
    term: Annotated[int, Meta(ge=0, le=TERM_MAX)]
    watermark: StreamPosition


@message(0x0319, bytes_max=3 * KIB)
class HandOverAnswer(Message):
    """How far the next producer is. ``detail``: why it refuses."""

    stream: NodeId
    state: U8
    detail: Text = ""


@message(0x031A, bytes_max=48 * KIB)
class ItemPart(Message):
    """Parent to child: the next part of a large item.

    ``left``: so much of it comes after this part. The last bytes are what the `ItemBatch` or `ReplayItems` that follows
    has as its one item. Nothing else comes on the edge in between.
    """

    stream: NodeId
    data: Annotated[bytes, Meta(min_length=1, max_length=PART_BYTES)]
    left: U32
    attempt: U64 = 0
    number: U64 = 0


@message(0x031B, bytes_max=64)
class ItemTaken(Message):
    """Child to parent: I have taken in the large item that ended with your message of this number.

    To read and match one takes a while, and what comes meanwhile has to wait; so a parent does not run ahead of that.
    """

    stream: NodeId
    attempt: U64
    number: U64


MESSAGES: Final = (
    *(
        Attach,
        Ready,
        Declined,
        Begin,
        DetachFromParent,
        Widen,
        ReplayItems,
        Widened,
        Narrow,
        ItemBatch,
        TreeHeartbeat,
        StreamGap,
        Climb,
        Climbed,
    ),
    *(Dismiss, MoveAway, TreeQuestion, TreeAnswer, PlanQuestion, PlanAnswer, StreamEnds),
    *(Reserve, Reserved, Unreserve),
    *(HandOver, HandOverAnswer),
    *(ItemPart, ItemTaken),
)
