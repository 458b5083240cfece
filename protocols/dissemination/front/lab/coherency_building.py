"""What decisions and the building of trees cost: figures 3 and 9 of Zhou, Ooi and Tan (2008)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Final

from peerd.ids import NodeId
from peerd.lab.experiment import Notify, Point, Row
from protocols.dissemination.front.lab.coherency_trees import ANNEALING, delay_of, id_of, servers_of
from protocols.dissemination.front.lab.coherency_world import CoherencyWorld, several_objects, single_object
from protocols.dissemination.policies.cost.construction import Cooling, anneal, greedy, random_tree
from protocols.dissemination.policies.cost.model import Branch, Costs, CostTree
from protocols.dissemination.policies.cost.transformations import Family, Relative

AFFORDED: Final = 0.05
"""The share of a node's time that decisions may take."""
REPEATS: Final = 5
SEVERAL_S: Final = 300.0
"""Several objects change for so long, so that there are rates to build by."""
WANTED_BY: Final = 0.6
"""The probability that a server wants an object."""
PAPER: Final = Cooling()
SHORTER: Final = Cooling(steps_each=16, frozen=0.0015)
"""The paper's second set of parameters."""


def family_of(fan_out: int, rng: Random) -> Family:
    """A node with so many children, each of which has as many."""
    number = iter(range(1, 1 << 20))
    costs = Costs(0.005, 0.001)

    def leaf() -> Branch:
        rate = rng.uniform(0.5, 1.5)
        return Branch(id_of(next(number)), rate, rate)

    relatives: dict[NodeId, Relative] = {}
    children = []
    for _ in range(fan_out):
        below = tuple(leaf() for _ in range(fan_out))
        child = Relative(id_of(next(number)), costs, rng.uniform(0.5, 1.5), below)
        children.append(child.id)
        relatives[child.id] = child
        relatives |= {each.node: Relative(each.node, costs, each.rate_max, ()) for each in below}
    return Family(id_of(0), costs, 1.5, tuple(children), relatives, lambda one, other: 0.02)


def measure_decisions(point: Point, notify: Notify) -> Row:
    """How long it takes to work out what each possible change of a family brings."""
    begun_s = time.process_time()
    notify("decide", 0.0)
    took_s, possible = [], []
    for _ in range(REPEATS):
        family = family_of(int(point.variant["children"] or 0), Random(point.seed))
        possible = list(family.transformations())
        start_s = time.process_time()
        for each in possible:
            family.benefit(each)
        took_s.append(time.process_time() - start_s)
    least_s = min(took_s)
    return {
        "possible": len(possible),
        "decide_us": round(1e6 * least_s / len(possible), 2),
        "round_s": round(least_s / AFFORDED, 3),
        "simulated_s": 0.0,
        "processor_s": round(time.process_time() - begun_s, 1),
    }


def measure_building(point: Point, notify: Notify) -> Row:
    """How long it takes to build a tree, and how much it loses by the model."""
    objects = int(point.variant["objects"] or 0)
    if objects == 1:
        world = single_object(point.topology, point.seed, point.nodes, 1.0, 1.0, 1.0)
    else:
        world = several_objects(point.topology, point.seed, point.nodes, SEVERAL_S, 1.0, objects, WANTED_BY)
    notify("build", 0.0)
    begun_s = time.process_time()
    plan, rng = str(point.variant["plan"]), Random(point.seed)
    if plan == GREEDY_EACH:
        trees = [_build("greedy", world, (object,), rng) for object in range(objects)]
    else:
        trees = [_build(plan, world, range(objects), rng)]
    loss = sum(tree.loss() for tree in trees) / point.nodes
    took_s = time.process_time() - begun_s
    return {
        "model_loss": round(100 * loss, 4),
        "build_s": round(took_s, 3),
        "simulated_s": 0.0,
        "processor_s": round(took_s, 1),
    }


def _build(plan: str, world: CoherencyWorld, objects: Sequence[int], rng: Random) -> CostTree:
    source, servers, delay = id_of(0), servers_of(world, objects), delay_of(world)
    if plan == "greedy":
        return greedy(source, servers, delay)
    if plan == "annealed":
        return anneal(greedy(source, servers, delay), rng, ANNEALING)
    cooling = PAPER if plan == "annealed, paper (1)" else SHORTER
    return anneal(random_tree(source, servers, delay, rng), rng, cooling)


GREEDY_EACH: Final = "greedy, a tree for each object"
PLANS_BUILT: Final = ("greedy", GREEDY_EACH, "annealed", "annealed, paper (2)", "annealed, paper (1)")
