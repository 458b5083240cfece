"""Bulk streams of the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from peerd.driver import Stream
from peerd.errors import ProtocolError
from peerd.limits import KIB, MIB
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import CONNECT_RETRY_S, SEND_TIMEOUT_S, NetworkConfig
from peerd.sim.streams import HIGH_WATER_BYTES, QUEUE_S, WINDOW_BYTES
from peerd.sim.topology.sites import SiteLatency
from peerd.sim.world import SimulationFailure
from tests.support.trivial_world import (
    EXACT,
    LATENCY_S,
    OPENING_S,
    RTT_S,
    NotingHandler,
    NotingNode,
    TrivialWorld,
    about,
    trivial_world,
)

CONNECT_TIMEOUT_S = LinkSettings().dial_timeout_s
LIMITED = NetworkConfig(up_bytes_per_s=1 * MIB, down_bytes_per_s=1 * MIB, jitter=0.0)


def open_pair(network: NetworkConfig = EXACT, count: int = 2) -> tuple[TrivialWorld, NotingHandler, NotingHandler]:
    """A world whose node 0 has an open stream to node 1, and both handlers."""
    world = trivial_world(count, network=network)
    here = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, here)
    world.run_for(1.2 * OPENING_S)
    return world, here, world.nodes[1].node.accepted[0]


def test_opening_costs_tcp_and_tls_and_who_is_dialled_waits_for_hello() -> None:
    _, here, there = open_pair()
    assert there.opened_at == pytest.approx(5 * LATENCY_S)
    assert here.opened_at == pytest.approx(4 * LATENCY_S)
    assert there.open_stream.peer.id != here.open_stream.peer.id


def test_bytes_arrive_whole_and_in_order_both_ways() -> None:
    world, here, there = open_pair(NetworkConfig(jitter=1.0, loss=0.2))
    generator = random.Random(1)
    sent_here, sent_there = generator.randbytes(700_001), generator.randbytes(300_003)
    for start in range(0, len(sent_here), 100_000):
        here.open_stream.write(memoryview(sent_here)[start : start + 100_000])
    there.open_stream.write(sent_there)
    world.run_for(60.0)
    assert there.received == sent_here and here.received == sent_there
    assert world.network.stream_bytes == 1_000_004


def test_padding_costs_time_but_no_memory() -> None:
    world, here, there = open_pair(LIMITED)
    begun = world.now
    here.open_stream.write(b"head")
    here.open_stream.write_padding(4 * MIB)
    here.open_stream.write(b"tail")
    world.run_for(10.0)
    assert there.padding_bytes == 4 * MIB and there.received == b"headtail"
    assert there.last_at - begun == pytest.approx(4.0 + LATENCY_S, rel=0.01)


def test_both_directions_at_once_take_no_longer() -> None:
    world, here, there = open_pair(LIMITED)
    begun = world.now
    here.open_stream.write_padding(2 * MIB)
    there.open_stream.write_padding(2 * MIB)
    world.run_for(10.0)
    assert here.last_at - begun == pytest.approx(2.0, rel=0.05)
    assert there.last_at - begun == pytest.approx(2.0, rel=0.05)


def test_two_streams_share_an_uplink() -> None:
    world = trivial_world(3, network=LIMITED)
    handlers = [NotingHandler(world.nodes[0].driver) for _ in range(2)]
    for handler, target in zip(handlers, world.nodes[1:], strict=True):
        world.nodes[0].driver.open_stream(target.peer, handler)
    world.run_for(1.0)
    for handler in handlers:
        handler.open_stream.write_padding(1 * MIB)
    begun = world.now
    world.run_for(10.0)
    for place in world.nodes[1:]:
        assert place.node.accepted[0].last_at - begun == pytest.approx(2.0, rel=0.1)


def test_high_and_low_water() -> None:
    world, here, _ = open_pair(LIMITED)
    stream = here.open_stream
    stream.write_padding(HIGH_WATER_BYTES - 1)
    assert stream.is_writable
    stream.write_padding(1)
    assert not stream.is_writable and here.writable_calls == 0
    world.run_for(0.7 * HIGH_WATER_BYTES / MIB)
    assert not stream.is_writable and here.writable_calls == 0, "over the low-water mark"
    world.run_for(0.15 * HIGH_WATER_BYTES / MIB)
    assert stream.is_writable and here.writable_calls == 1
    world.run_for(5.0)
    assert here.writable_calls == 1


def test_paused_reader_holds_the_writer_back() -> None:
    world, here, there = open_pair()
    world.pause(world.nodes[1])
    here.open_stream.write_padding(WINDOW_BYTES + 2 * HIGH_WATER_BYTES)
    world.run_for(30.0)
    assert not here.open_stream.is_writable and there.padding_bytes == 0
    world.resume(world.nodes[1])
    world.run_for(5.0)
    assert there.padding_bytes == WINDOW_BYTES + 2 * HIGH_WATER_BYTES and here.open_stream.is_writable


def test_on_a_slow_path_little_waits_in_front_of_others() -> None:
    """A fast sender, a slow receiver: what another stream sends comes soon, and the path is never idle."""
    rate = 64 * KIB
    world, _, _ = open_pair(NetworkConfig(jitter=0.0, piece_bytes=8 * KIB), count=3)
    world.nodes[1].port.set_rates(rate, rate)
    slow = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, slow)
    world.run_for(1.0)
    slow.open_stream.write_padding(512 * KIB)
    begun = world.now
    world.run_for(2.0)
    other = NotingHandler(world.nodes[2].driver)
    world.nodes[2].driver.open_stream(world.nodes[1].peer, other)
    world.run_for(OPENING_S)
    other.open_stream.write(b"small")
    asked = world.now
    world.run_for(20.0)
    reader, late = world.nodes[1].node.accepted[1:]
    assert late.received == b"small" and late.last_at - asked <= QUEUE_S + RTT_S + 2 * 8 * KIB / rate
    assert reader.padding_bytes == 512 * KIB and reader.last_at - begun == pytest.approx(8.0, rel=0.05)


def test_end_of_stream_stays_behind_what_a_paused_node_has_not_read() -> None:
    world, here, there = open_pair()
    world.pause(world.nodes[1])
    here.open_stream.write(b"x" * 300 * KIB)
    here.open_stream.close()
    world.run_for(5.0)
    assert not there.received and not there.closings
    world.resume(world.nodes[1])
    world.run_for(1.0)
    assert len(there.received) == 300 * KIB and [reason for _, reason in there.closings] == [None]


def test_close_flushes_and_ends_cleanly_on_both_sides() -> None:
    world, here, there = open_pair(LIMITED)
    here.open_stream.write(b"x" * 300 * KIB)
    here.open_stream.close()
    here.open_stream.write(b"more")
    assert not here.open_stream.is_writable
    world.run_for(5.0)
    assert len(there.received) == 300 * KIB
    assert [reason for _, reason in here.closings] == [None]
    assert [reason for _, reason in there.closings] == [None]
    there.open_stream.write(b"too late")
    world.run_for(5.0)
    assert len(here.closings) == len(there.closings) == 1 and not here.received


def test_both_ends_may_close_with_more_to_send_than_fits_the_window() -> None:
    world, here, there = open_pair()
    for handler in (here, there):
        handler.open_stream.write_padding(2 * WINDOW_BYTES)
        handler.open_stream.close()
    world.run_for(60.0)
    assert [reason for _, reason in here.closings] == [None] == [reason for _, reason in there.closings]
    assert here.padding_bytes == there.padding_bytes == 0, "nothing is read any more"
    assert world.pending == 0 and not any(place.driver.streams for place in world.nodes)


@pytest.mark.parametrize("up_bytes_per_s", [None, 2 * MIB])
def test_end_of_stream_stays_behind_what_waits_for_the_downlink(up_bytes_per_s: float | None) -> None:
    world, here, there = open_pair(LIMITED.model_copy(update={"up_bytes_per_s": up_bytes_per_s}))
    begun = world.now
    here.open_stream.write(b"x" * 300 * KIB)
    here.open_stream.close()
    world.run_for(5.0)
    assert len(there.received) == 300 * KIB
    assert there.closings == [(there.last_at, None)]
    assert there.last_at - begun == pytest.approx(300 / 1024 + LATENCY_S, rel=0.15)


def test_end_of_stream_comes_after_what_is_read_at_the_same_instant() -> None:
    """Who confirms a swap and closes does so when as many bytes have come as it sent: both were due at once."""
    world, here, there = open_pair(LIMITED.model_copy(update={"up_bytes_per_s": 2 * MIB}))
    world.run_for(1.0 - world.now)  # so that no time is rounded
    here.open_stream.write(b"x" * KIB)
    world.after(KIB / MIB, here.open_stream.close)
    world.run_for(5.0)
    assert len(there.received) == KIB
    assert [reason for _, reason in there.closings] == [None]
    assert there.last_at == there.closings[0][0], "they were not due at the same instant"


def test_abort_resets_the_other_side_and_drops_what_was_not_sent() -> None:
    world, here, there = open_pair(LIMITED)
    here.open_stream.write_padding(10 * MIB)
    world.run_for(1.0)
    here.open_stream.abort()
    assert here.closings == [], "never from within the call"
    world.run_for(5.0)
    assert [reason for _, reason in here.closings] == ["aborted"]
    assert [reason for _, reason in there.closings] == ["reset"]
    assert there.padding_bytes < 2 * MIB


def test_abort_behind_a_cut_is_found_out_late() -> None:
    world, here, there = open_pair()
    world.network.cut(0, 1)
    here.open_stream.abort()
    begun = world.now
    world.run_for(60.0)
    assert here.closings == [(begun, "aborted")]
    assert there.closings == [(about(begun + SEND_TIMEOUT_S), "timeout")]


def test_what_a_killed_peer_had_sent_comes_before_the_reset() -> None:
    world, here, there = open_pair(LIMITED)
    here.open_stream.write(b"x" * 64 * KIB)
    world.kill(world.nodes[0])
    world.run_for(5.0)
    assert len(there.received) == 64 * KIB and [reason for _, reason in there.closings] == ["reset"]


def test_killed_peer_resets_the_stream() -> None:
    world, here, there = open_pair()
    world.kill(world.nodes[1])
    world.run_for(1.0)
    assert [reason for _, reason in here.closings] == ["reset"]
    assert there.closings == [], "a dead node is told nothing"


def test_silent_peer_ends_the_stream_after_the_send_timeout() -> None:
    world, here, _ = open_pair()
    world.silence(world.nodes[1])
    begun = world.now
    world.run_for(60.0)
    assert here.closings == [(about(begun + SEND_TIMEOUT_S), "timeout")]


def test_short_cut_only_delays() -> None:
    world, here, there = open_pair()
    world.partition([world.nodes[0]])
    here.open_stream.write(b"patience")
    world.run_for(5.0)
    assert not there.received
    world.heal()
    world.run_for(5.0)
    assert there.received == b"patience" and here.closings == []


def test_short_cuts_do_not_add_up() -> None:
    world, here, there = open_pair()
    for _ in range(3):
        world.partition([world.nodes[0]])
        here.open_stream.write(b"more ")
        world.run_for(SEND_TIMEOUT_S - 2.0)
        world.heal()
        world.run_for(2.0)
    assert there.received == b"more more more " and here.closings == []


def test_nothing_is_sent_without_a_way_back() -> None:
    world, here, there = open_pair()
    world.network.cut(1, 0)
    here.open_stream.write(b"nobody would acknowledge this")
    begun = world.now
    world.run_for(60.0)
    assert here.closings == [(about(begun + SEND_TIMEOUT_S), "timeout")] and not there.received


def test_jitter_is_for_pieces_too() -> None:
    world, here, there = open_pair(EXACT.model_copy(update={"jitter": 1.0}))
    delays = []
    for _ in range(30):
        here.open_stream.write(b"x")
        begun = world.now
        world.run_for(1.0)
        delays.append(there.last_at - begun)
    assert LATENCY_S <= min(delays) < 1.2 * LATENCY_S and 1.8 * LATENCY_S < max(delays) <= 2 * LATENCY_S


def test_loss_on_a_long_path_costs_its_round_trip() -> None:
    world = trivial_world(2, network=EXACT.model_copy(update={"loss": 0.3}), latency=ConstantLatency(0.3))
    here = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, here)
    world.run_for(10.0)
    (there,), delays = world.nodes[1].node.accepted, set()
    for _ in range(30):
        here.open_stream.write(b"x")
        begun = world.now
        world.run_for(20.0)
        delays.add(round(there.last_at - begun, 6))
    assert {0.3, 0.9} <= delays and all(round((delay - 0.3) / 0.6, 6).is_integer() for delay in delays)


def test_long_cut_ends_both_ends() -> None:
    world, here, there = open_pair()
    world.partition([world.nodes[0]])
    here.open_stream.write(b"patience")
    world.run_for(60.0)
    assert [reason for _, reason in here.closings] == ["timeout"]
    assert [reason for _, reason in there.closings] == ["timeout"]


@pytest.mark.parametrize("heals_after_s", [2.5, 100.0])
def test_end_of_stream_does_not_pass_a_cut(heals_after_s: float) -> None:
    world, here, there = open_pair()
    world.network.cut(0, 1)
    here.open_stream.close()
    begun = world.now
    world.run_for(heals_after_s)
    assert here.closings == [(begun, None)], "its kernel does the rest"
    assert not there.closings or heals_after_s > SEND_TIMEOUT_S
    world.heal()
    world.run_for(60.0)
    expected = (3.0 + LATENCY_S, None) if heals_after_s < SEND_TIMEOUT_S else (SEND_TIMEOUT_S, "timeout")
    assert there.closings == [(about(begun + expected[0]), expected[1])]


def test_power_loss_takes_an_end_of_stream_that_is_still_to_be_sent_with_it() -> None:
    world, here, there = open_pair()
    world.network.cut(0, 1)
    here.open_stream.close()
    begun = world.now
    world.run_for(3.0)
    world.silence(world.nodes[0])
    world.heal()
    world.run_for(60.0)
    assert there.closings == [(about(begun + SEND_TIMEOUT_S), "timeout")]


@pytest.mark.parametrize("up_bytes_per_s", [None, 10 * KIB])
@pytest.mark.parametrize("size", [0, 64 * KIB])
def test_clogged_path_carries_nothing_and_adds_to_nothing_that_takes_longer(
    up_bytes_per_s: float | None, size: int
) -> None:
    world, here, there = open_pair(EXACT.model_copy(update={"up_bytes_per_s": up_bytes_per_s}))
    begun = world.now
    world.network.clog(0, 1, 5.0)
    here.open_stream.write_padding(size)
    here.open_stream.close()
    world.run_for(60.0)
    took_s = max(5.0, size / up_bytes_per_s if up_bytes_per_s else 0.0) + LATENCY_S
    assert there.closings == [(about(begun + took_s), None)] and there.padding_bytes == size


def test_open_that_fails_says_so_once() -> None:
    world = trivial_world(3)
    world.kill(world.nodes[1])
    world.silence(world.nodes[2])
    handlers = [NotingHandler(world.nodes[0].driver) for _ in range(5)]
    place, stranger = world.nodes[0].peer, world.nodes[1].id
    wrong = [place, PeerRef(stranger, place.host, place.port), PeerRef(stranger, "nowhere", 1)]
    for handler, peer in zip(handlers, [*(place.peer for place in world.nodes[1:]), *wrong], strict=True):
        world.nodes[0].driver.open_stream(peer, handler)
    world.run_for(30.0)
    expected = [(about(OPENING_S), "self"), (about(2 * RTT_S), "wrong_callee"), (CONNECT_RETRY_S, "refused")]
    assert [handler.closings for handler in handlers[2:]] == [[each] for each in expected]
    assert handlers[0].closings == [(about(RTT_S), "refused")]
    assert handlers[1].closings == [(about(CONNECT_TIMEOUT_S), "timeout")]
    to_itself = handlers[2]  # of which only Hello tells
    assert [handler for handler in handlers if handler.opened_at is not None] == [to_itself]


def test_who_gives_a_stream_up_before_hello_is_answered_hears_of_its_end_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = NotingHandler.opened

    def abandon(self: NotingHandler, stream: Stream) -> None:
        opened(self, stream)
        stream.write(b"never mind")
        stream.abort()

    world = trivial_world(2)
    here = NotingHandler(world.nodes[0].driver)
    monkeypatch.setattr(here, "opened", lambda stream: abandon(here, stream))
    world.nodes[0].driver.open_stream(world.nodes[1].peer, here)
    world.run_for(1.0)
    assert here.closings == [(about(4 * LATENCY_S), "aborted")]
    assert not world.nodes[0].driver.streams and not world.nodes[1].driver.streams
    assert all(there.closings for there in world.nodes[1].node.accepted)


def test_what_is_written_with_hello_waits_for_it_when_hello_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds of which some lose Hello, and others what is behind it: the first byte is never there before the stream."""
    waits = []
    for seed in range(40):
        world = trivial_world(2, seed=seed, network=NetworkConfig(jitter=0.0, loss=0.2))
        here = NotingHandler(world.nodes[0].driver)
        opened = here.opened

        def greet(stream: Stream, opened: Callable[[Stream], None] = opened) -> None:
            opened(stream)
            stream.write(b"first")

        monkeypatch.setattr(here, "opened", greet)
        world.nodes[0].driver.open_stream(world.nodes[1].peer, here)
        world.run_for(30.0)
        (there,) = world.nodes[1].node.accepted
        assert there.received == b"first" and there.opened_at is not None and there.last_at is not None
        waits.append(there.last_at - there.opened_at)
    assert min(waits) == 0.0 < max(waits)


