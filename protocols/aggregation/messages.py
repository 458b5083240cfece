"""Messages of the aggregation protocol. ONLY APPEND: type ids and field positions are the protocol itself."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import CONTROL_FRAME_BYTES_MAX, KIB, LEAF_SET_SIZE, PROOF_BYTES_MAX
from peerd.messages import U8, U16, U32, U64, Message, PeerRef, Struct, Text, message
from protocols.aggregation.statements import NONCE_BYTES, ROUND_ID_BYTES

QUERY_BYTES_MAX: Final = 16 * KIB
HINTS_MAX: Final = 8
RIDING_BYTES_MAX: Final = 48 * KIB
"""Up to this size a value rides along with an invitation or with its answer; a larger one takes a swap of its own."""
CARRIED_BYTES_MAX: Final = 8 * KIB
"""Up to this size the requester is given a value along with the message that says that it is there: opening a
connection for it would take several times as long. A few nodes, or those that a result lacks, do so at once."""
GIVEN_BYTES_MAX: Final = 16 * KIB
"""An answer that is given to others has at most so many bytes of JSON."""
RECIPIENTS_BYTES_MAX: Final = 512
"""The filter that says to whom, in bytes of UTF-8."""
SHOWN_MAX: Final = 2
"""A value of so many contributors goes with what shows that they take part."""
_RIDING_MESSAGE_BYTES_MAX: Final = CONTROL_FRAME_BYTES_MAX - 8 * KIB
PLACED_MAX: Final = LEAF_SET_SIZE + 1
"""In rings of up to so many nodes, which fit into a leaf set, the requester names them all."""
NAMED_MAX: Final = 2048
"""In rings of up to so many nodes the requester names all when a value is large, once they have enrolled."""
NAMES_BYTES_MAX: Final = 40 * KIB
"""If ids and addresses have so many bytes at most: of 1,780 nodes with IPv4 addresses, of 1,170 with IPv6."""
ABSENTEES_MAX: Final = 32
"""A node names at most this many missing members when it enrols."""

REASON_BYTES_MAX: Final = 500
"""Longest reason for which data is missing, as the nodes tell each other, in bytes of UTF-8."""

RoundId = Annotated[bytes, Meta(min_length=ROUND_ID_BYTES, max_length=ROUND_ID_BYTES)]
Proof = Annotated[bytes, Meta(max_length=PROOF_BYTES_MAX)]
"""See `peerd.api.Host.sign`, and `protocols.aggregation.statements` for what is signed."""
Level = Annotated[int, Meta(ge=0, lt=128)]
RidingValue = Annotated[bytes, Meta(max_length=RIDING_BYTES_MAX)]
CarriedValue = Annotated[bytes, Meta(max_length=CARRIED_BYTES_MAX)]


class AnswerKind(IntEnum):
    """The answers that an invited node can give."""

    NO = 0
    """Your data is in my aggregate already."""
    MAYBE_LATER = 1
    """I am alive and may swap with you at that level; I remember you."""
    ABSENT = 2
    """I take no (further) part in this round, and do not have your data."""
    HINT = 3
    """I do not have the wanted prefix; the nodes that do, as far as I know, are in ``members``."""
    VALUE = 4
    """The aggregate of my side of the level is in ``value``. Take it, whatever I have from you."""


class PieceStage(IntEnum):
    """How far a node is whose value is exchanged in pieces (`protocols.aggregation.pieces`)."""

    READY = 0
    """Its value is there, in pieces; the recipient is told when to begin, if that is for it to do."""
    MERGED = 1
    """It has merged its piece of all values; to the requester."""
    WHOLE = 2
    """It swaps whole values, as all others will have to."""
    BEGIN = 3
    """Its value is there, and the recipient is to begin the exchange with it."""


class NodeState(IntEnum):
    """A node's own account of its part in a round, from which the reasons for missing data are told."""

    UNKNOWN_ROUND = 0
    EXTRACTING = 1
    RUNNING = 2
    PRUNED = 3
    FINISHED = 4
    DECLINED = 5
    LEFT = 6


