"""The overlay's messages: type ids 0x0010 to 0x003F.

Peers that a message mentions are hearsay: they enter a table only after a direct exchange with them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd import limits
from peerd.ids import NodeId
from peerd.messages import FLOAT_MAX, U8, U16, U32, U64, Finite, Message, Name, PeerRef, Struct, message
from peerd.overlay.coordinates import Coordinate
from peerd.overlay.expectations import ABSENT_MAX, DISMISSALS_MAX
from peerd.overlay.history import NOTES_MAX

KEYS_MAX: Final = 512
SIDE_MAX: Final = 32
CANDIDATES_MAX: Final = 32
FAILED_MAX: Final = 16
PATH_PEERS_MAX: Final = 96
AVOID_MAX: Final = 16
ENTRIES_MAX: Final = 48
REACH_TARGETS_MAX: Final = 64
"""Peers that one node is asked to ping for another."""
PINGS_MAX: Final = 8
"""At most so many timed pings for each of them."""

_SMALL: Final = 512
_STATE: Final = 32 * limits.KIB
_WALL_TIME_MAX: Final = 1e12

Keys = Annotated[tuple[NodeId, ...], Meta(min_length=1, max_length=KEYS_MAX)]
Coordinates = Annotated[tuple[Coordinate | None, ...], Meta(max_length=ENTRIES_MAX)]
Side = Annotated[tuple[PeerRef, ...], Meta(max_length=SIDE_MAX)]
Candidates = Annotated[tuple[PeerRef, ...], Meta(max_length=CANDIDATES_MAX)]
FailedIds = Annotated[tuple[NodeId, ...], Meta(max_length=FAILED_MAX)]
AvoidIds = Annotated[tuple[NodeId, ...], Meta(max_length=AVOID_MAX)]
PathPeers = Annotated[tuple[PeerRef, ...], Meta(max_length=PATH_PEERS_MAX)]
Entries = Annotated[tuple[PeerRef, ...], Meta(max_length=ENTRIES_MAX)]
Targets = Annotated[tuple[PeerRef, ...], Meta(min_length=1, max_length=REACH_TARGETS_MAX)]
Pings = Annotated[int, Meta(ge=1, le=PINGS_MAX)]
Age = Annotated[float, Meta(ge=0.0, le=FLOAT_MAX)]
"""How long ago, in seconds. Clocks differ, so messages carry ages instead of times."""
Body = Annotated[bytes, Meta(max_length=limits.ROUTED_BODY_BYTES_MAX)]


class TraceHop(Struct):
    """One hop of a traced route; the hop before it fills in its own smoothed RTT, seconds."""

    peer: PeerRef
    rtt_s: Finite | None


Trace = Annotated[tuple[TraceHop, ...], Meta(max_length=limits.HOPS_MAX)]


@message(0x0010)
class Route(Message):
    """A plugin's message on its way to the roots of ``keys``; answered by `RouteAck` at each hop.

    ``body`` is the encoded message of type ``type_id``, opaque to the hops. (``source``, ``epoch``, ``sequence``) is
    unique, and with the key names one delivery. ``trace`` is collected only when it is not ``None``. ``detours``:
    hops that led away from the key, to somebody who reaches a peer that the hop before could not.
    """

    keys: Keys
    type_id: U16
    body: Body
    source: PeerRef
    epoch: U64
    sequence: U64
    hops: U8
    trace: Trace | None = None
    detours: U8 = 0


@message(0x0011, bytes_max=_SMALL)
class RouteAck(Message):
    """The next hop took a `Route` or `Broadcast` over, or refuses it because it is not (or no longer) in the ring.

    ``not_root``: it is in the ring and would be the root, but its lease has lapsed, so it must not serve the key.
    """

    accepted: bool
    not_root: bool = False


@message(0x0012, bytes_max=_SMALL)
class LookupProbe(Message):
    """Travels inside a traced `Route`: the root of the key answers its source with `LookupReply`."""


@message(0x0013, bytes_max=_STATE)
class LookupReply(Message):
    """The sender is the root of the key that the lookup ``sequence`` asked for; ``hops`` is the way there."""

    sequence: U64
    hops: Trace


@message(0x0014)
class Broadcast(Message):
    """Deliver, then cover every node whose id lies clockwise strictly between ``after`` and ``until``.

    Answered by `RouteAck`. ``after == until`` is the whole ring but that id. When ``after`` is not the receiver's id,
    a delegate there was silent: the receiver covers its part, or passes that on to whoever is closer to it.
    """

    type_id: U16
    body: Body
    source: PeerRef
    epoch: U64
    sequence: U64
    after: NodeId
    until: NodeId
    hops: U8


@message(0x0018, bytes_max=_SMALL)
class JoinRequest(Message):
    """The sender wants to join: who is next on the way to its id? Hops in ``avoid`` did not answer it."""

    avoid: AvoidIds = ()


@message(0x0019, bytes_max=48 * limits.KIB)
class JoinReply(Message):
    """One step of a join: table rows that the newcomer can use, and the next hop or the replier's leaf set.

    ``next_hop`` is ``None`` when the replier is the root of the newcomer's id. ``is_ready`` is false when the replier
    is itself outside a ring.
    """

    is_ready: bool
    next_hop: PeerRef | None
    smaller: Side
    larger: Side
    peers: PathPeers


@message(0x001A, bytes_max=_STATE)
class LeafSetProbe(Message):
    """Are you alive, and what is your leaf set? Answered by `LeafSetReply`. The sender's own is enclosed.

    Each side is nearest first; ``candidates`` are peers that the sender is probing, ``failed`` those that it removed.
    """

    is_ready: bool
    smaller: Side
    larger: Side
    candidates: Candidates
    failed: FailedIds


@message(0x001B, bytes_max=_STATE)
class LeafSetReply(Message):
    """Answer to `LeafSetProbe`, with the same fields; the sender has the prober in its leaf set where it belongs."""

    is_ready: bool
    smaller: Side
    larger: Side
    candidates: Candidates
    failed: FailedIds
    coordinate: Coordinate | None = None


@message(0x001C, bytes_max=_STATE)
class Announce(Message):
    """The sender has just become ready; to its leaf set and its routing table. The sides are its leaf set.

    ``coordinate`` is the sender's: a receiver in whose table it would be near measures it.
    """

    smaller: Side
    larger: Side
    coordinate: Coordinate | None = None


@message(0x0020, bytes_max=_SMALL)
class Heartbeat(Message):
    """The sender is alive; to its left neighbour, when there was nothing else to say."""


@message(0x0021, bytes_max=_SMALL)
class Ping(Message):
    """Measure the RTT to a candidate or an entry of the routing table; answered by `Pong`.

    ``coordinate`` is the sender's: whoever is near for it may have it near for itself.
    """

    coordinate: Coordinate | None = None


@message(0x0022, bytes_max=_SMALL)
class Pong(Message):
    """Answer to `Ping`; a peer that is not ready does not enter a routing table. ``coordinate`` is the sender's."""

    is_ready: bool
    coordinate: Coordinate | None = None


