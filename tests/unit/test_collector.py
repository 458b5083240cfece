"""The collector of event logs: each event once, on the disk before it is acknowledged, whatever is sent again."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from peerd.daemon.collector import server as server_module
from peerd.daemon.collector.client import CollectorSink
from peerd.daemon.collector.server import CollectorServer
from peerd.daemon.collector.store import STATE_FILE, CollectorStore
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError, ProtocolError, Unavailable
from peerd.telemetry import sinks
from peerd.telemetry.event_files import FileLimits
from peerd.telemetry.sinks import encode_record

A, B = "a" * 32, "b" * 32
SMALL = FileLimits(rotate_bytes=600)
WAIT_S = 20.0


def line(node: str, number: int, boot: int = 1, event: str = "node.ready") -> bytes:
    return encode_record({"node": node, "boot": boot, "id": number, "event": event})


def batch(node: str, *numbers: int, boot: int = 1) -> tuple[str, bytes]:
    return node, b"".join(line(node, number, boot) for number in numbers)


def kill(store: CollectorStore) -> None:
    """What is left of its process: nothing but the files."""
    os.close(store._lock)


def stored(directory: Path) -> list[tuple[str, int, int]]:
    """All events in all files, in the order of files: node, boot, number."""
    found = []
    for path in sorted(
        directory.rglob("events-*"), key=lambda path: [int(each) for each in path.name.split(".")[0].split("-")[2:]]
    ):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(each) for each in data.splitlines()]
    return [(each["node"][0], each["boot"], each["id"]) for each in found]


def test_what_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    store = CollectorStore(tmp_path)
    assert store.store([batch(A, 1, 2), batch(B, 1)]) == [2, 1]
    assert store.last(A, 1) == 2
    assert store.store([batch(A, 1, 2, 3), batch(B, 1)]) == [1, 0]
    assert (store.last(A, 1), store.last(A, 2)) == (3, 0)
    store.close()
    assert stored(tmp_path) == [("a", 1, 1), ("a", 1, 2), ("b", 1, 1), ("a", 1, 3)]


def test_a_new_boot_begins_to_count_anew_and_an_old_one_is_over(tmp_path: Path) -> None:
    store = CollectorStore(tmp_path)
    assert store.store([batch(A, 8, 9), batch(A, 1, boot=2), batch(A, 10)]) == [2, 1, 0]


def test_a_line_about_lost_events_has_a_number_of_its_own(tmp_path: Path) -> None:
    """It comes before those that were still in the queue, and has the number of one after them."""
    told = line(A, 6, event="sink.dropped")
    store = CollectorStore(tmp_path)
    assert store.store([(A, told + line(A, 2) + line(A, 3))]) == [3]
    assert store.store([(A, told + line(A, 2) + line(A, 3))]) == [0]
    kill(store)
    again = CollectorStore(tmp_path)
    assert again.store([(A, told + line(A, 3) + line(A, 4))]) == [1]


def test_after_a_crash_it_knows_what_is_on_the_disk(tmp_path: Path) -> None:
    store = CollectorStore(tmp_path, SMALL)
    for number in range(1, 40):
        store.store([batch(A, number)])
    kill(store)
    [part] = tmp_path.rglob("*.part")
    with part.open("ab") as file:
        file.write(line(A, 40)[:-10])  # it was being written, and was not acknowledged
    again = CollectorStore(tmp_path, SMALL)
    assert again.last(A, 1) == 39
    assert again.store([batch(A, 38, 39, 40)]) == [1]
    again.close()
    assert stored(tmp_path) == [("a", 1, number) for number in range(1, 41)]


def test_without_its_state_it_reads_all_files(tmp_path: Path) -> None:
    store = CollectorStore(tmp_path, SMALL)
    store.store([batch(A, *range(1, 40))])
    store.close()
    (tmp_path / STATE_FILE).write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        CollectorStore(tmp_path)
    (tmp_path / STATE_FILE).unlink()
    assert CollectorStore(tmp_path).last(A, 1) == 39


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_event_is_stored_once_whatever_happens(data: st.DataObject) -> None:
    """Sinks send from their last acknowledgement on; batches are cut anywhere, and the collector is killed anywhere."""
    # Processes are killed here, not machines: nothing has to wait for the disk.
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"), patch("os.fdatasync"):
        store = CollectorStore(Path(folder), FileLimits(rotate_bytes=data.draw(st.integers(1, 900))))
        acknowledged = dict.fromkeys((A, B), 0)
        for _ in range(data.draw(st.integers(1, 25))):
            node, count = data.draw(st.sampled_from((A, B))), data.draw(st.integers(1, 4))
            numbers = range(acknowledged[node] + 1, acknowledged[node] + 1 + count)
            store.store([batch(node, *numbers)])
            if data.draw(st.booleans()):  # else the answer is lost
                acknowledged[node] = numbers[-1]
            if data.draw(st.integers(0, 5)) == 0:
                kill(store)
                store = CollectorStore(Path(folder), FileLimits(rotate_bytes=data.draw(st.integers(1, 900))))
        lasts = {node: store.last(node, 1) for node in (A, B)}
        store.close()
        found = stored(Path(folder))
    for node, last in lasts.items():
        assert [number for of, _, number in found if of == node[0]] == list(range(1, last + 1))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (line(B, 1), "forged"),
        (line(A, 1) + line(B, 1), "forged"),
        (b"{}\n", "malformed"),
        (b"[" * 50_000 + b"\n", "malformed"),
        (line(A, 1)[:-1], "malformed"),
        (line(A, 0), "malformed"),
        (line(A, 1 << 63), "malformed"),
        (line("a", 1), "malformed"),
        (b"\xff\n", "malformed"),
    ],
)
def test_a_batch_with_anything_wrong_is_not_stored_and_hurts_nobody_else(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    store = CollectorStore(tmp_path)
    wrong, right = store.store([(A, data), batch(B, 1)])
    assert isinstance(wrong, ProtocolError) and wrong.reason == reason
    assert (right, store.last(A, 1), store.last(B, 1)) == (1, 0, 1)


def test_two_collectors_do_not_share_a_directory(tmp_path: Path) -> None:
    CollectorStore(tmp_path)
    with pytest.raises(Unavailable, match="another collector"):
        CollectorStore(tmp_path)


def test_a_full_disk_stores_nothing_and_then_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CollectorStore(tmp_path)
    store.store([batch(A, 1)])

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("peerd.telemetry.event_files.os.write", full)
        with pytest.raises(OSError, match="No space"):
            store.store([batch(A, 2)])
    assert store.last(A, 1) == 1
    assert store.store([batch(A, 2)]) == [1]


# Over a connection


@contextmanager
def collector(directory: Path, port: int = 0) -> Iterator[tuple[CollectorServer, int]]:
    """A collector in a thread, and its port."""
    loop = asyncio.new_event_loop()
    server = CollectorServer(CollectorStore(directory), None)
    _, port = loop.run_until_complete(server.start("127.0.0.1", port))
    running: list[asyncio.Task[None]] = []

    def run() -> None:
        loop.call_soon(lambda: running.append(spawn(server.run(), name="writer")))
        loop.run_forever()
        running[0].cancel()
        loop.run_until_complete(server.close())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield server, port
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)


def record(node: str, number: int) -> dict[str, object]:
    return {"node": node, "boot": 1, "id": number, "event": "node.ready"}


def sink(port: int, node: str = A) -> CollectorSink:
    return CollectorSink("127.0.0.1", port, node, boot=1, membership=None)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "POLL_S", 0.005)
    monkeypatch.setattr("peerd.daemon.collector.client.BACKOFF_S_MAX", 0.02)


def test_a_sink_sends_and_ends_when_all_is_stored(tmp_path: Path) -> None:
    with collector(tmp_path) as (server, port):
        ours, theirs = sink(port), sink(port, B)
        for number in range(1, 3001):
            ours.write(record(A, number))
            theirs.write(record(B, number))
        ours.close()
        theirs.close()
        assert (server.events, server.repeated) == (6000, 0)
    assert sorted(stored(tmp_path)) == [(node, 1, number) for node in "ab" for number in range(1, 3001)]


def test_a_collector_that_comes_and_goes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with collector(tmp_path) as (_, port):
        ours = sink(port)
        for number in range(1, 501):
            ours.write(record(A, number))
    for number in range(501, 1001):
        ours.write(record(A, number))
    with collector(tmp_path, port):
        for number in range(1001, 1501):
            ours.write(record(A, number))
        ours.close()
    assert ours.dropped_total == 0
    assert stored(tmp_path) == [("a", 1, number) for number in range(1, 1501)]


def test_what_a_sink_says_wrong_ends_its_connection_with_the_reason(tmp_path: Path) -> None:
    async def ask(port: int, *words: bytes) -> list[dict[str, Any]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(words))
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return [json.loads(each) for each in answer.splitlines()]

    hello = json.dumps({"peerd_sink": 1, "node": A, "boot": 1}).encode() + b"\n"
    with collector(tmp_path) as (_, port):
        for words, reason in (
            ((b"GET / HTTP/1.1\r\n\r\n",), "malformed"),
            ((hello.replace(b'k": 1', b'k": 2'),), "version"),
            ((hello, b'{"bytes": 99999999}\n'), "oversized"),
            ((hello, b'{"bytes": -1}\n'), "oversized"),
            ((hello, b'{"bytes": 3}\n', b"{}\n"), "no event"),
            ((hello, b"x" * 70_000), "limit"),
        ):
            answers = asyncio.run(ask(port, *words))
            assert reason in answers[-1]["refused"], words
    assert stored(tmp_path) == []


def test_one_node_cannot_fill_the_disk_at_the_cost_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "NODE_BYTES_S", 100.0)
    slept: list[float] = []
    real = asyncio.sleep

    async def noted(delay_s: float) -> None:
        slept.append(delay_s)
        await real(0.0)

    with collector(tmp_path) as (_, port):
        monkeypatch.setattr("peerd.daemon.collector.server.asyncio.sleep", noted)
        ours = sink(port)
        for number in range(1, 51):
            ours.write(record(A, number))
        ours.close()
        monkeypatch.undo()
    size = sum(len(line(A, number)) for number in range(1, 51))
    assert max(slept) > size / 100.0 - 2.0
