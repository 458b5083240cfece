"""A state directory on a file system that has no room left: a real one, where the system lets us mount it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peerd.daemon.storage.state_directory import StateDirectory
from peerd.errors import ExitCode
from peerd.ids import NodeId
from peerd.messages import PeerRef
from tests.support.daemon_process import running, wait_until

pytestmark = pytest.mark.cluster

SIZE = "256k"
FULL = Path("/dev/full")
PEERS = [PeerRef(NodeId(5), "127.0.0.1", 1)]
SYSTEM_S = 60.0


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state directory of a daemon that runs in ``node``."""
    folder = tmp_path / "node" / "state"
    folder.mkdir(parents=True)
    mount = shutil.which("mount")
    mounted = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        timeout=SYSTEM_S,
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a file system takes root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=SYSTEM_S)


def fill(folder: Path) -> Path:
    """Take what room there is, to the last block."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def test_a_first_start_without_room_is_told_and_leaves_nothing_behind(tmp_path: Path, state: Path) -> None:
    filler = fill(state)
    with running(tmp_path / "node") as node:
        assert node.exit_code() == ExitCode.UNAVAILABLE
        told = f"peerd: error: cannot write {state / 'node.key'}: No space left on device"
        assert node.log().splitlines()[-1] == told
    filler.unlink()
    with running(tmp_path / "node") as node:
        node.ready()


def test_a_restart_without_room_is_told_and_costs_nothing(tmp_path: Path, state: Path) -> None:
    """Without a durable boot epoch nobody starts; a service manager tries again, since that may pass."""
    with running(tmp_path / "node") as node:
        node.ready()
    with StateDirectory(state) as before:
        before.save_known_peers(PEERS)
    filler = fill(state)
    with running(tmp_path / "node") as node:
        assert node.exit_code() == ExitCode.UNAVAILABLE
        told = f"peerd: error: cannot write {state / 'state.db'}: No space left on device"
        assert node.log().splitlines()[-1] == told
    filler.unlink()
    with StateDirectory(state) as after:
        assert after.load_known_peers() == PEERS
        assert after.warnings == []


def test_after_a_kill_the_room_of_the_daemons_own_log_is_enough_to_start(tmp_path: Path, state: Path) -> None:
    """What the log holds goes into the file first, whose room is there. So a durable boot epoch fits, once again."""
    with running(tmp_path / "node") as node:
        node.ready()
        assert (state / "state.db-wal").stat().st_size > 0
        fill(state)
        node.process.kill()
        node.process.wait(SYSTEM_S)
    with running(tmp_path / "node") as node:
        node.ready()
        assert not [line for line in node.log().splitlines() if '"state.damaged"' in line]


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
def test_an_event_log_that_has_no_room_keeps_nobody_from_work(tmp_path: Path) -> None:
    """F25: a line in the log when it begins, what was lost is counted, and the daemon does not wait for it."""
    with running(tmp_path / "node", "telemetry.sink=stdout", output=FULL) as node:
        node.ready()
        wait_until(lambda: "sink.failed" in node.log(), "the sink's failure is told")
        assert node.ask("status").returncode == 0
        assert node.stop() == 0
        told = [json.loads(line) for line in node.log().splitlines()]
    failed = [line for line in told if line["event"].startswith("sink.")]
    assert [line["event"] for line in failed] == ["sink.failed", "sink.records_lost"]
    assert failed[0]["error"] == f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    assert failed[1]["records"] > 0
