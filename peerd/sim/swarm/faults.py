"""The fault phase of a swarm seed: each feature has its own generator and strikes by itself until all are stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from peerd.sim.churn import Churn
from peerd.sim.network import State
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.plan import Plan

CLOG_MAX_S: Final = 5.0
PAUSE_MAX_S: Final = 40.0
DOWN_MAX_S: Final = 40.0
LOG_LINES_MAX: Final = 10_000


class Faults:
    """Strikes one simulation as a plan says. ``log`` has what happened when, in words."""

    def __init__(self, simulation: Simulation, plan: Plan) -> None:
        self.log: list[tuple[float, str]] = []
        self.counts: Counter[str] = Counter()
        self._simulation = simulation
        self._plan = plan
        self._is_on = False
        self._rngs = {feature: fork(simulation.seed, "swarm", feature) for feature in plan.features}
        self._churn = Churn(simulation, plan.churn, name="swarm/churn", note=self.note)

    def note(self, text: str, kind: str = "") -> None:
        """Add a line to the log: something happened now."""
        if len(self.log) < LOG_LINES_MAX:
            self.log.append((self._simulation.now, text))
        if kind:
            self.counts[kind] += 1

    def degrade(self) -> None:
        """Messages are lost, doubled and reordered from now on, as far as the plan has that."""
        plan = self._plan
        changes: dict[str, float] = {}
        if plan.has("loss"):
            changes["loss"] = plan.loss
        if plan.has("duplication"):
            changes["duplication"] = plan.duplication
        if plan.has("reorder"):
            changes["jitter"] = plan.jitter
        if changes:
            self._simulation.network.configure(**changes)

    def start(self) -> None:
        """All of the plan's features begin."""
        plan = self._plan
        self._is_on = True
        self.degrade()
        strikes: tuple[tuple[str, float, Callable[[], None]], ...] = (
            ("clogs", plan.clog_gap_s, self._clog),
            ("partitions", plan.cut_s / 2, self._cut),
            ("crashes", plan.crash_gap_s, self._crash),
            ("pauses", plan.pause_gap_s, self._pause),
            ("leaves", plan.leave_gap_s, self._leave),
            ("joins", plan.join_gap_s, self._join),
        )
        for feature, gap_s, strike in strikes:
            if plan.has(feature):
                self._repeat(feature, gap_s, strike)
        if plan.has("churn"):
            self._churn.start()

    def stop(self) -> None:
        """End all faults: nothing strikes, is lost, cut or doubled any more, and every paused node goes on."""
        simulation = self._simulation
        self._is_on = False
        self._churn.stop()
        report = self._churn.report
        self.counts["leave"] += report.left
        self.counts["crash"] += report.killed
        self.counts["power loss"] += report.silenced
        self.counts["restart"] += report.returns
        simulation.network.configure(loss=0.0, duplication=0.0)
        simulation.heal()
        for place in simulation.nodes:
            simulation.resume(place)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self._is_on:
                action()

        self._simulation.after(delay_s, act)

    def _repeat(self, feature: str, gap_s: float, strike: Callable[[], None]) -> None:
        def due() -> None:
            strike()
            self._repeat(feature, gap_s, strike)

        self._later(self._rngs[feature].expovariate(1.0 / gap_s), due)

    def _victim(self, feature: str) -> Place | None:
        """Any running node, but never the last one."""
        live = self._simulation.live_nodes()
        return self._rngs[feature].choice(live) if len(live) > 1 else None

    # Strikes

    def _clog(self) -> None:
        rng, simulation = self._rngs["clogs"], self._simulation
        live = simulation.live_nodes()
        if len(live) > 1:
            source, target = rng.sample(live, 2)
            duration_s = rng.uniform(0.0, CLOG_MAX_S)
            simulation.network.clog(source.index, target.index, duration_s)
            simulation.truth.disturb(simulation.now + duration_s)
            self.note(f"clog {source.index} -> {target.index} for {duration_s:.1f} s", "clog")

    def _cut(self) -> None:
        rng, simulation, plan = self._rngs["partitions"], self._simulation, self._plan
        live = simulation.live_nodes()
        if simulation.network.is_faulty or len(live) < 2:
            return
        match plan.cut:
            case "part":
                side = rng.sample(live, rng.randint(1, len(live) - 1))
            case "coin":
                side = [place for place in live if rng.random() < 0.5]
            case _:
                side = [rng.choice(live)]
        taken = {place.index for place in side}
        if plan.is_cut_one_way:
            simulation.network.cut_by(lambda source, target: source in taken and target not in taken)
        else:
            simulation.partition(side)
        duration_s = rng.uniform(1.0, plan.cut_s)
        arrow = "-/->" if plan.is_cut_one_way else "<-/->"
        self.note(f"cut {sorted(taken)} {arrow} the others for {duration_s:.1f} s", "partition")
        self._later(duration_s, self._heal)

    def _heal(self) -> None:
        self._simulation.heal()
        self.note("heal")

    def _crash(self) -> None:
        rng, simulation, victim = self._rngs["crashes"], self._simulation, self._victim("crashes")
        if victim is None:
            return
        if rng.random() < 0.5:
            simulation.kill(victim)
            self.note(f"kill -9 {victim.index}", "crash")
        else:
            simulation.silence(victim)
            self.note(f"power loss of {victim.index}", "power loss")
        if rng.random() < self._plan.returning:
            self._later(rng.uniform(0.1, DOWN_MAX_S), lambda: self._restart(victim))

    def _restart(self, place: Place) -> None:
        if place.state in (State.STOPPED, State.SILENT):
            self._simulation.restart(place)
            self.note(f"restart {place.index}", "restart")

    def _pause(self) -> None:
        rng, simulation, victim = self._rngs["pauses"], self._simulation, self._victim("pauses")
        if victim is not None:
            duration_s = rng.uniform(0.5, PAUSE_MAX_S)
            simulation.pause(victim)
            self.note(f"pause {victim.index} for {duration_s:.1f} s", "pause")
            self._later(duration_s, lambda: simulation.resume(victim))

    def _leave(self) -> None:
        victim = self._victim("leaves")
        if victim is not None:
            self._simulation.stop(victim)
            self.note(f"{victim.index} leaves", "leave")

    def _join(self) -> None:
        place = self._simulation.add_node()
        self.note(f"{place.index} joins", "join")
