"""Scenario files, their runner, the determinism check and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from peerd.cli.sim import sim
from peerd.errors import ConfigError, ExitCode
from peerd.ids import format_id
from peerd.services.records.config import RecordsConfig
from peerd.sim import determinism
from peerd.sim.determinism import Trace, check_determinism, compare, trace_of
from peerd.sim.engine import CHECKPOINT_EVENTS, mark_of
from peerd.sim.runner import Runner, run_scenario
from peerd.sim.scenario import load_scenario, parse_scenario
from tests.support.installed import install

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name = "small"
seed = 11
nodes = 10
[[phases]]
name = "join"
duration_s = 20
actions = [{ do = "wait_ready", at_s = 2 }, { do = "check", at_s = 20 }]
[[phases]]
duration_s = 20
actions = [{ do = "lookups", count = 50, success_min = 1.0 }]
"""

FAILING = (
    SMALL
    + """
[[phases]]
name = "too early"
actions = [{ do = "silence", count = 1 }, { do = "check", checkers = ["ring"] }]
"""
)

PLUGIN = """
from peerd.api import Plugin, PluginConfig, on_timer


class Config(PluginConfig):
    period_s: float = 1.0


class Hashy(Plugin):
    name = "hashy"
    Config = Config

    def start(self, host):
        super().start(host)
        self.ticks = 0
        delay_s = self.config.period_s
        if delay_s > 5:  # the bug that the check must find: the order of a hash table
            delay_s += hash("seed of the process") % 1000 / 1000
        host.set_timer("tick", delay_s)

    @on_timer("tick")
    def on_tick(self, payload):
        self.ticks += 1
"""

FRONT = """
from peerd.front import Front
from peerd.sim.checkers import Checker


class Ticked(Checker):
    def check_node(self, simulation, place):
        return [] if place.node.plugins["hashy"].ticks else ["no tick"]


class Hashed(Ticked):
    holds_always = True


class HashyFront(Front):
    name = "hashy"

    def scenario_actions(self):
        return {"look": look}

    def checkers(self):
        return {"ticked": Ticked, "hashed": Hashed}


def look(place, arguments, report):
    report({"did": "look", "ticks": place.node.plugins["hashy"].ticks, **arguments})
"""

app = typer.Typer()
app.command()(sim)


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def hashy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A third party's plugin, installed for this process and those it starts."""
    return install(
        tmp_path,
        monkeypatch,
        {"hashy_plugin": PLUGIN, "hashy_front": FRONT},
        plugins={"hashy": "hashy_plugin:Hashy"},
        fronts={"hashy": "hashy_front:HashyFront"},
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write the scenario `SMALL` to a file."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodez = 3", 'nodez: unknown key, did you mean "nodes"?'),
        ("[network]\nlos = 0.1", 'network.los: unknown key, did you mean "loss"?'),
        ("[overlay]\nheartbeat = 1", 'overlay.heartbeat: unknown key, did you mean "heartbeat_interval"?'),
        ('[[phases]]\nactions = [{ do = "join", cuont = 3 }]', "phases[0].actions[0].cuont: unknown key, did you mean"),
        ('[[phases]]\nactions = [{ do = "check", checkers = ["leafset"] }]', 'did you mean "leaf_sets"?'),
        ('[[phases]]\nactions = [{ do = "kill", count = 1, share = 0.5 }]', "give one of count, share and nodes"),
        ('[[phases]]\nactions = [{ do = "jion" }]', "phases[0].actions[0]: expected 'join', "),
        ("seed = -1", "seed: expected at least 0"),
        ("seed = ", "not TOML"),
        ('nodes = 2\nids = ["7"]', "ids: "),
        (f'nodes = 2\nids = ["{"ab" * 16}", "{"AB" * 16}"]', "stands there twice, for nodes 0 and 1"),
        (f'nodes = 1\nids = ["{"ab" * 16}", "{"cd" * 16}"]', "2 ids for 1 nodes"),
    ],
)
def test_bad_scenario_names_file_key_and_nearest(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)
    code, _, errors = invoke(str(path))
    assert code == ExitCode.CONFIG and expected in errors


def test_nodes_have_the_ids_that_the_file_names() -> None:
    ids = ["ab" * 16, "00" * 15 + "01"]
    runner = Runner(parse_scenario({"nodes": 4, "ids": ids}), 0, None, None)
    unnamed = Runner(parse_scenario({"nodes": 4}), 0, None, None)
    for each in (runner, unnamed):
        each.run(lambda phase, now: None)
    found = [format_id(place.id) for place in runner.simulation.nodes]
    assert found[:2] == ids and len(set(found)) == 4
    assert not set(ids) & {format_id(place.id) for place in unnamed.simulation.nodes}


