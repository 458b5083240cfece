"""``peerd analyze`` from the outside: exit codes, messages, formats."""

from __future__ import annotations

import csv
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from peerd.cli.analyze import analyze, time_of
from peerd.cli.output import Output
from peerd.errors import ExitCode, Unavailable
from peerd.pipeline.requirements import check_java, java_major
from peerd.telemetry.schema import SCHEMA_VERSION, NodeReady, union
from peerd.telemetry.sinks import encode_record


def run(*arguments: str) -> Result:
    application = typer.Typer()
    application.command()(analyze)
    return CliRunner().invoke(application, arguments)


def write_log(directory: Path) -> None:
    event = NodeReady(duration_s=1.0, ring_size=3.0)
    stamps = {"schema_version": SCHEMA_VERSION, "ts": 1.0, "mono_s": 1.0, "node": "a" * 32, "boot": 1, "cause": None}
    record = encode_record({**stamps, "id": 1, "event": event.KIND, **event.columns()})
    directory.mkdir(exist_ok=True)
    (directory / "events-aaaaaaaa-1-1.ndjson").write_bytes(record + record[:-9])


def fake_java(directory: Path, version_line: str) -> None:
    """A ``java`` that only says its version."""
    path = directory / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\njava version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("command not found", None),
    ],
)
def test_java_versions(text: str, version: int | None) -> None:
    assert java_major(text) == version


def test_old_java_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=r"is Java 11\. Spark needs Java 17"):
        check_java()


def test_new_java_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == 21


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run(str(tmp_path), "--out", str(tmp_path / "out"))
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "Java 17 or newer" in result.output
    assert "JAVA_HOME" in result.output


def test_without_pyspark_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(str(tmp_path), "--out", str(tmp_path / "out"))
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "pip install 'peerd[spark]'" in result.output


def test_wrong_options_are_usage_errors_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    monkeypatch.setattr("peerd.pipeline.requirements.check_java", lambda: 17)
    for options, told in (
        (["--since", "yesterday"], "how long ago"),
        (["--until", "2026-13-01"], "how long ago"),
        (["--conf", "executor.memory=4g"], "spark.executor.memory=4g"),
        (["--tables", "events,holes"], "the tables are events,"),
        (["--once"], "it needs --follow"),
        (["--follow", "--every", "5"], "a duration with its unit"),
        (["--follow", "--every", "10ms"], "at least 1 s"),
    ):
        result = run(str(tmp_path), "--out", str(tmp_path / "out"), *options)
        assert result.exit_code == ExitCode.USAGE, result.output
        assert told in " ".join(result.output.replace("│", " ").split())


def test_a_source_that_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    monkeypatch.setattr("peerd.pipeline.requirements.check_java", lambda: 17)
    monkeypatch.delattr("peerd.pipeline.session.launch_gateway")
    nowhere = str(tmp_path / "nowhere")
    for options, told in (
        ([nowhere], "nowhere: there is no such file or folder"),
        ([nowhere, "--follow"], "nowhere: there is no such file or folder"),
        (["--engine", "duckdb", "hdfs://host/logs"], "hdfs://host/logs: only files of this machine are read here"),
    ):
        result = run(str(tmp_path), *options, "--out", str(tmp_path / "out"))
        assert result.exit_code == ExitCode.UNAVAILABLE
        assert told.replace(" ", "") in "".join(result.stderr.split())


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("2h", 1_790_000_000.0 - 7200.0),
        ("2026-09-21", 1_789_948_800.0),
        ("2026-09-21T15:33:20", 1_790_004_800.0),
        ("2026-09-21T15:33:20+02:00", 1_789_997_600.0),
    ],
)
def test_times(text: str, time_s: float) -> None:
    assert time_of(text, 1_790_000_000.0) == time_s


@pytest.mark.spark
class TestWithSpark:
    """The command with the shared session in place of one of its own."""

    def test_json_and_tables(self, spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tables are made once, and the report of it is shown in both ways."""
        from contextlib import nullcontext

        from peerd.pipeline import findings, job

        monkeypatch.setattr("peerd.pipeline.session.spark_session", lambda *arguments, **options: nullcontext(spark))
        reports: list[findings.Report] = []
        run_job = job.run_job

        def run_once(*arguments: Any, **options: Any) -> findings.Report:
            if not reports:
                reports.append(run_job(*arguments, **options))
            return reports[0]

        monkeypatch.setattr(job, "run_job", run_once)
        write_log(tmp_path)
        result = run(str(tmp_path), "--out", str(tmp_path / "out"), "-o", Output.JSON)
        assert result.exit_code == ExitCode.OK
        report = json.loads(result.stdout)
        assert (report["events"], report["corrupt"], report["missing"]) == (1, 1, 0)
        assert [row["event"] for row in report["kinds"]] == ["node.ready"]
        assert "warning: left out because corrupt: 1 of 2 lines" in result.stderr
        assert set(report["tables"]) == {"events", "losses", "nodes"}
        pages = {"report.html", "report.md", "report.json"}
        assert set(os.listdir(tmp_path / "out")) == {"events", "losses", "nodes"} | pages

        result = run(str(tmp_path), "--out", str(tmp_path / "out"))
        assert result.exit_code == ExitCode.OK
        assert "1 event of 1 boot of nodes from 1 file" in result.stdout
        assert f"tables in {tmp_path / 'out'}: events, losses, nodes" in "".join(result.stdout.splitlines())
        assert "Bytes by kind" not in result.stdout, "there are none"

    def test_follow(self, spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is there now; Spark's stream itself is in test_follow.py."""
        from contextlib import nullcontext

        monkeypatch.setattr("peerd.pipeline.session.spark_session", lambda *arguments, **options: nullcontext(spark))
        monkeypatch.setattr("peerd.cli.analyze.find_events", lambda: union({}))
        monkeypatch.setattr("peerd.cli.analyze.plugin_tables", list)  # each takes its time
        write_log(tmp_path / "logs")
        options = ("--out", str(tmp_path / "out"), "--follow", "--once")
        result = run(str(tmp_path / "logs"), *options)
        assert result.exit_code == ExitCode.OK, result.output
        lines = result.stdout.splitlines()
        assert re.fullmatch(r"\d\d:\d\d:\d\d 1 new event in \d+\.\d s", lines[0])
        assert re.fullmatch(r"\d\d:\d\d:\d\d tables renewed in \d+\.\d s: events, losses, nodes", lines[1])
        assert re.search(r"warning: left out 1 corrupt line: .*/logs/", result.stderr)
        result = run(str(tmp_path / "logs"), *options, "-o", Output.CSV)
        told = list(csv.DictReader(result.stdout.splitlines()))
        assert [(row["batch"], json.loads(row["tables"])) for row in told] == [("", ["events", "losses", "nodes"])], (
            "no more news"
        )


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "exit_code", "told"),
    [
        (["--driver-memory", "100m"], ExitCode.FAILURE, "Insufficient driver memory"),
        (["--master", "spark://127.0.0.1:1"], ExitCode.FAILURE, "Spark failed"),
        (
            ["--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.port=0"],
            ExitCode.OK,
            "1 event of",
        ),
    ],
)
def test_masters_and_what_does_not_start(options: list[str], exit_code: int, told: str, tmp_path: Path) -> None:
    write_log(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "peerd", "analyze", str(tmp_path), "--out", str(tmp_path / "out"), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, told in result.stdout + result.stderr) == (exit_code, True), result.stderr
    assert "Traceback" not in result.stderr
