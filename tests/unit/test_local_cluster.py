"""Local clusters without daemons: the folder, what is removed, whom a signal reaches, when a ring is complete."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.cli.main import main
from peerd.cluster.layout import ClusterRecord, Layout, default_directory, socket_file
from peerd.cluster.local import LocalCluster, NoSuchSplit, is_ring_complete
from peerd.cluster.processes import ProcessRef, is_alive, process_ref, resident_bytes, send_signal
from peerd.config import UNIX_SOCKET_PATH_BYTES_MAX, load_config
from peerd.daemon.node_settings import load_identity
from peerd.errors import ConfigError, Unavailable
from peerd.ids import parse_id
from peerd.limits import LEAF_SET_SIZE
from peerd.models.admin import Peer, Ring

PORTS = (40001, 40002, 40003, 40004, 40005)


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    descriptor = layout.lock()
    try:
        yield
    finally:
        os.close(descriptor)


def create(layout: Layout, **arguments: Any) -> ClusterRecord:
    with locked(layout):
        return layout.create("local", PORTS, **arguments)


def test_a_cluster_without_tls_knows_its_nodes_by_the_ids_that_they_take(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    for node in create(layout, settings=lambda index: {"tls": {"mode": "off"}}).nodes:
        config = load_config([layout.config_file(node.index)], environment={}).config
        assert load_identity(config).node_id == parse_id(node.id)


def test_every_node_gets_a_configuration_that_a_daemon_accepts(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    record = create(
        layout, settings=lambda index: {"overlay": {"probe_attempts": index + 1}, "node": {"profile": "lan"}}
    )
    assert len({node.id for node in record.nodes}) == len(PORTS)
    for node in record.nodes:
        config = load_config([layout.config_file(node.index)], environment={}).config
        assert config.node.listen == node.address
        assert config.admin.socket == str(socket_file(record, node.index)) and config.admin.http == ""
        assert config.overlay.probe_attempts == node.index + 1
        assert config.node.profile == "lan", "settings win over what the cluster sets"
        assert config.telemetry.sink == str(layout.events)
        assert all(path.is_file() for path in config.tls_files())
        assert node.address not in config.node.bootstrap
        assert load_identity(config).node_id == parse_id(node.id)
    bootstraps = [load_config([layout.config_file(k)], environment={}).config.node.bootstrap for k in range(5)]
    assert bootstraps[0] == (), "the first node starts the ring"
    assert bootstraps[4] == tuple(node.address for node in record.nodes[:3])


def test_keys_are_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    create(layout)
    keys = sorted(layout.directory.rglob("*.key"))
    assert len(keys) == len(PORTS) + 1
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
    assert stat.S_IMODE(layout.directory.stat().st_mode) == 0o700


def test_remove_leaves_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    create(layout)
    with locked(layout):
        layout.remove()
        layout.remove_folder()
    assert list(tmp_path.iterdir()) == []


def test_remove_keeps_logs_when_asked(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    create(layout)
    (layout.events / "events-1.ndjson").write_text("{}\n")
    with locked(layout):
        layout.remove(keep=True)
        layout.remove_folder()
    assert sorted(path.name for path in layout.directory.iterdir()) == ["events", "logs"]


def test_files_of_others_are_neither_mixed_with_ours_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "precious.log").write_text("mine")
    layout = Layout(tmp_path)
    with pytest.raises(ConfigError, match="not empty, it holds logs"):
        create(layout)
    with locked(layout):
        layout.remove()
        layout.remove_folder()
    assert (tmp_path / "logs" / "precious.log").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_what_a_crash_left_is_replaced(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    first = create(layout)
    second = create(layout)
    assert {node.id for node in first.nodes}.isdisjoint(node.id for node in second.nodes)


def test_a_long_path_gets_its_sockets_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    is_short = len(os.fsencode(runtime)) <= 64
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime) if is_short else "/tmp")
    layout = Layout(tmp_path / ("long" * 25) / "cluster")
    record = create(layout)
    sockets = Path(record.socket_dir)
    assert sockets.parent == (runtime if is_short else Path("/tmp"))
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert all(len(os.fsencode(socket_file(record, k))) <= UNIX_SOCKET_PATH_BYTES_MAX for k in range(5))
    with locked(layout):
        layout.remove()
    assert not sockets.exists()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.record_file.write_text('{"version": 1}')
    with pytest.raises(ConfigError, match=r"cluster\.json"):
        LocalCluster(tmp_path).record()


def test_the_lock_is_held_by_whoever_inherits_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    descriptor = layout.lock()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor]) as heir:
        os.close(descriptor)
        with pytest.raises(Unavailable, match="a cluster is up in"):
            layout.lock()
        assert layout.is_locked()
        assert heir.stdin is not None
        heir.stdin.close()
        heir.wait()
    assert not layout.is_locked()


def test_up_in_a_locked_folder_touches_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    before = create(layout)
    with locked(layout), pytest.raises(Unavailable, match="peerd cluster down"):
        LocalCluster(layout.directory).start(3)
    assert layout.read() == before


@pytest.mark.parametrize("number", [5, 99])
def test_a_number_that_no_node_has_is_a_mistake(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(Layout(tmp_path / "cluster"))
    assert main(["cluster", "kill", str(number), "--dir", str(tmp_path / "cluster")]) == 2
    told = f"peerd: error: no node {number}: the nodes of this cluster are numbered 0 to 4\n"
    assert capsys.readouterr().err == told


def test_hints_are_commands_for_that_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Layout(default_directory()).command("down") == "peerd cluster down"
    assert Layout(default_directory("blue")).command("down") == "peerd cluster down --name blue"
    assert Layout(tmp_path / "a b").command("up") == f"peerd cluster up --dir '{tmp_path}/a b'"
    with pytest.raises(Unavailable, match="`peerd cluster up --name blue`"):
        LocalCluster(name="blue").record()


def test_without_a_cluster(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    with pytest.raises(Unavailable, match="peerd cluster up"):
        cluster.status()
    assert not cluster.is_up
    cluster.down()
    assert list(tmp_path.iterdir()) == []


def test_count_is_bounded(tmp_path: Path) -> None:
    for count in (0, 257):
        with pytest.raises(ConfigError, match="1 to 256 nodes"):
            LocalCluster(tmp_path / "cluster").start(count)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [[5], [2, 2], [0, 5], [3, 3], [6, -1]])
def test_a_cluster_is_not_cut_into_groups_that_do_not_add_up(tmp_path: Path, sizes: list[int]) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    create(cluster.layout)
    with pytest.raises(NoSuchSplit, match="no way to cut 5 nodes"):
        cluster.partition(sizes)
    groups = cluster.partition([3, 2])  # nobody runs, so nobody has to be told
    assert [[node.index for node in group] for group in groups] == [[0, 1, 2], [3, 4]]


def test_default_directory_follows_the_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_directory("a") == Path("/state/peerd/clusters/a")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # the specification says to ignore these
    assert default_directory("a") == Path.home() / ".local/state/peerd/clusters/a"


# Processes ----------------------------------------------------------------------------------------------------------


def test_a_recycled_process_id_is_never_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = process_ref(process.pid)
        assert found is not None and is_alive(found)
        assert (resident_bytes(found) or 0) > 0  # how much depends on how far it has started
        impostor = ProcessRef(pid=found.pid, start_ticks=found.start_ticks - 1)
        assert not is_alive(impostor) and resident_bytes(impostor) is None
        assert not send_signal(impostor, signal.SIGKILL)
        assert process.poll() is None, "the process that has the id now lives on"
        assert send_signal(found, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not is_alive(found) and not send_signal(found, signal.SIGKILL)


def test_a_zombie_is_not_alive() -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(["true"], pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 1) == b""  # it has ended: its end of the pipe is closed
    os.close(reader)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_ref(process.pid) is None
    process.wait()


def test_nobody() -> None:
    assert not is_alive(None) and not send_signal(None, signal.SIGTERM) and resident_bytes(None) is None


# When is a ring complete? -------------------------------------------------------------------------------------------

ids = st.sets(st.integers(0, 2**128 - 1), min_size=1, max_size=40).map(
    lambda numbers: sorted(f"{n:032x}" for n in numbers)
)


def ring_of(own: str, smaller: list[str], larger: list[str], *, is_complete: bool = True) -> Ring:
    def peers(side: list[str]) -> list[Peer]:
        return [Peer(id=node_id, address="127.0.0.1:1", place="smaller") for node_id in side]

    return Ring(
        id=own,
        address="127.0.0.1:1",
        ring_size=1.0,
        is_complete=is_complete,
        covers_ring=False,
        smaller=peers(smaller),
        larger=peers(larger),
        known=[],
    )


def true_ring(node_ids: list[str], index: int) -> Ring:
    others = node_ids[index + 1 :] + node_ids[:index]
    half = LEAF_SET_SIZE // 2
    return ring_of(node_ids[index], others[::-1][:half], others[:half])


@given(ids, st.data())
def test_the_true_leaf_set_is_complete_and_no_other(node_ids: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(node_ids) - 1))
    ring = true_ring(node_ids, index)
    assert is_ring_complete(ring, node_ids)
    assert not is_ring_complete(ring.model_copy(update={"is_complete": False}), node_ids)
    assert not is_ring_complete(ring.model_copy(update={"id": "f" * 31 + "0"}), node_ids) or ring.id == "f" * 31 + "0"
    members = {peer.id for peer in (*ring.smaller, *ring.larger)}
    if members:
        lost = data.draw(st.sampled_from(sorted(members)))
        sides = {
            "smaller": [peer for peer in ring.smaller if peer.id != lost],
            "larger": [peer for peer in ring.larger if peer.id != lost],
        }
        assert not is_ring_complete(ring.model_copy(update=sides), node_ids)
