"""The fork server with nodes that are no daemons: whoever dies, and however, nothing is left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peerd.cluster.local import LocalCluster, NoSuchNode
from peerd.cluster.processes import ProcessRef, is_alive, process_ref, send_signal
from peerd.errors import Unavailable
from peerd.ids import parse_id

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
FAKE = "tests.support.fake_node"
NODES = 3
STARTER = """
import sys, time
from pathlib import Path
from peerd.cluster.local import LocalCluster
cluster = LocalCluster(Path(sys.argv[1]), name="fake")
cluster.start(3, node_module=sys.argv[2])
print("started", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def fake_node_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("FAKE_NODE", raising=False)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", name="fake") as found:
        yield found


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def wait_running(cluster: LocalCluster) -> list[ProcessRef]:
    """All processes, the fork server first, once every fake node runs."""

    def everybody_runs() -> bool:
        record = cluster.layout.read()
        return (
            record is not None
            and record.server is not None
            and all((cluster.layout.node(node.index) / "running").exists() for node in record.nodes)
        )

    wait_until(everybody_runs)
    record = cluster.record()
    found = [record.server, *(node.process for node in record.nodes)]
    processes = [process for process in found if process is not None]
    assert len(processes) == NODES + 1 and all(map(is_alive, processes))
    return processes


def test_down_ends_all_and_removes_all(cluster: LocalCluster) -> None:
    cluster.start(NODES, node_module=FAKE)
    processes = wait_running(cluster)
    assert cluster.is_up
    assert cluster.layout.log_file(1).read_text() == "fake node 1\n"
    assert all(parse_id(node.id) for node in cluster.record().nodes)
    cluster.down()
    assert not any(map(is_alive, processes))
    assert not cluster.layout.directory.exists()


def test_the_nodes_die_with_a_starter_that_is_killed(cluster: LocalCluster) -> None:
    directory = str(cluster.layout.directory)
    with subprocess.Popen([sys.executable, "-c", STARTER, directory, FAKE], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == b"started\n"
        processes = wait_running(cluster)
        starter.kill()
    wait_until(lambda: not any(map(is_alive, processes)))
    wait_until(lambda: not cluster.layout.directory.exists())


def test_a_starter_killed_at_once_leaves_nothing_either(cluster: LocalCluster) -> None:
    directory = str(cluster.layout.directory)
    with subprocess.Popen([sys.executable, "-c", STARTER, directory, FAKE], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == b"started\n"
        starter.kill()  # the fork server is still importing
    wait_until(lambda: not cluster.layout.directory.exists())


def test_the_nodes_die_with_a_fork_server_that_is_killed(cluster: LocalCluster) -> None:
    cluster.start(NODES, node_module=FAKE)
    server, *nodes = wait_running(cluster)
    assert send_signal(server, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, nodes)))
    cluster.down()
    assert not cluster.layout.directory.exists()


def test_nodes_that_ignore_the_end_are_killed(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NODE", "stubborn")
    cluster.start(NODES, node_module=FAKE)
    processes = wait_running(cluster)
    began = time.monotonic()
    cluster.down()
    assert not any(map(is_alive, processes))
    assert time.monotonic() - began < 20
    assert not cluster.layout.directory.exists()


def test_stubborn_nodes_without_a_fork_server_are_killed_too(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "stubborn")
    cluster.start(NODES, node_module=FAKE)
    server, *nodes = wait_running(cluster)
    send_signal(server, signal.SIGKILL)
    wait_until(lambda: not is_alive(server))
    assert all(map(is_alive, nodes)), "they ignored the kernel's signal"
    assert cluster.is_up, "no second cluster may start beside them"
    cluster.down()
    assert not any(map(is_alive, nodes))
    assert not cluster.layout.directory.exists()


def test_a_detached_cluster_outlives_its_starter(cluster: LocalCluster) -> None:
    cluster.start(NODES, node_module=FAKE)
    processes = wait_running(cluster)
    cluster.detach()
    other = LocalCluster(cluster.layout.directory, name="fake")
    killed = other.kill(2)
    wait_until(lambda: other.node(2).exit_status == -signal.SIGKILL)  # the server reaped it: it read the byte, too
    assert not is_alive(killed.process)
    assert [is_alive(process) for process in processes] == [True, True, True, False]
    with pytest.raises(Unavailable, match="does not run"):
        other.kill(2)
    with pytest.raises(NoSuchNode, match="no node 3: the nodes of this cluster are numbered 0 to 2"):
        other.kill(3)
    other.down()
    assert not any(map(is_alive, processes[1:]))
    assert not other.layout.directory.exists()


def test_a_node_that_cannot_start_is_an_error_with_the_end_of_its_log(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "fail")
    with pytest.raises(Unavailable) as caught:
        cluster.up(NODES, node_module=FAKE)
    assert "node 1 ended with status 78 before it was ready" in str(caught.value)
    assert "fake.toml: node.luck: no luck today" in str(caught.value)
    assert not cluster.layout.directory.exists()


def test_a_fork_server_that_cannot_start_is_an_error_with_the_end_of_its_log(cluster: LocalCluster) -> None:
    with pytest.raises(Unavailable, match=r"(?s)fork server ended with status 1.*No module named 'no_such_module'"):
        cluster.up(NODES, node_module="no_such_module")
    assert not cluster.layout.directory.exists()


def test_keep_leaves_the_logs(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", name="fake", keep=True) as cluster:
        cluster.start(NODES, node_module=FAKE)
        wait_running(cluster)
    assert sorted(path.name for path in cluster.layout.directory.iterdir()) == ["events", "logs"]
    assert cluster.layout.log_file(0).read_text() == "fake node 0\n"


def test_ports_stay_reserved_while_the_cluster_is_up(cluster: LocalCluster) -> None:
    """Whoever asks the system for a free port does not get one of ours, dead node or not."""
    cluster.start(NODES, node_module=FAKE)
    wait_running(cluster)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", cluster.node(0).port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", cluster.node(0).port), timeout=5)


def test_the_children_hold_no_zombie(cluster: LocalCluster) -> None:
    cluster.start(NODES, node_module=FAKE)
    processes = wait_running(cluster)
    cluster.kill(0)
    wait_until(lambda: cluster.node(0).exit_status == -signal.SIGKILL)
    assert process_ref(processes[1].pid) is None
    assert not Path(f"/proc/{processes[1].pid}").exists(), "reaped"
