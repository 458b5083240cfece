"""Trees for the experiments with tolerances: those of the cost model, and what the paper compares them with.

A plan is a list of trees, each for some objects; a node can be in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from peerd.ids import NodeId
from protocols.dissemination.front.lab.coherency_world import CoherencyWorld
from protocols.dissemination.policies.cost.construction import Cooling, anneal, greedy, random_tree, star
from protocols.dissemination.policies.cost.model import Branch, Costs, CostTree, Server, message_s

FAN_OUT: Final = 32
"""Children that a node of a tree by cost has at most; more a report does not tell of."""
ANNEALING: Final = Cooling(start=0.002, factor=0.8, steps_each=12, frozen=0.00001, unchanged=2)
"""From the greedy tree on, so not as hot as the paper's, which begins with a random one; but colder in the end: where
there are more than a hundred nodes, one move changes the mean loss by less than the paper's last temperature."""
FAN_OUTS: Final = (2, 3, 4, 6, 8, 12)
"""Those that DiTA is tried with."""
BUSY_MAX: Final = 0.9


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree: the parent of each node in it but the source. ``objects``: those that it carries."""

    objects: tuple[int, ...]
    parents: Mapping[int, int]

    def breadth_first(self) -> list[int]:
        """Its nodes, the source first, then those nearest to it by steps."""
        below: dict[int, list[int]] = {}
        for node, parent in self.parents.items():
            below.setdefault(parent, []).append(node)
        order = [0]
        for node in order:
            order += below.get(node, ())
        return order


Plan = tuple[Shape, ...]


def id_of(node: int) -> NodeId:
    """The id of a node by its number."""
    return NodeId(node + 1)


def number_of(id: NodeId) -> int:
    """The number of a node by its id."""
    return int(id) - 1


def servers_of(world: CoherencyWorld, objects: Iterable[int], costs: Sequence[Costs] | None = None) -> list[Server]:
    """The source and all that want one of these objects, with what is known of them."""
    chosen = tuple(objects)
    found = []
    for node in world.nodes:
        rate = sum(world.rates[node].get(object, 0.0) for object in chosen)
        if node == 0 or any(object in world.tolerances[node] for object in chosen):
            found.append(Server(id_of(node), (costs or world.costs)[node], rate))
    return found


def shape_of(tree: CostTree, objects: Iterable[int]) -> Shape:
    """What remains of a tree without its figures."""
    parents = {number_of(id): number_of(its.parent) for id, its in tree.servers.items() if its.parent is not None}
    return Shape(tuple(objects), parents)


def source_based(world: CoherencyWorld, rng: Random) -> Plan:
    """Everybody below the source."""
    objects = range(len(world.first))
    return (shape_of(star(id_of(0), servers_of(world, objects), delay_of(world)), objects),)


def by_chance(world: CoherencyWorld, rng: Random) -> Plan:
    """Everybody below somebody."""
    objects = range(len(world.first))
    return (shape_of(random_tree(id_of(0), servers_of(world, objects), delay_of(world), rng), objects),)


def greedy_plan(world: CoherencyWorld, rng: Random) -> Plan:
    """One tree by the greedy algorithm."""
    objects = range(len(world.first))
    return (shape_of(greedy(id_of(0), servers_of(world, objects), delay_of(world), FAN_OUT), objects),)


def annealed_plan(world: CoherencyWorld, rng: Random) -> Plan:
    """One tree by simulated annealing, which begins with the greedy one."""
    objects = range(len(world.first))
    tree = greedy(id_of(0), servers_of(world, objects), delay_of(world), FAN_OUT)
    return (shape_of(anneal(tree, rng, ANNEALING, FAN_OUT), objects),)


def tree_an_object(world: CoherencyWorld, rng: Random) -> Plan:
    """A greedy tree for each object. A node that is busy with earlier ones counts as so much slower."""
    busy = [0.0] * len(world.costs)
    made = []
    for object in range(len(world.first)):
        left = [1 - min(BUSY_MAX, each) for each in busy]
        costs = [
            replace(its, filter_s=its.filter_s / share, send_s=its.send_s / share)
            for its, share in zip(world.costs, left, strict=True)
        ]
        tree = greedy(id_of(0), servers_of(world, (object,), costs), delay_of(world), FAN_OUT)
        made.append(shape_of(tree, (object,)))
        for id, server in tree.servers.items():
            node = number_of(id)
            branches: list[Branch] = [tree.servers[child].branch for child in server.children]
            busy[node] += server.rate_max * message_s(world.costs[node], server.rate_max, branches)
    return tuple(made)


def dita(world: CoherencyWorld, fan_out: int) -> Plan:
    """A tree for each object: who needs it most exactly first, each below the nearest node that has room."""
    made = []
    for object in range(len(world.first)):
        wanting = [node for node in world.nodes if object in world.tolerances[node]]
        wanting.sort(key=lambda node: (world.tolerances[node][object], node))
        room, parents = {0: fan_out}, {}
        for node in wanting:
            parent = min(room, key=lambda other: (world.delays[node][other], other))
            parents[node] = parent
            room[parent] -= 1
            if not room[parent]:
                del room[parent]
            room[node] = fan_out
        made.append(Shape((object,), parents))
    return tuple(made)


def delay_of(world: CoherencyWorld) -> Callable[[NodeId, NodeId], float]:
    """The delays, by ids."""
    delays = {id_of(node): {id_of(to): its[to] for to in world.nodes} for node, its in enumerate(world.delays)}
    return lambda one, other: delays[one][other]


PLANS: Final[Mapping[str, Callable[[CoherencyWorld, Random], Plan]]] = {
    "source": source_based,
    "random": by_chance,
    "greedy": greedy_plan,
    "annealed": annealed_plan,
    "trees": tree_an_object,
}
"""All but DiTA's, which has to be tried."""
