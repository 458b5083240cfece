"""Runs a scenario: phases and actions in, a report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from peerd.api import LookupResult, Plugin
from peerd.errors import ConfigError, Unavailable, nearest
from peerd.ids import NodeId
from peerd.node.services import service_configs
from peerd.plugins import load_front, plugin_factory
from peerd.sim import scenario as actions
from peerd.sim.checkers import CONTINUOUS, Checker, CorrectDelivery
from peerd.sim.churn import Churn, TraceChurn, read_trace
from peerd.sim.fault_actions import Fault, inject
from peerd.sim.network import State
from peerd.sim.plugin_checkers import checkers_by_name, continuous_checkers
from peerd.sim.report import CheckResult, LookupSummary, PhaseSummary, RepairSummary, ScenarioReport
from peerd.sim.rng import random_id
from peerd.sim.scenario import Scenario, ScenarioPhase
from peerd.sim.simulation import Place, Simulation
from peerd.sim.tables import NODES_MAX, Selection
from peerd.sim.workload import Workload
from peerd.sim.world import SimulationFailure
from peerd.telemetry.sinks import EventSink

Progress = Callable[[str, float], None]
"""Called with a phase's name and the virtual time, when it begins."""


def run_scenario(
    scenario: Scenario,
    *,
    seed: int | None = None,
    sink: EventSink | None = None,
    progress: Progress = lambda phase, now: None,
    plugins: Callable[[int], Sequence[Plugin]] | None = None,
) -> ScenarioReport:
    """Run to the end or to the first failure, which is in the report and not raised.

    ``plugins`` replaces what the scenario's ``protocols`` tables say. Raises `ConfigError` for a scenario that asks
    for what is not there.
    """
    return Runner(scenario, scenario.seed if seed is None else seed, sink, plugins).execute(progress)


