"""Messages of CoDD's policies: type ids 0x0320 to 0x032F. ONLY APPEND. The paper's names stand in brackets.

TYPE_GETSEEDSET is no message here: the stream's record names the seeds. TYPE_ADDCHILD, TYPE_ADD_QUERY,
TYPE_REMOVE_QUERY, TYPE_LEAVE and TYPE_NEWPARENT are the tree's own (`protocols.dissemination.messages`).
"""

from __future__ import annotations

from typing import Annotated, Final

import annotated_types

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U16, U32, U64, Message, PeerRef, message, struct
from protocols.dissemination.messages import DEPTH_MAX, InterestTexts

BITS_BYTES_MAX: Final = 2 * KIB
"""A set of items in a message. A window with more items than bits fit in here is told as a sample."""
EVERY_LOG2_MAX: Final = 8
WINDOW_MAX: Final = 1 << 16
SPAN_MAX: Final = WINDOW_MAX + WINDOW_MAX // 4
"""Items of the stream that a set may speak of: a window, and what came since it was cut."""
CHILDREN_TOLD_MAX: Final = 64

Rate = Annotated[float, annotated_types.Ge(0.0), annotated_types.Le(1.0)]
"""Items for each item of the stream."""
WayUp = Annotated[tuple[NodeId, ...], annotated_types.MaxLen(DEPTH_MAX)]
Hops = Annotated[int, annotated_types.Ge(0), annotated_types.Le(DEPTH_MAX)]


@struct
class ItemBits:
    """`protocols.dissemination.statistics.received.ItemSet` as it travels: one bit for each item that it speaks of.

    The first bit is the first number above ``since`` that ``2 ** every_log2`` divides. Bits above ``through`` are 0.
    Any bytes of the right length are a valid set, so that nothing in them can harm who reads them.
    """

    epoch: U64
    since: U64
    through: U64
    bits: Annotated[bytes, annotated_types.MaxLen(BITS_BYTES_MAX)]
    every_log2: Annotated[int, annotated_types.Ge(0), annotated_types.Le(EVERY_LOG2_MAX)] = 0


@struct
class ChildPlace:
    """A child of a node that was asked by `GetOverhead`. ``missing``: what a node there would cost the child."""

    peer: PeerRef
    missing: Rate


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
    """Please have this child of mine moved: I get too much in vain (TYPE_REORGANIZE). Goes up the tree to the producer.

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
    costs: Annotated[tuple[Rate, ...], annotated_types.MaxLen(DEPTH_MAX)]


@message(0x0324, bytes_max=4 * KIB)
class GetOverhead(Message):
    """Producer to a node: what would a node that needs these items cost you (TYPE_GETOVERHEAD)?

    `OverheadAnswer` comes back.
    """

    stream: NodeId
    search: U64
    items: ItemBits


@message(0x0325, bytes_max=20 * KIB)
class OverheadAnswer(Message):
    """The answer to `GetOverhead`: what it would cost me, whether I have room, and what it would cost my children."""

    stream: NodeId
    search: U64
    missing: Rate
    shared: Rate
    """The same, when those children that need the same share what it costs."""
    has_room: bool
    children: Annotated[tuple[ChildPlace, ...], annotated_types.MaxLen(CHILDREN_TOLD_MAX)] = ()


@message(0x0326, bytes_max=512)
class MoveOrder(Message):
    """Producer to a node: leave this parent for that one (end of ``reorganize``, figure 7). `MoveReport` follows."""

    stream: NodeId
    number: U64
    from_parent: NodeId
    to_parent: PeerRef


@message(0x0327, bytes_max=64)
class MoveReport(Message):
    """The answer to `MoveOrder`: whether it was done."""

    stream: NodeId
    number: U64
    is_done: bool


@message(0x0328, bytes_max=4 * KIB)
class MoveOutcome(Message):
    """A mover to its old and its new parent, some items later, and from both to the producer: what came of the move.

    ``items``: what the mover has needed since. The parents put in its place what the mover would cost them for that.
    """

    stream: NodeId
    number: U64
    mover: NodeId
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
