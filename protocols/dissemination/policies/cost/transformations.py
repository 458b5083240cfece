"""The six ways to change a tree a little (Zhou, Ooi and Tan 2008, section 3.2.1), and what each would bring.

A node considers only its children and grandchildren, of which it knows what `Family` has. Each transformation is a list
of single moves, in an order in which no circle can be, so that the mechanism needs to know nothing but moves.

All nodes below the one that decides stay below it. So nothing changes above it (but its fan-out, which its parent pays
for in equation 7; that is left out), and what a transformation brings can be
told from the few nodes whose children change: in a time that does not depend on the size of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice

from peerd.ids import NodeId
from protocols.dissemination.policies.cost.model import Branch, Costs, Delay, processing_s, step_loss


class Kind(Enum):
    """The names of section 3.2.1."""

    PROMOTION = "promotion"
    """A grandchild becomes a child."""
    DEMOTION = "demotion"
    """A child becomes the child of another child."""
    PARENT_CHILD_SWAP = "parent-child swap"
    """A grandchild and its parent change places; each keeps its other children."""
    COUSIN_SWAP = "cousin swap"
    """Two grandchildren with different parents change places."""
    NEPHEW_ADOPTION = "nephew adoption"
    """A grandchild goes to another child."""
    UNCLE_NEPHEW_SWAP = "uncle-nephew swap"
    """A child and a grandchild that is not its own change places."""


@dataclass(frozen=True, slots=True)
class Move:
    """A node goes, with all below it, to another parent."""

    node: NodeId
    to: NodeId


@dataclass(frozen=True, slots=True)
class Transformation:
    """A change of the tree."""

    kind: Kind
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Relative:
    """A child or grandchild, as the node that decides knows it. ``rate``: of what it wants itself."""

    id: NodeId
    costs: Costs
    rate: float
    children: tuple[Branch, ...]
    branch: Branch = field(init=False)
    """It and all below it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "branch", branch_of(self.id, self.rate, self.children))