class Runner:
    """One run of one scenario: `execute`, then look at ``simulation`` if the report does not say enough."""

    def __init__(
        self, scenario: Scenario, seed: int, sink: EventSink | None, plugins: Callable[[int], Sequence[Plugin]] | None
    ) -> None:
        self.scenario = scenario
        self.report = ScenarioReport(scenario.name, seed)
        is_checked = scenario.sweep_every or scenario.check_every
        ours = (*CONTINUOUS, *continuous_checkers(scenario.protocols))
        checkers: list[Checker] = [kind() for kind in ours] if is_checked else []
        if scenario.check_deliveries:
            checkers.append(CorrectDelivery())
        self.simulation = Simulation(
            seed,
            plugins=plugins if plugins is not None else plugin_factory(scenario.protocols),
            overlay=scenario.overlay,
            swap=scenario.swap,
            services=service_configs(scenario),
            network=scenario.network,
            latency=scenario.topology.build(seed),
            sink=sink,
            checkers=checkers,
            check_every=scenario.check_every,
            sweep_every=scenario.sweep_every,
        )
        self._rng = self.simulation.rng
        self._phase = ""
        self._phase_ends_s = 0.0
        self._workloads: list[Workload] = []

    def execute(self, progress: Progress = lambda phase, now: None) -> ScenarioReport:
        """Run the scenario to its end or first failure; see `run_scenario`."""
        begun = time.perf_counter()
        try:
            self.run(progress)
        except SimulationFailure as failure:
            self.report.failure = str(failure)
        finally:
            self.simulation.close()
        self.finish(time.perf_counter() - begun)
        return self.report

    def run(self, progress: Progress) -> None:
        """Run all phases. Raises `SimulationFailure`."""
        scenario = self.scenario
        self.simulation.start(scenario.nodes, spacing_s=scenario.spacing_s, ids=scenario.node_ids)
        for number, phase in enumerate(self.scenario.phases, start=1):
            self._phase = phase.name or f"phase {number}"
            progress(self._phase, self.simulation.now)
            self._run_phase(phase)
        self.simulation.snapshot_traffic()

    def finish(self, wall_s: float) -> None:
        """Fill in the totals."""
        simulation, report = self.simulation, self.report
        network = simulation.network
        for workload in self._workloads:
            workload.stop()
        report.wall_s = wall_s
        report.simulated_s = simulation.now
        report.events = simulation.engine.events
        report.nodes = len(simulation.nodes)
        report.live_nodes = len(simulation.live_nodes())
        report.messages = network.frames_delivered
        report.messages_bytes = network.frames_delivered_bytes
        report.stream_bytes = network.stream_bytes
        report.dropped = dict(sorted(network.dropped.items()))
        report.trace_hash = simulation.digest()
        report.checkpoints = simulation.engine.checkpoints
        for summary in report.lookups:
            if summary.success < summary.success_min and report.failure is None:
                report.failure = f"{summary.success:.4f} of the lookups named the root, not {summary.success_min}"
        for repair in report.repairs:
            if repair.took_s is None and report.failure is None:
                report.failure = f"{repair.phase}: the ring is not whole after {repair.limit_s:g} s: {repair.detail}"
        for outcome in report.workloads:
            for what, share, most in (
                ("went astray", outcome.wrong_share, outcome.wrong_max),
                ("were lost", outcome.lost_share, outcome.lost_max),
            ):
                if share > most and report.failure is None:
                    report.failure = f"{share:.6f} of the messages {what}, over {most}"
        if simulation.sweeps:
            report.checks.append(CheckResult(f"{simulation.sweeps} sweeps", simulation.now, report.failure is None))

    def _run_phase(self, phase: ScenarioPhase) -> None:
        simulation, network = self.simulation, self.simulation.network
        begun, events, messages = simulation.now, simulation.engine.events, network.frames_delivered
        self._phase_ends_s = begun + phase.duration_s
        for action in sorted(phase.actions, key=lambda action: action.at_s):
            self._run_to(begun + action.at_s)
            self._act(action)
        self._run_to(begun + phase.duration_s)
        self.report.phases.append(
            PhaseSummary(
                self._phase,
                begun,
                simulation.now - begun,
                simulation.engine.events - events,
                network.frames_delivered - messages,
                len(simulation.live_nodes()),
            )
        )

    def _run_to(self, time_s: float) -> None:
        if time_s > self.simulation.now:
            self.simulation.run_for(time_s - self.simulation.now)

    def _act(self, action: actions.AnyAction) -> None:
        simulation = self.simulation
        match action:
            case actions.JoinAction():
                simulation.start(action.count, spacing_s=action.spacing_s)
            case actions.StrikeAction():
                self._strike(action)
            case actions.ReviveAction():
                self._revive(action)
            case Fault():
                places = self._select(action, simulation.live_nodes(), 1 if action.do == "pause" else NODES_MAX)
                inject(simulation, action, places, self._rng)
                simulation.truth.disturb(simulation.now + (action.duration or 0.0))
            case actions.HealAction():
                simulation.heal()
            case actions.ClogAction():
                source, target = self._place(action.source), self._place(action.target)
                simulation.network.clog(source.index, target.index, action.duration_s)
                simulation.truth.disturb(simulation.now + action.duration_s)
            case actions.ConditionsAction():
                changes = action.model_dump(exclude={"do", "at_s"}, exclude_none=True)
                simulation.network.configure(**changes)
            case actions.LookupsAction():
                self._look_up(action)
            case actions.ChurnAction() | actions.ChurnTraceAction():
                self._churn(action)
            case actions.WorkloadAction():
                self._begin_workload(action)
            case actions.WaitReadyAction():
                simulation.run_until(simulation.is_ready, limit_s=action.limit_s)
            case actions.WaitWholeAction():
                self._wait_whole(action)
            case actions.CheckAction():
                self._check(action)
            case actions.CallAction():
                self._call(action)

    def _place(self, index: int) -> Place:
        if index >= len(self.simulation.nodes):
            raise ConfigError(f"no node {index}: there are {len(self.simulation.nodes)}", key=self._phase)
        return self.simulation.nodes[index]

    # Faults

    def _select(self, action: Selection, among: list[Place], default: int) -> list[Place]:
        if action.nodes is not None:
            chosen = [self._place(index) for index in action.nodes]
            return [place for place in chosen if place in among]
        count = default
        if action.count is not None:
            count = action.count
        elif action.share is not None:
            count = round(action.share * len(among))
        return self._rng.sample(among, min(count, len(among)))

    def _strike(self, action: actions.StrikeAction) -> None:
        simulation = self.simulation
        strike = {"kill": simulation.kill, "silence": simulation.silence, "stop": simulation.stop}[action.do]
        self._each(self._select(action, simulation.live_nodes(), 1), strike, action.spacing_s)

    def _revive(self, action: actions.ReviveAction) -> None:
        simulation = self.simulation
        wanted = (State.PAUSED,) if action.do == "resume" else (State.STOPPED, State.SILENT)
        among = [place for place in simulation.nodes if place.state in wanted and place.boot_epoch]
        revive = simulation.resume if action.do == "resume" else simulation.restart
        self._each(self._select(action, among, len(among)), revive, action.spacing_s)

    def _each(self, places: list[Place], function: Callable[[Place], None], spacing_s: float) -> None:
        for number, place in enumerate(places):
            if spacing_s == 0:
                function(place)
            else:
                self.simulation.after(spacing_s * number, _bind(function, place))

    # Workload

    def _duration_s(self, action: actions.Lasting) -> float:
        duration_s = self._phase_ends_s - self.simulation.now if action.duration_s is None else action.duration_s
        if duration_s <= 0:
            raise ConfigError("the phase is over when this begins: give duration_s", key=self._phase)
        return duration_s

    def _churn(self, action: actions.ChurnAction | actions.ChurnTraceAction) -> None:
        duration_s = self._duration_s(action)
        churn = (
            TraceChurn(self.simulation, read_trace(action.file))
            if isinstance(action, actions.ChurnTraceAction)
            else Churn(self.simulation, action, name=f"churn/{self._phase}/{action.at_s}")
        )
        churn.report.phase = self._phase
        self.report.churn.append(churn.report)
        churn.start()
        self.simulation.after(duration_s, churn.stop)

    def _begin_workload(self, action: actions.WorkloadAction) -> None:
        duration_s = self._duration_s(action)
        name = f"workload/{self._phase}/{action.at_s}"
        workload = Workload(self.simulation, action.rate_per_s, name=name, phase=self._phase)
        workload.report.wrong_max, workload.report.lost_max = action.wrong_max, action.lost_max
        self._workloads.append(workload)
        self.report.workloads.append(workload.report)
        workload.start()
        self.simulation.after(duration_s, workload.stop)

    def _look_up(self, action: actions.LookupsAction) -> None:
        summary = LookupSummary(self._phase, success_min=action.success_min)
        self.report.lookups.append(summary)
        for number in range(action.count):
            key = random_id(self._rng)
            self.simulation.after(action.interval_s * number, _bind(self._look_up_one, key, action.timeout_s, summary))

    def _look_up_one(self, key: NodeId, timeout_s: float, summary: LookupSummary) -> None:
        live = [place for place in self.simulation.live_nodes() if place.node.is_ready]
        summary.asked += 1
        if not live:
            return

        def answered(result: LookupResult) -> None:
            if result.root is None:
                return
            summary.answered += 1
            summary.hops += max(len(result.hops), 0)
            summary.duration_s += result.duration_s
            if self.simulation.oracle().root(key) == result.root.id:
                summary.correct += 1

        try:
            self._rng.choice(live).node.overlay.lookup(key, answered, timeout_s)
        except Unavailable:
            summary.refused += 1

    def _wait_whole(self, action: actions.WaitWholeAction) -> None:
        simulation = self.simulation
        begun = simulation.now
        repair = RepairSummary(self._phase, begun, action.limit_s)
        self.report.repairs.append(repair)
        known = checkers_by_name()
        checkers = [known[checker]() for checker in action.checkers]
        while offences := next((found for checker in checkers if (found := checker.check(simulation))), None):
            if simulation.now >= begun + action.limit_s:
                repair.detail = offences[0]
                return
            self._run_to(min(simulation.now + action.poll_s, begun + action.limit_s))
        repair.took_s = simulation.now - begun

    def _check(self, action: actions.CheckAction) -> None:
        name = ", ".join(action.checkers)
        try:
            known = checkers_by_name()
            self.simulation.check([known[checker]() for checker in action.checkers])
        except SimulationFailure as failure:
            self.report.checks.append(CheckResult(name, self.simulation.now, False, failure.reason))
            raise
        self.report.checks.append(CheckResult(name, self.simulation.now, True))

    def _call(self, action: actions.CallAction) -> None:
        known = load_front(action.protocol).scenario_actions()
        if action.action not in known:
            hint = nearest(action.action, list(known))
            raise ConfigError(f"no scenario action {action.action!r}{hint}", key=f"protocols.{action.protocol}")
        live = self.simulation.live_nodes()
        chosen = self._place(action.node) if action.node is not None else self._rng.choice(live)
        for place in live if action.every else [chosen]:

            def report(values: dict[str, Any], index: int = place.index) -> None:
                entry = {"at_s": self.simulation.now, "protocol": action.protocol, "action": action.action}
                self.report.calls.append({**entry, "node": index, **values})

            known[action.action](place, dict(action.arguments), report)


def _bind(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: function(*arguments)