def test_parameters_of_every_layer_reach_the_nodes() -> None:
    tables = {
        "overlay": {"heartbeat_interval": "3s"},
        "swap": {"offer_timeout": "7s"},
        "records": {"replicas": 5},
    }
    runner = Runner(parse_scenario({"nodes": 1, **tables}), 0, None, None)
    runner.run(lambda phase, now: None)
    runner.simulation.run_for(1.0)
    settings = runner.simulation.nodes[0].node.settings
    assert (settings.overlay.heartbeat_interval, settings.swap.offer_timeout) == (3.0, 7.0)
    records = settings.services["records"]
    assert isinstance(records, RecordsConfig) and records.replicas == 5


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_scenario(tmp_path / "nothing.toml")


def test_unknown_protocol_and_its_unknown_key(hashy: Path) -> None:
    with pytest.raises(ConfigError, match=r'protocols\.hashi: no plugin of this name .*did you mean "hashy"'):
        run_scenario(parse_scenario({"protocols": {"hashi": {}}}))
    with pytest.raises(ConfigError, match=r'protocols\.hashy\.period: .*did you mean "period_s"'):
        run_scenario(parse_scenario({"protocols": {"hashy": {"period": 1}}}))


def test_scenario_runs_and_reports(small: Path) -> None:
    report = run_scenario(load_scenario(small))
    assert report.passed and report.failure is None
    assert report.simulated_s == pytest.approx(40.0)
    assert [(phase.name, phase.begun_s) for phase in report.phases] == [("join", 0.0), ("phase 2", 20.0)]
    assert report.lookups[0].asked == report.lookups[0].correct == 50
    assert report.checks[0].passed and report.checks[0].at_s == 20.0
    assert report.messages > 100 and report.messages_bytes > report.messages * 8
    data = json.loads(json.dumps(report.to_json()))
    assert data["passed"] is True and data["trace_hash"] == report.trace_hash


