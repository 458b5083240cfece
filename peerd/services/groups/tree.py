"""Trees: joining, taking children, changing parents and roots.

As in Scribe (Castro, Druschel, Kermarrec and Rowstron 2002, section 3.2): a join is routed towards the root of the
group's key; the first node on its way that is in the tree takes it, and nodes on the way there become part of the tree.
Beyond Scribe, every node knows its path from the root, so that a loop is refused, or seen and broken; and a child that
changes parents says what it has, and gets what it missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from peerd.api import Part, handles, on_timer
from peerd.ids import NodeId, closest, format_id
from peerd.messages import PeerRef
from peerd.services.groups import messages
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.messages import CANDIDATES_MAX, GENERATION_MAX
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.state import Child, Group
from peerd.services.groups.stream import ReplayLog, Seen, covers, is_same_reign, later, missed
from peerd.telemetry.schema import GroupParentChanged, GroupRootChanged

REDIRECTS_MAX: Final = 32
"""One attempt to join follows at most so many redirects; then it waits for the next attempt."""
CATCH_UPS_MAX: Final = 4
"""Times in a row that a parent is asked for lost multicasts, before what is missing is given up."""
INSIST_AFTER: Final = 2
"""Attempts after which a join is taken only by nodes that have a path: those that wait may wait for each other."""
JOIN_JITTER: Final = 0.2
NOT_READY_PAUSE_S: Final = 0.5
"""Pause of a join while this node has no complete leaf set."""


def _next_generation(highest: int) -> int:
    return min(highest + 1, GENERATION_MAX)


class Trees(Part):
    """This node's place in every tree that it is part of."""

    def __init__(self, host: ServiceHost, config: GroupsConfig) -> None:
        self._host = host
        self._own = host.id
        self.config = config
        self.groups: dict[NodeId, Group] = {}
        self.log = ReplayLog(config.replay_messages, config.replay_bytes)
        self.became_root: Callable[[Group], None] = lambda group: None
        self.grew: Callable[[], None] = lambda: None
        self.changed: Callable[[], None] = lambda: None
        """Called when a place in a tree, or the children there, have changed."""
        self.is_leaving = False
        """While set, children are sent to other parents, and none are taken."""
        self._leaving: dict[NodeId, float] = {}
        """Neighbours that have said that they leave, and so cannot become a root; and until when they are believed."""

    # Wanting

    def want(self, group_id: NodeId) -> None:
        """Be in the tree of a group, and stay there."""
        group = self.groups.get(group_id)
        if group is not None:
            group.is_wanted = True
            return
        self._add(group_id).is_wanted = True
        self._seek(self.groups[group_id])

    def unwant(self, group_id: NodeId) -> None:
        """No plugin here wants the group any more; it stays as long as it has children."""
        group = self.groups.get(group_id)
        if group is not None:
            group.is_wanted = False
            self.prune(group)

    def _add(self, group_id: NodeId) -> Group:
        group = Group(group_id, self._own, Seen(self.config.dedupe_window))
        self.groups[group_id] = group
        self.grew()
        return group

    def prune(self, group: Group) -> None:
        """Leave a tree that nobody here or below wants."""
        if group.is_needed:
            return
        if group.parent is not None:
            self._host.send(group.parent, messages.Detach(group.id))
        self._host.cancel_timer("join", group.id)
        del self.groups[group.id]
        self.log.forget(group.id)
        self.changed()

    # Joining

    def _seek(self, group: Group, candidates: Iterable[PeerRef] = ()) -> None:
        """Look for a parent: the candidates first, then through the root."""
        group.is_joining = True
        group.attempts = group.redirects = 0
        group.candidates = [peer for peer in candidates if peer.id != self._own]
        self._ask(group)

    def seek(self, group: Group) -> None:
        """Look for another parent, and keep the present one until there is one."""
        if not group.is_joining:
            self._seek(group)

    @on_timer("join")
    def _join_due(self, group_id: NodeId) -> None:
        """Nobody has taken this node's join in time."""
        group = self.groups[group_id]
        group.redirects = 0
        self._ask(group)

    def _ask(self, group: Group) -> None:
        host, config = self._host, self.config
        wait_s = config.join_timeout
        group.insists = group.attempts >= INSIST_AFTER
        if group.candidates:
            host.send(group.candidates.pop(0), self._join(group))
        elif not host.leaf_set().is_complete:
            wait_s = min(NOT_READY_PAUSE_S, wait_s)
        else:
            wait_s = min(config.join_timeout * 2.0**group.attempts, config.join_retry_max)
            group.attempts += 1
            host.route(group.id, self._join(group))
        self._wait(group, wait_s)

    def _join(self, group: Group, *, is_invited: bool = False) -> messages.Join:
        return messages.Join(group.id, self._host.peer, group.position, group.insists, is_invited)

    @handles(messages.Invitation)
    def _invited(self, message: messages.Invitation, source: PeerRef) -> None:
        """A node that has met this one's routed join would take it: ask that node itself.

        The wait for an answer goes on as it is, so that nobody draws it out with invitations.
        """
        group = self.groups.get(message.group)
        if group is not None and group.is_joining and group.redirects < REDIRECTS_MAX:
            group.redirects += 1
            self._host.send(source, self._join(group, is_invited=True))

    def _wait(self, group: Group, wait_s: float) -> None:
        """Give others some time to take this node as a child."""
        self._host.cancel_timer("join", group.id)
        jitter = self._host.rng.uniform(1.0 - JOIN_JITTER, 1.0 + JOIN_JITTER)
        self._host.set_timer("join", wait_s * jitter, group.id)

    def intercept(self, join: messages.Join, previous_hop: PeerRef) -> bool:
        """Whether this node takes over a join that passes through on its way to the root.

        Over the joiner's own link it has its place at once. Others may have made up who joins: no place is taken for
        that one, and nothing kept; it is invited to ask itself.
        """
        if join.joiner.id == self._own or not self._may_take(join):
            return False
        if previous_hop.id == join.joiner.id:
            self._take(join)
        else:
            self._invite(join)
        return True

    def _may_take(self, join: messages.Join, *, as_root: bool = False) -> bool:
        """Whether the joiner may be below this node, which is in the tree or becomes part of it."""
        group = self.groups.get(join.group)
        if group is None:
            is_on_its_way = not self.is_leaving and not join.insists
            return (as_root or is_on_its_way) and self._carried() < self.config.trees_max
        if self.is_leaving and not group.is_root:
            return False
        if group.is_attached:
            return group.may_adopt(join.joiner.id)
        return group.is_gathering and not join.insists and self._has_room(group, join.joiner)

    def _take(self, join: messages.Join, *, as_root: bool = False) -> None:
        """Take a joiner that `_may_take` allows, and that asks over its own link."""
        group = self.groups.get(join.group)
        if group is None:
            group = self._add(join.group)
            group.position = join.position  # so that what is replayed to this node is enough for its child
            self._admit(group, join)
            if as_root:
                self.become_root(group)
            else:
                self._seek(group)
        elif group.is_attached:
            self._offer(group, join)
        else:
            self._admit(group, join)

    def _invite(self, join: messages.Join) -> None:
        """Have a joiner ask for its place itself; where there is none, ask the children.

        Others say who that is: they must not have this node flood somebody.
        """
        if not self._host.may_pass(join.joiner):
            self._drop("rate")
            return
        group = self.groups.get(join.group)
        if group is not None and group.is_attached and not self._has_room(group, join.joiner):
            self._send_on(group, join.joiner)
        else:
            self._host.send(join.joiner, messages.Invitation(join.group))

    def _carried(self) -> int:
        return sum(not group.is_wanted for group in self.groups.values())

    def arrived(self, join: messages.Join) -> None:
        """A join has come to this node as the root of the group."""
        group = self.groups.get(join.group)
        if join.joiner.id == self._own:
            if group is not None and not group.is_root:
                self.become_root(group)
            return
        if group is None and self._carried() >= self.config.trees_max:
            self._drop("trees_max")
            return
        if group is not None and not group.is_root:
            self.become_root(group)
        self._invite(join)

    def _outrank(self, group: Group, theirs: messages.MulticastPosition, own: messages.MulticastPosition) -> None:
        """Begin a reign after the one that the joiner has followed, if that was of this or a later generation."""
        if theirs.generation >= own.generation and not is_same_reign(theirs, own):
            group.position = messages.MulticastPosition(_next_generation(theirs.generation), self._own, 0)
            self._tell_children(group)

    @handles(messages.Join)
    def _asked(self, join: messages.Join, source: PeerRef) -> None:
        """Answer a node that was invited, or redirected here, and asks for a place."""
        group = self.groups.get(join.group)
        if join.joiner.id != source.id:
            self._drop("malformed")
        elif not self._has_taken(join):
            above = group.parent if group is not None and self.is_leaving else None
            is_child = group is not None and source.id in group.children
            self._host.send(source, messages.Redirect(join.group, () if above is None else (above,), keeps=is_child))

    def _has_taken(self, join: messages.Join) -> bool:
        group = self.groups.get(join.group)
        if group is not None and group.is_attached:
            if group.is_root and join.position is not None and group.position is not None:
                self._outrank(group, join.position, group.position)
            return self._offer(group, join)
        as_root = group is None and closest(join.group, (self._own, *self._near())) == self._own
        if not join.is_invited or not self._may_take(join, as_root=as_root):
            return False
        self._take(join, as_root=as_root)
        return True

    # Taking children

    def _has_room(self, group: Group, peer: PeerRef) -> bool:
        return peer.id in group.children or len(group.children) < self.children_max

    @property
    def children_max(self) -> int:
        """Children in one group; a root that leaves has room for its heir."""
        return self.config.children_max + self.is_leaving

    def _offer(self, group: Group, join: messages.Join) -> bool:
        """Take the joiner as a child, or name children that may; false when it must not hang below this node."""
        is_welcome = group.is_root or not self.is_leaving or join.joiner.id in group.children
        if not is_welcome or not group.may_adopt(join.joiner.id):
            return False
        if self._has_room(group, join.joiner):
            self._welcome(group, self._admit(group, join))
        else:
            self._send_on(group, join.joiner)
        return True

    def _send_on(self, group: Group, joiner: PeerRef) -> None:
        """Name children that may have room: Scribe's bottleneck remover (section 3.5), before there is a bottleneck."""
        others = [child.peer for child in group.children.values()]
        some = self._host.rng.sample(others, min(CANDIDATES_MAX, len(others)))
        self._host.send(joiner, messages.Redirect(group.id, tuple(some)))

    def _admit(self, group: Group, join: messages.Join) -> Child:
        now = self._host.now()
        child = Child(join.joiner, now + self.config.lease, joined_at=now, position=join.position)
        group.children[join.joiner.id] = child
        return child

    def _welcome(self, group: Group, child: Child) -> None:
        """Tell a child that it is one, and send what it missed."""
        child.is_welcomed = True
        replay = self.log.replay(group.id, child.position, group.position)
        self._host.send(child.peer, messages.Attached(group.id, group.path, replay.start))
        for multicast in replay.multicasts:
            if not self._host.may_pass(child.peer):
                self._drop("rate")  # the child sees from what comes next that the rest is missing
                break
            self._host.send(child.peer, multicast)
            self._host.count("peerd_groups_replayed_total")
        self.changed()

    def _tell_children(self, group: Group) -> None:
        """Tell the children the new path of this node."""
        for child in group.children.values():
            if child.is_welcomed:
                self._host.send(child.peer, messages.Attached(group.id, group.path, group.position))
            elif group.is_attached:
                self._welcome(group, child)

    @handles(messages.Detach)
    def _detached(self, message: messages.Detach, source: PeerRef) -> None:
        """A child leaves."""
        group = self.groups.get(message.group)
        if group is not None and group.children.pop(source.id, None) is not None:
            self.prune(group)
            self.changed()

    def drop_child(self, group: Group, node_id: NodeId) -> None:
        """A child has let its lease run out."""
        del group.children[node_id]
        self._drop("child_lease")
        self.prune(group)

    # Parents

    @handles(messages.Attached)
    def _attached(self, message: messages.Attached, source: PeerRef) -> None:
        """A parent, perhaps a new one, says where it is."""
        group = self.groups.get(message.group)
        is_expected = group is not None and (group.is_child_of(source) or (group.is_joining and bool(message.path)))
        if group is None or group.is_root or not is_expected:
            self._host.send(source, messages.Detach(message.group))
        elif message.path and message.path[-1] != source.id:
            self._drop("malformed")
        else:
            self.follow(group, source, message.path, message.start)

    def follow(
        self, group: Group, parent: PeerRef, path: messages.Path, start: messages.MulticastPosition | None = None
    ) -> None:
        """Take over the path of the parent, or of a new one; a path that makes a loop ends it."""
        if group.is_loop(path):
            self._drop("loop")
            self._host.send(parent, messages.Detach(group.id))
            if group.is_child_of(parent):
                self.lose_parent(group, "loop")
            return
        group.heard_at = self._host.now()
        is_new = not group.is_child_of(parent)
        if is_new:
            self._change_parent(group, parent, "joined" if group.parent is None else "moved", len(path))
        if path and (is_new or not group.path):  # a parent that has sent this node on is not what it looks for
            self._settle(group)
        if start is not None:
            self._continue_from(group, start)
        self._set_path(group, (*path, self._own) if path else ())

    def _settle(self, group: Group) -> None:
        group.is_joining = False
        group.candidates.clear()
        self._host.cancel_timer("join", group.id)

    def _change_parent(self, group: Group, parent: PeerRef, evidence: str, depth: int) -> None:
        if group.parent is not None:
            self._host.send(group.parent, messages.Detach(group.id))  # the new one replays: nothing is lost in between
        group.is_root = False
        group.parent = parent
        group.promised = None
        group.refreshed_at = self._host.now()
        self._tell_parent(group, evidence, depth)

    def _tell_parent(self, group: Group, evidence: str, depth: int) -> None:
        parent = None if group.parent is None else format_id(group.parent.id)
        self._host.count("peerd_groups_parent_changes_total", evidence=evidence)
        self._host.emit(GroupParentChanged(group=format_id(group.id), parent=parent, evidence=evidence, depth=depth))

    def _set_path(self, group: Group, path: messages.Path) -> None:
        for ancestor in path[:-1]:
            group.children.pop(ancestor, None)  # it has moved to a place above this node; its Detach is under way
        if path != group.path:
            group.path = path
            if not path:
                group.lost_at = self._host.now()
            self._tell_children(group)
        self.prune(group)
        self.changed()

    def catch_up(self, group: Group) -> bool:
        """Multicasts of the parent were lost on the way: ask for what came after the last one.

        Returns false when that was done in vain: the parent itself does not have them all, or not in order.
        """
        now = self._host.now()
        if now - group.asked_at >= self.config.join_timeout:
            group.asks, group.is_asking = 0, False
        if group.asks >= CATCH_UPS_MAX and not group.is_asking:
            return False
        if group.parent is not None and not group.is_asking:
            group.asked_at, group.asks, group.is_asking = now, group.asks + 1, True
            self._host.send(group.parent, messages.Join(group.id, self._host.peer, group.position, True))
        return True

    def _continue_from(self, group: Group, start: messages.MulticastPosition) -> None:
        group.is_asking = False
        gap = missed(group.position, start)
        if gap:
            self._host.count("peerd_groups_missed_total", gap)
        group.position = later(group.position, start)

    def lose_parent(self, group: Group, evidence: str, candidates: Iterable[PeerRef] = ()) -> None:
        """Look for another parent, as this one is gone or gave this node up; the subtree stays together."""
        group.parent = None
        self._tell_parent(group, evidence, 0)
        self._set_path(group, ())
        self._seek(group, candidates)

    @handles(messages.Redirect)
    def _redirected(self, message: messages.Redirect, source: PeerRef) -> None:
        """Handle a redirect: the parent gives this node up, or a node that it asked has no room."""
        group = self.groups.get(message.group)
        if group is None:
            return
        if group.is_child_of(source) and not message.keeps:
            self.lose_parent(group, "redirected", message.candidates)
        elif group.is_child_of(source) and not group.is_joining:
            if group.children or not self.is_leaving:  # else this node leaves soon as well
                self._seek(group, message.candidates)
        elif group.is_joining and group.redirects < REDIRECTS_MAX:
            group.redirects += 1
            hints = [peer for peer in message.candidates if peer.id != self._own and not group.is_child_of(peer)]
            group.candidates = [*hints, *group.candidates][:CANDIDATES_MAX]
            if group.candidates:
                self._ask(group)

    # Roots

    def is_closest(self, key: NodeId) -> bool:
        """Whether no node in the leaf set is closer to the key."""
        return closest(key, self._neighbourhood()) == self._own

    def _neighbourhood(self) -> tuple[NodeId, ...]:
        return (self._own, *(peer.id for peer in self.staying()))

    def _near(self) -> list[NodeId]:
        return [peer.id for peer in self._host.leaf_set().members()]

    def staying(self) -> list[PeerRef]:
        """The neighbours that have not said that they leave."""
        now = self._host.now()
        return [peer for peer in self._host.leaf_set().members() if self._leaving.get(peer.id, now) <= now]

    @handles(messages.Departing)
    def _departs(self, message: messages.Departing, source: PeerRef) -> None:
        """A neighbour leaves: it says so itself, and repeats it for as long as it is to be believed."""
        self._leaving[source.id] = self._host.now() + self.config.lease
        self._forget_left()

    def _is_heir(self, key: NodeId, giver: PeerRef) -> bool:
        """Whether the giver was the root of that key, as far as this node can tell, and this node is the next one."""
        others = [node_id for node_id in self._neighbourhood() if node_id != giver.id]
        return (
            giver.id in self._near()
            and closest(key, (giver.id, *others)) == giver.id
            and self._own == closest(key, others)
        )

    @handles(messages.Bequest)
    def _inherit(self, bequest: messages.Bequest, source: PeerRef) -> None:
        """The root of a group is leaving, and takes this node for the next root."""
        group_id, theirs = bequest.group, bequest.position
        is_too_much = group_id not in self.groups and self._carried() >= self.config.trees_max
        if not self._is_heir(group_id, source) or is_too_much:
            self._drop("not_heir")
            return
        self._leaving[source.id] = self._host.now() + self.config.lease
        group = self.groups.get(group_id)
        if group is None:
            group = self._add(group_id)
            group.position = messages.MulticastPosition(
                0, self._own, 0
            )  # the heir has all that the old root has, and can replay it
        group.heir_until = self._host.now() + self.config.lease
        if bequest.is_final and (group.is_root or covers(group.position, theirs)):
            self.become_root(group, theirs)
            self._offer(group, messages.Join(group_id, source, theirs, True))
            return
        if group.is_root:
            self._resign(group)
        self._seek(group, (source,))

    def _forget_left(self) -> None:
        now, near = self._host.now(), set(self._near())
        self._leaving = {peer: until for peer, until in self._leaving.items() if peer in near and until > now}

    def abdicate(self, group: Group, heir: PeerRef) -> None:
        """Give the root to the heir; this node waits to become its child, with its subtree, else it is root again."""
        self._resign(group)
        group.is_joining = True
        group.attempts = group.redirects = 0
        group.candidates = [heir]
        self._wait(group, self.config.join_timeout)

    def _resign(self, group: Group) -> None:
        """Stop being the root, but keep the path: the subtree goes on as a tree until a new root is above it."""
        group.is_root = False
        self._tell_root(group, is_root=False)

    def become_root(self, group: Group, heard: messages.MulticastPosition | None = None) -> None:
        """Become the root, since messages for the group's key arrive here; a parent is given up."""
        if group.parent is not None:
            self._host.send(group.parent, messages.Detach(group.id))
            group.parent = None
        generations = [position.generation for position in (group.position, heard) if position is not None]
        group.position = messages.MulticastPosition(_next_generation(max(generations, default=0)), self._own, 0)
        is_new = not group.is_root
        group.is_root = True
        self._settle(group)
        group.path = ()
        self._set_path(group, (self._own,))
        if is_new:
            self._tell_root(group, is_root=True)
        self.became_root(group)

    def check_roots(self) -> None:
        """After a change of the leaf set, have each root that is no longer the closest node join the one that is."""
        self._forget_left()
        roots = [group for group in self.groups.values() if group.is_root]
        nearby = self._neighbourhood() if roots else ()
        for group in roots:
            if closest(group.id, nearby) != self._own:
                self._resign(group)
                self._seek(group)

    def _tell_root(self, group: Group, *, is_root: bool) -> None:
        self._host.emit(GroupRootChanged(group=format_id(group.id), is_root=is_root, children=len(group.children)))

    # Leaving the ring

    def leave(self) -> None:
        """Send every child to the parent, or when there is none to the next root, and leave every tree."""
        for group in self.groups.values():
            candidates = () if group.parent is None else (group.parent,)
            for child in group.children.values():
                self._host.send(child.peer, messages.Redirect(group.id, candidates))
            if group.parent is not None:
                self._host.send(group.parent, messages.Detach(group.id))

    # Telling

    def _drop(self, reason: str) -> None:
        self._host.count("peerd_groups_dropped_total", reason=reason)

    def sizes(self) -> Mapping[str, int]:
        """Trees by this node's role in them."""
        counts = {"root": 0, "inner": 0, "leaf": 0, "joining": 0}
        for group in self.groups.values():
            if not group.is_attached:
                counts["joining"] += 1
            elif group.is_root:
                counts["root"] += 1
            else:
                counts["inner" if group.children else "leaf"] += 1
        return counts
