"""Who asks whom (section 7.3): groups of nodes that ask the same nodes, near each other or scattered. Pure.

Near is near in latency. Nodes are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final

from peerd.errors import ConfigError
from peerd.frozen import Frozen

KINDS: Final = ("NQNO", "NQFO", "FQNO", "FQFO")
"""Near or far queriers, near or far owners, in the order in which a workload [a, b, c, d] counts its groups."""
FAR: Final = "far"
"""The workload of section 7.5: near queriers of near owners that are far away from them."""
FAR_SIBLINGS: Final = "far siblings"
"""The same where the queriers also have one parent in the tree T, which is not its root."""
FARTHEST_SHARE: Final = 0.1
"""Owners that are far away are around one of so many nodes that are the farthest from the queriers."""

Distance = Callable[[int, int], float]
"""The latency between two nodes."""


class QueryGroup(Frozen):
    """Each of ``queriers`` asks for the values of all ``owners``, over and over."""

    kind: str
    queriers: tuple[int, ...]
    owners: tuple[int, ...]


def draw_groups(
    workload: str,
    queriers: int,
    owners: int,
    nodes: Sequence[int],
    distance: Distance,
    rng: Random,
    parents: Mapping[int, int] = MappingProxyType({}),
) -> list[QueryGroup]:
    """The groups of a workload, such as ``"1,1,1,1"``, each with so many queriers and owners.

    No node asks in two groups, or is asked in two, or asks itself. Raises `ConfigError` where there are too few nodes.
    ``parents``: of the tree T, for queriers that are to have the same one.
    """
    drawn = _Draw(nodes, distance, rng)
    if workload in (FAR, FAR_SIBLINGS):
        return [drawn.far_group(queriers, owners, parents if workload == FAR_SIBLINGS else {})]
    counts = [int(count) for count in workload.split(",")]
    kinds = [kind for kind, count in zip(KINDS, counts, strict=True) for _ in range(count)]
    return [drawn.group(kind, queriers, owners) for kind in kinds]


class _Draw:
    """One workload that is being drawn."""

    def __init__(self, nodes: Sequence[int], distance: Distance, rng: Random) -> None:
        self._nodes, self._distance, self._rng = nodes, distance, rng
        self._asking: set[int] = set()
        self._asked: set[int] = set()

    def group(self, kind: str, queriers: int, owners: int) -> QueryGroup:
        """A group of one of the four kinds. Where its owners are, does not depend on where its queriers are."""
        asking = self._some(queriers, self._asking, is_near=kind.startswith("NQ"))
        return self._made(kind, asking, self._some(owners, self._asked.union(asking), is_near=kind.endswith("NO")))

    def far_group(self, queriers: int, owners: int, parents: Mapping[int, int]) -> QueryGroup:
        """Near queriers of near owners far away."""
        families = self._families(queriers, parents)
        if families:
            parent = self._rng.choice(sorted(families))
            asking = self._nearest(parent, [parent, *families[parent]], queriers + 1)[1:]
        else:
            asking = self._some(queriers, self._asking, is_near=True)
        free = self._free(self._asked.union(asking))
        ordered = sorted(free, key=lambda node: (-self._from_all(node, asking), node))
        centre = self._rng.choice(ordered[: max(1, round(FARTHEST_SHARE * len(ordered)))])
        return self._made(FAR, asking, self._nearest(centre, free, owners))

    def _families(self, least: int, parents: Mapping[int, int]) -> dict[int, list[int]]:
        """The children of nodes that have so many, but for those of the root."""
        found: dict[int, list[int]] = {}
        for child, parent in sorted(parents.items()):
            if parent in parents and child in self._nodes:
                found.setdefault(parent, []).append(child)
        return {parent: children for parent, children in found.items() if len(children) >= least}

    def _made(self, kind: str, queriers: list[int], owners: list[int]) -> QueryGroup:
        self._asking.update(queriers)
        self._asked.update(owners)
        return QueryGroup(kind, tuple(queriers), tuple(owners))

    def _some(self, count: int, without: set[int], *, is_near: bool) -> list[int]:
        free = self._free(without)
        if len(free) < count:
            raise ConfigError(f"the workload needs more than {len(self._nodes)} nodes", key="--nodes")
        if not is_near:
            return self._rng.sample(free, count)
        return self._nearest(self._rng.choice(free), free, count)

    def _free(self, without: set[int]) -> list[int]:
        return [node for node in self._nodes if node not in without]

    def _nearest(self, centre: int, free: Iterable[int], count: int) -> list[int]:
        """The node, and those that are the nearest to it."""
        return sorted(free, key=lambda node: (node != centre, self._distance(centre, node), node))[:count]

    def _from_all(self, node: int, others: Iterable[int]) -> float:
        return sum(self._distance(node, other) for other in others)
