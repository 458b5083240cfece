"""A member that names invented nodes at the address of a node that is none of them."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.ids import NodeId
from peerd.linking.dial_limits import DIALS_PER_ADDRESS_BURST, DIALS_PER_ADDRESS_PER_SECOND
from peerd.messages import PeerRef
from peerd.sim import driver
from peerd.sim.opening import PeerOpening
from peerd.wire.frames import Frame
from tests.sim.test_sim_network import Words, connected, say


def test_a_liar_makes_nobody_dial_an_outsider_often() -> None:
    """Node 0 hears of 500 nodes, all at the address of node 2, which is none of them."""
    world = connected(2)
    victim = world.add_node()
    world.run_for(1.0)
    receive = world.nodes[0].driver.receive

    def hears(source: PeerRef, frame: Frame) -> None:
        receive(source, frame)
        for node_id in range(10_000, 10_500):
            world.nodes[0].node.send(PeerRef(NodeId(node_id), victim.peer.host, victim.peer.port), Words("who are you"))

    world.nodes[0].driver.receive = hears
    dials = 0

    class Counting(PeerOpening):
        def __init__(self, *arguments: Any) -> None:
            nonlocal dials
            dials += 1
            super().__init__(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "PeerOpening", Counting)
        for _ in range(10):
            say(world, 1, 0)
            world.run_for(1.0)
    assert 0 < dials <= DIALS_PER_ADDRESS_BURST + 10 * DIALS_PER_ADDRESS_PER_SECOND
    assert set(world.network.dials_refused) == {"dial_limit", "wrong_callee"}
    world.nodes[0].driver.receive = receive
    say(world, 0, 2, "and you")
    world.run_for(10.0)
    say(world, 0, 2, "hello")
    world.run_for(1.0)
    assert "hello" in victim.node.texts(), "who really is there is found once the address has rested"
