"""The experiments ``dissemination/...`` of ``peerd lab``: CoDD's evaluation (section 5), and what it leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peerd.lab.experiment import Column, Draw, Experiment, Settings, Values
from peerd.lab.overlay.rows import COST
from protocols.dissemination.front.lab import charts
from protocols.dissemination.front.lab.claims import CODD_SAYS
from protocols.dissemination.front.lab.dtd import BUILT_IN, document_types
from protocols.dissemination.front.lab.run import (
    BOUND,
    BOUND_STILL,
    CODD,
    CODD_NR,
    DEFAULTS,
    LEARNED,
    RANDOM,
    measure,
    topology,
)

ITEMS: Final = 10_000
"""Of section 5.1."""
FEWER: Final = 2000
"""Ten changes of the classes: enough to compare settings with each other."""
QUICK_ITEMS: Final = 200
MEMBERS: Final = 400
XML_SETS: Final = ("sdocbook-1.1", "locations")
"""Beside the built-in one, where the folder that ``PEERD_DATA`` names has them."""
PAPER: Final = "CoDD (Anand and Chawathe)"

POINT: Final = (
    Column("nodes", "members", "members, without the producer"),
    Column("topology", "topology", "which messages between nodes take their delays from"),
    Column("seed", "seed", "what all randomness of the run came from"),
    Column("way", "way", "how items are disseminated; see docs/reproducing/codd.md"),
)
SHARES: Final = (
    Column("spurious", "spurious", "what a member has in vain, as a share of what it has; mean over all members", 3),
    Column("spurious_inner", "inner", "the same, mean over those with children, of what they had meanwhile", 3),
    Column("in_vain", "in vain", "of all that all members have, the share that is had in vain", 3),
    Column("spurious_late", "late", "the mean over all members, in the last third of the run", 3),
)
TREE: Final = (
    Column("depth", "depth", "of a member, weighted with what it had there; mean over members"),
    Column("depth_max", "deepest", "member in the end", 1),
    Column("copies_per_wanted", "copies", "received by all members for each that is wanted", 3),
    Column("producer_sends", "producer", "copies that the producer sends of an item", 2),
)
MOVES: Final = (
    Column("moves", "moves", "made while it was measured"),
    Column("moves_per_100", "moves/100", "made in 100 items", 1),
    Column("moved_up", "moved up", "moves to a grandparent that had room; the producer does not order them"),
    Column("looked_at", "looked at", "requests that a granter looked for a better place for"),
    Column("moves_per_look", "moves/look", "moves for each of these: a reorganisation (figure 22)"),
    Column("searched", "asked", "questions of sweeps for each of these, mean", 1),
    Column(
        "ratio_late", "ratio", "asker's share in vain after a move over the one before, latter 60 % of moves, median"
    ),
    Column("improved_late", "improved", "part of these moves after which the asker has less in vain"),
    Column("predicted", "predicted", "saving of a move for the parents, items in vain for each item, mean", 4),
    Column("measured", "measured", "the same, measured afterwards", 4),
    Column("correlation", "r", "correlation of the two"),
)
JUDGED: Final = (
    Column("pairs", "wanted", "pairs of a member and an item that it wants"),
    Column("lost", "lost", "of these that did not arrive"),
    Column("unwanted", "unwanted", "arrived at a subscription that does not want them"),
    Column("twice", "twice", "arrived twice at a subscription"),
    Column("unordered", "unordered", "members that had items in another order"),
)
RIVALS: Final = ("siena", "siena-same", "flooding", "mesh", "source", "dita", BOUND, BOUND_STILL, LEARNED)
BOTH: Final = (CODD, CODD_NR)


@dataclass(frozen=True, slots=True)
class StreamFigure:
    """One experiment: some figures of the paper, or one like them."""

    title: str
    reproduces: str
    varied: Sequence[Column]
    charts: Draw
    variants: tuple[Values, ...]
    items: int = FEWER
    nodes: tuple[int, ...] = (MEMBERS,)
    quick_nodes: tuple[int, ...] = (40,)
    takes: str = "--quick: 20 s"

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""
        return Experiment(
            name,
            self.title,
            self.reproduces,
            takes=self.takes,
            full=_settings(self.nodes, self.items),
            quick=_settings(self.quick_nodes, QUICK_ITEMS),
            columns=(*POINT, *self.varied, *SHARES, *TREE, *MOVES, *JUDGED, *COST),
            measure=measure,
            charts=self.charts,
            variants=self.variants,
            paper=CODD_SAYS.get(name, ""),
        )


def _settings(nodes: tuple[int, ...], items: int) -> Settings:
    return Settings(nodes, items / DEFAULTS["pace"], lookups=items, settle_s=0.0, topologies=(topology(),))


def _each(name: str, values: Sequence[float | str | None], *ways: str, **others: float) -> tuple[Values, ...]:
    """A variant for each value, and each way."""
    return tuple({"way": way, name: value, **others} for value in values for way in (ways or (CODD,)))


def xml_sets() -> tuple[str, ...]:
    """The document types that there are here."""
    there = document_types()
    return (BUILT_IN, *(name for name in XML_SETS if name in there))


FAN_OUT: Final = Column("fan_out", "fan-out", "most children of a node (f)")
FIGURES: Final = {
    "dissemination/default": StreamFigure(
        "the default setting, beside rivals and the best trees that can be found",
        f"{PAPER}, figures 9, 11, 12, 17 and 18",
        (),
        charts.default,
        tuple({"way": way} for way in (*BOTH, RANDOM, *RIVALS)),
        items=ITEMS,
        takes="4 min a seed; --quick: 20 s",
    ),
    "dissemination/steady": StreamFigure(
        "interests that do not change, or seldom, beside the best trees that can be found",
        f"beyond {PAPER}",
        (Column("change_every", "change every", "items between two changes of classes; 0: none (cf)"),),
        charts.over("steady", "change_every", "How often interests change", "way"),
        _each("change_every", (0, 1000, 500, 200), CODD, BOUND),
        items=4000,
    ),
    "dissemination/nodes": StreamFigure(
        "depth and spurious share in streams of several sizes",
        f"{PAPER}, figures 10 and 14",
        (FAN_OUT,),
        charts.sizes,
        _each("fan_out", (6, 4), *BOTH, "siena"),
        items=1000,
        nodes=(100, 200, 400, 700, 1000),
        quick_nodes=(20, 40),
    ),
    "dissemination/fan-out": StreamFigure(
        "how many children a node may have",
        f"{PAPER}, figure 13",
        (FAN_OUT,),
        charts.over("fan-out", "fan_out", "How many children a node may have", "way"),
        _each("fan_out", tuple(range(2, 10)), CODD, "siena", "siena-same"),
    ),
    "dissemination/xml": StreamFigure(
        "random documents of document types, and random queries",
        f"{PAPER}, figure 16",
        (Column("dtd", "document type", "of all documents and queries"), FAN_OUT),
        charts.over("xml", "fan_out", "Documents and queries", "way", "dtd"),
        tuple(
            {"way": way, "dtd": dtd, "fan_out": fan_out}
            for dtd in xml_sets()
            for fan_out in (4, 6)
            for way in (*BOTH, "siena")
        ),
    ),
    "dissemination/frequency": StreamFigure(
        "how often nodes may ask for moves",
        f"{PAPER}, figure 19",
        (Column("request_items", "r", "items that a node receives between two requests"),),
        charts.over("frequency", "request_items", "Items between two requests", moves=True),
        _each("request_items", (10, 20, 50, 100, 200, 500, 1000)),
    ),
    "dissemination/top": StreamFigure(
        "how many moves of a batch are made",
        f"{PAPER}, figure 20",
        (Column("top", "top", "moves that are made of a batch (c); twice as many requests are looked at"),),
        charts.over("top", "top", "Moves that are made of a batch", moves=True),
        _each("top", (2, 10, 15, 20, 1000)),
    ),
    "dissemination/threshold": StreamFigure(
        "from which spurious share on a node asks for moves, for several selectivities",
        f"{PAPER}, figure 21",
        (
            Column("threshold", "threshold", "spurious share above which a node asks (r_thresh)"),
            Column("selectivity", "selectivity", "share of the classes that want an item (s)"),
        ),
        charts.over("threshold", "threshold", "When a node asks for moves", "selectivity", moves=True),
        tuple(
            {"way": CODD, "threshold": threshold, "selectivity": share}
            for share in (0.1, 0.2, 0.5)
            for threshold in (0.05, 0.1, 0.2, 0.4)
        ),
    ),
    "dissemination/delta": StreamFigure(
        "what a move must save to be made",
        f"{PAPER}, figures 22 to 24",
        (
            Column("delta", "delta", "part of a place's overhead that a move must save"),
            Column("most_classes", "classes", "classes that a member is in: from one to so many"),
        ),
        charts.deltas,
        tuple({"way": CODD, "delta": delta, "most_classes": most} for most in (1, 2) for delta in (0.0, 0.1, 0.2, 0.4)),
    ),
    "dissemination/pace": StreamFigure(
        "how fast items follow each other, while moves a minute are limited",
        f"beyond {PAPER}, which has no clock",
        (
            Column("pace", "items/s", "items a second"),
            Column("moves_per_minute", "limit", "moves that the producer orders in a minute at most"),
        ),
        charts.over("pace", "pace", "Items a second", "moves_per_minute", moves=True),
        tuple(
            {"way": CODD, "pace": pace, "moves_per_minute": limit} for limit in (240, 10_000) for pace in (5, 10, 20)
        ),
    ),
}
EXPERIMENTS: Final = tuple(plan.experiment(name) for name, plan in FIGURES.items())
