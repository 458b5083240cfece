"""What a plugin is told of its sends, in the simulator; for daemons see tests/cluster/test_host_sends_daemon.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from peerd import limits
from peerd.api import Plugin, SendRefusal
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.node.sends import UNKNOWN_TOLD_INTERVAL_S
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from peerd.wire.unknown import UnknownMessage
from tests.support.talker import Ask, FutureTalker, OldTalker, Say, Talker

SLOW = NetworkConfig(link_bytes_per_s=1e6, jitter=0.0)
PIECE_BYTES = 50_000


def pair(kinds: Sequence[type[Plugin] | None], network: NetworkConfig | None = None) -> Simulation:
    """A settled ring with one kind of plugin, or none, on each node."""

    def plugins(index: int) -> list[Plugin]:
        kind = kinds[index]
        return [] if kind is None else [kind()]

    return ring(len(kinds), seed=5, plugins=plugins, network=network)


def talker(place: Place) -> Talker:
    plugin = place.node.plugins["talker"]
    assert isinstance(plugin, Talker)
    return plugin


class Pushy(Talker):
    """Asks for an exception that nobody gets."""

    is_exempt_from_rate_limit = True


def test_no_plugin_can_exempt_its_messages_from_the_rate_limit() -> None:
    simulation = pair([Pushy, Pushy])
    one, two = simulation.nodes
    talker(one).host.send(two.peer, Say(0))
    simulation.run_for(1.0)
    for number in range(2 * limits.PEER_MESSAGES_BURST):
        talker(one).host.send(two.peer, Say(number))
    simulation.misbehaviour_is_failure = False
    simulation.run_for(1.0)
    assert len(talker(two).heard) <= limits.PEER_MESSAGES_BURST + limits.PEER_MESSAGES_PER_SECOND
    assert two.driver.policy.scores.points(one.id, simulation.now) > 0


def unknown_sent(place: Place) -> int:
    return place.node.traffic[UnknownMessage.TYPE_ID][0]


def test_a_slow_peer_is_seen_and_writable_is_told_once() -> None:
    simulation = pair([Talker, Talker], SLOW)
    one, two = simulation.nodes
    host = talker(one).host
    assert host.queued_bytes(two.peer) == 0
    count = 1 + 2 * limits.SEND_HIGH_WATER_BYTES // PIECE_BYTES
    for number in range(count):
        host.send(two.peer, Say(number, bytes(PIECE_BYTES)))
    assert host.queued_bytes(two.peer) > limits.SEND_HIGH_WATER_BYTES
    assert talker(one).writables == [], "never within the call"
    simulation.run_until(lambda: bool(talker(one).writables), limit_s=10.0, poll_s=0.01)
    low_bytes = limits.SEND_HIGH_WATER_BYTES // limits.SEND_LOW_WATER_SHARE
    assert 0 < host.queued_bytes(two.peer) <= low_bytes
    simulation.run_for(10.0)
    assert talker(one).writables == [two.peer] and talker(two).writables == []
    assert talker(two).heard == list(range(count)) and host.queued_bytes(two.peer) == 0


def test_a_peer_that_stands_still_fills_the_queue_and_refusals_are_told_with_their_number() -> None:
    simulation = pair([Talker, Talker])
    one, two = simulation.nodes
    simulation.pause(two)
    host, count = talker(one).host, 2 * limits.SEND_QUEUE_BYTES_MAX // PIECE_BYTES
    for number in range(count):
        host.send(two.peer, Say(number, bytes(PIECE_BYTES)))
    assert limits.SEND_QUEUE_BYTES_MAX - PIECE_BYTES - 20 <= host.queued_bytes(two.peer) <= limits.SEND_QUEUE_BYTES_MAX
    assert talker(one).refused == [], "never within the call"
    simulation.run_for(0.1)
    [(peer, kind, reason, refused)] = talker(one).refused
    assert (peer, kind, reason) == (two.peer, Say, SendRefusal.QUEUE_FULL)
    simulation.resume(two)
    simulation.run_for(2.0)
    assert refused == count - len(talker(two).heard) > 0
    assert talker(one).writables == [two.peer]


def test_a_request_that_does_not_fit_the_queue_fails_at_once() -> None:
    simulation = pair([Talker, Talker])
    one, two = simulation.nodes
    simulation.pause(two)
    for number in range(2 * limits.SEND_QUEUE_BYTES_MAX // PIECE_BYTES):
        talker(one).host.send(two.peer, Say(number, bytes(PIECE_BYTES)))
    queued_bytes = 0
    while queued_bytes < (queued_bytes := talker(one).host.queued_bytes(two.peer)):
        talker(one).host.send(two.peer, Say(0))  # less than a request
    talker(one).ask(two.peer)
    assert talker(one).timeouts == []
    simulation.run_for(0.0)
    assert talker(one).timeouts == [simulation.now] and talker(one).replies == []


def test_what_waits_for_a_peer_that_is_gone_is_refused_and_the_queue_counts_as_writable() -> None:
    simulation = pair([Talker, Talker, Talker])
    one, two = simulation.nodes[:2]
    simulation.silence(two)
    one.driver.disconnect(two.peer, "test")
    host = talker(one).host
    for number in range(60):
        host.send(two.peer, Say(number, bytes(PIECE_BYTES)))
    assert host.queued_bytes(two.peer) > limits.SEND_HIGH_WATER_BYTES
    simulation.run_for(60.0)
    assert (two.peer, Say, SendRefusal.PEER_DOWN, 60) in talker(one).refused
    assert talker(one).writables == [two.peer] and host.queued_bytes(two.peer) == 0


def test_a_peer_whose_process_ends_is_told_to_be_down_although_nothing_was_sent_to_it() -> None:
    simulation = pair([Talker, Talker, Talker])
    one, two, three = simulation.nodes
    talker(one).host.send(two.peer, Say(1))
    simulation.run_for(1.0)
    assert talker(one).downs == []
    simulation.kill(two)
    simulation.run_for(1.0)
    assert set(talker(one).downs) == set(talker(three).downs) == {two.peer} and talker(one).refused == []


def test_an_address_where_nobody_is_refuses() -> None:
    simulation = pair([Talker, Talker])
    stranger = PeerRef(NodeId(9), "10.200.0.1", 1)
    talker(simulation.nodes[0]).host.send(stranger, Say(1))
    talker(simulation.nodes[0]).ask(stranger)
    simulation.run_for(10.0)
    assert talker(simulation.nodes[0]).refused == [(stranger, Say, SendRefusal.PEER_DOWN, 1)]
    assert set(talker(simulation.nodes[0]).downs) == {stranger}
    assert len(talker(simulation.nodes[0]).timeouts) == 1


def test_a_request_that_the_peer_does_not_know_fails_after_one_round_trip() -> None:
    simulation = pair([Talker, None])
    one, two = simulation.nodes
    begun = simulation.now
    talker(one).ask(two.peer)
    simulation.run_for(5.0)
    rtt_s = simulation.network.rtt_s(one.port, two.port)
    assert talker(one).timeouts == [pytest.approx(begun + rtt_s, rel=0.2)]
    assert talker(one).replies == [] and talker(one).refused == []


def test_an_unknown_one_way_message_is_told_now_and_then() -> None:
    simulation = pair([Talker, None])
    one, two = simulation.nodes
    for _ in range(200):
        talker(one).host.send(two.peer, Say(1))
        simulation.run_for(0.01)
    assert talker(one).refused == [(two.peer, Say, SendRefusal.UNKNOWN_MESSAGE, 1)]
    assert unknown_sent(two) == 1
    simulation.run_for(UNKNOWN_TOLD_INTERVAL_S)
    talker(one).host.send(two.peer, Say(1))
    simulation.run_for(1.0)
    assert unknown_sent(two) == len(talker(one).refused) == 2


def test_nothing_that_is_said_about_unknown_messages_is_answered() -> None:
    """A peer that claims not to know what was never sent, or has no plugin for it either, starts no exchange."""
    simulation = pair([Talker, None])
    one, two = simulation.nodes
    for type_id in (Say.TYPE_ID, Ask.TYPE_ID, UnknownMessage.TYPE_ID, 0x0010, 0x7FFF):
        one.node.send(two.peer, UnknownMessage(type_id))
        two.node.send(one.peer, UnknownMessage(type_id))
    simulation.run_for(5.0)
    assert unknown_sent(one) == unknown_sent(two) == 5, "those of the test, and no more"
    assert [(kind, reason) for _, kind, reason, _ in talker(one).refused] == [
        (Say, SendRefusal.UNKNOWN_MESSAGE),
        (Ask, SendRefusal.UNKNOWN_MESSAGE),
    ]


def test_a_plugin_that_is_out_of_service_says_so() -> None:
    simulation = pair([Talker, Talker])
    one, two = simulation.nodes
    two.node.disable_plugin("talker")
    talker(one).ask(two.peer)
    simulation.run_for(2.0)
    assert len(talker(one).timeouts) == 1


def test_the_highest_common_version_of_a_plugin() -> None:
    simulation = pair([Talker, OldTalker, FutureTalker, None])
    versions = [talker(simulation.nodes[0]).host.peer_version(place.peer) for place in simulation.nodes]
    assert versions == [3, 2, None, None]
    assert talker(simulation.nodes[1]).host.peer_version(simulation.nodes[0].peer) == 2
    stranger = PeerRef(NodeId(9), "10.200.0.1", 1)
    assert talker(simulation.nodes[0]).host.peer_version(stranger) is None, "no link"
    simulation.nodes[0].driver.links[simulation.nodes[1].peer.id].plugins = {}
    assert talker(simulation.nodes[0]).host.peer_version(simulation.nodes[1].peer) is None, "1, which is too old"
    assert simulation.nodes[0].node.hosts["records"].peer_version(simulation.nodes[1].peer) == 1
