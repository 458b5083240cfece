"""The model network, link by link, with nodes that only note what happens."""

from __future__ import annotations

import pytest

from peerd.api import Priority
from peerd.ids import NodeId
from peerd.limits import LINK_UNUSED_S
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, PeerRef, message
from peerd.sim import driver
from peerd.sim.faults import Impairment, Scope
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import RETRANSMIT_S, SEND_TIMEOUT_S, NetworkConfig, State
from peerd.sim.world import SimulationFailure
from tests.support.trivial_world import EXACT, LATENCY_S, OPENING_S, RTT_S, TrivialWorld, about, trivial_world


@message(0x7F10, bytes_max=32_768)
class Words(Message):
    """A message that carries some text."""

    text: str


CONNECT_TIMEOUT_S = LinkSettings().dial_timeout_s


def say(world: TrivialWorld, source: int, target: int, text: str = "x") -> None:
    """One message between two nodes, by index."""
    world.nodes[source].node.send(world.nodes[target].peer, Words(text))


def connected(count: int = 2, network: NetworkConfig = EXACT, links: LinkSettings | None = None) -> TrivialWorld:
    """Node 0 has a link to each of the others."""
    world = trivial_world(count, network=network, links=links)
    for target in range(1, count):
        say(world, 0, target, "hello")
    world.run_for(1.0)
    for place in world.nodes:
        place.node.messages.clear()
    return world


def test_the_first_message_pays_for_tcp_tls_and_hello() -> None:
    world = trivial_world(2)
    say(world, 0, 1, "first")
    say(world, 0, 1, "second")
    world.run_for(1.0)
    assert [round(time, 9) for time, _, _ in world.nodes[1].node.messages] == [about(7 * LATENCY_S)] * 2
    assert world.nodes[1].node.texts() == ["first", "second"]
    say(world, 0, 1, "third")
    world.run_for(1.0)
    assert world.nodes[1].node.messages[2][0] == pytest.approx(1.0 + LATENCY_S)


def test_what_waits_for_a_handshake_is_bounded() -> None:
    world = trivial_world(2, links=LinkSettings(send_queue_bytes_max=2500))
    for text in ("a" * 992, "b" * 992, "c" * 992, "d"):
        say(world, 0, 1, text)
    world.run_for(1.0)
    assert [text[0] for text in world.nodes[1].node.texts()] == ["a", "b", "d"]
    assert world.network.dropped == {"queue_full": 1}


def test_one_link_serves_both_directions() -> None:
    world = connected()
    say(world, 1, 0)
    world.run_for(LATENCY_S * 1.01)
    assert world.nodes[0].node.texts() == ["x"]


def test_simultaneous_dials_end_in_one_link() -> None:
    world = trivial_world(2)
    say(world, 0, 1, "a")
    say(world, 1, 0, "b")
    world.run_for(1.0)
    assert world.nodes[0].node.texts() == ["b"]
    assert world.nodes[1].node.texts() == ["a"]
    (forth,), (back,) = (tuple(place.driver.links.values()) for place in world.nodes)
    assert forth.back() is back and back.back() is forth


def test_order_is_kept_whatever_the_jitter() -> None:
    world = connected(network=NetworkConfig(jitter=1.0))
    texts = [str(number) for number in range(200)]
    for number, text in enumerate(texts):
        world.after(number * 1e-4, lambda text=text: say(world, 0, 1, text))  # type: ignore[misc]  # bound early
    world.run_for(1.0)
    assert world.nodes[1].node.texts() == texts


def test_order_is_not_kept_when_told_so() -> None:
    world = connected(network=NetworkConfig(jitter=1.0, is_fifo=False))
    texts = [str(number) for number in range(200)]
    for text in texts:
        say(world, 0, 1, text)
    world.run_for(1.0)
    assert world.nodes[1].node.texts() != texts
    assert sorted(world.nodes[1].node.texts()) == sorted(texts)


def test_bandwidth_is_a_queue_in_each_direction() -> None:
    config = NetworkConfig(up_bytes_per_s=10_000, down_bytes_per_s=10_000, jitter=0.0)
    world = connected(3, network=config)
    size = 8 + 4 + 992  # frame header, msgpack array and string headers, text
    say(world, 0, 1, "a" * 992)
    say(world, 0, 2, "b" * 992)
    begun = world.now
    world.run_for(5.0)
    (first, _, _), (second, _, _) = world.nodes[1].node.messages[0], world.nodes[2].node.messages[0]
    assert first - begun == pytest.approx(size / 10_000 + LATENCY_S)
    assert second - begun == pytest.approx(2 * size / 10_000 + LATENCY_S), "behind the first in the uplink"


