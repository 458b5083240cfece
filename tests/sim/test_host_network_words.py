"""What `Host` says of the network: distances, the next hop of a key, and the hop that a message came from."""

from __future__ import annotations

import pytest

from peerd.api import Host
from peerd.errors import Unavailable
from peerd.ids import NodeId, key_of
from peerd.messages import PeerRef
from peerd.sim.checkers import RingOracle
from peerd.sim.simulation import Place
from tests.support.overlay_net import Note, OverlayRing, recorder

STRANGER = PeerRef(NodeId(77), "10.9.9.9", 1)


def grown(count: int, seed: int) -> OverlayRing:
    ring = OverlayRing(seed)
    ring.grow(count, spacing_s=0.2)
    ring.run_for(60.0)
    return ring


def host(place: Place) -> Host:
    return place.node.hosts["recorder"]


def keys(count: int) -> list[NodeId]:
    return [key_of(f"host word {number}") for number in range(count)]


def test_rtt_is_what_the_overlay_measured() -> None:
    ring = grown(12, seed=3)
    measured = 0
    for place in ring.live_nodes():
        for other in ring.live_nodes():
            rtt_s = host(place).rtt(other.peer)
            if rtt_s is not None:
                measured += 1
                assert rtt_s == pytest.approx(ring.network.rtt_s(place.port, other.port), rel=0.2)
                assert host(place).estimated_rtt(other.peer) == rtt_s
    assert measured >= 12 * 4
    assert host(ring.nodes[0]).rtt(STRANGER) is None
    assert host(ring.nodes[0]).estimated_rtt(STRANGER) is None


def test_coordinates_predict_the_round_trip_to_a_node_that_was_never_measured() -> None:
    ring = grown(40, seed=4)
    live, errors = ring.live_nodes(), list[float]()
    for place in live:
        for other in live:
            if other is not place:
                true_s = ring.network.rtt_s(place.port, other.port)
                errors.append(abs(host(place).coordinate.rtt_s(host(other).coordinate) - true_s) / true_s)
    assert sorted(errors)[len(errors) // 2] < 0.35
    one, other = live[0], live[1]
    state = one.node.overlay.state
    state.proximity.forget(other.id)
    state.coordinates[other.id] = host(other).coordinate
    assert host(one).rtt(other.peer) is None
    assert host(one).estimated_rtt(other.peer) == host(one).coordinate.rtt_s(host(other).coordinate)


def test_next_hop_is_what_routing_then_does() -> None:
    ring = grown(40, seed=5)
    oracle = RingOracle.of(ring)
    for number, key in enumerate(keys(40)):
        start = ring.live_nodes()[number]
        hops = [start.peer]
        while (next_hop := host(ring.find(hops[-1].id)).next_hop(key)) is not None:
            hops.append(next_hop)
            assert len(hops) < 10
        assert hops[-1].id == oracle.root(key)
        host(start).route(key, Note(number))
        ring.run_for(2.0)
        for place, following in zip(hops, [*hops[1:], hops[-1]], strict=True):
            [envelope] = [each for each in recorder(ring.find(place.id)).forwarded if each.key == key]
            assert envelope.next_hop == following


def test_the_previous_hop_is_who_handed_the_message_over() -> None:
    ring = grown(40, seed=6)
    lengths = []
    for number, key in enumerate(keys(30)):
        start = ring.live_nodes()[number]
        host(start).route(key, Note(number))
        ring.run_for(2.0)
        by_hops = {
            envelope.hops: (place.peer, envelope)
            for place in ring.live_nodes()
            for envelope in recorder(place).forwarded
            if envelope.key == key
        }
        assert sorted(by_hops) == list(range(len(by_hops)))
        assert by_hops[0][1].previous_hop == start.peer, "started here"
        for hop in range(1, len(by_hops)):
            assert by_hops[hop][1].previous_hop == by_hops[hop - 1][0]
            assert by_hops[hop][1].source == start.peer
        lengths.append(len(by_hops))
    assert max(lengths) > 2


def test_the_previous_hop_outlives_a_wait() -> None:
    """A message that is held for want of a next hop still says where it came from."""
    ring = grown(3, seed=7)
    one, two = ring.nodes[:2]
    key = NodeId(two.id + 1)
    membership = two.node.overlay.membership
    membership.is_returning_beyond = lambda key: True  # type: ignore[method-assign]  # so it must wait
    host(two).route(key, Note(1))
    ring.run_for(0.05)
    assert two.node.overlay.forwarder.held == 1
    with pytest.raises(Unavailable):
        host(two).next_hop(key)
    del membership.is_returning_beyond
    ring.run_for(3.0)
    [envelope] = recorder(two).forwarded
    assert envelope.previous_hop == two.peer and recorder(two).count(1) == 1
    assert host(one).next_hop(key) == two.peer


def test_before_it_has_joined_a_node_knows_no_next_hop() -> None:
    ring = grown(2, seed=8)
    ring.pause(ring.nodes[0])
    newcomer = ring.add_node()
    ring.run_for(0.5)
    with pytest.raises(Unavailable):
        host(newcomer).next_hop(key_of("anything"))
