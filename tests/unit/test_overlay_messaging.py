"""Routing, multicast, broadcast and lookup in whole rings."""

from __future__ import annotations

from collections import Counter

import pytest

from peerd.api import Coordinate, Verdict
from peerd.errors import Bug, Unavailable
from peerd.ids import NodeId, shared_prefix_bits
from peerd.limits import HOPS_MAX, ROUTED_BODY_BYTES_MAX
from peerd.messages import PeerRef, encode_body
from peerd.overlay.broadcast import Broadcaster
from peerd.overlay.lookup import LOOKUPS_MAX
from peerd.overlay.messages import (
    ENTRIES_MAX,
    Broadcast,
    EntriesReply,
    JoinReply,
    LeafSetProbe,
    LookupProbe,
    Ping,
    Route,
    RouteAck,
    TraceHop,
)
from peerd.sim.checkers import RingOracle
from peerd.sim.simulation import Place
from peerd.sim.world import SimulationFailure
from tests.support.long_cases import cases
from tests.support.overlay_net import Note, OverlayRing, recorder
from tests.support.sinks import ListSink


def ring_of(count: int, seed: int = 1) -> OverlayRing:
    ring = OverlayRing(seed=seed)
    ring.grow(count, spacing_s=0.02)
    return ring


def keys_of(ring: OverlayRing, count: int) -> list[NodeId]:
    return [NodeId(ring.rng.getrandbits(128)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 18, 40, 120])
def test_broadcast_reaches_each_node_once(count: int) -> None:
    ring = ring_of(count, seed=count)
    assert ring.broadcast(1, ring.rng.choice(ring.nodes), wait_s=3.0) == {1: count}
    assert sum(place.node.traffic.get(Broadcast.TYPE_ID, [0])[0] for place in ring.nodes) == count - 1
    assert ring.broadcast(2, ring.rng.choice(ring.nodes), wait_s=3.0) == {1: count}


@pytest.mark.parametrize("seed", cases([7], [1, 5]))
def test_broadcast_right_after_one_in_ten_lost_power(seed: int) -> None:
    """Nobody waits until a silent node has been asked twice by one node after the other."""
    ring = ring_of(100, seed=seed)
    ring.run_for(30.0)
    for place in ring.rng.sample(ring.nodes[1:], 10):
        ring.silence(place)
    assert ring.broadcast(1, ring.nodes[0], wait_s=2.5) == {1: 90}


@pytest.mark.parametrize("gone", [1, 3, 8, 10])
def test_broadcast_past_dead_nodes_in_a_row(gone: int) -> None:
    ring = ring_of(60, seed=2)
    ring.run_for(30.0)
    in_order = sorted(ring.nodes, key=lambda place: place.id)
    for place in in_order[1 : 1 + gone]:
        ring.silence(place)
    assert ring.broadcast(1, in_order[0], wait_s=25.0) == {1: 60 - gone}


def test_broadcast_with_empty_tables_walks_the_leaf_sets() -> None:
    ring = ring_of(100)
    for place in ring.nodes:
        for peer in place.node.overlay.table_peers():
            place.node.overlay.state.table.remove(peer.id)
            place.node.overlay.state.forget_unless_known(peer.id)
    assert ring.broadcast(1, ring.nodes[3], wait_s=5.0) == {1: 100}


def test_broadcast_of_a_node_that_is_not_ready_waits() -> None:
    ring = OverlayRing()
    ring.grow(10)
    newcomer = ring.add_node()
    ring.run_for(0.0)
    assert not newcomer.node.is_ready
    assert ring.broadcast(1, newcomer) == {1: 11}


@pytest.mark.parametrize("seed", range(3))
def test_broadcast_reaches_a_restarted_node_over_links_to_its_earlier_life(seed: int) -> None:
    ring = OverlayRing(seed=seed)
    ring.grow(40, spacing_s=0.05)
    ring.run_for(20.0)
    restarted = ring.nodes[7]
    ring.silence(restarted)
    ring.run_for(40.0)
    ring.restart(restarted)
    ring.settle()
    for number, origin in enumerate(ring.live_nodes()):
        assert ring.broadcast(number, origin, wait_s=3.0) == {1: 40}