def test_many_senders_share_the_downlink_of_one() -> None:
    config = NetworkConfig(up_bytes_per_s=None, down_bytes_per_s=10_000, jitter=0.0)
    world = connected(4, network=config)
    for source in (1, 2, 3):
        say(world, source, 0, "c" * 992)
    begun = world.now
    world.run_for(5.0)
    arrivals = [time - begun for time, _, _ in world.nodes[0].node.messages]
    assert arrivals == pytest.approx([LATENCY_S + number * 0.1004 for number in (1, 2, 3)], abs=1e-3)


def test_short_message_does_not_overtake_one_that_gets_in_at_that_instant() -> None:
    def arrivals(third_at: float | None) -> list[tuple[float, str]]:
        world = connected(2, network=NetworkConfig(up_bytes_per_s=None, down_bytes_per_s=1e6, jitter=0.0))
        say(world, 0, 1, "a" * 992)
        say(world, 0, 1, "b" * 992)
        if third_at is not None:
            world.after(third_at - world.now, lambda: say(world, 0, 1, "c"))
        world.run_for(1.0)
        return [(time, str(getattr(words, "text", ""))[0]) for time, _, words in world.nodes[1].node.messages]

    second_in = arrivals(None)[1][0]
    assert [text for _, text in arrivals(second_in - LATENCY_S)] == ["a", "b", "c"]


def test_loss_drops_and_counts() -> None:
    world = connected(network=NetworkConfig(loss=0.3, jitter=0.0))
    for _ in range(1000):
        say(world, 0, 1)
    world.run_for(5.0)
    arrived = len(world.nodes[1].node.messages)
    assert 600 < arrived < 800
    assert world.network.dropped["loss"] >= 1000 - arrived


def test_loss_may_mean_retransmission_instead() -> None:
    world = connected(network=NetworkConfig(loss=0.3, jitter=0.0, loss_mode="retransmit"))
    texts = [str(number) for number in range(300)]
    for text in texts:
        say(world, 0, 1, text)
    begun = world.now
    world.run_for(30.0)
    assert world.nodes[1].node.texts() == texts
    assert world.nodes[1].node.messages[-1][0] - begun >= LATENCY_S + RETRANSMIT_S


def test_duplicates_arrive_twice() -> None:
    world = connected(network=NetworkConfig(duplication=0.5, jitter=0.0))
    for _ in range(400):
        say(world, 0, 1)
    world.run_for(5.0)
    assert 500 < len(world.nodes[1].node.messages) < 700


def test_killed_peer_resets_its_links_and_refuses_new_ones() -> None:
    world = connected(3)
    world.kill(world.nodes[1])
    begun = world.now
    world.run_for(2 * RTT_S)
    down = (about(begun + LATENCY_S + RTT_S), world.nodes[1].peer, "refused")
    assert world.nodes[0].node.downs == [down], "the reset, and the redial that is refused"
    say(world, 2, 1)
    begun = world.now
    world.run_for(1.0)
    assert world.nodes[2].node.downs == [(about(begun + RTT_S), world.nodes[1].peer, "refused")]


def test_what_a_killed_peer_had_sent_comes_before_the_reset() -> None:
    world = connected(2, network=NetworkConfig(up_bytes_per_s=10_000, jitter=0.0))
    say(world, 1, 0, "d" * 2000)
    world.kill(world.nodes[1])
    world.run_for(1.0)
    (arrived, _, _), (down, _, reason) = world.nodes[0].node.messages[0], world.nodes[0].node.downs[0]
    assert arrived + RTT_S <= down and reason == "refused", "no redial before the last message"


def test_silent_death_is_noticed_only_by_who_sends() -> None:
    world = connected(3)
    world.silence(world.nodes[1])
    world.run_for(60.0)
    assert world.nodes[0].node.downs == []
    say(world, 0, 1)
    world.run_for(SEND_TIMEOUT_S + CONNECT_TIMEOUT_S - 0.1)
    assert world.nodes[0].node.downs == []
    world.run_for(0.2)
    assert [reason for _, _, reason in world.nodes[0].node.downs] == ["timeout"]
    say(world, 2, 1)  # no link yet: the connect times out instead
    begun = world.now
    world.run_for(60.0)
    assert world.nodes[2].node.downs == [(about(begun + CONNECT_TIMEOUT_S), world.nodes[1].peer, "timeout")]


