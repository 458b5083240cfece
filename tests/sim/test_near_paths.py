"""Near next hops in whole rings: paths beside those through perfect tables, traffic, liars, spares that die."""

from __future__ import annotations

import pytest

from peerd.api import Coordinate
from peerd.ids import NodeId
from peerd.lab.overlay.paths import pairs, perfect_tables, random_tables, shipped, through, walk
from peerd.messages import PeerRef
from peerd.node.node import SENT
from peerd.overlay.messages import ENTRIES_MAX, EntriesReply, EntriesRequest, Ping
from peerd.overlay.near_search import NearSearch
from peerd.overlay.table import RoutingTable
from peerd.sim.latency import EuclideanLatency
from peerd.sim.simulation import Place, Simulation

NODES = 120
WALKS = 2000


def joined(seed: int, nodes: int = NODES) -> Simulation:
    simulation = Simulation(seed, latency=EuclideanLatency(seed))
    simulation.start(nodes, spacing_s=0.1)
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    return simulation


@pytest.fixture(scope="module")
def ring() -> Simulation:
    """One minute after its last join."""
    simulation = joined(1)
    simulation.run_for(60.0)
    return simulation


def test_a_minute_after_the_last_join_paths_are_as_short_as_through_perfect_tables(ring: Simulation) -> None:
    wanted = pairs(ring, WALKS)
    perfect = walk(ring, wanted, through(perfect_tables(ring)))
    own = walk(ring, wanted, shipped)
    at_random = walk(ring, wanted, through(random_tables(ring)))
    assert own.astray == perfect.astray == at_random.astray == 0
    assert 1.0 < perfect.stretch < at_random.stretch
    assert own.stretch < 1.15 * perfect.stretch
    assert at_random.stretch > 1.25 * perfect.stretch, "any table would do here: the test shows nothing"
    assert own.mean_hops < 1.1 * perfect.mean_hops


def test_at_rest_a_node_sends_less_than_half_a_message_a_second(ring: Simulation) -> None:
    ring.run_for(60.0)  # what follows a join is over
    before, node_seconds = ring.traffic(), ring.truth.node_seconds
    ring.run_for(240.0)
    sent = sum(counts[SENT] - before[type_id][SENT] for type_id, counts in ring.traffic().items())
    assert sent / (ring.truth.node_seconds - node_seconds) < 0.5


def test_an_answer_has_the_peers_that_are_nearest_to_the_asker(ring: Simulation) -> None:
    asker, asked = ring.nodes[3], ring.nodes[40]
    state = asked.node.overlay.state
    place = asker.node.overlay.state.vivaldi.current
    reply = asked.node.overlay.near_search.entries(EntriesRequest(place), asker.peer)
    assert reply.peers[0] == asked.peer and reply.coordinates[0] == state.vivaldi.current
    assert asker.peer not in reply.peers
    assert len(reply.peers) == len(reply.coordinates) == len(set(reply.peers)) <= ENTRIES_MAX
    told = {peer.id for peer in state.peers()}
    assert {peer.id for peer in reply.peers[1:]} <= told, "only who spoke to the node itself"
    distances_s = [place.rtt_s(known) for known in reply.coordinates[1:] if known is not None]
    assert len(distances_s) > 10 and distances_s == sorted(distances_s)


