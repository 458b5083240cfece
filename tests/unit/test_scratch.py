"""Room for large values: in memory at first, then in files without a name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from peerd.api import IN_MEMORY
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.errors import Unavailable
from peerd.system import scratch as module
from peerd.system.scratch import DiskScratch


@pytest.mark.parametrize("memory_bytes", [0, 5, 1 << 20])
def test_what_was_written_is_there(tmp_path: Path, memory_bytes: int) -> None:
    for scratch in (DiskScratch(str(tmp_path), memory_bytes), IN_MEMORY):
        writer = scratch.writer()
        for part in (b"0123", b"", b"456789", memoryview(b"abc")):
            writer.write(part)
        assert writer.size_bytes == 13
        assert writer.read(3, 4) == b"3456"
        writer.overwrite(1, b"xy")
        writer.write(b"!")
        view = writer.finish()
        assert bytes(view) == b"0xy3456789abc!"
        assert view.readonly
    assert not list(tmp_path.iterdir())


def test_only_what_is_larger_than_memory_takes_a_file(tmp_path: Path) -> None:
    small, large = DiskScratch(str(tmp_path), 4).writer(), DiskScratch(str(tmp_path), 4).writer()
    before = len(os.listdir("/proc/self/fd"))
    small.write(b"1234")
    assert len(os.listdir("/proc/self/fd")) == before
    large.write(b"12345")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    view = large.finish()
    del large
    assert bytes(view) == b"12345"
    view.release()


def test_a_disk_with_too_little_room_is_said_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKED_BYTES", 8)
    writer = DiskScratch(str(tmp_path), 0).writer()
    writer.write(b"1234567")
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with pytest.raises(Unavailable, match="must stay free"):
        writer.write(b"12345678")
    with pytest.raises(Unavailable, match="No such file"):
        DiskScratch(str(tmp_path / "gone"), 0).writer().write(b"1")


def test_another_process_may_write_a_file_that_is_opened_once(tmp_path: Path) -> None:
    scratch = DiskScratch(str(tmp_path), 0)
    path = scratch.new_file()
    writer = scratch.writer(path)
    writer.write(b"from a worker")
    writer.overwrite(0, b"F")
    writer.close()
    view = scratch.open_file(path, 100)
    assert bytes(view) == b"From a worker"
    assert not list(tmp_path.iterdir())
    with pytest.raises(Unavailable, match="could not be read"):
        scratch.open_file(path, 100)
    scratch.drop_file(path)  # harmless
    assert IN_MEMORY.new_file() == ""
    IN_MEMORY.drop_file("")
    with pytest.raises(Unavailable):
        IN_MEMORY.open_file(path, 100)


def test_many_values_at_a_time_share_the_memory(tmp_path: Path) -> None:
    assert DiskScratch(str(tmp_path), 640).less(64) == DiskScratch(str(tmp_path), 10)
    assert IN_MEMORY.less(3) == IN_MEMORY


def test_what_is_no_such_file_is_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    scratch, link = DiskScratch(str(tmp_path), 0), tmp_path / "link"
    link.symlink_to(secret)
    empty = Path(scratch.new_file())
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (link, empty, folder):
        with pytest.raises(Unavailable):
            scratch.open_file(str(path), 100)
    with pytest.raises(Unavailable, match="expected 1 to 5"):
        scratch.open_file(str(secret), 5)
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    with pytest.raises(Unavailable):
        scratch.writer(str(link))


def test_what_a_crash_leaves_behind_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left = Path(DiskScratch(str(tmp_path), 0).new_file())
    assert left.exists()
    with StateDirectory(tmp_path):
        assert not left.exists()
