"""What a node knows of the ring, who is at a level and how far away another one is, and how long it waits there."""

from __future__ import annotations

import pytest

from peerd.api import LeafSet
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.patience import LEAST_SHARE, LevelPatience
from protocols.aggregation.prefix import RTT_S_MAX, HostNeighbourhood, neighbourhood_of


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


class OfManyNodes(FakeHost):
    """Its leaf set does not cover the ring, or not yet."""

    def leaf_set(self) -> LeafSet:
        return LeafSet(self.neighbours, (), True, covers_ring=False)


def test_a_level_of_places_is_known_where_all_its_nodes_are_or_the_ring_is() -> None:
    nodes = [peer(number).id for number in range(1, 5)]
    for host, known in ((FakeHost(1), True), (OfManyNodes(1), False)):
        host.neighbours = (peer(2), peer(3))
        around = neighbourhood_of(host, nodes, nodes[0])
        assert around.members(1) == (peer(2),) and around.is_exact(1)
        assert around.members(0) == (peer(3),) and around.is_exact(0) is known


def test_calm_rounds_shorten_the_time_out_and_levels_that_time_out_bring_it_back() -> None:
    patience = LevelPatience()
    for _ in range(6):
        patience.learn("swapped", 0.01)
    assert patience.share == pytest.approx(0.9**6)
    for _ in range(20):
        patience.learn("swapped", 0.01)
    assert patience.share == LEAST_SHARE
    patience.learn("empty", 1.0)  # nobody was there: that says nothing
    assert patience.share == LEAST_SHARE
    for share in (0.5, 1.0, 1.0):
        patience.learn("timed_out", LEAST_SHARE)
        assert patience.share == share


def test_a_level_may_take_four_times_as_long_as_those_before() -> None:
    patience = LevelPatience()
    for _ in range(40):
        patience.learn("swapped", 0.1)
    assert patience.share == pytest.approx(0.4)
    patience.learn("swapped", 0.2)
    assert patience.share == pytest.approx(0.8)
    patience.learn("swapped", 0.9)
    assert patience.share == 1.0
