"""Nodes that come and go, and the messages that are sent meanwhile."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from peerd.cli.sim import app
from peerd.errors import ConfigError, ExitCode
from peerd.ids import NodeId
from peerd.node.node import SENT, SENT_BYTES
from peerd.overlay.leafset import Leaves
from peerd.sim.churn import Churn, ChurnSettings, TraceChurn, TraceEvent, read_trace
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import NetworkConfig, State
from peerd.sim.runner import run_scenario
from peerd.sim.scenario import load_scenario, parse_scenario
from peerd.sim.simulation import Place, Simulation
from peerd.sim.truth import RingOracle
from peerd.sim.workload import LOST_AFTER_S, Workload
from peerd.testing.simulation import ring

# Poisson churn


def churned(settings: ChurnSettings, duration_s: float, *, nodes: int = 20, seed: int = 1) -> tuple[Simulation, Churn]:
    """A ring, and churn in it for a while."""
    simulation = ring(nodes, seed)
    churn = Churn(simulation, settings)
    churn.start()
    simulation.run_for(duration_s)
    churn.stop()
    return simulation, churn


def test_population_and_rates_are_as_asked() -> None:
    mean_s, duration_s = 60.0, 180.0
    simulation, churn = churned(ChurnSettings(session_mean_s=mean_s), duration_s)
    expected = 20 * duration_s / mean_s
    slack = 4 * math.sqrt(expected)  # four standard deviations of a Poisson count
    assert abs(churn.report.arrivals - expected) < slack and abs(churn.report.departures - expected) < slack
    assert 8 <= len(simulation.live_nodes()) <= 32
    assert simulation.truth.node_seconds == pytest.approx(20 * simulation.now, rel=0.3)


def test_endings_come_in_their_shares() -> None:
    settings = ChurnSettings(session_mean_s=60.0, silent=0.2, graceful=0.3)
    simulation, churn = churned(settings, 200.0)
    report = churn.report
    for count, share in ((report.silenced, 0.2), (report.left, 0.3), (report.killed, 0.5)):
        assert abs(count / report.departures - share) < 4 * math.sqrt(share * (1 - share) / report.departures)
    states = [place.state for place in simulation.nodes]
    assert states.count(State.SILENT) == report.silenced
    assert states.count(State.STOPPED) == report.killed + report.left


def test_who_returns_has_its_id_and_a_larger_epoch() -> None:
    simulation, churn = churned(ChurnSettings(session_median_s=60.0, returning=1.0), 150.0)
    assert churn.report.returns > 5
    assert len(simulation.nodes) == 20 + churn.report.arrivals - churn.report.returns
    assert sum(place.boot_epoch - 1 for place in simulation.nodes) == churn.report.returns
    _, never = churned(ChurnSettings(session_median_s=60.0), 100.0)
    assert never.report.returns == 0


def test_churn_stops_and_comes_from_the_seed() -> None:
    settings = ChurnSettings(session_mean_s=60.0, returning=0.5)
    simulation, churn = churned(settings, 120.0)
    digest, before = simulation.digest(), (churn.report.arrivals, churn.report.departures)
    simulation.run_for(120.0)
    assert (churn.report.arrivals, churn.report.departures) == before
    assert churned(settings, 120.0)[0].digest() == digest


def test_the_last_node_is_spared() -> None:
    simulation, churn = churned(ChurnSettings(session_mean_s=5.0, population=1), 300.0, nodes=2)
    assert churn.report.spared > 0
    assert len(simulation.live_nodes()) >= 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "give session_median_s or session_mean_s"),
        ({"session_median_s": 1.0, "session_mean_s": 1.0}, "give session_median_s or session_mean_s"),
        ({"session_mean_s": 1.0, "silent": 0.7, "graceful": 0.7}, "together at most 1"),
        ({"session_mean_s": 0.0}, "greater than 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        ChurnSettings.model_validate(settings)


# Traces


def test_trace_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# a trace\n\n5 a down silence\n0 a up  # founds\n1.5 b up\n9 b down\n7e0 a up\n", "utf-8")
    assert read_trace(path) == [
        TraceEvent(0.0, "a", True, ""),
        TraceEvent(1.5, "b", True, ""),
        TraceEvent(5.0, "a", False, "silence"),
        TraceEvent(7.0, "a", True, ""),
        TraceEvent(9.0, "b", False, "kill"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x a up", "line 1: expected seconds, 0 or more, not 'x'"),
        ("0 a up\n-1 b up", "line 2: expected seconds"),
        ("nan a up", "line 1: expected seconds"),
        ("inf a up", "line 1: expected seconds"),
        ("0 a", "line 1: expected TIME NODE up"),
        ("0 a up now", "line 1: expected TIME NODE up"),
        ("0 a up\n1 a down politely", "one of kill, silence, leave"),
        ("0 a down", "line 1: a is down already"),
        ("0 a up\n3 a up\n2 b up", "line 2: a is up already"),
    ],
)
def test_bad_trace_names_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)


@pytest.mark.parametrize("name", ["nothing.txt", "no\0thing.txt"])
def test_missing_trace_is_a_config_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: .*(No such file|null)"):
        read_trace(tmp_path / name)


def test_trace_is_played() -> None:
    simulation = Simulation(1)
    endings = {"a": "kill", "b": "silence", "c": "leave"}
    events = [TraceEvent(number, name, True, "") for number, name in enumerate("abcd")]
    events += [TraceEvent(20.0, name, False, ending) for name, ending in endings.items()]
    events += [TraceEvent(30.0, "b", True, "")]
    churn = TraceChurn(simulation, events)
    simulation.run_for(10.0)
    churn.start()
    simulation.run_for(19.0)
    assert len(simulation.truth.ready) == 4
    simulation.run_for(2.0)
    assert [place.state for place in simulation.nodes] == [
        *(State.STOPPED, State.SILENT, State.STOPPED, State.RUNNING),
    ]
    simulation.run_for(30.0)
    assert [place.boot_epoch for place in simulation.nodes] == [1, 2, 1, 1]
    assert sorted(simulation.truth.ready.ids) == sorted(simulation.nodes[index].id for index in (1, 3))
    report = churn.report
    assert (report.arrivals, report.returns, report.killed, report.silenced, report.left) == (5, 1, 1, 1, 1)


# The truth, and what is kept of the dead


def test_truth_follows_joins_deaths_and_leaves() -> None:
    simulation = Simulation(2)
    simulation.start(3, spacing_s=1.0)
    simulation.run_for(0.5)
    assert len(simulation.truth.running) == len(simulation.truth.ready) == 1
    simulation.run_for(10.0)
    assert simulation.truth.ready.ids == RingOracle.of(simulation).ids
    first, second, third = simulation.nodes
    simulation.stop(first)
    simulation.run_for(1.0)
    assert first.id not in simulation.truth.ready, "who has left answers for nothing"
    simulation.silence(second)
    assert simulation.truth.ready.ids == [third.id] and simulation.truth.running == [2]
    assert set(simulation.truth.ended) == {first.id, second.id}
    simulation.restart(first)
    simulation.run_for(0.0)
    assert simulation.truth.running == [0, 2] and first.id not in simulation.truth.ended


def test_traffic_of_the_dead_is_not_forgotten() -> None:
    simulation = ring(6)
    before = simulation.traffic()
    simulation.kill(simulation.nodes[2])
    simulation.bury(simulation.nodes[2])
    simulation.bury(simulation.nodes[3])  # lives: left alone
    assert simulation.nodes[2].current is None and simulation.nodes[3].current is not None
    assert simulation.traffic() == before
    simulation.restart(simulation.nodes[2])
    simulation.run_for(30.0)
    assert simulation.nodes[2].node.is_ready
    assert all(simulation.traffic()[type_id][SENT] >= counts[SENT] for type_id, counts in before.items())


@pytest.mark.parametrize("end", [Simulation.kill, Simulation.silence, Simulation.stop])
def test_who_is_buried_takes_no_memory(end: Callable[[Simulation, Place], None]) -> None:
    simulation = ring(6)
    simulation.run_for(10.0)
    place = simulation.nodes[2]
    overlay = weakref.ref(place.node.overlay)
    end(simulation, place)
    simulation.run_for(1.0)
    simulation.bury(place)
    simulation.run_for(600.0)  # its timers are in the engine's queue until then
    gc.collect()
    assert overlay() is None


# The workload


def run_workload(simulation: Simulation, rate_per_s: float = 20.0, duration_s: float = 30.0) -> Workload:
    """Messages for a while, and time for the last one to arrive."""
    workload = Workload(simulation, rate_per_s)
    workload.start()
    simulation.run_for(duration_s)
    workload.stop()
    simulation.run_for(LOST_AFTER_S + 1.0)
    assert workload.pending == 0
    return workload


def test_calm_ring_delivers_everything_at_the_root() -> None:
    network = NetworkConfig(jitter=0.0, up_bytes_per_s=None, down_bytes_per_s=None)
    simulation = ring(40, latency=ConstantLatency(0.02), network=network, settle_s=60.0)
    report = run_workload(simulation).report
    assert abs(report.sent - 600) < 4 * math.sqrt(600)
    assert report.right == report.delivered == report.judged == report.sent
    assert (report.wrong, report.lost, report.orphaned, report.duplicates) == (0, 0, 0, 0)
    assert (report.right_share, report.wrong_share, report.lost_share) == (1.0, 0.0, 0.0)
    assert 0.9 < report.mean_hops < 2.0
    # every hop takes 20 ms, so the stretch is the mean number of hops of those that left their source
    far = sum(time > 0 for time in report.times_s)
    assert report.stretch == pytest.approx(report.hops_sum / far)
    assert report.path_s_sum == pytest.approx(0.02 * report.hops_sum)
    assert report.quantile_s(0.5) == pytest.approx(0.02)


def test_rates_are_what_nodes_sent() -> None:
    simulation = ring(10)
    before = simulation.traffic()
    workload = Workload(simulation, 20.0)
    workload.start()
    simulation.run_for(50.0)
    workload.stop()
    after, report = simulation.traffic(), workload.report
    assert report.node_seconds == pytest.approx(500.0) and report.duration_s == pytest.approx(50.0)
    sent = sum(counts[SENT] for counts in after.values()) - sum(counts[SENT] for counts in before.values())
    sent_bytes = sum(counts[SENT_BYTES] for counts in after.values())
    sent_bytes -= sum(counts[SENT_BYTES] for counts in before.values())
    rates = {rate.message: rate for rate in report.rates}
    assert sum(rate.sent_per_s for rate in report.rates) == pytest.approx(sent / 500.0)
    assert report.bytes_per_s == pytest.approx(sent_bytes / 500.0)
    control = sum(rate.sent_per_s for name, rate in rates.items() if name != "Route")
    assert report.control_per_s == pytest.approx(control)
    assert report.maintenance_per_s == pytest.approx(control - rates["RouteAck"].sent_per_s)
    json.dumps(report.to_json())


def test_wrong_lost_and_orphaned_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = ring(12)
    workload = Workload(simulation, 1.0)
    simulation.network.configure(loss=0.999)
    for _ in range(20):
        workload.send()
    sources = {probe.source.index for probe in workload._pending.values()}
    dead = min(sources)
    sent_by_dead = sum(probe.source.index == dead for probe in workload._pending.values())
    simulation.run_for(2.0)
    simulation.kill(simulation.nodes[dead])
    simulation.run_for(LOST_AFTER_S)
    report = workload.report
    assert report.orphaned == sent_by_dead
    assert report.lost > 0 and report.sent == report.judged + report.orphaned
    assert report.lost_share == report.lost / report.judged

    simulation = ring(12)
    monkeypatch.setattr(Leaves, "closest", lambda self, key: None)
    report = run_workload(simulation, duration_s=5.0).report
    assert report.wrong > report.right > 0 and report.wrong + report.right == report.sent
    assert report.wrong_share == report.wrong / report.sent


def test_second_deliveries_and_moved_roots_are_counted() -> None:
    simulation = ring(12)
    workload = Workload(simulation, 1.0)
    for _ in range(50):
        workload.send()
    (body, probe), *_ = ((body, probe) for body, probe in workload._pending.items() if probe.root != probe.source.id)
    root = simulation.places[NodeId(probe.root)]
    simulation.run_for(5.0)
    root.node.deliver(probe.key, 0x7EFF, body, probe.source.peer)
    assert workload.report.duplicates == 1 and workload.report.right == 50
    workload.send()
    ((_, probe),) = workload._pending.items()
    simulation.kill(simulation.places[probe.root])
    simulation.run_for(LOST_AFTER_S + 1.0)
    assert workload.report.moved + workload.report.orphaned == 1


def test_nobody_to_send_is_no_error() -> None:
    simulation = Simulation(1)
    assert not Workload(simulation, 1.0).send()


# Scenarios

CHURN = """
name = "churny"
nodes = 12
[[phases]]
name = "join"
duration_s = 20
[[phases]]
name = "churn"
duration_s = 60
actions = [
    { do = "churn", session_mean_s = 60, graceful = 0.3, silent = 0.3, returning = 0.5 },
    { do = "workload", rate_per_s = 5, at_s = 5, duration_s = 50 },
]
"""


def test_scenario_reports_churn_and_workload(tmp_path: Path) -> None:
    path = tmp_path / "churny.toml"
    path.write_text(CHURN, "utf-8")
    result = CliRunner().invoke(app, [str(path), "-o", "json"])
    assert result.exit_code == ExitCode.OK, result.output
    data = json.loads(result.stdout)
    assert data["churn"][0]["phase"] == "churn" and data["churn"][0]["arrivals"] > 0
    (workload,) = data["workloads"]
    assert workload["duration_s"] == pytest.approx(50.0) and workload["sent"] > 150
    assert {rate["message"] for rate in workload["rates"]} >= {"Route", "RouteAck", "LeafSetProbe"}
    result = CliRunner().invoke(app, [str(path)], env={"COLUMNS": "200"})
    for text in ("Churn", "Messages to keys", "Sent, a second a node", "control without acks"):
        assert text in result.stdout


def test_trace_of_a_scenario_is_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("1 x up\n2 y up\n40 x down leave\n", "utf-8")
    path = tmp_path / "traced.toml"
    path.write_text(
        '[[phases]]\nname = "all"\nduration_s = 60\nactions = [{ do = "churn_trace", file = "trace.txt" }]', "utf-8"
    )
    report = run_scenario(load_scenario(path))
    assert report.passed and report.nodes == 2 and report.live_nodes == 1
    assert report.churn[0].left == 1


@pytest.mark.parametrize(
    ("limit", "expected"), [("wrong_max", "went astray, over 0.0"), ("lost_max", "were lost, over 0.0")]
)
def test_scenario_fails_over_its_limits(limit: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actions = [{"do": "workload", "rate_per_s": 5, limit: 0.0, "duration_s": 20}]
    if limit == "wrong_max":
        monkeypatch.setattr(Leaves, "closest", lambda self, key: None)
    else:
        actions.insert(0, {"do": "network", "loss": 0.99})
    tree = {"nodes": 8, "phases": [{"duration_s": 20}, {"duration_s": 100, "actions": actions}]}
    report = run_scenario(parse_scenario(tree))
    assert report.failure is not None and expected in report.failure


def test_work_that_begins_after_its_phase_needs_a_duration() -> None:
    tree = {"nodes": 1, "phases": [{"actions": [{"do": "workload", "rate_per_s": 1}]}]}
    with pytest.raises(ConfigError, match="give duration_s"):
        run_scenario(parse_scenario(tree))
