"""What opening costs, counted in one-way latencies; tests/cluster/test_links_latency.py counts the same in daemons."""

from __future__ import annotations

import pytest

from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.sim.latency import ConstantLatency
from peerd.testing.simulation import ring
from tests.support.swapper import OPENING_LATENCIES, Swapper
from tests.support.trivial_world import EXACT, LATENCY_S, NotingHandler, trivial_world

LATENCY_OF_RING_S = 0.1
ANSWER_S = LinkSettings().dial_timeout_s


@pytest.mark.parametrize("rtt_s", [0.9 * ANSWER_S, 1.1 * ANSWER_S])
def test_a_peer_is_reached_that_needs_nearly_the_time_limit_for_each_answer(rtt_s: float) -> None:
    """In measured rings there are machines whose round trips take three seconds: without it, half of their neighbours
    had no link with them, and aggregates lacked them without knowing it."""
    world = trivial_world(2, latency=ConstantLatency(rtt_s / 2))
    one, two = world.nodes
    found: list[PeerRef | None] = []
    one.driver.dial(two.peer.host, two.peer.port, found.append)
    world.run_for(3 * rtt_s + 0.1)
    is_near_enough = rtt_s < ANSWER_S
    assert found == [two.peer if is_near_enough else None]
    assert one.driver.is_linked(two.peer) is is_near_enough


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
