"""The messages of groups: type ids 0x0050 to 0x005F.

Peers that a message names are hearsay: nothing is sent to them before a link has verified who they are.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd import limits
from peerd.api import Coordinate
from peerd.ids import NodeId
from peerd.messages import U8, U16, U64, Finite, Message, PeerRef, Struct, message

DEPTH_MAX: Final = 32
"""Nodes on a path from the root, both ends included. A deeper place is not taken."""
CANDIDATES_MAX: Final = 4
STATES_MAX: Final = 64
"""Groups in one refresh: 64 paths of 32 ids are 36 KiB."""
VISITED_MAX: Final = 1024
"""Nodes that one anycast may ask."""
HOPS_MAX: Final = 4096
"""Steps of one anycast from node to node."""
GENERATION_MAX: Final = 1 << 48
"""The highest generation. A group never sees so many changes of its root."""

_SMALL: Final = 512

Path = Annotated[tuple[NodeId, ...], Meta(max_length=DEPTH_MAX)]
Candidates = Annotated[tuple[PeerRef, ...], Meta(max_length=CANDIDATES_MAX)]
GroupIds = Annotated[tuple[NodeId, ...], Meta(min_length=1, max_length=STATES_MAX)]
Visited = Annotated[tuple[NodeId, ...], Meta(max_length=VISITED_MAX)]
Body = Annotated[bytes, Meta(max_length=limits.GROUP_BODY_BYTES_MAX)]
SmallBody = Annotated[bytes, Meta(max_length=limits.ANYCAST_BODY_BYTES_MAX)]


class MulticastPosition(Struct):
    """A place in a group's stream: the ``sequence``-th multicast that ``root`` numbered in its reign.

    A new root's ``generation`` is higher than any that it has heard of, and it numbers from 1.
    """

    generation: Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
    root: NodeId
    sequence: U64


class Publication(Struct):
    """A multicast as its origin made it; (origin, epoch, number) is unique. ``body`` is a plugin's message, encoded."""

    origin: PeerRef
    epoch: U64
    number: U64
    type_id: U16
    body: Body


class TreeState(Struct):
    """A parent's word on one group: whether the asker is its child, its path (see `Attached`), its last multicast."""

    group: NodeId
    is_child: bool
    path: Path
    position: MulticastPosition | None


@message(0x0050, bytes_max=_SMALL)
class Join(Message):
    """Take ``joiner`` as a child; routed towards the root, or sent straight to a candidate.

    ``position`` is the last multicast that the joiner has, for what came after it to be replayed. A join that
    ``insists`` is taken only by nodes that have a path from the root. ``is_invited``: it answers an `Invitation`.
    Answered by `Attached` or `Redirect`; by `Invitation` where it came over others, who may have made up the joiner.
    """

    group: NodeId
    joiner: PeerRef
    position: MulticastPosition | None
    insists: bool
    is_invited: bool = False


@message(0x0051, bytes_max=2048)
class Attached(Message):
    """Parent to child: you are my child, and ``path`` leads from the root to me; also whenever the path changes.

    An empty path: I have lost the root. What is sent from here on comes after ``start``.
    """

    group: NodeId
    path: Path
    start: MulticastPosition | None


@message(0x0052, bytes_max=4096)
class Redirect(Message):
    """I do not take you (any longer): ask one of these, or when there are none, the root.

    A parent that ``keeps`` its child goes on until the child has found another.
    """

    group: NodeId
    candidates: Candidates
    keeps: bool = False


@message(0x0053, bytes_max=_SMALL)
class Detach(Message):
    """Child to parent: send me nothing more of this group."""

    group: NodeId


@message(0x0054, bytes_max=4096)
class Refresh(Message):
    """Child to parent: keep me in these groups; answered by `Refreshed`.

    ``rtt_s`` is the round trip as the child's overlay measured it, if it did, and ``coordinate`` the child's place.
    """

    groups: GroupIds
    rtt_s: Finite | None
    coordinate: Coordinate | None = None


@message(0x0055, bytes_max=48 * limits.KIB)
class Refreshed(Message):
    """Parent to child: how things stand in each of the groups."""

    states: Annotated[tuple[TreeState, ...], Meta(max_length=STATES_MAX)]


@message(0x0056, bytes_max=limits.ROUTED_BODY_BYTES_MAX)
class Publish(Message):
    """Origin to root, routed: multicast this. Answered by `PublishOutcome`; repeated until then.

    ``nonce`` comes back in the answer, so that nobody answers who has not seen the question: members see the number.
    """

    group: NodeId
    publication: Publication
    nonce: U64 = 0


@message(0x0057, bytes_max=_SMALL)
class PublishOutcome(Message):
    """Root to origin: the multicast of that number is on its way down the tree, or there is no such group."""

    number: U64
    is_taken: bool
    nonce: U64 = 0


@message(0x0058)
class GroupMulticast(Message):
    """Parent to child: the next multicast, as the root numbered it."""

    group: NodeId
    position: MulticastPosition
    publication: Publication


@message(0x0059)
class Anycast(Message):
    """Asks for a member that accepts. Routed towards the root until it meets the tree, then from node to node of it.

    ``visited`` have been asked, or did not answer. From node to node it is answered by `AnycastTaken`. ``nonce`` comes
    back in the `AnycastResult`.
    """

    group: NodeId
    origin: PeerRef
    number: U64
    type_id: U16
    body: SmallBody
    visited: Visited
    hops: U16
    nonce: U64 = 0


@message(0x005A, bytes_max=_SMALL)
class AnycastTaken(Message):
    """The receiver of an `Anycast` carries on with it."""


@message(0x005B, bytes_max=_SMALL)
class AnycastResult(Message):
    """To the origin of an anycast: how it ended. ``outcome`` is an index of `OUTCOMES`; the sender of an accept did."""

    number: U64
    outcome: U8
    nonce: U64 = 0


@message(0x005C, bytes_max=1024)
class Bequest(Message):
    """A root that leaves the ring, to the next closest node: join me, and be the root of this group after me.

    ``is_final``: be it now, after ``position``, and take me as your child.
    """

    group: NodeId
    position: MulticastPosition
    is_final: bool


@message(0x005D, bytes_max=_SMALL)
class Departing(Message):
    """To each neighbour, now and then until it is gone: the sender leaves the ring, so it will be root of nothing."""


@message(0x005E, bytes_max=_SMALL)
class Invitation(Message):
    """To who is said to want a place in a group: ask the sender for it over a link of your own, by a `Join`."""

    group: NodeId


OUTCOMES: Final = ("accepted", "nobody", "no_such_group", "unknown")
"""Values of `peerd.api.GroupOutcome` by their number on the wire; only append."""

GROUP_MESSAGES: Final[tuple[type[Message], ...]] = (
    Join,
    Attached,
    Redirect,
    Detach,
    Refresh,
    Refreshed,
    Publish,
    PublishOutcome,
    GroupMulticast,
    Anycast,
    AnycastTaken,
    AnycastResult,
    Bequest,
    Departing,
    Invitation,
)
