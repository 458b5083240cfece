"""One point of the experiments ``dissemination/...``: a stream under one way of disseminating it, and its row."""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Final

from peerd.ids import NodeId, parse_id
from peerd.lab.experiment import Notify, Point, Row
from peerd.lab.topologies import SECTION, data_file, table_of
from peerd.sim.scenario import parse_scenario
from protocols.dissemination.front.lab.net import DisseminationNet
from protocols.dissemination.front.lab.rivals import RIVALS, StaticTree, annealed, balanced, bits, figures, grouped
from protocols.dissemination.front.lab.workloads import ClassWorkload, LabStream, Wanted, XmlWorkload
from protocols.dissemination.policies.first_fit import FirstFitFactory
from protocols.dissemination.policies.overlap.events import (
    MovedUp,
    ReorganisationAsked,
    ReorganisationDecided,
    ReorganisationMeasured,
)
from protocols.dissemination.policies.overlap.messages import GetOverhead
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import PolicyFactory

CODD, CODD_NR, RANDOM = "codd", "codd-nr", "random"
BOUND, BOUND_STILL, LEARNED = "bound", "bound-still", "learned"
LEARNING: Final = ("dita", BOUND)
"""Ways that are made anew with full knowledge each time that classes change."""
JOINING: Final = 2
"""So many members come with each item, until all are there; counting begins then."""
EPOCHS_JUDGED: Final = 5
"""So many of the times between two changes are looked at, where a tree is made anew for each."""
STEPS: Final = {BOUND: 50_000, BOUND_STILL: 150_000}
"""Steps of simulated annealing to the best tree: for the items of an epoch alone, as if moves cost nothing and the
future were known; or one that stays as it is for all items."""
LEARNED_ITEMS: Final = 40
"""A tree that is learned from items is the best one for so many of them. Fewer do not tell classes from each other."""
LEARNED_EVERY: Final = 10
"""It is made anew every so many items: those of a second."""
STEPS_LEARNED: Final = 20_000
COURSE_EVERY: Final = 200
"""Items of one point of a time course."""
RATIO_ITEMS_MIN: Final = 20
"""A node's share in vain before or after a move is of so many items that it had, at least."""
RANKED: Final = 100
"""Figures over nodes in order have so many points."""
PLANETLAB: Final = "latency/planetlab_rtt_ms_18x490x490.npz"
SQUARE: Final = "square=euclidean@147ms"
"""Without PlanetLab's round-trip times: random points, with the same mean."""
ARRIVING_S: Final = 20.0
"""So long after the last item everything must be there: the slowest pairs of PlanetLab are seconds apart."""
TICK_S: Final = 0.2
"""What is published within this time is sent at its beginning. Nodes look at the clock as often; daemons every 0.25 s.
"""
DEFAULTS: Final[Row] = {
    "way": CODD,
    "fan_out": 6,
    "selectivity": 0.2,
    "classes": 20,
    "change_every": 200,
    "most_classes": 1,
    "pace": 10,
    "dtd": None,
}
"""Of section 5.1. ``pace``: items a second, which the paper has no word on."""


def measure(point: Point, notify: Notify) -> Row:
    """Run one point. ``lookups`` is the number of items."""
    begun = time.process_time()
    setting = {**DEFAULTS, **point.variant}
    gc.disable()  # there is next to nothing to collect, and looking for it takes a tenth of the time
    try:
        act = _run if setting["way"] in (CODD, CODD_NR, RANDOM) else _compute
        row = act(point, setting, notify)
    finally:
        gc.enable()
    used = {name: setting[name] for name in DEFAULTS}
    return {
        **used,
        **row,
        "simulated_s": point.lookups / setting["pace"],
        "processor_s": round(time.process_time() - begun, 2),
        "node_kib": None,
    }


def topology() -> str:
    """PlanetLab's all-pairs round-trip times of `PEERD_DATA` where there are any, else random points of a square."""
    path = data_file(PLANETLAB)
    return SQUARE if path is None else f"planetlab={path}"


