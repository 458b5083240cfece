"""A control link between two peers on real sockets: up, used, idle, lost, closed, dialled from both sides at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from peerd.api import Priority
from peerd.daemon.links.connection import PendingConnection
from peerd.daemon.links.dialling import connect
from peerd.daemon.tasks import spawn
from peerd.ids import NodeId
from peerd.linking.policy import WITNESS_MEMORY_S
from peerd.messages import PeerRef
from peerd.system.sockets import listening_socket
from peerd.telemetry.schema import LinkDown, LinkRefused, LinkUp
from tests.support.both_loops import both_loops
from tests.support.link_rig import FAST, Rig, linked, until

TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


def free_port() -> int:
    """A port that nobody listens on any more."""
    sock = listening_socket("127.0.0.1", 0)
    port: int = sock.getsockname()[1]
    sock.close()
    return port


@TLS
@both_loops
async def test_a_link_carries_frames_in_order_both_ways(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        for number in range(200):
            one.note(two.ref, number)
        await until(lambda: len(two.node.received) == 200)
        for number in range(200):
            two.note(one.ref, number)
        await until(lambda: len(one.node.received) == 200)
        assert two.node.numbers() == one.node.numbers() == list(range(200))
        assert {peer for peer, _ in two.node.received} == {one.ref}
        assert (len(one.links), len(two.links)) == (1, 1)
        assert [event.dialled for event in one.node.of(LinkUp)] == [True]
        assert [event.dialled for event in two.node.of(LinkUp)] == [False]


@TLS
@both_loops
async def test_an_address_is_dialled_without_knowing_who_answers(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        answers: list[PeerRef | None] = []
        one.links.dial("127.0.0.1", two.ref.port, answers.append)
        await until(lambda: answers)
        one.links.dial("127.0.0.1", two.ref.port, answers.append)
        one.links.dial("127.0.0.1", one.ref.port, answers.append)
        nobody = free_port()
        one.links.dial("127.0.0.1", nobody, answers.append)
        await until(lambda: len(answers) == 4)
        assert answers[:2] == [two.ref, two.ref]
        assert one.ref in answers[2:] and None in answers[2:], "one's own address is told apart from nobody's"
        assert list(one.links.dial_failures) == [f"127.0.0.1:{nobody}"]
        assert [event.reason for event in one.node.of(LinkRefused)] == ["refused"]
        assert len(one.links) == 1
        assert one.duplicates == []


@TLS
@both_loops
async def test_simultaneous_dials_end_in_one_link_and_lose_nothing(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        for number in range(50):
            one.note(two.ref, number)
            two.note(one.ref, number)
        await until(lambda: len(one.node.received) == len(two.node.received) == 50)
        assert one.node.numbers() == two.node.numbers() == list(range(50))
        await until(lambda: len(one.links) == len(two.links) == 1)
        assert one.links.links()[0].dialled
        assert not two.links.links()[0].dialled
        assert one.node.down == two.node.down == []


@TLS
@both_loops
async def test_simultaneous_dials_of_addresses_end_in_one_link(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        answers: list[PeerRef | None] = []
        one.links.dial("127.0.0.1", two.ref.port, answers.append)
        two.links.dial("127.0.0.1", one.ref.port, answers.append)
        await until(lambda: len(answers) == 2)
        one.note(two.ref, 1)
        two.note(one.ref, 2)
        assert set(answers) == {one.ref, two.ref}
        await until(lambda: two.node.numbers() == [1] and one.node.numbers() == [2])
        await until(lambda: len(one.links) == len(two.links) == 1)
        await asyncio.sleep(0.1)
        assert len(one.links.links()) == len(two.links.links()) == 1
        assert one.links.links()[0].dialled != two.links.links()[0].dialled
        assert one.node.down == two.node.down == []


@both_loops
async def test_many_rounds_of_simultaneous_dials_between_many_peers() -> None:
    async with Rig() as rig:
        peers = [rig.add(number) for number in range(1, 7)]
        for source in peers:
            for target in peers:
                if source is not target:
                    for number in range(5):
                        source.note(target.ref, number)
        await until(lambda: all(len(peer.node.received) == 25 for peer in peers))
        for source in peers:
            for target in peers:
                assert source is target or target.node.numbers(source.ref) == [0, 1, 2, 3, 4]
        await until(lambda: all(len(peer.links) == 5 for peer in peers))
        assert all(peer.node.down == [] for peer in peers)


@both_loops
async def test_a_refused_dial_tells_the_node_and_drops_what_was_queued() -> None:
    async with Rig() as rig:
        one = rig.add(1)
        nobody = PeerRef(NodeId(9), "127.0.0.1", free_port())
        one.note(nobody, 1)
        one.note(nobody, 2)
        await until(lambda: one.node.down)
        assert one.node.down == [(nobody, "refused")]
        assert one.counters.values["peerd_frames_dropped_total{reason=peer_down}"] == 2


@both_loops
async def test_repeated_dials_back_off_until_they_fail_at_once() -> None:
    async with Rig(settings=replace(FAST, backoff_min_s=0.01, backoff_wait_s=0.05)) as rig:
        one = rig.add(1)
        nobody = PeerRef(NodeId(9), "127.0.0.1", free_port())
        for number in range(8):
            one.note(nobody, number)
            await until(lambda: len(one.node.down) == number + 1)  # noqa: B023  # awaited within its round
        reasons = [reason for _, reason in one.node.down]
        assert reasons[:2] == ["refused", "refused"]
        assert "backoff" in reasons
        assert one.counters.values["peerd_dials_total{outcome=refused}"] < 8


@both_loops
async def test_a_crash_is_told_at_once_and_the_peer_comes_back_when_it_dials() -> None:
    async with Rig(settings=replace(FAST, backoff_reset_s=0.0)) as rig:
        one, two = rig.pair()
        await linked(one, two)
        await two.crash()
        await until(lambda: one.node.down)
        assert one.node.down == [(two.ref, "refused")]
        reborn = rig.add(2, epoch=2, port=two.ref.port)
        await linked(reborn, one)
        one.note(reborn.ref, 7)
        await until(lambda: reborn.node.numbers() == [7])


@both_loops
async def test_a_reset_link_is_dialled_again_without_telling_the_node() -> None:
    async with Rig(settings=replace(FAST, backoff_reset_s=0.0)) as rig:
        one, two = rig.pair()
        await linked(one, two)
        one.links.links()[0].abort("test")
        await until(lambda: len(one.links.links()) == 1 and len(one.node.of(LinkUp)) == 2)
        one.note(two.ref, 5)
        two.note(one.ref, 6)
        await until(lambda: two.node.numbers() == [5] and one.node.numbers() == [6])
        assert one.node.down == two.node.down == []


@both_loops
async def test_goodbye_is_no_failure() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        await linked(one, two)
        one.links.disconnect(two.ref, "no neighbour any more")
        await until(lambda: not len(one.links) and not len(two.links))
        await asyncio.sleep(0.05)
        assert one.node.down == two.node.down == []
        assert [event.reason for event in two.node.of(LinkDown)] == ["goodbye:disconnect"]
        two.note(one.ref, 3)
        await until(lambda: one.node.numbers() == [3])


@both_loops
async def test_a_stop_flushes_what_is_queued_and_tells_the_peer() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        await linked(one, two)
        for number in range(100):
            one.note(two.ref, number, bytes(1000))
        await one.stop()
        await until(lambda: two.node.down)
        assert two.node.numbers() == list(range(100))
        assert two.node.down == [(one.ref, "stopping")]
        assert len(one.links) == 0


@both_loops
async def test_an_idle_link_is_kept_alive_by_heartbeats() -> None:
    async with Rig(settings=replace(FAST, heartbeat_s=0.05, silence_s=0.3)) as rig:
        one, two = rig.pair()
        await linked(one, two)
        await asyncio.sleep(0.8)
        assert len(one.links.links()) == len(two.links.links()) == 1
        assert one.node.received == two.node.received == []
        assert one.node.of(LinkDown) == []


@both_loops
async def test_a_dial_given_up_while_its_connection_is_made_ends_quietly() -> None:
    """The loop has closed the transport by then; uvloop's does not show it, and raises when written to."""
    async with Rig() as rig:
        one, two = rig.pair()
        connection = PendingConnection(one.links, one.context, dialled=True, address=two.ref.address)
        dial = spawn(connect(two.ref.host, two.ref.port, one.context, connection), name="dial")
        connection_made = connection.connection_made

        def made_and_given_up(transport: asyncio.BaseTransport) -> None:
            connection_made(transport)
            dial.cancel()

        connection.connection_made = made_and_given_up  # type: ignore[method-assign]  # spied on
        with pytest.raises(asyncio.CancelledError):
            await dial
        assert connection.outcome.cancelled()


