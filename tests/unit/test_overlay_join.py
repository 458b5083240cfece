"""Joining: from one node to forty at the same instant, through seeds that are dead, late, or the node itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peerd.messages import PeerRef
from peerd.node.node import SENT
from peerd.overlay.config import OverlayConfig
from peerd.overlay.messages import Heartbeat
from peerd.sim.checkers import CorrectDelivery
from peerd.sim.simulation import Place
from tests.support.long_cases import cases
from tests.support.overlay_net import Address, Contacts, OverlayRing, address, first_node, seeds

DEAD: list[Address] = [("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.3", 1)]


@pytest.mark.parametrize("count", [*range(1, 21), 32, 40])
def test_all_start_at_the_same_instant(count: int) -> None:
    ring = OverlayRing(seed=count, check_every=10)
    ring.grow(count)
    assert ring.now < 10.0
    assert not ring.wrong_lookups(2 * count)


@pytest.mark.parametrize("seed", cases(range(3), (3, 4)))
@pytest.mark.parametrize("seed_count", [2, 3, 5])
def test_seeds_that_list_each_other_make_one_ring(seed_count: int, seed: int) -> None:
    ring = OverlayRing(seed=seed, contacts=seeds(seed_count), check_every=10)
    ring.grow(32)
    assert ring.now < 15.0


def others_only(count: int) -> Contacts:
    """The first ``count`` nodes list each other, without themselves; everybody else lists them all."""

    def contacts(ring: OverlayRing, place: Place) -> list[Address]:
        return [address(other) for other in ring.nodes[:count] if other is not place]

    return contacts


@pytest.mark.parametrize("seed", cases(range(3), (3, 4)))
@pytest.mark.parametrize("seed_count", [2, 3, 5])
def test_seeds_that_list_only_the_others_make_one_ring(seed_count: int, seed: int) -> None:
    ring = OverlayRing(seed=seed, contacts=others_only(seed_count), check_every=10)
    ring.grow(32)
    assert ring.now < 20.0


@pytest.mark.parametrize("seed", cases(range(3), (3, 4)))
@pytest.mark.parametrize("form", [seeds, others_only])
@pytest.mark.parametrize("count", [2, 3])
def test_seeds_that_start_minutes_apart_find_each_other_soon(
    form: Callable[[int], Contacts], count: int, seed: int
) -> None:
    ring = OverlayRing(seed=seed, contacts=form(count), check_every=10)
    for _ in range(count + 3):
        ring.add_node(delay_s=None)
    for place in ring.nodes[1:]:
        ring.restart(place, delay_s=ring.rng.uniform(0.0, 300.0))
    ring.run_for(600.0)
    assert not any(place.node.is_ready for place in ring.live_nodes())
    ring.restart(ring.nodes[0])
    ring.run_until(lambda: all(place.is_live and place.node.is_ready for place in ring.nodes[:count]), limit_s=10.0)
    ring.settle(limit_s=60.0)


def test_whose_whole_list_is_dead_gets_in_through_a_node_that_asked_it() -> None:
    """In the swarm's seed 851 all three whom a newcomer was told of had left for good."""
    ring = OverlayRing(contacts=lambda ring, place: CONTACTS_BY_INDEX[place.index](ring))
    ring.grow(3)
    stranded, other = (ring.add_node(delay_s=0.0) for _ in range(2))
    ring.run_for(60.0)
    assert not stranded.node.is_ready
    assert not other.node.is_ready
    ring.add_node(delay_s=0.0)
    ring.settle()


CONTACTS_BY_INDEX: list[Callable[[OverlayRing], list[Address]]] = [
    lambda ring: [],
    lambda ring: [address(ring.nodes[0])],
    lambda ring: [address(ring.nodes[0])],
    lambda ring: DEAD,
    lambda ring: [address(ring.nodes[3]), ("10.0.0.5", ring.nodes[3].peer.port)],
    lambda ring: [address(ring.nodes[0])],
]
"""The fourth node knows only dead ones; the fifth one knows that one, and the sixth, which comes a minute later."""


