"""Other ways to aggregate large values, over the same ring, links and swap layer as San Fermin's.

*central*: the requester fetches the value of each node. *tree-K*: a balanced tree of degree K, whose root is the
requester. *sdims-T*: the tree of the routes to a random key (Yalagandula and Dahlin 2004), whose inner nodes have up to
16 children for each digit; T such trees at once, of which the first one to end counts.

They are given for nothing what costs San Fermin messages: who is there, who is whose child, and the start, which is at
each node one latency after the request. A node is ready when it has the aggregates of all its children, or has heard
nothing new for so long; then it tells its parent, which fetches a few at a time, so that nobody is overwhelmed by many
who send at once. What comes later it passes on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.api import AcceptSwap, Plugin, RefuseSwap, SwapCallbacks, SwapHandle, SwapRequest, Value, on_timer
from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.front.lab.contributions import contributors_of, ignoring, merge, value_of

FETCHES_MAX: Final = 4
"""Values that a node fetches at a time. With more of them at once each one takes longer, and none comes earlier."""
FETCH_TRIES_MAX: Final = 3
RETRY_S: Final = 1.0
"""After this a node asks again that was refused, because the other one is busy."""


class Job(Frozen):
    """One aggregation, as all nodes know it. ``ended(tree, contributors, is_final)`` is called whenever a
    root has more."""

    number: int
    """Tells it from the one before, of which something may still be on its way."""
    value_bytes: int
    patience_s: float
    tells: bool
    """Whether a node says that it is ready; otherwise the requester asks all."""
    ways_up: Sequence[Mapping[NodeId, tuple[PeerRef, ...]]]
    """For each tree and node its parent, and behind it whom to take instead, one after the other; none for the root."""
    children: Sequence[Mapping[NodeId, frozenset[NodeId]]]
    ended: Callable[[int, frozenset[NodeId], bool], None]


@dataclass(slots=True)
class _Part:
    """One node's part in one tree."""

    waiting: set[NodeId]
    """The children whose aggregate has not come."""
    held: set[NodeId]
    """Whose data is here, and not with the parent."""
    is_open: bool = True
    """Whether it still waits for its children."""
    given: frozenset[NodeId] | None = None
    """Whose data the parent may fetch, from when it is told until it has it."""
    heard_at: float = 0.0
    ways_up: list[PeerRef] = field(default_factory=list)
    to_fetch: list[tuple[PeerRef, int]] = field(default_factory=list)
    """Who is ready, and how often its value was asked for."""
    fetching: int = 0