def test_send_timeout_is_the_same_at_any_time() -> None:
    """The sum of the time and of the timeout is rounded, now up, now down."""
    for number in range(40):
        world = connected(2)
        world.run_for(0.1771 * number)
        world.silence(world.nodes[1])
        begun = world.now
        say(world, 0, 1)
        world.run_for(60.0)
        found_at = begun + SEND_TIMEOUT_S + CONNECT_TIMEOUT_S
        assert world.nodes[0].node.downs == [(about(found_at), world.nodes[1].peer, "timeout")]


def test_send_timeout_counts_from_the_message_that_is_not_acknowledged() -> None:
    world = connected(2)
    begun = world.now
    for _ in range(2):  # the check for the first cut, which heals in time, is still due when the second one begins
        world.partition([world.nodes[0]])
        say(world, 0, 1)
        world.run_for(5.0)
        if world.now < begun + 10.0:
            world.heal()
            say(world, 0, 1)
            world.run_for(5.0)
    world.run_for(60.0)
    found_at = begun + 10.0 + SEND_TIMEOUT_S + CONNECT_TIMEOUT_S
    assert world.nodes[0].node.downs == [(about(found_at), world.nodes[1].peer, "timeout")]


def test_restart_after_silent_death_resets_old_links() -> None:
    world = connected(2)
    world.silence(world.nodes[1])
    world.restart(world.nodes[1])
    world.run_for(1.0)
    assert world.nodes[1].boot_epoch == 2
    say(world, 0, 1, "to the old one")
    world.run_for(1.0)
    say(world, 0, 1, "to the new one")
    world.run_for(1.0)
    assert world.nodes[1].node.texts() == ["to the new one"]
    assert world.nodes[0].node.downs == [], "the redial found the new one, so nobody was told"


def test_nothing_of_an_old_incarnation_reaches_the_new_one() -> None:
    world = connected(2)
    say(world, 0, 1, "in flight")
    fired: list[str] = []
    world.nodes[1].driver.call_later(0.5, lambda: fired.append("timer"))
    world.nodes[1].driver.call_soon(lambda: fired.append("soon"))
    world.restart(world.nodes[1])
    world.run_for(2.0)
    assert world.nodes[1].node.texts() == [] and fired == []
    assert world.network.dropped == {"target_down": 1}


@pytest.mark.parametrize("mode", ["drop", "retransmit"])
def test_cut_that_heals_in_time(mode: str) -> None:
    world = connected(2, network=EXACT.model_copy(update={"loss_mode": mode}))
    world.partition([world.nodes[0]], [world.nodes[1]])
    say(world, 0, 1, "during")
    world.run_for(5.0)
    assert world.nodes[1].node.texts() == []
    world.heal()
    say(world, 0, 1, "after")
    world.run_for(60.0)
    assert world.nodes[1].node.texts() == (["after"] if mode == "drop" else ["during", "after"])
    assert world.nodes[0].node.downs == [] and not world.network.stalled
    world.partition([world.nodes[0]], [world.nodes[1]])
    say(world, 0, 1, "in vain")
    world.run_for(60.0)
    assert len(world.nodes[0].node.downs) == 1 and not world.network.stalled, "closed links are forgotten"


def test_cut_that_lasts_ends_the_link_and_refuses_new_ones() -> None:
    world = connected(3)
    world.partition([world.nodes[0]], [world.nodes[1], world.nodes[2]])
    say(world, 0, 1)
    begun = world.now
    world.run_for(60.0)
    found_at = begun + SEND_TIMEOUT_S + CONNECT_TIMEOUT_S
    assert world.nodes[0].node.downs == [(about(found_at), world.nodes[1].peer, "timeout")]
    say(world, 0, 1)
    world.run_for(CONNECT_TIMEOUT_S + 0.1)
    assert len(world.nodes[0].node.downs) == 2
    say(world, 1, 2, "same side")
    world.heal()
    say(world, 0, 1, "healed")
    world.run_for(1.0)
    assert world.nodes[2].node.texts() == ["same side"]
    assert world.nodes[1].node.texts() == ["healed"]


