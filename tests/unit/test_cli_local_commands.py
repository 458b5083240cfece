"""The commands that need no daemon: init, config, version; exit codes; start-up."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from peerd.cli import init
from peerd.cli.app import COMMANDS, COMPLETION_VARIABLE, GROUPS
from peerd.cli.locations import own_directory
from peerd.cli.main import exit_code, main
from peerd.cli.output import seconds, size
from peerd.cli.ring_drawing import ASCII, HEIGHT, UNICODE, WIDTH, DrawnNode, draw_ring, symbols_for
from peerd.cli.run import load
from peerd.config import scaffold_toml
from peerd.errors import Bug, ConfigError, PeerdError, PeerMisbehaved, ProtocolError, Unavailable
from peerd.identity.authority import ClusterAuthority
from peerd.identity.node_identity import load_node_identity
from peerd.ids import NodeId


def make(directory: Path, *options: str) -> int:
    return main(["init", "--dir", str(directory), *options])


def identity(directory: Path, cluster: str) -> NodeId:
    files = {name: directory / file for name, file in (("cert_file", "node.crt"), ("key_file", "node.key"))}
    return load_node_identity(cluster=cluster, ca_file=directory / "ca.crt", **files).node_id


# init


def test_init_makes_a_node_that_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = tmp_path / "a node"
    assert make(node, "--cluster", "blue", "--listen", "127.0.0.1:0", "--data", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert f"peerd run --config '{node}/peerd.toml'" in text and "starts a new ring" in text
    config = load(["--config", str(node / "peerd.toml")]).config
    assert (config.node.cluster, config.node.state_dir, config.admin.socket) == (
        "blue",
        str(node),
        str(node / "admin.sock"),
    )
    assert config.model_dump()["protocols"]["aggregation"]["data_root"] == str(tmp_path)
    assert identity(node, "blue")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (node, node / "node.key", node / "ca")}
    assert modes == {"a node": 0o700, "node.key": 0o600, "ca": 0o700}


def test_a_second_node_shares_the_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path / "a", "--cluster", "blue") == 0
    bootstrap = ["--bootstrap", "10.0.0.1:7420", "--bootstrap", "10.0.0.2:7420"]
    assert make(tmp_path / "b", "--ca", str(tmp_path / "a" / "ca"), *bootstrap) == 0
    assert not (tmp_path / "b" / "ca").exists()
    config = load(["--config", str(tmp_path / "b" / "peerd.toml")]).config
    assert config.node.cluster == "blue" and config.node.bootstrap == ("10.0.0.1:7420", "10.0.0.2:7420")
    assert identity(tmp_path / "a", "blue") != identity(tmp_path / "b", "blue")


def test_init_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, "--cluster", "blue") == 0
    before = identity(tmp_path, "blue")
    assert make(tmp_path) == 78
    assert "--force rewrites it" in capsys.readouterr().err
    assert make(tmp_path, "--force", "--listen", "127.0.0.1:9") == 0
    assert identity(tmp_path, "blue") == before, "--force changed the node's identity"
    config = load(["--config", str(tmp_path / "peerd.toml")]).config
    assert (config.node.cluster, config.node.listen, config.admin.http) == ("blue", "127.0.0.1:9", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "nowhere"], "node.listen"),
        (["--bootstrap", "10.0.0.1"], "node.bootstrap"),
        (["--cluster", "No Spaces"], "not a cluster name"),
        (["--ca", "/nonexistent"], "there is no CA here"),
    ],
)
def test_init_writes_nothing_when_a_setting_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert make(tmp_path / "node", *options) == 78
    assert words in capsys.readouterr().err
    assert not (tmp_path / "node").exists()


def test_init_refuses_anothers_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ClusterAuthority.create("red").save(tmp_path / "ca")
    assert make(tmp_path / "node", "--ca", str(tmp_path / "ca"), "--cluster", "blue") == 78
    assert "of the cluster 'red', not of 'blue'" in capsys.readouterr().err


def test_init_refuses_a_folder_too_deep_for_a_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path / ("x" * 100)) == 78
    assert "choose a --dir of at most 96 bytes" in capsys.readouterr().err


def test_fill_in_refuses_what_the_scaffold_lacks() -> None:
    with pytest.raises(ConfigError, match=r"no such setting: node\.nothing"):
        init.fill_in(scaffold_toml(), {"node.nothing": 1})


def test_the_default_directory() -> None:
    assert own_directory({}, 0) == Path("/var/lib/peerd")
    assert own_directory({"XDG_STATE_HOME": "/srv/state"}, 1000) == Path("/srv/state/peerd")
    assert own_directory({"XDG_STATE_HOME": "relative"}, 1000) == Path.home() / ".local/state/peerd"


# config


def test_config_check_reports_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peerd.toml"
    file.write_text('[node]\nclustre = "x"\nlisten = "nowhere"\n[swap]\nchunk_bytes = 5\n')
    assert main(["config", "check", str(file)]) == 78
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert any(f"{file}:2: node.clustre" in line and "did you mean node.cluster?" in line for line in lines)
    assert main(["config", "check", str(file), "-o", "json"]) == 78
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"] and {problem["key"] for problem in report["problems"]} == {
        "node.clustre",
        "node.listen",
        "swap.chunk_bytes",
    }


def test_config_check_of_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peerd.toml"
    file.write_text('[node]\ncluster = "blue"\n')
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"ok: {file}\n"


def test_config_show_tells_origins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "peerd.toml"
    file.write_text('[node]\nprofile = "wan"\n')
    monkeypatch.setenv("PEERD_SWAP__CHUNK_BYTES", "64KiB")
    arguments = ["config", "show", str(file), "--set", "node.cluster=blue", "-o", "json"]
    assert main(arguments) == 0
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(capsys.readouterr().out)["settings"]}
    assert rows["node.profile"] == ("wan", f"{file}:2")
    assert rows["node.cluster"] == ("blue", "flag --set")
    assert rows["swap.chunk_bytes"] == ("64KiB", "environment PEERD_SWAP__CHUNK_BYTES")
    assert rows["overlay.heartbeat_interval"] == ("10s", "profile wan")
    assert rows["node.listen"][1] == "default"


def test_config_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"PeerdConfig", "AggregationConfig"} <= set(document["$defs"])
    assert main(["config", "schema", "--events"]) == 0
    document = json.loads(capsys.readouterr().out)
    kinds = {part["if"]["properties"]["event"]["const"] for part in document["allOf"]}
    assert {"node.ready", "aggregation.round_finished"} <= kinds


# run


def test_run_without_an_identity_says_what_to_do(tmp_path: Path) -> None:
    # In a process of its own: a daemon that gets this far has set up logging, and turned the collector off, for good.
    options = ["--config", str(tmp_path), "--state-dir", str(tmp_path)]
    told = subprocess.run([sys.executable, "-m", "peerd", "run", *options], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (78, "")
    error = f"peerd: error: {tmp_path}/node.key: this node has no identity yet: make one with `peerd init`\n"
    assert told.stderr == error


def test_run_with_a_wrong_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config", str(tmp_path), "--set", "node.lisen=x"]) == 78
    assert "did you mean node.listen?" in capsys.readouterr().err


def test_run_flags_win_over_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[node]\nlisten = "127.0.0.1:1"\nbootstrap = ["127.0.0.1:2"]\n')
    loaded = load(["--config", str(tmp_path / "a.toml"), "--listen", "127.0.0.1:3", "--bootstrap", "127.0.0.1:4"])
    assert (loaded.config.node.listen, loaded.config.node.bootstrap) == ("127.0.0.1:3", ("127.0.0.1:4",))
    assert loaded.origins["node.listen"] == "flag --listen"


def test_run_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "--help"])
    assert end.value.code == 0 and "--config" in capsys.readouterr().out


# The whole program


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("peerd ")
    assert main(["version", "-o", "json"]) == 0
    assert {"peerd", "python", "plugins"} <= set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("arguments", [["nonsense"], ["status", "--nonsense"], ["route"], ["status", "-o", "xml"]])
def test_a_wrong_command_line_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: peerd" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in (
        *("init", "run", "status", "peers", "route", "ring", "aggregate", "cluster", "config"),
        *("analyze", "demo", "sim", "healthcheck", "version"),
    ):
        assert f"\n  {command} " in text, command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 78),
        (Unavailable("x"), 69),
        (PeerMisbehaved("x"), 1),
        (ProtocolError("x"), 1),
        (PeerdError("x"), 1),
    ],
)
def test_errors_have_exit_codes(error: PeerdError, code: int) -> None:
    assert exit_code(error) == code


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise Bug("impossible")

    monkeypatch.setattr("peerd.cli.app.run_command", broken)
    with pytest.raises(Bug, match="impossible"):
        main(["status"])


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(result.stderr.split())


def test_a_command_imports_only_what_it_needs() -> None:
    loaded = modules_after("from peerd.cli.main import main; main(['version'])")
    assert "typer" in loaded
    assert not loaded & {
        "httpx",
        "fastapi",
        "uvicorn",
        "cryptography",
        "peerd.node.node",
        "peerd.config",
        "rich.console",
    }


HEAVY = {"httpx", "anyio", "rich.console", "yaml", "asyncssh", "fastapi", "uvicorn", "cryptography", "pyspark"}


def test_the_list_of_commands_imports_none_of_them() -> None:
    loaded = modules_after("from peerd.cli.main import main; main(['--help'])")
    assert "protocols.aggregation.front" in loaded, "commands of plugins are listed, too"
    assert not loaded & {*HEAVY, "asyncio", "pydantic", "peerd.api", "peerd.client", "peerd.config"}
    ours = {name for name in loaded if name.startswith("peerd.cli.")}
    assert ours == {"peerd.cli.main", "peerd.cli.app"}


def test_a_command_that_asks_the_daemon_imports_little() -> None:
    loaded = modules_after("from peerd.cli.main import main; main(['status', '--socket', '/nowhere/admin.sock'])")
    assert {"peerd.client", "peerd.models.admin"} <= loaded
    unneeded = {"peerd.api", "peerd.client.streams", "peerd.config", "peerd.plugins", "peerd.quantities"}
    assert not loaded & {*HEAVY, *unneeded}


def test_each_command_has_a_summary_that_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 and "..." not in line for line in lines[1:])
    listed = {line.split()[0] for line in lines if re.match(r"  [a-z]+ {2,}", line)}
    ours = {"schema", "publish", "subscribe", "subs", "tree", "explain", "mqtt", "stream", "measure", "query", "top"}
    assert listed == {*COMMANDS, *GROUPS, "run", "aggregate", "answers", "demo", *ours}
    assert all(command() is not None for command in (COMMANDS | GROUPS).values())


def test_version_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    short = capsys.readouterr().out
    assert re.fullmatch(r"peerd \d+\.\d+\S* \(Python .+\)\n", short)
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(short)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [(["peerd", "sta"], "status"), (["peerd", "aggr"], "aggregate"), (["peerd", "ca", "ro"], "rotate")],
)
def test_completion(
    typed: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_PEERD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(typed))
    monkeypatch.setenv("COMP_CWORD", str(len(typed) - 1))
    assert main([]) == 0
    assert capsys.readouterr().out.split() == [expected]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_shown(shell: str) -> None:
    command = [sys.executable, "-m", "peerd", "--show-completion", shell]
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert COMPLETION_VARIABLE in shown.stdout


@pytest.mark.parametrize(("one", "other"), [("token", "peerd access"), ("access", "peerd token")])
def test_the_two_kinds_of_token_name_each_other(one: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([one, "--help"]) == 0
    assert other in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "peers", "version"])
def test_a_built_in_command_imports_nothing_of_a_protocol(command: str) -> None:
    loaded = modules_after(f"from peerd.cli.main import main; main([{command!r}, '--help'])")
    assert f"peerd.cli.{command}" in loaded
    assert not {name for name in loaded if name.startswith("protocols")} | (loaded & {"peerd.plugins"})


def test_the_daemon_imports_nothing_of_the_command_line() -> None:
    code = "import peerd.cli.run, peerd.daemon.service"
    loaded = modules_after(
        f"import peerd.cli.main\n{code}\nimport peerd.daemon.admin.api, protocols.aggregation.front.http"
    )
    assert "fastapi" in loaded and "structlog" in loaded
    assert not loaded & {"typer", "rich", "httpx", "peerd.client", "pyspark"}


def test_a_daemon_that_is_only_probed_does_not_load_the_admin_api() -> None:
    code = "import peerd.cli.run, peerd.daemon.service"
    find = "import peerd.plugins; peerd.plugins.find_plugins()"
    loaded = modules_after(
        f"import peerd.cli.main\n{code}\n{find}\nimport peerd.daemon.admin.server, peerd.daemon.http.gate"
    )
    assert {"uvicorn", "protocols.aggregation.plugin", "peerd.identity.issuer"} <= loaded
    assert not loaded & {"fastapi", "starlette", "opentelemetry", "peerd.models.admin", "peerd.daemon.admin.api"}
    assert not loaded & {"click", "typer", "rich", "uvicorn.main", "lark", "lxml", "numpy"}
    assert not loaded & {"prometheus_client", "difflib", "statistics"}
    assert not loaded & {
        "protocols.aggregation.requester",
        "protocols.aggregation.answer",
        "protocols.pubsub.schema.infer",
    }
    assert not {name for name in loaded if ".front." in name and name.startswith("protocols")}


# Printing


@given(st.lists(st.integers(0, 2**128 - 1), max_size=40), st.sampled_from([ASCII, UNICODE]))
def test_the_drawing_stays_in_its_frame_and_shows_the_own_node(ids: list[int], symbols: object) -> None:
    assert symbols in (ASCII, UNICODE)
    used = ASCII if symbols is ASCII else UNICODE
    own = DrawnNode(NodeId(ids[0] if ids else 0), "own")
    lines = draw_ring([own, *(DrawnNode(NodeId(number), "leaf") for number in ids)], ["centre"], used)
    assert len(lines) == HEIGHT and max(map(len, lines)) <= WIDTH
    assert sum(line.count(used.own) for line in lines) == 1
    assert any("centre" in line for line in lines)


def test_the_drawing_goes_clockwise_from_the_top() -> None:
    lines = draw_ring(
        [DrawnNode(NodeId(0), "own"), DrawnNode(NodeId(1 << 126), "leaf"), DrawnNode(NodeId(3 << 126), "known")], []
    )
    top = next(number for number, line in enumerate(lines) if "◆" in line)
    assert top <= 1
    middle = lines[HEIGHT // 2]
    assert middle.index("○") < middle.index("●") and "40000000" in middle and "c0000000" in middle


def test_symbols_fit_the_terminal() -> None:
    assert symbols_for("utf-8") is UNICODE
    assert symbols_for("ascii") is ASCII and symbols_for("no-such-encoding") is ASCII


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.000164, "164 us"),
        (0.0123, "12.3 ms"),
        (3.14159, "3.14 s"),
        (125, "2 min 5 s"),
        (90000, "1 d 1 h"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")])
def test_size(value: int, text: str) -> None:
    assert size(value) == text