def test_who_is_listed_by_nobody_that_it_lists_founds_nothing() -> None:
    """A circle is no agreement: each asks the next one, and is asked by the one before."""
    ring = OverlayRing(contacts=lambda ring, place: [address(ring.nodes[(place.index + 1) % 3])])
    for _ in range(3):
        ring.add_node(delay_s=None)
    for place in ring.nodes:
        ring.restart(place)
    ring.run_for(600.0)
    assert not any(place.node.is_ready for place in ring.nodes)


def test_two_seeds_that_wait_for_a_third_do_not_keep_each_other_busy() -> None:
    ring = OverlayRing(contacts=others_only(3))
    ring.add_node(delay_s=None)
    ring.start(2)
    ring.run_for(300.0)
    before = ring.network.frames_delivered
    ring.run_for(600.0)
    assert ring.network.frames_delivered - before < 400
    assert not any(place.node.is_ready for place in ring.live_nodes())


def test_one_after_another_without_a_wrong_delivery() -> None:
    ring = OverlayRing(seed=3, checkers=(CorrectDelivery(),), check_every=10)
    ring.grow(40, spacing_s=0.5)


def test_alone_it_is_ready_at_once_and_root_of_everything() -> None:
    ring = OverlayRing()
    ring.start(1)
    ring.run_for(0.0)
    node = ring.nodes[0].node
    assert node.is_ready
    assert node.overlay.estimated_ring_size() == 1.0
    assert node.overlay.leaf_set().covers_ring
    assert not ring.wrong_lookups(3)


def test_a_list_of_only_itself_founds_a_ring() -> None:
    ring = OverlayRing(contacts=seeds(1))
    ring.grow(5)
    assert ring.nodes[0].node.overlay.estimated_ring_size() == 5.0


def test_dead_addresses_and_one_alive() -> None:
    def contacts(ring: OverlayRing, place: Place) -> list[Address]:
        return [] if place.index == 0 else [*DEAD, address(ring.nodes[0])]

    ring = OverlayRing(contacts=contacts)
    ring.grow(12)


def test_nobody_answers_so_it_keeps_trying_and_founds_nothing() -> None:
    late: list[Address] = []

    def contacts(ring: OverlayRing, place: Place) -> list[Address]:
        return [] if place.index == 0 else [*DEAD, address(ring.nodes[0])]

    ring = OverlayRing(contacts=contacts)
    ring.add_node(delay_s=None)
    ring.add_node()
    ring.add_node()
    ring.run_for(600.0)
    assert late == []
    assert not any(place.node.is_ready for place in ring.nodes[1:])
    ring.restart(ring.nodes[0])
    ring.run_for(0.1)
    ring.settle(limit_s=60.0)
    assert len(ring.nodes[0].node.overlay.leaf_set().members()) == 2


def test_a_newcomer_whose_only_address_dies_gets_in_through_those_that_it_has_met() -> None:
    """It is cut off while it probes, for longer than a round takes; then nobody answers where it was told to ask."""
    ring = OverlayRing(seed=2)
    ring.grow(6)
    ring.start(1)
    newcomer = ring.nodes[-1]
    ring.run_until(lambda: newcomer.is_live and len(newcomer.node.overlay.state.leaves) > 0, limit_s=5.0)
    ring.partition([newcomer])
    ring.kill(ring.nodes[0])
    ring.run_for(1.2 * newcomer.node.overlay.state.config.join_round)
    assert not newcomer.node.is_ready
    ring.heal()
    ring.settle()


def test_a_seed_does_not_found_a_second_ring_while_another_seed_is_unreachable() -> None:
    ring = OverlayRing(contacts=seeds(3))
    ring.add_node(delay_s=None)
    ring.start(5)
    ring.run_for(120.0)
    assert not any(place.node.is_ready for place in ring.live_nodes())
    ring.restart(ring.nodes[0])
    ring.run_for(0.1)
    ring.settle(limit_s=90.0)


