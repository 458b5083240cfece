"""The distributed 2d-tree in simulated rings: it grows, nothing is lost when roots come and go, and it shrinks."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.messages import Message, PeerRef
from peerd.sim.network import NetworkConfig
from peerd.sim.observed import Delivery
from peerd.sim.rng import fork
from peerd.sim.simulation import Checker, Place as Member, Simulation
from peerd.testing.determinism import assert_one_run
from protocols.pubsub.messages import (
    CellAnswer,
    CellOrder,
    CellQuestion,
    LeafUpdate,
    Transferred,
    TransferSub,
)
from protocols.pubsub.tree.cells import WHOLE, cell_at, level
from tests.support.branch import branched
from tests.support.long_cases import cases
from tests.support.pubsub_tree import (
    busy_cells,
    inner_cells,
    leaves,
    range_of,
    root_of,
    run_to_rest,
    subscribe_all,
    tree_of,
    tree_ring,
    wanted,
)

CAPACITY = {"leaf_capacity": 10}
MERGING = CAPACITY | {"merge_share": 0.5, "merge_after": "20s", "update_interval": "30s"}


def test_three_hundred_subscriptions_make_a_tree_in_which_each_is_in_one_leaf() -> None:
    simulation = tree_ring(16, 1, CAPACITY, check_every=50)
    subscribe_all(simulation, 300)
    run_to_rest(simulation)
    live = leaves(simulation)
    assert len(live) > 30
    assert sum(len(nodes[0].pieces) for nodes in live.values()) == 300
    assert len({node.key for nodes in live.values() for node in nodes}) == len(live)
    assert WHOLE in inner_cells(simulation)


@pytest.mark.parametrize("seed", cases([1], [0]))
def test_nothing_is_lost_when_roots_die_join_and_leave_while_leaves_are_split(seed: int) -> None:
    simulation = tree_ring(20, seed, CAPACITY | {"update_interval": "20s"})
    rng = fork(seed, "churn of the tree")
    subscribe_all(simulation, 300, seed)
    for _ in range(6):
        simulation.run_for(rng.uniform(0.5, 3.0))
        simulation.kill(rng.choice(simulation.live_nodes()))
        simulation.run_for(rng.uniform(0.5, 3.0))
        simulation.stop(rng.choice(simulation.live_nodes()))
        simulation.add_node()
        simulation.add_node()
    subscribe_all(simulation, 60, seed + 1)
    run_to_rest(simulation, 600.0)
    simulation.validate()


def test_merging_brings_the_leaf_back_when_subscriptions_end() -> None:
    simulation = tree_ring(12, 4, MERGING, check_every=200)
    subscribe_all(simulation, 120)
    run_to_rest(simulation)
    grown = len(leaves(simulation))
    for piece, member in wanted(simulation):
        if piece.sub.sid > 3:
            tree_of(member).subscriber.end(piece.sub.sid)
    simulation.run_until(lambda: set(leaves(simulation)) == {WHOLE}, limit_s=3000.0, poll_s=10.0)
    run_to_rest(simulation)
    assert grown > 10 and len(leaves(simulation)[WHOLE][0].pieces) == 3
    subscribe_all(simulation, 100, seed=9)
    run_to_rest(simulation)
    assert len(leaves(simulation)) > 10, "and it grows again"


def not_found(simulation: Simulation) -> list[str]:
    """Pieces whose subscribers take them for established, and leaves in which events would miss them."""
    live = leaves(simulation)
    return [
        f"{simulation.now:.2f} s: {piece.sub.sid} is not in {cell:b}"
        for piece, _ in wanted(simulation)
        for cell, nodes in live.items()
        if piece.owner is not None and cell_at(piece.sub.low, piece.sub.high, level(cell)) == cell
        for node in nodes
        if piece.sub.key not in node.pieces
    ]


def test_no_event_misses_what_is_established_while_leaves_are_merged() -> None:
    """Subscriptions come and go all the time, so some are confirmed just when a half retires, or its parent is new."""
    simulation = tree_ring(12, 1, MERGING)
    subscribe_all(simulation, 60, 1)
    run_to_rest(simulation)
    grown, sid, ending = len(leaves(simulation)), 1000, list[tuple[float, Member, int]]()
    for piece, member in wanted(simulation):
        if piece.sub.sid > 3:
            tree_of(member).subscriber.end(piece.sub.sid)
    for step in range(1800):
        simulation.run_for(0.05)
        assert not not_found(simulation)
        if step % 2 == 0:
            sid += 1
            member = simulation.live_nodes()[sid % 12]
            tree_of(member).subscriber.subscribe(sid, *range_of(sid, 1))
            ending.append((simulation.now + 1.2, member, sid))
        while ending[0][0] <= simulation.now:
            _, member, ended = ending.pop(0)
            tree_of(member).subscriber.end(ended)
    assert len(leaves(simulation)) < grown, "nothing was merged, so nothing was tried"


SPLIT_STEPS: list[tuple[type[Message], int]] = [
    *((TransferSub, nth) for nth in (1, 2)),
    *((CellQuestion, nth) for nth in (1, 3)),
    *((CellAnswer, nth) for nth in (1, 2, 3, 4)),
    *((Transferred, nth) for nth in (1, 2)),
    *((CellOrder, nth) for nth in (1, 2)),
    *((LeafUpdate, nth) for nth in (1, 2)),
]
MERGE_STEPS: list[tuple[type[Message], int]] = [
    *((CellOrder, nth) for nth in (1, 2, 3, 4)),
    *((CellAnswer, nth) for nth in (1, 2, 3, 4)),
    *((TransferSub, nth) for nth in (1, 2, 3, 4)),
    (Transferred, 1),
    *((LeafUpdate, nth) for nth in (1, 2)),
]
VICTIMS: dict[str, int] = {"parent": WHOLE, "lower half": 0b10, "upper half": 0b11}


class KillAt(Checker):
    """Once armed, kills the root of a cell when the n-th message of some kind is handled, whoever handles it."""

    name = "kill at"
    watched_messages = (Transferred, CellAnswer)

    def __init__(self) -> None:
        self.killed: Member | None = None
        self._type_id: int | None = None
        self._left = 0
        self._victim = WHOLE

    def arm(self, kind: type[Message], nth: int, victim: int) -> None:
        """Count such messages from now on."""
        self._type_id, self._left, self._victim = kind.TYPE_ID, nth, victim

    def handled(self, simulation: Simulation, place: Member, message: Any, source: PeerRef) -> str | None:
        """A message came over one link."""
        self._count_down(simulation, type(message).TYPE_ID)
        return None

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """A routed message came to the root of its key."""
        self._count_down(simulation, delivery.type_id)
        return None

    def _count_down(self, simulation: Simulation, type_id: int) -> None:
        if type_id == self._type_id:
            self._left -= 1
            if self._left == 0:
                self.killed = root_of(simulation, self._victim)
                simulation.after(0.0, lambda: simulation.kill(self.killed) if self.killed is not None else None)


def deaths(steps: list[tuple[type[Message], int]]) -> pytest.MarkDecorator:
    """Each victim at each step: one of them, in turn, in every run."""
    found = []
    for number, (kind, nth) in enumerate(steps):
        for turn, (name, victim) in enumerate(VICTIMS.items()):
            marks = () if number % len(VICTIMS) == turn else pytest.mark.long
            found.append(pytest.param(kind, nth, victim, id=f"{kind.__name__}-{nth}-{name}", marks=marks))
    return pytest.mark.parametrize(("kind", "nth", "victim"), found)


@pytest.fixture(scope="module")
def calm() -> tuple[Simulation, KillAt]:
    """A ring without subscriptions. For branches: it stays as it is."""
    killer = KillAt()
    return tree_ring(14, 5, {"leaf_capacity": 20}, checkers=[killer]), killer


@deaths(SPLIT_STEPS)
@branched
def test_a_root_that_dies_at_any_step_of_a_split_loses_nothing(
    calm: tuple[Simulation, KillAt], kind: type[Message], nth: int, victim: int
) -> None:
    simulation, killer = calm
    killer.arm(kind, nth, victim)
    subscribe_all(simulation, 28)
    simulation.run_until(lambda: killer.killed is not None, limit_s=60.0, poll_s=0.05)
    run_to_rest(simulation)
    assert (WHOLE in inner_cells(simulation)) == (len(wanted(simulation)) > 20)


@pytest.fixture(scope="module")
def merging() -> tuple[Simulation, KillAt]:
    """A ring of which the whole tree is about to be one leaf again. For branches: it stays as it is."""
    killer = KillAt()
    simulation = tree_ring(14, 6, MERGING | {"leaf_capacity": 20}, checkers=[killer])
    subscribe_all(simulation, 24)
    run_to_rest(simulation)
    for piece, member in wanted(simulation):
        if piece.sub.sid > 6:
            tree_of(member).subscriber.end(piece.sub.sid)
    simulation.run_until(lambda: any(cell == WHOLE for cell in busy_cells(simulation)), limit_s=300.0, poll_s=0.05)
    return simulation, killer


@deaths(MERGE_STEPS)
@branched
def test_a_root_that_dies_at_any_step_of_a_merge_loses_nothing(
    merging: tuple[Simulation, KillAt], kind: type[Message], nth: int, victim: int
) -> None:
    simulation, killer = merging
    killer.arm(kind, nth, victim)
    simulation.run_until(lambda: killer.killed is not None, limit_s=60.0, poll_s=0.05)
    run_to_rest(simulation)
    simulation.run_until(lambda: set(leaves(simulation)) == {WHOLE}, limit_s=1000.0, poll_s=5.0)
    run_to_rest(simulation)


def test_trees_that_grew_apart_in_a_partition_become_one() -> None:
    simulation = tree_ring(14, 1, CAPACITY | {"update_interval": "20s"})
    subscribe_all(simulation, 40)
    run_to_rest(simulation)
    before = len(leaves(simulation))
    members = simulation.live_nodes()
    simulation.partition(members[:8], members[8:])
    simulation.run_for(40.0)
    subscribe_all(simulation, 100, seed=5)
    simulation.run_for(60.0)
    assert any(len(nodes) > 1 for nodes in leaves(simulation).values()), "both sides have a root of some leaf"
    simulation.heal()
    simulation.run_until(lambda: len(root_views(simulation)) == 1, limit_s=300.0, poll_s=5.0)
    run_to_rest(simulation, 900.0)
    simulation.validate()
    assert len(leaves(simulation)) > before


def root_views(simulation: Simulation) -> set[int]:
    """How many nodes the nodes of the ring think there are, each."""
    return {len(member.node.overlay.leaf_set().members()) for member in simulation.live_nodes()}


def test_messages_that_are_lost_make_it_slower_and_no_more() -> None:
    simulation = tree_ring(14, 3, CAPACITY, network=NetworkConfig(loss=0.05))
    subscribe_all(simulation, 120)
    run_to_rest(simulation, 900.0)


def growing(seed: int) -> Simulation:
    """A small tree with a death in it."""
    simulation = tree_ring(10, seed, CAPACITY)
    subscribe_all(simulation, 40, seed)
    simulation.run_for(3.0)
    simulation.kill(simulation.live_nodes()[2])
    simulation.run_for(40.0)
    return simulation


def test_one_seed_is_one_run() -> None:
    assert_one_run(growing, seed=8)