def test_a_repeated_arc_is_covered_once() -> None:
    ring = ring_of(30)
    place = ring.nodes[4]
    broadcaster: Broadcaster = place.node.overlay.broadcaster
    own = place.id
    message = Broadcast(Note.TYPE_ID, b"\x92\x01\xc4\x00", ring.nodes[5].peer, 1, 77, own, NodeId(own + 5), 1)
    assert broadcaster.received(message, place.peer) == RouteAck(True)
    assert broadcaster.received(message, place.peer) == RouteAck(True)
    ring.run_for(2.0)
    assert recorder(place).count(1) == 1


@pytest.mark.parametrize("count", [1, 2, 17, 60])
def test_route_delivers_once_at_the_root(count: int) -> None:
    ring = ring_of(count, seed=count + 1)
    keys = keys_of(ring, 40)
    for number, key in enumerate(keys):
        ring.rng.choice(ring.nodes).node.hosts["recorder"].route(key, Note(number))
    ring.run_for(5.0)
    oracle = RingOracle.of(ring)
    found = Counter((place.id, note) for place in ring.nodes for _, note, _ in recorder(place).delivered)
    assert found == Counter((oracle.root(key), number) for number, key in enumerate(keys))


def test_multicast_delivers_each_key_at_its_root_with_few_copies() -> None:
    ring = ring_of(60, seed=3)
    keys = keys_of(ring, 700)
    origin = ring.nodes[0]
    before = sum(place.node.traffic.get(Route.TYPE_ID, [0])[0] for place in ring.nodes)
    origin.node.hosts["recorder"].multicast([*keys, keys[0]], Note(1))
    ring.run_for(5.0)
    oracle = RingOracle.of(ring)
    found = Counter((place.id, key) for place in ring.nodes for key, _, _ in recorder(place).delivered)
    assert found == Counter((oracle.root(key), key) for key in keys)
    sent = sum(place.node.traffic.get(Route.TYPE_ID, [0])[0] for place in ring.nodes) - before
    assert sent < 300


def test_forward_sees_every_hop_and_both_ends() -> None:
    ring = ring_of(60, seed=4)
    origin = ring.nodes[0]
    key = next(key for key in keys_of(ring, 50) if RingOracle.of(ring).root(key) != origin.id)
    origin.node.hosts["recorder"].route(key, Note(1))
    ring.run_for(3.0)
    envelopes = {place.id: recorder(place).forwarded for place in ring.nodes if recorder(place).forwarded}
    assert all(len(found) == 1 for found in envelopes.values())
    assert envelopes[origin.id][0].hops == 0
    root = RingOracle.of(ring).root(key)
    assert envelopes[root][0].next_hop.id == root
    assert envelopes[root][0].hops == len(envelopes) - 1
    assert {found[0].source.id for found in envelopes.values()} == {origin.id}


def test_forward_may_stop_a_message_or_send_it_elsewhere() -> None:
    ring = ring_of(20, seed=5)
    origin, other = ring.nodes[0], ring.nodes[1]
    key = next(key for key in keys_of(ring, 50) if RingOracle.of(ring).root(key) not in (origin.id, other.id))
    recorder(origin).verdict = Verdict.STOP
    origin.node.hosts["recorder"].route(key, Note(1))
    recorder(origin).verdict = other.peer
    origin.node.hosts["recorder"].route(key, Note(2))
    recorder(origin).verdict = origin.peer
    origin.node.hosts["recorder"].route(key, Note(3))
    ring.run_for(3.0)
    assert sum(recorder(place).count(1) for place in ring.nodes) == 0
    assert recorder(other).forwarded[0].hops == 1
    assert sum(recorder(place).count(2) for place in ring.nodes) == 1
    assert recorder(origin).count(3) == 1


def test_lookup_tells_the_way_and_its_round_trips() -> None:
    ring = ring_of(80, seed=6)
    ring.run_for(60.0)
    results = ring.lookups(60, wait_s=3.0)
    oracle = RingOracle.of(ring)
    assert len(results) == 60
    for result in results:
        assert result.root is not None
        assert result.root.id == oracle.root(result.key)
        if result.hops:
            assert result.hops[-1].peer == result.root
        assert all(hop.rtt_s is None or 0 < hop.rtt_s < 1.0 for hop in result.hops)
        assert result.duration_s < 2.0
    assert max(len(result.hops) for result in results) <= 5
    assert any(hop.rtt_s is not None for result in results for hop in result.hops)