@both_loops
async def test_a_silent_link_is_closed() -> None:
    async with Rig() as rig:
        mute = rig.add(1, settings=replace(FAST, heartbeat_s=60.0))
        strict = rig.add(2, settings=replace(FAST, silence_s=0.1))
        await linked(mute, strict)
        await until(lambda: strict.node.of(LinkDown))
        assert strict.node.of(LinkDown)[0].reason == "silent"


@both_loops
async def test_a_link_that_nobody_uses_is_closed_with_goodbye() -> None:
    async with Rig(settings=replace(FAST, heartbeat_s=0.05, unused_s=0.15)) as rig:
        one, two = rig.pair()
        await linked(one, two)
        await until(lambda: not len(one.links) and not len(two.links))
        assert one.node.down == two.node.down == []
        assert {event.reason for peer in (one, two) for event in peer.node.of(LinkDown)} <= {"idle", "goodbye:idle"}


@both_loops
async def test_urgent_frames_overtake_and_background_frames_are_dropped_first() -> None:
    async with Rig(settings=replace(FAST, send_queue_bytes_max=200_000)) as rig:
        one, two = rig.pair()
        for number in range(10):
            one.note(two.ref, number, bytes(50_000), Priority.BACKGROUND)
        for number in range(100, 103):
            one.note(two.ref, number, bytes(50_000))
        one.note(two.ref, 200, b"", Priority.URGENT)
        await until(lambda: len(two.node.received) == 4)
        assert two.node.numbers() == [200, 100, 101, 102]
        assert one.counters.values["peerd_frames_dropped_total{reason=queue_full}"] == 10


