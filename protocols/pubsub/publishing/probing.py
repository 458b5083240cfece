"""Which cells are tried when the tree is not known: random leaf probing and random region probing. Pure.

A node does not know where the leaves are. It guesses: a subscription is sent to the cell of a random level that holds
its point (Li 2008, Program 3.2), an event to random cells that together hold all that it may match (Program 3.3).
Guesses that are too high in the tree are passed down by inner nodes, those too deep jump to an ancestor.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Final, Protocol, TypeVar

from peerd.api import Rng
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.names import Tree
from protocols.pubsub.tree.cells import WHOLE, Target, children, level

PROBES_MAX: Final = 256
"""One event is sent to at most about so many guessed cells of one tree; then cells are taken as large as they are."""
GAPS_MAX: Final = 1024
"""So many guesses are made between remembered leaves, and not many more. Then cells are guessed although there are such
leaves in them: leaves deep in a tree that somebody made up have dozens of gaps each."""
TREES_MAX: Final = 1024
"""Trees whose depth is remembered."""
LEVEL_WEIGHT: Final = 1 / 16
"""How much the newest level that was seen counts for the estimate of a tree's depth."""
SCHEMA_WEIGHT: Final = 1 / 4
"""The same for all trees of a schema together, where their depths serve for those that nothing is known about."""
GUESSES: Final = 3
"""So many neighbouring levels are tried at once when a subscription is installed: one of them is often the leaf's."""


class KnownLeaves(Protocol):
    """What a publisher remembers about the leaves of one tree."""

    def at(self, home_cell: int) -> int | None:
        """The leaf that has exactly this rectangle: the cell, or its alternate."""

    def has_below(self, home_cell: int) -> bool:
        """Whether there are some strictly within this cell."""


def probe_region(
    target: Target,
    rng: Rng,
    probability: float,
    level_min: int,
    level_max: int,
    known: KnownLeaves | None = None,
    mapped: KnownLeaves | None = None,
) -> tuple[list[int], list[int]]:
    """Cells that together hold all of an event's target: remembered leaves, and guesses for the rest (Program 3.3).

    Breadth first from the whole square. A cell that is not met is left out, and a remembered leaf is taken. Any other
    is guessed at ``level_max``, and from ``level_min`` on with the given probability, else its halves are looked at. A
    cell with remembered leaves in it is not guessed unless there are very many gaps, so only what is not known is.

    Of ``mapped`` leaves others have told. They are guesses, too, and the same holds for the cells above them.
    """
    leaves: list[int] = []
    guesses: list[int] = []
    waiting = deque([WHOLE])
    while waiting:
        cell = waiting.popleft()
        if not target.meets(cell):
            continue
        if known is not None and (leaf := known.at(cell)) is not None:
            leaves.append(leaf)
            continue
        if known is None or not known.has_below(cell):
            depth = level(cell)
            is_enough = len(guesses) + len(waiting) >= PROBES_MAX
            told = None if mapped is None else mapped.at(cell)
            if told is not None:
                guesses.append(told)
                continue
            if mapped is not None and mapped.has_below(cell) and not is_enough:
                waiting.extend(children(cell))
                continue
            if depth >= level_max or is_enough or (depth >= level_min and rng.random() < probability):
                guesses.append(cell)
                continue
        elif len(guesses) >= GAPS_MAX:
            guesses.append(cell)
            continue
        waiting.extend(children(cell))
    return leaves, guesses


class LevelGuide:
    """How deep the trees are, as far as this node has seen: the dynamic maximum level that section 4.3.3 asks for.

    A fixed maximum makes the nodes at that level carry all events once the tree has grown deeper. Here it follows the
    levels of the leaves that answered, as a moving average.
    """

    def __init__(self, config: PubSubConfig) -> None:
        self._config = config
        self._levels: OrderedDict[Tree, float] = OrderedDict()
        self._schemas: OrderedDict[str, float] = OrderedDict()

    def saw(self, tree: Tree, depth: int) -> None:
        """A leaf of this level has answered."""
        _average(self._levels, tree, depth, LEVEL_WEIGHT)
        _average(self._schemas, tree.schema, depth, SCHEMA_WEIGHT)

    def range_of(self, tree: Tree) -> tuple[int, int]:
        """The highest and the deepest level to probe now; as configured as long as no leaf of the tree has answered."""
        config = self._config
        seen = self._levels.get(tree)
        deepest = config.probe_level_max if seen is None else min(math.ceil(seen), config.level_max)
        return min(config.probe_level_min, deepest), deepest

    def install_levels(self, tree: Tree, rng: Rng, attempt: int) -> tuple[int, ...]:
        """The levels at which a subscription is tried (random leaf probing, Program 3.2): of the first one any cell
        sends it on, at the others only a leaf takes it.

        At first around the depth that was seen in this tree, or in others of its schema; at the highest level where
        nothing is known, as every cell there knows the leaves below it. Later at a random level, one at a time, so that
        a node that keeps probes back is avoided.
        """
        highest, deepest = self.range_of(tree)
        if attempt > 1:
            return (rng.randrange(highest, deepest + 1),)
        seen = self._levels.get(tree, self._schemas.get(tree.schema))
        first = self._config.probe_level_min if seen is None else max(0, round(seen) - 1)
        return tuple(range(first, min(first + GUESSES, self._config.level_max + 1))) or (self._config.level_max,)


K = TypeVar("K")


def _average(levels: OrderedDict[K, float], key: K, depth: int, weight: float) -> None:
    before = levels.pop(key, None)
    levels[key] = depth if before is None else before + weight * (depth - before)
    while len(levels) > TREES_MAX:
        levels.popitem(last=False)