@pytest.mark.parametrize("is_cut", [False, True])
def test_open_waits_for_who_may_still_answer(is_cut: bool) -> None:
    world = trivial_world(2)
    if is_cut:
        world.partition([world.nodes[0]])
    else:
        world.pause(world.nodes[1])
    here = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, here)
    world.run_for(2.5 * CONNECT_RETRY_S)
    assert here.opened_at is None and not world.nodes[1].node.accepted
    world.heal()
    world.resume(world.nodes[1])
    world.run_for(1.0)
    assert here.opened_at == about(3 * CONNECT_RETRY_S + 4 * LATENCY_S)


def test_open_ends_with_the_process_that_wants_it() -> None:
    world = trivial_world(2)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, NotingHandler(world.nodes[0].driver))
    world.run_for(RTT_S)
    world.kill(world.nodes[0])
    world.run_for(1.0)
    assert not world.nodes[1].node.accepted and not world.nodes[1].driver.streams


def test_protocol_error_aborts_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: NotingHandler, size_bytes: int) -> None:
        raise ProtocolError("bad_magic", "not ours")

    world, here, there = open_pair()
    world.misbehaviour_is_failure = False
    monkeypatch.setattr(NotingHandler, "buffer_updated", refuse)
    here.open_stream.write(b"garbage")
    world.run_for(1.0)
    assert [reason for _, reason in there.closings] == ["bad_magic"]
    assert [reason for _, reason in here.closings] == ["reset"]
    assert [text for _, _, _, text in world.misbehaviours] == ["bad_magic: not ours"]


