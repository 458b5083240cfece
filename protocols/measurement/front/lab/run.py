"""One run: a ring forms, owners' values walk, queriers ask the same over and over, and what nodes send is counted.

The plugin is that of daemons. Values are put as applications put theirs. Nobody keeps what was read, as in the
paper: what is not cached has to be asked for. Points that need the same ring share it: `prepare` makes the ring, and
`measure_on` goes on from there, with caches of the size that the point has: nobody has cached anything yet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Final

from peerd.errors import Unavailable
from peerd.lab.experiment import Beginning, Notify, Point, Row
from peerd.lab.simulated import Outcome, simulate
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.sim.world import rare_collections
from protocols.measurement.front.lab.counting import CACHING, Sent, by_message, difference, kinds, rates_row, sent
from protocols.measurement.front.lab.optimum import RepeatedQuery
from protocols.measurement.front.lab.series import RandomWalk
from protocols.measurement.front.lab.ways import GROUP, WAYS, settings_of
from protocols.measurement.front.lab.workload import QueryGroup, draw_groups
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.placing.tree import ROOT_KEY
from protocols.measurement.plugin import MeasurementQueries
from protocols.measurement.readings import NoReading, Reading

BUCKET_S: Final = 16.0
"""Rates are means over so long (section 7.4.1)."""
WARM_SHARE: Final = 0.2
"""This part of the time nodes have to find out what to cache: 200 s of the paper's 1,000."""
VALUE: Final = "walk"
TTL_S: Final = 86_400.0
FOUND_S: Final = 10.0
"""For so long queriers look up which nodes there are, before anything is counted."""
DRAIN_S: Final = 8.0
"""For so long answers are waited for in the end; nothing of it is counted."""
OVERLAY: Final = {
    "heartbeat_interval": "1m",
    "failure_timeout": "3m",
    "exchange_interval": "2m",
    "lease": "4m",
}
"""Nobody fails here, and the overlay's own messages are not counted."""


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """A variant. ``workload``, ``n_q``, ``n_o`` and ``period_s`` as in section 7.3; each value makes a normal step of
    deviation ``sigma`` every ``step_s``. ``rises``: where it is 1, the deviation grows from 0 up to ``sigma``."""

    way: str = "tree"
    cache: int = 100
    workload: str = "1,1,1,1"
    n_q: int = 4
    n_o: int = 10
    period_s: float = 16.0
    sigma: float = 7.0
    step_s: float = 4.0
    rises: float = 0.0
    half_width: float = 10.0

    @classmethod
    def of(cls, variant: Mapping[str, object]) -> WorkloadChoice:
        """Read a point's variant."""
        return cls(**variant)  # type: ignore[arg-type]  # made by `experiments`


def plugin_at(place: Place) -> MeasurementQueries:
    """The plugin of a node."""
    found = place.node.plugins[MeasurementQueries.name]
    assert isinstance(found, MeasurementQueries)
    return found


