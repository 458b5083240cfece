"""What operators, disks and clocks do to a daemon, as seen from outside the process: exit code, message, log."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from peerd.client import run_sync
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import FORMAT_VERSION
from peerd.errors import ExitCode
from peerd.ids import NodeId, parse_id
from peerd.messages import PeerRef
from tests.support.daemon_process import DaemonProcess, peerd, running, wait_until

pytestmark = pytest.mark.cluster

FAR_FUTURE_S = 4_000_000_000.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def said(daemon: DaemonProcess, event: str) -> list[dict[str, object]]:
    """The log lines about one event."""
    lines = [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def refusals(daemon: DaemonProcess) -> Counter[tuple[object, object]]:
    return Counter((line["address"], line["reason"]) for line in said(daemon, "link.refused"))


def complaint(daemon: DaemonProcess) -> str:
    """What stands on the terminal of a daemon that did not start: one line, no traceback."""
    text = daemon.log()
    assert "Traceback" not in text, text
    return text.splitlines()[-1]


def test_seeds_that_are_down_are_named_once_and_tried_until_one_is_up(tmp_path: Path) -> None:
    port = free_port()  # and a name that cannot be one (a label of more than 63 letters) needs no name server
    seeds = [f"{'no-such-host' * 6}.invalid:7420", f"127.0.0.1:{port}"]
    with running(tmp_path / "late", f"node.bootstrap={json.dumps(seeds)}") as late:
        assert late.ports
        wait_until(lambda: len(refusals(late)) == 2, "both seeds were tried")
        assert late.ask("healthcheck").returncode == 1
        assert "has not joined the ring of its cluster" in late.ask("status").stdout
        with running(tmp_path / "seed", f"node.listen=127.0.0.1:{port}") as seed:
            seed.ready()
            late.ready()
        told = refusals(late)
        assert set(told) == {(seeds[0], "name_resolution"), (seeds[1], "refused")}
        assert max(told.values()) <= 2, "once a minute"


def test_a_seed_that_is_the_node_itself_by_another_name_is_no_obstacle(tmp_path: Path) -> None:
    port = free_port()
    sets = (f"node.listen=127.0.0.1:{port}", f'node.bootstrap=["localhost:{port}"]')
    with running(tmp_path / "alone", *sets) as alone:
        alone.ready()
        assert refusals(alone) == {}


def test_a_seed_of_another_cluster_is_named_on_both_sides(tmp_path: Path) -> None:
    with running(tmp_path / "theirs", "node.cluster=theirs") as theirs:
        theirs.ready()
        with running(tmp_path / "ours", "node.cluster=ours", f"node.bootstrap={theirs.address}") as ours:
            assert ours.ports
            wait_until(lambda: refusals(ours), "the seed was tried")
            assert refusals(ours) == {(theirs.address, "wrong_cluster"): 1}
            wait_until(lambda: refusals(theirs), "the other side says so, too")
            detail = str(said(ours, "link.refused")[0]["detail"])
            assert "theirs" in detail and "ours" in detail
            assert ours.ask("healthcheck").returncode == 1
            assert theirs.ask("healthcheck").returncode == 0


def test_an_address_in_use_is_a_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with running(tmp_path / "node", f"node.listen={address}") as node:
            assert node.exit_code() == ExitCode.CONFIG
            assert f"cannot listen on {address}" in complaint(node)


def test_a_damaged_key_starts_nobody_else(tmp_path: Path) -> None:
    made = peerd("init", "--dir", str(tmp_path / "made"), "--cluster", "prod", "--listen", "127.0.0.1:0")
    assert made.returncode == 0, made.stderr
    for key in (tmp_path / "made" / "node.key", tmp_path / "bare" / "state" / "node.key"):
        key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key.write_text("-----BEGIN PRIVATE KEY-----\nhalf")
        key.chmod(0o600)
        config = key.parent / "peerd.toml"
        directory = tmp_path / "bare" if key.parent.name == "state" else tmp_path / "run"
        with running(directory, config=config if config.exists() else None) as node:
            assert node.exit_code() == ExitCode.CONFIG
            assert f"{key}: damaged private key" in complaint(node)
        assert key.read_text().endswith("half")


def test_damaged_state_is_set_aside_with_one_warning(tmp_path: Path) -> None:
    state = tmp_path / "node" / "state"
    state.mkdir(parents=True, mode=0o700)
    (state / "state.db").write_bytes(b"\xff" * 64)
    for start in range(2):
        with running(tmp_path / "node") as node:
            node.ready()
            metrics = run_sync(lambda client: client.metrics(), node.socket)
        assert len(said(node, "state.damaged")) == 1, f"start {start} warned again"
        assert f"peerd_state_repairs {1.0 - start}" in metrics.splitlines()
    assert len(list(state.glob("state.db.corrupt-*"))) == 1


def test_a_directory_in_the_place_of_the_state_file_is_named_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "node" / "state" / "state.db"
    file.mkdir(parents=True, mode=0o700)
    with running(tmp_path / "node") as node:
        assert node.exit_code() == ExitCode.CONFIG
        assert str(file) in complaint(node) and "directory" in complaint(node)
    assert file.is_dir()


def test_a_state_of_a_later_version_is_kept_aside_and_the_daemon_starts(tmp_path: Path) -> None:
    with StateDirectory(tmp_path / "node" / "state") as state:
        state.save_known_peers([PeerRef(NodeId(5), "127.0.0.1", free_port())])
    with closing(sqlite3.connect(tmp_path / "node" / "state" / "state.db")) as newer:
        newer.execute("PRAGMA user_version = 9")
    with running(tmp_path / "node") as node:
        node.ready()
        [warning] = said(node, "state.damaged")
        assert f"format version 9, this peerd reads {FORMAT_VERSION}" in str(warning["detail"])


@pytest.mark.parametrize("is_first_start", [True, False])
def test_a_disk_that_is_full_at_the_start_is_told_and_costs_nothing(tmp_path: Path, is_first_start: bool) -> None:
    """Without a durable boot epoch nobody starts; a service manager tries again, since that may pass."""
    state = tmp_path / "node" / "state"
    peers = [PeerRef(NodeId(5), "127.0.0.1", 1)]
    if not is_first_start:
        with StateDirectory(state) as before:
            before.save_known_peers(peers)
    with running(tmp_path / "node", file_bytes_max=2048) as node:
        assert node.exit_code() == ExitCode.UNAVAILABLE
        assert f"cannot write {state / 'state.db'}: the disk refuses" in complaint(node)
    with StateDirectory(state) as after:
        assert after.load_known_peers() == ([] if is_first_start else peers)
        assert after.warnings == []


def test_a_clock_that_jumped_back_keeps_nobody_out(tmp_path: Path) -> None:
    """The last start was in the future by its clock: this one's boot epoch must be larger all the same."""
    with running(tmp_path / "seed") as seed:
        seed.ready()
        with StateDirectory(tmp_path / "node" / "state", wall_time=lambda: FAR_FUTURE_S) as state:
            epoch = state.boot_epoch()
        for further in (1, 2):
            with running(tmp_path / "node", f"node.bootstrap={seed.address}") as node:
                node.ready()
            with StateDirectory(tmp_path / "node" / "state") as state:
                assert state.boot_epoch() == epoch + 2 * further


