"""Half-open links: the other side is silent, nothing is closed, and the kernel has no reason to complain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from peerd.api import Priority
from peerd.daemon import loops
from peerd.daemon.links.links import Links
from peerd.daemon.links.settings import monotonic_s
from peerd.daemon.service import Daemon
from peerd.daemon.tasks import running_tasks
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.system import sockets
from peerd.system.sockets import listening_socket
from peerd.telemetry.schema import LinkDown
from peerd.wire.codec import encode
from tests.support.both_loops import both_loops
from tests.support.link_rig import FAST, Note, Peer, Rig, linked, until
from tests.support.relay import Relay
from tests.support.site import Site, is_complete

DEAD_WITHIN_S = 15.0
PATIENCE_S = 40.0
"""For machines that are busy with other things: what is asserted is what happens, not how fast."""
SHORT = replace(FAST, heartbeat_s=0.1, silence_s=0.5, write_deadline_s=0.5, dial_timeout_s=0.3, backoff_max_s=0.2)


def queued_bytes(links: Links) -> int:
    return sum(channel.outbox.size_bytes for channel in links.policy.channels.values())


def advertise(peer: Peer, relay: Relay) -> None:
    """Have everybody dial the peer through the relay."""
    peer.ref = PeerRef(peer.ref.id, peer.ref.host, relay.port)
    peer.context.local = replace(peer.context.local, node=peer.ref)


def test_the_time_limits_add_up_to_a_dead_link_in_time() -> None:
    """Heard at the latest when the cable was cut, then silence, then the next sweep; the kernel is no slower."""
    settings = LinkSettings()
    assert settings.silence_s + settings.sweep_s < DEAD_WITHIN_S
    assert settings.write_deadline_s + settings.sweep_s < DEAD_WITHIN_S
    assert settings.silence_s > 2 * (settings.heartbeat_s + settings.sweep_s), "a lost heartbeat or two is no death"
    assert sockets.USER_TIMEOUT_MS < 1000 * DEAD_WITHIN_S
    probing_s = sockets.KEEPALIVE_INTERVAL_S * sockets.KEEPALIVE_PROBES
    assert sockets.KEEPALIVE_IDLE_S + probing_s < DEAD_WITHIN_S


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@both_loops
async def test_a_half_open_link_ends_and_frees_what_waited(is_busy: bool) -> None:
    async with Rig(settings=SHORT) as rig:
        one, two = rig.pair()
        async with Relay(lambda: two.listener.address) as relay:
            advertise(two, relay)
            one.note(two.ref, 0)
            await until(lambda: two.node.numbers() == [0])
            one.listener.close()  # the relay is the only way between the two
            relay.quiet()
            while is_busy and queued_bytes(one.links) < 1_000_000:
                one.note(two.ref, 1, bytes(50_000), Priority.BACKGROUND)
                await asyncio.sleep(0)
            await until(lambda: not len(one.links) and not len(two.links), PATIENCE_S)
            assert {event.reason for event in one.node.of(LinkDown)} <= {"silent", "write_deadline"}
            assert [event.reason for event in two.node.of(LinkDown)] == ["silent"]
            await until(lambda: one.node.down, PATIENCE_S)
            assert queued_bytes(one.links) == queued_bytes(two.links) == 0
            await until(lambda: not running_tasks(), PATIENCE_S)
            relay.resume()
            await asyncio.sleep(SHORT.backoff_max_s)
            two.node.received.clear()
            one.note(two.ref, 7)
            await until(lambda: 7 in two.node.numbers(), PATIENCE_S)


@both_loops
async def test_a_process_that_stood_still_does_not_take_its_links_for_dead() -> None:
    """After a pause the time limits are long over, and the peer's heartbeats are still in the kernel."""
    async with Rig(settings=replace(FAST, heartbeat_s=0.05, silence_s=0.4)) as rig:
        one, two = rig.pair()
        await linked(one, two)
        late = [0.0]
        clock = one.context.now
        one.context.now = lambda: clock() + late[0]
        for _ in range(5):
            late[0] += 60.0  # what the clock shows after a SIGSTOP or a long pause of the machine
            one.links._sweep()
            await asyncio.sleep(0.05)
        assert one.node.of(LinkDown) == two.node.of(LinkDown) == []
        assert one.links.is_linked(two.ref)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_two_daemons_notice_a_cut_and_link_again_when_it_heals(
    is_busy: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The daemons run with all settings at their defaults, and every byte between them goes through the relays."""
    found_s = loops.run(cut_and_heal(Site(tmp_path), is_busy))
    print(f"{'busy' if is_busy else 'idle'} link: both sides knew after {found_s:.1f} s")
    record_property("declared_dead_s", round(found_s, 1))


def is_linked_again(one: Daemon, two: Daemon) -> bool:
    """Asks for a link as any frame would: after the back-off it is made."""
    if not one.links.is_linked(two.peer):
        one.links.send(two.peer, encode(Note(2)), Priority.NORMAL)
    return one.links.is_linked(two.peer) and two.links.is_linked(one.peer)


async def cut_and_heal(site: Site, is_busy: bool) -> float:
    """Two daemons, a cut, the cut healed; returns the seconds from the cut to the end of the last half of the link."""
    ports = [listening_socket("127.0.0.1", 0) for _ in range(2)]
    async with Relay(ports[0].getsockname) as to_one, Relay(ports[1].getsockname) as to_two:
        one_config = site.config("1", node__advertise=to_one.address, node__profile="lan")
        seeds = [to_one.address]
        two_config = site.config("2", bootstrap=seeds, node__advertise=to_two.address, node__profile="lan")
        one = Daemon(one_config, plugins=[], listening=ports[0])
        two = Daemon(two_config, plugins=[], listening=ports[1])
        async with one, two:
            await until(lambda: is_complete(one, two), PATIENCE_S)
            tasks = {task.get_name() for task in running_tasks()}
            cut_at = monotonic_s()
            for relay in (to_one, to_two):
                relay.quiet()
            while is_busy and queued_bytes(one.links) < 1_000_000:
                one.links.send(two.peer, encode(Note(1, None, bytes(50_000))), Priority.BACKGROUND)
                await asyncio.sleep(0)
            await until(lambda: not len(one.links) and not len(two.links), PATIENCE_S)
            found_s = monotonic_s() - cut_at
            await until(lambda: not is_complete(one, two), PATIENCE_S)
            await until(lambda: queued_bytes(one.links) == 0, PATIENCE_S)
            for relay in (to_one, to_two):
                relay.resume()
            await until(lambda: is_linked_again(one, two), PATIENCE_S)
            await until(lambda: {task.get_name() for task in running_tasks()} <= tasks, PATIENCE_S)
    assert running_tasks() == []
    return found_s
