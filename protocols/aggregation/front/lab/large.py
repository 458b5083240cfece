"""One run over large values: a ring forms, its machines get links of their rates, and one system aggregates.

All systems run on the same ring with the same links, over the swap layer of daemons. San Fermín is the plugin of
daemons with all that a round has there; `protocols.aggregation.front.lab.rivals` says what others get for nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Final, TypeVar, cast

from peerd.api import Plugin
from peerd.ids import NodeId, format_id
from peerd.lab.experiment import Beginning, Notify, Point, Row
from peerd.lab.simulated import Outcome, simulate
from peerd.lab.topologies import label_of
from peerd.limits import KIB, MIB
from peerd.messages import PeerRef
from peerd.sim.rng import fork, random_id
from peerd.sim.simulation import Place, Simulation
from protocols.aggregation.answer import Answer
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.effects import TreePhase
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.lab.hosts import limit_links
from protocols.aggregation.front.lab.levels import LevelsJob, PushedLevels
from protocols.aggregation.front.lab.rivals import Job, Rival, balanced, children_of, routed
from protocols.aggregation.front.lab.run import FREE, KILLED, NONE, QuietRing, sent
from protocols.aggregation.front.lab.supernodes import Supernode, SupernodeJob, replicas_of
from protocols.aggregation.front.scenario import one_record, plugin_of
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.aggregation.requester import RoundListener

SAN_FERMIN: Final = "san-fermin"
PIECES: Final = "san-fermin-pieces"
"""Values are exchanged in pieces, in rings that are small enough for it."""
CENTRAL: Final = "central"
LEVELS: Final = "levels"
SUPERNODES: Final = "supernodes-16"
"""A tree of this degree whose inner nodes have replicas."""
RIVALS: Final = (Rival, Supernode, PushedLevels)
AnyRival = TypeVar("AnyRival", bound=Rival | Supernode | PushedLevels)
DEADLINE_S: Final = 300.0
"""The paper gives every run five minutes (section 5.1)."""
CLEARED_S_MAX: Final = 120.0
"""So long a link may be full of what was under way when the time of the one before was over."""
SETTLED_S: Final = 10.0
"""After that nobody is thought to be on its way back into the ring."""
BY_NODE: Final = parse_query("count by node", files="**/*")
NEVER: Final = 1 << 40
PATIENCE_S: Final = 20.0
"""In the paper a tree of SDIMS has ended when half of all data is at the root, and nothing new has come for so long."""
POLL_S: Final = 0.001
PIECE_BYTES: Final = 8 * KIB
"""On slow links a control message waits for such a piece of each stream, not for more."""
CALM_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LargeChoice:
    """A variant. ``failing``: which share of the nodes fails, at random instants of the time that it takes when nobody
    does; ``how``: their process ends, or their machine says nothing more."""

    system: str
    value_kib: int
    failing: float = 0.0
    how: str = NONE

    @classmethod
    def of(cls, variant: Mapping[str, object]) -> LargeChoice:
        """Read a point's variant."""
        return cls(**variant)  # type: ignore[arg-type]  # made by `large_experiments`


@dataclass(slots=True)
class Aggregated:
    """What came of one aggregation: the seconds that it took, and whose data it has."""

    took_s: float
    contributors: frozenset[NodeId]
    is_right: bool = True
    """Whether the value is that of the contributors, each once."""
    is_final: bool = True
    """Whether no more is waited for."""


def plugins(index: int) -> list[Plugin]:
    """The plugins of a simulated node."""
    return [Aggregation(AggregationConfig()), *(kind() for kind in RIVALS)]


def prepare(point: Point, notify: Notify) -> QuietRing:
    """Let a ring form, on links without limits."""
    begun = time.process_time()
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    network = {**FREE, "piece_bytes": PIECE_BYTES}
    outcome = simulate(point, phases, notify, plugins=plugins, network=network)
    return QuietRing(outcome, time.process_time() - begun)


def measure(point: Point, notify: Notify) -> Row:
    """Return the row of one point."""
    return measure_on(prepare(point, notify), point, notify)


def measure_on(ring: QuietRing, point: Point, notify: Notify) -> Row:
    """Aggregate once on such a ring; where nodes are to fail, once before when none does."""
    if ring.outcome.report.failure is not None:
        return ring.outcome.cost()
    begun = time.process_time()
    run = _Run(ring.outcome, point)
    notify("aggregate", run.simulation.now)
    calm = result = run.aggregate(0.0)
    if run.choice.failing:
        run.simulation.run_for(CALM_S)
        result = run.aggregate(calm.took_s)
    return {
        **run.row(calm, result),
        **ring.outcome.cost(),
        "events": run.simulation.engine.events,
        "simulated_s": round(run.simulation.now, 3),
        "processor_s": round(ring.processor_s + time.process_time() - begun, 2),
    }


