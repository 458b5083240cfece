"""Sinks: nothing blocks, nothing is lost without being counted."""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.errors import Bug
from peerd.telemetry import sinks
from peerd.telemetry.sinks import (
    EventSink,
    NullSink,
    QueuedSink,
    StdoutSink,
    TcpSink,
    encode_record,
)
from tests.support.daemon_process import wait_until
from tests.support.sinks import ListSink

NODE = "0123456789abcdef" * 2
WAIT_S = 10.0


def record(number: int, **more: object) -> dict[str, object]:
    stamps = {"schema_version": 1, "ts": 1.0, "mono_s": 2.0, "node": NODE, "boot": 3, "id": number, "cause": None}
    return {**stamps, "event": "node.ready", **more}


def lines_of(data: bytes) -> list[dict[str, Any]]:
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


class GatedMedium:
    """Takes lines only while its gate is open; can be told to fail."""

    def __init__(self) -> None:
        self.data = b""
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.failures: Iterator[OSError] = iter(())
        self.is_finished = False

    def put(self, lines: list[bytes]) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if (failure := next(self.failures, None)) is not None:
            raise failure
        self.data += b"".join(lines)

    def idle(self) -> None:
        pass

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture(autouse=True)
def fast_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "POLL_S", 0.005)


JSON_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.dictionaries(st.text(), JSON_SCALARS))
def test_a_record_is_one_line_and_comes_back(content: dict[str, object]) -> None:
    line = encode_record(content)
    assert line.endswith(b"\n")
    assert len(line.decode("ascii").splitlines()) == 1
    assert json.loads(line) == content


@pytest.mark.parametrize("value", ["a\udcffb", "\u2028", 1 << 127, 1e308, -0.0])
def test_a_record_may_hold_what_is_rare(value: object) -> None:
    line = encode_record(record(1, value=value, other=1e308))
    assert line.isascii() and json.loads(line)["value"] == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, b"bytes", {1}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(Bug, match=r"node\.ready"):
        encode_record(record(1, value=value))


def test_small_sinks() -> None:
    null, memory = NullSink(), ListSink()
    targets: list[EventSink] = [null, memory]
    for sink, number in itertools.product(targets, (1, 2, 3)):
        sink.write(record(number))
        sink.close()
    assert [kept["id"] for kept in memory.of_kind("node.ready")] == [1, 2, 3]


def test_drops_are_told_in_the_next_line() -> None:
    medium = GatedMedium()
    sink = QueuedSink(medium, queue_records_max=4)
    sink.write(record(1))
    assert medium.entered.wait(WAIT_S)  # 1 is with the medium: the queue is empty
    for number in range(2, 10):
        sink.write(record(number))  # returns although nothing moves
    assert sink.dropped_total == 4
    medium.gate.set()
    sink.close()
    found = lines_of(medium.data)
    assert [(line["id"], line["event"]) for line in found] == [
        (1, "node.ready"),
        (6, "sink.dropped"),
        *((number, "node.ready") for number in range(2, 6)),
    ]
    assert found[1] == {**record(6), "event": "sink.dropped", "records": 4}
    assert medium.is_finished


def test_a_failing_medium_loses_nothing_that_the_queue_holds() -> None:
    medium = GatedMedium()
    medium.gate.set()
    medium.failures = iter([OSError(errno.ENOSPC, "No space left on device")] * 3)
    waits: list[int] = []
    failed = threading.Semaphore(0)

    def retry_s(failures: int) -> float:
        waits.append(failures)
        failed.release()
        return 0.0

    sink = QueuedSink(medium, retry_s=retry_s)
    for number in range(1, 6):
        sink.write(record(number))
    for _ in range(3):
        assert failed.acquire(timeout=WAIT_S)
    sink.close()
    assert [line["id"] for line in lines_of(medium.data)] == [1, 2, 3, 4, 5]
    assert waits == [0, 1, 2]
    assert sink.dropped_total == 0


def test_what_a_dead_medium_keeps_at_close_is_counted() -> None:
    medium = GatedMedium()
    medium.gate.set()
    medium.failures = itertools.repeat(OSError(errno.EIO, "Input/output error"))
    sink = QueuedSink(medium, retry_s=lambda failures: 3600.0)
    for number in range(1, 4):
        sink.write(record(number))
    sink.close()
    sink.write(record(4))
    assert sink.dropped_total == 4


