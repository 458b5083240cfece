"""The swarm: many small simulations, each with faults and work drawn from its seed.

A seed has phases, as in TigerBeetle's VOPR: the ring forms; faults strike, and invariants that hold always are checked;
then the network is healed, a random core of the nodes lives on, the others stay dead, and within `REPAIR_S` every
invariant must hold, those of a calm ring too; last, every message must arrive.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import encode_body
from peerd.sim.checkers import CONTINUOUS, QUIESCENT, Checker, CorrectDelivery, Dedupe, FailureDetection, SingleRoot
from peerd.sim.latency import EuclideanLatency
from peerd.sim.network import NetworkConfig
from peerd.sim.plugin_checkers import continuous_checkers
from peerd.sim.rng import fork, random_id
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.faults import Faults
from peerd.sim.swarm.liars import Liars
from peerd.sim.swarm.plan import Attackers, Plan, draw
from peerd.sim.swarm.states import SOMETIMES, States, count_rings
from peerd.sim.swarm.work import nodes_of, plugins_of, work_of
from peerd.sim.workload import LOST_AFTER_S, SimulationProbe, Workload
from peerd.sim.world import SimulationFailure

REPAIR_S: Final = 120.0
"""Within this after the faults the ring must be whole: four times the time that one repair takes."""
POLL_S: Final = 5.0
FORM_S: Final = 120.0
"""Within this after the last start a ring must have formed, where nothing hinders it."""
PROOF_S: Final = 30.0
"""How long messages are sent to the repaired ring, and it must stay repaired."""
PROOF_PROBES_PER_S: Final = 10.0
STRAGGLERS_S: Final = 30.0
"""How long messages of the calm ring are waited for beyond `POLL_S`: as long as a hop goes on trying to pass one on."""
LOOKUPS_GAP_S: Final = 2.0
BROADCASTS_GAP_S: Final = 5.0
CHECK_EVERY: Final = 8
"""Events between two looks at the node that one touched."""
OFFENCES_TOLD_MAX: Final = 8
AHEAD: Final = 4
"""Seeds given to each process before the oldest has ended."""


@dataclass
class SeedResult:
    """What one seed found out. All but ``cpu_s`` is the same whenever and wherever it runs."""

    seed: int
    nodes: int
    plan: str
    failure: str | None = None
    phase: str = "form"
    """The last one that began."""
    repaired_s: float | None = None
    """From the end of the faults to a whole ring."""
    core: int = 0
    judged: int = 0
    """So many answers clients were told by the protocols, and each was judged."""
    simulated_s: float = 0.0
    events: int = 0
    cpu_s: float = 0.0
    digest: str = ""
    states: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, str]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether everything held."""
        return self.failure is None


def run_seed(
    seed: int,
    without: frozenset[str] = frozenset(),
    nodes: int | None = None,
    protocols: Sequence[str] = (),
    attackers: Attackers | None = None,
) -> SeedResult:
    """One seed, to its end or to its first failure, which is in the result and not raised.

    ``protocols`` run on every node, do their work and are judged. They are named, not found, so that a seed is the same
    run wherever it runs. Raises `ConfigError` for one that cannot be used.
    """
    nodes = nodes_of(work_of(protocols), seed) if nodes is None else nodes
    run = SeedRun(draw(seed, nodes, attackers).without(without), protocols)
    begun = time.process_time()
    try:
        run.run()
    except SimulationFailure as failure:
        run.result.failure = str(failure)
    run.finish()
    run.result.cpu_s = time.process_time() - begun
    return run.result