@message(0x0100, bytes_max=24 * KIB)
class StartRound(Message):
    """A query, broadcast to every node; also the answer to `AskStart`. It never comes directly from anybody.

    The id is a hash of all but age and remaining time, which change on the way; the requester has signed it.
    """

    round_id: RoundId
    requester: PeerRef
    query: Annotated[bytes, Meta(max_length=QUERY_BYTES_MAX)]
    age_ms: U32
    remaining_ms: U32
    census: bool
    """Whether everybody enrols."""
    is_direct: bool
    """Whether who is not noted in time enrols again on a link of its own; otherwise through the overlay again."""
    begins_at_ms: U64
    """When the round began by the requester's clock, milliseconds since 1970."""
    lasts_ms: U32
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    proof: Proof
    nodes: Annotated[tuple[NodeId, ...], Meta(max_length=PLACED_MAX)] = ()
    """All nodes of the ring, where the requester knows them: levels are then by their places, see `PlaceLevels`."""
    may_name: bool = False
    """Whether the requester names all once they have enrolled, if somebody's value is large; see `NameNodes`."""


class Absentee(Struct):
    """A member that went without goodbye, and how long ago it was last heard."""

    peer: PeerRef
    age_ms: U64


@message(0x0101, bytes_max=14 * KIB)
class Enrolled(Message):
    """To the requester: this node takes part; or does not, and why (``reason`` not empty).

    So the requester knows everybody whose data can be in a result, and waits with a result for the enrolments that it
    lacks. ``StopRound`` as the answer: there is no such round. A request on a link of its own in a small ring; in a
    large one it is routed, as its answer is, and signed.

    ``absent``: missing members of the ring whose places are next to this node's; their other neighbours name them, too.
    """

    round_id: RoundId
    reason: Text
    absent: Annotated[tuple[Absentee, ...], Meta(max_length=ABSENTEES_MAX)] = ()
    proof: Proof = b""
    successor: NodeId | None = None
    """The next node of the ring: whoever knows each one's knows whether all have enrolled."""


@message(0x010B, bytes_max=3 * KIB)
class Noted(Message):
    """The requester's answer to `Enrolled` (it counts on this node's data) and its reply to `ResultReady`.

    Signed where it is routed, for this node alone.
    """

    round_id: RoundId
    proof: Proof = b""


@message(0x010C, bytes_max=3 * KIB)
class ConfirmContribution(Message):
    """Routed to a node that a result names, in a ring too large for all to enrol: does it take part?

    Signed for this node alone. If it does, it answers with `Enrolled`, routed and signed; nobody else answers.
    """

    round_id: RoundId
    proof: Proof


class Participation(Struct):
    """A node, and what it has signed: that it takes part."""

    peer: PeerRef
    proof: Proof


Shown = Annotated[tuple[Participation, ...], Meta(max_length=SHOWN_MAX)]


@message(0x0102, bytes_max=_RIDING_MESSAGE_BYTES_MAX)
class Invite(Message):
    """The sender would swap with the recipient at a level: the length of their common prefix in bits.

    With ``rides`` the sender's aggregate of its side of the level is small enough to ride along: it is in ``value``,
    unless the sender has given it to the recipient before or the invitation is routed, and it wants the recipient's as
    the answer. A first invitation with a value is answered with a value only, as soon as there is one; any other one is
    answered at once.
    """

    round_id: RoundId
    level: Level
    rides: bool = False
    value: RidingValue = b""
    shown: Shown = ()
    """That the value's contributors take part, while they are few: who has their data can show it to the requester."""
    named: bool = False
    """Whether the level is by the places of the nodes in `NameNodes`; so in the messages below."""


@message(0x0103, bytes_max=_RIDING_MESSAGE_BYTES_MAX)
class InviteAnswer(Message):
    """The answer to an invitation; ``kind`` is an `AnswerKind`."""

    round_id: RoundId
    level: Level
    kind: U8
    members: Annotated[tuple[PeerRef, ...], Meta(max_length=HINTS_MAX)] = ()
    is_exact: bool = False
    value: RidingValue = b""
    shown: Shown = ()
    """As in `Invite`."""
    named: bool = False


@message(0x0104, bytes_max=128)
class Propose(Message):
    """Request: shall we two swap now? The proposer then opens the swap."""

    round_id: RoundId
    level: Level
    named: bool = False


@message(0x0105, bytes_max=128)
class ProposeAnswer(Message):
    """Reply to `Propose`: yes, or an `AnswerKind` (MAYBE_LATER means busy just now)."""

    round_id: RoundId
    accepted: bool
    kind: U8


