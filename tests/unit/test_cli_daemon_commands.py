"""The commands that ask a daemon, on one that the test controls."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from peerd.api import LookupResult
from peerd.cli.locations import admin_address
from peerd.cli.main import main
from peerd.cli.run import load as load_run
from peerd.cluster.layout import ClusterRecord, Layout, NodeRecord, default_directory
from peerd.cluster.processes import process_ref
from peerd.ids import format_id
from peerd.places import ADMIN_SOCKET
from tests.support.fake_daemon import OWN, FakeDaemon, answer_commands, peer


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Whoever asks a daemon asks this one."""
    fake = FakeDaemon()

    answer_commands(monkeypatch, fake.client)
    return fake


def test_status_for_people(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert format_id(OWN.id) in text and "about 17 nodes" in text and "ready: in the ring" in text


@pytest.mark.parametrize("command", [["status"], ["peers"], ["ring"], ["route", "hello"], ["rtt"], ["drain"]])
def test_json_is_one_document(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main([*command, "-o", "json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize("output", ["jsonl", "csv", "yaml"])
@pytest.mark.parametrize(
    "command", [["status"], ["peers"], ["peers", "--history"], ["ring"], ["ring", "--local"], ["route", "x"], ["rtt"]]
)
def test_every_format_can_be_read(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], command: list[str], output: str
) -> None:
    assert main([*command, "-o", output]) == 0
    text = capsys.readouterr().out
    if output == "yaml":
        assert isinstance(yaml.safe_load(text), dict)
    elif output == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert len({len(row) for row in rows}) <= 1
    else:
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
    assert "\x1b" not in text


def test_peers_as_csv_is_a_row_each(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["id"][:2] for row in rows] == ["30", "50", "60", "f0"]
    assert rows[0]["rtt_s"] == "0.001" and rows[0]["is_linked"] == "true" and rows[1]["rtt_s"] == ""


def test_peers_on_a_narrow_terminal(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["peers"]) == 0
    narrow = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in narrow)
    assert narrow[1].startswith("30000000  127.0.0.1:7048  leaf set, smaller")
    assert main(["peers", "--wide"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(format_id(peer(0x30).id))


def test_one_of_the_peers(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "127.0.0.1:7048"]) == main(["peers", "30"]) == 0
    first, second = capsys.readouterr().out.split("node")[1:]
    assert first == second and len(first.splitlines()) == 2
    assert main(["peers", "77"]) == 1
    assert capsys.readouterr().err == "peerd: error: no node '77' is known here: `peerd peers` lists those that are\n"


def test_history_of_everybody(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--history"]) == 0
    assert "no node that is known here has been suspected" in capsys.readouterr().out
    assert main(["peers", "--history", "--around"]) == 2
    assert "goes with --history NODE" in capsys.readouterr().err


def test_rtt_measures_now(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """What the overlay noted long ago (1 ms for one peer, nothing for others) is no answer."""
    assert main(["rtt", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["peers"]
    assert [(each["rtt_s"], each["is_reached"]) for each in found] == 4 * [(0.002, True)]


def test_a_drained_daemon_is_in_no_ring(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.fake_node.is_stopped, daemon.fake_node.draining = True, ()
    daemon.set_ready(False)
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert "drained: out of the ring" in text and "none: it has left" in text and "about 17" not in text
    assert main(["status", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ring_size"], found["leaf_set_members"], found["expected"]) == (0, 0, 0)


def test_a_denied_node_is_not_told_to_forget_the_others(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--check"]) in (1, 3)
    assert "in no ring" not in capsys.readouterr().out
    daemon.overlay.outside = "this node is on the deny list of its cluster: nobody talks to it"
    assert main(["ring", "--check"]) in (1, 3)
    text = capsys.readouterr().out
    assert "this node is in no ring: this node is on the deny list" in text and "ask another node" in text
    assert "peerd forget" not in text


def test_peers(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(rf"{format_id(peer(0x30).id)} +127.0.0.1:7048 +leaf set, smaller +up +1 ms", lines[1])
    assert len(lines) == 5


def test_ring_is_drawn(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--local"]) == 0
    text = capsys.readouterr().out
    assert "about 17 nodes" in text and "leaf set complete" in text
    drawing = text.split("this node")[0]
    assert drawing.count("●") >= 3 and "40000000" in drawing


def test_route(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "hello"]) == 0
    text = capsys.readouterr().out
    assert "(hash of 'hello')" in text and f"{format_id(peer(0x50).id)} at 127.0.0.1:7080" in text and "2 ms" in text


def test_route_without_an_answer_is_a_failure(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.host.result = lambda key: LookupResult(key, None, (), 10.0)
    assert main(["route", "hello"]) == 1
    assert "nobody answered in time" in capsys.readouterr().out


def test_route_before_the_join(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.set_ready(False)
    assert main(["route", "hello"]) == 69
    assert capsys.readouterr().err == "peerd: error: this node has not joined the ring yet; try again in a moment\n"


def test_route_of_a_node_that_has_left(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.set_ready(False)
    daemon.overlay.outside = "this node has left the ring"
    assert main(["route", "hello"]) == 69
    assert capsys.readouterr().err == "peerd: error: this node has left the ring: ask another node\n"


def test_healthcheck(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["healthcheck"]) == 0
    assert capsys.readouterr().out == "ready\n"
    daemon.set_ready(False)
    assert main(["healthcheck"]) == 1
    assert capsys.readouterr().err.startswith("not ready: ring: "), "what fails, and nothing else"
    assert main(["healthcheck", "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in found["checks"] if not check["ok"]] == ["ring"] and len(found["checks"]) > 2
    assert found["detail"] == next(f"ring: {check['detail']}" for check in found["checks"] if not check["ok"])


def test_config_show_running(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--running", "--changed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and re.match(r'node.cluster +"blue" +flag --set', lines[1])


@pytest.mark.parametrize("command", [["status"], ["peers"], ["ring"], ["route", "x"], ["config", "show", "--running"]])
def test_without_a_daemon_each_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    path = tmp_path / "admin.sock"
    assert main([*command, "--socket", str(path)]) == 69
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"peerd: error: no daemon answers at {path} (there is no such socket; start one")
    assert captured.err.count("\n") == 1


def test_healthcheck_without_a_daemon_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["healthcheck", "--socket", str(tmp_path / "admin.sock")]) == 1
    assert "no daemon answers" in capsys.readouterr().err


def test_the_socket_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEERD_SOCKET", str(tmp_path / "else.sock"))
    monkeypatch.setenv("PEERD_ADMIN__SOCKET", str(tmp_path / "daemon.sock"))
    assert main(["status"]) == 69
    assert "else.sock" in capsys.readouterr().err


def test_whom_commands_ask_and_where_a_daemon_listens_are_two_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEERD_SOCKET", str(tmp_path / "else.sock"))
    monkeypatch.setattr("peerd.cli.locations.SYSTEM_FILE", tmp_path / "none")
    assert load_run([]).config.admin.socket == ADMIN_SOCKET, "a daemon that is started in that shell"
    monkeypatch.delenv("PEERD_SOCKET")
    monkeypatch.setenv("PEERD_ADMIN__SOCKET", str(tmp_path / "daemon.sock"))
    assert load_run([]).config.admin.socket == str(tmp_path / "daemon.sock")
    assert admin_address(None) == ADMIN_SOCKET
    assert admin_address("/given.sock") == "/given.sock"


def test_where_nobody_answers_a_running_local_cluster_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PEERD_SOCKET", str(tmp_path / "else.sock"))
    own = process_ref(os.getpid())
    for name, process in (("gone", None), ("other", own), ("local", own)):
        nodes = tuple(NodeRecord(index=index, id="", port=1, process=process if index else None) for index in range(2))
        layout = Layout(default_directory(name))
        layout.directory.mkdir(parents=True)
        layout.write(ClusterRecord(name=name, socket_dir=f"/run/{name}", nodes=nodes))
    assert main(["status"]) == 69
    error = capsys.readouterr().err
    assert (
        error.endswith("); a local cluster runs here: export PEERD_SOCKET=/run/local/1.sock\n")
        and error.count("\n") == 1
    )
    Layout(default_directory("local")).record_file.write_text("damaged")
    assert main(["status"]) == 69
    assert capsys.readouterr().err.endswith("export PEERD_SOCKET=/run/other/1.sock\n")


def test_the_socket_comes_from_the_standard_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "peerd.toml"
    file.write_text('[admin]\nsocket = "/tmp/from-file.sock"\n')
    monkeypatch.delenv("PEERD_SOCKET", raising=False)
    monkeypatch.setattr("peerd.cli.locations.SYSTEM_FILE", file)
    assert main(["status"]) == 69
    assert "/tmp/from-file.sock" in capsys.readouterr().err