def test_one_way_cut_delivers_but_never_acknowledges() -> None:
    world = connected(2)
    world.network.cut(1, 0)
    say(world, 0, 1, "gets there")
    say(world, 1, 0, "does not")
    world.run_for(SEND_TIMEOUT_S + CONNECT_TIMEOUT_S + 1.0)
    assert world.nodes[1].node.texts() == ["gets there"]
    assert world.nodes[0].node.texts() == []
    assert [reason for place in world.nodes for _, _, reason in place.node.downs] == ["timeout", "timeout"]


def test_clog_delays_and_keeps_order() -> None:
    world = connected(2)
    world.network.clog(0, 1, 3.0)
    begun = world.now
    for text in "abc":
        say(world, 0, 1, text)
    world.run_for(10.0)
    assert world.nodes[1].node.texts() == ["a", "b", "c"]
    assert world.nodes[1].node.messages[0][0] == pytest.approx(begun + 3.0 + LATENCY_S)


@pytest.mark.parametrize("is_lossy", [False, True])
def test_clog_holds_up_messages_that_need_not_keep_their_order(is_lossy: bool) -> None:
    world = connected(2, EXACT.model_copy(update={"is_fifo": False}))
    if is_lossy:
        world.network.impair(Impairment(duplication=0.5), Scope())
    world.network.clog(0, 1, 3.0)
    begun = world.now
    for text in "abc":
        say(world, 0, 1, text)
    world.run_for(10.0)
    assert {"a", "b", "c"} == set(world.nodes[1].node.texts())
    assert min(time for time, _, _ in world.nodes[1].node.messages) == pytest.approx(begun + 3.0 + LATENCY_S)


def test_a_shorter_clog_does_not_end_a_longer_one() -> None:
    world = connected(3)
    begun = world.now
    world.network.clog(0, 1, 3.0)
    world.network.clog(0, 1, 1.0)
    world.network.clog(0, 2, 1.0)
    say(world, 0, 1)
    world.run_for(5.0)
    assert world.nodes[1].node.messages[0][0] == pytest.approx(begun + 3.0 + LATENCY_S)
    ports = world.network.ports
    world.network.clog(2, 0, 1.0)
    assert world.network.clogged_until(ports[0], ports[1]) == 0.0, "those that are over are forgotten"


@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_link_in_use_is_not_closed_as_idle(is_fifo: bool) -> None:
    world = connected(2, EXACT.model_copy(update={"is_fifo": is_fifo}))
    node = world.nodes[0]
    before = node.driver.links[world.nodes[1].id]
    for number in range(20):
        world.after(100.0 * number, lambda: say(world, 0, 1))
    world.run_for(19 * 100.0)
    assert node.driver.links[world.nodes[1].id] is before
    world.run_for(2 * LINK_UNUSED_S)
    assert not node.driver.links


def test_a_link_counts_as_used_when_it_opens() -> None:
    world = connected(3)
    node, peer = world.nodes[0], world.nodes[1].peer
    node.driver.disconnect(peer, "not needed")
    for number in range(30):
        world.after(60.0 * number, lambda: say(world, 0, 2))
    world.run_for(LINK_UNUSED_S - 10.0)
    node.driver.dial(peer.host, peer.port, lambda answer: None)
    world.run_for(300.0)
    assert set(node.driver.links) == {world.nodes[1].id, world.nodes[2].id}


def test_paused_node_handles_everything_once_resumed() -> None:
    world = connected(2)
    fired: list[float] = []
    node = world.nodes[1]
    node.driver.call_later(1.0, lambda: fired.append(world.now))
    cancelled = node.driver.call_later(1.0, lambda: fired.append(-1.0))
    node.driver.call_later(0.9, cancelled.cancel)
    world.pause(node)
    assert node.state is State.PAUSED and node not in world.live_nodes()
    say(world, 0, 1, "a")
    say(world, 0, 1, "b")
    world.run_for(5.0)
    assert node.node.messages == [] and fired == []
    begun = world.now
    world.resume(node)
    world.run_for(1.0)
    assert node.node.texts() == ["a", "b"]
    assert fired == [begun], "the timer that another one cancelled first never fired"
    assert world.nodes[0].node.downs == []
    world.pause(node)
    say(world, 0, 1, "c")
    world.run_for(1.0)
    world.resume(node)
    world.run_for(1.0)
    assert node.node.texts() == ["a", "b", "c"], "nothing twice"