class SeedRun:
    """The run of one seed."""

    def __init__(self, plan: Plan, protocols: Sequence[str] = ()) -> None:
        self.plan = plan
        self.result = SeedResult(plan.seed, plan.nodes, ", ".join((*protocols, str(plan))))
        kinds = work_of(protocols)
        self._states = States()
        self._failures = FailureDetection()
        self._roots = SingleRoot()
        self._deliveries = CorrectDelivery()
        fresh = {FailureDetection: self._failures, SingleRoot: self._roots}
        checkers: list[Checker] = [fresh[kind] if kind in fresh else kind() for kind in CONTINUOUS]
        checkers += [kind() for kind in continuous_checkers(protocols)]
        self.simulation = Simulation(
            plan.seed,
            plugins=lambda index: plugins_of(kinds, index),
            network=NetworkConfig(
                is_fifo=not plan.has("reorder"), loss_mode="retransmit" if plan.is_retransmitted else "drop"
            ),
            latency=EuclideanLatency(plan.seed, plan.latency_side_s, plan.latency_minimum_s),
            checkers=[*checkers, self._deliveries, Dedupe(frozenset((SimulationProbe.TYPE_ID,)))],
            check_every=CHECK_EVERY,
        )
        self.simulation.watch(self._states)
        self.faults = Faults(self.simulation, plan)
        self.liars = Liars(self.simulation, plan, protocols, self.faults.note)
        self._rng = fork(plan.seed, "swarm", "run")
        self._protocols = [
            kind(self.simulation, fork(plan.seed, "swarm", "protocol", name)) for name, kind in kinds.items()
        ]
        self._workload = Workload(
            self.simulation, plan.probes_per_s, name="swarm/probes", excuses=self.liars.party.has_had
        )
        self._proof: Workload | None = None
        self._is_working = False

    def run(self) -> None:
        """All phases. Raises `SimulationFailure`."""
        self._form()
        self._begin("faults")
        self._work()
        self.liars.begin()
        self.faults.start()
        self.simulation.run_for(self.plan.fault_s)
        self._begin("repair")
        self._heal()
        self.result.repaired_s = self._repair()
        self._begin("proof")
        self._prove()

    def _begin(self, phase: str) -> None:
        self.result.phase = phase
        self.faults.note(phase)

    def _form(self) -> None:
        simulation, plan = self.simulation, self.plan
        if plan.is_rough_start:
            self.faults.degrade()
        simulation.start(plan.nodes, spacing_s=plan.spacing_s)
        simulation.run_for(plan.nodes * plan.spacing_s)
        if plan.is_rough_start:
            simulation.run_for(LOST_AFTER_S)  # whether it has formed or not
        else:
            simulation.run_until(simulation.is_ready, FORM_S)

    # Work

    def _work(self) -> None:
        self._is_working = True
        self._workload.start()
        if self.plan.has("lookups"):
            self._every(LOOKUPS_GAP_S, self._look_up, self._rng)
        if self.plan.has("broadcasts"):
            self._every(BROADCASTS_GAP_S, self._broadcast, self._rng)
        for work in self._protocols:
            self._every(work.gap_s, work.act, work.rng)

    def _every(self, gap_s: float, act: Callable[[Place], None], rng: Random) -> None:
        def due() -> None:
            ready = self._honest_ids()
            if self._is_working and ready:
                act(self.simulation.places[rng.choice(ready)])
            self._every(gap_s, act, rng)

        if self._is_working:
            self.simulation.after(rng.expovariate(1.0 / gap_s), due)

    def _honest_ids(self) -> list[NodeId]:
        """Of the nodes that are in the ring: they do the work."""
        return [node_id for node_id in self.simulation.truth.ready.ids if not self.simulation.is_hostile(node_id)]

    def _look_up(self, place: Place) -> None:
        try:
            place.node.overlay.lookup(random_id(self._rng), self.liars.judge, 10.0)
        except Unavailable:
            self.faults.note(f"{place.index} has too many lookups under way")

    def _broadcast(self, place: Place) -> None:
        place.node.overlay.broadcast(SimulationProbe(self._rng.getrandbits(63) | 1 << 63))

    # Repair

    def _heal(self) -> None:
        simulation = self.simulation
        self._is_working = False
        self._workload.stop()
        self.faults.stop()
        self._states.count("two rings", count_rings(simulation) > 1)
        if not simulation.honest_nodes():
            self._revive()
        live = simulation.live_nodes()
        kept = max(1, round(self.plan.core_share * len(live)))
        core = self._core(live, kept)
        self._states.count("half the ring died at once", 2 * kept <= len(live) > 2)
        for position, place in enumerate(live):
            if position not in core:
                (simulation.kill if self._rng.random() < 0.5 else simulation.silence)(place)
        self._start_again(simulation.live_nodes())
        self.result.core = kept
        self.faults.note(f"{kept} of {len(live)} nodes live on: {[place.index for place in simulation.live_nodes()]}")

    def _revive(self) -> None:
        """Only hostile nodes live: somebody honest is started, for there is nothing to be asked of those."""
        place = next(place for place in self.simulation.nodes if place.index not in self.simulation.hostile)
        self.faults.note(f"start {place.index} again: nobody honest lives")
        self.simulation.restart(place)
        self.simulation.run_for(0.0)

    def _start_again(self, core: list[Place]) -> None:
        """What an operator has to do: newcomers wait for ever for those that they were told of, and found no ring."""
        simulation = self.simulation
        if not any(map(self._is_sound, core)):
            self._states.count("start repeated")
            self.faults.note("start everybody again, one as the first: nobody who was in the ring lives")
            for place in core:
                simulation.kill(place)
            for place in sorted(core, key=lambda place: place.index in simulation.hostile):
                simulation.restart(place)
            return
        for place in core:
            known = (other for other in simulation.introducers[place.index] if other.index not in simulation.hostile)
            if not place.node.is_ready and not any(map(_stays, known)):
                self._states.count("start repeated")
                self.faults.note(f"start {place.index} again: nobody that it was told of lives on")
                simulation.restart(place)
        for place in _strangers([place for place in core if place.node.is_ready]):
            self._states.count("start repeated")
            self.faults.note(f"start {place.index} again: nobody lives who was its neighbour, or whose it was")
            simulation.restart(place)

    def _core(self, live: list[Place], kept: int) -> set[int]:
        """Positions of those that live on, somebody of the ring among them: newcomers alone never found one."""
        core = self._rng.sample(range(len(live)), kept)
        members = [position for position, place in enumerate(live) if self._is_sound(place)]
        if members and not any(self._is_sound(live[position]) for position in core):
            core[0] = self._rng.choice(members)
        elif all(live[position].index in self.simulation.hostile for position in core):
            core[0] = next(number for number, place in enumerate(live) if place.index not in self.simulation.hostile)
        return set(core)

    def _is_sound(self, place: Place) -> bool:
        """Whether others may build on this node: it is in the ring, and honest."""
        return place.node.is_ready and place.index not in self.simulation.hostile

    def _repair(self) -> float:
        simulation, checkers = self.simulation, [kind() for kind in QUIESCENT]
        begun = simulation.now
        while simulation.now < begun + REPAIR_S:
            simulation.run_for(POLL_S)
            if simulation.is_ready() and not any(checker.check(simulation) for checker in checkers):
                return simulation.now - begun
        simulation.check(checkers)
        raise simulation.failure(f"the core is not ready {REPAIR_S:.0f} s after the faults")

    def _prove(self) -> None:
        """The ring stays whole, and every message and broadcast arrives where it should."""
        simulation = self.simulation
        self._proof = proof = Workload(
            simulation, PROOF_PROBES_PER_S, name="swarm/proof", excuses=self.liars.party.has_had
        )
        proof.start()
        for work in self._protocols:
            work.prove(simulation.places[work.rng.choice(self._honest_ids())])
        simulation.run_for(PROOF_S / 2)
        number = SimulationProbe(self._rng.getrandbits(63) | 1 << 63)
        heard = self._states.expect(number)
        sender = simulation.places[self._rng.choice(self._honest_ids())]
        self._look_around()
        sender.node.overlay.broadcast(number)
        simulation.run_for(PROOF_S / 2)
        proof.stop()
        simulation.run_for(POLL_S)
        self._await_stragglers(proof)
        report = proof.finish()
        if report.right + report.excused != report.sent:
            raise simulation.failure(
                f"of {report.sent} messages in a calm ring {report.lost} were lost and {report.wrong} went astray"
            )
        party, body = self.liars.party, encode_body(number)
        silent = (place for place in simulation.honest_nodes() if place.id not in heard)
        missed = [place.index for place in silent if not party.was_to_tell(body, place.id)]
        if missed:
            raise simulation.failure(f"a broadcast of node {sender.index} did not reach the nodes {missed}")
        for work in self._protocols:
            if offences := work.verdict():
                raise simulation.failure("; ".join(offences[:OFFENCES_TOLD_MAX]))
        simulation.sweep()
        checkers = [kind() for kind in QUIESCENT]
        self._look_twice(checkers)
        simulation.check(checkers)

    def _look_twice(self, checkers: list[Checker]) -> None:
        """Where there are hostile nodes: one that is sent away just now, for a flood, leaves a place to be filled.

        That is no fault of its neighbours, and they fill it within some round trips.
        """
        simulation, until = self.simulation, self.simulation.now + POLL_S
        while simulation.hostile and simulation.now < until and any(each.check(simulation) for each in checkers):
            simulation.run_for(1.0)

    def _await_stragglers(self, proof: Workload) -> None:
        """A message is late, not lost, whose way leads past several dead table entries: each costs a time-out."""
        waited_s = 0.0
        while proof.pending and waited_s < STRAGGLERS_S:
            self.simulation.run_for(POLL_S)
            waited_s += POLL_S

    def _look_around(self) -> None:
        """Where there are hostile nodes: lookups in the calm ring, which must name no honest node wrongly."""
        for node_id in self._honest_ids() if self.simulation.hostile else ():
            self._look_up(self.simulation.places[node_id])

    # The end

    def finish(self) -> None:
        """Fill in the result."""
        simulation, result, states = self.simulation, self.result, self._states
        self._workload.finish()
        report = self._workload.report
        states.count("false alarm", self._failures.false_alarms > 0)
        states.count("two answer", self._roots.longest_s > 0)
        states.count("wrong delivery", self._deliveries.excused > 0)
        states.count("root moved", report.moved > 0)
        states.count("probe lost", report.lost > 0)
        outcome = f"{report.right} right, {report.wrong} wrong, {report.lost} lost, {report.orphaned} orphans"
        self.faults.note(f"end; of {report.sent} messages during the faults: {outcome}")
        states.count("source died", report.orphaned > 0)
        for place in simulation.nodes:
            for (metric, _), value in place.driver.metrics.items() if place.port.driver is not None else ():
                states.count("way changed", metric == "peerd_overlay_reroutes_total" and value > 0)
                states.count("message given up", metric == "peerd_overlay_routes_dropped_total" and value > 0)
        self.liars.finish(states)
        for kind, count in self.faults.counts.items():
            states.count(kind, count > 0)
        result.states = Counter(dict.fromkeys(states.reached, 1))
        result.log = self.faults.log
        result.judged = sum(work.judged for work in self._protocols)
        result.simulated_s = simulation.now
        result.events = simulation.engine.events
        result.digest = simulation.digest()


