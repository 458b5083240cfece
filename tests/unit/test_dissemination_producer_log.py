"""What the log of a durable stream holds, and how much of it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, strategies as st

from peerd.lib.group_log import GroupLog
from peerd.limits import LOG_RECORD_BYTES_MAX
from peerd.sim.logs import LogDisk, open_log
from protocols.dissemination.documents.manifest import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CHUNKS_MAX,
    DIGEST_BYTES,
    DOCUMENT_BYTES_MAX,
    FILE_NAME_MAX,
    Attachment,
)
from protocols.dissemination.messages import CONTENT_TYPE_MAX, ITEM_BYTES_MAX, StreamItem
from protocols.dissemination.names import PLACE_MAX, StreamPosition
from protocols.dissemination.producer.log import (
    LOG_ROOM_BYTES,
    TRIM_MIN,
    KeptItem,
    ProducerLog,
    decode_kept,
    encode_kept,
)

U63 = st.integers(0, PLACE_MAX)
PLACES = U63, st.integers(1, PLACE_MAX)


@given(st.builds(StreamItem.of, *PLACES, U63, st.binary(max_size=200), st.text(max_size=30)), U63)
def test_a_record_comes_back_as_it_was_written(item: StreamItem, kept_ms: int) -> None:
    kept = KeptItem(item.position, kept_ms, item)
    assert decode_kept(encode_kept(kept)) == kept
    mark = KeptItem(item.position, kept_ms, None)
    assert decode_kept(encode_kept(mark)) == mark


@st.composite
def attachments(draw: st.DrawFn) -> Attachment:
    count, chunk_bytes = draw(st.integers(1, 5)), draw(st.integers(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX))
    size = (count - 1) * chunk_bytes + draw(st.integers(1, chunk_bytes))
    digests = draw(st.binary(min_size=count * DIGEST_BYTES, max_size=count * DIGEST_BYTES))
    return Attachment(draw(st.text(max_size=20)), size, chunk_bytes, digests, draw(st.text(max_size=20)))


@given(st.builds(StreamItem.of, *PLACES, U63, st.binary(max_size=200), st.text(max_size=30), attachments()))
def test_an_item_comes_back_with_the_document_that_is_attached_to_it(item: StreamItem) -> None:
    kept = KeptItem(item.position, 5, item)
    assert decode_kept(encode_kept(kept)) == kept


def test_the_largest_item_with_the_largest_manifest_is_a_record_that_a_log_takes() -> None:
    texts = "\U0001f600" * FILE_NAME_MAX, "\U0001f600" * CONTENT_TYPE_MAX
    manifest = Attachment(
        texts[0], DOCUMENT_BYTES_MAX, CHUNK_BYTES_MAX, bytes(CHUNKS_MAX * DIGEST_BYTES), content_type=texts[1]
    )
    item = StreamItem.of(7, 1, 0, bytes(ITEM_BYTES_MAX), texts[1], manifest)
    record = encode_kept(KeptItem(item.position, 5, item))
    assert len(record) <= LOG_RECORD_BYTES_MAX
    assert decode_kept(record).item == item


def test_a_record_that_ends_within_its_manifest_is_none() -> None:
    manifest = Attachment("disk.img", 1000, CHUNK_BYTES_MIN, bytes(DIGEST_BYTES), "x/y")
    record = encode_kept(KeptItem(StreamPosition(7, 1), 5, StreamItem.of(7, 1, 0, b"", "text/plain", manifest)))
    for end in range(len(record)):
        with pytest.raises(ValueError, match="record"):
            decode_kept(record[:end])


def test_a_record_without_a_document_is_as_it_always_was() -> None:
    item = StreamItem.of(7, 3, 11, b"payload", "text/plain")
    packed = bytes.fromhex("96" + "07" + "03" + "0b" + "c407") + b"payload" + bytes.fromhex("aa") + b"text/plain\xc0"
    assert encode_kept(KeptItem(item.position, 5, item)) == bytes.fromhex("04" + "0000000000000005") + packed


@given(st.binary(max_size=80))
def test_any_other_bytes_are_no_record_or_one_within_the_limits(data: bytes) -> None:
    try:
        kept = decode_kept(data)
    except ValueError:
        return
    assert kept.item is None or encode_kept(kept)


def item_of(number: int, size: int = 10) -> StreamItem:
    return StreamItem.of(7, number, 0, bytes(size))


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
