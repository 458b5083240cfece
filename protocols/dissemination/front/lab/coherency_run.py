"""Runs one point of the experiments with values within a tolerance."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final

from peerd.lab.experiment import Notify, Point, Row
from protocols.dissemination.front.lab.coherency_adapting import TAU, AdaptingTrees
from protocols.dissemination.front.lab.coherency_system import System
from protocols.dissemination.front.lab.coherency_trees import FAN_OUTS, PLANS, Plan, Shape, dita
from protocols.dissemination.front.lab.coherency_world import CoherencyWorld, several_objects, single_object

WINDOWS: Final = 20
TRIAL_SHARE: Final = 0.1
"""So long each fan-out of DiTA is tried, of the whole time."""
SLOWED: Final = 10
SLOWER: Final = 10.0
PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant. ``plan``: how the trees are built. ``change``: the first nodes become slower at half time.

    ``objects``: 0 is a single one, which is a random walk. ``tau``: see `CostSettings`.
    """

    plan: str
    adaptive: bool = False
    load: float = 1.0
    rate: float = 1.0
    objects: int = 0
    interest: float = 0.6
    change: bool = False
    tau: float = TAU

    @classmethod
    def of(cls, variant: Mapping[str, object]) -> Choice:
        """Read a point's variant."""
        return cls(**variant)  # type: ignore[arg-type]  # made by `coherency_experiments`

    def world(self, point: Point) -> CoherencyWorld:
        """What the run is about."""
        if self.objects:
            return several_objects(
                point.topology, point.seed, point.nodes, point.duration_s, self.load, self.objects, self.interest
            )
        return single_object(point.topology, point.seed, point.nodes, point.duration_s, self.load, self.rate)


def measure(point: Point, notify: Notify) -> Row:
    """Build the trees, let the values pass, and see for how long they are wrong."""
    begun_s = time.process_time()
    choice = Choice.of(point.variant)
    world = choice.world(point)
    notify("build", 0.0)
    rng = Random(f"{point.seed} plan")
    plan, fan_out, to_slow = _plan(choice, world, rng, point)
    built_s = time.process_time() - begun_s
    system = System(world, plan, Random(f"{point.seed} run"))
    trees = AdaptingTrees(system, Random(f"{point.seed} decisions"), choice.tau) if choice.adaptive else None
    lost: list[float] = []
    for window in range(1, WINDOWS + 1):
        notify("run", system.now)
        if choice.change and window == WINDOWS // 2 + 1:
            system.costs = list(world.slowed(to_slow or first_nodes(system.trees[0].shape()), SLOWER).costs)
        system.run(point.duration_s * window / WINDOWS)
        lost.append(PERCENT * system.fidelity.end_window(system.now))
    half = WINDOWS // 2
    return {
        "lost": round(fmean(lost), 5),
        "lost_before": round(fmean(lost[:half]), 5),
        "lost_after": round(fmean(lost[half:]), 5),
        "lost_end": round(fmean(lost[-3:]), 5),
        "lost_windows": [round(each, 5) for each in lost],
        "items_per_s": round(system.sent / point.duration_s, 3),
        "moves": system.moves,
        "told_per_s": round(trees.told / point.duration_s, 3) if trees else 0.0,
        "depth": max(len(list(tree.above(node))) - 1 for tree in system.trees for node in tree.nodes),
        "fan_out": fan_out or max(len(its.children) for tree in system.trees for its in tree.nodes.values()),
        "build_s": round(built_s, 2),
        "simulated_s": point.duration_s,
        "processor_s": round(time.process_time() - begun_s, 1),
    }


def _plan(choice: Choice, world: CoherencyWorld, rng: Random, point: Point) -> tuple[Plan, int, list[int]]:
    """The trees; of DiTA the fan-out with which the least is lost in a trial; the nodes whose slowness was foreseen."""
    if choice.plan == "informed":
        before = PLANS["annealed"](world, Random(f"{point.seed} plan"))
        slowed = first_nodes(before[0])
        return PLANS["annealed"](world.slowed(slowed, SLOWER), rng), 0, slowed
    if choice.plan != "dita":
        return PLANS[choice.plan](world, rng), 0, []

    def loss(fan_out: int) -> float:
        system = System(world, dita(world, fan_out), Random(f"{point.seed} trial"))
        system.run(TRIAL_SHARE * point.duration_s)
        return system.fidelity.end_window(system.now)

    best = min(FAN_OUTS, key=loss)
    return dita(world, best), best, []


def first_nodes(shape: Shape) -> list[int]:
    """The first nodes of a tree, the source's children first."""
    return shape.breadth_first()[1 : 1 + SLOWED]


def relative(rows: Sequence[Row], by: Sequence[str]) -> list[Row]:
    """Add the loss in multiples of the annealed tree's of the same parameters."""

    def key(row: Row) -> tuple[object, ...]:
        return tuple(row.get(name) for name in ("nodes", "topology", "seed", *by))

    base = {key(row): row["lost"] for row in rows if row["plan"] == "annealed" and not row.get("adaptive")}
    return [{**row, "relative": round(row["lost"] / base[key(row)], 3) if base.get(key(row)) else None} for row in rows]
