"""The program as an operator meets it: init, run, look around, ask, stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.support.daemon_process import peerd

pytestmark = pytest.mark.cluster

READY_S = 20
STOP_S = 15


@dataclass
class Running:
    """A daemon of this test, and its files."""

    directory: Path
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def socket(self) -> str:
        """Return the path of the daemon's admin socket."""
        return str(self.directory / "admin.sock")

    def ask(self, *arguments: str) -> str:
        """Run a command that must succeed."""
        result = peerd(*arguments, "--socket", self.socket)
        assert result.returncode == 0, (arguments, result.stdout, result.stderr, self.logged())
        return result.stdout

    def logged(self) -> str:
        """Return what the daemon wrote to its log."""
        return (self.directory / "log").read_text()

    def stop(self, number: signal.Signals) -> int:
        """Signal it, and wait for its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    """A daemon in the ring that it has founded, over three small files."""
    data, directory = tmp_path / "data", tmp_path / "node"
    data.mkdir()
    for number, statuses in enumerate(["200 200 404", "200 500", "404"]):
        lines = [json.dumps({"status": int(status), "bytes": 10}) for status in statuses.split()]
        (data / f"{number}.ndjson").write_text("\n".join(lines) + "\n")
    made = peerd("init", "--dir", str(directory), "--cluster", "alone", "--listen", "127.0.0.1:0", "--data", str(data))
    assert made.returncode == 0, made.stderr
    sets = ["node.profile=local", "admin.http=127.0.0.1:0", f"node.ports_file={directory / 'ports.json'}"]
    command = [sys.executable, "-m", "peerd", "run", "--config", str(directory / "peerd.toml")]
    command += [word for setting in sets for word in ("--set", setting)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        running = Running(directory, process, log)
        try:
            running.ask("healthcheck", "--wait", str(READY_S))
            yield running
        finally:
            process.kill()
            process.wait()


def test_look_around_ask_and_stop(daemon: Running) -> None:
    status = json.loads(daemon.ask("status", "-o", "json"))
    assert status["cluster"] == "alone" and status["is_ready"] and status["ring_size"] == 1
    ports = json.loads((daemon.directory / "ports.json").read_text())
    assert (ports["id"], ports["peer"]) == (status["id"], status["address"])

    assert "1 node" in daemon.ask("ring")
    assert "no other node is known" in daemon.ask("peers")
    route = json.loads(daemon.ask("route", "some key", "-o", "json"))
    assert route["is_hashed"] and route["root"]["id"] == status["id"]
    shown = json.loads(daemon.ask("config", "show", "--running", "-o", "json"))["settings"]
    assert {"key": "node.profile", "value": "local", "origin": "flag --set"} in shown

    answer = json.loads(daemon.ask("aggregate", "count by status", "-o", "json"))
    assert answer["outcome"] == "complete" and answer["contributor_ids"] == [status["id"]]
    assert answer["value"]["groups"] == {"200": 3, "404": 2, "500": 1} and answer["report"]["files_read"] == 3
    assert "60" in daemon.ask("aggregate", "sum(bytes)").splitlines()[0]

    with httpx.Client(base_url=f"http://127.0.0.1:{ports['admin_http_port']}", trust_env=False) as http:
        assert http.get("/readyz").status_code == 200
        metrics = http.get("/metrics").text
        assert "/v1/aggregate" in http.get("/v1/openapi.json").json()["paths"]
    assert re.search(r"^peerd_ring_ready 1\.0$", metrics, re.MULTILINE)
    assert re.search(r'^peerd_aggregation_rounds_total\{outcome="complete"\} 2\.0$', metrics, re.MULTILINE)

    assert daemon.stop(signal.SIGTERM) == 0, daemon.logged()
    assert not Path(daemon.socket).exists()
    leftovers = {path.name for path in daemon.directory.iterdir()}
    made = {"ca", "ca.crt", "node.crt", "node.key", "peerd.toml"}
    assert leftovers <= made | {"state.db", "lock", "log", "ports.json"}
    after = peerd("status", "--socket", daemon.socket)
    assert after.returncode == 69 and "start one with `peerd run`" in after.stderr
    assert '"level": "error"' not in daemon.logged()


def test_interrupt_stops_it_too(daemon: Running) -> None:
    assert daemon.stop(signal.SIGINT) == 0, daemon.logged()
    assert not Path(daemon.socket).exists()


def test_a_socket_left_by_a_crash_does_not_stop_the_next_start(daemon: Running) -> None:
    daemon.process.kill()
    daemon.process.wait()
    assert Path(daemon.socket).exists()
    dead = peerd("status", "--socket", daemon.socket)
    assert dead.returncode == 69 and "nobody listens on that socket" in dead.stderr
    daemon.process = subprocess.Popen(daemon.process.args, stdout=daemon.log, stderr=daemon.log)
    try:
        daemon.ask("healthcheck", "--wait", str(READY_S))
        assert daemon.stop(signal.SIGTERM) == 0, daemon.logged()
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_a_second_daemon_with_the_same_state_is_refused(daemon: Running) -> None:
    second = peerd("run", "--config", str(daemon.directory / "peerd.toml"))
    assert second.returncode == 78
    assert re.search(rf"another daemon \(process {daemon.process.pid}\) uses this state directory", second.stderr)
    assert "Traceback" not in second.stderr
    daemon.ask("status")
