"""A tree whose inner nodes are supernodes: they copy what comes to replicas before they pass it on.

Cappos and Hartman 2008, section 3 (*Supernodes*), after Seaweed (Narayanan et al. 2006). A balanced tree, whose root is
the requester. An inner node copies its aggregate to `REPLICAS` other nodes when a child's has come, while the next
ones come; only then has the child done its part, and only what is copied goes on to the parent. A node that does not
reach its parent turns to the replicas, one after the other; and so does a replica take over that no longer reaches
its supernode. As with `protocols.aggregation.front.lab.rivals`, all know for nothing who is who.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from peerd.api import AcceptSwap, Plugin, RefuseSwap, SwapCallbacks, SwapHandle, SwapRequest, Value, on_timer
from peerd.frozen import Frozen
from peerd.ids import NodeId, id_from_bytes, id_to_bytes
from peerd.messages import PeerRef
from protocols.aggregation.front.lab.contributions import contributors_of, ignoring, merge, value_of
from protocols.aggregation.front.lab.rivals import FETCH_TRIES_MAX, FETCHES_MAX, RETRY_S

REPLICAS: Final = 2
READY, FETCH, COPY, ALIVE = range(4)
"""What a swap is about: a child is ready; its aggregate is wanted; a copy for a replica; whether a supernode lives."""
KEPT, LATER, OVER = "kept", "later", "over"
"""Reasons to refuse: the child's data is safe; it is here, and not safe yet; a supernode's is with its parent."""


class SupernodeJob(Frozen):
    """One aggregation, as all nodes know it. ``ended(contributors, is_final)`` is called whenever the root has more."""

    number: int
    """Tells it from the one before, of which something may still be on its way."""
    value_bytes: int
    patience_s: float
    parents: Mapping[NodeId, NodeId]
    """Of all but the root."""
    children: Mapping[NodeId, frozenset[NodeId]]
    holders: Mapping[NodeId, Sequence[PeerRef]]
    """Who plays the part of a node: itself, and behind it the replicas, if it is an inner node."""
    ended: Callable[[frozenset[NodeId], bool], None]


@dataclass(slots=True)
class _Role:
    """The part of one node of the tree, played by itself or by a replica."""

    node: NodeId
    waiting: set[NodeId]
    """The children whose aggregate has not come."""
    held: set[NodeId]
    """Whose data is here."""
    safe: set[NodeId]
    """Whose data is with the replicas, too."""
    replicas: Sequence[PeerRef]
    came: dict[NodeId, set[NodeId]] = field(default_factory=dict)
    """What each child's aggregate had."""
    is_open: bool = True
    """Whether it still waits for its children."""
    heard_at: float = 0.0
    copying: int = 0
    """To how many replicas a copy is under way."""
    told: int = 0
    """Of how many nodes' data its parent is told, or has been."""
    holder: int = 0
    """Which of those who may play the parent's part is asked."""
    is_over: bool = False
    """Whether that is safe with its parent."""
    to_fetch: list[tuple[PeerRef, NodeId, int]] = field(default_factory=list)
    """Who is ready, for which node, and how often its aggregate was asked for."""
    fetching: set[NodeId] = field(default_factory=set)
    """Whose aggregate is on its way."""


