"""The append log of a plugin: one contract on both media, and what a crash leaves of the files."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peerd import limits
from peerd.daemon.storage import log_files
from peerd.daemon.storage.log_files import open_log as open_files, parse_segment
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.errors import Bug, Unavailable
from peerd.lib.feed import Feed, FeedDropped, FeedItem
from peerd.lib.group_log import GroupLog
from peerd.sim.logs import LogDisk, open_log as open_simulated

Job = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], None], Callable[[BaseException], None]]


class Rig(Protocol):
    """A log, and the test in the place of the disk."""

    log: GroupLog

    def write_one(self) -> bool:
        """Have the write under way end; whether there was one."""

    def crash(self) -> None:
        """What is not durable is lost; the log is opened again."""


@pytest.fixture(autouse=True, scope="module")
def synced() -> Iterator[list[str]]:
    """What would be synced: no test can see whether it was, and a thousand real syncs take their time."""
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda descriptor: calls.append("file"))
        patch.setattr(log_files, "sync_directory", lambda path: calls.append(path.name))
        yield calls


class FileRig:
    """Real files; the worker runs when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: deque[Job] = deque()
        self.error: OSError | None = None
        self.crash()

    def work(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.jobs.append((function, arguments, done, failed))

    def write_one(self) -> bool:
        if not self.jobs:
            return False
        function, arguments, done, failed = self.jobs.popleft()
        if self.error is not None:
            failed(self.error)
        else:
            done(function(*arguments))
        return True

    def crash(self) -> None:
        self.jobs.clear()
        self.log, self.warnings = open_files(self.folder, self.work)


class SimulatedRig:
    """The simulator's disk; time passes when the test says so."""

    def __init__(self) -> None:
        self.disk = LogDisk()
        self.crash()

    def write_one(self) -> bool:
        if not self.due:
            return False
        self.due.popleft()()
        return True

    def crash(self) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.log = open_simulated(self.disk, lambda delay_s, callback: self.due.append(callback))


def write_all(rig: Rig) -> int:
    """Until nothing is under way; how many writes that took."""
    count = 0
    while rig.write_one():
        count += 1
    return count


@pytest.fixture(params=["files", "simulated"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    yield FileRig(tmp_path / "log") if request.param == "files" else SimulatedRig()


def test_records_get_numbers_and_become_durable_together(rig: Rig) -> None:
    told: list[int] = []
    log = rig.log
    assert (log.first, log.next, log.durable, log.read(0, 10)) == (1, 1, 0, [])
    assert [log.append(b"%d" % number, told.append) for number in range(1, 6)] == [1, 2, 3, 4, 5]
    assert told == [] and log.durable == 0, "never within the call"
    assert log.read(0, 10) == [(number, b"%d" % number) for number in range(1, 6)], "also before it is durable"
    assert write_all(rig) == 2, "the first one, then all that came meanwhile"
    assert told == [1, 2, 3, 4, 5] and log.durable == 5
    assert log.read(2, 2) == [(3, b"3"), (4, b"4")] and log.read(5, 2) == [] and log.read(0, 0) == []


def test_a_crash_takes_what_is_not_durable_and_gives_its_numbers_again(rig: Rig) -> None:
    rig.log.append(b"one")
    rig.log.append(b"two")
    rig.write_one()
    rig.crash()
    assert rig.log.read(0, 9) == [(1, b"one")] and rig.log.durable == 1
    assert rig.log.append(b"other") == 2
    write_all(rig)
    rig.crash()
    assert rig.log.read(0, 9) == [(1, b"one"), (2, b"other")]


def test_truncation_lets_go_and_numbers_go_on(rig: Rig) -> None:
    for number in range(6):
        rig.log.append(b"%d" % number)
    write_all(rig)
    rig.log.truncate(4)
    assert (rig.log.first, rig.log.read(0, 9)) == (5, [(5, b"4"), (6, b"5")])
    rig.log.truncate(2)
    assert rig.log.first == 5, "nothing comes back"
    write_all(rig)
    rig.crash()
    assert rig.log.read(0, 9) == [(5, b"4"), (6, b"5")]
    rig.log.truncate(100)
    assert (rig.log.first, rig.log.next, rig.log.bytes_used) == (7, 7, 0)
    write_all(rig)
    rig.crash()
    assert (rig.log.first, rig.log.next, rig.log.append(b"x")) == (7, 7, 7)


def test_limits_refuse_and_change_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_RECORD_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "LOG_BYTES_MAX", 3 * 132)
    monkeypatch.setattr(limits, "LOG_WAITING_BYTES_MAX", 2 * 132)
    with pytest.raises(Unavailable, match="limit 100"):
        rig.log.append(bytes(101))
    rig.log.append(bytes(100))
    rig.log.append(bytes(100))
    with pytest.raises(Unavailable, match="wait for the disk"):
        rig.log.append(bytes(100))
    write_all(rig)
    rig.log.append(bytes(100))
    write_all(rig)
    with pytest.raises(Unavailable, match="limit 396"):
        rig.log.append(b"")
    assert rig.log.next == 4 and rig.log.bytes_used == 396
    rig.log.truncate(1)
    assert rig.log.append(bytes(100)) == 4


def test_one_read_is_bounded_in_bytes_but_gives_one_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_READ_BYTES_MAX", 250)
    for number in range(4):
        rig.log.append(bytes(100 if number else 300))
    write_all(rig)
    assert [number for number, _ in rig.log.read(0, 9)] == [1]
    assert [number for number, _ in rig.log.read(1, 9)] == [2, 3]


def test_what_waits_is_written_at_the_end_of_the_process(rig: Rig) -> None:
    for number in range(5):
        rig.log.append(b"%d" % number)
    rig.log.truncate(1)
    rig.log.close()
    rig.crash()
    assert rig.log.read(0, 9) == [(number + 1, b"%d" % number) for number in range(1, 5)]


def test_a_worker_that_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    rig = FileRig(tmp_path / "log")
    for number in range(5):
        rig.log.append(b"%d" % number)
    [(function, arguments, _, _)] = rig.jobs
    rig.log.close()
    function(*arguments)
    rig.crash()
    assert rig.log.next == 6


def test_a_write_that_fails_is_told_and_leaves_no_gap(tmp_path: Path) -> None:
    rig = FileRig(tmp_path / "log")
    durable: list[int] = []
    failed: list[tuple[int, str]] = []

    def append(record: bytes) -> int:
        return rig.log.append(record, durable.append, lambda number, why: failed.append((number, why)))

    append(b"kept")
    write_all(rig)
    rig.error = OSError(28, "No space left on device")
    assert [append(b"lost"), append(b"lost, too")] == [2, 3]
    write_all(rig)
    assert [number for number, _ in failed] == [2, 3] and "No space" in failed[0][1]
    assert (rig.log.next, rig.log.durable, rig.log.read(0, 9)) == (2, 1, [(1, b"kept")])
    rig.error = None
    assert append(b"again") == 2
    write_all(rig)
    assert durable == [1, 2]
    rig.crash()
    assert rig.log.read(0, 9) == [(1, b"kept"), (2, b"again")]


def test_half_of_a_write_that_failed_is_cut_off_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = FileRig(tmp_path / "log")
    rig.log.append(b"kept")
    write_all(rig)

    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    failed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        rig.log.append(b"lost" * 100, None, lambda number, why: failed.append(number))
        function, arguments, _, fail = rig.jobs.popleft()
        with pytest.raises(OSError, match="Input") as caught:
            function(*arguments)
        fail(caught.value)
    assert failed == [2]
    rig.log.append(b"next")
    write_all(rig)
    rig.crash()
    assert rig.warnings == [] and rig.log.read(0, 9) == [(1, b"kept"), (2, b"next")]


def test_bytes_are_synced_before_they_are_told_as_durable_and_new_files_with_their_directory(
    tmp_path: Path, synced: list[str]
) -> None:
    rig = FileRig(tmp_path / "log")
    synced.clear()
    for _ in range(2):
        rig.log.append(b"x", lambda number: synced.append(f"told {number}"))
        write_all(rig)
    assert synced == ["file", "log", "told 1", "file", "told 2"]


def test_segments_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "SEGMENT_BYTES", 1000)
    rig = FileRig(tmp_path / "log")
    for number in range(100):
        rig.log.append(bytes(100))
        write_all(rig)
        if number >= 20:
            rig.log.truncate(number - 19)
    write_all(rig)
    assert 2 <= len(list(rig.folder.iterdir())) <= 4
    assert sum(path.stat().st_size for path in rig.folder.iterdir()) < 20 * 150 + 2 * 1500
    rig.crash()
    assert [number for number, _ in rig.log.read(0, 99)] == list(range(81, 101))


def written(folder: Path, count: int) -> tuple[Path, bytes]:
    """A log of one segment with records of different lengths."""
    rig = FileRig(folder)
    for number in range(1, count + 1):
        rig.log.append(b"%d" % number * number)
        write_all(rig)
    [path] = folder.iterdir()
    return path, path.read_bytes()


def test_wherever_a_crash_cuts_the_file_whole_records_are_left(tmp_path: Path) -> None:
    path, content = written(tmp_path / "log", 8)
    seen: set[int] = set()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        rig = FileRig(tmp_path / "log")
        count = rig.log.next - 1
        seen.add(count)
        assert rig.log.read(0, 99) == [(number, b"%d" % number * number) for number in range(1, count + 1)]
        assert bool(rig.warnings) == (parse_segment(content[:length], 1).size < length)
        assert rig.log.append(b"new") == count + 1
        write_all(rig)
        rig.crash()
        assert rig.warnings == [] and rig.log.read(count, 9) == [(count + 1, b"new")]
    assert seen == set(range(9))


@settings(max_examples=80, deadline=None)
@given(bit=st.integers(0, 10_000), rest=st.binary(max_size=40))
def test_damage_is_never_taken_for_a_record(bit: int, rest: bytes) -> None:
    content = bytearray(b"peerd-log 1\n")
    for number in range(1, 6):
        content += log_files._encode(0, number, b"%d" % number * 9)
    content[bit % (len(content) * 8) // 8] ^= 1 << bit % 8
    content += rest
    found = parse_segment(bytes(content), 1)
    places = zip(found.offsets, found.lengths, strict=True)
    whole = {number: content[at : at + length] for number, (at, length) in enumerate(places, 1) if at}
    assert len(found.offsets) - len(whole) == found.damaged <= 1
    assert whole == {number: b"%d" % number * 9 for number in whole}
    assert len(whole) >= 4  # one bit costs one record, wherever it is


def test_one_damaged_byte_costs_one_record_and_a_reader_finds_a_mark_in_its_place(tmp_path: Path) -> None:
    path, content = written(tmp_path / "log", 20)
    where = content.index(b"10" * 10) + 3
    path.write_bytes(content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :])
    rig = FileRig(tmp_path / "log")
    numbers = [number for number, _ in rig.log.read(0, 99)]
    assert numbers == [*range(1, 10), *range(11, 21)]
    assert len(rig.warnings) == 1 and "1 records are damaged" in rig.warnings[0]
    feed: Feed[str] = Feed("e1", last=20, store=dict.fromkeys(numbers, "item"), held=dict.fromkeys(numbers, 1))
    reader = feed.reader("start")
    entries = [reader.take() for _ in range(20)]
    assert entries[9] == FeedDropped(10, 10) and sum(isinstance(entry, FeedItem) for entry in entries) == 19
    assert rig.log.append(b"new") == 21
    write_all(rig)
    rig.crash()
    assert [number for number, _ in rig.log.read(18, 9)] == [19, 20, 21]


def test_a_damaged_record_at_the_end_keeps_its_number(tmp_path: Path) -> None:
    path, content = written(tmp_path / "log", 3)
    path.write_bytes(content[:-1] + b"?")
    rig = FileRig(tmp_path / "log")
    assert [number for number, _ in rig.log.read(0, 99)] == [1, 2]
    assert rig.log.append(b"new") == 4


def test_damage_in_the_middle_costs_what_it_hits_and_the_numbers_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "SEGMENT_BYTES", 1000)
    rig = FileRig(tmp_path / "log")
    for _ in range(30):
        rig.log.append(bytes(100))
        write_all(rig)
    damaged = sorted(rig.folder.iterdir())[1]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    rig.crash()
    numbers = [number for number, _ in rig.log.read(0, 99)]
    assert len(rig.warnings) == 1 and str(damaged) in rig.warnings[0]
    assert len(numbers) == 29 and numbers[-1] == 30 and rig.log.append(b"x") == 31


