"""The benchmark runs: every section in a tiny configuration. Its numbers are asserted in shape only, never in speed."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from bench import command, namespaces
from bench.measure import Aim, Bench, BenchFailure, Recorder, Row, Scale, Section, at_least, at_most, ratios
from bench.processes import Children, Conversation, cpu_s, free_ports, resident_mb
from bench.sections import SECTIONS, aggregation

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc and starts local clusters"),
]

ALWAYS = {
    "micro": {
        "message: encode",
        "message: decode and validate",
        "partial: read from a file",
        "partial: read from NDJSON",
        "statement: verify",
        "XXH3",
    },
    "filter": {
        "narrow ranges: index / numpy scan",
        "wide ranges: index / numpy scan",
        "selectors: index / loop",
        "selectors: memory a filter",
        "bombs: slowest refusal",
    },
    "matching": {
        "100: index / loop",
        "200: memory a subscription",
        "100 filters: index",
        "crossover",
    },
    "xpath": {
        "news, 10: all queries together",
        "news, 10: one query, lxml",
        "news, 10: all / one query",
        "news, 10: memory a query",
    },
    "swap": {"swap, 1 MiB both ways, no TLS", "swap, 1 MiB both ways, TLS 1.3", "XXH3 alone, one thread"},
    "control": {"validated messages, no TLS", "validated messages, TLS 1.3", "msgpack alone: pack and unpack"},
    "forming": {
        "8 nodes form, processor time",
        "8 nodes, frames a processor second",
        "8 nodes, memory a node",
        "8 nodes, an hour of churn, processor time",
    },
    "simulator": {
        "small messages delivered",
        "small messages, bare heap",
        "small: simulator / bare heap",
        "memory a node",
    },
    "pubsub": {
        "16 subscribers: peerd",
        "48 subscribers: peerd",
        "peerd: useful deliveries",
        "peerd: processor time",
        "peerd: received a useful delivery",
        "peerd: 99 % delivered within",
        "peerd, replicated",
    },
    "events": {
        "received: published and delivered",
        "replicated: processor of all daemons",
        "burst: processor of all daemons",
        "lone events: processor of all daemons",
        "99 % delivered within",
    },
    "telemetry": {"published without a sink", "files / none", "a collector that reads nothing / none"},
    "streams": {
        "peerd: published",
        "peerd: wanted documents",
        "peerd: received for a wanted byte",
        "peerd: sent for a published byte",
        "peerd: 99 % delivered within",
    },
    "rest": {
        "start-up to ready",
        "at rest: RSS",
        "at rest: CPU",
        "with an idle stream: RSS",
        "with an idle stream: CPU",
        "3 daemons up, ring complete",
    },
    "documents": {"the last has the file", "the producer sends", "all daemons"},
    "measurement": {
        "6 clients ask: messages",
        "6 clients ask: processor of all daemons",
        "3 values: half answered within",
        "one known value: 99 % answered within",
        "1 client watches: bytes",
        "6 clients watch: bytes",
    },
    "analyze": {"the whole job", "job / typed read", "an event of four times as many"},
    "sweep": {"simulations here", "as tasks of Spark", "as tasks / here"},
    "aggregation": {"2 daemons: round", "2 daemons: value bytes moved", "2 daemons: one fetches all"},
    "links": {"2 daemons: round", "2 daemons: one fetches all"},
}
"""Rows that every section has wherever it runs."""
SLOW = frozenset({"analyze", "documents", "events", "links", "measurement", "sweep", "telemetry"})
"""Their smallest scale takes ten seconds and more."""


@functools.cache
def swap_without_iperf3() -> Recorder:
    """The swap section as it runs where iperf3 is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        return run_section("swap")


def run_section(name: str) -> Recorder:
    """One section at the smallest scale."""
    [section] = [section for section in SECTIONS if section.name == name]
    recorder = Recorder()
    section.run(Bench(section.name, Scale.TINY, 1, recorder))
    return recorder


def test_every_section_is_expected_here() -> None:
    assert {section.name for section in SECTIONS} == set(ALWAYS)


@pytest.mark.parametrize("name", sorted(set(ALWAYS) - SLOW))
def test_a_section_reports_its_rows(name: str) -> None:
    # The swap section takes seconds: once is enough where iperf3 is missing in any case.
    is_same = name == "swap" and shutil.which("iperf3") is None
    check_rows(name, swap_without_iperf3() if is_same else run_section(name))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "events",
        "measurement",
        "telemetry",
        *(pytest.param(name, marks=pytest.mark.spark) for name in ("analyze", "sweep")),
    ],
)
def test_a_slow_section_reports_its_rows(name: str) -> None:
    check_rows(name, run_section(name))


@pytest.mark.long
@pytest.mark.skipif(bool(namespaces.why_not()), reason="needs root, ip and tc, for network namespaces")
@pytest.mark.parametrize("name", ["documents", "links"])
def test_a_section_of_daemons_behind_slow_links_reports_its_rows(name: str) -> None:
    check_rows(name, run_section(name))


