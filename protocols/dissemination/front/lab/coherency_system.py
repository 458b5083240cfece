"""Servers that pass values on, simulated event by event: queues, filtering and sending times, delays of links.

Which value goes where is decided by the objects of the interest kind ``coherency`` that a daemon has, and in trees that
adapt each node has the policy ``cost`` of the daemon. What is left out is the transport, and how members of a stream
find and keep their parents: a node that moves has its new parent after two round trips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final

from protocols.dissemination.front.lab.coherency_trees import Plan, Shape
from protocols.dissemination.front.lab.coherency_world import CoherencyWorld, Update
from protocols.dissemination.interests.coherency.last_sent import SentValues
from protocols.dissemination.interests.coherency.tolerance import Divergence, ObjectValue, Tolerance
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.ports import Interest, ParsedItem

MOVE_ROUND_TRIPS: Final = 2.0

Wants = Mapping[int, float]
"""Tolerances by object."""


class Fidelity:
    """For which share of the time values are farther from the source's than their holders tolerate (equation 1)."""

    def __init__(self, world: CoherencyWorld) -> None:
        self._true = list(world.first)
        self._held: list[dict[int, float]] = [{} for _ in world.first]
        """Of each object, the value that each node has that wants it."""
        self._wants = world.tolerances
        self._bad_since: dict[tuple[int, int], float] = {}
        self._weight = [1 / len(wants) if wants else 0.0 for wants in world.tolerances]
        self._lost_s = 0.0
        self._holders = sum(1 for wants in world.tolerances if wants)
        self._from_s = 0.0
        for node, wants in enumerate(world.tolerances):
            for object in wants:
                self._held[object][node] = world.first[object]

    def changed(self, object: int, value: float, now: float) -> None:
        """The source has a new value."""
        self._true[object] = value
        for node, held in self._held[object].items():
            self._judge(node, object, abs(value - held) > self._wants[node][object], now)

    def got(self, node: int, object: int, value: float, now: float) -> None:
        """A subscription was given a value."""
        self._held[object][node] = value
        self._judge(node, object, abs(self._true[object] - value) > self._wants[node][object], now)

    def _judge(self, node: int, object: int, is_bad: bool, now: float) -> None:
        if is_bad:
            self._bad_since.setdefault((node, object), now)
        elif self._bad_since:
            since = self._bad_since.pop((node, object), None)
            if since is not None:
                self._lost_s += self._weight[node] * (now - since)

    def end_window(self, now: float) -> float:
        """The loss since the last call: the mean over nodes of the mean over their objects."""
        for (node, object), since in self._bad_since.items():
            self._lost_s += self._weight[node] * (now - since)
            self._bad_since[node, object] = now
        share = self._lost_s / self._holders / (now - self._from_s)
        self._lost_s, self._from_s = 0.0, now
        return share


@dataclass(slots=True, eq=False)
class TreeNode:
    """One node's part in one tree."""

    wants: Wants
    parent: int | None = None
    children: list[int] = field(default_factory=list)
    needs: Wants = field(default_factory=dict)
    """The strictest tolerances of it and all below it."""
    here: SentValues = field(default_factory=SentValues)
    own: SentValues = field(default_factory=SentValues)
    given: SentValues = field(default_factory=SentValues)
    """What the parent knows that this node was given."""


class SimulatedTree:
    """One tree, and what all its nodes hold."""

    def __init__(self, shape: Shape, world: CoherencyWorld, first: Sequence[ParsedItem]) -> None:
        self.objects = shape.objects
        held = [first[object] for object in shape.objects]
        self.nodes: dict[int, TreeNode] = {}
        for node in shape.breadth_first():
            own = world.tolerances[node]
            self.nodes[node] = TreeNode({object: own[object] for object in shape.objects if object in own})
        self.nodes[0].here = SentValues(is_source=True)
        for node, parent in shape.parents.items():
            self.nodes[node].parent = parent
            self.nodes[parent].children.append(node)
        for its in self.nodes.values():
            for each in held:
                its.here.give(each)
                its.own.give(each)
                its.given.give(each)
            its.own.want([interest_of(its.wants)])
        for node in reversed(shape.breadth_first()):
            self.widen(node)

    def shape(self) -> Shape:
        """The tree as it is now."""
        return Shape(self.objects, {child: node for node, its in self.nodes.items() for child in its.children})

    def widen(self, node: int) -> bool:
        """Work out what a node needs of its parent; whether that has changed."""
        its = self.nodes[node]
        needs = dict(its.wants)
        for child in its.children:
            for object, tolerance in self.nodes[child].needs.items():
                needs[object] = min(tolerance, needs.get(object, tolerance))
        if needs == its.needs:
            return False
        its.needs = needs
        interest = interest_of(needs)
        its.given.want([interest])
        if its.parent is not None:
            its.here.want([interest])
        return True

    def above(self, node: int) -> Iterator[int]:
        """The nodes from here to the source."""
        at: int | None = node
        while at is not None:
            yield at
            at = self.nodes[at].parent


def interest_of(wants: Wants) -> Interest:
    """The interest with these tolerances."""
    needs = {str(object): (Tolerance(Divergence.VALUE, amount),) for object, amount in wants.items()}
    return Interest(b"", "", needs)


class TreeWatcher:
    """Whoever wants to know what happens in the trees: does nothing."""

    def passed(self, tree: int, node: int, held: ParsedItem, *, is_own: bool) -> None:
        """A node has got a value."""

    def moved(self, tree: int, node: int, old: int, new: int) -> None:
        """A node has another parent."""


