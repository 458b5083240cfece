"""What opening costs, counted in one-way latencies; tests/cluster/test_links_latency.py counts the same in daemons."""

from __future__ import annotations

import pytest

from peerd.sim.latency import ConstantLatency
from peerd.testing.simulation import ring
from tests.support.swapper import OPENING_LATENCIES, Swapper
from tests.support.trivial_world import EXACT, LATENCY_S, NotingHandler, trivial_world

LATENCY_OF_RING_S = 0.1


def test_a_stream_may_be_written_to_from_hello_on() -> None:
    world = trivial_world(2)
    handler = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, handler)
    world.run_for(1.0)
    there = world.nodes[1].node.accepted[0]
    assert there.opened_at == pytest.approx(OPENING_LATENCIES["accepted"] * LATENCY_S)
    assert handler.opened_at == pytest.approx(OPENING_LATENCIES["opened"] * LATENCY_S)


def test_a_swap_with_a_peer_that_has_a_link() -> None:
    swappers = [Swapper(), Swapper()]
    latency = ConstantLatency(LATENCY_OF_RING_S)
    simulation = ring(2, plugins=lambda index: [swappers[index]], network=EXACT, latency=latency)
    one, two = simulation.nodes
    assert one.driver.is_linked(two.peer)
    counts: dict[str, float] = {}
    begun = simulation.now
    for swapper in swappers:
        swapper.told = lambda what: counts.update({what: (simulation.now - begun) / LATENCY_OF_RING_S})
    swappers[0].begin(two.peer)
    simulation.run_for(5.0)
    assert counts == pytest.approx({what: OPENING_LATENCIES[what] for what in ("offered", "done there", "done here")})