@message(0x0106, bytes_max=128)
class AskStart(Message):
    """An invitation came for a round that this node has not heard of: what is it? Answered with `StartRound`."""

    round_id: RoundId


@message(0x0107, bytes_max=256 + CARRIED_BYTES_MAX)
class ResultReady(Message):
    """Request to the requester, answered with `Noted`: the sender's tree is complete.

    A small value goes along; another one is fetched, if the requester wants it.
    """

    round_id: RoundId
    contributors: U32
    value_bytes: U64
    named: bool = False
    value: CarriedValue = b""


@message(0x0108, bytes_max=3 * KIB)
class StopRound(Message):
    """Forget the round: broadcast or routed with the requester's signature, or directly from it, without one.

    Besides at the end of a round it is the answer to who takes part in a round that the requester knows nothing of (any
    more). As the reply to `AskStart` it says that there is no such round.
    """

    round_id: RoundId
    proof: Proof = b""


@message(0x0109, bytes_max=128)
class WhyMissing(Message):
    """Request to a node whose data is not in the answer."""

    round_id: RoundId


@message(0x010A, bytes_max=1024 + CARRIED_BYTES_MAX)
class RoundStatus(Message):
    """Reply to `WhyMissing`: a `NodeState`, the level reached, a sentence, and, if the requester asks and it is small,
    what the node has extracted itself."""

    round_id: RoundId
    state: U8
    level: U16
    detail: Text
    value: CarriedValue = b""


@message(0x010D, bytes_max=3 * KIB)
class FindEnrolment(Message):
    """Routed to a node that may have been given this node's own data: has the node shown that it takes part?

    The node has not enrolled with the requester, and may be dead. Signed by the requester for the one that is asked
    alone; if that was given the node's data, it answers with `ShownEnrolment`.
    """

    round_id: RoundId
    node: NodeId
    proof: Proof


@message(0x010E, bytes_max=3 * KIB)
class ShownEnrolment(Message):
    """Routed to the requester: this node has said that it takes part, which its proof shows."""

    round_id: RoundId
    shown: Participation


@message(0x010F, bytes_max=128)
class PieceTold(Message):
    """How far the sender is with the exchange in pieces; ``stage`` is a `PieceStage`."""

    round_id: RoundId
    stage: U8


@message(0x0110, bytes_max=24 * KIB)
class GiveAnswer(Message):
    """Broadcast in the place of `StopRound`, when other nodes are given the answer, too.

    ``to``: a filter on the tags of those that keep it. The requester has signed all of it.
    """

    round_id: RoundId
    requester: PeerRef
    answered_at_ms: U64
    """By the requester's clock, milliseconds since 1970."""
    to: Annotated[str, Meta(max_length=RECIPIENTS_BYTES_MAX)]
    answer: Annotated[bytes, Meta(max_length=GIVEN_BYTES_MAX)]
    """JSON; see `protocols.aggregation.answer.LINE`."""
    proof: Proof


@message(0x0111, bytes_max=128)
class NamesWanted(Message):
    """To the requester of a round in which it has named nobody: the sender's value, of so many bytes, does not ride."""

    round_id: RoundId
    value_bytes: U64


@message(0x0112, bytes_max=48 * KIB)
class NameNodes(Message):
    """Broadcast by the requester: all nodes that take part. They swap anew, by their places, see `PlaceLevels`.

    Who is not among them swaps with nobody. The requester has signed it.
    """

    round_id: RoundId
    nodes: Annotated[tuple[PeerRef, ...], Meta(max_length=NAMED_MAX)]
    in_pieces: bool
    """Whether values go in pieces, see `protocols.aggregation.pieces`."""
    proof: Proof


MESSAGES: Final[tuple[type[Message], ...]] = (
    StartRound,
    Enrolled,
    Invite,
    InviteAnswer,
    Propose,
    ProposeAnswer,
    AskStart,
    ResultReady,
    StopRound,
    WhyMissing,
    RoundStatus,
    Noted,
    ConfirmContribution,
    FindEnrolment,
    ShownEnrolment,
    PieceTold,
    GiveAnswer,
    NamesWanted,
    NameNodes,
)


def reason_text(reason: str) -> str:
    """A reason as messages carry it. It may quote a query or a file's name: any length, even invalid text."""
    return reason.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
