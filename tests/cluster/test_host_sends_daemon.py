"""What a plugin is told of its sends, in daemons; tests/sim/test_host_sends.py has the simulator's side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from peerd import limits
from peerd.api import Plugin, SendRefusal
from peerd.daemon.service import Daemon
from peerd.ids import NodeId
from peerd.messages import PeerRef
from tests.support.both_loops import both_loops
from tests.support.link_rig import until
from tests.support.site import Site, is_complete
from tests.support.talker import OldTalker, Say, Talker

PIECE_BYTES = 50_000


@asynccontextmanager
async def pair(directory: Path, one: Plugin, two: Plugin | None) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Start two daemons, and wait until both have joined."""
    site = Site(directory)
    async with Daemon(site.config("a"), plugins=[one]) as first:
        config = site.config("b", bootstrap=[first.peer.address])
        async with Daemon(config, plugins=[] if two is None else [two]) as second:
            await until(lambda: is_complete(first, second), 15.0)
            yield first, second


@both_loops
async def test_a_slow_peer_is_seen_and_writable_is_told_once(tmp_path: Path) -> None:
    one, two = Talker(), Talker()
    async with pair(tmp_path, one, two) as (first, second):
        link = second.links.link_to(first.peer.id)
        assert link is not None and link._transport is not None
        link._transport.pause_reading()
        count = 2 * limits.SEND_QUEUE_BYTES_MAX // PIECE_BYTES
        for number in range(count):
            one.host.send(second.peer, Say(number, bytes(PIECE_BYTES)))
        queued_bytes = one.host.queued_bytes(second.peer)
        assert limits.SEND_QUEUE_BYTES_MAX - PIECE_BYTES - 20 <= queued_bytes <= limits.SEND_QUEUE_BYTES_MAX
        assert one.refused == [] and one.writables == [], "never within the call"
        await until(lambda: one.refused)
        [(peer, kind, reason, refused)] = one.refused
        assert (peer.id, kind, reason) == (second.peer.id, Say, SendRefusal.QUEUE_FULL)
        link._transport.resume_reading()
        await until(lambda: len(two.heard) == count - refused)
        await until(lambda: one.writables)
        assert [each.id for each in one.writables] == [second.peer.id]
        # None of these messages waits any more; a heartbeat of the node's own may, at any moment.
        assert one.host.queued_bytes(second.peer) < PIECE_BYTES


@both_loops
async def test_an_address_where_nobody_is_refuses(tmp_path: Path) -> None:
    one = Talker()
    async with pair(tmp_path, one, Talker()):
        stranger = PeerRef(NodeId(9), "127.0.0.1", 1)
        one.host.send(stranger, Say(1))
        one.ask(stranger)
        await until(lambda: one.refused and one.timeouts)
        assert one.refused == [(stranger, Say, SendRefusal.PEER_DOWN, 1)]
        assert set(one.downs) == {stranger}
        one.host.send(stranger, Say(2))  # while the next dial waits, or at once: told all the same
        await until(lambda: len(one.refused) == 2)


@both_loops
async def test_messages_that_the_peer_does_not_know_are_told(tmp_path: Path) -> None:
    one = Talker()
    async with pair(tmp_path, one, None) as (_, second):
        one.ask(second.peer)
        one.host.send(second.peer, Say(1))
        one.host.send(second.peer, Say(2))
        await until(lambda: one.timeouts and one.refused)
        assert one.replies == []
        assert one.refused == [(second.peer, Say, SendRefusal.UNKNOWN_MESSAGE, 1)]


@both_loops
async def test_the_version_of_a_plugin_is_that_of_the_handshake(tmp_path: Path) -> None:
    one, two = Talker(), OldTalker()
    async with pair(tmp_path, one, two) as (first, second):
        assert one.host.peer_version(second.peer) == two.host.peer_version(first.peer) == 2
        assert one.host.peer_version(PeerRef(NodeId(9), "127.0.0.1", 1)) is None
        assert first.node.hosts["records"].peer_version(second.peer) == 1
