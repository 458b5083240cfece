"""A member that names invented nodes at somebody else's address: the daemon hardly ever goes there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from peerd.api import Priority
from peerd.ids import NodeId
from peerd.linking.dial_limits import DIALS_PER_ADDRESS_BURST, DIALS_PER_ADDRESS_PER_SECOND
from peerd.messages import PeerRef
from peerd.overlay.messages import LeafSetProbe
from peerd.telemetry.schema import LinkRefused
from peerd.wire.codec import encode
from tests.support.daemon_process import running
from tests.support.link_rig import CLUSTER, Peer, Rig, until

pytestmark = pytest.mark.cluster

PROBES = 60


class Victim:
    """A server that is no part of any ring; it counts who connects, and hangs up."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count."""
        self.connections += 1
        writer.close()


def lie(liar: Peer, daemon: PeerRef, number: int, port: int) -> None:
    """Eight invented neighbours at a time, ever nearer to the daemon, all at one address."""
    invented = tuple(
        PeerRef(NodeId((daemon.id + 1 + 8 * (PROBES - number) + each) % 2**128), "127.0.0.1", port) for each in range(8)
    )
    message = LeafSetProbe(is_ready=True, smaller=(), larger=invented, candidates=(), failed=())
    liar.links.send(daemon, encode(message), Priority.NORMAL)


async def test_a_member_cannot_make_a_daemon_dial_an_outsider_again_and_again(tmp_path: Path) -> None:
    victim = Victim()
    server = await asyncio.start_server(victim.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Rig() as rig:
        with running(tmp_path / "daemon", f"node.cluster={CLUSTER}") as process:
            await asyncio.to_thread(process.ready)
            liar = rig.add(1)
            daemon = await who_is_at(liar, process.port)
            began = time.monotonic()
            for number in range(PROBES):
                lie(liar, daemon, number, port)
            await until(lambda: victim.connections >= DIALS_PER_ADDRESS_BURST / 2)
            await asyncio.to_thread(process.ask, "status")  # it still answers; and a second or so goes by
            lasted_s = time.monotonic() - began
            assert victim.connections <= DIALS_PER_ADDRESS_BURST + DIALS_PER_ADDRESS_PER_SECOND * lasted_s + 1


async def test_a_daemon_dials_nobody_outside_its_networks(tmp_path: Path) -> None:
    with running(tmp_path / "daemon", f"node.cluster={CLUSTER}", 'node.allowed_networks=["127.0.0.9"]') as process:
        await asyncio.to_thread(process.ready)
        async with Rig() as rig:
            liar = rig.add(1)
            daemon = await who_is_at(liar, process.port)
            lie(liar, daemon, 1, liar.ref.port)
            await until(lambda: "not_allowed" in process.log())
        assert not liar.node.of(LinkRefused)


async def who_is_at(peer: Peer, port: int) -> PeerRef:
    """Make a link to an address, and say whose it is."""
    found: list[PeerRef | None] = []
    peer.links.dial("127.0.0.1", port, found.append)
    await until(lambda: found)
    assert found[0] is not None
    await until(lambda: peer.links.policy.is_linked(found[0].id if found[0] else NodeId(0)))
    return found[0]