def test_lookup_without_an_answer_ends_in_time() -> None:
    ring = ring_of(2)
    ring.silence(ring.nodes[1])
    found: list[PeerRef | None] = []
    overlay = ring.nodes[0].node.overlay
    overlay.lookup(ring.nodes[1].id, lambda result: found.append(result.root), 0.4)
    assert found == []
    ring.run_for(0.5)
    assert found == [None]
    assert not overlay.lookups._pending


def test_too_many_lookups_are_refused() -> None:
    ring = ring_of(2)
    overlay = ring.nodes[0].node.overlay
    for _ in range(LOOKUPS_MAX):
        overlay.lookup(ring.nodes[1].id, lambda result: None, 5.0)
    with pytest.raises(Unavailable):
        overlay.lookup(ring.nodes[1].id, lambda result: None, 5.0)


def test_a_body_over_its_cap_is_our_bug() -> None:
    ring = ring_of(2)
    host = ring.nodes[0].node.hosts["recorder"]
    host.route(ring.nodes[1].id, Note(1, bytes(ROUTED_BODY_BYTES_MAX - 16)))
    ring.run_for(2.0)
    assert recorder(ring.nodes[1]).count(1) == 1
    with pytest.raises(Bug, match="over the cap"):
        host.route(ring.nodes[1].id, Note(1, bytes(ROUTED_BODY_BYTES_MAX)))


def test_routes_of_a_node_that_is_not_ready_are_held_and_then_go() -> None:
    ring = OverlayRing()
    ring.grow(10)
    newcomer = ring.add_node()
    ring.run_for(0.0)
    newcomer.node.hosts["recorder"].route(ring.nodes[2].id, Note(9))
    assert newcomer.node.overlay.forwarder.held == 1
    ring.run_for(5.0)
    assert recorder(ring.nodes[2]).count(9) == 1
    assert newcomer.node.overlay.forwarder.held == 0


def test_prefix_rows_replicas_and_ring_size() -> None:
    ring = ring_of(60, seed=7)
    oracle = RingOracle.of(ring)
    for place in ring.nodes[:10]:
        overlay = place.node.overlay
        rows = [overlay.prefix_row(bits) for bits in range(128)]
        for bits, row in enumerate(rows):
            assert all(shared_prefix_bits(place.id, peer.id) == bits for peer in row)
        assert {peer.id for row in rows for peer in row} == {peer.id for peer in overlay.known_peers()}
        assert overlay.prefix_row(-1) == overlay.prefix_row(128) == ()
        assert [peer.id for peer in overlay.replica_set(place.id, 3)] == sorted(
            oracle.ids, key=lambda other: (min((other - place.id) % 2**128, (place.id - other) % 2**128), other)
        )[:3]
        assert 25 < overlay.estimated_ring_size() < 150


def hostile(ring: OverlayRing) -> tuple[Place, PeerRef]:
    return ring.nodes[0], ring.nodes[1].peer


def test_a_route_over_its_hop_limit_ends_here() -> None:
    ring = ring_of(5)
    place, source = hostile(ring)
    route = Route((source.id,), Note.TYPE_ID, b"\x92\x01\xc4\x00", source, 1, 1, 255)
    assert place.node.overlay.forwarder.received(route, source) == RouteAck(True)
    ring.run_for(1.0)
    assert sum(recorder(other).count(1) for other in ring.nodes) == 0


@pytest.mark.parametrize(
    ("type_id", "keys", "body_bytes"),
    [(Note.TYPE_ID, 1, 100), (LookupProbe.TYPE_ID, 1, LookupProbe.BYTES_MAX + 1), (LookupProbe.TYPE_ID, 2, 0)],
)
def test_only_a_lookup_may_be_traced(type_id: int, keys: int, body_bytes: int) -> None:
    ring = ring_of(5)
    place, source = hostile(ring)
    far = tuple(other.id for other in ring.nodes[2 : 2 + keys])
    before = place.node.traffic[Route.TYPE_ID][0]
    answer = place.node.overlay.forwarder.received(
        Route(far, type_id, bytes(body_bytes), source, 1, 1, 0, (TraceHop(source, 0.5),)), source
    )
    ring.run_for(1.0)
    assert answer == RouteAck(True), "whoever passed it on is not to blame"
    assert place.node.traffic[Route.TYPE_ID][0] == before


