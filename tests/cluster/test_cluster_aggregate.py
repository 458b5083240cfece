"""Five real daemons: aggregates over real files, one killed in the middle, noise on the peer port, nothing left."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from peerd.cli.cluster import app
from peerd.cli.terminal import Terminal, Waiting
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from peerd.errors import Unavailable
from peerd.ids import format_id
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.config import FileSelection, Share
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.client import AggregationClient
from protocols.aggregation.query import parse_query
from protocols.aggregation.reference import plain
from tests.support.interrupts import take_interrupts

pytestmark = pytest.mark.cluster

NODES = 5
FILES = 200
RECORDS = 300
RECORDS_THAT_TAKE_A_WHILE = 3000
"""In each file: what a share of them takes to read is long enough to kill somebody meanwhile."""
QUERY = "sum(bytes) by user"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A folder of files of so many records each; each is made once."""
    return functools.cache(lambda records: write_files(tmp_path_factory.mktemp("data"), records))


@pytest.fixture
def data(folders: Callable[[int], Path], request: pytest.FixtureRequest) -> Path:
    return folders(getattr(request, "param", RECORDS))


def write_files(root: Path, records: int) -> Path:
    """NDJSON, with a few things that are wrong with it."""
    for number in range(FILES):
        lines = [f'{{"user": "user{(number * 7 + line) % 40}", "bytes": {number * line}}}' for line in range(records)]
        (root / f"log{number:03}.ndjson").write_text("\n".join(lines) + "\n")
    (root / "broken.ndjson").write_text('{"user": "a", "bytes": 1}\nnot json\n{"user": "b"}\n')
    (root / "binary.ndjson").write_bytes(b"\x00\x01\x02" * 100)
    return root