@message(0x0023, bytes_max=_SMALL)
class FailureNotice(Message):
    """The sender removed these peers after silence: a receiver that has them probes them itself.

    A removed peer is told too; if it lives, it probes the sender, and is back.
    """

    failed: FailedIds


@message(0x0024, bytes_max=_STATE)
class Leave(Message):
    """The sender leaves the ring now; its leaf set tells who closes the gap. ``epoch``: the boot that ends."""

    smaller: Side
    larger: Side
    epoch: U64 = 0


class Absence(Struct):
    """A member that went without goodbye, and how long ago it was last heard; undated: nobody knows that.

    ``epoch``: its boot that ended; 0: not known.
    """

    peer: PeerRef
    age_s: Age
    is_dated: bool = True
    epoch: U64 = 0


Missing = Annotated[tuple[Absence, ...], Meta(max_length=ABSENT_MAX)]


@message(0x0027, bytes_max=_SMALL)
class ViewRequest(Message):
    """What do you see of the ring? Asked for a person; answered by `ViewReply`, also by a node outside the ring."""


@message(0x0028, bytes_max=_STATE)
class ViewReply(Message):
    """The sender's leaf set, nearest first on each side, whether it serves, and who is missing in its neighbourhood.

    No table is changed by it.
    """

    is_ready: bool
    may_serve: bool
    is_leaving: bool
    is_complete: bool
    covers_ring: bool
    smaller: Side
    larger: Side
    coordinate: Coordinate
    ring_size: Annotated[float, Meta(ge=0.0, le=FLOAT_MAX)]
    partition_suspected: bool
    missing: Missing = ()