class Rival(Plugin):
    """A node of all these systems."""

    name = "rival"

    def __init__(self) -> None:
        super().__init__()
        self._job: Job | None = None
        self._parts: list[_Part] = []
        self._swaps: list[SwapHandle] = []
        """Those that this node has begun for the job."""

    def stop(self) -> None:
        """Nobody waits for the job's result any more."""
        self._job = None
        for tree in range(len(self._parts)):
            for timer in ("patience", "tell"):
                self.host.cancel_timer(timer, tree)
        for swap in self._swaps:
            swap.cancel()
        self._swaps.clear()

    def begin(self, job: Job) -> None:
        """The request is here."""
        self.stop()
        own, self._job = self.host.id, job
        self._parts = [
            _Part(set(children.get(own, ())), {own}, heard_at=self.host.now(), ways_up=list(ways.get(own, ())))
            for ways, children in zip(job.ways_up, job.children, strict=True)
        ]
        for tree in range(len(self._parts)):
            self.host.set_timer("patience", job.patience_s, tree)
            self._go_on(tree)

    def fetch_all(self, peers: Sequence[PeerRef]) -> None:
        """Fetch the value of each node: all are children of this one."""
        self._parts[0].to_fetch = [(peer, 0) for peer in peers]
        self._fetch_more(0)

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Hear that a child is ready, or give the parent what this node has."""
        job, (number, tree) = self._job, request.tag
        if job is None or job.number != number:
            return RefuseSwap("another_job")
        part = self._parts[tree]
        if not request.is_fetch:
            part.to_fetch.append((request.peer, 0))
            self._fetch_more(tree)
            return AcceptSwap(b"", ignoring())
        given = part.given or frozenset((self.host.id,))

        def done(value: Value) -> None:
            if job is self._job:
                self.host.cancel_timer("tell", tree)
                part.held -= given
                part.given = None
                self._go_on(tree)

        return AcceptSwap(value_of(given, job.value_bytes), SwapCallbacks(done, lambda reason: None))

    # Upwards

    @on_timer("patience")
    def _impatient(self, tree: int) -> None:
        job, part = self._the_job, self._parts[tree]
        left_s = part.heard_at + job.patience_s - self.host.now()
        if part.fetching:
            left_s = job.patience_s
        if left_s > 0 and part.waiting:
            self.host.set_timer("patience", left_s, tree)
        else:
            part.is_open = False
            self._go_on(tree)

    @on_timer("tell")
    def _tell(self, tree: int) -> None:
        """Tell the parent, or who stands in for it, that there is something to fetch; again until it is fetched."""
        job, part = self._the_job, self._parts[tree]

        def failed(reason: str) -> None:
            if job is not self._job or part.given is None:
                return
            if not reason.startswith("refused") and len(part.ways_up) > 1:
                part.ways_up.pop(0)
            self.host.cancel_timer("tell", tree)
            self.host.set_timer("tell", RETRY_S, tree)

        callbacks = SwapCallbacks(lambda value: None, failed)
        self.host.set_timer("tell", 2 * job.patience_s, tree)
        self._swaps.append(self.host.swap(part.ways_up[0], bytes((job.number, tree)), b"", callbacks))

    def _go_on(self, tree: int) -> None:
        job, part = self._the_job, self._parts[tree]
        if not part.ways_up:
            job.ended(tree, frozenset(part.held), not part.waiting or not part.is_open)
        elif job.tells and part.given is None and part.held and not (part.waiting and part.is_open):
            part.given = frozenset(part.held)
            self._tell(tree)

    # From below

    def _fetch_more(self, tree: int) -> None:
        part = self._parts[tree]
        while part.to_fetch and part.fetching < FETCHES_MAX:
            part.fetching += 1
            self._fetch(tree, *part.to_fetch.pop(0))

    def _fetch(self, tree: int, peer: PeerRef, tries: int) -> None:
        job, part = self._the_job, self._parts[tree]

        def came(value: Value) -> None:
            if job is not self._job:
                return
            part.waiting.discard(peer.id)
            part.held |= contributors_of(value)
            part.heard_at = self.host.now()
            ended()
            self._go_on(tree)

        def ended() -> None:
            part.fetching -= 1
            self._fetch_more(tree)

        def failed(reason: str) -> None:
            if job is not self._job:
                return
            if tries < FETCH_TRIES_MAX:
                part.to_fetch.append((peer, tries + 1))
            else:
                part.waiting.discard(peer.id)
            ended()
            self._go_on(tree)

        callbacks = SwapCallbacks(lambda value: merge(self.host, job.value_bytes, lambda: came(value)), failed)
        self._swaps.append(self.host.fetch(peer, bytes((job.number, tree)), callbacks))

    @property
    def _the_job(self) -> Job:
        assert self._job is not None
        return self._job


def balanced(members: Sequence[PeerRef], degree: int) -> dict[NodeId, tuple[PeerRef, ...]]:
    """The way up of each node in a balanced tree whose root is the first one."""
    ways: dict[NodeId, tuple[PeerRef, ...]] = {members[0].id: ()}
    for number, member in enumerate(members[1:], start=1):
        parent = members[(number - 1) // degree]
        ways[member.id] = (parent, *ways[parent.id])
    return ways


def routed(
    members: Sequence[PeerRef], next_hop: Callable[[PeerRef], PeerRef | None]
) -> dict[NodeId, tuple[PeerRef, ...]]:
    """The way up of each node in the tree of the routes to one key."""
    ways: dict[NodeId, tuple[PeerRef, ...]] = {}

    def way_of(member: PeerRef) -> tuple[PeerRef, ...]:
        if member.id not in ways:
            parent = next_hop(member)
            ways[member.id] = () if parent is None else (parent, *way_of(parent))
        return ways[member.id]

    for member in members:
        way_of(member)
    return ways


def children_of(ways: Mapping[NodeId, tuple[PeerRef, ...]]) -> dict[NodeId, frozenset[NodeId]]:
    """The children of each node that has any."""
    found: dict[NodeId, set[NodeId]] = {}
    for node, way in ways.items():
        if way:
            found.setdefault(way[0].id, set()).add(node)
    return {parent: frozenset(children) for parent, children in found.items()}