def test_other_addresses_while_it_runs_lead_it_into_the_ring() -> None:
    def contacts(ring: OverlayRing, place: Place) -> list[Address]:
        return [] if place.index == 0 else DEAD

    ring = OverlayRing(contacts=contacts)
    ring.start(2)
    ring.run_for(600.0)
    lost = ring.nodes[1].node
    assert not lost.is_ready
    lost.overlay.reseed([])
    ring.run_for(60.0)
    assert not lost.is_ready, "a list that became empty makes nobody a founder"
    lost.overlay.reseed([address(ring.nodes[0])])
    ring.run_for(2.0)
    assert lost.is_ready, "at once, and not after the pause that it had come to"
    lost.overlay.reseed(DEAD)
    ring.run_for(600.0)
    assert lost.is_ready and not ring.wrong_lookups(3), "a member stays one"


def test_a_node_that_has_left_takes_no_other_addresses() -> None:
    ring = OverlayRing()
    ring.grow(2)
    left = ring.nodes[1].node
    left.stop("test")
    left.overlay.reseed([address(ring.nodes[0])])
    left.reconfigure(left.settings.overlay, left.settings.swap, {})
    ring.run_for(600.0)
    assert left.is_stopped and not left.is_ready


def test_two_rings_meet_through_an_address_that_one_of_them_learns_while_it_runs() -> None:
    ring = OverlayRing(contacts=lambda ring, place: [])
    ring.start(2)
    ring.run_for(600.0)
    assert all(place.node.overlay.estimated_ring_size() == 1.0 for place in ring.nodes)
    ring.nodes[1].node.overlay.reseed([address(ring.nodes[0])])
    ring.run_for(600.0)
    assert all(place.node.overlay.estimated_ring_size() == 2.0 for place in ring.nodes)


def test_timers_of_the_overlay_follow_the_configuration() -> None:
    ring = OverlayRing()
    ring.grow(2)
    node = ring.nodes[1].node

    def heartbeats_in(duration_s: float) -> int:
        before = node.traffic[Heartbeat.TYPE_ID][SENT]
        ring.run_for(duration_s)
        return node.traffic[Heartbeat.TYPE_ID][SENT] - before

    before = heartbeats_in(300.0)
    overlay = node.settings.overlay.model_copy(update={"heartbeat_interval": 0.5})
    node.reconfigure(overlay, node.settings.swap, {})
    ring.run_for(10.0)
    assert heartbeats_in(300.0) > 5 * max(1, before)
    assert node.is_ready and node.overlay.state.config is overlay


def test_known_peers_are_enough_after_a_restart() -> None:
    ring = OverlayRing()
    ring.grow(6)
    known = ring.nodes[3].node.overlay.known_peers()
    assert {peer.id for peer in known} == {place.id for place in ring.nodes} - {ring.nodes[3].id}
    remembered: list[PeerRef] = list(known)

    def started(place: Place) -> None:
        place.node.start([], remembered)

    ring.kill(ring.nodes[3])
    ring.run_for(30.0)
    ring.started = started  # type: ignore[method-assign]  # this one restart is told peers, not addresses
    ring.restart(ring.nodes[3])
    ring.run_for(0.1)
    ring.settle()


def test_a_quick_restart_before_anybody_noticed() -> None:
    def contacts(ring: OverlayRing, place: Place) -> list[Address]:
        return [] if place.index == 0 and place.boot_epoch == 1 else [address(ring.nodes[0]), address(ring.nodes[1])]

    ring = OverlayRing(contacts=contacts, check_every=10)
    ring.grow(24)
    for index in (0, 5, 7):
        ring.restart(ring.nodes[index], delay_s=0.2)
    ring.run_for(1.0)
    ring.settle()
    assert not ring.wrong_lookups(50)


def test_two_runs_of_one_seed_are_one_run() -> None:
    def run() -> tuple[float, int, int]:
        ring = OverlayRing(seed=11)
        ring.grow(24)
        ring.silence(ring.nodes[4])
        ring.settle()
        return ring.now, ring.network.frames_delivered, ring.network.frames_delivered_bytes

    assert run() == run()


def test_thirty_two_nodes_with_a_patient_configuration() -> None:
    ring = OverlayRing(seed=2, overlay=OverlayConfig(ack_timeout_min=1.0, settle=2.0))
    ring.grow(32, spacing_s=0.05)
    assert first_node(ring, ring.nodes[0]) == []