@message(0x0029, bytes_max=_STATE)
class ReachRequest(Message):
    """Ping these peers for me; answered by `ReachReply` at once, and by a `ReachReport` of that ``number`` later."""

    number: U32
    targets: Targets
    pings: Pings


@message(0x002A, bytes_max=_SMALL)
class ReachReply(Message):
    """Whether the sender does it. It serves one `ReachRequest` at a time, and refuses others meanwhile."""

    accepted: bool


class Reached(Struct):
    """One peer that was pinged: whether it answered, and the shortest round trip over a link that was up."""

    id: NodeId
    is_reached: bool
    rtt_s: Annotated[float, Meta(ge=0.0, le=FLOAT_MAX)] | None


@message(0x002B, bytes_max=_STATE)
class ReachReport(Message):
    """What came of a `ReachRequest`; ``found`` has every target once."""

    number: U32
    found: Annotated[tuple[Reached, ...], Meta(max_length=REACH_TARGETS_MAX)]


@message(0x002C, bytes_max=_SMALL)
class HistoryRequest(Message):
    """What did you think of this peer lately? Answered by `HistoryReply`."""

    peer: NodeId


class HistoryNote(Struct):
    """One note of the sender's about a peer; see `peerd.overlay.history.Note`."""

    wall_s: Finite
    verdict: Name
    evidence: Name
    silence_s: Finite | None
    lag_s: Finite
    accuser: NodeId | None


@message(0x002D, bytes_max=_STATE)
class HistoryReply(Message):
    """The sender's latest verdicts on the peer, oldest first; times are its own wall clock's."""

    verdicts: Annotated[tuple[HistoryNote, ...], Meta(max_length=NOTES_MAX)]


@message(0x002E, bytes_max=_SMALL)
class EntriesRequest(Message):
    """Whom do you know that fits my routing table, and is near? Answered by `EntriesReply`.

    ``coordinate`` is the sender's; without one the answer is not chosen by nearness.
    """

    coordinate: Coordinate | None = None


@message(0x002F, bytes_max=16 * limits.KIB)
class EntriesReply(Message):
    """The sender itself, and peers of its tables that fit the asker's; ``coordinates`` are theirs in the same order.

    A coordinate is ``None`` where the sender does not know it.
    """

    peers: Entries
    coordinates: Coordinates = ()


@message(0x0030)
class Absences(Message):
    """To a new member of the leaf set: these members went without goodbye, and are expected all the same."""

    missing: Missing


class Dismissal(Struct):
    """A node that is not expected any more, and since how long.

    ``epoch``: the boot in which it said goodbye, so that a later one is expected; 0: it did not, or nobody knows.
    """

    node: NodeId
    age_s: Age
    epoch: U64 = 0


@message(0x0031, bytes_max=_STATE)
class Forget(Message):
    """These nodes have left, or an operator has forgotten them: the answer to `Absences` that name such a node.

    It is hearsay: it counts when several members say so.
    """

    dismissed: Annotated[tuple[Dismissal, ...], Meta(max_length=DISMISSALS_MAX)]


@message(0x0032, bytes_max=_STATE)
class ForgetOrder(Message):
    """Broadcast: an operator at its source does not expect these nodes any more, on account of any earlier loss.

    ``said_at``: when, by the clock of the source, Unix seconds. ``proof``: see `peerd.api.Host.sign`; the source signs
    what `peerd.overlay.absences.order_statement` returns.
    """

    nodes: Annotated[tuple[NodeId, ...], Meta(min_length=1, max_length=DISMISSALS_MAX)]
    said_at: Annotated[float, Meta(ge=0.0, le=_WALL_TIME_MAX)]
    proof: Annotated[bytes, Meta(max_length=limits.PROOF_BYTES_MAX)]


OVERLAY_MESSAGES: Final[tuple[type[Message], ...]] = (
    Route,
    RouteAck,
    LookupProbe,
    LookupReply,
    Broadcast,
    JoinRequest,
    JoinReply,
    LeafSetProbe,
    LeafSetReply,
    Announce,
    Heartbeat,
    Ping,
    Pong,
    FailureNotice,
    Leave,
    ViewRequest,
    ViewReply,
    ReachRequest,
    ReachReply,
    ReachReport,
    HistoryRequest,
    HistoryReply,
    EntriesRequest,
    EntriesReply,
    Absences,
    Forget,
    ForgetOrder,
)