def test_seed_decides_the_run(small: Path) -> None:
    scenario = load_scenario(small)
    hashes = [run_scenario(scenario, seed=seed).trace_hash for seed in (None, 11, 12)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_every_action_runs(hashy: Path) -> None:
    actions = [
        {"do": "join", "count": 8, "spacing_s": 0.2},
        {"do": "wait_ready", "at_s": 3},
        {"do": "kill", "at_s": 10, "nodes": [1]},
        {"do": "stop", "at_s": 10, "nodes": [2]},
        {"do": "silence", "at_s": 10, "nodes": [3]},
        {"do": "pause", "at_s": 10, "nodes": [4], "spacing_s": 0.5},
        {"do": "cut", "at_s": 12, "source": 0, "target": 5},
        {"do": "clog", "at_s": 12, "source": 5, "target": 6, "duration_s": 1},
        {"do": "partition", "at_s": 13, "shares": [0.5, 0.25, 0.25]},
        {"do": "network", "at_s": 13, "loss": 0.1, "duplication": 0.1},
        {"do": "heal", "at_s": 14},
        {"do": "network", "at_s": 18, "loss": 0.0, "duplication": 0.0},
        {"do": "resume", "at_s": 15},
        {"do": "restart", "at_s": 20, "share": 1.0},
        {"do": "lookups", "at_s": 80, "count": 20},
        {"do": "check", "at_s": 90},
        {"do": "call", "at_s": 90, "protocol": "hashy", "action": "look", "node": 0, "arguments": {"depth": 3}},
    ]
    tree = {"protocols": {"hashy": {}}, "phases": [{"duration_s": 100, "actions": actions}]}
    report = run_scenario(parse_scenario(tree))
    assert report.failure is None
    assert report.nodes == report.live_nodes == 8
    (call,) = report.calls
    assert call == {
        "at_s": 90.0,
        "protocol": "hashy",
        "action": "look",
        "node": 0,
        "did": "look",
        "ticks": 1,
        "depth": 3,
    }


def test_call_of_an_unknown_action_is_a_config_error(hashy: Path) -> None:
    action = {"do": "call", "at_s": 1, "protocol": "hashy", "action": "lok"}
    with pytest.raises(ConfigError, match=r'protocols\.hashy: no scenario action .lok., did you mean "look"'):
        run_scenario(parse_scenario({"nodes": 1, "phases": [{"actions": [action]}]}))


def test_a_scenario_may_name_the_checker_of_a_plugin(hashy: Path) -> None:
    def tree(at_s: float) -> dict[str, object]:
        actions = [{"do": "check", "at_s": at_s, "checkers": ["ring", "ticked"]}]
        return {"nodes": 1, "protocols": {"hashy": {}}, "phases": [{"duration_s": 5, "actions": actions}]}

    assert run_scenario(parse_scenario(tree(3.0))).failure is None
    assert "watcher: no tick" in (run_scenario(parse_scenario(tree(0.5))).failure or "")
    with pytest.raises(ConfigError, match=r'no checker .tickd., did you mean "ticked"'):
        parse_scenario({"phases": [{"actions": [{"do": "check", "checkers": ["tickd"]}]}]})


def test_checks_ask_what_a_plugin_says_holds_always(hashy: Path) -> None:
    tree = {"nodes": 1, "check_every": 1, "phases": [{"duration_s": 5}]}
    assert run_scenario(parse_scenario(tree)).failure is None
    failure = run_scenario(parse_scenario({**tree, "protocols": {"hashy": {}}})).failure
    assert "no tick" in (failure or "")


def test_node_that_is_not_there_is_a_config_error() -> None:
    tree = {"nodes": 1, "phases": [{"actions": [{"do": "kill", "nodes": [7]}]}]}
    with pytest.raises(ConfigError, match="no node 7"):
        run_scenario(parse_scenario(tree))


# Determinism


def test_one_seed_is_one_run_whatever_the_hash_seed(small: Path) -> None:
    verdict = check_determinism(small, 11)
    assert verdict.is_deterministic, str(verdict)
    assert verdict.digests[0] == run_scenario(load_scenario(small)).trace_hash
    assert "equal in both runs" in str(verdict)


def test_hash_order_is_found_out_and_located(tmp_path: Path, hashy: Path) -> None:
    path = tmp_path / "hashy.toml"
    path.write_text(
        'nodes = 1\n[protocols.hashy]\nperiod_s = 6.0\n[[phases]]\nduration_s = 10\nactions = [{ do = "check" }]',
        "utf-8",
    )
    verdict = check_determinism(path, 1)
    assert not verdict.is_deterministic
    assert verdict.time_s is not None and 6.0 <= verdict.time_s < 7.0 and verdict.node == 0
    code, _, errors = invoke(str(path), "--seed", "1", "--check-determinism")
    assert code == ExitCode.FAILURE
    assert "two runs differ" in errors and "t=6." in errors
    assert f"repeat with: peerd sim {path} --seed 1 --check-determinism" in errors


def test_first_difference_is_looked_for_in_the_first_chunk_that_differs() -> None:
    def trace(checkpoints: list[str], digest: str) -> Trace:
        points = tuple(
            ((number + 1) * CHECKPOINT_EVENTS, float(number), text) for number, text in enumerate(checkpoints)
        )
        return Trace(digest, 10_000, points, None, ())

    asked: list[int] = []

    def chunks(number: int) -> tuple[determinism.Events, determinism.Events]:
        asked.append(number)
        same = ((1.0, mark_of(1, 1)), (2.0, mark_of(2, 1)))
        return (*same, (3.0, mark_of(7, 1))), (*same, (3.5, mark_of(8, 1)))

    verdict = compare(trace(["a", "b", "c"], "x"), trace(["a", "z", "y"], "y"), chunks)
    assert asked == [1]
    assert (verdict.event, verdict.time_s, verdict.node) == (CHECKPOINT_EVENTS + 2, 3.0, 7)
    assert compare(trace(["a"], "x"), trace(["a"], "x"), chunks).is_deterministic and asked == [1]


def test_trace_reports_a_failing_scenario(tmp_path: Path) -> None:
    path = tmp_path / "failing.toml"
    path.write_text(FAILING, "utf-8")
    trace = trace_of(path, 11, 0)
    assert "ring unity" in trace["failure"]
    assert len(trace["chunk"]) == min(trace["events"], CHECKPOINT_EVENTS)


# The command


def test_command_prints_tables_and_writes_events(small: Path, tmp_path: Path) -> None:
    code, output, errors = invoke(str(small), "--events", str(tmp_path / "events"))
    assert code == ExitCode.OK, errors
    for text in ("small, seed 11", "simulated time", "trace hash", "Lookups", "100.00%", "holds"):
        assert text in output
    (path,) = (tmp_path / "events").iterdir()
    assert path.name.endswith(".ndjson")


def test_command_prints_json(small: Path) -> None:
    code, output, _ = invoke(str(small), "--seed", "5", "-o", "json", "--check-determinism")
    data = json.loads(output)
    assert code == ExitCode.OK and data["passed"] and data["deterministic"] and data["seed"] == 5
    assert data["repeat"].endswith("--seed 5 --check-determinism")


def test_failure_prints_the_command_that_repeats_it(tmp_path: Path) -> None:
    path = tmp_path / "failing run.toml"
    path.write_text(FAILING, "utf-8")
    code, output, errors = invoke(str(path), "--seed", "3")
    assert code == ExitCode.FAILURE
    assert "does not hold" in output and "seed 3" in errors
    assert f"repeat with: peerd sim '{path}' --seed 3" in errors


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "scenarios").glob("*.toml")), ids=lambda path: path.stem)
def test_example_scenarios_pass(path: Path) -> None:
    report = run_scenario(load_scenario(path))
    assert report.passed, report.failure