def test_what_waited_for_a_paused_node_comes_before_what_arrives_as_it_is_resumed() -> None:
    world = connected(2)
    node, resumed_at = world.nodes[1], world.now + 5.0
    world.pause(node)
    world.after(5.0, lambda: world.resume(node))
    say(world, 0, 1, "a")
    say(world, 0, 1, "b")
    world.after(5.0 - LATENCY_S, lambda: say(world, 0, 1, "c"))
    world.run_for(10.0)
    assert node.node.texts() == ["a", "b", "c"]
    assert [time for time, _, _ in node.node.messages] == [resumed_at] * 3, "an instant, or this tests nothing"


def test_full_backlog_costs_a_paused_node_messages_but_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "BACKLOG_MAX", 3)
    world = connected(2)
    node = world.nodes[1]
    fired: list[float] = []
    node.driver.call_later(1.0, lambda: fired.append(world.now))
    world.pause(node)
    for number in range(5):
        say(world, 0, 1, str(number))
    world.run_for(5.0)
    world.resume(node)
    world.run_for(1.0)
    assert node.node.texts() == ["0", "1", "2"] and world.network.dropped == {"backlog_full": 2}
    assert len(fired) == 1


def test_dial_finds_who_is_there() -> None:
    world = trivial_world(3)
    found: list[tuple[float, PeerRef | None]] = []
    peer = world.nodes[1].peer
    world.nodes[0].driver.dial(peer.host, peer.port, lambda answer: found.append((world.now, answer)))
    world.run_for(1.0)
    assert found == [(about(OPENING_S), peer)]
    say(world, 0, 1)
    world.run_for(LATENCY_S * 1.01)
    assert world.nodes[1].node.texts() == ["x"], "the dial made a link"

    world.kill(world.nodes[1])
    world.silence(world.nodes[2])
    world.run_for(1.0)
    found.clear()
    begun = world.now
    own = world.nodes[0].peer
    for host in (world.nodes[1].peer.host, world.nodes[2].peer.host, own.host, "nowhere"):
        world.nodes[0].driver.dial(host, peer.port, lambda answer: found.append((world.now - begun, answer)))
    world.run_for(10.0)
    assert [answer for _, answer in found if answer is not None] == [own] and len(found) == 4
    assert found[-1][0] == pytest.approx(CONNECT_TIMEOUT_S, rel=0.01), "silence takes the longest"


def test_message_to_a_wrong_id_or_address_is_refused() -> None:
    world = trivial_world(2)
    stranger = PeerRef(world.nodes[0].id, world.nodes[1].peer.host, world.nodes[1].peer.port)
    world.nodes[0].node.send(stranger, Words("x"))
    world.run_for(5.0)
    assert [(peer, reason) for _, peer, reason in world.nodes[0].node.downs] == [(stranger, "wrong_callee")]


def test_disconnect_tells_nobody_and_the_next_message_dials_again() -> None:
    world = connected(2)
    world.nodes[0].driver.disconnect(world.nodes[1].peer, "not needed")
    begun = world.now
    say(world, 1, 0, "under way when the goodbye arrives")
    world.run_for(RTT_S)
    assert world.nodes[0].node.messages[0][0] == pytest.approx(begun + LATENCY_S)
    assert not any(place.driver.links for place in world.nodes)
    begun = world.now
    say(world, 1, 0, "again")
    world.run_for(1.0)
    assert world.nodes[0].node.messages[1][0] == pytest.approx(begun + OPENING_S + LATENCY_S)
    assert world.nodes[0].node.downs == world.nodes[1].node.downs == []


