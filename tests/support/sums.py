"""What a filter on the sum of a subtree saves beside filters on its parts: a model without latencies.

Values of all nodes change at once, step by step. Only words for broken bounds are counted, not those that say that a
node is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from peerd.frozen import Frozen
from protocols.measurement.aggregates.budget import child_half_widths
from protocols.measurement.guarantee.centre import Centre
from protocols.measurement.guarantee.interval import Interval, around

Parents = Sequence[int | None]
WARM: Final = 100
"""Steps before anything is counted."""


def star(nodes: int = 250, children: int = 125, inner: int = 8) -> Parents:
    """T as it is at 250 nodes: half of them are children of the root, and the rest below a few of these."""
    return [None, *[0] * children, *(1 + node % inner for node in range(nodes - children - 1))]


def fan(nodes: int = 250, children: int = 4) -> Parents:
    """A tree in which each inner node has so many children."""
    return [None, *((node - 1) // children for node in range(1, nodes))]


def walks(nodes: int, steps: int, seed: int) -> list[list[float]]:
    """Random walks with normal steps of deviation 1."""
    rng, found = Random(seed), []
    for _ in range(nodes):
        values = [0.0]
        while len(values) < steps:
            values.append(values[-1] + rng.gauss(0.0, 1.0))
        found.append(values)
    return found


class SumCost(Frozen):
    """Words in all steps that are counted. ``direct``: filters on the parts, told straight to who asks. ``passed_on``:
    the same through the tree. ``in_tree``: filters on the sums of subtrees; ``at_asker``: those of the root."""

    direct: int
    passed_on: int
    in_tree: int
    at_asker: int


class _Bounds:
    """What somebody was told."""

    def __init__(self, half_width: float) -> None:
        self._half_width = half_width
        self.interval: Interval | None = None
        self._centre: Centre | None = None

    def add(self, low: float, high: float) -> bool:
        """What is known now. Whether that has to be told."""
        here = Interval(low, max(low, high))
        if self._centre is None:
            self._centre = Centre(here.centre)
        self._centre.add(here.centre)
        if self.interval is not None and self.interval.contains(here):
            return False
        self.interval = around(here, self._centre.place, max(self._half_width, here.half_width))
        return True


@dataclass
class _Node:
    children: list[int] = field(default_factory=list)
    size: int = 1
    depth: int = 1
    half_width: float = 0.0
    sums: _Bounds | None = None
    part: _Bounds | None = None


def _nodes(parents: Parents) -> list[_Node]:
    """Children come after their parents."""
    nodes = [_Node() for _ in parents]
    for node, parent in enumerate(parents):
        if parent is not None:
            nodes[parent].children.append(node)
            nodes[node].depth = nodes[parent].depth + 1
    for node in reversed(range(1, len(nodes))):
        nodes[parents[node] or 0].size += nodes[node].size
    return nodes


def cost_of_sum(parents: Parents, values: Sequence[Sequence[float]], half_width: float) -> SumCost:
    """The words that a sum of these values with such bounds costs."""
    nodes = _nodes(parents)
    nodes[0].half_width = half_width
    for node in nodes:
        counts = {child: nodes[child].size for child in node.children}
        for child, width in child_half_widths("SUM", node.half_width, counts).items():
            nodes[child].half_width = width
    counted: dict[str, int] = dict.fromkeys(SumCost.__struct_fields__, 0)
    for step in range(len(values[0])):
        for name, words in _step(nodes, [each[step] for each in values], half_width / len(nodes)):
            counted[name] += words if step >= WARM else 0
    return SumCost(**counted)


def _step(nodes: Sequence[_Node], values: Sequence[float], part_half_width: float) -> Iterator[tuple[str, int]]:
    for number in reversed(range(len(nodes))):
        node, value = nodes[number], values[number]
        node.part = node.part or _Bounds(part_half_width)
        if node.part.add(value, value):
            yield "direct", 1
            yield "passed_on", node.depth
        below = [each.interval for child in node.children if (each := nodes[child].sums) and each.interval]
        low, high = value + sum(each.low for each in below), value + sum(each.high for each in below)
        node.sums = node.sums or _Bounds(node.half_width)
        if node.sums.add(low, high):
            yield "in_tree", 1
            yield "at_asker", int(number == 0)


def ratios(cost: SumCost) -> Mapping[str, float]:
    """What is read of it: how many times fewer words filters on sums take than filters on parts."""
    return {
        "fewer than parts passed on": cost.passed_on / max(1, cost.in_tree),
        "fewer than parts told directly": cost.direct / max(1, cost.in_tree),
        "fewer at who asks": cost.direct / max(1, cost.at_asker),
    }
