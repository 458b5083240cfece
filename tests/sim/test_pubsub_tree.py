"""The distributed 2d-tree in simulated rings: it grows, nothing is lost when roots come and go, and it shrinks."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.messages import PeerRef
from peerd.sim.rng import fork
from peerd.sim.simulation import Place as Member, Simulation, Watcher
from protocols.pubsub.cells import WHOLE
from protocols.pubsub.messages import (
    CellAnswer,
    CellOrder,
    CellQuestion,
    CellState,
    LeafUpdate,
    Transferred,
    TransferSub,
)
from tests.support.pubsub_tree import (
    all_kept,
    inner_cells,
    leaves,
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


@pytest.mark.parametrize("seed", range(3))
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
    simulation = tree_ring(12, 4, MERGING, check_every=50)
    subscribe_all(simulation, 200)
    run_to_rest(simulation)
    grown = len(leaves(simulation))
    for piece, member in wanted(simulation):
        if piece.sub.sid > 3:
            tree_of(member).subscriber.end(piece.sub.sid)
    simulation.run_until(lambda: set(leaves(simulation)) == {WHOLE}, limit_s=3000.0, poll_s=10.0)
    run_to_rest(simulation)
    assert grown > 20 and len(leaves(simulation)[WHOLE][0].pieces) == 3
    subscribe_all(simulation, 100, seed=9)
    run_to_rest(simulation)
    assert len(leaves(simulation)) > 10, "and it grows again"


class KillAt(Watcher):
    """Kills the root of a cell when a message of some kind about it has been handled somewhere for the n-th time."""

    name = "kill at"

    def __init__(self, kind: type[Any], nth: int, cell: int) -> None:
        self.watched_messages = (kind,)
        self._left = nth
        self._cell = cell
        self.killed: Member | None = None

    def handled(self, simulation: Simulation, place: Member, message: Any, source: PeerRef) -> str | None:
        """Count down."""
        self._left -= 1
        if self._left == 0:
            self.killed = root_of(simulation, self._cell)
            simulation.after(0.0, lambda: simulation.kill(self.killed) if self.killed is not None else None)
        return None


STEPS = [
    *((TransferSub, nth) for nth in (1, 2)),
    *((Transferred, nth) for nth in (1, 2, 3)),
    *((CellOrder, nth) for nth in (1, 2)),
    *((CellQuestion, nth) for nth in (1, 3)),
    *((CellAnswer, nth) for nth in (1, 2)),
    *((LeafUpdate, nth) for nth in (1, 2)),
]


@pytest.mark.parametrize("victim", [WHOLE, 0b10], ids=["parent", "child"])
@pytest.mark.parametrize(("kind", "nth"), STEPS, ids=[f"{kind.__name__}-{nth}" for kind, nth in STEPS])
def test_a_root_that_dies_at_any_step_of_a_split_loses_nothing(kind: type[Any], nth: int, victim: int) -> None:
    """One leaf with 30 subscriptions, which are allowed to be too many only when all are there: so it is one split."""
    simulation = tree_ring(14, 5, {"leaf_capacity": 25})
    killer = KillAt(kind, nth, victim)
    simulation.watch(killer)
    simulation.restart_watched = True  # type: ignore[attr-defined]
    subscribe_all(simulation, 30)
    simulation.run_until(lambda: killer.killed is not None, limit_s=60.0, poll_s=0.05)
    run_to_rest(simulation, 600.0)
    assert WHOLE in inner_cells(simulation) or len(wanted(simulation)) <= 25
    states = {node.state for nodes in leaves(simulation).values() for node in nodes}
    assert states <= {CellState.LEAF} and all_kept(simulation)