def test_stale_addresses_are_tried_and_forgotten(tmp_path: Path) -> None:
    """One of the remembered peers is gone, and another daemon has taken the address of a second one."""
    with running(tmp_path / "seed") as seed:
        seed.ready()
        with StateDirectory(tmp_path / "node" / "state") as state:
            reused = PeerRef(NodeId(7), "127.0.0.1", seed.port)
            state.save_known_peers([PeerRef(NodeId(5), "127.0.0.1", free_port()), reused])
        with running(tmp_path / "node", f"node.bootstrap={seed.address}") as node:
            node.ready()
            told = json.loads(node.ask("peers", "-o", "json").stdout)
            assert [peer["id"] for peer in told["peers"]] == [str(seed.ports["id"])]
            # They were members when this node was up last, and nobody has said that they would not come back.
            assert [peer["id"] for peer in told["missing"]] == [f"{number:032x}" for number in (5, 7)]
        with StateDirectory(tmp_path / "node" / "state") as state:
            assert [peer.id for peer in state.load_known_peers()] == [parse_id(str(seed.ports["id"]))]


def test_a_copied_state_directory_ends_the_older_daemon(tmp_path: Path) -> None:
    with running(tmp_path / "seed") as seed:
        seed.ready()
        with running(tmp_path / "original", f"node.bootstrap={seed.address}") as original:
            original.ready()
            (tmp_path / "copy").mkdir()
            shutil.copytree(tmp_path / "original" / "state", tmp_path / "copy" / "state")
            with running(tmp_path / "copy", f"node.bootstrap={seed.address}") as copy:
                assert original.exit_code() == ExitCode.DUPLICATE_IDENTITY
                assert len(said(original, "node.duplicate_identity")) == 1
                copy.ready()
                assert copy.process.poll() is None
