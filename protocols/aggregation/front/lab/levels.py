"""Levels like Handel's: each node builds the aggregate of a larger and larger half of all nodes, and pushes it.

Begassat et al., *Handel: Practical Multi-Signature Aggregation for Large Byzantine Committees* (2020), section 4. Nodes
have places in an order that all know. At level l a node's *peers* are the other half of its block of 2^l places; it
wants their aggregate, and gives them that of its own half: its own data, and the best of the levels below. A level
begins `LEVEL_S` after the one below it, or when that one is complete. Each `PERIOD_S` a node sends what it has to the
next peer of every level that has begun; when a level is complete, at once to `FAST_PEERS` peers of the next one. Who
has a level complete wants no more for it.

What differs: values are large, so that a node sends one at a time at each level, and a peer that has a swap too many
refuses; what a peer gives is worth as many nodes as it counts. Signatures, scores and bans of peers play no part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.api import AcceptSwap, Plugin, RefuseSwap, SwapCallbacks, SwapHandle, SwapRequest, Value, on_timer
from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.front.lab.contributions import contributors_of, merge, value_of

LEVEL_S: Final = 0.05
PERIOD_S: Final = 0.02
FAST_PEERS: Final = 10
COMPLETE: Final = "complete"


class LevelsJob(Frozen):
    """One aggregation, as all nodes know it. ``ended(contributors, is_final)`` is called whenever the requester has
    more."""

    number: int
    """Tells it from the one before, of which something may still be on its way."""
    value_bytes: int
    order: Sequence[PeerRef]
    """Each node's place; the requester's is 0."""
    ended: Callable[[frozenset[NodeId], bool], None]


@dataclass(slots=True)
class _Level:
    """One level of a node."""

    number: int
    peers: list[PeerRef]
    """The other half of the block: first the node's counterpart, so that no two begin with the same one."""
    to_send: deque[PeerRef] = field(default_factory=deque)
    """The peers that have not got what this node has now."""
    satisfied: set[PeerRef] = field(default_factory=set)
    """Those who have all that they want at this level."""
    best: frozenset[NodeId] = frozenset()
    """Whose data the best aggregate of the peers has."""
    has_begun: bool = False
    is_sending: bool = False
    fast: int = 0
    """To how many peers it may send without waiting for the period."""

    @property
    def is_complete(self) -> bool:
        return len(self.best) == len(self.peers)

    def improved(self) -> None:
        """There is more to give: all peers that want any get it, those last that got something just now."""
        first = self.peers.index(self.to_send[0]) if self.to_send else 0
        wanting = [*self.peers[first:], *self.peers[:first]]
        self.to_send = deque(peer for peer in wanting if peer not in self.satisfied)


class PushedLevels(Plugin):
    """A node that aggregates by levels."""

    name = "levels"

    def __init__(self) -> None:
        super().__init__()
        self._job: LevelsJob | None = None
        self._levels: list[_Level] = []
        self._swaps: list[SwapHandle] = []

    def stop(self) -> None:
        """Nobody waits for the job's result any more."""
        self._job = None
        self.host.cancel_timer("period")
        for level in self._levels:
            self.host.cancel_timer("level", level.number)
        self._levels = []
        for swap in self._swaps:
            swap.cancel()
        self._swaps.clear()

    def begin(self, job: LevelsJob) -> None:
        """The request is here."""
        self.stop()
        self._job = job
        place = next(number for number, peer in enumerate(job.order) if peer.id == self.host.id)
        self._levels = [level for level in levels_of(place, job.order) if level.peers]
        for count, level in enumerate(self._levels):
            if count:
                self.host.set_timer("level", count * LEVEL_S, level.number)
        self.host.set_timer("period", PERIOD_S)
        if self._levels:
            self._begin_level(self._levels[0])

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Hear what a peer has at a level."""
        job, (number, at) = self._job, request.tag
        if job is None or job.number != number:
            return RefuseSwap("another_job")
        level = next(level for level in self._levels if level.number == at)
        if level.is_complete:
            return RefuseSwap(COMPLETE)

        def came(contributors: frozenset[NodeId]) -> None:
            if job is self._job and len(contributors) > len(level.best):
                level.best = contributors
                self._improved(level)

        def done(value: Value) -> None:
            if job is self._job:
                found = frozenset(contributors_of(value))
                merge(self.host, job.value_bytes, lambda: came(found))

        return AcceptSwap(b"", SwapCallbacks(done, lambda reason: None))

    def _improved(self, level: _Level) -> None:
        """There is more for all levels above this one."""
        job = self._the_job
        if self.host.id == job.order[0].id:
            held = self._own_half(len(self._levels))
            job.ended(held, len(held) == len(job.order))
        for index in range(self._levels.index(level) + 1, len(self._levels)):
            above = self._levels[index]
            above.improved()
            if all(below.is_complete for below in self._levels[:index]):
                self._begin_level(above)
                above.fast = FAST_PEERS
            self._send(above)

    def _own_half(self, index: int) -> frozenset[NodeId]:
        """Whose data there is below a level."""
        return frozenset((self.host.id,)).union(*(level.best for level in self._levels[:index]))

    @on_timer("level")
    def _level_due(self, number: int) -> None:
        self._begin_level(next(level for level in self._levels if level.number == number))

    def _begin_level(self, level: _Level) -> None:
        if not level.has_begun:
            level.has_begun = True
            level.improved()
            level.fast = 1
            self._send(level)

    @on_timer("period")
    def _period(self, payload: None) -> None:
        self.host.set_timer("period", PERIOD_S)
        for level in self._levels:
            level.fast = max(level.fast, 1)
            self._send(level)

    def _send(self, level: _Level) -> None:
        """Send what there is to the next peer, if any has less."""
        job = self._the_job
        if not level.has_begun or level.is_sending or not level.fast or not level.to_send:
            return
        level.fast -= 1
        level.is_sending = True
        peer = level.to_send.popleft()

        def ended(reason: str = "") -> None:
            if job is not self._job:
                return
            level.is_sending = False
            if reason == f"refused:{COMPLETE}":
                level.satisfied.add(peer)
            elif reason.startswith("refused"):
                level.to_send.append(peer)
            self._send(level)

        value = value_of(self._own_half(self._levels.index(level)), job.value_bytes)
        callbacks = SwapCallbacks(lambda value: ended(), ended)
        self._swaps.append(self.host.swap(peer, bytes((job.number, level.number)), value, callbacks))

    @property
    def _the_job(self) -> LevelsJob:
        assert self._job is not None
        return self._job


def levels_of(place: int, order: Sequence[PeerRef]) -> list[_Level]:
    """The levels of the node at this place; one has no peers where there are no places."""
    found = []
    for number in range(1, max(len(order) - 1, 0).bit_length() + 1):
        half = 1 << (number - 1)
        counterpart = place ^ half
        block = counterpart // half * half
        peers = [block + (counterpart - block + step) % half for step in range(half)]
        found.append(_Level(number, [order[each] for each in peers if each < len(order)]))
    return found