@pytest.fixture
def cluster(tmp_path: Path, data: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    pieces_from = getattr(request, "param", "1MiB")
    with LocalCluster(tmp_path / "cluster", name="test") as found:
        found.up(
            NODES,
            settings=lambda index: {
                "protocols": {
                    "aggregation": {
                        "data_root": str(data),
                        "share": f"{index}/{NODES}",
                        "pieces_from": pieces_from,
                    }
                }
            },
        )
        yield found


def ask(cluster: LocalCluster, watch: Callable[[RoundProgress], None] = lambda progress: None) -> Answer:
    async def run() -> Answer:
        async with (
            cluster.client(0) as client,
            aclosing(AggregationClient(client).aggregate(QUERY, files="*.ndjson")) as lines,
        ):
            async for line in lines:
                if isinstance(line, Answer):
                    return line
                watch(line)
        raise AssertionError("no answer")

    return asyncio.run(run())


def metrics(cluster: LocalCluster) -> str:
    """Those of the first daemon."""
    transport = httpx.HTTPTransport(uds=str(socket_file(cluster.record(), 0)))
    with httpx.Client(transport=transport, base_url="http://daemon", timeout=30.0) as client:
        return client.get("/metrics").raise_for_status().text


@functools.cache
def reference(data: Path, nodes: tuple[int, ...]) -> object:
    """The plain computation over these nodes' files: seconds, so once for all answers."""
    return plain(
        parse_query(QUERY, files="*.ndjson"), data, [FileSelection(share=Share(index, NODES)) for index in nodes]
    )


def assert_equals_reference(answer: Answer, data: Path, nodes: list[int]) -> None:
    assert isinstance(answer.value, GroupedAnswer)
    assert answer.value.groups == reference(data, tuple(nodes))


both_ways = pytest.mark.parametrize("cluster", ["1MiB", "1B"], ids=["whole", "pieces"], indirect=True)


@both_ways
def test_an_aggregate_equals_the_plain_computation(
    cluster: LocalCluster, data: Path, request: pytest.FixtureRequest
) -> None:
    answer = ask(cluster)
    assert answer.outcome == "complete"
    assert answer.contributors == answer.expected == NODES
    assert_equals_reference(answer, data, list(range(NODES)))
    assert answer.report.files_binary == 1
    assert answer.report.records_rejected == 2
    in_pieces = request.node.name.endswith("[pieces]")
    assert ('peerd_aggregation_swaps_total{outcome="piece"}' in metrics(cluster)) == in_pieces


@both_ways
@pytest.mark.parametrize("data", [RECORDS_THAT_TAKE_A_WHILE], indirect=True)
def test_sigkill_in_the_middle_of_an_aggregate(cluster: LocalCluster, data: Path) -> None:
    victim = cluster.node(3)
    killed: list[bool] = []

    def watch(progress: RoundProgress) -> None:
        if progress.enrolled == NODES and not killed:
            cluster.kill(3)
            killed.append(True)

    answer = ask(cluster, watch)
    assert killed, "the round was over before everybody had enrolled"
    if answer.contributors == NODES:  # its data had been swapped already, and then the answer has all of it
        assert_equals_reference(answer, data, list(range(NODES)))
        return
    assert answer.outcome == "partial"
    assert [format_id(missing.node) for missing in answer.missing] == [victim.id]
    assert_equals_reference(answer, data, [0, 1, 2, 4])
    again = ask(cluster)
    assert again.contributors == NODES - 1, "the ring works on without the dead node"
    assert_equals_reference(again, data, [0, 1, 2, 4])


NOISE = {
    "an http request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random bytes": bytes(range(256)) * 16,
    "our magic without TLS": b"\x51\x00\x01\x00\xff\xff\xff\xff",
    "nothing": b"",
}


def test_noise_on_the_peer_port_harms_nobody(cluster: LocalCluster, data: Path) -> None:
    """A28: closed quietly, nothing reflected, and everybody else goes on."""
    port = cluster.node(1).port
    for noise in NOISE.values():
        with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            try:
                reflected = connection.recv(4096)
            except ConnectionResetError:
                reflected = b""
            assert len(reflected) < 64, "at most a TLS alert comes back"
    answer = ask(cluster)
    assert answer.outcome == "complete"
    assert all(node.status is not None and node.status.is_ready for node in cluster.status())


def test_down_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", name="test")
    cluster.up(3)
    record = cluster.record()
    processes = [node.process.pid for node in record.nodes if node.process is not None]
    assert len(processes) == 3
    cluster.down()
    assert not (tmp_path / "cluster").exists()
    assert not Path(record.socket_dir).exists()
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_up_twice_is_an_error_that_says_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", name="test") as cluster:
        cluster.up(1)
        with pytest.raises(Unavailable):
            LocalCluster(tmp_path / "cluster", name="test").up(1)
        assert all(node.is_alive for node in cluster.status())


def test_a_daemon_that_cannot_start_shows_why(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", name="test")
    with pytest.raises(Unavailable, match="node 1 ended with status 78"):
        cluster.up(2, settings=lambda index: {"tls": {"ca_file": "/nowhere/ca.crt"}} if index == 1 else {})
    assert not (tmp_path / "cluster").exists()


def test_ctrl_c_in_the_foreground_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    command = [sys.executable, "-m", "peerd", "cluster", "up", "-n", "3", "--foreground", "--dir", str(directory)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=take_interrupts
    ) as process:
        record = LocalCluster(directory, name="local")
        deadline = time.monotonic() + 60
        while process.poll() is None and not is_up(record):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        pids = [node.process.pid for node in record.record().nodes if node.process is not None]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not directory.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ctrl_c_just_when_it_is_up_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def status(terminal: Terminal, text: str) -> Iterator[Waiting]:
        yield Waiting(terminal, text)
        raise KeyboardInterrupt

    monkeypatch.setattr(Terminal, "status", status)
    directory = tmp_path / "cluster"
    ended = CliRunner().invoke(app, ["up", "-n", "1", "--foreground", "--dir", str(directory)])
    assert ended.exit_code == 130
    assert not directory.exists()


def is_up(cluster: LocalCluster) -> bool:
    try:
        found = cluster.status()
    except Unavailable:
        return False
    return bool(found) and all(node.status is not None and node.status.is_ready for node in found)