@both_loops
async def test_a_peer_that_does_not_read_costs_bounded_memory_and_then_its_link() -> None:
    settings = replace(FAST, send_queue_bytes_max=500_000, write_deadline_s=0.3)
    async with Rig(settings=settings) as rig:
        one, two = rig.pair()
        await linked(one, two)
        transport = two.links.links()[0]._transport
        assert transport is not None
        transport.pause_reading()
        for number in range(400):
            one.note(two.ref, number, bytes(50_000))
            await asyncio.sleep(0)
        channel = one.links.policy.channels[two.ref.id]
        assert channel.outbox.size_bytes <= 500_000
        assert one.counters.values["peerd_frames_dropped_total{reason=queue_full}"] > 0
        await until(lambda: one.node.of(LinkDown))
        assert one.node.of(LinkDown)[0].reason == "write_deadline"


@both_loops
async def test_the_number_of_links_is_bounded() -> None:
    async with Rig() as rig:
        hub = rig.add(1, settings=replace(FAST, links_max=2))
        others = [rig.add(number) for number in (2, 3, 4)]
        for other in others[:2]:
            await linked(other, hub)
        others[2].note(hub.ref, 1)
        await until(lambda: others[2].node.down)
        assert others[2].node.down == [(hub.ref, "links_max")]
        assert len(hub.links) == 2


@both_loops
async def test_a_newcomer_takes_the_place_of_the_link_unused_for_longest() -> None:
    async with Rig(settings=replace(FAST, heartbeat_s=0.05)) as rig:
        hub = rig.add(1, settings=replace(FAST, heartbeat_s=0.05, links_max=2, evictable_s=0.1))
        unused, used, newcomer, wanted = (rig.add(number) for number in (2, 3, 4, 5))
        await linked(unused, hub)
        await linked(used, hub)
        await asyncio.sleep(0.15)
        used.note(hub.ref, 1)
        await until(lambda: hub.node.numbers(used.ref) == [1])
        newcomer.note(hub.ref, 2)
        await until(lambda: hub.node.numbers(newcomer.ref) == [2])
        await until(lambda: unused.node.of(LinkDown) and len(hub.links) == 2)
        assert unused.node.of(LinkDown)[0].reason == "goodbye:links_max"
        assert (unused.node.down, used.node.of(LinkDown)) == ([], [])
        hub.note(wanted.ref, 3)  # what this node itself wants it gets
        await until(lambda: wanted.node.numbers() == [3] and len(hub.links) == 2)
        assert used.node.of(LinkDown) and not newcomer.node.of(LinkDown)


@both_loops
async def test_links_streams_and_handshakes_together_are_bounded() -> None:
    async with Rig(settings=replace(FAST, sockets_max=2)) as rig:
        hub, first, second, third = (rig.add(number) for number in (1, 2, 3, 4))
        for other in (first, second):
            await linked(other, hub)
        third.note(hub.ref, 1)
        await until(lambda: third.node.down)
        assert hub.counters.values["peerd_accepts_throttled_total{reason=sockets_max}"] == 1
        assert len(hub.links) == 2


@both_loops
async def test_of_two_processes_with_one_identity_the_newer_one_lives() -> None:
    async with Rig(settings=replace(FAST, dial_timeout_s=1.0)) as rig:
        third = rig.add(5)
        old, new = rig.add(1, epoch=10), rig.add(1, epoch=11)
        await linked(old, third)
        await linked(new, third)
        await until(lambda: old.duplicates)
        assert new.duplicates == []
        third.node.received.clear()
        old.links.policy.channels.clear()
        old.links.policy.links.clear()
        old.note(third.ref, 1)
        await until(lambda: len(old.duplicates) > 1)
        assert third.node.received == []


@both_loops
async def test_two_processes_with_one_identity_that_meet_know_which_ends() -> None:
    async with Rig() as rig:
        old, new = rig.add(1, epoch=10), rig.add(1, epoch=11)
        answers: list[PeerRef | None] = []
        new.links.dial("127.0.0.1", old.ref.port, answers.append)
        await until(lambda: answers == [None])
        assert (len(old.duplicates), len(new.duplicates)) == (1, 0)
        old.links.dial("127.0.0.1", new.ref.port, answers.append)
        await until(lambda: answers == [None, None])
        assert (len(old.duplicates), len(new.duplicates)) == (2, 0)


@both_loops
async def test_two_peers_months_apart_do_not_end_a_node() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        await linked(one, two)
        late = [0.0]
        clock = one.context.now
        one.context.now = lambda: clock() + late[0]
        one.links.duplicate_claimed("says a liar", NodeId(21))
        late[0] = WITNESS_MEMORY_S
        one.links.duplicate_claimed("says another one", NodeId(22))
        assert one.duplicates == []
        one.links.duplicate_claimed("says a third one, a moment later", NodeId(23))
        assert len(one.duplicates) == 1
