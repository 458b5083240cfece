"""What a node remembers of the events that pass through it: which came before, whose they are, which wait. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from peerd.api import HistorySize
from peerd.ids import NodeId
from protocols.pubsub.publishing.spread import AttributeCell, Batch

SEEN_MAX: Final = 65_536
"""Visits (a batch at a cell) that are remembered, so that repeats are dropped."""
BATCH_SHARE: Final = 4
"""One batch takes at most this part of them. It is taken to no further cells then, until the publisher's next try."""
QUOTAS_MAX: Final = 4096
"""Pairs of (link, publisher) whose rate is kept."""
BURST_S: Final = 2.0
"""A publisher may send as much at once as in so many seconds of its rate."""
HELD_S: Final = 0.25
"""What comes too early by this much waits here: refused, it would be sent twice, and its publisher stop meanwhile."""
CARRIED_SHARE: Final = 16
"""One link may bring so many times the rate of one publisher, for all that it says it carries events of."""
PARKED_MAX: Final = 1024
"""Batches that wait here."""
PARKED_BYTES_MAX: Final = 4 << 20
"""Bytes of events that wait here until it is clear where they go."""
PARKED_S: Final = 10.0
"""They wait for so long; then the publisher's next try has to do."""

SEEN_S: Final = 60.0
"""A batch is forgotten when it has not come by for so long: the guesses of one try arrive within seconds."""
SEEN_BYTES: Final = 320
"""What one visit takes, at most, measured."""

BatchKey: TypeAlias = tuple[str, int, int]


def key_of_batch(batch: Batch) -> BatchKey:
    """Names a batch in one try. It contains all of its bytes, so a forged event never passes for the true one."""
    return batch.schema, batch.attempt, hash((batch.events, batch.after))


@dataclass(slots=True)
class _Passed:
    at_s: float = 0.0
    visits: set[tuple[int, int, bool]] = field(default_factory=set)


class PassedBatches:
    """Which batches have been taken to which cells through this node.

    Two guesses that were both too deep jump to the same ancestor; it does the work once (section 3.4.1). A visit that
    the cell's parent vouches for is another one, because the cell decides otherwise then.
    """

    def __init__(self, visits_max: int = SEEN_MAX) -> None:
        self._visits_max, self._batch_max = visits_max, visits_max // BATCH_SHARE
        self._count = 0
        self._batches: OrderedDict[BatchKey, _Passed] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def history(self) -> HistorySize:
        """What is remembered of them."""
        return HistorySize("batches passed", self._count, self._count * SEEN_BYTES, self._visits_max * SEEN_BYTES)

    def __contains__(self, key: BatchKey) -> bool:
        return key in self._batches

    def has_all(self, key: BatchKey, places: Iterable[AttributeCell], vouched: bool) -> bool:
        """Whether the batch has been taken to all of these cells before."""
        passed = self._batches.get(key)
        return passed is not None and all((*place, vouched) in passed.visits for place in places)

    def new(self, key: BatchKey, places: Iterable[AttributeCell], vouched: bool, now: float) -> list[AttributeCell]:
        """Those of the cells that the batch has not been taken to before; from now on it has."""
        passed = self._batches.get(key)
        if passed is None:
            passed = self._batches[key] = _Passed()
        passed.at_s, visits = now, passed.visits
        self._batches.move_to_end(key)
        fresh = []
        for attribute, cell in places:
            visit = attribute, cell, vouched
            if visit not in visits and len(visits) < self._batch_max:
                visits.add(visit)
                self._count += 1
                fresh.append((attribute, cell))
        while self._count > self._visits_max or now - next(iter(self._batches.values())).at_s > SEEN_S:
            self._count -= len(self._batches.popitem(last=False)[1].visits)
        return fresh


class Quotas:
    """How many events a second one publisher may send through this node, and one link may bring in all.

    Whose events they are is only what the link says. So the count is kept for each pair of the two: who forges somebody
    else's events uses up his own share, not that one's.
    """

    def __init__(self) -> None:
        self._debts: OrderedDict[tuple[NodeId, NodeId | None], tuple[float, float]] = OrderedDict()
        """Events not yet worked off, and since when."""

    def __len__(self) -> int:
        return len(self._debts)

    def wait_s(self, link: NodeId, publisher: NodeId, events: int, rate: float, now: float) -> float:
        """For how long they come too early; 0: not at all. They are counted unless that is more than `HELD_S`."""
        pairs: list[tuple[tuple[NodeId, NodeId | None], float]] = [((link, publisher), rate)]
        if link != publisher:
            pairs.append(((link, None), rate * CARRIED_SHARE))
        wait = max(0.0, *(self._debt(pair, each, now) / each - BURST_S for pair, each in pairs))
        if wait > HELD_S:
            return wait
        for pair, each in pairs:
            self._debts[pair] = (self._debt(pair, each, now) + events, now)
            self._debts.move_to_end(pair)
        while len(self._debts) > QUOTAS_MAX:
            self._debts.popitem(last=False)
        return wait

    def _debt(self, pair: tuple[NodeId, NodeId | None], rate: float, now: float) -> float:
        debt, since = self._debts.get(pair, (0.0, now))
        return max(0.0, debt - (now - since) * rate)


@dataclass(frozen=True, slots=True)
class Journey:
    """Events, and the cells that they have to visit from here; see `ProbePub`.

    ``hops``: how many links they will have crossed at the next node. ``until_s``: how long they may wait here.
    """

    batch: Batch
    places: tuple[AttributeCell, ...]
    vouched: bool
    remembered: bool
    hops: int
    until_s: float
    is_lent: bool = False


class Parking:
    """What waits here: bounded, and for a short time, because the publisher tries again anyway."""

    def __init__(self) -> None:
        self._parked: dict[int, Journey] = {}
        self._next = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._parked)

    def add(self, parked: Journey) -> int | None:
        """Keep it, and return its number here; ``None`` where there is no room."""
        size = parked.batch.bytes
        if len(self._parked) >= PARKED_MAX or self.bytes + size > PARKED_BYTES_MAX:
            return None
        self._next += 1
        self._parked[self._next] = parked
        self.bytes += size
        return self._next

    def has(self, schema: str) -> bool:
        """Whether something of a schema waits."""
        return any(parked.batch.schema == schema for parked in self._parked.values())

    def take(self, schema: str, place: AttributeCell | None = None) -> Iterator[Journey]:
        """Take out all of a schema's, or all that waits for one cell."""
        yield from self._take(
            [
                number
                for number, parked in self._parked.items()
                if parked.batch.schema == schema and (place is None or place in parked.places)
            ]
        )

    def take_one(self, number: int) -> Iterator[Journey]:
        """Take out the one of this number, if it is still here."""
        yield from self._take([number] if number in self._parked else [])

    def take_all(self) -> Iterator[Journey]:
        """Take out everything."""
        yield from self._take(list(self._parked))

    def _take(self, numbers: list[int]) -> Iterator[Journey]:
        for number in numbers:
            parked = self._parked.pop(number)
            self.bytes -= parked.batch.bytes
            yield parked