def _workload(point: Point, setting: Row) -> LabStream:
    rng = random.Random(f"{point.seed} workload")
    if setting["dtd"] is not None:
        return XmlWorkload(point.nodes, rng, point.lookups, setting["dtd"])
    return ClassWorkload(
        point.nodes,
        rng,
        setting["classes"],
        setting["selectivity"],
        setting["change_every"],
        setting["most_classes"],
    )


def _joining(point: Point) -> int:
    """The items that are published while members come."""
    return -(-point.nodes // JOINING)


# Ways that the daemon has


def _run(point: Point, setting: Row, notify: Notify) -> Row:
    net = _net(point, setting)
    notify("join", 0.0)
    joined = 0
    for _ in range(_joining(point)):
        for _ in range(min(JOINING, point.nodes - joined)):
            joined += 1
            net.join(joined)
        net.publish()
    net.reset_counts()
    begun = len(net.events)
    notify("items", net.now)
    course, ratios = _Course(net), _Ratios(net)
    together = max(1, round(setting["pace"] * TICK_S))
    for at in range(0, point.lookups, together):
        net.publish(min(together, point.lookups - at))
        ratios.look()
        if at // COURSE_EVERY != (at + together) // COURSE_EVERY:
            course.look(min(at + together, point.lookups))
    ended = net.now
    row = {
        **_tree_row(net),
        **course.row(),
        **_moves_row(net, begun, point.lookups),
        **_sent_row(net, point),
        **ratios.row(),
    }
    while net.now < ended + ARRIVING_S:
        net.tick()
    return {
        **row,
        **asdict(net.faults()),
        "gaps": sum(node.losses for node in net.members()),
    }


def _net(point: Point, setting: Row) -> DisseminationNet:
    names = set(OverlapSettings.model_fields)
    settings: dict[str, Any] = {name: value for name, value in setting.items() if name in names}
    policy: PolicyFactory | None = None
    match setting["way"]:
        case "codd-nr":
            settings["reorganise"] = False
        case "random":
            policy, settings = FirstFitFactory(), {}
    return DisseminationNet(
        point.nodes,
        _workload(point, setting),
        random.Random(f"{point.seed} net"),
        settings,
        fan_out=int(setting["fan_out"]),
        items_a_second=int(setting["pace"]),
        tick_s=TICK_S,
        policy=policy,
        is_limited=setting["dtd"] is not None,
        latency=parse_scenario({SECTION: table_of(point.topology)}).topology.build(point.seed),
    )


def _tree_row(net: DisseminationNet) -> Row:
    depths = net.depths()
    had, wanted = (sum(getattr(node, name) for node in net.members()) for name in ("had", "wanted"))
    shares = [1 - node.wanted / node.had for node in net.members() if node.had]
    return {
        "spurious": round(net.spurious_share(), 4),
        "spurious_inner": round(net.spurious_share(inner_only=True), 4),
        "in_vain": round(net.vain_share(), 4),
        "copies_per_wanted": round(had / wanted, 4),
        "depth": round(fmean(depths), 3),
        "depth_max": net.depth_max(),
        "depths_ranked": _ranked(depths),
        "spurious_ranked": _ranked(shares),
    }


def _ranked(values: Sequence[float]) -> list[float]:
    ordered = sorted(values, reverse=True)
    count = min(RANKED, len(ordered))
    return [round(ordered[at * len(ordered) // count], 3) for at in range(count)]


def _sent_row(net: DisseminationNet, point: Point) -> Row:
    source = net.nodes[net.peers[0].id]
    return {
        "producer_sends": round(source.sends / point.lookups, 3),
        "member_sends_max": round(max(node.sends for node in net.members()) / point.lookups, 3),
        "control_per_item": round(sum(net.control.values()) / len(net.published), 3),
    }


class _Course:
    """The spurious share over time."""

    def __init__(self, net: DisseminationNet) -> None:
        self._net = net
        self._before: dict[int, tuple[int, int, int, int]] = {}
        self._items: list[int] = []
        self._all: list[float] = []
        self._inner: list[float] = []

    def look(self, at: int) -> None:
        """Take the next point."""
        every: list[float] = []
        inner: list[float] = []
        for node in self._net.members():
            now = (node.had, node.wanted, node.had_inner, node.wanted_inner)
            before = self._before.get(node.me.id, (0, 0, 0, 0))
            had, wanted, had_inner, wanted_inner = (new - old for new, old in zip(now, before, strict=True))
            self._before[node.me.id] = now
            if had:
                every.append(1 - wanted / had)
            if had_inner:
                inner.append(1 - wanted_inner / had_inner)
        self._items.append(at)
        self._all.append(round(fmean(every or [0.0]), 4))
        self._inner.append(round(fmean(inner or [0.0]), 4))

    def row(self) -> Row:
        """Columns, and what the last third of the run has."""
        late = self._all[-max(1, len(self._all) // 3) :]
        return {
            "course_items": self._items,
            "course": self._all,
            "course_inner": self._inner,
            "spurious_late": round(fmean(late or [0.0]), 4),
        }


class _Ratios:
    """For each move the asking node's spurious share after it, up to that node's next move, over the one before."""

    def __init__(self, net: DisseminationNet) -> None:
        self._net = net
        self._seen = len(net.events)
        self._since: dict[NodeId, tuple[int, int]] = {}
        """What an asker had, and wanted of that, when a child of it moved last."""
        self._before: dict[NodeId, tuple[int, float]] = {}
        """The number of that move, and the share before it."""
        self._moves = 0
        self._found: list[tuple[int, float]] = []

    def look(self) -> None:
        """Look at the newest moves."""
        events = self._net.events
        for event in events[self._seen :]:
            if isinstance(event, ReorganisationDecided) and event.outcome == "moved":
                self._moved(parse_id(event.asker))
        self._seen = len(events)

    def _moved(self, asker: NodeId) -> None:
        node = self._net.nodes[asker]
        had, wanted = self._since.get(asker, (0, 0))
        if node.had - had < RATIO_ITEMS_MIN:
            return
        share = 1 - (node.wanted - wanted) / (node.had - had)
        number, before = self._before.get(asker, (0, 0.0))
        if before:
            self._found.append((number, round(share / before, 3)))
        self._moves += 1
        self._since[asker], self._before[asker] = (node.had, node.wanted), (self._moves, share)

    def row(self) -> Row:
        """The ratios in the order of their moves, and in descending order."""
        ratios = [ratio for _, ratio in sorted(self._found)]
        later = ratios[2 * len(ratios) // 5 :]
        return {
            "ratios": ratios,
            "ratios_ranked": _ranked(ratios) if ratios else [],
            "ratio_late": round(median(later), 3) if later else None,
            "improved_late": round(sum(ratio < 1 for ratio in later) / len(later), 3) if later else None,
        }


def _moves_row(net: DisseminationNet, begun: int, items: int) -> Row:
    events = net.events[begun:]
    decided = [event for event in events if isinstance(event, ReorganisationDecided)]
    outcomes = Counter(event.outcome for event in decided)
    measured = [event for event in events if isinstance(event, ReorganisationMeasured)]
    moved = max(1, outcomes["moved"])
    return {
        "asked": sum(isinstance(event, ReorganisationAsked) for event in events),
        "looked_at": len(decided),
        "moves": outcomes["moved"],
        "moves_per_look": round(outcomes["moved"] / len(decided), 3) if decided else None,
        "moves_per_100": round(100 * outcomes["moved"] / items, 2),
        "moved_up": sum(isinstance(event, MovedUp) for event in events),
        "no_gain": outcomes["no_gain"],
        "declined": outcomes["declined"] + outcomes["silent"],
        "searched": round(net.sent.get(GetOverhead, 0) / max(1, len(decided)), 1),
        "moved_again": round(moved / max(1, len({parse_id(e.child) for e in decided if e.outcome == "moved"})), 2),
        "predicted": round(fmean([event.predicted for event in measured] or [0.0]), 4),
        "measured": round(fmean([event.measured for event in measured] or [0.0]), 4),
        "correlation": _correlation([(event.predicted, event.measured) for event in measured]),
    }


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 3:
        return None
    one, other = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    both = sum((x - one) * (y - other) for x, y in pairs)
    square = sum((x - one) ** 2 for x, _ in pairs) * sum((y - other) ** 2 for _, y in pairs)
    return round(both / square**0.5, 3) if square else None


# Ways that are computed


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a way that is computed is given."""

    fan_out: int
    rng: random.Random


def _compute(point: Point, setting: Row, notify: Notify) -> Row:
    workload = _workload(point, setting)
    for _ in range(_joining(point)):
        workload.draw()
    notify("items", 0.0)
    wanted = [workload.draw() for _ in range(point.lookups)]
    judged = _Judged(int(setting["fan_out"]), random.Random(f"{point.seed} rivals"))
    way = setting["way"]
    if way == LEARNED:
        return _learned(wanted, point.nodes, judged)
    found = [
        _row_of(way, bits(part, point.nodes), judged)
        for part in (_epochs(wanted, setting, _joining(point)) if way in LEARNING else [wanted])
    ]
    names = dict.fromkeys(name for each in found for name in each)
    return {name: round(fmean([each[name] for each in found]), 4) for name in names}


def _epochs(wanted: Wanted, setting: Row, begun: int) -> list[Wanted]:
    """The items between two changes of the classes, some of these times in equal distances."""
    every = 0 if setting["dtd"] is not None else int(setting["change_every"])
    if not every:
        return [wanted]
    first = -begun % every
    starts = range(first, len(wanted) - every + 1, every)
    step = max(1, len(starts) // EPOCHS_JUDGED)
    return [wanted[start : start + every] for start in starts[::step]] or [wanted]


def _row_of(way: str, wants: Sequence[int], judged: _Judged) -> Row:
    """The best tree that is found for these items, or a rival's."""
    if way in STEPS:
        return _best(wants, judged, STEPS[way])
    return RIVALS[way](wants, judged.fan_out, judged.rng)


def _learned(wanted: Wanted, nodes: int, judged: _Judged) -> Row:
    """A tree made anew every second, the best found for the newest items, as if moves cost nothing.

    It knows at once who wanted each item, and of the future nothing: so much a policy that learns from items can know.
    With few members a longer memory is better, so this is a rival with full knowledge and not a bound.
    It is judged by the items of the second after the next: for so long, items may still be on their way.
    """
    had, needed = [0] * (nodes + 1), [0] * (nodes + 1)
    tree = grouped(bits(wanted[:LEARNED_ITEMS], nodes), judged.fan_out)
    for at in range(LEARNED_ITEMS, len(wanted) - 2 * LEARNED_EVERY + 1, LEARNED_EVERY):
        known = bits(wanted[at - LEARNED_ITEMS : at], nodes)
        starts = (tree, grouped(known, judged.fan_out))
        trees = [*starts, annealed(known, judged.fan_out, tree, STEPS_LEARNED, judged.rng)]
        tree = min(trees, key=lambda each: float(figures(each, known)["spurious"]))
        judging = bits(wanted[at + LEARNED_EVERY : at + 2 * LEARNED_EVERY], nodes)
        for node, items in enumerate(tree.had(judging)):
            had[node] += items.bit_count()
            needed[node] += judging[node].bit_count()
    shares = [1 - needed[node] / had[node] for node in range(1, nodes + 1) if had[node]]
    return {"spurious": round(fmean(shares), 4), "in_vain": round(1 - sum(needed[1:]) / sum(had[1:]), 4)}


def _best(wants: Sequence[int], judged: _Judged, steps: int) -> Row:
    members = sorted(range(1, len(wants)), key=lambda node: (-wants[node].bit_count(), node))
    starts = (grouped(wants, judged.fan_out), StaticTree(balanced(members, judged.fan_out)))
    trees = [*starts, *(annealed(wants, judged.fan_out, start, steps, judged.rng) for start in starts)]
    return min((figures(tree, wants) for tree in trees), key=lambda row: float(row["spurious"]))
