"""Messages of CoDD's policies: type ids 0x0320 to 0x032F. ONLY APPEND. The paper's names stand in brackets.

TYPE_GETSEEDSET is no message here: the stream's record names the seeds. TYPE_ADDCHILD, TYPE_ADD_QUERY,
TYPE_REMOVE_QUERY, TYPE_LEAVE and TYPE_NEWPARENT are the tree's own (`protocols.dissemination.messages`).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U16, U32, U64, Message, PeerRef, Struct, message
from protocols.dissemination.messages import DEPTH_MAX, InterestTexts

BITS_BYTES_MAX: Final = 2 * KIB
"""A set of items in a message. A window with more items than bits fit in here is told as a sample."""
EVERY_LOG2_MAX: Final = 8
WINDOW_MAX: Final = 1 << 16
SPAN_MAX: Final = WINDOW_MAX + WINDOW_MAX // 4
"""Items of the stream that a set may speak of: a window, and what came since it was cut."""
SOUGHT_MAX: Final = 28
"""Movers that a place is looked for by one question."""
SOUGHT_BYTES_MAX: Final = 32 * KIB
"""Their sets of items in one question, together."""
PLACES_MAX: Final = 4
"""Free places that are told of for a mover: those of several movers are often the same."""

Rate = Annotated[float, Meta(ge=0.0, le=1.0)]
"""Items for each item of the stream."""
Cost = Annotated[float, Meta(ge=0.0, le=float(DEPTH_MAX))]
"""The same, of several nodes together; and what the levels between them count for."""
WayUp = Annotated[tuple[NodeId, ...], Meta(max_length=DEPTH_MAX)]
Hops = Annotated[int, Meta(ge=0, le=DEPTH_MAX)]


class ItemBits(Struct):
    """`protocols.dissemination.statistics.received.ItemSet` as it travels: one bit for each item that it speaks of.

    The first bit is the first number above ``since`` that ``2 ** every_log2`` divides. Bits above ``watermark`` are 0.
    Any bytes of the right length are a valid set, so that nothing in them can harm who reads them.
    """

    epoch: U64
    since: U64
    watermark: U64
    bits: Annotated[bytes, Meta(max_length=BITS_BYTES_MAX)]
    every_log2: Annotated[int, Meta(ge=0, le=EVERY_LOG2_MAX)] = 0


class Sought(Struct):
    """A mover that a place is looked for. ``cost``: what it would cost those above the node that is asked, from the
    granter on (the granter itself needs its items in any case). ``limit``: only places that count for less are of use.
    """

    items: ItemBits
    cost: Cost
    limit: Cost


class FreePlace(Struct):
    """A node that a mover could go below. ``cost``: as in `Sought`, with this node as its parent."""

    peer: PeerRef
    cost: Cost
    shared: Rate
    """For this node alone."""
    room: U16
    """So many children more it would take."""
    depth: Hops
    """Levels below the granter."""


@message(0x0320, bytes_max=60 * KIB)
class AddRequest(Message):
    """A newcomer to a seed, and from node to child: who has room for me (TYPE_ADD)? `AddResult` goes to the joiner.

    ``wants``: what it and those below it want. ``items``: which of the last items that were, where that is known: the
    joiner has been in the tree before, or the first node asked has looked it up. ``attempt`` numbers what a joiner
    tries; from the second on, children are not asked in the order of their overlap alone.
    """

    stream: NodeId
    joiner: PeerRef
    attempt: U32
    seed: NodeId
    """Which of the seeds this request goes down from: it is answered once for each."""
    wants: InterestTexts
    items: ItemBits | None = None
    hops: Hops = 0


@message(0x0321, bytes_max=256)
class AddResult(Message):
    """I have room for you, or (not ``is_offer``) none was found below the seed that you asked (TYPE_ADDRESULT).

    ``missing``: items that I would get for you alone, for each item of the stream. ``children`` and ``depth`` are for
    the joiner's choice among equal offers.
    """

    stream: NodeId
    attempt: U32
    seed: NodeId
    is_offer: bool
    missing: Rate = 0.0
    children: U16 = 0
    depth: Hops = 0


@message(0x0323, bytes_max=8 * KIB)
class Reorganise(Message):
    """Please have this child of mine moved: I get too much in vain (TYPE_REORGANIZE). Goes up the tree to the first
    node that knows a better branch: its granter.

    ``items``: what the child needs. ``rest``: what of it nobody else needs on the way so far; each node on the way
    leaves out what it needs otherwise. ``costs``: how much that is, for each item of the stream; ``path``: at whom.
    Both begin at the node that asks.
    """

    stream: NodeId
    child: PeerRef
    items: ItemBits
    rest: ItemBits
    spurious_share: Rate
    shared: Rate
    """What the child costs its parent, when those children that need the same share what it costs."""
    path: WayUp
    costs: Annotated[tuple[Rate, ...], Meta(max_length=DEPTH_MAX)]


@message(0x0324, bytes_max=60 * KIB)
class GetOverhead(Message):
    """Parent to child: what would these movers cost you, and those below you (TYPE_GETOVERHEAD)?

    A granter asks so for a whole batch, and each node passes on what those below it could be of use for.
    `OverheadAnswer` comes back. ``depth``: levels between the granter and the node that is asked.
    """

    stream: NodeId
    sweep: U64
    depth: Hops
    movers: Annotated[tuple[Sought, ...], Meta(min_length=1, max_length=SOUGHT_MAX)]


@message(0x0325, bytes_max=36 * KIB)
class OverheadAnswer(Message):
    """The answer to `GetOverhead`: for each of its movers the best places in this branch. ``nodes``: so many looked."""

    stream: NodeId
    sweep: U64
    places: Annotated[
        tuple[Annotated[tuple[FreePlace, ...], Meta(max_length=PLACES_MAX)], ...],
        Meta(max_length=SOUGHT_MAX),
    ]
    nodes: U32 = 1


@message(0x0326, bytes_max=2 * KIB)
class MoveOrder(Message):
    """Granter to a node below it: leave this parent for that one (end of ``reorganize``, figure 7).

    `MoveReport` follows. ``others``: where to go if that one has no room by then.
    """

    stream: NodeId
    number: U64
    from_parent: NodeId
    to_parent: PeerRef
    others: Annotated[tuple[PeerRef, ...], Meta(max_length=PLACES_MAX)] = ()


@message(0x0327, bytes_max=64)
class MoveReport(Message):
    """The answer to `MoveOrder`: whether it was done, and where to."""

    stream: NodeId
    number: U64
    is_done: bool
    to_parent: NodeId


@message(0x0328, bytes_max=4 * KIB)
class MoveOutcome(Message):
    """A mover to its old and its new parent, some items later, and from both to the granter: what came of the move.

    ``items``: what the mover has needed since. The parents put in its place what the mover would cost them for that.
    """

    stream: NodeId
    number: U64
    mover: NodeId
    granter: PeerRef
    items: ItemBits | None = None
    cost: Rate = 0.0


@message(0x0329, bytes_max=4 * KIB)
class ChildHistory(Message):
    """Child to parent: what I, with those below me, have needed, also before I came to you.

    Sent after a move, and when those below have changed, so that a parent's statistics are not those of the past.
    """

    stream: NodeId
    needed: ItemBits
    children: U16 = 0
    """How many I have."""


@message(0x032A, bytes_max=64)
class RoomAbove(Message):
    """Parent to child: I have room for one of your children. Tell it by `MoveToGrandparent`."""

    stream: NodeId


@message(0x032B, bytes_max=512)
class MoveToGrandparent(Message):
    """Parent to child: my own parent has room; leave me for it."""

    stream: NodeId
    to_parent: PeerRef


MESSAGES: Final = (
    AddRequest,
    AddResult,
    Reorganise,
    GetOverhead,
    OverheadAnswer,
    MoveOrder,
    MoveReport,
    MoveOutcome,
    ChildHistory,
    RoomAbove,
    MoveToGrandparent,
)
