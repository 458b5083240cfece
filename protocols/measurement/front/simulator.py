"""Measurement queries in the simulator: an oracle that knows every sample of every owner, and work for the swarm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final, cast

from peerd.api import Plugin, PluginConfig
from peerd.errors import ClientRefusal
from peerd.ids import NodeId, short_id
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import SwarmWork
from protocols.measurement.aggregates.messages import AggregateSpec
from protocols.measurement.aggregates.own import OwnPart
from protocols.measurement.aggregates.partial import EXTREMES
from protocols.measurement.aggregates.tree import AggregateAnswer
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.directory import COPIES, shard_key, shard_of
from protocols.measurement.guarantee.interval import ROUNDING, Interval
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Sample
from protocols.measurement.plugin import MeasurementQueries
from protocols.measurement.readings import NodeEntry, NoReading, Reading
from protocols.measurement.sources.source import MeasurementSource
from protocols.measurement.watching import Watch

NAMES: Final = ("walk", "level", "spike")
WITHIN: Final = {"walk": 2.0, "level": 0.5, "spike": 1.0}
AGGREGATES: Final = (
    "WATCH SELECT SUM(walk) FROM nodes WITHIN 2 STALE 8s",
    "WATCH SELECT MAX(level) FROM nodes WITHIN 0.5 STALE 8s",
    "WATCH SELECT MEAN(walk) FROM nodes WITHIN 0 STALE 8s",
    "WATCH SELECT COUNT(*) FROM nodes WHERE level >= 5 STALE 8s",
)
"""What is watched of all nodes together."""
DRIFT: Final = 3e-4
"""More than two clocks of the simulator differ by."""
ROUNDING_S: Final = 1e-3
STALE_S: Final = 8.0
ASKS: Final = 100
"""So often a client asks one question, for longer than any answer to it is fresh:"""
ASK_GAP_S: Final = 0.1
"""mean time between two of them, virtual seconds."""
RINGS: Final = ((0.06, 1, 3), (0.75, 4, 12), (0.97, 13, 24), (0.995, 25, 64), (1.0, 65, 120))
"""Sizes of rings: up to this share of the seeds, the smallest, the largest."""
PLACING: Final = {3: "squares", 5: "owners", 6: "auto"}
"""What some nodes are set to, by their number modulo 8: an operator has not told all of them the same yet. Nor has he
told all of them to sign what they measure."""


class SimulatedSource(MeasurementSource):
    """Three measurements that are functions of the time: one that wanders, one that jumps now and then, one that is
    nearly always the same."""

    is_at_hand = True

    def __init__(self, seed: int, period_s: float = 1.0) -> None:
        super().__init__("simulated", period_s)
        rng = Random(seed)
        self._phases = [rng.uniform(0.0, 1000.0) for _ in range(4)]
        self._seed = seed

    def read(self, now: float) -> dict[str, float]:
        one, two, three, four = self._phases
        walk = 10.0 * math.sin((now + one) / 37.0) + 5.0 * math.sin((now + two) / 11.0) + math.sin((now + three) / 3.0)
        level = float(Random(self._seed * 7919 + int((now + four) // 20.0)).randrange(10))
        is_spike = Random(self._seed * 104729 + int(now + one)).random() < 0.02
        return {"walk": walk, "level": level, "spike": 100.0 if is_spike else 0.0}


class SimulatedQueries(MeasurementQueries):
    """The plugin, which keeps all that its owner has sampled, for the oracle."""

    def __init__(self, seed: int, config: PluginConfig | None = None) -> None:
        super().__init__(config, [SimulatedSource(seed)])
        self.log: dict[str, list[tuple[int, float, float]]] = {}
        """The number of each sample, when its source was asked, and what it said."""

    def sampled(self, values: Mapping[str, float], asked_at: float) -> None:
        super().sampled(values, asked_at)
        for name, value in values.items():
            known = self.caching.owner.known(Measurement(self.host.id, name))
            if known is not None:
                self.log.setdefault(name, []).append((known.claim.since.number, asked_at, value))


def _known(value: float) -> Known:
    return Known(BoundClaim(value, value, Interval(value, value), Sample(0, 0)), 0.0)


def plugin_of(place: Place) -> SimulatedQueries | None:
    """The plugin of a simulated node."""
    found = place.node.plugins.get(MeasurementQueries.name)
    return found if isinstance(found, SimulatedQueries) else None


def _clock(simulation: Simulation, place: Place) -> float:
    """The time by the clock of a machine, whatever became of its node."""
    clock = place.port.clock
    return simulation.now if clock is None else clock.monotonic(simulation.now)


class GuaranteeHolds(Checker):
    """No value that a node takes for fresh was ever outside its bounds up to its age, by what its owner has sampled.

    docs/protocols/measurement.md has the theorem. Values of hostile owners are what these say.
    """

    name = "measurement guarantee"
    holds_always = True

    def __init__(self) -> None:
        self._plugins: dict[NodeId, list[SimulatedQueries]] = {}
        self.judged = self.judged_aggregates = self.judged_readings = 0
        """Claims that a node holds or tells, aggregates, and answers that clients were told of other nodes' values."""

    def booted(self, simulation: Simulation, place: Place, node: Any) -> None:
        plugin = node.plugins.get(MeasurementQueries.name)
        if isinstance(plugin, SimulatedQueries):
            self._plugins.setdefault(place.id, []).append(plugin)

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        plugin = plugin_of(place)
        if plugin is None or not hasattr(plugin, "caching"):
            return []
        found: list[str] = []
        now = _clock(simulation, place)
        for measurement in plugin.caching.holder.held:
            answer = plugin.caching.read(measurement, now)
            if answer is not None and not answer.is_stale:
                found += self.judge(simulation, place, measurement, answer.claim, answer.age_s)
        for wanted in plugin.aggregates.wanted.values():
            aggregate = plugin.aggregates.answer(wanted)
            if aggregate is not None and not aggregate.is_stale:
                found += self.judge_aggregate(simulation, place, wanted.spec, aggregate)
        return found

    def judge_aggregate(
        self, simulation: Simulation, place: Place, spec: AggregateSpec, answer: AggregateAnswer
    ) -> Iterator[str]:
        """What is wrong with an aggregate of one measurement that a node takes for true.

        It is one of values of so many different nodes, each read no longer ago than the age.
        """
        if simulation.hostile or answer.interval is None:
            return
        self.judged_aggregates += 1
        own = OwnPart(spec)  # it reads the condition: once for all nodes
        had = [bounds for node in self._plugins if (bounds := self._had(simulation, node, spec, own, answer.age_s))]
        lows, highs = sorted(low for low, _ in had), sorted((high for _, high in had), reverse=True)
        # The least that any so many of them can make, and the most.
        least, most = sum(lows[: answer.counted]), sum(highs[: answer.counted])
        if spec.word == "MEAN":
            least, most = least / answer.counted, most / answer.counted
        elif spec.word in EXTREMES:
            least, most = (
                (lows[0], highs[-answer.counted]) if spec.word == "MIN" else (lows[answer.counted - 1], highs[0])
            )
        slack = ROUNDING * max(abs(least), abs(most))
        if answer.counted > len(had) or answer.interval.high < least - slack or answer.interval.low > most + slack:
            yield f"{place}: {answer} is told, of {len(had)} nodes, and it was from {least} to {most}"

    def _had(
        self, simulation: Simulation, node: NodeId, spec: AggregateSpec, own: OwnPart, age_s: float
    ) -> tuple[float, float] | None:
        """Between which bounds lies what a node has added, by what it has measured in this time."""
        since = self._until(simulation, simulation.places[node], age_s)
        [name] = [spec.name] if spec.name else [each for each in own.columns if each in NAMES]
        parts = [
            own.of(plugin.config.tags, {name: None}, lambda _, value=value: _known(value), 0.0).interval  # type: ignore[misc]  # mypy knows no default of a lambda
            for plugin in self._plugins[node]
            for _, at, value in reversed(plugin.log.get(name, []))
            if at >= since
        ]
        intervals = [each for each in parts if each is not None]
        return (min(i.low for i in intervals), max(i.high for i in intervals)) if intervals else None

    def judge(
        self, simulation: Simulation, place: Place, measurement: Measurement, claim: BoundClaim, age_s: float
    ) -> Iterator[str]:
        """What is wrong with a claim that a node takes for true up to this age."""
        owner = simulation.places.get(measurement.owner)
        if owner is None or owner.index in simulation.hostile:
            return
        self.judged += 1
        log, until = self._log(measurement, claim.since.epoch), self._until(simulation, owner, age_s)
        for number, at, value in reversed(log):
            if number < claim.since.number:
                return
            if at <= until and not claim.interval.holds(value):
                yield (
                    f"{place}: {measurement.name} of {short_id(measurement.owner)} was {value} at {at:.3f}, and "
                    f"is said to have been in {claim.interval} until {until:.3f} at least"
                )
                return

    def judge_reading(self, simulation: Simulation, place: Place, reading: Reading) -> Iterator[str]:
        """What is wrong with a fresh answer: since the moment that its age means, no value was inside its interval.

        That is all that a client can know: an answer does not say from which sample on its interval holds.
        """
        owner = simulation.places[reading.measurement.owner]
        if owner.index in simulation.hostile:
            return
        self.judged_readings += owner is not place
        until = self._until(simulation, owner, reading.age_s)
        for plugin in reversed(self._plugins[owner.id]):
            for _, at, value in reversed(plugin.log.get(reading.measurement.name, ())):
                if reading.interval.holds(value):
                    return
                if at <= until:
                    yield f"{place}: {reading} is told, and it was {value} from {at:.3f} on, before {until:.3f}"
                    return
        yield f"{place}: {reading} is told, and its owner has measured no such value"

    @staticmethod
    def _until(simulation: Simulation, owner: Place, age_s: float) -> float:
        """The moment so long ago, by the owner's clock, or some time before."""
        return _clock(simulation, owner) - age_s * (1.0 + DRIFT) - ROUNDING_S

    def _log(self, measurement: Measurement, epoch: int) -> list[tuple[int, float, float]]:
        for plugin in self._plugins.get(measurement.owner, ()):
            if plugin.caching.boot == epoch:
                return plugin.log.get(measurement.name, [])
        return []


