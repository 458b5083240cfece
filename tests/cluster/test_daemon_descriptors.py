"""More connections than a process may have files open: its own cap bites first, and those inside notice nothing."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from peerd.ids import NodeId
from peerd.limits import FRAME_HEADER_BYTES
from peerd.messages import PeerRef
from peerd.wire.codec import encode
from peerd.wire.frames import frame_bytes, parse_header
from peerd.wire.handshake import Hello, HelloAck
from tests.support.daemon_process import DaemonProcess, running, wait_until

pytestmark = pytest.mark.cluster

FILES_MAX = 256
CONNECTIONS = 2_000
ADMIN_RESERVE = 16
LINES_AT_ONCE = 15
"""The log allows a few lines at once; after that it is one a second."""


@contextmanager
def many_files() -> Iterator[None]:
    """This process holds the other ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 500:
        pytest.skip(f"needs {CONNECTIONS + 500} open files in the test itself; nobody floods the daemon")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + 500), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def metric(daemon: DaemonProcess, name: str) -> float:
    """A number of the daemon's, summed over labels, asked for over its admin socket."""
    transport = httpx.HTTPTransport(uds=daemon.socket)
    with httpx.Client(transport=transport, base_url="http://daemon", timeout=30.0) as client:
        lines = client.get("/metrics").raise_for_status().text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def connect(port: int, number: int) -> socket.socket:
    """Every second one says who it is, as a member would; the others say nothing."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30.0)
    sock.setblocking(False)
    if number % 2:
        stranger = PeerRef(NodeId(1 + number), "127.0.0.1", 1)
        sock.send(frame_bytes(encode(Hello(1, 1, 0, "peerd", stranger, 1))))
    return sock


def is_answered(port: int) -> bool:
    """Whether a newcomer's Hello gets an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30.0) as sock:
        newcomer = PeerRef(NodeId(10_000), "127.0.0.1", 1)
        try:
            sock.sendall(frame_bytes(encode(Hello(1, 1, 0, "peerd", newcomer, 1))))
            answer = sock.recv(4096)
            return len(answer) >= FRAME_HEADER_BYTES and parse_header(answer, 0, 65_536)[0] == HelloAck.TYPE_ID
        except ConnectionError:
            return False


def test_a_flood_meets_the_daemons_own_cap_and_its_links_live_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with (
        many_files(),
        running(tmp_path / "one", "node.profile=lan", files_max=FILES_MAX) as one,
        running(tmp_path / "two", "node.profile=lan", f"node.bootstrap={one.address}") as two,
        ExitStack() as held,
    ):
        one.ready()
        two.ready()
        assert (metric(one, "peerd_leaf_set_members"), metric(two, "peerd_leaf_set_members")) == (1, 1)
        most, lines, started = 0, len(one.log().splitlines()), time.monotonic()
        for number in range(CONNECTIONS):
            held.enter_context(connect(one.port, number))
            most = max(most, one.open_files())
            if number % 400 == 0:
                assert metric(one, "peerd_ring_ready") == 1.0
        assert metric(one, "peerd_accepts_throttled_total") > 0
        assert metric(one, "peerd_links") > FILES_MAX // 8
        assert one.ask("status").returncode == 0
        assert two.ask("doctor", "reach").returncode == 0
        assert most <= FILES_MAX * 4 // 5 <= FILES_MAX - ADMIN_RESERVE
        assert metric(two, "peerd_links_closed_total") == 0
        assert metric(two, "peerd_leaf_set_members") == 1
        flood_s = time.monotonic() - started
        said = one.log().splitlines()[lines:]
        assert len(said) <= LINES_AT_ONCE + flood_s, said
        assert "links.throttled" in "".join(said)
        assert "Too many open files" not in one.log()
        held.close()
        released = time.monotonic()
        wait_until(lambda: is_answered(one.port), "it accepts again")
        accepts_again_s = time.monotonic() - released
        print(f"at most {most} of {FILES_MAX} files; {len(said)} log lines in {flood_s:.1f} s")
        print(f"answered a newcomer {accepts_again_s:.2f} s after the release")
        record_property("accepts_again_s", round(accepts_again_s, 2))
        with running(tmp_path / "three", f"node.bootstrap={one.address}") as three:
            three.ready()
        wait_until(lambda: one.open_files() < most // 2, "the descriptors come back")
