"""The phases of a tree (`tree.BinomialTree`), and what it asks to be done: messages, swaps and timers of a round."""

from __future__ import annotations

from enum import Enum
from typing import Final

from peerd.frozen import Frozen
from peerd.messages import PeerRef
from protocols.aggregation.messages import AnswerKind


class TreePhase(Enum):
    """The phases of a tree."""

    IDLE = "extracting"
    WAITING = "waiting"
    PROPOSING = "proposing"
    RESERVED = "reserved"
    SWAPPING = "swapping"
    MERGING = "merging"
    FINISHED = "finished"
    PRUNED = "pruned"


class TreeTimer(Enum):
    """The tree's timers; arming one again replaces it."""

    LEVEL = "level_due"
    INVITE = "invite_due"
    RESERVE = "reserve_due"


PIECES_TIMER: Final = "pieces_due"
"""The timer of an exchange in pieces, which precedes the tree."""


class SendInvite(Frozen):
    """Invite this node to swap at the level, and let our own value ride along if so."""

    peer: PeerRef
    level: int
    with_value: bool = False


class RouteInvite(Frozen):
    """Invite a random id of L^level, through the overlay."""

    level: int


class SendAnswer(Frozen):
    """Answer an invitation; with our side's value of that level if ``kind`` is VALUE."""

    peer: PeerRef
    level: int
    kind: AnswerKind


class SendProposal(Frozen):
    """Ask this node to swap now; its reply goes to `BinomialTree.proposal_answered` (or `proposal_lost`)."""

    peer: PeerRef
    level: int


class MergeOffer(Frozen):
    """Merge the value that this node has let ride; then call `BinomialTree.merged` (or `merge_rejected`)."""

    peer: PeerRef
    level: int
    value: bytes


class OfferAhead(Frozen):
    """Give this counterpart our value on the connection that is there: it agrees when it comes to the level, too."""

    peer: PeerRef
    level: int


class WithdrawOffer(Frozen):
    """Take back an offer that was not agreed to: this node swaps with somebody else, or no more at the level."""


class AnswerHeld(Frozen):
    """This node has come to the level for which its counterpart's offer is held: decide about it."""

    level: int


class OpenSwap(Frozen):
    """Open the swap; its end goes to `BinomialTree.swap_done` or `BinomialTree.swap_failed`."""

    peer: PeerRef
    level: int


class Arm(Frozen):
    """(Re-)arm a timer."""

    timer: TreeTimer
    delay_s: float


class Disarm(Frozen):
    """Cancel a timer, if armed."""

    timer: TreeTimer


class LevelDone(Frozen):
    """A level ended: "swapped", "empty" (nobody there), "timed_out" or "pruned"."""

    level: int
    outcome: str
    peer: PeerRef | None


class TreeDone(Frozen):
    """The tree ended: "result" (it holds the aggregate of every level) or "pruned"."""

    outcome: str


Effect = (
    SendInvite
    | RouteInvite
    | SendAnswer
    | MergeOffer
    | SendProposal
    | OfferAhead
    | WithdrawOffer
    | AnswerHeld
    | OpenSwap
    | Arm
    | Disarm
    | LevelDone
    | TreeDone
)
