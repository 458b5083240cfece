"""A daemon process reads its configuration again: what it applies, what it refuses, and what goes on meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peerd.client import Client, run_sync
from peerd.errors import ExitCode
from tests.support.daemon_process import DaemonProcess, clean_environment, running, wait_until

RELOADS = 20


class Configured:
    """A daemon with a file of its own, as an operator has it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.file = directory / "peerd.toml"
        self.base = f"[node]\nstate_dir = {json.dumps(str(directory / 'state'))}\n[tls]\nmode = 'off'\n"
        self.write()

    def write(self, text: str = "") -> None:
        self.file.write_text(self.base + text)


@contextmanager
def configured(directory: Path, *sets: str) -> Iterator[tuple[DaemonProcess, Configured]]:
    files = Configured(directory)
    with running(directory, *sets, config=files.file) as daemon:
        daemon.ready()
        yield daemon, files


def events(directory: Path) -> list[dict[str, Any]]:
    """All that a daemon has recorded so far."""
    texts = [
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in sorted(directory.rglob("*.ndjson*"))
    ]
    return [json.loads(line) for text in texts for line in text.splitlines() if line.endswith(b"}")]


def logged(daemon: DaemonProcess, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in daemon.log().splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == event]


def answered(daemon: DaemonProcess, count: int) -> bool:
    """Whether it has reloaded so often."""
    return len(logged(daemon, "config.reloaded")) >= count


def metric(daemon: DaemonProcess, name: str) -> float:
    text = run_sync(Client.metrics, daemon.socket)
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


def test_reload_applies_what_it_can_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    with configured(tmp_path / "node", f"telemetry.sink={tmp_path / 'events'}") as (daemon, files):
        assert "nothing has changed" in daemon.ask("reload").stdout

        files.write("[limits]\nlinks_max = 64\n[telemetry]\nlog_level = 'debug'\n")
        done = daemon.ask("reload", "-o", "json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert [change["key"] for change in answer["applied"]] == ["telemetry.log_level", "limits.links_max"]
        assert answer["applied"][1]["new"] == "64"
        assert answer["applied"][1]["origin"] == f"{files.file}:6"
        shown = {row.key: row.value for row in run_sync(Client.settings, daemon.socket)}
        assert (shown["limits.links_max"], shown["telemetry.log_level"]) == (64, "debug")

        files.write("[overlay]\nlease = '9s'\nsettle = '700ms'\n")
        done = daemon.ask("reload")
        assert done.returncode == ExitCode.PARTIAL
        applied, _, waiting = done.stdout.partition("needs a restart")
        assert "overlay.settle" in applied and "700ms" in applied
        assert re.search(r'overlay.lease +"8s" +"9s"', waiting)
        assert logged(daemon, "config.reloaded")[-1]["needs_restart"] == ['overlay.lease: "8s" -> "9s"']

        told = "config.reloaded"
        wait_until(lambda: sum(each["event"] == told for each in events(tmp_path / "events")) == 3, "three events")
        last = [each for each in events(tmp_path / "events") if each["event"] == told][-1]
        assert last["needs_restart"] == "overlay.lease" and "overlay.settle" in last["applied"]


def test_a_configuration_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    with configured(tmp_path / "node") as (daemon, files):
        read_at = metric(daemon, "peerd_config_last_reload_success_timestamp_seconds")
        assert metric(daemon, "peerd_config_last_reload_successful") == 1
        files.write("[telemetry]\nlog_level = 'debug'\n[limits]\nlinks_max = 1\n")

        refused = daemon.ask("reload")
        assert refused.returncode == ExitCode.CONFIG
        assert f"{files.file}:8: limits.links_max" in refused.stderr and "nothing was changed" in refused.stderr
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(logged(daemon, "config.refused")) == 2, "the signal is answered in the log")
        assert metric(daemon, "peerd_config_last_reload_successful") == 0
        assert metric(daemon, "peerd_config_last_reload_success_timestamp_seconds") == read_at
        shown = {row.key: row.value for row in run_sync(Client.settings, daemon.socket)}
        assert shown["telemetry.log_level"] == "info"

        files.file.unlink()
        assert "cannot read it" in daemon.ask("reload").stderr
        files.write()
        assert daemon.ask("reload").returncode == 0
        assert metric(daemon, "peerd_config_last_reload_successful") == 1


