"""``peerd sink serve`` with real daemons, which prove with their certificates whose events they send."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from peerd.client import Client, run_sync
from peerd.errors import ExitCode
from tests.support.daemon_process import STOP_S, clean_environment, peerd, running, wait_until
from tests.support.forked import Forked

pytestmark = pytest.mark.cluster


@contextmanager
def collecting(config: Path, out: Path, port: int) -> Iterator[Forked]:
    log_path = out.with_suffix(".log")
    with open(os.devnull, "rb") as nothing, log_path.open("ab") as log:
        words = ["sink", "serve", "--config", str(config), "--out", str(out), "--listen", f"127.0.0.1:{port}"]
        process = Forked(
            words, stdin=nothing.fileno(), stdout=log.fileno(), stderr=log.fileno(), env=clean_environment()
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def route(key: str, client: Client) -> None:
    await client.route(key)


def collected(out: Path) -> list[dict[str, object]]:
    """All events that were collected, as far as their lines are whole, in the order of files."""
    found = []
    for path in sorted(
        out.rglob("events-*"), key=lambda path: [int(n) for n in path.name.split(".")[0].split("-")[2:]]
    ):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
    return found


def has(out: Path, count: int) -> bool:
    return len(collected(out)) >= count


def test_a_collector_that_is_killed_again_and_again_has_each_event_once(tmp_path: Path) -> None:
    node, out, port = tmp_path / "node", tmp_path / "events", free_port()
    assert peerd("init", "--dir", str(node), "--cluster", "told", "--listen", "127.0.0.1:0").returncode == 0
    config = node / "peerd.toml"
    with running(node, f"telemetry.sink=peerd://127.0.0.1:{port}", config=config) as daemon:
        daemon.ready()
        for attempt in range(4):
            with collecting(config, out, port) as collector:
                before = len(collected(out))
                for number in range(20):
                    run_sync(partial(route, f"{attempt} {number}"), daemon.socket)
                wait_until(partial(has, out, before + 20), "events arrive")
                if attempt == 3:
                    assert daemon.stop() == ExitCode.OK
                    collector.send_signal(signal.SIGTERM)
                    assert collector.wait(STOP_S) == ExitCode.OK
                    break
                collector.send_signal(signal.SIGKILL)
                collector.wait(STOP_S)
    events = collected(out)
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert sum(event["event"] == "overlay.lookup_finished" for event in events) == 80
    assert events[-1]["event"] == "node.stopped"
    assert not list(out.rglob("*.part"))


def test_another_cluster_is_refused_and_told_why(tmp_path: Path) -> None:
    ours, theirs, port = tmp_path / "ours", tmp_path / "theirs", free_port()
    for directory in (ours, theirs):
        made = peerd("init", "--dir", str(directory), "--cluster", directory.name, "--listen", "127.0.0.1:0")
        assert made.returncode == 0, made.stderr
    out = tmp_path / "events"
    with collecting(ours / "peerd.toml", out, port):
        wait_until(lambda: "collector.started" in out.with_suffix(".log").read_text(), "it listens")
        with running(theirs, f"telemetry.sink=peerd://127.0.0.1:{port}", config=theirs / "peerd.toml") as daemon:
            daemon.ready()
            wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in daemon.log(), "the daemon says why it cannot send")
        assert collected(out) == []


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    node, out = tmp_path / "node", str(tmp_path / "events")
    assert peerd("init", "--dir", str(node), "--cluster", "told", "--listen", "127.0.0.1:0").returncode == 0
    config = str(node / "peerd.toml")
    plain = peerd("sink", "serve", "--out", out, "--plain", "--listen", "0.0.0.0:7440")
    assert plain.returncode == ExitCode.USAGE and "no loopback address" in plain.stderr
    wrong = peerd("sink", "serve", "--out", out, "--listen", "nowhere", "--config", config)
    assert wrong.returncode == ExitCode.USAGE and "host:port" in wrong.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        busy = peerd("sink", "serve", "--out", out, "--listen", address, "--config", config)
    assert busy.returncode == ExitCode.UNAVAILABLE and "cannot listen" in busy.stderr
    (tmp_path / "file").write_text("")
    file = peerd("sink", "serve", "--out", str(tmp_path / "file"), "--config", config)
    assert file.returncode == ExitCode.CONFIG and "cannot be used" in file.stderr


def test_a_node_that_is_denied_may_send_no_more(tmp_path: Path) -> None:
    ours, theirs, out, port = tmp_path / "ours", tmp_path / "theirs", tmp_path / "events", free_port()
    sink = f"telemetry.sink=peerd://127.0.0.1:{port}"
    made = peerd("init", "--dir", str(ours), "--issuer", "--listen", "127.0.0.1:0")
    assert made.returncode == 0, made.stderr
    with running(ours, config=ours / "peerd.toml") as issuer:
        issuer.ready()
        token = tmp_path / "token"
        for words in (
            ("token", "create", "--out", str(token), "--socket", issuer.socket),
            (
                "join",
                str(issuer.ports["peer"]),
                "--token-file",
                str(token),
                "--dir",
                str(theirs),
                "--listen",
                "127.0.0.1:0",
            ),
        ):
            done = peerd(*words)
            assert done.returncode == 0, done.stderr
        log = out.with_suffix(".log")
        with collecting(ours / "peerd.toml", out, port), running(theirs, sink, config=theirs / "peerd.toml") as other:
            other.ready()
            wait_until(lambda: bool(collected(out)), "its events arrive")
            node = run_sync(lambda client: client.status(), other.socket).id
            denied = peerd("deny", node, "--socket", issuer.socket)
            assert denied.returncode == 0, denied.stderr

            def is_refused() -> bool:
                run_sync(lambda client: client.reload(), other.socket)  # it tells of that
                return f"node:{node} is on the deny list" in log.read_text()

            wait_until(is_refused, "the collector knows it", 60.0)
            before = len(collected(out))
            run_sync(lambda client: client.reload(), other.socket)
            wait_until(lambda: "is on the deny list" in other.log(), "the daemon says why it cannot send")
            assert len(collected(out)) == before
