"""Event files: a folder an hour, whole files only, within a budget, and nothing lost by a full disk or a crash."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from peerd.telemetry.event_files import EventFiles, FileLimits, FileSink
from peerd.telemetry.sinks import encode_record

NODE = "0123456789abcdef" * 2
HOUR = "dt=2026-11-27/hr=13"
NOW = 1795785300.0  # 13:15
PLAIN = FileLimits(compresses=False)


def record(number: int, **more: object) -> dict[str, object]:
    stamps = {"schema_version": 1, "ts": 1.0, "mono_s": 2.0, "node": NODE, "boot": 3, "id": number, "cause": None}
    return {**stamps, "event": "node.ready", **more}


def opened(directory: Path, boot: int = 3, limits: FileLimits = PLAIN) -> EventFiles:
    return EventFiles(directory, NODE, boot=boot, limits=limits, wall_clock=lambda: NOW)


def names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def ids(*paths: Path) -> list[int]:
    data = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in paths]
    lines: list[dict[str, Any]] = [json.loads(line) for each in data for line in each.splitlines()]
    return [line["id"] for line in lines]


def test_a_file_appears_when_it_is_whole_and_is_compressed(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, NODE, boot=3)
    for number in range(1, 2501):
        sink.write(record(number))
    assert not [*tmp_path.rglob("*.ndjson"), *tmp_path.rglob("*.gz")]
    sink.close()
    sink.close()
    [file] = tmp_path.glob("dt=*/hr=*/*")
    assert file.name == "events-01234567-3-1.ndjson.gz"
    assert file.stat().st_mode & 0o777 == 0o640
    assert ids(file) == list(range(1, 2501))
    assert sink.dropped_total == 0


def test_no_record_no_file(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert names(tmp_path) == []


def test_the_same_events_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        files = opened(tmp_path / name, limits=FileLimits())
        files.write(record(1))
        files.close()
    [first], [second] = (list((tmp_path / name).rglob("*.gz")) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_new_hour_begins_a_file_in_its_own_folder(tmp_path: Path) -> None:
    clock = [NOW]
    files = EventFiles(tmp_path, NODE, boot=3, limits=PLAIN, wall_clock=lambda: clock[0])
    files.write(record(1))
    clock[0] += 45.0 * 60.0
    files.idle()
    assert names(tmp_path) == [f"{HOUR}/events-01234567-3-1.ndjson"], "whole, though nothing more has come"
    files.write(record(2))
    clock[0] += 10.0 * 3600.0
    files.write(record(3))
    files.close()
    assert names(tmp_path) == [
        f"{HOUR}/events-01234567-3-1.ndjson",
        "dt=2026-11-27/hr=14/events-01234567-3-2.ndjson",
        "dt=2026-11-28/hr=00/events-01234567-3-3.ndjson",
    ]


def test_beyond_the_budget_the_oldest_go_first_and_their_folders(tmp_path: Path) -> None:
    clock = [NOW]
    size = len(encode_record(record(1)))
    limits = FileLimits(rotate_bytes=2 * size, budget_bytes=5 * size, compresses=False)
    files = EventFiles(tmp_path, NODE, boot=3, limits=limits, wall_clock=lambda: clock[0])
    for number in range(1, 10):
        files.write(record(number))
        clock[0] += 3600.0 if number == 4 else 0.0
    hour = tmp_path / "dt=2026-11-27/hr=14"
    assert [path.name for path in sorted(hour.iterdir())] == [
        "events-01234567-3-3.ndjson",
        "events-01234567-3-4.ndjson",
        "events-01234567-3-5.ndjson.part",
    ]
    assert not (tmp_path / HOUR).exists()
    files.limit(limits.__class__(2 * size, 3600.0, 1, False))
    files.close()
    assert ids(*sorted(tmp_path.rglob("*.ndjson"))) == [9], "the newest stays, however large it is"


def test_the_budget_counts_boots_as_numbers_and_no_other_node(tmp_path: Path) -> None:
    folder = tmp_path / HOUR
    folder.mkdir(parents=True)
    for boot, number in ((9, 1), (10, 2), (10, 11)):
        (folder / f"events-01234567-{boot}-{number}.ndjson").write_bytes(b"x" * 1000)
    (folder / "events-ffffffff-1-1.ndjson").write_bytes(b"x" * 5000)  # another node's
    files = opened(tmp_path, 10, FileLimits(budget_bytes=1500, compresses=False))
    files.write(record(1))
    files.close()
    assert [path.name for path in sorted(folder.iterdir())] == [
        "events-01234567-10-11.ndjson",
        "events-01234567-10-12.ndjson",
        "events-ffffffff-1-1.ndjson",
    ]


def test_a_file_is_finished_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("peerd.telemetry.event_files.time.monotonic", lambda: clock[0])
    files = opened(tmp_path, limits=FileLimits(rotate_age_s=60.0, compresses=False))
    files.write(record(1))
    clock[0] += 59.0
    files.idle()
    assert names(tmp_path) == [f"{HOUR}/events-01234567-3-1.ndjson.part"]
    clock[0] += 1.0
    files.idle()
    files.idle()
    assert names(tmp_path) == [f"{HOUR}/events-01234567-3-1.ndjson"]


def test_what_a_crash_left_is_finished_at_start(tmp_path: Path) -> None:
    folder = tmp_path / HOUR
    folder.mkdir(parents=True)
    torn = encode_record(record(1)) + encode_record(record(2))[:-20]
    (folder / "events-01234567-2-7.ndjson.part").write_bytes(torn)
    (folder / "events-ffffffff-2-1.ndjson.part").write_bytes(b"")  # another node's, perhaps alive
    # Killed while it compressed, and between the two last steps of that.
    (folder / "events-01234567-2-6.ndjson.part").write_bytes(torn)
    (folder / "events-01234567-2-6.ndjson.gz.tmp").write_bytes(b"half")
    (folder / "events-01234567-2-5.ndjson.part").write_bytes(torn)
    (folder / "events-01234567-2-5.ndjson.gz").write_bytes(gzip.compress(torn))
    opened(tmp_path).close()
    assert [path.name for path in sorted(folder.iterdir())] == [
        "events-01234567-2-5.ndjson.gz",
        "events-01234567-2-6.ndjson",
        "events-01234567-2-7.ndjson",
        "events-ffffffff-2-1.ndjson.part",
    ]
    assert (folder / "events-01234567-2-7.ndjson").read_bytes() == torn


def test_the_same_boot_again_overwrites_nothing(tmp_path: Path) -> None:
    for number, compresses in ((1, True), (2, False), (3, True)):
        files = opened(tmp_path, limits=FileLimits(compresses=compresses))
        files.write(record(number))
        files.close()
    assert [path.name for path in sorted((tmp_path / HOUR).iterdir())] == [
        "events-01234567-3-1.ndjson.gz",
        "events-01234567-3-2.ndjson",
        "events-01234567-3-3.ndjson.gz",
    ]


def test_a_failed_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(tmp_path)
    files.write(record(1))
    real_write, calls = os.write, itertools.count()

    def full_disk(descriptor: int, data: memoryview) -> int:
        if next(calls) == 0:
            return real_write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("peerd.telemetry.event_files.os.write", full_disk)
        with pytest.raises(OSError, match="No space left"):
            files.write(record(2))
    files.write(record(3))
    files.close()
    assert ids(*tmp_path.rglob("*.ndjson")) == [1, 3]


def test_where_the_disk_has_no_room_to_compress_the_file_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files = opened(tmp_path, limits=FileLimits())
    files.write(record(1))
    monkeypatch.setattr("peerd.telemetry.event_files.shutil.copyfileobj", full_disk)
    files.close()
    assert names(tmp_path) == [f"{HOUR}/events-01234567-3-1.ndjson"]
    assert ids(tmp_path / HOUR / "events-01234567-3-1.ndjson") == [1]