def test_reloading_under_load_loses_no_link(tmp_path: Path) -> None:
    with (
        configured(tmp_path / "a", f"telemetry.sink={tmp_path / 'events'}") as (first, files),
        running(tmp_path / "b", f"node.bootstrap={first.address}") as second,
    ):
        second.ready()
        wait_until(lambda: len(run_sync(Client.peers, first.socket)) == 1, "they are one ring")
        is_over, answers, failures = threading.Event(), [0], list[str]()

        def load() -> None:
            while not is_over.is_set():
                route = run_sync(lambda client: client.route(f"key {answers[0]}"), first.socket)
                answers[0] += 1
                if route.root is None:
                    failures.append(route.key)

        asking = threading.Thread(target=load)
        asking.start()
        try:
            for number in range(RELOADS):
                files.write(f"[limits]\nlinks_max = {64 + number}\npeer_messages_per_second = {5000 + number}\n")
                first.process.send_signal(signal.SIGHUP)
                wait_until(partial(answered, first, number + 1), "each is answered")
        finally:
            is_over.set()
            asking.join()
        assert not failures and answers[0] > 0
        told = [each["event"] for each in events(tmp_path / "events")]
        assert told.count("link.up") == 1
        assert "link.down" not in told, "the link was lost"


def test_a_new_event_log_goes_on_where_the_old_one_ended(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with configured(tmp_path / "node") as (daemon, files):
        for sink in (old, new):
            files.write(f"[telemetry]\nsink = {json.dumps(str(sink))}\n")
            assert daemon.ask("reload").returncode == 0
        (tmp_path / "file").write_text("no folder")
        files.write(f"[telemetry]\nsink = {json.dumps(str(tmp_path / 'file'))}\nlog_level = 'debug'\n")
        refused = daemon.ask("reload")
        assert refused.returncode == ExitCode.CONFIG and "telemetry.sink" in refused.stderr
        assert run_sync(Client.settings, daemon.socket)
    numbers = [[each["id"] for each in events(sink) if each["event"] != "sink.dropped"] for sink in (old, new)]
    assert numbers[0] and numbers[1]
    assert sorted(numbers[0] + numbers[1]) == list(range(numbers[0][0], numbers[1][-1] + 1))


def test_hangups_during_start_and_drain_are_harmless(tmp_path: Path) -> None:
    files = Configured(tmp_path / "node")
    with running(tmp_path / "node", config=files.file) as daemon:
        wait_until(lambda: handles_hangups(daemon.process.pid), "it is about to start")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.ready()
        drained = daemon.ask("drain")
        assert drained.returncode == 0, drained.stderr
        seen = len(logged(daemon, "config.reloaded"))
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(logged(daemon, "config.reloaded")) > seen, "it is answered")
        assert daemon.stop() == 0


def handles_hangups(pid: int) -> bool:
    """Whether the process has a handler for SIGHUP, whose default would end it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


# On a terminal --------------------------------------------------------------------------------------------


class Terminal:
    """``peerd run`` as a person starts it: standard error is a terminal, which can be closed."""

    def __init__(self, directory: Path) -> None:
        files = Configured(directory)
        self.socket = str(directory / "admin.sock")
        sets = ["node.listen=127.0.0.1:0", f"admin.socket={self.socket}", "admin.http=", "node.profile=local"]
        command = [sys.executable, "-m", "peerd", "run", "--config", str(files.file)]
        command += [word for each in sets for word in ("--set", each)]
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env=clean_environment(),
            preexec_fn=lambda: os.login_tty(slave),
        )
        os.close(slave)

    def read_until(self, words: str) -> str:
        text = ""
        while words not in text:
            text += os.read(self.master, 4096).decode()
        return text


@pytest.mark.skipif(not hasattr(os, "login_tty"), reason="needs pseudo-terminals")
def test_on_a_terminal_it_says_that_it_is_ready_and_stops_when_that_is_closed(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "node")
    try:
        text = terminal.read_until("stop it with Ctrl-C")
        assert re.search(r"peerd is ready: peers 127\.0\.0\.1:\d+; operators \S+admin\.sock; data clients ", text)
        assert f"ask it with: peerd status --socket {terminal.socket}" in text
        os.close(terminal.master)
        assert terminal.process.wait(30) == 0
        assert not Path(terminal.socket).exists(), "it has cleaned up"
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_where_there_is_no_terminal_there_is_only_the_log(tmp_path: Path) -> None:
    with running(tmp_path / "node") as daemon:
        daemon.ready()
        assert all(line.startswith("{") for line in daemon.log().splitlines())
