"""How far away a node takes another one for: measured, predicted, or the farthest that it knows."""

from __future__ import annotations

from peerd.testing.host import FakeHost, peer
from protocols.aggregation.prefix import RTT_S_MAX, HostNeighbourhood


def test_an_unmeasured_partner_is_taken_for_as_far_as_the_farthest_neighbour() -> None:
    host = FakeHost(1)
    host.neighbours = (peer(2), peer(3))
    around = HostNeighbourhood(host)
    assert around.rtt_s(peer(9)) == 0.0
    host.rtts = {peer(2).id: 0.3, peer(3).id: 0.1}
    assert around.rtt_s(peer(3)) == 0.1
    assert around.rtt_s(peer(9)) == 0.3


def test_no_round_trip_is_believed_to_be_longer_than_the_limit() -> None:
    host = FakeHost(1)
    host.rtts = {peer(2).id: 1e9}
    assert HostNeighbourhood(host).rtt_s(peer(2)) == RTT_S_MAX