class Measuring(SwarmWork):
    """Each node measures three things. Clients watch them during the faults, and read them again and again.

    Every fresh answer is judged. In the calm ring, a client has a fresh value of every node, and is told of changes.
    """

    gap_s: float = 2.0
    rings = RINGS
    refusals = (ClientRefusal,)

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        super().__init__(simulation, rng)
        self._oracle = next(each for each in simulation.checkers if isinstance(each, GuaranteeHolds))
        self._offences: list[str] = []
        self._watches: list[tuple[Place, Watch]] = []
        self._proof: list[Reading | NoReading] | None = None
        self._prover: Place | None = None

    @property
    def judged(self) -> int:
        return self._oracle.judged_readings

    @classmethod
    def plugin(cls, index: int) -> Plugin:
        times = {"max_age": "10s", "update_interval": "2s", "ask_interval": "3s", "describe_interval": "10s"}
        placing = {"placing": PLACING.get(index % 8, "tree"), "decide_interval": "1s", "region_tag": "role"}
        tags = {"tags": {"role": "web"} if index % 3 == 0 else {}}
        signed = {"signed": index % 2 == 1}
        return SimulatedQueries(index, MeasurementConfig.model_validate(times | placing | tags | signed))

    def act(self, place: Place) -> None:
        plugin = cast(SimulatedQueries, plugin_of(place))
        kind = self.rng.random()
        if kind < 0.05:
            plugin.queries.watch(self.rng.choice(AGGREGATES))
            return
        if kind < 0.3:
            self._watch(place, plugin)
            return
        names = self.rng.sample(NAMES, self.rng.randint(1, len(NAMES)))
        stale_s = self.rng.choice((1.0, 3.0, STALE_S))
        self._ask(place, names, self._some(), stale_s, ASKS)

    def _some(self) -> Callable[[NodeEntry], bool]:
        """Whom a client means: one node of eight, now and then all."""
        some = self.rng.getrandbits(3)
        return lambda entry: entry.id & 7 == some or some == 0

    def _ask(
        self, place: Place, names: Sequence[str], is_meant: Callable[[NodeEntry], bool], stale_s: float, times: int
    ) -> None:
        """Ask this now, and more often later."""
        plugin, driver = cast(SimulatedQueries, plugin_of(place)), place.driver
        plugin.asking.read(names, is_meant, WITHIN, stale_s, partial(self._judge, place, plugin, stale_s))
        if times > 1:
            again = partial(self._ask, place, names, is_meant, stale_s, times - 1)
            # As its node runs: later if it is paused, never if it has ended.
            self.simulation.after(self.rng.expovariate(1.0 / ASK_GAP_S), partial(driver.run, again))

    def _watch(self, place: Place, plugin: SimulatedQueries) -> None:
        self._watches = [(at, each) for at, each in self._watches if at.is_live and each.feed.ended is None]
        if len(self._watches) > 8:
            at, watch = self._watches.pop(self.rng.randrange(len(self._watches)))
            watching = cast(SimulatedQueries, plugin_of(at)).watching
            if watch in list(watching.watches):
                watching.end(watch, "the client has gone")
        names = self.rng.sample(NAMES, self.rng.randint(1, len(NAMES)))
        factor = self.rng.choice((0.5, 1.0, 4.0))
        widths = {name: factor * WITHIN[name] for name in names}
        watch = plugin.watching.watch(widths, self._some(), STALE_S)
        self._watches.append((place, watch))

    def _judge(
        self, place: Place, plugin: MeasurementQueries, stale_s: float, answers: list[Reading | NoReading] | Exception
    ) -> None:
        if isinstance(answers, Exception):
            # Of nodes that had just started when they were heard of; the proof's question is missed in the verdict.
            if not (isinstance(answers, ClientRefusal) and answers.kind == "unknown"):
                self._offences.append(f"{place} refuses a question: {answers}")
            return
        for each in answers:
            if not isinstance(each, Reading) or each.is_stale:
                continue
            if each.age_s > stale_s:
                self._offences.append(f"{place}: a value of {each.age_s:.3f} s is told as one of {stale_s:g}")
            self._offences += self._oracle.judge_reading(self.simulation, place, each)
            if (claim := self._claim(plugin, each)) is not None:
                self._offences += self._oracle.judge(self.simulation, place, each.measurement, claim, each.age_s)

    @staticmethod
    def _claim(plugin: MeasurementQueries, reading: Reading) -> BoundClaim | None:
        """What it was told from, if that is still there: it says from which sample on the interval holds."""
        known, since = plugin.readings.known(reading.measurement), plugin.host.now() - reading.age_s - ROUNDING_S
        of = (each.claim for each in known if each.claim.interval == reading.interval and each.basis >= since)
        return next(of, None)

    def prove(self, place: Place) -> None:
        plugin = cast(SimulatedQueries, plugin_of(place))
        self._prover = place
        plugin.watching.watch(WITHIN, lambda entry: True, STALE_S)
        self.simulation.after(20.0, lambda: self._read_all(place))

    def _read_all(self, place: Place) -> None:
        plugin = cast(SimulatedQueries, plugin_of(place))

        def told(answers: list[Reading | NoReading] | Exception) -> None:
            self._judge(place, plugin, STALE_S, answers)
            self._proof = answers if isinstance(answers, list) else None

        plugin.asking.read(NAMES, lambda entry: True, WITHIN, STALE_S, told)

    def verdict(self) -> list[str]:
        if self._prover is None:
            return self._offences
        if self._proof is None:
            return [*self._offences, "a question in a calm ring has no answer"]
        fresh = {each.measurement for each in self._proof if isinstance(each, Reading) and not each.is_stale}
        missing = [
            f"{name} of node {place.index}"
            for place in self.simulation.honest_nodes()
            if place.is_live and not self._may_be_hidden(place)
            for name in NAMES
            if Measurement(place.id, name) not in fresh
        ]
        if missing:
            return [*self._offences, f"a question in a calm ring has no fresh value of {', '.join(missing[:5])}"]
        return self._offences

    def _may_be_hidden(self, place: Place) -> bool:
        """Whether the roots of all copies of its description are hostile: what they do not tell, nobody knows."""
        ring = self.simulation.oracle()
        roots = (ring.root(shard_key(shard_of(place.id, copy))) for copy in range(COPIES))
        return all(self.simulation.is_hostile(root) for root in roots)
