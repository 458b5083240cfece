"""What a member of a tree asks the node that it belongs to, and tells it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import AttachRefusal
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Interest, ParsedItem
from protocols.dissemination.tree.search import MoveEnd

PLACES_MAX: Final = 64
"""Places that one node promises in one stream."""


class MemberOwner:
    """The answers are those of a node without limits that does all at once and looks for no parent by itself."""

    # What it is asked

    def admit(self, peer: PeerRef, wants: Sequence[Interest], instead_of: NodeId | None) -> bool:
        """Whether it takes one more child: its fan-out limit. ``instead_of``: a child that will go for it."""
        return True

    def is_slow(self, peer: PeerRef) -> bool:
        """Whether so much waits to be sent to a node that it gets no more for now."""
        return False

    def room_after(self, gone: NodeId | None) -> int:
        """How many children more this node would take, once one of them has gone."""
        return PLACES_MAX

    def draw(self) -> float:
        """A random number from 0 to 1."""
        return 0.5

    def send(self, peer: PeerRef, message: Message) -> None:
        """Send a message of the tree."""

    def call_again(self) -> None:
        """There is more to be done, by `StreamMember.go_on`."""

    def look_up(self) -> None:
        """The stream is in a later term than its record: read that again."""

    # What it is told

    def orphaned(self) -> None:
        """There is no parent any more, and none is under way."""

    def ended(self, peer: PeerRef, end: MoveEnd, why: AttachRefusal | None, others: Sequence[PeerRef]) -> None:
        """An attempt to get a parent is over. ``others``: who may have room, where this one had none."""

    def asked_to_move(self, parents: Sequence[PeerRef], is_successor: bool) -> None:
        """The parent will leave: where to move, and whether this node is to take the parent's place."""

    def passed(self, parsed: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """An item has come: whether a subscription of this node wanted it, and which children."""

    def lost(self, since: StreamPosition, until: StreamPosition) -> None:
        """What came after ``since`` and up to ``until`` is lost, wholly or in part."""

    def failed(self, interest: Interest | None, why: str) -> None:
        """An interest cannot be matched, and why not; ``None``: all of them, together."""

    def blame(self, peer: PeerRef, error: ProtocolError) -> None:
        """A node has sent what is wrong, which was found after its message was handled."""
        raise error

    def stream_over(self) -> None:
        """The producer has ended the stream, and all of it has come."""
