"""Whole daemons in this process: a ring over TLS, restarts, signals, and starts that fail and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import structlog

from peerd.api import Plugin, handles
from peerd.config.reload import plan_reload
from peerd.daemon import service
from peerd.daemon.service import Daemon
from peerd.errors import ConfigError, ExitCode, Unavailable
from peerd.messages import Message, PeerRef, message
from peerd.system.sockets import listening_socket
from tests.support.both_loops import both_loops
from tests.support.link_rig import until
from tests.support.sinks import ListSink
from tests.support.site import Site, is_complete


@message(0x7E02, bytes_max=64)
class Poke(Message):
    """A message that makes `Fragile` raise."""


class Fragile(Plugin):
    """A plugin whose handler fails."""

    name = "fragile"
    messages = (Poke,)

    @handles(Poke)
    def on_poke(self, message: Poke, source: PeerRef) -> None:
        raise ValueError("poked")


@both_loops
async def test_three_daemons_form_a_ring_and_remember_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon("a") as one, site.daemon("b", [one.peer.address]) as two:
        dead = "127.0.0.1:1"
        async with site.daemon("c", [dead, two.peer.address], node__ports_file=str(tmp_path / "ports")) as three:
            await until(lambda: is_complete(one, two, three), 15.0)
            ports = json.loads((tmp_path / "ports").read_text())
            assert ports["peer"] == three.peer.address
            assert ports["pid"] == os.getpid()
            text = three.metrics.render().decode()
            assert "peerd_ring_ready 1.0" in text
            assert f"peerd_links {len(three.links)}.0" in text
            first_epoch = three.node.settings.boot_epoch
            identity = three.peer.id
        await until(lambda: is_complete(one, two), 15.0)
        async with site.daemon("c", [dead]) as again:  # only the remembered peers answer
            await until(lambda: is_complete(one, two, again), 15.0)
            assert again.peer.id == identity
            assert again.node.settings.boot_epoch > first_epoch


def reserved_port() -> socket.socket:
    """A socket whose port is taken, and refuses connections until a daemon listens on it."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.mark.parametrize("form", ["one list for all", "each the other only", "host names", "listening everywhere"])
async def test_two_seeds_that_list_each_other_become_one_ring(tmp_path: Path, form: str) -> None:
    site = Site(tmp_path)
    sockets = [reserved_port() for _ in range(2)]
    host = "localhost" if form == "host names" else "127.0.0.1"
    addresses = [f"{host}:{sock.getsockname()[1]}" for sock in sockets]
    daemons = []
    for number, sock in enumerate(sockets):
        port = sock.getsockname()[1]
        bootstrap = [addresses[1 - number]] if form == "each the other only" else addresses
        flags = {"node__listen": f"127.0.0.1:{port}"}
        if form == "listening everywhere":
            flags["node__advertise"] = f"localhost:{port}"  # by another name than its own list has it
        loaded = site.config(str(number), bootstrap=bootstrap, **flags)
        daemons.append(Daemon(loaded, plugins=[], listening=sock))
    async with daemons[0]:
        await until(lambda: bool(daemons[0].links.dial_failures), 15.0)  # it is there first, and finds nobody
        async with daemons[1]:
            await until(lambda: is_complete(*daemons), 15.0)


async def test_a_reloaded_list_with_its_own_address_makes_a_node_a_seed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    sockets = [reserved_port() for _ in range(2)]
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    loaded = [
        site.config(str(number), bootstrap=["127.0.0.1:1"], node__listen=address)
        for number, address in enumerate(addresses)
    ]
    daemons = [Daemon(each, plugins=[], listening=sock) for each, sock in zip(loaded, sockets, strict=True)]
    async with daemons[0], daemons[1]:
        for number, daemon in enumerate(daemons):
            again = site.config(str(number), bootstrap=addresses, node__listen=addresses[number])
            plan = plan_reload(loaded[number], again)
            commit, _ = await daemon.prepare_reload(plan)
            commit()
        await until(lambda: is_complete(*daemons), 15.0)


@both_loops
async def test_signals_end_the_process_with_its_exit_code(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT):
        daemon = site.daemon("a")
        asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), number)
        assert await daemon.run() is ExitCode.OK


@both_loops
async def test_a_copy_of_a_node_ends_the_older_process(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon("a") as seed:
        original = site.daemon("b", [seed.peer.address])
        running = asyncio.gather(original.run())
        await until(lambda: hasattr(original, "node") and is_complete(seed, original), 15.0)
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        async with site.daemon("copy", [seed.peer.address]) as copy:
            assert (await asyncio.wait_for(running, 15.0))[0] is ExitCode.DUPLICATE_IDENTITY
            await until(lambda: is_complete(seed, copy), 15.0)


async def test_one_seed_that_takes_a_newcomer_for_a_duplicate_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, claims = Site(tmp_path), 0

    def refuse(*_: object) -> tuple[str, str]:
        nonlocal claims
        claims += 1
        return "duplicate_identity", "a newer process of this identity is connected"

    sock = reserved_port()
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}"]
    async with site.daemon("bad") as bad:
        monkeypatch.setattr(bad.links.policy, "admit", refuse)
        newcomer = site.daemon("new", [bad.peer.address, *addresses])
        running = asyncio.gather(newcomer.run())
        await until(lambda: claims > 1, 15.0)
        assert not running.done()
        good_config = site.config("good", node__listen=addresses[0])
        async with Daemon(good_config, plugins=[], listening=sock) as good:
            await until(lambda: running.done() or is_complete(good, newcomer), 15.0)
            assert not running.done()
        newcomer.request_stop("test")
        assert (await running)[0] is ExitCode.OK


