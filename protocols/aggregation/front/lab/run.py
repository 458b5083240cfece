"""One run: a ring forms, each node has one record, rounds are asked for, and what nodes send meanwhile is counted.

The plugin is that of daemons, and a round has all that it has there: the query's broadcast, enrolment, and the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import fmean, median
from typing import Final

from peerd.ids import format_id
from peerd.lab.experiment import Beginning, Notify, Point, Row
from peerd.lab.simulated import Outcome, simulate
from peerd.limits import KIB
from peerd.sim.rng import fork
from peerd.sim.simulation import Simulation
from protocols.aggregation.answer import Answer
from protocols.aggregation.front.scenario import one_record, plugin_of
from protocols.aggregation.query import parse_query
from protocols.aggregation.requester import RoundListener

QUERY: Final = parse_query("count", files="**/*")
DEADLINE_S: Final = 60.0
LIMIT_S: Final = 120.0
BETWEEN_S: Final = 5.0
"""After a round its end is told everywhere before the next one begins."""
POLL_S: Final = 0.001
PAIRS: Final = 1000
"""So many pairs of nodes are drawn for the mean latency."""
FREE: Final[Row] = {"jitter": 0.0, "up_bytes_per_s": None, "down_bytes_per_s": None}
"""Only distance takes time, as values are small."""
SENT, SENT_BYTES = 0, 1
"""The columns of a node's counts that have the messages it has sent, and their bytes."""
NONE, KILLED, SILENT = "none", "killed", "silent"


@dataclass(frozen=True, slots=True)
class RoundChoice:
    """A variant. ``failing``: which share of the nodes fails, at random instants of the first ``span_s`` of the round.
    ``how``: their process ends, or their machine says nothing more."""

    failing: float = 0.0
    how: str = NONE
    span_s: float = 0.0

    @classmethod
    def of(cls, variant: Mapping[str, object]) -> RoundChoice:
        """Read a point's variant."""
        return cls(**variant)  # type: ignore[arg-type]  # made by `experiments`


@dataclass(frozen=True, slots=True)
class QuietRing:
    """A ring, and the processor time that it took to form."""

    outcome: Outcome
    processor_s: float


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What came of one round. What nodes sent is the mean over all of them, but for ``most_bytes`` of one node."""

    answer: Answer
    messages: float
    sent_bytes: float
    most_bytes: int
    dead: int
    survivors_in: float
    """The share of the nodes that live on whose data is in the answer."""


def law_latencies(nodes: int) -> float:
    """How many latencies a round takes by pairs that are always ready, where merging takes no time: log2 n + 1."""
    return math.log2(max(nodes, 1)) + 1.0


def measure(point: Point, notify: Notify) -> Row:
    """Return the row of one point."""
    return measure_on(prepare(point, notify), point, notify)


def prepare(point: Point, notify: Notify) -> QuietRing:
    """Let a ring form."""
    begun = time.process_time()
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    outcome = simulate(point, phases, notify, network=FREE, protocols={"aggregation": {}})
    return QuietRing(outcome, time.process_time() - begun)


def measure_on(ring: QuietRing, point: Point, notify: Notify) -> Row:
    """Ask for rounds on such a ring, one after the other."""
    if ring.outcome.report.failure is not None:
        return ring.outcome.cost()
    begun = time.process_time()
    simulation, choice = ring.outcome.simulation, RoundChoice.of(point.variant)
    for place in simulation.live_nodes():
        plugin_of(place).data.extractor = one_record(format_id(place.id))
    rng = fork(point.seed, "aggregation", "rounds")
    latency_s = mean_latency_s(simulation, rng)
    results = []
    for _ in range(1 if choice.failing else point.lookups):
        notify("round", simulation.now)
        results.append(ask(simulation, choice, rng))
        simulation.run_for(BETWEEN_S)
    return {
        **row_of(results, latency_s, point.nodes),
        **ring.outcome.cost(),
        "events": simulation.engine.events,
        "simulated_s": round(simulation.now, 3),
        "processor_s": round(ring.processor_s + time.process_time() - begun, 2),
    }


def row_of(results: list[RoundResult], latency_s: float, nodes: int) -> Row:
    """The columns of the rounds of one ring."""
    took = [each.answer.duration_s / latency_s for each in results]
    answers = [each.answer for each in results]
    return {
        "rounds": len(results),
        "latency_ms": round(1000 * latency_s, 2),
        "answer_s": round(median(each.duration_s for each in answers), 4),
        "latencies": round(median(took), 2),
        "latencies_max": round(max(took), 2),
        "law": round(law_latencies(nodes), 2),
        "messages": round(fmean(each.messages for each in results), 2),
        "kib": round(fmean(each.sent_bytes for each in results) / KIB, 2),
        "kib_max": round(max(each.most_bytes for each in results) / KIB, 1),
        "dead": max(each.dead for each in results),
        "of_all": round(min(each.contributors for each in answers) / nodes, 4),
        "of_survivors": round(min(each.survivors_in for each in results), 4),
        "doubled": sum(each.contributors - len(set(each.contributor_ids)) for each in answers),
        "wrong": sum(each.value != each.contributors for each in answers),
    }


def ask(simulation: Simulation, choice: RoundChoice, rng: Random) -> RoundResult:
    """One round, asked for by a node that does not fail."""
    nodes = simulation.live_nodes()
    requester = rng.choice(nodes)
    before = {place.index: sent(place.node.traffic) for place in nodes}
    answers: list[Answer] = []
    plugin_of(requester).requesting.aggregate(QUERY, RoundListener(answers.append), DEADLINE_S)
    others = [place for place in nodes if place is not requester]
    for place in rng.sample(others, round(choice.failing * len(nodes))):
        fail = simulation.kill if choice.how == KILLED else simulation.silence
        simulation.after(rng.uniform(0.0, choice.span_s), partial(fail, place))
    simulation.run_until(lambda: bool(answers), limit_s=LIMIT_S, poll_s=POLL_S)
    alive = [place for place in nodes if place.is_live]
    costs = [
        tuple(now - then for now, then in zip(sent(place.node.traffic), before[place.index], strict=True))
        for place in alive
    ]
    inside = set(answers[0].contributor_ids)
    return RoundResult(
        answers[0],
        fmean(messages for messages, _ in costs),
        fmean(size for _, size in costs),
        max(size for _, size in costs),
        len(nodes) - len(alive),
        fmean(place.id in inside for place in alive),
    )


def sent(traffic: Mapping[int, Sequence[int]]) -> tuple[int, int]:
    """Control messages that a node has sent, and their bytes. What swaps move is not among them."""
    counts = traffic.values()
    return sum(each[SENT] for each in counts), sum(each[SENT_BYTES] for each in counts)


def mean_latency_s(simulation: Simulation, rng: Random) -> float:
    """The mean one-way latency of two nodes."""
    indices = [place.index for place in simulation.live_nodes()]
    drawn = [rng.sample(indices, 2) for _ in range(PAIRS)] if len(indices) > 1 else []
    return fmean(simulation.network.latency.latency_s(a, b) for a, b in drawn) if drawn else math.nan


def _same_ring(point: Point) -> str:
    """Points with the same ring share it."""
    return f"{point.nodes} {point.topology} {point.seed} {point.settle_s}"


BEGINNING: Final = Beginning(_same_ring, prepare, measure_on)