# Many seeds


def run_swarm(
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    without: frozenset[str] = frozenset(),
    nodes: int | None = None,
    protocols: Sequence[str] = (),
    attackers: Attackers | None = None,
    hash_seed: str | None = None,
) -> Iterator[SeedResult]:
    """The results in the order of the seeds, as they come in; with several jobs, each in a process of its own.

    ``hash_seed`` is the PYTHONHASHSEED of those processes.
    """
    if jobs == 1 and hash_seed is None:
        for seed in seeds:
            yield run_seed(seed, without, nodes, protocols, attackers)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting: deque[Future[SeedResult]] = deque()
        try:
            for seed in seeds:
                with _hash_seed(hash_seed):  # a worker starts when there is something for it to do
                    waiting.append(pool.submit(run_seed, seed, without, nodes, protocols, attackers))
                if len(waiting) >= AHEAD * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _hash_seed(value: str | None) -> Iterator[None]:
    """Processes started meanwhile hash strings with this seed."""
    before = os.environ.get("PYTHONHASHSEED")
    if value is not None:
        os.environ["PYTHONHASHSEED"] = value
    try:
        yield
    finally:
        if value is not None:
            if before is None:
                del os.environ["PYTHONHASHSEED"]
            else:
                os.environ["PYTHONHASHSEED"] = before


