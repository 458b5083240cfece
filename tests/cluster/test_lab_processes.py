"""The lab's processes end with it, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 60.0


def simulations(parent: int) -> list[Path]:
    """The processes that simulate for a lab; empty when it has none, or is gone."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [Path("/proc", child) for child in children if is_simulating(Path("/proc", child))]


def is_simulating(process: Path) -> bool:
    try:
        return b"spawn_main" in (process / "cmdline").read_bytes()  # a zombie has no command line
    except OSError:
        return False


def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux' /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_simulation_outlives_the_lab(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peerd", "lab", "run", "overlay/hops", "--nodes", "2000", "--no-charts"]
    lab = subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        until(lambda: simulations(lab.pid))
        found = simulations(lab.pid)
        time.sleep(3.0)  # so that it simulates, and will not look at its parent for long
        lab.send_signal(number)
        lab.wait(PATIENCE_S)
    finally:
        lab.kill()
        lab.wait()
    until(lambda: not any(map(is_simulating, found)), 10.0)
