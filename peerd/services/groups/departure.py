"""Leaving the ring in order: children first find another parent, and a root's trees get another root.

A node that leaves goes on as before until its children have gone: they keep it as their parent until another node has
taken them, so they miss nothing in between. A root hands over to its heir, the node next closest to the key: the heir
first joins as a child, and so gets the root's log; then it becomes the root, and the old root and its children are
below it.

It tells its neighbours itself that it leaves, so that none of them takes it for the next root: nobody believes that of
another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from peerd.api import Part, on_timer
from peerd.ids import NodeId, closest
from peerd.messages import PeerRef
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.messages import Bequest, Departing, Redirect
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.state import Group
from peerd.services.groups.tree import Trees

SAY_SO_PER_LEASE: Final = 3
"""How often a neighbour is told that this node leaves, in the time for which it believes that."""
TELL_MAX: Final = 5
"""How often a child is told to go before this node stops waiting for it."""


@dataclass(slots=True)
class ToldToGo:
    """When, and how often, a node was told that this one leaves."""

    first_at: float = float("inf")
    last_at: float = float("-inf")
    times: int = 0


class Departure(Part):
    """The departure of one node; it does nothing until `begin`."""

    def __init__(self, host: ServiceHost, config: GroupsConfig, trees: Trees) -> None:
        self._host = host
        self._config = config
        self._trees = trees
        self._done: Callable[[], None] | None = None
        self._has_said_so = False
        self._heirs: dict[NodeId, PeerRef] = {}
        """The heir of each group; kept when this node has left the group, as messages for its key still come here."""
        self._told: dict[tuple[NodeId, NodeId], ToldToGo] = {}
        """The children and heirs that were told, by group and node."""

    def begin(self, done: Callable[[], None]) -> None:
        """Hand over; ``done`` is called when no node is below this one any more."""
        self._done = done
        self._trees.is_leaving = True
        self._trees.changed = self._wake
        self._wake()

    def _wake(self) -> None:
        """Look at the trees again after the current handler, because something has changed."""
        self._host.cancel_timer("drain")
        self._host.set_timer("drain", 0.0)

    @on_timer("drain")
    def _look(self, payload: object) -> None:
        """Go on with every tree in which nodes are below this one."""
        if self._done is None:
            return
        groups = self._trees.groups
        if groups and not self._has_said_so:
            self._say_so()
        self._told = {pair: told for pair, told in self._told.items() if pair[0] in groups}
        for group in list(groups.values()):
            if group.children:
                self._hand_over(group)
        if any(self._is_awaited(group) for group in groups.values()):
            self._host.cancel_timer("drain")
            self._host.set_timer("drain", self._config.join_timeout)
        else:
            done, self._done = self._done, None
            done()

    @on_timer("departing")
    def _say_so(self, payload: object = None) -> None:
        """Tell the neighbours, until this node is gone."""
        self._has_said_so = True
        self.say_so_to(self._host.leaf_set().members())
        self._host.set_timer("departing", self._config.lease / SAY_SO_PER_LEASE)

    def say_so_to(self, peers: Iterable[PeerRef]) -> None:
        """Tell these neighbours that this node leaves, if it does and the others know."""
        if self._has_said_so:
            for peer in peers:
                self._host.send(peer, Departing())

    def _hand_over(self, group: Group) -> None:
        if group.is_root:
            self._heirs.pop(group.id, None)
            self._bequeath(group)
        elif group.parent is not None and group.is_attached:
            for child in group.children.values():
                if self._may_tell(group, child.peer):
                    self._host.send(child.peer, Redirect(group.id, (group.parent,), keeps=True))

    def _is_awaited(self, group: Group) -> bool:
        """Whether to wait for a child: one that was told often enough is dead, or finds no other parent."""
        told = (self._told.get((group.id, child)) for child in group.children)
        return any(each is None or each.times <= TELL_MAX for each in told)

    def _may_tell(self, group: Group, peer: PeerRef) -> bool:
        """Whether to tell a node now: not if it was told a moment ago, or too often. If so, this counts as telling."""
        now, told = self._host.now(), self._told.setdefault((group.id, peer.id), ToldToGo())
        if now - told.last_at < self._config.join_timeout:
            return False
        told.first_at = min(told.first_at, now)
        told.last_at = now
        told.times += 1
        return told.times <= TELL_MAX

    def _bequeath(self, group: Group) -> None:
        heir = self._next_root(group.id)
        if heir is None or group.position is None:
            return
        child, told = group.children.get(heir.id), self._told.get((group.id, heir.id))
        if child is not None and child.is_welcomed and told is not None and child.joined_at >= told.first_at:
            # the heir has joined, and has all that this node has sent: now it can become the root
            self._host.send(heir, Bequest(group.id, group.position, True))
            self._heirs[group.id] = heir
            self._trees.abdicate(group, heir)
        elif self._may_tell(group, heir):
            self._host.send(heir, Bequest(group.id, group.position, False))

    def _next_root(self, key: NodeId) -> PeerRef | None:
        others = {peer.id: peer for peer in self._trees.staying()}
        return others[closest(key, others)] if others else None

    def heir(self, key: NodeId) -> PeerRef | None:
        """Return the node that gets messages which come here for a group, as this node is not its root any more.

        That is the heir, if this node was the root. A node that leaves becomes no root either while its tree has one:
        that one has passed it over because it leaves, and what it has numbered meanwhile is not in this node's log.
        """
        near = {peer.id: peer for peer in self._host.leaf_set().members()}
        group = self._trees.groups.get(key)
        is_below = group is not None and group.path and not group.is_root and group.path[0] in near
        if group is not None and is_below and (key in self._heirs or self._trees.is_leaving):
            self._heirs[key] = near[group.path[0]]  # the heir may itself have left
        if key not in self._heirs:
            return None
        return near.get(self._heirs[key].id) or self._next_root(key)
