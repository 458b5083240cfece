"""Messages of the cost-based policy: type ids 0x0330 to 0x033F. ONLY APPEND: they are the protocol itself.

Numbers come from members that may err or lie: they are bounded here, and a node believes a child no more than that.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U8, U32, Message, PeerRef, Struct, message

FAMILY_MAX: Final = 32
"""Children that a report tells of. What a node has beyond that takes no part in decisions."""
DELAYS_MAX: Final = 512
RELATIVES_BYTES_MAX: Final = 58 * KIB
"""Of the nodes that a child is asked for the delays to. With long host names those are fewer than `DELAYS_MAX`."""
FIGURES_BYTES: Final = 64
BRANCH_BYTES: Final = 40
DELAY_BYTES: Final = 30
"""What a node's figures take in a report besides the node and its children, a child, and a delay, at most."""
CHILDREN_TOLD_MAX: Final = 8
"""Whom a newcomer is told to ask next: few, so that a question of few bytes is not answered with many."""
RATE_MAX: Final = 1e9
SECONDS_MAX: Final = 3600.0
LOSS_MAX: Final = 1e15

Rate = Annotated[float, Meta(ge=0, le=RATE_MAX)]
RateSum = Annotated[float, Meta(ge=0, le=RATE_MAX * 1e3)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]


class BranchFigures(Struct):
    """A child, as its parent tells the node above of it."""

    node: NodeId
    rate_max: Rate
    rate_sum: RateSum
    fan_out: U8


class NodeFigures(Struct):
    """What a node costs (measured), how many items a second it wants itself, and its children."""

    peer: PeerRef
    filter_s: Seconds
    send_s: Seconds
    collect: Annotated[float, Meta(ge=0, le=1)]
    decide: Annotated[float, Meta(ge=0, le=1)]
    rate: Rate
    has_room: bool
    children: Annotated[tuple[BranchFigures, ...], Meta(max_length=FAMILY_MAX)]


class DelayTo(Struct):
    """A one-way delay from the node that tells of it."""

    node: NodeId
    delay_s: Seconds


@message(0x0330, bytes_max=60 * KIB)
class CostReport(Message):
    """Child to parent (section 3.2.3): its own figures, those of its children, and the delays that it was asked for."""

    stream: NodeId
    own: NodeFigures
    children: Annotated[tuple[NodeFigures, ...], Meta(max_length=FAMILY_MAX)]
    delays: Annotated[tuple[DelayTo, ...], Meta(max_length=DELAYS_MAX)]


@message(0x0331, bytes_max=60 * KIB)
class CostRelatives(Message):
    """Parent to child: tell me the delays to these.

    ``delay_s``: how long an item takes from the producer to you, without the last link.
    """

    stream: NodeId
    delay_s: Seconds
    peers: Annotated[tuple[PeerRef, ...], Meta(max_length=DELAYS_MAX)]


@message(0x0332, bytes_max=64)
class CostToken(Message):
    """Parent to child: it is your turn (algorithm 1). ``is_involved``: you are being moved about; only pass it on."""

    stream: NodeId
    is_involved: bool


@message(0x0333, bytes_max=64)
class AskToHold(Message):
    """Parent to child: do not adapt anything until my token comes (algorithm 4)."""

    stream: NodeId


@message(0x0334, bytes_max=64)
class HoldsStill(Message):
    """Child to parent: I hold still."""

    stream: NodeId


@message(0x0335, bytes_max=64)
class AskToYield(Message):
    """Child to parent: a node with a larger number waits for me; let me go if you have not adapted yet."""

    stream: NodeId


@message(0x0336, bytes_max=64)
class Yields(Message):
    """Parent to child: go; and hold still for me again when you can."""

    stream: NodeId


@message(0x0337, bytes_max=512)
class OrderToMove(Message):
    """Ancestor to child or grandchild: get this node as your parent. `OrderEnded` comes back."""

    stream: NodeId
    order: U32
    to: PeerRef


@message(0x0338, bytes_max=64)
class OrderEnded(Message):
    """The order was carried out, or was not."""

    stream: NodeId
    order: U32
    is_moved: bool


@message(0x0339, bytes_max=128)
class AskForPlace(Message):
    """A newcomer asks what it would cost to have it as a child. ``None``: it does not know its rates yet."""

    stream: NodeId
    ask: U32
    rate_max: Rate | None
    rate_sum: RateSum | None


@message(0x033A, bytes_max=3 * KIB)
class PlaceOffered(Message):
    """The answer: ``delay_s`` from the producer to the newcomer, without the last link; what ``others`` lose by it.

    ``rate_sum``: what was taken for the newcomer's, where it did not say. ``children``: others to ask.
    """

    stream: NodeId
    ask: U32
    delay_s: Seconds
    others: Annotated[float, Meta(ge=-LOSS_MAX, le=LOSS_MAX)]
    rate_sum: RateSum
    has_room: bool
    children: Annotated[tuple[PeerRef, ...], Meta(max_length=CHILDREN_TOLD_MAX)] = ()


MESSAGES: Final = (
    *(CostReport, CostRelatives, CostToken, AskToHold, HoldsStill, AskToYield, Yields, OrderToMove, OrderEnded),
    *(AskForPlace, PlaceOffered),
)