def test_a_coordinate_that_promises_nothing_is_not_measured_and_one_that_does_is(
    ring: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ring.nodes[7]
    search, state = place.node.overlay.near_search, place.node.overlay.state
    pinged: list[Place] = []
    monkeypatch.setattr(place.node.overlay.table_care, "ping", pinged.append)
    strangers = [
        other.peer
        for other in ring.live_nodes()
        if other is not place
        and state.proximity.rtt_s(other.id) is None
        and (entry := state.table.incumbent(other.id)) is not None
        and entry.id != other.id
        and state.distance_s(entry.id) is not None
    ]
    own = state.vivaldi.current
    far = Coordinate(own.x + 5000.0, own.y, own.z, own.height, 0.1)
    search.consider(strangers, [far] * len(strangers))
    assert not pinged
    beside = Coordinate(own.x, own.y, own.z, 0.05, 0.1)
    search.consider(strangers, [beside] * len(strangers))
    assert 0 < len(pinged) <= 3 < len(strangers)


def test_lies_about_places_cost_latency_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, lies = NearSearch.entries, []

    def entries(self: NearSearch, request: EntriesRequest, source: PeerRef) -> EntriesReply:
        reply = honest(self, request, source)
        lies.append(reply)
        return EntriesReply(reply.peers, (Coordinate(0.0, 0.0, 0.0, 0.05, 0.01),) * len(reply.peers))

    monkeypatch.setattr(NearSearch, "entries", entries)
    simulation = joined(5, 60)
    simulation.run_for(60.0)
    assert len(lies) > 60
    assert walk(simulation, pairs(simulation, 500), shipped).astray == 0
    simulation.validate()


def is_spare(table: RoutingTable, node_id: NodeId) -> bool:
    return table.spares.has(table.cell(node_id), node_id)


def test_a_spare_without_a_link_is_not_used(ring: Simulation) -> None:
    state = ring.nodes[11].node.overlay.state
    spare = next(
        peer
        for other in ring.nodes
        for peer in state.table.next_hops(other.id)
        if is_spare(state.table, peer.id) and peer.id not in state.leaves and state.host.is_linked(peer)
    )
    assert state.way_s(spare.id, spare) < float("inf")
    ring.kill(ring.find(spare.id))
    ring.run_for(5.0)
    assert state.way_s(spare.id, spare) == float("inf")


def test_a_node_outside_the_ring_does_not_say_where_it_is() -> None:
    simulation = joined(2, 3)
    place = simulation.nodes[0]
    stranger = simulation.nodes[1].peer
    place.node.overlay.state.table.drop_spare(stranger.id)
    before = dict(place.node.overlay.state.coordinates)
    place.node.overlay.near_search._on_ping(Ping(), stranger)
    assert place.node.overlay.state.coordinates == before and not is_spare(place.node.overlay.state.table, stranger.id)


def test_the_first_answer_of_a_peer_tells_its_round_trip_though_a_dial_came_first(ring: Simulation) -> None:
    one, two = next(
        (one, two)
        for one in ring.live_nodes()
        for two in ring.live_nodes()
        if one is not two and not one.driver.is_linked(two.peer) and two.id not in one.node.overlay.state.proximity
    )
    assert one.driver.linked_at(two.peer) is None
    began = ring.now
    one.node.overlay.table_care.ping(two.peer)
    ring.run_until(lambda: two.id in one.node.overlay.state.proximity, limit_s=5.0)
    linked_at, rtt_s = one.driver.linked_at(two.peer), one.node.overlay.state.proximity.rtt_s(two.id)
    there_and_back_s = ring.network.latency_s(one.port, two.port) + ring.network.latency_s(two.port, one.port)
    assert linked_at is not None and linked_at >= began + there_and_back_s, "the dial alone takes longer"
    assert rtt_s == pytest.approx(there_and_back_s, rel=0.25)


def test_one_candidate_at_a_time_is_asked_for_an_empty_cell(ring: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ring.nodes[21]
    state = place.node.overlay.state
    cells: dict[int, list[PeerRef]] = {}
    for other in ring.live_nodes():
        if other is not place and other.id not in state.proximity:
            cells.setdefault(state.table.cell(other.id), []).append(other.peer)
    cell, candidates = next((cell, found) for cell, found in cells.items() if len(found) > 1)
    entry = state.table.incumbent(candidates[0].id)
    assert entry is not None
    monkeypatch.delitem(state.table._entries, cell)
    asked: list[PeerRef] = []
    ping = place.node.overlay.table_care._send_ping

    def noted(peer: PeerRef) -> None:
        asked.append(peer)
        ping(peer)

    monkeypatch.setattr(place.node.overlay.table_care, "_send_ping", noted)
    place.node.overlay.near_search.consider(candidates)
    assert asked == candidates[:1]
    ring.run_until(lambda: state.table.incumbent(entry.id) is not None, limit_s=5.0)
    assert state.table.incumbent(entry.id) == candidates[0]
    assert not place.node.overlay.table_care._fills