def test_misbehaviour_of_an_honest_node_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: NotingHandler, size_bytes: int) -> None:
        raise ProtocolError("bad_magic", "not ours")

    world, here, _ = open_pair()
    monkeypatch.setattr(NotingHandler, "buffer_updated", refuse)
    here.open_stream.write(b"garbage")
    with pytest.raises(SimulationFailure, match="misbehaved: bad_magic"):
        world.run_for(1.0)


@pytest.mark.parametrize(("there_s", "back_s"), [(LATENCY_S, LATENCY_S), (0.3, 0.01), (0.01, 0.3)])
def test_stream_may_be_used_from_opened_on_either_side(
    monkeypatch: pytest.MonkeyPatch, there_s: float, back_s: float
) -> None:
    opened = NotingHandler.opened

    def greet(self: NotingHandler, stream: Stream) -> None:
        opened(self, stream)
        stream.write(b"hello")

    monkeypatch.setattr(NotingHandler, "opened", greet)
    world = trivial_world(2, latency=SiteLatency([[0.0, there_s], [back_s, 0.0]]))
    here = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, here)
    world.run_for(2.0)
    assert isinstance(world.nodes[1].node, NotingNode)
    (there,) = world.nodes[1].node.accepted
    assert there.opened_at == about(3 * there_s + 2 * back_s)
    assert here.opened_at is not None and here.opened_at == about(2 * (there_s + back_s))
    assert here.received == there.received == b"hello"
    assert here.last_at >= here.opened_at and there.last_at == about(here.opened_at + there_s)