class _Run:
    """The aggregations of one point."""

    def __init__(self, outcome: Outcome, point: Point) -> None:
        self.simulation: Simulation = outcome.simulation
        self.choice = LargeChoice.of(point.variant)
        self._rng = fork(point.seed, "aggregation", "large")
        self._nodes = self.simulation.live_nodes()
        # Rates have a generator of their own, so that a ring has the same ones whatever is run on it.
        rates = limit_links(self._nodes, label_of(point.topology), fork(point.seed, "aggregation", "links"))
        self._rates = {place.id: rate for place, rate in zip(self._nodes, rates, strict=True)}
        self._requester = self._rng.choice(self._nodes)
        self._before: dict[int, tuple[int, int, int, int]] = {}
        self._begun_at = 0.0
        self._jobs = 0

    def aggregate(self, failing_within_s: float) -> Aggregated:
        """Once; if given, with nodes that fail within so many seconds."""
        if self.choice.system not in (SAN_FERMIN, PIECES):
            self._clear()
        self._before = {place.index: _moved(place) for place in self._nodes}
        if failing_within_s:
            others = [place for place in self._nodes if place is not self._requester]
            fail = self.simulation.kill if self.choice.how == KILLED else self.simulation.silence
            for place in self._rng.sample(others, round(self.choice.failing * len(self._nodes))):
                self.simulation.after(self._rng.uniform(0.0, failing_within_s), partial(fail, place))
        if self.choice.system in (SAN_FERMIN, PIECES):
            return self._round()
        if self.choice.system == CENTRAL:
            return self._central()
        if self.choice.system == LEVELS:
            return self._levels()
        if self.choice.system.startswith("supernodes"):
            return self._supernodes()
        return self._trees()

    def _clear(self) -> None:
        """End what is left of the job before. A node whose link was full of it hears its neighbours again."""
        for place in self._nodes:
            for kind in RIVALS:
                rival_of(place, kind).stop()
        self.simulation.run_until(lambda: all(place.node.is_ready for place in self._nodes), limit_s=CLEARED_S_MAX)
        self.simulation.run_for(SETTLED_S)

    # The systems

    def _round(self) -> Aggregated:
        pieces_from = 1 if self.choice.system == PIECES else NEVER
        for place in self._nodes:
            plugin = plugin_of(place)
            plugin.participating.config = plugin.requesting.config = AggregationConfig(pieces_from=pieces_from)
            data = plugin_of(place).data
            data.extractor, data.padding_bytes = one_record(format_id(place.id)), self.choice.value_kib * KIB
        answers: list[Answer] = []
        plugin_of(self._requester).requesting.aggregate(BY_NODE, RoundListener(answers.append), DEADLINE_S)
        self.simulation.run_until(lambda: bool(answers), limit_s=2 * DEADLINE_S, poll_s=POLL_S)
        [answer] = answers
        inside = frozenset(answer.contributor_ids)
        assert isinstance(answer.value, GroupedAnswer)
        is_right = answer.value.groups == {format_id(node): 1 for node in inside}
        return Aggregated(answer.duration_s, inside, is_right and len(inside) == len(answer.contributor_ids))

    def _central(self) -> Aggregated:
        members = [place.peer for place in self._nodes]
        others = [peer for peer in members if peer.id != self._requester.id]
        ways = {self._requester.id: (), **{peer.id: (self._requester.peer,) for peer in others}}
        job, result = self._job([ways], tells=False)
        for place in self._nodes:
            rival_of(place, Rival).begin(job)
        rival_of(self._requester, Rival).fetch_all(others)
        return self._until(result, lambda: any(each.is_final for each in result))

    def _trees(self) -> Aggregated:
        kind, _, number = self.choice.system.partition("-")
        if kind == "tree":
            ways = [balanced(self._shuffled(), int(number))]
        else:
            ways = [self._routed(random_id(self._rng)) for _ in range(int(number))]
        job, result = self._job(ways)
        return self._begun(lambda place: rival_of(place, Rival).begin(job), result)

    def _supernodes(self) -> Aggregated:
        members = self._shuffled()
        ways = balanced(members, int(self.choice.system.partition("-")[2]))
        result, told = self._results()
        job = SupernodeJob(
            self._jobs,
            self.choice.value_kib * KIB,
            PATIENCE_S,
            {node: way[0].id for node, way in ways.items() if way},
            children_of(ways),
            replicas_of(ways, members, self._rng),
            told,
        )
        return self._begun(lambda place: rival_of(place, Supernode).begin(job), result)

    def _levels(self) -> Aggregated:
        result, told = self._results()
        job = LevelsJob(self._jobs, self.choice.value_kib * KIB, self._shuffled(), told)
        return self._begun(lambda place: rival_of(place, PushedLevels).begin(job), result)

    def _shuffled(self) -> list[PeerRef]:
        """All nodes, the requester first, and the others by chance."""
        rest = [place.peer for place in self._nodes if place is not self._requester]
        self._rng.shuffle(rest)
        return [self._requester.peer, *rest]

    def _begun(self, begin: Callable[[Place], None], result: list[Aggregated]) -> Aggregated:
        """What comes of it when each node hears of the request one latency after it."""
        latency = self.simulation.network.latency
        for place in self._nodes:
            delay_s = 0.0 if place is self._requester else latency.latency_s(self._requester.index, place.index)
            self.simulation.after(delay_s, partial(_begin_if_live, place, begin))
        count = len(self._nodes)

        def is_over() -> bool:
            if not result:
                return False
            most = max(len(each.contributors) for each in result)
            quiet_s = self.simulation.now - self._begun_at - result[-1].took_s
            return most == count or (most * 2 >= count and quiet_s >= PATIENCE_S)

        return self._until(result, is_over)

    def _routed(self, key: NodeId) -> dict[NodeId, tuple[PeerRef, ...]]:
        places = self.simulation.places
        members = [place.peer for place in self._nodes]
        return routed(members, lambda member: rival_of(places[member.id], Rival).host.next_hop(key))

    def _job(
        self, ways: list[dict[NodeId, tuple[PeerRef, ...]]], *, tells: bool = True
    ) -> tuple[Job, list[Aggregated]]:
        results, told = self._results()

        def ended(tree: int, contributors: frozenset[NodeId], is_final: bool) -> None:
            told(contributors, is_final)

        children = [children_of(each) for each in ways]
        return Job(self._jobs, self.choice.value_kib * KIB, PATIENCE_S, tells, ways, children, ended), results

    def _results(self) -> tuple[list[Aggregated], Callable[[frozenset[NodeId], bool], None]]:
        """What comes of a job that begins now, and who is to be told of it."""
        results: list[Aggregated] = []
        begun_at = self._begun_at = self.simulation.now
        self._jobs += 1

        def told(contributors: frozenset[NodeId], is_final: bool) -> None:
            results.append(Aggregated(self.simulation.now - begun_at, contributors, is_final=is_final))

        return results, told

    def _until(self, results: list[Aggregated], is_over: Callable[[], bool]) -> Aggregated:
        """The fullest result, and when it was there; after five minutes whatever there is."""
        end = self.simulation.now + DEADLINE_S
        self.simulation.run_until(
            lambda: is_over() or self.simulation.now >= end, limit_s=2 * DEADLINE_S, poll_s=POLL_S
        )
        if not results:
            return Aggregated(DEADLINE_S, frozenset())
        most = max(len(each.contributors) for each in results)
        return next(each for each in results if len(each.contributors) == most)

    # What is told

    def row(self, calm: Aggregated, result: Aggregated) -> Row:
        """The columns of a point."""
        alive = [place for place in self._nodes if place.is_live]
        moved = [
            tuple(now - then for now, then in zip(_moved(place), self._before[place.index], strict=True))
            for place in alive
        ]
        count = len(self._nodes)
        return {
            "answer_s": round(result.took_s, 4),
            "calm_s": round(calm.took_s, 4),
            "ms_each": round(1000 * result.took_s / max(len(result.contributors), 1), 3),
            "of_all": round(len(result.contributors) / count, 4),
            "of_survivors": round(fmean(place.id in result.contributors for place in alive), 4),
            "dead": count - len(alive),
            "wrong": int(not (calm.is_right and result.is_right)),
            "messages": round(fmean(messages for messages, *_ in moved), 1),
            "control_kib": round(fmean(size for _, size, *_ in moved) / KIB, 1),
            "bulk_mib": round(fmean(out for *_, out, _ in moved) / MIB, 3),
            "most_mib": round(max(into for *_, into in moved) / MIB, 2),
            **self._states(alive),
        }

    def _states(self, alive: list[Place]) -> Row:
        """The mean rate of the machines whose trees are complete, still at work, and pruned (the paper's table 2)."""
        if self.choice.system not in (SAN_FERMIN, PIECES):
            return {}
        rates: dict[str, list[float]] = {}
        for place in alive:
            for participant in plugin_of(place).participating.participants.values():
                phase = participant.tree.phase
                name = {TreePhase.FINISHED: "complete", TreePhase.PRUNED: "pruned"}.get(phase, "working")
                rates.setdefault(name, []).append(self._rates[place.id])
        row: Row = {}
        for name in ("complete", "working", "pruned"):
            found = [rate for rate in rates.get(name, []) if math.isfinite(rate)]
            row[name] = len(rates.get(name, []))
            row[f"{name}_mbit"] = round(fmean(found), 2) if found else None
        return row


def rival_of(place: Place, kind: type[AnyRival]) -> AnyRival:
    """The plugin of another system at a node."""
    return cast(AnyRival, place.node.plugins[kind.name])


def _begin_if_live(place: Place, begin: Callable[[Place], None]) -> None:
    if place.is_live:
        begin(place)


def _moved(place: Place) -> tuple[int, int, int, int]:
    """Control messages that a node has sent, their bytes, and bytes of streams that it has sent and received."""
    return *sent(place.node.traffic), place.port.bulk_sent, place.port.bulk_received


def _same_ring(point: Point) -> str:
    """Points with the same ring share it."""
    return f"large {point.nodes} {point.topology} {point.seed} {point.settle_s}"


BEGINNING: Final = Beginning(_same_ring, prepare, measure_on)