def test_without_root_or_tools_no_namespaces_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/usr/sbin/{name}")
    for name in ("documents", "links"):
        recorder = run_section(name)
        assert recorder.rows == [] and [skip.why for skip in recorder.skips] == ["needs tc (iproute2)"]
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [skip.why for skip in run_section("documents").skips] == ["needs root, for network namespaces"]


def check_rows(name: str, recorder: Recorder) -> None:
    """What every section's rows are like."""
    assert {row.name for row in recorder.rows} >= ALWAYS[name]
    assert {row.section for row in recorder.rows} == {name}
    for row in recorder.rows:
        assert all(math.isfinite(sample) and sample >= 0 for sample in row.samples), row
        assert row.unit
    assert all(skip.why for skip in recorder.skips)


def test_without_iperf3_the_swap_is_measured_alone() -> None:
    recorder = swap_without_iperf3()
    assert [skip.why for skip in recorder.skips] == ["iperf3 is not installed"]
    assert not [row for row in recorder.rows if "iperf3" in row.name]


def test_without_mpi_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "openmpi" in aggregation.why_no_mpi()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "peerd[bench]" in aggregation.why_no_mpi()


# Rows and aims


@pytest.mark.parametrize(
    ("aim", "value", "is_met"),
    [(at_least(2.0), 2.0, True), (at_least(2.0), 1.9, False), (at_most(2.0), 2.0, True), (at_most(2.0), 2.1, False)],
)
def test_an_aim_holds_up_to_its_bound(aim: Aim, value: float, is_met: bool) -> None:
    assert aim.is_met(value) is is_met


def test_a_row_is_judged_by_its_median() -> None:
    row = Row("section", "name", "s", (9.0, 1.0, 2.0), at_most(2.0))
    assert (row.median, row.spread, row.is_met) == (2.0, 4.0, True)
    assert row.to_json()["min"] == 1.0
    assert Row("section", "name", "s", (1.0,)).is_met is None


def test_a_row_without_samples_is_a_failure() -> None:
    with pytest.raises(BenchFailure, match="no sample of 'x'"):
        Bench("section", Scale.TINY, 1, Recorder()).row("x", "s", [])


def test_ratios_are_taken_run_by_run() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


# The command line


def test_the_table_names_aims_misses_and_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def section(bench: Bench) -> None:
        bench.row("fast", "1/s", [12_345.6, 12_000.0, 13_000.0], at_least(10.0))
        bench.row("slow", "s", [3.0], at_most(1.0), "a remark")
        bench.skip("the other one", "it is not installed")

    assert run_command([], section) == 0
    output = capsys.readouterr().out
    fast, slow = (next(line for line in output.splitlines() if name in line) for name in ("fast", "slow"))
    assert fast.split() == ["made-up", "fast", "12,346", "8%", "1/s", ">=", "10", "met"]
    assert slow.split() == ["slow", "3", "one", "run", "s", "<=", "1", "MISSED", "a", "remark"]
    assert "left out: the other one (it is not installed)" in output


def test_json_has_rows_skips_and_where_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["-o", "json"], lambda bench: bench.row("fast", "1/s", [1.0], at_least(10.0))) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"][0]["is_met"] is False
    assert answer["rows"][0]["samples"] == [1.0]
    assert {"cores", "python", "load_average_before", "load_average_after", "duration_s"} <= set(answer["about"])


def test_a_section_that_fails_leaves_the_others_and_shows_in_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(bench: Bench) -> None:
        raise BenchFailure("wrong sums")

    assert run_command([], failing, lambda bench: bench.row("other", "s", [1.0])) == 1
    output = capsys.readouterr().out
    assert "FAILED: made-up: wrong sums" in output
    assert "other" in output


def test_an_interrupt_is_said_and_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(bench: Bench) -> None:
        raise KeyboardInterrupt

    assert run_command([], interrupted) == 130
    assert "has been ended" in capsys.readouterr().err


def run_command(arguments: list[str], *sections: Callable[[Bench], None]) -> int:
    """The command line with made-up sections."""
    made_up = tuple(Section("made-up", "for this test", section) for section in sections)
    return command.main([*arguments, "--tiny"], sections=made_up)


# Processes


def test_children_end_with_their_context_whatever_they_do() -> None:
    stubborn = (
        "import signal,sys; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
    )
    with pytest.raises(RuntimeError, match="as it were"), Children() as children:
        processes = [
            children.start([sys.executable, "-c", stubborn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            assert resident_mb(process.pid) > 1
            assert cpu_s(process.pid) > 0
        raise RuntimeError("as it were")
    assert [process.returncode for process in processes] == [-15, -15]


def test_a_child_that_ends_early_is_a_failure_not_a_wait() -> None:
    with Children() as children:
        conversation = Conversation(children, "bench.simulated", ["no-number"])
        with pytest.raises(BenchFailure, match="ended with status 1"):
            conversation.ask("ring", timeout_s=30)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(8))) == 8
