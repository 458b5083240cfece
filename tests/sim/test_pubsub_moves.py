"""Leaves that move between their two places: nothing is lost, and no event misses what is established."""

from __future__ import annotations

import random

import pytest

from peerd.sim.rng import fork
from peerd.sim.simulation import Simulation
from protocols.pubsub.messages import CellState
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE, alternate, children, holds_point, home, is_alternate
from tests.support.long_cases import cases
from tests.support.pubsub_tree import (
    busy_cells,
    inner_cells,
    leaves,
    place_of,
    root_of,
    run_to_rest,
    subscribe_all,
    tree_of,
    tree_ring,
    wanted,
)

SETTINGS = {"leaf_capacity": 10, "merge_share": 0.5, "merge_after": "60s", "update_interval": "20s"}


def movable(simulation: Simulation) -> list[CellNode]:
    """Leaves that are at home, and nothing is done with."""
    found = (node for nodes in leaves(simulation).values() for node in nodes if not is_alternate(node.cell))
    return [node for node in found if node.is_at_rest]


def move(simulation: Simulation, node: CellNode) -> None:
    """Have a leaf moved, as its root does when it is too busy."""
    node.hot_load = 100
    tree_of(root_of(simulation, node.cell)).rendezvous.growth.move(node)


def move_one(simulation: Simulation, rng: random.Random) -> bool:
    """Have some leaf moved; whether there was one."""
    if found := movable(simulation):
        move(simulation, rng.choice(found))
    return bool(found)


def moved(simulation: Simulation) -> list[int]:
    """The leaves that are at their alternates."""
    return [cell for cell in leaves(simulation) if is_alternate(cell)]


def not_found(simulation: Simulation) -> list[str]:
    """Pieces whose subscribers take them for established, and leaves in which events would miss them."""
    live = leaves(simulation).items()
    return [
        f"{simulation.now:.2f} s: {piece.sub.sid} is not in {cell:b}"
        for piece, _ in wanted(simulation)
        for cell, nodes in live
        if piece.owner is not None and holds_point(cell, piece.sub.low, piece.sub.high)
        for node in nodes
        if piece.sub.key not in node.pieces
    ]


def test_leaves_move_and_come_home_while_no_event_misses_anything() -> None:
    simulation = tree_ring(16, 3, SETTINGS, check_every=50)
    subscribe_all(simulation, 120)
    run_to_rest(simulation)
    grown = sorted(leaves(simulation))
    for node in movable(simulation):
        move(simulation, node)
    for _ in range(40):
        simulation.run_for(0.5)
        assert not not_found(simulation)
    assert {home(cell) for cell in moved(simulation)} == set(grown), "all of them are elsewhere"
    run_to_rest(simulation)
    simulation.run_until(lambda: sorted(leaves(simulation)) == grown, limit_s=600.0, poll_s=1.0)
    run_to_rest(simulation)
    assert not not_found(simulation), "no event came, so they were cool, and came home"


@pytest.mark.parametrize("seed", cases([1], range(40)))
def test_nothing_is_lost_when_roots_die_while_leaves_move(seed: int) -> None:
    simulation = tree_ring(20, seed, SETTINGS)
    rng = fork(seed, "moving leaves")
    subscribe_all(simulation, 150, seed)
    run_to_rest(simulation)
    begun = 0
    for turn in range(8):
        for _ in range(4):
            begun += move_one(simulation, rng)
            simulation.run_for(rng.uniform(0.2, 1.5))
        simulation.kill(rng.choice(simulation.live_nodes()))
        simulation.run_for(rng.uniform(0.5, 3.0))
        simulation.stop(rng.choice(simulation.live_nodes()))
        simulation.add_node()
        simulation.add_node()
        if turn == 4:
            subscribe_all(simulation, 100, seed + 1)
    assert begun, "leaves were on the move when roots died"
    run_to_rest(simulation, 900.0)
    simulation.validate()


def test_a_leaf_that_grows_elsewhere_comes_home_and_is_split() -> None:
    simulation = tree_ring(12, 5, SETTINGS)
    subscribe_all(simulation, 4)
    run_to_rest(simulation)
    (whole,) = movable(simulation)
    move(simulation, whole)
    simulation.run_until(lambda: moved(simulation) == [alternate(WHOLE)], limit_s=60.0, poll_s=0.5)
    for member in simulation.live_nodes():
        tree_of(member).rendezvous.note_events(place_of(WHOLE).tree, alternate(WHOLE), 6000)  # it stays warm
    subscribe_all(simulation, 60, seed=7)
    simulation.run_until(lambda: len(leaves(simulation)) > 4, limit_s=120.0, poll_s=1.0)
    run_to_rest(simulation)
    assert WHOLE in inner_cells(simulation)


@pytest.mark.parametrize("seed", cases([1], range(10)))
def test_two_sides_of_a_partition_that_move_split_and_keep_a_leaf_become_one_tree(seed: int) -> None:
    simulation = tree_ring(16, seed, SETTINGS)
    rng = fork(seed, "moves in a partition")
    subscribe_all(simulation, 60, seed)
    run_to_rest(simulation)
    members = simulation.live_nodes()
    simulation.partition(members[:8], members[8:])
    seen: set[int] = set()
    for _ in range(20):
        simulation.run_for(rng.uniform(0.5, 4.0))
        move_one(simulation, rng)
        seen.update(moved(simulation))
    assert len(seen) > 3, "leaves have moved on either side"
    subscribe_all(simulation, 60, seed + 3)
    simulation.run_for(60.0)
    simulation.heal()
    run_to_rest(simulation, 900.0)


def test_an_alternate_whose_home_was_split_meanwhile_gives_what_it_has_to_the_halves() -> None:
    simulation = tree_ring(12, 8, SETTINGS)
    subscribe_all(simulation, 5)
    run_to_rest(simulation)
    (whole,) = movable(simulation)
    move(simulation, whole)
    simulation.run_until(lambda: moved(simulation) == [alternate(WHOLE)] and not busy_cells(simulation), limit_s=60.0)
    home_node = tree_of(root_of(simulation, WHOLE)).rendezvous.forest.find(place_of(WHOLE))
    assert home_node is not None and home_node.state is CellState.MOVED
    home_node.table = None
    tree_of(root_of(simulation, WHOLE)).rendezvous.forest.put_state(home_node, CellState.INNER, lambda is_stored: None)
    subscribe_all(simulation, 40, seed=9)
    simulation.run_until(lambda: not moved(simulation), limit_s=120.0, poll_s=1.0)
    run_to_rest(simulation)
    assert inner_cells(simulation)[WHOLE] == children(WHOLE)