@dataclass
class SwarmSummary:
    """All seeds together."""

    passed: int = 0
    red: list[SeedResult] = field(default_factory=list)
    judged: int = 0
    events: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    repaired_s: list[float] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)

    def add(self, result: SeedResult) -> None:
        """Count one seed."""
        if result.passed:
            self.passed += 1
        else:
            self.red.append(result)
        self.judged += result.judged
        self.events += result.events
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        if result.repaired_s is not None:
            self.repaired_s.append(result.repaired_s)
        self.states += result.states

    @property
    def never(self) -> list[str]:
        """States of `SOMETIMES` that no seed reached."""
        return [state for state in SOMETIMES if not self.states[state]]


def _stays(place: Place) -> bool:
    """Whether a node lives, and is not leaving just now."""
    return place.is_live and place.node.draining is None


def _strangers(places: list[Place]) -> list[Place]:
    """Those of them that neither remember nor are remembered by any of the others, not even through others.

    All who know of each other find each other after a partition. Rings that never met do so, too, but only when one of
    them dials an address of its configuration, minutes later.
    """
    found, waiting = set[NodeId](), [place.id for place in places[:1]]
    known = {place.id: _remembered(place) for place in places}
    while waiting:
        node_id = waiting.pop()
        if node_id not in found:
            found.add(node_id)
            waiting += [other for other in known if other in known[node_id] or node_id in known[other]]
    return [place for place in places if place.id not in found]


def _remembered(place: Place) -> set[NodeId]:
    """The neighbours of a node, and the former ones that it looks for; for membership only."""
    state = place.node.overlay.state
    former = (departed.peer.id for departed in state.departed if departed.was_member and not departed.has_left)
    return {*state.leaves.by_id, *former}