def restart_all(ring: OverlayRing, known: dict[int, tuple[PeerRef, ...]]) -> None:
    """Everybody dies at once and comes back with the peers that it remembers."""

    def started(place: Place) -> None:
        place.node.start(ring.contacts(ring, place), known[place.index])

    for place in ring.nodes:
        ring.kill(place)
    ring.started = started  # type: ignore[method-assign]  # the daemon passes remembered peers, this simulation does not
    for place in ring.nodes:
        ring.restart(place, delay_s=ring.rng.uniform(0.0, 1.0))
    ring.run_for(1.1)


@pytest.mark.parametrize("seed_count", [0, 1, 3])
def test_a_whole_cluster_restarts(seed_count: int) -> None:
    ring = OverlayRing(contacts=seeds(seed_count) if seed_count else first_node, seed=5)
    ring.grow(20)
    restart_all(ring, {place.index: place.node.overlay.known_peers() for place in ring.nodes})
    ring.settle(limit_s=60.0)


def test_a_sole_seed_with_a_memory_of_a_ring_that_is_gone_founds_a_new_one() -> None:
    ring = OverlayRing()
    ring.grow(5)
    known = {place.index: place.node.overlay.known_peers() for place in ring.nodes}
    restart_all(ring, known)
    for place in ring.nodes[1:]:
        ring.silence(place)
    ring.settle(limit_s=60.0)
    assert ring.nodes[0].node.overlay.estimated_ring_size() == 1.0


def test_a_seed_that_restarts_alone_joins_the_ring_that_it_remembers() -> None:
    ring = OverlayRing()
    ring.grow(5)
    known = ring.nodes[0].node.overlay.known_peers()

    def started(place: Place) -> None:
        place.node.start([], known)

    ring.kill(ring.nodes[0])
    ring.run_for(20.0)
    ring.started = started  # type: ignore[method-assign]  # as above
    ring.restart(ring.nodes[0])
    ring.run_for(0.1)
    ring.settle(limit_s=10.0)


def test_when_everybody_has_lost_their_place_the_ring_comes_back() -> None:
    ring = OverlayRing(seed=31)
    ring.grow(20, spacing_s=0.05)
    for place in ring.nodes:
        for peer in place.node.overlay.leaf_set().members():
            place.node.overlay.membership.remove(peer, "test", is_told=False)
        for peer in place.node.overlay.table_peers():
            place.node.overlay.membership.remove(peer, "test", is_told=False)
    assert not any(place.node.is_ready for place in ring.nodes)
    ring.settle(limit_s=300.0)
    assert not ring.wrong_lookups(20)


def served_while_it_comes_back(ring: OverlayRing, back: Place) -> int:
    """Milliseconds for which the root that starts anew serves its own key; asserts that its neighbours do not then."""
    ring.restart(back)
    order = sorted(ring.nodes, key=lambda place: place.id)
    place = order.index(back)
    near = [back, order[place - 1], order[(place + 1) % len(order)]]
    served = 0
    for _ in range(5000):
        ring.run_for(0.001)
        serving = {each.index for each in near if each.is_live and each.node.overlay.serves(back.id)}
        assert len(serving) <= 1
        served += back.index in serving
    return served


@pytest.mark.parametrize(("count", "seed"), [(2, 1), (2, 2), (12, 3), (40, 4)])
def test_only_one_serves_a_key_while_its_root_comes_back(count: int, seed: int) -> None:
    """The neighbours have removed the root and first ask whether it lives; it is ready before it has answered."""
    ring = OverlayRing(seed=seed)
    ring.grow(count)
    back = ring.nodes[1]
    ring.kill(back)
    ring.run_for(10.0)
    assert served_while_it_comes_back(ring, back) > 1000


@pytest.mark.parametrize(("count", "seed"), [(4, 1), (12, 3)])
def test_only_one_serves_a_key_while_a_root_comes_back_that_was_just_asked_in_vain(count: int, seed: int) -> None:
    """A message of its earlier life came late (seed 3032 of the swarm with measurement)."""
    ring = OverlayRing(seed=seed)
    ring.grow(count)
    back = ring.nodes[1]
    gone = back.peer
    ring.kill(back)
    ring.run_for(10.0)
    for other in ring.nodes:
        if other is not back:
            other.node.overlay.membership.revive(gone)
    ring.run_for(5.0)
    assert served_while_it_comes_back(ring, back) > 1000