def test_logs_of_a_state_directory_are_named_safely_and_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peerd.daemon.storage.state_directory.LOGS_PER_PLUGIN_MAX", 2)
    jobs = FileRig(tmp_path / "unused")
    with StateDirectory(tmp_path / "state") as state:
        log = state.plugin_log("demo", "one", jobs.work)
        assert state.plugin_log("demo", "one", jobs.work) is log
        state.plugin_log("demo", "two", jobs.work)
        with pytest.raises(Unavailable, match="limit 2"):
            state.plugin_log("demo", "three", jobs.work)
        state.plugin_log("other", "three", jobs.work)
        for name in ("", "..", "a/b", "Upper", "x" * 65):
            with pytest.raises(Bug):
                state.plugin_log("demo", name, jobs.work)
        log.append(b"written when the directory is closed")
    with StateDirectory(tmp_path / "state") as state:
        assert state.plugin_log("demo", "one", jobs.work).next == 2
        assert (tmp_path / "state" / "logs" / "demo" / "one").stat().st_mode & 0o777 == 0o700


class AgainstLists(RuleBasedStateMachine):
    """Both media do as a list does of which a crash takes the end that is not durable."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.rigs: list[Rig] = [FileRig(Path(self.folder.name) / "log"), SimulatedRig()]
        self.records: dict[int, bytes] = {}
        self.first = self.durable_first = 1
        self.next = 1
        self.under_way: tuple[int, int] | None = None
        """What the write under way makes durable: the last number, and the first."""
        self.durable = 0

    def _begin_write(self) -> None:
        is_due = self.next - 1 > self.durable or self.first != self.durable_first
        if self.under_way is None and is_due:
            self.under_way = self.next - 1, self.first

    @rule(record=st.binary(max_size=30))
    def append(self, record: bytes) -> None:
        assert {rig.log.append(record) for rig in self.rigs} == {self.next}
        self.records[self.next] = record
        self.next += 1
        self._begin_write()

    @rule(watermark=st.integers(0, 12))
    def truncate(self, watermark: int) -> None:
        for rig in self.rigs:
            rig.log.truncate(watermark)
        self.first = max(self.first, min(watermark, self.next - 1) + 1)
        self._begin_write()

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def write(self) -> None:
        assert all(rig.write_one() for rig in self.rigs)
        assert self.under_way is not None
        self.durable, self.durable_first = self.under_way
        self.under_way = None
        self._begin_write()

    @rule()
    def crash(self) -> None:
        for rig in self.rigs:
            rig.crash()
        self.under_way = None
        self.first, self.next = self.durable_first, max(self.durable + 1, self.durable_first)

    @invariant()
    def same(self) -> None:
        kept = [(number, self.records[number]) for number in range(self.first, self.next)]
        for rig in self.rigs:
            log = rig.log
            assert log.read(0, 1000) == kept
            assert (log.first, log.next, log.durable) == (self.first, self.next, self.durable)
            assert log.bytes_used == sum(len(record) + limits.LOG_RECORD_OVERHEAD_BYTES for _, record in kept)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(stateful_step_count=30)
