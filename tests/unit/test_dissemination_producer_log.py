"""What the log of a durable stream holds, and how much of it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, strategies as st

from peerd.lib.group_log import GroupLog
from peerd.sim.logs import LogDisk, open_log
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.producer_log import (
    LOG_ROOM_BYTES,
    TRIM_MIN,
    KeptItem,
    ProducerLog,
    decode_kept,
    encode_kept,
)

U63 = st.integers(0, (1 << 63) - 1)


@given(st.builds(StreamItem, U63, U63, U63, st.binary(max_size=200), st.text(max_size=30)), U63)
def test_a_record_comes_back_as_it_was_written(item: StreamItem, kept_ms: int) -> None:
    kept = KeptItem(item.position, kept_ms, item)
    assert decode_kept(encode_kept(kept)) == kept
    mark = KeptItem(item.position, kept_ms, None)
    assert decode_kept(encode_kept(mark)) == mark


@given(st.binary(max_size=80))
def test_any_other_bytes_are_no_record_or_one_within_the_limits(data: bytes) -> None:
    try:
        kept = decode_kept(data)
    except ValueError:
        return
    assert kept.item is None or encode_kept(kept)


def item_of(number: int, size: int = 10) -> StreamItem:
    return StreamItem(7, number, 0, bytes(size))


class Disk:
    """A log whose writes end when the test says so."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.disk = LogDisk()
        self.later: list[object] = []
        self.log: GroupLog = open_log(self.disk, lambda delay_s, callback: self.later.append(callback))
        self.kept = ProducerLog(self.log, 0, bytes_max, lambda: 5.0)
        self.out: list[StreamPosition] = []

    def write(self) -> None:
        while self.later:
            done = self.later.pop(0)
            assert callable(done)
            done()

    def add(self, numbers: range, size: int = 10) -> None:
        for number in numbers:
            item = item_of(number, size)
            at = item.position
            self.kept.append(at, item, partial(self.out.append, at), lambda why: None)

    def read(self, base: int = 0) -> list[StreamPosition]:
        again = ProducerLog(open_log(self.disk, lambda delay_s, callback: None), base, 1 << 20, lambda: 5.0)
        found: list[StreamPosition] = []
        for some in again.read():
            if not some:
                return [*found, StreamPosition(0, 0)]
            found += [kept.at for kept in some]
        return found


def test_nothing_is_out_before_it_is_on_disk() -> None:
    disk = Disk()
    disk.add(range(1, 6))
    assert not disk.out and disk.kept.waiting_bytes > 0
    disk.write()
    assert [at.sequence for at in disk.out] == [1, 2, 3, 4, 5] and disk.kept.waiting_bytes == 0
    assert disk.kept.durable_through == StreamPosition(7, 5)


def test_what_the_stream_forgets_is_removed_some_at_a_time_and_the_floor_stays() -> None:
    disk = Disk()
    disk.add(range(1, 401))
    disk.write()
    disk.kept.trim(StreamPosition(7, 90))
    assert disk.log.first == 1, "a quarter has to be gone: each removal is a write"
    disk.kept.trim(StreamPosition(7, 200))
    disk.write()
    assert disk.read() == [StreamPosition(7, number) for number in range(200, 401)]
    disk.kept.trim(StreamPosition(7, 400))
    disk.write()
    assert disk.read() == [StreamPosition(7, 400)]


def test_a_few_are_left_alone() -> None:
    disk = Disk()
    disk.add(range(1, TRIM_MIN))
    disk.kept.trim(StreamPosition(7, TRIM_MIN))
    assert disk.log.first == 1


def test_the_log_has_a_limit_of_its_own() -> None:
    disk = Disk(bytes_max=20_000)
    disk.add(range(1, 300), size=1000)
    disk.write()
    assert disk.log.bytes_used <= 20_000 and disk.read()[-1] == StreamPosition(7, 299)
    assert ProducerLog(disk.log, 0, 1 << 40, lambda: 0.0)._bytes_max == LOG_ROOM_BYTES


@pytest.mark.parametrize("damage", [b"", b"\x01" + bytes(20), b"\x07" * 60])
def test_a_past_with_a_hole_in_it_ends_there(damage: bytes) -> None:
    disk = Disk()
    disk.add(range(1, 6))
    disk.write()
    disk.disk.records[3] = damage
    assert disk.read()[-1] == StreamPosition(0, 0)
    assert disk.read(base=3) == [StreamPosition(7, 4), StreamPosition(7, 5)]