@dataclass(frozen=True, slots=True)
class Family:
    """A node with its children and grandchildren. ``relatives``: both of them; ``costs`` and ``rate``: its own.

    What is lost as the tree is now, is worked out once for each node: hundreds of changes are compared with it.
    """

    node: NodeId
    costs: Costs
    rate: float
    children: tuple[NodeId, ...]
    relatives: Mapping[NodeId, Relative]
    delay: Delay
    _lost: dict[NodeId, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """At the steps down from a node, now."""
    _branches: dict[NodeId, Branch] = field(default_factory=dict, init=False, repr=False, compare=False)
    _parents: dict[NodeId, NodeId] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of the grandchildren."""

    def __post_init__(self) -> None:
        for child in self.children:
            for grandchild in self.grandchildren(child):
                self._parents.setdefault(grandchild, child)

    def grandchildren(self, child: NodeId) -> tuple[NodeId, ...]:
        """The children of a child."""
        return tuple(branch.node for branch in self.relatives[child].children)

    def transformations(self) -> Iterator[Transformation]:
        """All of them, always in the same order."""
        for child in self.children:
            others = [other for other in self.children if other != child]
            for other in others:
                yield Transformation(Kind.DEMOTION, (Move(child, other),))
            for grandchild in self.grandchildren(child):
                yield Transformation(Kind.PROMOTION, (Move(grandchild, self.node),))
                swap = Move(grandchild, self.node), Move(child, grandchild)
                yield Transformation(Kind.PARENT_CHILD_SWAP, swap)
                for other in others:
                    yield Transformation(Kind.NEPHEW_ADOPTION, (Move(grandchild, other),))
                    places = Move(grandchild, self.node), Move(other, child)
                    yield Transformation(Kind.UNCLE_NEPHEW_SWAP, places)
                    for cousin in self.grandchildren(other) if child < other else ():
                        cousins = Move(grandchild, other), Move(cousin, child)
                        yield Transformation(Kind.COUSIN_SWAP, cousins)

    def count(self) -> int:
        """How many transformations there are."""
        below = [len(self.grandchildren(child)) for child in self.children]
        others, nephews = len(below) - 1, sum(below)
        cousins = (nephews * nephews - sum(each * each for each in below)) // 2
        return len(below) * others + nephews * (2 + 2 * others) + cousins

    def some(self, limit: int, random: Callable[[], float]) -> Iterator[Transformation]:
        """All of them where there are at most ``limit``; else those of a smaller family, drawn at random from this one.

        Their number grows with the fourth power of the fan-out, and to look at one takes tens of microseconds.
        """
        shuffled = sorted(self.children, key=lambda child: random()) if self.count() > limit else list(self.children)
        while self._part(shuffled).count() > limit and len(shuffled) > 2:
            shuffled.pop()
        yield from islice(self._part(shuffled).transformations(), limit)

    def _part(self, children: Sequence[NodeId]) -> Family:
        return replace(self, children=tuple(children))

    def benefit(self, transformation: Transformation) -> float:
        """How much less all nodes together would lose: minus the change of the sum of equation 6."""
        touched = self.touched(transformation)
        after = {id: self._children_of(id) for id in touched}
        for move in transformation.moves:
            for children in after.values():
                if move.node in children:
                    children.remove(move.node)
            after[move.to].append(move.node)
        return self._loss_now(touched) - self._loss(after)

    def loss_of(self, nodes: Iterable[NodeId]) -> float | None:
        """What is lost at the steps down from these nodes now; ``None``: not all of them are (still) known here."""
        known = set(nodes)
        if not all(id == self.node or id in self.relatives for id in known):
            return None
        return self._loss_now(sorted(known))

    def old_parent(self, node: NodeId) -> NodeId:
        """The parent of a child or grandchild."""
        return self._parents.get(node, self.node)

    def touched(self, transformation: Transformation) -> set[NodeId]:
        """The nodes whose children change, or whose children's rates do."""
        touched = {self.node}
        for move in transformation.moves:
            touched.add(move.to)
            touched.add(self.old_parent(move.node))
        return touched

    def _children_of(self, id: NodeId) -> list[NodeId]:
        if id == self.node:
            return list(self.children)
        return [branch.node for branch in self.relatives[id].children]

    def _loss_now(self, nodes: Iterable[NodeId]) -> float:
        total = 0.0
        for id in nodes:
            lost = self._lost.get(id)
            if lost is None:
                below = [self._branch(child) for child in self._children_of(id)]
                lost = self._lost[id] = self._step_loss(id, below)
            total += lost
        return total

    def _loss(self, families: Mapping[NodeId, Sequence[NodeId]]) -> float:
        """What is lost at the steps down from these nodes, when they have these children."""
        known: dict[NodeId, Branch] = {}

        def branch(id: NodeId) -> Branch:
            if id not in families or id == self.node:
                return self._branch(id)
            if id not in known:
                known[id] = branch_of(id, self.relatives[id].rate, [branch(child) for child in families[id]])
            return known[id]

        return sum(self._step_loss(id, [branch(child) for child in below]) for id, below in families.items())

    def _step_loss(self, id: NodeId, below: Sequence[Branch]) -> float:
        costs, rate = (self.costs, self.rate) if id == self.node else self._own(id)
        return step_loss(id, processing_s(costs, rate_max(rate, below), below), below, self.delay)

    def _own(self, id: NodeId) -> tuple[Costs, float]:
        return self.relatives[id].costs, self.relatives[id].rate

    def _branch(self, id: NodeId) -> Branch:
        found = self._branches.get(id)
        if found is None:
            found = self._branches[id] = self._whole_branch(id)
        return found

    def _whole_branch(self, id: NodeId) -> Branch:
        its = self.relatives.get(id)
        if its is None:
            return next(each for other in self.relatives.values() for each in other.children if each.node == id)
        if id not in self.children:
            return its.branch
        below = [self.relatives[each.node].branch if each.node in self.relatives else each for each in its.children]
        return branch_of(id, its.rate, below)


def branch_of(id: NodeId, rate: float, children: Sequence[Branch]) -> Branch:
    """A node, and all below it."""
    return Branch(id, rate_max(rate, children), rate + sum([child.rate_sum for child in children]), len(children))


def rate_max(rate: float, children: Sequence[Branch]) -> float:
    """The rate of what a node gets: of the one that wants most, of it and all below it."""
    return max([rate, *[child.rate_max for child in children]])