def test_the_thread_is_not_woken_for_records_that_it_cannot_write() -> None:
    medium = GatedMedium()
    medium.gate.set()
    medium.failures = itertools.repeat(OSError(errno.ENOSPC, "No space left on device"))
    sink = QueuedSink(medium, queue_records_max=4, retry_s=lambda failures: 3600.0)
    sink.write(record(1))
    assert medium.entered.wait(WAIT_S)
    wait_until(lambda: sink._failures == 1, "the thread has failed")
    woken: list[int] = []
    sink._wake.set = lambda: woken.append(1)  # type: ignore[method-assign]  # it is counted
    for number in range(2, 9):
        sink.write(record(number))
    assert woken == [] and sink.dropped_total == 3
    del sink._wake.set
    sink.close()


def test_a_record_that_is_no_json_is_refused_and_told() -> None:
    medium = GatedMedium()
    medium.gate.set()
    sink = QueuedSink(medium)
    sink.write(record(1, value=math.nan))
    sink.write({**record(2), "ts": math.inf})
    sink.close()
    found = lines_of(medium.data)
    assert {line["event"] for line in found} == {"sink.dropped"}
    assert sum(line["records"] for line in found) == sink.dropped_total == 2
    assert found[0]["id"] == 1


def test_a_large_backlog_is_written_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode_record(record(1)))
    monkeypatch.setattr(sinks, "BATCH_BYTES_MAX", 3 * size)
    pieces: list[int] = []

    class Measuring(GatedMedium):
        def put(self, lines: list[bytes]) -> None:
            super().put(lines)
            pieces.append(len(lines))

    medium = Measuring()
    sink = QueuedSink(medium)
    sink.write(record(1))
    assert medium.entered.wait(WAIT_S)
    for number in range(2, 10):
        sink.write(record(number))
    medium.gate.set()
    sink.close()
    assert pieces == [1, 3, 3, 2]


def test_stdout_sink_uses_the_stream_of_the_moment(capfd: pytest.CaptureFixture[str]) -> None:
    sink = StdoutSink()
    sink.write(record(1))
    sink.close()
    assert [line["id"] for line in lines_of(capfd.readouterr().out.encode())] == [1]


def test_what_standard_output_takes_in_pieces_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pipe that does not block takes a part of a batch, then nothing; a full disk does the same."""
    monkeypatch.setattr(sinks, "RETRY_S", 0.0)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    count, found = 1_500, b""  # three times what a pipe holds
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", buffering=0) as reader:
        sink = StdoutSink(stream, queue_records_max=count)
        for number in range(count):
            sink.write(record(number))
        while found.count(b"\n") < count:
            found += reader.read(1_000) or b""
        sink.close()
        stream.close()
        found += reader.read() or b""
    assert [line["id"] for line in lines_of(found)] == list(range(count))
    assert sink.dropped_total == 0


def test_a_closed_stream_is_a_failure_not_a_dead_thread() -> None:
    stream = io.StringIO()
    stream.close()
    sink = StdoutSink(stream)
    sink.write(record(1))
    sink.close()
    assert sink.dropped_total == 1


def test_tcp_sink_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "BACKOFF_S_MAX", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        sink = TcpSink("127.0.0.1", server.getsockname()[1])
        sink.write(record(1))
        first, _ = server.accept()
        with first, first.makefile("rb") as stream:
            assert json.loads(stream.readline())["id"] == 1
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        accepted: list[socket.socket] = []
        acceptor = threading.Thread(target=lambda: accepted.append(server.accept()[0]))
        acceptor.start()
        number = 1
        while acceptor.is_alive():  # the first write after a reset may still seem to work
            number += 1
            sink.write(record(number))
            acceptor.join(0.02)
        sink.close()
        with accepted[0], accepted[0].makefile("rb") as stream:
            assert json.loads(stream.readlines()[-1])["id"] == number


def test_tcp_sink_without_a_collector_closes_quickly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    sink = TcpSink("127.0.0.1", port)
    sink.write(record(1))
    sink.close()
    assert sink.dropped_total == 1