class System:
    """All servers, their queues and the links."""

    def __init__(self, world: CoherencyWorld, plan: Plan, rng: Random) -> None:
        self.world = world
        self.now = 0.0
        self.fidelity = Fidelity(world)
        self.watcher = TreeWatcher()
        self.sent = 0
        self.moves = 0
        first = [_parsed(Update(0.0, object, value), object + 1) for object, value in enumerate(world.first)]
        self.trees = [SimulatedTree(shape, world, first) for shape in plan]
        self._tree_of = {object: number for number, tree in enumerate(self.trees) for object in tree.objects}
        self.costs = list(world.costs)
        self._free_at = [0.0] * len(world.costs)
        self._rng = rng
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = count()
        self._updates = enumerate(world.updates, start=len(world.first) + 1)
        self._next_update()

    # Time

    def after(self, seconds: float, act: Callable[..., None], *args: object) -> None:
        """Do something later."""
        heappush(self._events, (self.now + seconds, next(self._number), act, args))

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] < until_s:
            self.now, _, act, args = heappop(self._events)
            act(*args)
        self.now = until_s

    # Values

    def _next_update(self) -> None:
        found = next(self._updates, None)
        if found is not None:
            number, update = found
            self.after(update.at_s - self.now, self._change, update, number)

    def _change(self, update: Update, number: int) -> None:
        self.fidelity.changed(update.object, update.value, self.now)
        tree = self._tree_of[update.object]
        self._arrive(tree, 0, None, _parsed(update, number))
        self._next_update()

    def _arrive(self, tree: int, node: int, sender: int | None, held: ParsedItem) -> None:
        its = self.trees[tree].nodes[node]
        if its.parent != sender:
            return  # of a parent that the node no longer has
        its.here.give(held)
        is_own = self._offer_own(node, its, held)
        self._pass_on(self.trees[tree], tree, node, held)
        self.watcher.passed(tree, node, held, is_own=is_own)

    def _offer_own(self, node: int, its: TreeNode, held: ParsedItem) -> bool:
        if not its.own.offer(held, its.here):
            return False
        self.fidelity.got(node, int(held.content.object), held.content.value, self.now)
        return True

    def _pass_on(self, tree: SimulatedTree, number: int, node: int, held: ParsedItem) -> None:
        """Look which children want a value, in a random order, and send it to these, one after another."""
        its = tree.nodes[node]
        children = its.children
        if not children:
            return
        at = max(self.now, self._free_at[node])
        draw, costs, object = self._rng.expovariate, self.costs[node], int(held.content.object)
        first = self._rng.randrange(len(children))
        for child in children[first:] + children[:first]:
            other = tree.nodes[child]
            if object not in other.needs:
                continue
            at += draw(1 / costs.filter_s)
            if other.given.offer(held, its.here):
                at += draw(1 / costs.send_s)
                self._send(at, number, node, child, held)
        self._free_at[node] = at

    def _send(self, at: float, tree: int, node: int, child: int, held: ParsedItem) -> None:
        self.sent += 1
        self.after(at - self.now + self.world.delays[node][child], self._arrive, tree, child, node, held)

    def tell(self, node: int, other: int, act: Callable[..., None], *args: object) -> None:
        """Send something else: it waits, takes a node's time, and crosses the link as values do."""
        at = max(self.now, self._free_at[node]) + self._rng.expovariate(1 / self.costs[node].send_s)
        self._free_at[node] = at
        self.after(at - self.now + self.world.delays[node][other], act, *args)

    # Moves

    def move(self, tree: int, node: int, parent: int, ended: Callable[[bool], None]) -> None:
        """Give a node another parent, some time later."""
        round_trip_s = 2 * self.world.delays[node][parent]
        self.after(MOVE_ROUND_TRIPS * round_trip_s, self._move, tree, node, parent, ended)

    def _move(self, number: int, node: int, parent: int, ended: Callable[[bool], None]) -> None:
        tree = self.trees[number]
        its, old = tree.nodes[node], tree.nodes[node].parent
        if old is None or parent == old or node in tree.above(parent):
            ended(False)
            return
        tree.nodes[old].children.remove(node)
        tree.nodes[parent].children.append(node)
        its.parent, its.given = parent, SentValues()
        its.given.want([interest_of(its.needs)])
        self.moves += 1
        self._wants_changed(number, old)
        self._wants_changed(number, parent)
        self._give_newest(number, node)
        self.watcher.moved(number, node, old, parent)
        ended(True)

    def _wants_changed(self, number: int, node: int) -> None:
        """Tell all above; who promises less looks at once at what those below have, and who needs more is given it."""
        tree = self.trees[number]
        for at in list(tree.above(node)):
            if not tree.widen(at):
                return
            its = tree.nodes[at]
            for held in its.here.newest():
                if int(held.content.object) in its.wants:
                    self._offer_own(at, its, held)
            for child in its.children:
                self._give_newest(number, child)
            if its.parent is not None:
                self._give_newest(number, at)

    def _give_newest(self, number: int, node: int) -> None:
        """A node's parent sends it what it wants of the newest values."""
        tree = self.trees[number]
        its = tree.nodes[node]
        assert its.parent is not None
        parent, costs = its.parent, self.costs[its.parent]
        at = max(self.now, self._free_at[parent])
        above = tree.nodes[parent]
        for held in above.here.newest():
            if int(held.content.object) in its.needs and its.given.offer(held, above.here):
                at += self._rng.expovariate(1 / costs.send_s)
                self._send(at, number, parent, node, held)
        self._free_at[parent] = at


def _parsed(update: Update, number: int) -> ParsedItem:
    time_ms = round(1000 * update.at_s)
    item = StreamItem.of(1, number, time_ms, b"")
    return ParsedItem(item, ObjectValue(str(update.object), update.value, time_ms))