def test_the_largest_trace_of_a_lookup_can_be_passed_on() -> None:
    ring = ring_of(5)
    place, source = hostile(ring)
    hop = TraceHop(PeerRef(NodeId(7), "h" * 253, 7), 0.5)
    largest = Route((ring.nodes[2].id,), LookupProbe.TYPE_ID, bytes(512), source, 1, 1, 0, (hop,) * HOPS_MAX)
    before = place.node.traffic[Route.TYPE_ID][0]
    place.node.overlay.forwarder.received(largest, source)
    assert place.node.traffic[Route.TYPE_ID][0] == before + 1


def test_the_overlays_own_messages_cannot_travel_in_an_envelope() -> None:
    ring = ring_of(5)
    place, source = hostile(ring)
    body = encode_body(Ping())
    ring.misbehaviour_is_failure = False
    place.node.overlay.forwarder.received(Route((place.id,), Ping.TYPE_ID, body, source, 1, 5, 1), source)
    ring.run_for(1.0)
    assert ring.is_exact()


def test_hearsay_of_nodes_that_do_not_exist_changes_nothing() -> None:
    ring = ring_of(20, seed=8)
    place, source = hostile(ring)
    ghosts = tuple(PeerRef(NodeId((place.id + step) % 2**128), "192.0.2.1", 1) for step in range(1, 9))
    place.node.overlay.membership.learn(source, LeafSetProbe(True, ghosts, ghosts, ghosts, tuple(g.id for g in ghosts)))
    ring.run_for(5.0)
    assert ring.is_exact()
    live = tuple(other.id for other in ring.nodes)[:16]
    place.node.overlay.membership.check_reported(live, source)
    ring.run_for(5.0)
    assert ring.is_exact()


def test_join_replies_stay_within_their_cap_whatever_the_addresses() -> None:
    long = "a" * 253
    peers = [PeerRef(NodeId(number), long, 65535) for number in range(96)]
    assert len(encode_body(JoinReply(True, peers[0], tuple(peers[:8]), tuple(peers[:8]), tuple(peers)))) < 48 * 1024


def test_a_full_answer_about_entries_stays_within_its_cap_whatever_the_addresses() -> None:
    peers = tuple(PeerRef(NodeId(number), "a" * 253, 65535) for number in range(ENTRIES_MAX))
    reply = EntriesReply(peers, (Coordinate(0.1, 0.1, 0.1, 0.1, 0.1),) * ENTRIES_MAX)
    assert len(encode_body(reply)) < EntriesReply.BYTES_MAX


def test_a_malformed_body_stops_where_it_is_decoded_and_raises_nothing() -> None:
    ring = ring_of(5)
    ring.sink = sink = ListSink()
    place, source = hostile(ring)
    target = ring.nodes[2].id
    assert place.node.overlay.forwarder.received(
        Route((target,), Note.TYPE_ID, b"junk", source, 1, 9, 1), source
    ).accepted
    ring.run_for(1.0)
    assert [record["address"] for record in sink.of_kind("peer.misbehaved")] == [source.address]
    assert not ring.misbehaviours, "any hop may have damaged the body: nobody's link is cut for it"
    assert recorder(ring.nodes[2]).delivered == []


def test_a_flood_of_multicasts_costs_the_sender_its_link_as_soon_as_one_of_messages_would() -> None:
    """Each message has as many keys as it may have, and each key is work of its own."""
    ring = ring_of(8)
    sender, victim = ring.nodes[1], ring.nodes[2]
    rate = ring.network.links
    sent = int(rate.messages_burst // 64 + rate.messages_per_second // 64) + 64
    with pytest.raises(SimulationFailure, match="flood"):
        for number in range(sent):
            keys = tuple(sorted(keys_of(ring, 64)))
            route = Route(keys, Note.TYPE_ID, encode_body(Note(number)), sender.peer, 1, 1_000_000 + number, 0)
            sender.node.send(victim.peer, route)
        ring.run_for(1.0)