class ReadLog:
    """What came of the reads."""

    def __init__(self) -> None:
        self.asked = 0
        self.took_s: list[float] = []
        self.of_answer: list[int] = []
        """Values in each answer that are fresh."""
        self.values = self.stale = self.missing = self.outside = 0

    def row(self) -> Row:
        """Columns on them."""
        ordered = sorted(self.took_s)
        at_once = sum(each == 0 for each in ordered)
        return {
            "reads": self.asked,
            "answered": len(ordered),
            "values": self.values,
            "stale": self.stale,
            "missing": self.missing,
            "outside_share": round(self.outside / self.values, 5) if self.values else None,
            "latency_ms": round(1000 * fmean(ordered), 2) if ordered else None,
            "latency_p50_ms": round(1000 * ordered[len(ordered) // 2], 2) if ordered else None,
            "latency_p99_ms": round(1000 * ordered[int(0.99 * len(ordered))], 2) if ordered else None,
            "at_once_share": round(at_once / len(ordered), 4) if ordered else None,
        }


class Monitoring:
    """The queries and values of a run, on a ring that has formed."""

    def __init__(self, simulation: Simulation, choice: WorkloadChoice, seed: int, duration_s: float) -> None:
        self.simulation, self.choice = simulation, choice
        self._duration_s = duration_s
        self._rng: Random = fork(seed, "measurement", "queries")
        latency_s = simulation.network.latency.latency_s
        nodes = [place.index for place in simulation.live_nodes()]
        drawn = fork(seed, "measurement", "groups")
        parents = parents_of(simulation)
        self.groups = draw_groups(choice.workload, choice.n_q, choice.n_o, nodes, latency_s, drawn, parents)
        owners = sorted({owner for group in self.groups for owner in group.owners})
        self.walks = {
            owner: RandomWalk(fork(seed, "measurement", "walk", owner), choice.half_width) for owner in owners
        }
        self.log = ReadLog()
        self._begun_at = self._ends_at = 0.0

    def prepare(self) -> None:
        """Give each node a value and room for its cache, and let queriers find out which nodes there are."""
        room = {"cache_values": self.choice.cache if WAYS[self.choice.way].caches else 0}
        for place in self.simulation.live_nodes():
            plugin = plugin_at(place)
            plugin.decider._config = plugin.config.model_copy(update=room)
            plugin.put(VALUE, 0.0, TTL_S)
            plugin.readings.kept_max = 0
        if WAYS[self.choice.way].region_tag:
            self._tag()
        for group in self.groups:
            for querier in group.queriers:
                plugin_at(self.simulation.nodes[querier]).directory.refreshed(_nothing, fresh_s=0.0)
        self.simulation.run_for(FOUND_S)

    def _tag(self) -> None:
        """Give the owners of each group a tag of their own, and let all nodes say which they have."""
        for number, group in enumerate(self.groups):
            for owner in group.owners:
                plugin = plugin_at(self.simulation.nodes[owner])
                plugin.config = plugin.config.model_copy(update={"tags": {GROUP: str(number)}})
                plugin.reconfigured()
        self.simulation.run_for(FOUND_S)

    def begin(self) -> None:
        """Values walk, and queriers ask, from now on until the time is over."""
        self._begun_at = self.simulation.now
        self._ends_at = self._begun_at + self._duration_s
        for owner in self.walks:
            self._later(self._rng.uniform(0.0, self.choice.step_s), self._step, owner)
        for group in self.groups:
            for querier in group.queriers:
                self._later(self._rng.uniform(0.0, self.choice.period_s), self._ask, querier, group)

    def _later(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        if self.simulation.now + delay_s < self._ends_at:
            self.simulation.after(delay_s, lambda: act(*args))

    def _step(self, owner: int) -> None:
        passed = (self.simulation.now - self._begun_at) / self._duration_s
        sigma = self.choice.sigma * (passed if self.choice.rises else 1.0)
        place = self.simulation.nodes[owner]
        plugin_at(place).put(VALUE, self.walks[owner].step(sigma), TTL_S)
        self._later(self.choice.step_s, self._step, owner)

    def _ask(self, querier: int, group: QueryGroup) -> None:
        place = self.simulation.nodes[querier]
        plugin, asked_at = plugin_at(place), self.simulation.now
        nodes = self.simulation.live_nodes() if WAYS[self.choice.way].scrapes else self._places(group)
        wants = [Want(Measurement(each.id, VALUE), self.choice.half_width) for each in nodes if each is not place]
        about = {each.id for each in self._places(group)}
        log = self.log

        def told(answers: list[Reading | NoReading]) -> None:
            log.took_s.append(self.simulation.now - asked_at)
            for each in answers:
                if each.measurement.owner in about:
                    self._judge(log, each)

        log.asked += 1
        plugin.readings.read(wants, plugin.config.max_age, told)
        self._later(self.choice.period_s, self._ask, querier, group)

    def _places(self, group: QueryGroup) -> list[Place]:
        return [self.simulation.nodes[owner] for owner in group.owners]

    def _judge(self, log: ReadLog, answer: Reading | NoReading) -> None:
        if isinstance(answer, NoReading):
            log.missing += 1
            return
        log.values += 1
        log.stale += answer.is_stale
        owner = self.simulation.find(answer.measurement.owner).index
        log.outside += not answer.interval.holds(self.walks[owner].value)

    # What the optimum has to know

    def queries(self) -> list[RepeatedQuery]:
        """Who asks for what, how often."""
        rate = 1 / self.choice.period_s
        return [RepeatedQuery(querier, group.owners, rate) for group in self.groups for querier in group.queriers]

    def broken(self) -> dict[int, int]:
        """How often the bounds that one holder would have of each owner's value have been broken."""
        return {owner: walk.bounds.broken for owner, walk in self.walks.items()}


def _nothing() -> None:
    """Called when it is known which nodes there are."""


def parents_of(simulation: Simulation) -> dict[int, int]:
    """The tree T as it is now: for each node the next hop to the root key. The root has none."""
    index = {place.id: place.index for place in simulation.live_nodes()}
    found: dict[int, int] = {}
    for place in simulation.live_nodes():
        try:
            parent = place.node.overlay.next_hop(ROOT_KEY)
        except Unavailable:
            continue
        if parent is not None:
            found[place.index] = index[parent.id]
    return found


@dataclass
class FormedRing:
    """A ring, and what that took."""

    outcome: Outcome
    processor_s: float


def ring_of(point: Point) -> str:
    """Names the ring that a point needs: points with the same name need the same one."""
    return ring_with(point, _settings(point))


def ring_with(point: Point, settings: Row) -> str:
    """Names a ring with these settings of measurement queries."""
    return json.dumps([point.nodes, point.topology, point.settle_s, point.seed, settings], sort_keys=True)


def _settings(point: Point) -> Row:
    return settings_of(WorkloadChoice.of(point.variant).way)


def prepare(point: Point, notify: Notify) -> FormedRing:
    """Let a ring form."""
    return formed(point, _settings(point), notify)


def formed(point: Point, settings: Row, notify: Notify) -> FormedRing:
    """Let a ring with these settings of measurement queries form."""
    begun = time.process_time()
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    outcome = simulate(point, phases, notify, protocols={"measurement": settings}, overlay=OVERLAY)
    return FormedRing(outcome, time.process_time() - begun)


def measure_on(ring: FormedRing, point: Point, notify: Notify) -> Row:
    """Run the workload on such a ring."""
    return measured(ring, point, notify)[0]


def measured(ring: FormedRing, point: Point, notify: Notify) -> tuple[Row, Monitoring | None]:
    """Run the workload on such a ring. There is no workload where the ring has not formed."""
    if ring.outcome.report.failure is not None:
        return ring.outcome.cost(), None
    begun = time.process_time()
    choice, simulation = WorkloadChoice.of(point.variant), ring.outcome.simulation
    with rare_collections():
        monitoring = Monitoring(simulation, choice, point.seed, point.duration_s)
        monitoring.prepare()
        notify("queries", simulation.now)
        row = watch(monitoring, point.duration_s)
    cost = {
        **ring.outcome.cost(),
        "events": simulation.engine.events,
        "simulated_s": round(simulation.now, 3),
        "processor_s": round(ring.processor_s + time.process_time() - begun, 2),
    }
    return {**row, **cost}, monitoring


def watch(monitoring: Monitoring, duration_s: float) -> Row:
    """Let the workload run, and count."""
    simulation = monitoring.simulation
    counts: list[Sent] = [sent(simulation)]
    broken: list[int] = [0]
    monitoring.begin()
    warm = max(1, round(WARM_SHARE * duration_s / BUCKET_S))
    before_warm = monitoring.log
    for bucket in range(int(duration_s / BUCKET_S)):
        if bucket == warm:
            before_warm, monitoring.log = monitoring.log, ReadLog()
        simulation.run_for(BUCKET_S)
        counts.append(sent(simulation))
        broken.append(sum(monitoring.broken().values()))
    simulation.run_for(DRAIN_S)
    seconds, warm_s = BUCKET_S * (len(counts) - 1), BUCKET_S * (len(counts) - 1 - warm)
    all_of_it, warmed = difference(counts[0], counts[-1]), difference(counts[warm], counts[-1])
    return {
        **rates_row(all_of_it, seconds),
        **rates_row(warmed, warm_s, "warm_"),
        "messages": sum(kinds(all_of_it)[kind] for kind in CACHING),
        "broken_per_s": round(broken[-1] / len(monitoring.walks) / seconds, 4),
        **{f"early_{name}": value for name, value in before_warm.row().items() if name in ("reads", "latency_ms")},
        **monitoring.log.row(),
        "by_message": by_message(all_of_it, seconds),
        **_in_time(counts),
        "broken_of": _rates([after - before for before, after in pairwise(broken)], monitoring),
    }


def _in_time(counts: Sequence[Sent]) -> Row:
    """Messages a second of each bucket."""
    buckets = [kinds(difference(before, after)) for before, after in pairwise(counts)]
    return {f"{kind}_of": [round(each[kind] / BUCKET_S, 3) for each in buckets] for kind in CACHING}


def _rates(broken: Sequence[int], monitoring: Monitoring) -> list[float]:
    """How often bounds were broken in each bucket: a second and measurement."""
    return [round(each / len(monitoring.walks) / BUCKET_S, 4) for each in broken]


def measure(point: Point, notify: Notify) -> Row:
    """Run a point from its beginning."""
    return measure_on(prepare(point, notify), point, notify)


BEGINNING: Final = Beginning(ring_of, prepare, measure_on)