def test_what_a_handler_raises_says_where_and_how_to_repeat() -> None:
    world = trivial_world(2, seed=42)

    def burst() -> None:
        raise ZeroDivisionError("boom")

    world.nodes[1].driver.call_later(1.5, burst)
    with pytest.raises(SimulationFailure, match=r"ZeroDivisionError: boom .*node 1 .*t=1\.5.*seed 42") as caught:
        world.run_for(2.0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.time_s == 1.5 and caught.value.seed == 42


def test_run_until_gives_up_loudly() -> None:
    world = trivial_world(1)
    assert world.run_until(lambda: world.now >= 0.5, limit_s=2.0) == pytest.approx(0.5, abs=0.11)
    with pytest.raises(SimulationFailure, match="does not hold after 1"):
        world.run_until(lambda: False, limit_s=1.0)


def test_latency_model_is_asked_for_each_pair() -> None:
    class Uneven(ConstantLatency):
        def latency_s(self, source: int, target: int) -> float:
            return 0.1 * (source + target)

    world = trivial_world(3, latency=Uneven())
    say(world, 0, 1)
    say(world, 1, 2)
    world.run_for(5.0)
    assert world.nodes[1].node.messages[0][0] == pytest.approx(7 * 0.1)
    assert world.nodes[2].node.messages[0][0] == pytest.approx(7 * 0.3)


def test_links_are_bounded_and_the_idle_one_makes_room() -> None:
    world = connected(4, links=LinkSettings(links_max=3))  # node 0 has a link to each of the others, the limit
    say(world, 0, 1)
    say(world, 3, 0)
    world.run_for(1.0)
    world.add_node()
    world.run_for(0.0)
    say(world, 0, 4, "new")
    world.run_for(1.0)
    assert world.nodes[4].node.texts() == ["new"]
    linked = set(world.nodes[0].driver.links)
    assert linked == {world.nodes[index].id for index in (1, 3, 4)}, "2 was idle for longest"
    assert not world.nodes[2].driver.links and not world.nodes[2].node.downs


def test_garbage_on_the_wire_costs_the_link_and_nothing_else() -> None:
    world = connected(2)
    world.misbehaviour_is_failure = False
    world.nodes[0].driver.send(world.nodes[1].peer, (Words.TYPE_ID, 0, b"\xc1"), Priority.NORMAL)
    world.run_for(1.0)
    assert [(said_by, about) for _, said_by, about, _ in world.misbehaviours] == [
        (world.nodes[1].peer, world.nodes[0].peer)
    ]
    assert [reason for _, _, reason in world.nodes[1].node.downs] == ["misbehaved"]
    say(world, 0, 1, "sorry")
    world.run_for(1.0)
    assert world.nodes[1].node.texts() == ["sorry"], "the sender saw a reset, and dialled again"


def test_conditions_may_change_during_a_run() -> None:
    world = connected(2)
    world.network.configure(loss=0.9)
    for _ in range(200):
        say(world, 0, 1)
    world.run_for(1.0)
    assert len(world.nodes[1].node.messages) < 60
    world.network.configure(loss=0.0)
    world.nodes[1].node.messages.clear()
    for _ in range(200):
        say(world, 0, 1)
    world.run_for(1.0)
    assert len(world.nodes[1].node.messages) == 200
    with pytest.raises(ValueError, match="loss"):
        world.network.configure(loss=2.0)
    world.network.configure(jitter=1.0)
    say(world, 0, 1)
    begun = world.now
    world.run_for(1.0)
    assert world.nodes[1].node.messages[-1][0] > begun + LATENCY_S * 1.01


def test_what_an_acceptor_says_before_it_ends_reaches_the_dialler_first() -> None:
    """The acceptor's end of the link is up half a round trip before the dialler's, and may be gone again by then."""
    world = trivial_world(2, network=EXACT)
    say(world, 0, 1)
    world.run_for(OPENING_S - LATENCY_S / 2)
    say(world, 1, 0, "leaving")
    world.nodes[1].driver.leave(1.0, lambda: world.kill(world.nodes[1]))
    assert not world.nodes[1].driver.is_alive and not world.nodes[0].driver.is_linked(world.nodes[1].peer)
    world.run_for(1.0)
    assert world.nodes[0].node.texts() == ["leaving"]
    assert [reason for _, _, reason in world.nodes[0].node.downs] == ["stopping"]


def test_of_two_processes_with_one_identity_the_newer_one_lives() -> None:
    world = trivial_world(1)
    twins = [world.add_node(NodeId(7)) for _ in range(2)]
    world.run_for(0.0)
    world.restart(twins[1])
    world.run_for(0.0)
    for twin in twins:
        twin.node.send(world.nodes[0].peer, Words("it is me"))
        world.run_for(1.0)
    assert twins[0].is_live, "one witness is believed when the others have had the time to answer"
    world.run_for(LinkSettings().dial_timeout_s + 1.0)
    assert twins[0].state is State.STOPPED and twins[1].is_live
    (link,) = world.nodes[0].driver.links.values()
    assert link.target_port is twins[1].port
