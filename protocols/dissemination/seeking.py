"""How a node of a stream gets a parent, and another one when that is gone: whom it tries, and when it tries again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.access import NodeTree
from protocols.dissemination.events import StreamJoined, StreamLie, StreamMoved
from protocols.dissemination.messages import AttachRefusal
from protocols.dissemination.tree.below import MoveEnd
from protocols.dissemination.tree.search import ParentSearch
from protocols.dissemination.tree.trust import LIES

NO_PARENT: Final = "-"
LIARS_MAX: Final = 16
"""Nodes that are named to operators because they have lied about a stream."""


class Seeking:
    """The policy says whom to try first; whoever knew the parent that is gone is tried before it is asked."""

    def __init__(self, node: NodeTree, now: float) -> None:
        self._node, self._host, self._member = node, node.host, node.member
        self.search = ParentSearch(self._move, node.host.rng.random)
        self.orphan_since: float | None = None if node.is_producer else now
        self.moves: dict[str, int] = {}
        """How attempts to get a parent ended, counted until the metrics take it."""
        self.liars: dict[NodeId, str] = {}
        """Who has given this node what the producer has not signed, or not all, and what of that; oldest first."""
        self._joined_at: float | None = None
        self._began_at = now
        self._pause_s = node.config.retry
        self._again_at: float | None = None
        self._tries = 0
        self._move_begun: tuple[float, str, str] = (now, NO_PARENT, "new")
        self._instead_of: NodeId | None = None

    def blamed(self, peer: PeerRef, error: ProtocolError) -> None:
        """A node has sent what no correct one does: name it, where it has lied about the stream as its parent."""
        if error.reason not in LIES:
            return
        self.liars[peer.id] = f"{error.reason} at {peer.address}"
        while len(self.liars) > LIARS_MAX:
            del self.liars[next(iter(self.liars))]
        self._host.count("peerd_dissemination_lies_total", reason=error.reason)
        self._host.emit(
            StreamLie(stream=self._node.name, liar=format_id(peer.id), reason=error.reason, detail=error.detail[:200])
        )

    def at_producer(self) -> None:
        """This node needs no parent from now on."""
        self.search.stop()
        self.orphan_since = self._again_at = None

    def at_member(self, producer: PeerRef) -> None:
        """This node was the producer, and needs a parent now: the one that is it."""
        self.orphan_since, self._instead_of = self._host.now(), None
        self.search.begin([producer], self._searched)

    def seek(self, producer: PeerRef) -> None:
        """Another node is the producer now: an orphan begins its search there."""
        if self._node.is_producer or not self._member.up.is_orphan or self._node.leaving_since is not None:
            return
        self._pause_s, self._again_at = self._node.config.retry, self._host.now()
        if self.search.is_active:
            self.search.prefer(producer)
        elif self._member.up.next is None:
            self.search.begin([producer, *self._node.record.seed_peers], self._searched)

    def join(self) -> None:
        """Look for the first parent, unless that is under way."""
        if not self._node.is_producer and self._again_at is None:
            self._again_at = self._host.now() + self._pause_s
            self._node.policy.look_for_parent()

    def move_to(self, peer: PeerRef) -> bool:
        """The policy's wish: see `protocols.dissemination.ports.TreeAccess.move_to`."""
        if self.search.is_active or self._node.leaving_since is not None or self._node.is_producer:
            return False
        return self._begin_move(peer, "new" if self._joined_at is None else "policy", None)

    def _move(self, peer: PeerRef) -> bool:
        if self._node.parent is not None:
            return self._begin_move(peer, "leaving", self._instead_of)
        second = self._member.second
        is_second = second.peer is not None and second.peer.id == peer.id
        # Whoever keeps the place of the parent that has died may not have noticed yet that it has.
        return self._begin_move(peer, "second" if is_second else "orphan", self._member.up.died)

    def _begin_move(self, peer: PeerRef, why: str, instead_of: NodeId | None) -> bool:
        parent = self._node.parent
        begun = self._member.move_to(peer, self._host.now(), instead_of)
        if begun:
            self._move_begun = (self._host.now(), NO_PARENT if parent is None else format_id(parent.id), why)
        return begun

    def ended(self, peer: PeerRef, end: MoveEnd, why: AttachRefusal | None, others: Sequence[PeerRef]) -> None:
        """An attempt to get a parent is over."""
        begun_at, old, reason = self._move_begun
        now = self._host.now()
        self.moves[end.value] = self.moves.get(end.value, 0) + 1
        self._host.emit(
            StreamMoved(
                stream=self._node.name,
                from_parent=old,
                to_parent=format_id(peer.id),
                end=end.value,
                why=reason,
                duration_s=now - begun_at,
            )
        )
        if end is MoveEnd.MOVED:
            self._found(peer, now)
        if not self.search.ended(peer, end, others):
            self._node.policy.move_ended(peer, end.value, None if why is None else int(why), others)
        elif end is MoveEnd.MOVED:
            self._node.policy.move_ended(peer, end.value, None, ())

    def _found(self, peer: PeerRef, now: float) -> None:
        self.orphan_since = self._again_at = None
        self._pause_s, self._tries = self._node.config.retry, 0
        if self._joined_at is None:
            self._joined_at = now
            duration_s = now - self._began_at
            self._host.emit(StreamJoined(stream=self._node.name, parent=format_id(peer.id), duration_s=duration_s))

    def orphaned(self) -> None:
        """Ask the second parent, then those above the one that is gone: what they send covers what this node wants."""
        if self._node.leaving_since is not None:
            return
        self.orphan_since = self._host.now()
        self._instead_of = None
        second = self._member.second.peer
        above = self._member.state.ancestors[-2::-1]
        self.search.begin(above if second is None else (second, *above), self._searched)

    def _searched(self, is_found: bool) -> None:
        self._instead_of = None
        if not is_found and self._node.parent is None:
            self._again_at = self._host.now() + self._pause_s
            self._node.policy.look_for_parent()

    def try_again(self, now: float) -> bool:
        """Nobody was found: ask the policy again and again, and now and then seeds and producer without it.

        Returns whether it does so now: then the record may have changed, as the producer is not reached.
        """
        node = self._node
        if node.is_producer or node.is_unused or not self._member.up.is_orphan or node.leaving_since is not None:
            return False
        if self.orphan_since is None:
            self.orphan_since = now
        is_busy = self.search.is_active or self._member.up.next is not None
        if is_busy or (self._again_at is not None and now < self._again_at):
            return False
        self._pause_s = min(self._node.config.retry_max, 2 * self._pause_s)
        self._again_at = now + self._pause_s * self._host.rng.uniform(0.8, 1.2)
        self._tries += 1
        if self._tries % 2:
            self._node.policy.look_for_parent()
        else:
            self.search.begin([*self._node.record.seed_peers, self._node.record.producer.peer], self._searched)
        return True

    def asked_to_move(self, parents: Sequence[PeerRef], is_successor: bool) -> None:
        """The parent leaves: it is still there, so nothing is lost on the way."""
        self._instead_of = self._node.parent.id if is_successor and self._node.parent is not None else None
        self.search.begin(parents, self._left)

    def _left(self, is_found: bool) -> None:
        self._instead_of = None
