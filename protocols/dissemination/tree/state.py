"""What all parts of one member share: how far it has come, what it remembers, and what it wants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.interests.guarded import GuardedSet
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import Interest, InterestKind, LastSent, ParsedItem, RememberingKind
from protocols.dissemination.proving import Proofs
from protocols.dissemination.tree.matching import Matching, read_item
from protocols.dissemination.tree.owner import MemberOwner
from protocols.dissemination.tree.past import StreamPast
from protocols.dissemination.tree.replay import BufferLimits, ReplayBuffer
from protocols.dissemination.tree.wants import Wants

BEAT_S: Final = 1.0
"""A child hears from its parent at least so often."""
SILENT_S: Final = 3.5
"""A parent that is not heard for so long is given up."""
BEAT_ITEMS: Final = 64
"""So many items that a child does not want may pass before it is told how far it has come."""
MOVE_S: Final = 2.0
"""A move that takes longer is given up (invariant 17)."""


class MemberState:
    """The state of one node in one stream. ``owner`` is only asked here; `StreamMember` tells it things."""

    def __init__(
        self,
        me: PeerRef,
        stream: NodeId,
        kind: InterestKind,
        limits: BufferLimits,
        owner: MemberOwner,
        matching: Matching,
        *,
        is_source: bool,
    ) -> None:
        self.me = me
        self.stream = stream
        self.creator: NodeId | None = None
        """The node that has created the stream: see `Attach`. ``None``: that is not told apart."""
        self.kind = kind
        self.everything = kind.parse("").id
        self.owner, self.matching = owner, matching
        self.is_source = is_source
        self.watermark = START
        """This node has had everything that it wanted up to here."""
        self.proven = START
        """The last item that came in its turn, or where this node began: what goes beyond it is a parent's word."""
        self.buffer = ReplayBuffer(limits)
        self.wants = Wants(kind)
        self.path: tuple[NodeId, ...] = ()
        """The nodes from the producer to this node's parent."""
        self.ancestors: tuple[PeerRef, ...] = ()
        """The same, as they may be reached."""
        self.path_version = 0
        self.last_sent = self.make_last_sent(is_source=is_source)
        """What this node has of each object, where the kind of interests goes by that: see `tree/latest.py`."""
        self._promised = -1
        self.proofs: Proofs | None = None
        """The producer's signatures; ``None`` where nothing is signed, as in the lab. Set by who makes the parts."""
        self.is_stale = False
        """Nobody vouches for what this node has: it, or a node above it, has no parent."""

    def change_role(self, *, is_source: bool) -> None:
        """This node is the producer from now on, or is it no more. What it has stays."""
        self.is_source = is_source
        before, last_sent = self.last_sent, self.make_last_sent(is_source=is_source)
        if before is not None and last_sent is not None:
            for parsed in before.newest():
                last_sent.give(parsed)
        self.last_sent, self.proven = last_sent, self.watermark
        self._promised = -1
        self.ancestors, self.path = (), ()
        self.path_version += 1

    def make_last_sent(self, *, is_source: bool = False) -> LastSent | None:
        """What a new holder was given: nothing yet. ``None`` for kinds in which each item stands by itself."""
        return self.kind.make_last_sent(is_source=is_source) if isinstance(self.kind, RememberingKind) else None

    def is_for(self, holder: LastSent | None, parsed: ParsedItem) -> bool:
        """Whether a holder that an item concerns has to get it."""
        if holder is None or self.last_sent is None:
            return True
        if self._promised != self.wants.version:
            self._promised = self.wants.version
            self.last_sent.want(self.wants.promised())
        return holder.offer(parsed, self.last_sent)

    def parsed(self, item: StreamItem) -> ParsedItem:
        """Return an item that came, parsed. Raises `ProtocolError`."""
        try:
            return read_item(self.kind, item)
        except ItemError as error:
            raise bad_item(error) from error

    def past(self, since: StreamPosition, interests: Iterable[Interest]) -> StreamPast:
        """What this node remembers after a mark that meets one of these; not parsed where one of them wants everything.

        Matched with all of them together, and let go of one by one: the past may be long, and parsed it is large.
        """
        wanted = GuardedSet(self.kind)
        for interest in interests:
            if interest.id == self.everything:
                return self._past(since, None)
            wanted.add(interest)
        return self._past(since, wanted)

    def _past(self, since: StreamPosition, wanted: GuardedSet | None) -> StreamPast:
        return StreamPast(self.kind, self.matching.offload, self.buffer.after(since), wanted, self.owner.call_again)

    def set_path(self, ancestors: tuple[PeerRef, ...]) -> None:
        """The way from the producer has changed."""
        if ancestors != self.ancestors:
            self.ancestors = ancestors
            self.path = tuple(peer.id for peer in ancestors)
            self.path_version += 1

    def fall_back(self, watermark: StreamPosition) -> None:
        """Nothing that was said to be after this mark counts: a parent has lied."""
        self.watermark = self.proven = watermark
        self.buffer.clear(watermark)
        self.wants.fall_back(watermark)

    def since(self, interests: Iterable[Interest], after: StreamPosition | None) -> StreamPosition:
        """From which mark on these can be served to somebody who needs them from a mark on."""
        if after is None:
            return self.watermark
        found = [self.buffer.floor, after]
        if not self.is_source:
            found += [self.wants.since(each.id) or self.watermark for each in interests]
        return max(found)


def bad_item(error: ItemError) -> ProtocolError:
    """What the node has done that sent it."""
    return ProtocolError("bad_item", str(error)[:256])


def give(last_sent: LastSent, parsed: ParsedItem) -> None:
    """A holder has an item that another node has sent. Raises `ProtocolError`: there are too many objects."""
    try:
        last_sent.give(parsed)
    except ItemError as error:
        raise ProtocolError("too_many_objects", str(error)) from error
