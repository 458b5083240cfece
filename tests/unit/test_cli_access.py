"""``peerd access``, on a daemon that the test controls."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from peerd.cli.main import main
from tests.support.fake_daemon import FakeDaemon, answer_commands
from tests.support.numbers_plugin import Numbers


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Whoever asks a daemon asks this one."""
    fake = FakeDaemon({"numbers": Numbers()})

    answer_commands(monkeypatch, fake.client)
    return fake


def test_a_token_is_shown_once(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "create", "dashboard", "--scope", "numbers:read", "--ttl", "30d"]) == 0
    text, said = capsys.readouterr()
    assert daemon.access.check(f"Bearer {text.strip()}", "host").scopes == ("numbers:read",)
    assert "access token dashboard" in said and text.strip() not in said
    assert main(["access", "list"]) == 0
    listed = capsys.readouterr().out
    assert "dashboard" in listed and "numbers:read" in listed and text.strip() not in listed


def test_into_a_file_that_only_its_owner_reads(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    assert main(["access", "create", "x", "--scope", "*", "--out", str(file), "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["text"] is None and made["token"]["scopes"] == ["*"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert daemon.access.check(f"Bearer {file.read_text().strip()}", "host").name == "x"


def test_revoke_and_list(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "list"]) == 0
    assert "no access token" in capsys.readouterr().out
    assert main(["access", "create", "x", "--scope", "*", "--ttl", "1h"]) == 0
    daemon.wall_s += 3600
    capsys.readouterr()
    assert main(["access", "list", "-o", "json"]) == 0
    assert [token["is_expired"] for token in json.loads(capsys.readouterr().out)["tokens"]] == [True]
    assert main(["access", "revoke", "x"]) == 0
    assert "is revoked" in capsys.readouterr().out and daemon.access.tokens() == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["create", "x", "--scope", "nmbrs:read"], 1, "those that have: numbers"),
        (["create", "x", "--scope", "*", "--ttl", "400d"], 1, "at most 366 days"),
        (["create", "x", "--scope", "*", "--ttl", "soon"], 2, "expected a duration"),
        (["create", "x"], 2, "--scope"),
        (["revoke", "nobody"], 1, "there is no access token nobody"),
    ],
)
def test_mistakes(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(["access", *arguments]) == code
    assert words in capsys.readouterr().err


def test_status_says_where_data_clients_connect(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "no listener for them" in capsys.readouterr().out
    daemon.data_addresses = ["/run/peerd/data.sock", "127.0.0.1:7422"]
    assert main(["status"]) == 0
    assert "/run/peerd/data.sock, 127.0.0.1:7422" in capsys.readouterr().out
