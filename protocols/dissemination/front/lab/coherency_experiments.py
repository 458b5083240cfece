"""The experiments ``dissemination/coherency-...``: section 5 of Zhou, Ooi and Tan (2008).

Delays are those of an Inet graph, and values those of stock traces, where the folder that ``PEERD_DATA`` names has
them; else nodes are random points of a square, and values random walks. docs/reproducing/coherency-trees.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

from peerd.lab.charts import Chart, Line, lines
from peerd.lab.experiment import Column, Draw, Experiment, Notify, Point, Row, Settings, Values
from peerd.lab.overlay import rows
from protocols.dissemination.front.lab.claims import ZHOU_SAYS
from protocols.dissemination.front.lab.coherency_building import PLANS_BUILT, measure_building, measure_decisions
from protocols.dissemination.front.lab.coherency_run import WINDOWS, measure, relative
from protocols.dissemination.front.lab.coherency_world import topology

ZHOU: Final = "Zhou, Ooi and Tan (2008)"
SERVERS: Final = 256
LOST: Final = "share of the time in which values are wrong, %"
TIMES: Final = "in multiples of the annealed tree's"

PLAN: Final = (
    Column("plan", "tree", "how it was built"),
    Column("adaptive", "adaptive", "whether the nodes change it, by the policy cost"),
)
RESULT: Final = (
    Column("lost", "lost %", "loss of fidelity: " + LOST + ", mean over nodes", 3),
    Column("relative", "x annealed", "the same " + TIMES),
    Column("items_per_s", "items/s", "that all nodes together send", 1),
    Column("depth", "depth", "of the tree in the end"),
    Column("fan_out", "fan-out", "of the node with most children; DiTA: the limit that lost least when tried"),
)
HALVES: Final = (
    Column("lost_before", "first half", "loss of fidelity in the first half, %", 3),
    Column("lost_after", "second half", "in the second half", 3),
    Column("lost_end", "end", "in the last three of twenty windows", 3),
    Column("moves", "moves", "of nodes to another parent"),
    Column("told_per_s", "messages/s", "of the policy, all nodes together", 1),
)
LOAD: Final = Column("load", "load", "factor of the mean filtering and sending times")
FASTER: Final = Column("rate", "rate", "factor of the rates of updates", 0)
OBJECTS: Final = Column("objects", "objects", "that change")
TAU: Final = Column("tau", "tau", "figures that have changed by less are not told to the parent")
INTEREST: Final = Column("interest", "interest", "probability that a node wants an object")


def over(name: str, by: str, title: str, x: str) -> Draw:
    """Draw the loss, and the loss relative to the annealed tree where there is one, over a parameter."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        made = [Chart(f"coherency-{name}", title, x, LOST, lines(_named(found), by, "lost", "tree"))]
        if any(row.get("relative") for row in found):
            compared = lines(_named(found), by, "relative", "tree")
            made.append(Chart(f"coherency-{name}-relative", title, x, f"lost, {TIMES}", compared))
        return made

    return draw


