"""Faults of the paths between nodes: which paths are hit, which are cut, and which only lose or delay messages.

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
"""The largest probability: with 1.0 a message would be lost for ever, and a path would never go on."""
LOSSES_MAX: Final = 1000
"""A message is lost at most this often before it arrives: by then every time-out has passed."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The paths out of some nodes, into them, or both. ``nodes`` is ``None`` for every path there is."""

    nodes: frozenset[int] | None = None
    direction: Direction = "both"

    def covers(self, source: int, target: int) -> bool:
        """Whether the path is in the scope."""
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
    """A message that is held up arrives later by a uniform time of at most this."""
    clog: float = 0.0
    clog_longest_s: float = 0.0
    """A clog lasts uniformly up to this long."""

    @property
    def is_harmless(self) -> bool:
        """Whether it does nothing at all."""
        return not (self.loss or self.duplication or self.reordering or self.clog)

    def combined(self, other: Impairment) -> Impairment:
        """Combine two impairments, independent of each other; of durations, the longer one counts."""
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
    """Draw how often one message is lost before it gets through, at most `LOSSES_MAX`."""
    for times in range(LOSSES_MAX):
        if draw() >= loss:
            return times
    return LOSSES_MAX


def between_groups(groups: Iterable[Iterable[int]], *, is_one_way: bool = False) -> Cut:
    """Cut all paths between groups; nodes in none of the groups form one more, the first.

    One-way: what an earlier group sends to a later one is lost, and the other direction works.
    """
    numbers = {index: number for number, group in enumerate(groups, start=1) for index in group}
    if is_one_way:
        return lambda source, target: numbers.get(source, 0) < numbers.get(target, 0)
    return lambda source, target: numbers.get(source, 0) != numbers.get(target, 0)


def majorities_ring(order: Sequence[int]) -> Cut:
    """Let every node reach a different majority, itself included: its nearest nodes on a ring (after Jepsen).

    With fewer than four nodes a majority is all nodes, and nothing is cut; nodes not in ``order`` are not cut either.
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