class Supernode(Plugin):
    """A node of such a tree, inner or leaf, and a replica of an inner one."""

    name = "supernode"

    def __init__(self) -> None:
        super().__init__()
        self._job: SupernodeJob | None = None
        self._roles: dict[NodeId, _Role] = {}
        self._copies: dict[NodeId, set[NodeId]] = {}
        """Of whom this node is a replica, and whose data it has from there."""
        self._swaps: list[SwapHandle] = []

    def stop(self) -> None:
        """Nobody waits for the job's result any more."""
        self._job = None
        for node in self._roles:
            for timer in ("patience", "ready"):
                self.host.cancel_timer(timer, node)
        for node in self._copies:
            self.host.cancel_timer("watch", node)
        self._roles, self._copies = {}, {}
        for swap in self._swaps:
            swap.cancel()
        self._swaps.clear()

    def begin(self, job: SupernodeJob) -> None:
        """The request is here."""
        self.stop()
        own, self._job = self.host.id, job
        for node, holders in job.holders.items():
            if own in (peer.id for peer in holders[1:]):
                self._copies[node] = set()
                self.host.set_timer("watch", RETRY_S, node)
        self._play(own, {own}, job.holders[own][1:])

    def _play(self, node: NodeId, held: set[NodeId], replicas: Sequence[PeerRef]) -> None:
        job = self._the_job
        waiting = {child for child in job.children.get(node, ()) if child not in held}
        self._roles[node] = role = _Role(node, waiting, held, set(), replicas, heard_at=self.host.now())
        # Of what an inner child has given, the copy may have a part: it says how much it has, and is asked again.
        role.came = {child: {child} for child in job.children.get(node, ()) if child in held}
        self.host.set_timer("patience", job.patience_s, node)
        self._keep(role)

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Whatever another node of the tree says or wants."""
        job = self._job
        if job is None or request.tag[0] != job.number:
            return RefuseSwap("another_job")
        about, node, count = request.tag[1], id_from_bytes(request.tag[2:18]), int.from_bytes(request.tag[18:])
        if about == READY:
            return self._child_ready(request.peer, node, count)
        if about == FETCH:
            role = self._roles.get(node)
            if role is None:
                return RefuseSwap("no_such_role")
            return AcceptSwap(value_of(role.held, job.value_bytes), ignoring())
        if about == COPY:

            def copied(value: Value) -> None:
                if job is self._job and node in self._copies:
                    self._copies[node] |= contributors_of(value)

            return AcceptSwap(b"", SwapCallbacks(copied, lambda reason: None))
        role = self._roles.get(node)
        return RefuseSwap(OVER) if role is not None and role.is_over else AcceptSwap(b"", ignoring())

    # From below

    def _child_ready(self, peer: PeerRef, child: NodeId, count: int) -> AcceptSwap | RefuseSwap:
        """Hear that a child has the data of so many nodes."""
        node = self._the_job.parents[child]
        if node not in self._roles:
            if node not in self._copies:
                return RefuseSwap("no_such_role")
            self._take_over(node)
        role = self._roles[node]
        came = role.came.get(child, set())
        if len(came) >= count:
            return RefuseSwap(KEPT if came <= role.safe else LATER)
        if child not in role.fetching and not any(child == other for _, other, _ in role.to_fetch):
            role.to_fetch.append((peer, child, 0))
            self._fetch_more(role)
        return AcceptSwap(b"", ignoring())

    def _fetch_more(self, role: _Role) -> None:
        while role.to_fetch and len(role.fetching) < FETCHES_MAX:
            peer, child, tries = role.to_fetch.pop(0)
            role.fetching.add(child)
            self._fetch(role, peer, child, tries)

    def _fetch(self, role: _Role, peer: PeerRef, child: NodeId, tries: int) -> None:
        job = self._the_job

        def came(value: Value) -> None:
            if job is not self._job:
                return
            role.waiting.discard(child)
            role.came[child] = contributors_of(value)
            role.held |= role.came[child]
            role.heard_at = self.host.now()
            ended()

        def ended() -> None:
            role.fetching.discard(child)
            self._fetch_more(role)
            self._keep(role)

        def failed(reason: str) -> None:
            if job is not self._job:
                return
            if tries < FETCH_TRIES_MAX:
                role.to_fetch.append((peer, child, tries + 1))
            else:
                role.waiting.discard(child)
            ended()

        callbacks = SwapCallbacks(lambda value: merge(self.host, job.value_bytes, lambda: came(value)), failed)
        self._swaps.append(self.host.fetch(peer, self._tag(FETCH, child), callbacks))

    # To the replicas

    def _keep(self, role: _Role) -> None:
        """Copy what is not copied, one copy after the other, and go on with what is."""
        job, copied = self._the_job, frozenset(role.held)

        def ended() -> None:
            if job is not self._job:
                return
            role.copying -= 1
            if not role.copying:
                role.safe |= copied
                self._keep(role)

        if not role.replicas:
            role.safe = set(role.held)
        elif not role.copying and role.held != role.safe:
            role.copying = len(role.replicas)
            callbacks = SwapCallbacks(lambda value: ended(), lambda reason: ended())
            for replica in role.replicas:
                value = value_of(copied, job.value_bytes)
                self._swaps.append(self.host.swap(replica, self._tag(COPY, role.node), value, callbacks))
        self._go_on(role)

    @on_timer("watch")
    def _watch(self, node: NodeId) -> None:
        """Take over from a supernode that is not there any more."""
        job = self._the_job

        def failed(reason: str) -> None:
            if job is not self._job or node in self._roles or reason == f"refused:{OVER}":
                return
            if reason.startswith("refused"):
                self.host.set_timer("watch", RETRY_S, node)
            else:
                self._take_over(node)

        def lives(value: Value) -> None:
            if job is self._job and node not in self._roles:
                self.host.set_timer("watch", RETRY_S, node)

        supernode = job.holders[node][0]
        self._swaps.append(
            self.host.swap(supernode, self._tag(ALIVE, node), b"", SwapCallbacks(lives, failed), silence_s=RETRY_S)
        )

    def _take_over(self, node: NodeId) -> None:
        self._play(node, set(self._copies[node]), ())

    # Upwards

    @on_timer("patience")
    def _impatient(self, node: NodeId) -> None:
        job, role = self._the_job, self._roles[node]
        left_s = role.heard_at + job.patience_s - self.host.now()
        if role.fetching:
            left_s = job.patience_s
        if left_s > 0 and role.waiting:
            self.host.set_timer("patience", left_s, node)
        else:
            role.is_open = False
            self._go_on(role)

    def _go_on(self, role: _Role) -> None:
        job = self._the_job
        if role.node not in job.parents:
            job.ended(frozenset(role.held), not role.waiting or not role.is_open)
            return
        is_due = role.held == role.safe and not (role.waiting and role.is_open)
        if is_due and (not role.told or (role.is_over and len(role.held) > role.told)):
            self._tell(role.node)

    @on_timer("ready")
    def _tell(self, node: NodeId) -> None:
        """Tell whoever plays the parent's part that there is an aggregate, until it is safe there."""
        job, role = self._the_job, self._roles[node]
        holders = job.holders[job.parents[node]]
        role.told, role.is_over = len(role.held), False

        def again(value: Value | None = None) -> None:
            if job is self._job:
                self.host.set_timer("ready", RETRY_S, node)

        def failed(reason: str) -> None:
            if job is not self._job:
                return
            if reason == f"refused:{KEPT}":
                role.is_over = True
                self._go_on(role)
                return
            if not reason.startswith("refused") or reason == "refused:no_such_role":
                role.holder = (role.holder + 1) % len(holders)
            again()

        peer = holders[role.holder]
        tag = self._tag(READY, node, role.told)
        self._swaps.append(self.host.swap(peer, tag, b"", SwapCallbacks(again, failed)))

    @property
    def _the_job(self) -> SupernodeJob:
        assert self._job is not None
        return self._job

    def _tag(self, about: int, node: NodeId, count: int = 0) -> bytes:
        return bytes((self._the_job.number, about)) + id_to_bytes(node) + count.to_bytes(4)


def replicas_of(
    ways: Mapping[NodeId, tuple[PeerRef, ...]], members: Sequence[PeerRef], rng: Random
) -> dict[NodeId, Sequence[PeerRef]]:
    """Who plays the part of each node in a tree of these `ways <protocols.aggregation.front.lab.rivals.balanced>` up.

    The replicas of an inner node are leaves of other parents, each of one inner node, as far as there are leaves; the
    root has none.
    """
    inner = [member for member in members if any(way and way[0].id == member.id for way in ways.values())]
    leaves = [member for member in members if member not in inner]
    rng.shuffle(leaves)
    holders: dict[NodeId, Sequence[PeerRef]] = {member.id: (member,) for member in members}
    for supernode in inner:
        if ways[supernode.id]:
            free = [leaf for leaf in leaves if ways[leaf.id][0].id != supernode.id]
            chosen = free[:REPLICAS]
            leaves = [leaf for leaf in leaves if leaf not in chosen]
            holders[supernode.id] = (supernode, *chosen)
    return holders
