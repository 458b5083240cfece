"""What all work in the swarm has in common: rings of drawn sizes, and clients that try again what was refused."""

from __future__ import annotations

from random import Random

from peerd.errors import Unavailable
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import AGAIN_S, TRIES_MAX, SwarmWork, nodes_of


class InSmallRings(SwarmWork):
    rings = ((0.5, 1, 1), (1.0, 4, 6))


def test_sizes_of_rings_are_drawn_by_their_shares_and_are_the_seeds() -> None:
    drawn = [InSmallRings.nodes(Random(seed)) for seed in range(2000)]
    assert {*drawn} == {1, 4, 5, 6} and 900 < drawn.count(1) < 1100
    assert [nodes_of({"x": InSmallRings}, seed) for seed in range(9)] == [
        nodes_of({"y": SwarmWork, "x": InSmallRings}, seed) for seed in range(9)
    ], "work that has no wish leaves it to the next"
    assert SwarmWork.nodes(Random(0)) is None and nodes_of({"y": SwarmWork}, 1) is None


def test_a_client_tries_again_what_is_refused_for_the_moment_and_at_last_complains() -> None:
    simulation = Simulation(1)
    simulation.start(1)
    work = SwarmWork(simulation, Random(0))
    asked: list[float] = []

    def refuse(place: Place, until: int) -> None:
        asked.append(simulation.now)
        if len(asked) < until:
            raise Unavailable("too busy")

    begun = simulation.now
    work.insist(simulation.nodes[0], lambda place: refuse(place, 3))
    simulation.run_for(60.0)
    assert asked == [begun, begun + AGAIN_S, begun + 2 * AGAIN_S] and not work.not_done
    asked.clear()
    work.insist(simulation.nodes[0], lambda place: refuse(place, TRIES_MAX + 1))
    simulation.run_for(60.0)
    assert len(asked) == TRIES_MAX and work.not_done == [f"in a calm ring {simulation.nodes[0]} says: too busy"]