def told(sink: ListSink, metric: str) -> list[tuple[object, object]]:
    """Labels and values of a metric in the event log."""
    return [(each["labels"], each["value"]) for each in sink.of_kind("metric.snapshot") if each["metric"] == metric]


@both_loops
async def test_a_failing_plugin_is_restarted_and_told(tmp_path: Path) -> None:
    site = Site(tmp_path)
    sink = ListSink()
    daemon = Daemon(site.config("a"), plugins=[Fragile()], sink=sink, snapshot_interval_s=0.1)
    async with daemon:
        first = daemon.node.plugins["fragile"]
        daemon.node.send(daemon.peer, Poke())
        await until(lambda: sink.of_kind("plugin.restarted"))
        assert daemon.node.plugins["fragile"] is not first
        assert daemon.disabled_plugins == {}
        await until(lambda: sink.of_kind("resource.snapshot"))
        await until(lambda: told(sink, "peerd_plugin_restarts_total") == [("plugin=fragile", 1.0)])
        before = len(sink.of_kind("resource.snapshot"))
        await until(lambda: len(sink.of_kind("resource.snapshot")) > before + 1)
    assert told(sink, "peerd_plugin_restarts_total") == [("plugin=fragile", 1.0)], "once, as it has not changed"
    kinds = [record["event"] for record in sink.records]
    assert kinds[0] == "node.started"
    assert kinds[-1] == "node.stopped"
    numbers = [record["id"] for record in sink.records]
    assert numbers == list(range(1, len(numbers) + 1))


@both_loops
async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    site = Site(tmp_path)
    taken = listening_socket("127.0.0.1", 0)
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ConfigError, match=r"node.listen: cannot listen on 127.0.0.1:\d+: .*in use"):
        await site.daemon("a", node__listen=address).start()
    taken.close()

    async def refuse(daemon: Daemon) -> Any:
        raise ConfigError("no admin today", key="admin.socket")

    with pytest.raises(ConfigError, match="no admin today"):
        await Daemon(site.config("a", node__listen=address), plugins=[], start_admin=refuse).start()
    async with site.daemon("a", node__listen=address) as daemon:
        assert daemon.peer.address == address


@both_loops
async def test_two_daemons_never_share_a_state_directory(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon("a"):
        with pytest.raises(ConfigError, match="another daemon"):
            await site.daemon("a").start()


@both_loops
async def test_a_handed_over_socket_is_used(tmp_path: Path) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    daemon = Daemon(Site(tmp_path).config("a"), plugins=[], listening=sock)
    async with daemon:
        assert daemon.peer.port == port


@both_loops
async def test_without_tls_the_identity_is_stable(tmp_path: Path) -> None:
    site = Site(tmp_path)
    ids = []
    for _ in range(2):
        async with site.daemon("a", tls__mode="off") as daemon:
            ids.append(daemon.peer.id)
    assert ids[0] == ids[1]


@both_loops
async def test_the_stop_is_bounded_though_a_peer_hangs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon("a") as one:
        two = site.daemon("b", [one.peer.address])
        await two.start()
        await until(lambda: is_complete(one, two), 15.0)
        for link in one.links.links():
            assert link._transport is not None
            link._transport.pause_reading()
        before = asyncio.get_running_loop().time()
        await two.stop()
        assert asyncio.get_running_loop().time() - before < 3.0


def test_the_advertised_address_is_one_that_others_can_use(tmp_path: Path) -> None:
    from peerd.daemon.node_settings import advertised
    from peerd.ids import NodeId

    site = Site(tmp_path)
    wildcard = site.config("a", node__listen="0.0.0.0:7420", node__profile="lan").config
    assert advertised(wildcard, NodeId(1), ("0.0.0.0", 7420)).host not in ("0.0.0.0", "::")
    named = site.config("a", node__advertise="node1.example:9000").config
    assert advertised(named, NodeId(1), ("0.0.0.0", 7420)).address == "node1.example:9000"
    any_port = site.config("a", node__advertise="node1.example:0").config
    assert advertised(any_port, NodeId(1), ("0.0.0.0", 7420)).address == "node1.example:7420"


@both_loops
async def test_a_node_that_gets_in_nowhere_says_why_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as said:
        patch.setattr(service, "READY_TIMEOUT_S", 0.5)
        async with site.daemon("a", ["127.0.0.1:1"]):
            await until(lambda: any(line["event"] == "node.not_joined" for line in said), 20.0)
    (warning,) = [line for line in said if line["event"] == "node.not_joined"]
    assert warning["log_level"] == "warning"
    assert warning["seeds"]["127.0.0.1:1"].startswith("refused: ")


@both_loops
async def test_a_full_disk_is_told_once_and_the_node_stays_in_the_ring(tmp_path: Path) -> None:
    site = Site(tmp_path)

    tries: list[object] = []

    def full(peers: object) -> None:
        tries.append(peers)
        raise Unavailable("cannot write known-peers.json: No space left on device")

    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as said:
        patch.setattr(service, "KNOWN_PEERS_INTERVAL_S", 0.02)
        async with site.daemon("a") as one, site.daemon("b", [one.peer.address]) as two:
            await until(lambda: is_complete(one, two), 15.0)
            patch.setattr(two._state, "save_known_peers", full)
            two._known = ()
            await until(lambda: len(tries) > 3, 15.0)
            assert is_complete(one, two)
    assert [line["event"] for line in said].count("state.not_saved") == 1
