"""What /proc says about processes, against what is known about them otherwise."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.system import proc

pytestmark = pytest.mark.skipif(not proc.PROC.joinpath("self").exists(), reason="needs Linux' /proc")


def test_resident_memory_grows_with_what_is_written() -> None:
    before = proc.resident_bytes()
    with mmap.mmap(-1, 32 << 20) as pages:  # new pages; an allocator may have freed ones at hand, which are resident
        pages.write(b"x" * len(pages))
        after = proc.resident_bytes()
    assert before is not None and after is not None
    assert after - before > 24 << 20


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = proc.open_files()
    with (tmp_path / "file").open("w"):
        after = proc.open_files()
    assert before is not None and after == before + 1


def test_a_process_is_known_by_its_start_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert proc.start_ticks(child.pid) == proc.start_ticks(child.pid) is not None
        assert proc.resident_bytes(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert proc.start_ticks(child.pid) is None, "a zombie does not run"
    finally:
        child.kill()
        child.communicate()
    assert proc.start_ticks(child.pid) is None and proc.resident_bytes(child.pid) is None


def test_where_there_is_no_proc_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "PROC", tmp_path)
    assert (proc.resident_bytes(), proc.open_files(), proc.start_ticks(1)) == (None, None, None)
