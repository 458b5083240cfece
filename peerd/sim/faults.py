"""What may be wrong with the paths between nodes: which paths are hit, what is cut, what is only bad.

A path is an ordered pair of node indices; the way back is another path. Nothing here has a state or draws anything:
`peerd.sim.network.Network` holds the faults of the moment, and links ask it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Cut = Callable[[int, int], bool]
"""Whether nothing gets from the first node to the second."""
Direction = Literal["both", "in", "out"]

CERTAIN: Final = math.nextafter(1.0, 0.0)
"""Nothing is quite certain: what is always lost never arrives, and a path that always stops has no next stop."""
LOSSES_MAX: Final = 1000
"""A message lost so often has come late enough for everybody."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The paths out of some nodes, into them, or both. ``nodes`` is ``None`` for every path there is."""

    nodes: frozenset[int] | None = None
    direction: Direction = "both"

    def covers(self, source: int, target: int) -> bool:
        """Whether the path is one of them."""
        if self.nodes is None:
            return True
        is_out = self.direction != "in" and source in self.nodes
        return is_out or (self.direction != "out" and target in self.nodes)


@dataclass(frozen=True, slots=True)
class Impairment:
    """How a path treats what is sent on it. Probabilities are for each message, that of a clog for each second."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reorder_delay_s: float = 0.0
    """A message that is held up gets uniformly up to this much later."""
    clog: float = 0.0
    clog_longest_s: float = 0.0
    """A clog lasts uniformly up to this long."""

    @property
    def is_harmless(self) -> bool:
        """Whether it does nothing at all."""
        return not (self.loss or self.duplication or self.reordering or self.clog)

    def combined(self, other: Impairment) -> Impairment:
        """Both, one independent of the other; of durations, the longer one."""
        return Impairment(
            _either(self.loss, other.loss),
            _either(self.duplication, other.duplication),
            _either(self.reordering, other.reordering),
            max(cause.reorder_delay_s if cause.reordering else 0.0 for cause in (self, other)),
            _either(self.clog, other.clog),
            max(cause.clog_longest_s if cause.clog else 0.0 for cause in (self, other)),
        )


def _either(a: float, b: float) -> float:
    return a if not b else b if not a else min(1.0 - (1.0 - a) * (1.0 - b), CERTAIN)


def times_lost(loss: float, draw: Callable[[], float]) -> int:
    """How often one message is lost before it gets through. Draws once more than that, unless it gives up."""
    for times in range(LOSSES_MAX):
        if draw() >= loss:
            return times
    return LOSSES_MAX


def between_groups(groups: Iterable[Iterable[int]], *, is_one_way: bool = False) -> Cut:
    """Only nodes of one group reach each other; nodes in none form one more, the first.

    One-way: an earlier group is not heard by a later one, and hears it.
    """
    numbers = {index: number for number, group in enumerate(groups, start=1) for index in group}
    if is_one_way:
        return lambda source, target: numbers.get(source, 0) < numbers.get(target, 0)
    return lambda source, target: numbers.get(source, 0) != numbers.get(target, 0)


def majorities_ring(order: Sequence[int]) -> Cut:
    """Every node reaches a majority, itself included, and no two the same one: its nearest on a ring (after Jepsen).

    With fewer than four nodes, a majority is everybody, and nothing is cut; nor is what is not in ``order``.
    """
    places = {index: place for place, index in enumerate(order)}
    size = len(order)
    reach = (size // 2 + 1) // 2

    def cut(source: int, target: int) -> bool:
        a, b = places.get(source), places.get(target)
        if a is None or b is None:
            return False
        apart = (a - b) % size
        return min(apart, size - apart) > reach

    return cut
