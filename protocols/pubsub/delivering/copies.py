"""The root of a leaf has other nodes hold events until they are delivered: whom it asks, and whom it tells of the end.

The nodes next to the root in the replica set of a leaf's key are asked first: one of them becomes root if this one
dies. Who does not answer, or has no room, is replaced by the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from peerd.api import Host, Part, on_timer
from peerd.limits import LEAF_SET_SIZE
from peerd.messages import Message, PeerRef
from protocols.pubsub.bodies import id_of
from protocols.pubsub.delivering.messages import Held, HoldEvents, ReleaseEvents
from protocols.pubsub.messages import EVENTS_MAX, EventBody, EventName, TreeCells
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.publishing.spread import AttributeCell, trees_of

HOLD_TIMEOUT_S: Final = 2.0
"""A node that has not said so long that it holds events is replaced by another."""
JOBS_MAX: Final = 1024
"""So many batches of events may wait for copies at a time; those of more are acknowledged without any."""
CANDIDATES_MAX: Final = LEAF_SET_SIZE // 2
"""So many nodes are asked at most."""
RELEASE_S: Final = 0.5
"""Releases are gathered for so long."""
HELD_EVENTS_MAX: Final = 32_768
"""Of so many events it is remembered who holds them; copies of older ones lapse by themselves."""

Places = tuple[AttributeCell, ...]


def as_trees(cells: Sequence[AttributeCell]) -> tuple[TreeCells, ...]:
    """Leaves as messages name them, by attribute."""
    return trees_of(sorted(cells, key=itemgetter(0)))


@dataclass(slots=True)
class _Job:
    """Events of some leaves whose keys have the same replica set."""

    schema: str
    events: tuple[EventBody, ...]
    cells: Places
    wanted: int
    candidates: list[PeerRef]
    on_done: Callable[[Places, int], None]
    open: int = 0
    held: int = 0
    is_done: bool = False


class Copies(Part):
    """Asks for copies, and releases them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._holders: OrderedDict[EventId, dict[PeerRef, None]] = OrderedDict()
        self._to_release: dict[PeerRef, dict[str, list[EventName]]] = {}
        self._jobs = 0

    def hold(
        self,
        schema: str,
        events: Sequence[EventBody],
        cells: Sequence[tuple[int, int]],
        copies: int,
        on_done: Callable[[Places, int], None],
    ) -> None:
        """Have ``copies`` nodes hold these events of these leaves.

        ``on_done(cells, held)`` is called for each part of the leaves, with the number of nodes that hold its events:
        fewer than asked for only where no more could be had.
        """
        by_set: dict[tuple[PeerRef, ...], list[tuple[int, int]]] = {}
        for attribute, cell in cells:
            key = key_of(Tree(schema, attribute), cell)
            closest = self._host.replica_set(key, CANDIDATES_MAX + 1)
            others = tuple(peer for peer in closest if peer.id != self._host.id)
            by_set.setdefault(others, []).append((attribute, cell))
        for others, part in by_set.items():
            if self._jobs >= JOBS_MAX:
                on_done(tuple(part), 0)
                continue
            self._jobs += 1
            job = _Job(schema, tuple(events), tuple(part), min(copies, len(others)), list(others), on_done)
            self._go_on(job)

    def _go_on(self, job: _Job) -> None:
        while job.candidates and job.held + job.open < job.wanted:
            self._ask(job, job.candidates.pop(0))
        if not job.open and not job.is_done:
            job.is_done = True
            self._jobs -= 1
            job.on_done(job.cells, job.held)

    def _ask(self, job: _Job, peer: PeerRef) -> None:
        for event in job.events:
            self._holders.setdefault(id_of(event), {})[peer] = None
        while len(self._holders) > HELD_EVENTS_MAX:
            self._holders.popitem(last=False)
        job.open += 1

        def on_reply(reply: Message, source: PeerRef) -> None:
            job.open -= 1
            job.held += isinstance(reply, Held) and reply.count == len(job.events)
            self._go_on(job)

        def on_timeout() -> None:
            job.open -= 1
            self._go_on(job)

        message = HoldEvents(job.schema, job.events, as_trees(job.cells))
        self._host.request(peer, message, HOLD_TIMEOUT_S, on_reply, on_timeout)

    def release(self, schema: str, event_id: EventId) -> None:
        """Everybody who should has the event: nobody needs to hold it any more."""
        holders = self._holders.pop(event_id, {})
        if holders and not self._to_release:
            self._host.set_timer("pubsub_release", RELEASE_S)
        for peer in holders:
            self._to_release.setdefault(peer, {}).setdefault(schema, []).append(EventName(*event_id))

    @on_timer("pubsub_release")
    def _send_releases(self, payload: object) -> None:
        for peer, by_schema in self._to_release.items():
            for schema, names in by_schema.items():
                for start in range(0, len(names), EVENTS_MAX):
                    self._host.send(peer, ReleaseEvents(schema, tuple(names[start : start + EVENTS_MAX])))
        self._to_release.clear()