def in_time(name: str, title: str) -> Draw:
    """Draw the loss of each window: the mean over seeds, the least and the greatest."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        several = len({row["load"] for row in found if "load" in row}) > 1
        labelled: dict[str, list[Row]] = {}
        for row in _named(found):
            label = row["tree"] + (f", load {row['load']:g}" if several else "")
            labelled.setdefault(label, []).append(row)
        made = []
        for label, alike in labelled.items():
            step_s = alike[0]["simulated_s"] / WINDOWS
            windows = zip(*(row["lost_windows"] for row in alike), strict=True)
            points = tuple((step_s * at, fmean(ys), min(ys), max(ys)) for at, ys in enumerate(windows, 1))
            made.append(Line(label, points))
        return [Chart(f"coherency-{name}", title, "seconds", LOST, tuple(made))]

    return draw


def _named(found: Iterable[Row]) -> list[Row]:
    return [{**row, "tree": row["plan"] + (" + adaptive" if row.get("adaptive") else "")} for row in found]


def decided(found: Sequence[Row]) -> list[Chart]:
    """Figure 3."""
    needed = lines(found, "children", "round_s", name="decisions take 5 % of the time")
    title = "The shortest round that a node can afford"
    return [Chart("coherency-decisions", title, "children, and children of each", "seconds", needed, y_is_log=True)]


def built(found: Sequence[Row]) -> list[Chart]:
    """Figure 9."""
    single = [row for row in _named(found) if row["objects"] == 1]
    least = [row for row in _named(found) if row["nodes"] == min(row["nodes"] for row in found)]
    took = lines(single, "nodes", "build_s", "tree")
    loss = lines(single, "nodes", "model_loss", "tree")
    more = lines(least, "objects", "build_s", "tree")
    return [
        Chart("coherency-building-objects", "Building trees", "objects", "seconds of processor", more, y_is_log=True),
        Chart("coherency-building-time", "Building a tree", "nodes", "seconds of processor", took, y_is_log=True),
        Chart("coherency-building-loss", "How good the tree is, by the model", "nodes", LOST, loss),
    ]


@dataclass(frozen=True, slots=True)
class CoherencyFigure:
    """One experiment."""

    title: str
    figure: str
    columns: Sequence[Column]
    charts: Draw
    variants: Sequence[Values]
    seconds: float = 500.0
    nodes: tuple[int, ...] = (SERVERS,)
    quick_nodes: tuple[int, ...] = (24,)
    by: tuple[str, ...] = ()
    """What has to be the same for losses to be compared."""
    measure: Callable[[Point, Notify], Row] = measure

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""

        def settings(nodes: tuple[int, ...], seconds: float) -> Settings:
            return Settings(nodes, seconds, lookups=0, settle_s=0.0, topologies=(topology(),))

        return Experiment(
            name,
            self.title,
            f"{ZHOU}, {self.figure}",
            takes="--quick: 30 s",
            full=settings(self.nodes, self.seconds),
            quick=settings(self.quick_nodes, min(self.seconds, QUICK_S)),
            columns=(*rows.POINT, *self.columns, *rows.COST),
            measure=self.measure,
            charts=self.charts,
            variants=tuple(self.variants),
            derive=partial(relative, by=self.by) if self.measure is measure else list,
            paper=ZHOU_SAYS.get(name, ""),
        )


QUICK_S: Final = 60.0
LONG_S: Final = 8000.0
"""Forty rounds of 200 s."""


def variants(plans: Iterable[str], **choices: Any) -> list[Values]:
    """A variant for each kind of tree; ``+`` behind its name: adaptive."""
    return [{"plan": plan.rstrip("+"), "adaptive": plan.endswith("+"), **choices} for plan in plans]


STATIC: Final = ("source", "random", "dita", "greedy", "annealed")
ALL: Final = (*STATIC, "greedy+")
LOADS: Final = (1.0, 3.0, 5.0)

FIGURES: Final = {
    "decisions": CoherencyFigure(
        "how often a node can afford to decide",
        "figure 3",
        (
            Column("children", "children", "of the node, and of each of its children"),
            Column("possible", "changes", "that are possible"),
            Column("decide_us", "us each", "microseconds to work out what one brings"),
            Column("round_s", "round s", "the shortest round in which decisions take 5 % of the time", 3),
        ),
        decided,
        [{"children": count} for count in (2, 4, 6, 8, 12)],
        seconds=1.0,
        nodes=(1,),
        quick_nodes=(1,),
        measure=measure_decisions,
    ),
    "load": CoherencyFigure(
        "trees of one object, as servers become slower and less alike",
        "figure 4a",
        (*PLAN, LOAD, *RESULT),
        over("load", "load", "One object: slower servers", "load"),
        [each for load in LOADS for each in variants(ALL, load=load)],
        by=("load",),
    ),
    "adapting": CoherencyFigure(
        "a tree made by chance adapts",
        "figure 4b",
        (*PLAN, LOAD, *HALVES, *RESULT),
        in_time("adapting", "One object: trees that adapt"),
        [each for load in (1.0, 5.0) for each in variants(("annealed", "random+", "greedy+"), load=load)],
        seconds=LONG_S,
        by=("load",),
    ),
    "tau": CoherencyFigure(
        "a tree made by chance adapts by figures that are less exact",
        "section 3.2.3, which has no figure for it",
        (*PLAN, TAU, *HALVES, *RESULT),
        over("tau", "tau", "One object: adapting by less exact figures", "tau"),
        [each for tau in (0.05, 0.2, 1.0, 5.0) for each in variants(("random+",), tau=tau)],
        seconds=LONG_S,
    ),
    "rate": CoherencyFigure(
        "trees of one object that changes more often",
        "figure 4c",
        (*PLAN, FASTER, *RESULT),
        over("rate", "rate", "One object: more updates", "rate"),
        [each for rate in (1.0, 5.0) for each in variants(ALL, rate=rate)],
        seconds=200.0,
        by=("rate",),
    ),
    "change": CoherencyFigure(
        "the first ten nodes become ten times as slow",
        "figure 5",
        (*PLAN, *HALVES, *RESULT),
        in_time("change", "One object: ten nodes become slow at half time"),
        variants(("dita", "annealed", "annealed+", "informed"), change=True),
        seconds=LONG_S,
    ),
    "objects-load": CoherencyFigure(
        "trees of 100 objects, as servers become slower",
        "figure 6a",
        (*PLAN, LOAD, *RESULT),
        over("objects-load", "load", "100 objects: slower servers", "load"),
        [each for load in (1.0, 5.0) for each in variants(ALL, load=load, objects=100)],
        seconds=1000.0,
        by=("load",),
    ),
    "objects-adapting": CoherencyFigure(
        "a tree of 100 objects made by chance adapts",
        "figure 6b",
        (*PLAN, LOAD, *HALVES, *RESULT),
        in_time("objects-adapting", "100 objects: trees that adapt"),
        [each for load in (1.0, 5.0) for each in variants(("annealed", "random+"), load=load, objects=100)],
        seconds=LONG_S,
        by=("load",),
    ),
    "objects": CoherencyFigure(
        "trees of more objects",
        "figure 6c",
        (*PLAN, OBJECTS, *RESULT),
        over("objects", "objects", "More objects", "objects"),
        [each for count in (100, 500) for each in variants(ALL, objects=count)],
        seconds=1000.0,
        by=("objects",),
    ),
    "trees": CoherencyFigure(
        "one tree for all objects, or one for each",
        "figure 7",
        (*PLAN, LOAD, *RESULT),
        over("trees", "load", "100 objects: one tree, or one each", "load"),
        [each for load in (1.0, 4.0, 8.0) for each in variants(("greedy", "trees"), load=load, objects=100)],
        seconds=1000.0,
        by=("load",),
    ),
    "interest": CoherencyFigure(
        "one tree or many, as servers want fewer of the objects",
        "figure 8",
        (*PLAN, INTEREST, *RESULT),
        over("interest", "interest", "100 objects, load 8: one tree, or one each", "probability of interest"),
        [
            each
            for interest in (0.1, 0.3, 0.6)
            for each in variants(("greedy", "trees"), load=8.0, objects=100, interest=interest)
        ],
        seconds=1000.0,
        by=("interest",),
    ),
    "building": CoherencyFigure(
        "how long building a tree takes",
        "figure 9",
        (
            Column("plan", "tree", "how it was built"),
            OBJECTS,
            Column("model_loss", "lost %", "by the model"),
            Column("build_s", "build s", "seconds of processor"),
        ),
        built,
        [{"plan": plan, "objects": count} for count in (1, 10, 100) for plan in PLANS_BUILT],
        seconds=1.0,
        nodes=(32, 64, 128),
        quick_nodes=(8, 12),
        measure=measure_building,
    ),
    "objects-change": CoherencyFigure(
        "the first ten nodes of a tree of 100 objects become ten times as slow",
        "figure 10",
        (*PLAN, *HALVES, *RESULT),
        in_time("objects-change", "100 objects: ten nodes become slow at half time"),
        variants(("annealed", "annealed+", "informed"), change=True, objects=100),
        seconds=LONG_S,
    ),
}
EXPERIMENTS: Final = tuple(plan.experiment(f"dissemination/coherency-{name}") for name, plan in FIGURES.items())
