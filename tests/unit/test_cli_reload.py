"""``peerd reload``, on a daemon that the test controls."""

from __future__ import annotations

import json

import pytest

from peerd.cli.main import main
from peerd.config.reload import Change, ReloadPlan
from peerd.errors import ConfigError, ExitCode, Unavailable
from tests.support.fake_daemon import FakeDaemon, answer_commands

LEVEL = Change("telemetry.log_level", '"info"', '"debug"', "/etc/peerd/peerd.toml:7")
LISTEN = Change("node.listen", '"0.0.0.0:7420"', '"0.0.0.0:7"', "/etc/peerd/peerd.toml:3")


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Whoever asks a daemon asks this one."""
    fake = FakeDaemon()

    answer_commands(monkeypatch, fake.client)
    return fake


def plan(daemon: FakeDaemon, applied: tuple[Change, ...], waiting: tuple[Change, ...], conflict: str = "") -> None:
    daemon.reloads = ReloadPlan(daemon.loaded, applied, waiting, conflict)


def test_nothing_has_changed(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reload"]) == 0
    assert capsys.readouterr().out == "nothing has changed\n"


def test_what_was_applied(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    plan(daemon, (LEVEL,), ())
    assert main(["reload"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["applied:"],
        ["setting", "old", "new", "from"],
        ["telemetry.log_level", '"info"', '"debug"', "/etc/peerd/peerd.toml:7"],
    ]


def test_what_needs_a_restart_is_a_partial_answer(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    plan(daemon, (LEVEL,), (LISTEN,))
    assert main(["reload"]) == ExitCode.PARTIAL
    applied, _, waiting = capsys.readouterr().out.partition("needs a restart")
    assert "telemetry.log_level" in applied and "node.listen" not in applied
    assert '"0.0.0.0:7420"' in waiting and '"0.0.0.0:7"' in waiting


def test_a_conflict_is_told(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    plan(daemon, (), (LISTEN,), "node.listen: does not fit")
    assert main(["reload"]) == ExitCode.PARTIAL
    assert (
        "nothing was applied, because of the values that stay until a restart: node.listen" in capsys.readouterr().err
    )


def test_for_programs(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    plan(daemon, (LEVEL,), (LISTEN,))
    assert main(["reload", "-o", "json"]) == ExitCode.PARTIAL
    answer = json.loads(capsys.readouterr().out)
    assert [each["key"] for each in answer["needs_restart"]] == ["node.listen"]
    assert answer["applied"][0] == {
        "key": "telemetry.log_level",
        "old": '"info"',
        "new": '"debug"',
        "origin": "/etc/peerd/peerd.toml:7",
    }


def test_a_wrong_configuration_is_told_with_its_place(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.reloads = ConfigError("expected a duration", file="/etc/peerd/peerd.toml:9", key="overlay.settle")
    assert main(["reload"]) == ExitCode.CONFIG
    told = "peerd: error: /etc/peerd/peerd.toml:9: overlay.settle: expected a duration; nothing was changed\n"
    assert capsys.readouterr().err == told


def test_a_daemon_that_cannot_now(daemon: FakeDaemon) -> None:
    daemon.reloads = Unavailable("the daemon is stopping")
    assert main(["reload"]) == ExitCode.UNAVAILABLE
