"""Whether every node reaches every other: each node of a survey is asked to ping others. For people.

On a ring of more than `REACH_TARGETS_MAX` + 1 nodes, each node pings as many others, and is pinged by as many: those
at the same random distances along the ring. A pair that fails is tried once more before it is believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from peerd.api import Rng
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.messages import REACH_TARGETS_MAX, Reached
from peerd.overlay.survey.walk import Survey

PINGS: Final = 2
"""How often each peer is pinged. The shortest round trip counts, since the pings go out in a burst."""
NODES_IN_FLIGHT_MAX: Final = 8
"""How many nodes ping at a time: if all did, their own traffic would delay the answers."""
OUTLIER_FACTOR: Final = 3.0
OUTLIER_FLOOR_S: Final = 0.02
COORDINATE_ERROR_MAX: Final = 0.5
"""Predictions by coordinates of a larger stated error are not compared with."""

Pair = tuple[NodeId, NodeId]
Measure = Callable[[PeerRef, Sequence[PeerRef], int, Callable[[dict[NodeId, Reached] | str], None]], None]
"""`peerd.overlay.survey.survey.Surveyor.measure`."""


@dataclass(frozen=True, slots=True)
class ReachProgress:
    """How far a test is, in nodes."""

    measured: int
    total: int


@dataclass(slots=True)
class Reachability:
    """What a test found; pairs are (who pinged, who was pinged)."""

    survey: Survey
    targets_each: int
    reached: dict[Pair, float | None] = field(default_factory=dict)
    """Pairs that work, with the round trip where one was timed."""
    failed: list[Pair] = field(default_factory=list)
    untested: dict[NodeId, str] = field(default_factory=dict)
    """Nodes that pinged nobody, and why."""
    duration_s: float = 0.0

    def broken(self) -> list[Pair]:
        """Failures that death does not explain: the target answered somebody."""
        alive = {target for _, target in self.reached} | self.survey.views.keys()
        return [pair for pair in self.failed if pair[1] in alive]

    def dead(self) -> list[NodeId]:
        """Nodes that were silent towards everybody who tried."""
        alive = {target for _, target in self.reached} | self.survey.views.keys()
        return sorted(node_id for node_id in self.survey.silent if node_id not in alive)

    def outliers(self) -> list[tuple[Pair, float, float]]:
        """(pair, round trip, what was to be expected) of those far above that, worst first.

        Expected is what the two coordinates predict, or the median of all where a coordinate is not settled.
        """
        timed = {pair: rtt_s for pair, rtt_s in self.reached.items() if rtt_s is not None}
        if not timed:
            return []
        usual_s = median(timed.values())
        found = []
        for pair, rtt_s in timed.items():
            predicted_s = self._predicted_s(pair)
            expected_s = usual_s if predicted_s is None else predicted_s
            if rtt_s > OUTLIER_FACTOR * expected_s + OUTLIER_FLOOR_S:
                found.append((pair, rtt_s, expected_s))
        return sorted(found, key=lambda each: each[1] - each[2], reverse=True)

    def _predicted_s(self, pair: Pair) -> float | None:
        views = [self.survey.views.get(node_id) for node_id in pair]
        places = [view.says.coordinate for view in views if view is not None]
        if len(places) < 2 or max(place.error for place in places) > COORDINATE_ERROR_MAX:
            return None
        return places[0].rtt_s(places[1])


class ReachTest:
    """One test over the nodes of a finished survey. ``finished`` is called once, later; `cancel` prevents it."""

    def __init__(
        self,
        measure: Measure,
        now: Callable[[], float],
        rng: Rng,
        survey: Survey,
        targets_each: int,
        finished: Callable[[Reachability], None],
        progress: Callable[[ReachProgress], None] = lambda progress: None,
    ) -> None:
        self._measure = measure
        self._now = now
        self._finished = finished
        self._progress = progress
        self._begun_at = now()
        self._in_flight = 0
        self._measured = 0
        self._is_over = False
        everybody = {node_id: view.peer for node_id, view in survey.views.items() if not view.says.is_leaving}
        askable = sorted(everybody)
        everybody |= survey.silent
        self._peers = everybody
        self._plan = deque(plan(askable, sorted(everybody), targets_each, rng))
        self._total = len(self._plan)
        self._retried: set[NodeId] = set()
        self.result = Reachability(survey, max((len(targets) for _, targets in self._plan), default=0))

    def begin(self) -> bool:
        """Ask the first nodes. Returns whether there is anything to measure; if not, `result` is all there is."""
        self._go_on()
        return self._in_flight > 0

    def cancel(self) -> None:
        """Ask nobody else; reports under way are ignored."""
        self._is_over = True
        self._plan.clear()

    def _go_on(self) -> None:
        while self._plan and self._in_flight < NODES_IN_FLIGHT_MAX:
            self._in_flight += 1
            self._ask(*self._plan.popleft())

    def _ask(self, node_id: NodeId, targets: tuple[NodeId, ...]) -> None:
        def done(found: dict[NodeId, Reached] | str) -> None:
            self._reported(node_id, targets, found)

        self._measure(self._peers[node_id], [self._peers[target] for target in targets], PINGS, done)

    def _reported(self, node_id: NodeId, targets: Sequence[NodeId], found: dict[NodeId, Reached] | str) -> None:
        self._in_flight -= 1
        if self._is_over:
            return
        failed: list[NodeId] = []
        if isinstance(found, str):
            self.result.untested[node_id] = found
        else:
            for target in targets:
                reached = found.get(target)
                if reached is not None and reached.is_reached:
                    self.result.reached[node_id, target] = reached.rtt_s
                else:
                    failed.append(target)
        if failed and node_id not in self._retried:
            self._retried.add(node_id)
            self._plan.append((node_id, tuple(failed)))
        else:
            self._measured += 1
            self.result.failed += [(node_id, target) for target in failed]
        self._progress(ReachProgress(self._measured, self._total))
        self._go_on()
        if not self._in_flight:
            self._is_over = True
            self.result.failed.sort()
            self.result.duration_s = self._now() - self._begun_at
            self._finished(self.result)


def plan(
    askable: Sequence[NodeId], everybody: Sequence[NodeId], targets_each: int, rng: Rng
) -> list[tuple[NodeId, tuple[NodeId, ...]]]:
    """Who pings whom: every node as many others, and every node pinged by as many. Both sequences are sorted."""
    count = len(everybody)
    each = min(targets_each, REACH_TARGETS_MAX, count - 1)
    if each < 1:
        return []
    steps = range(1, count) if each == count - 1 else sorted(rng.sample(range(1, count), each))
    positions = {node_id: position for position, node_id in enumerate(everybody)}
    return [(node_id, tuple(everybody[(positions[node_id] + step) % count] for step in steps)) for node_id in askable]
