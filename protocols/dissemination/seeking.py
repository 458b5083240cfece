"""How a node of a stream gets a parent, and another one when that is gone: whom it tries, and when it tries again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.access import NodeTree
from protocols.dissemination.events import StreamJoined, StreamLie, StreamMoved
from protocols.dissemination.messages import AttachRefusal
from protocols.dissemination.tree.search import MoveEnd, ParentSearch
from protocols.dissemination.tree.trust import LIES

NO_PARENT: Final = "-"
LIARS_MAX: Final = 16
"""Nodes that are named to operators because they have lied about a stream."""


class Seeking:
    """When the search begins, and where: whoever knew a parent that is gone is tried before the policy asks others."""

    def __init__(self, node: NodeTree, now: float) -> None:
        self._node, self._host, self._member = node, node.host, node.member
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
        self._is_looking = False
        """Whether the search is one that the policy has begun: of a newcomer, or because nobody known has room."""
        self._instead_of: NodeId | None = None

    @property
    def search(self) -> ParentSearch:
        """The one search, with the question of the stream's policy."""
        return self._node.policy.search

    def _try(self, candidates: Iterable[PeerRef], instead_of: NodeId | None = None) -> None:
        self._is_looking, self._instead_of = False, instead_of
        self.search.begin(candidates, self._searched)

    def _look(self) -> None:
        if not self.search.is_active:
            self._is_looking = True
            self._node.policy.look_for_parent()

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
        self.orphan_since = self._host.now()
        self._try([producer])

    def seek(self, producer: PeerRef) -> None:
        """Another node is the producer now: an orphan begins its search there."""
        if self._node.is_producer or not self._member.up.is_orphan or self._node.leaving_since is not None:
            return
        self._pause_s, self._again_at = self._node.config.retry, self._host.now()
        if self.search.current is not None:
            self.search.prefer(producer)
        elif self._member.up.next is None:
            self._try([producer, *self._node.record.seed_peers])

    def join(self) -> None:
        """Look for the first parent, unless that is under way."""
        if not self._node.is_producer and self._again_at is None:
            self._again_at = self._host.now() + self._pause_s
            self._look()

    def move_to(self, peer: PeerRef) -> bool:
        """See `protocols.dissemination.ports.TreeAccess.move_to`."""
        node, parent = self._node, self._node.parent
        is_tried = self.search.current is peer
        if not is_tried and (self.search.is_active or node.leaving_since is not None or node.is_producer):
            return False
        if self._is_looking or not is_tried:
            why, instead_of = "new" if self._joined_at is None else "policy", None
        elif parent is not None:
            why, instead_of = "leaving", self._instead_of
        else:
            second = self._member.second.peer
            # Whoever keeps the place of the parent that has died may not have noticed yet that it has.
            why, instead_of = "orphan" if second is None or second.id != peer.id else "second", self._member.up.died
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
        self._node.policy.move_ended(peer, end.value, None if why is None else int(why), others)

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
        second = self._member.second.peer
        above = self._member.state.ancestors[-2::-1]
        self._try(above if second is None else (second, *above))

    def _searched(self, is_found: bool) -> None:
        if not is_found and self._node.parent is None:
            self._again_at = self._host.now() + self._pause_s
            self._look()

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
            self._look()
        else:
            self._try([*self._node.record.seed_peers, self._node.record.producer.peer])
        return True

    def asked_to_move(self, parents: Sequence[PeerRef], is_successor: bool) -> None:
        """The parent leaves: it is still there, so nothing is lost on the way."""
        parent = self._node.parent
        self._try(parents, parent.id if is_successor and parent is not None else None)
