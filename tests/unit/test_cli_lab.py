"""``peerd lab``: what is printed, what is written, and what is told when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from peerd.cli.main import main
from peerd.errors import Unavailable
from peerd.lab import drawing, pool
from peerd.lab.experiment import Point
from peerd.lab.pool import Result, run_point
from peerd.lab.registry import CORE, experiments

TINY = ("--nodes", "4,6", "--duration", "5s", "--lookups", "20", "--quick")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """The points that were run: here, instead of in processes of their own, with little time to settle."""
    points: list[Point] = []

    def run_points(wanted: Sequence[Point], **options: Any) -> Iterator[Result]:
        for point in wanted:
            points.append(point)
            yield Result(point, run_point(point))

    monkeypatch.setattr(pool, "run_points", run_points)
    return points


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    named = [line.split()[0] for line in lines]
    assert named == list(experiments()) and named[: len(CORE)] == list(CORE)
    assert main(["lab", "list", "-o", "json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in described] == named
    assert described[0]["columns"]["lost"] and described[0]["settings"]["nodes"] == [100, 300, 1000, 5000]


def test_list_explains_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list", "overlay/clogs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for column in CORE["overlay/clogs"].columns:
        assert any(column.heading in line and column.key in line and column.meaning in line for line in lines)
    assert main(["lab", "list", "overlay/clog"]) == 2


def test_run_prints_a_table_and_writes_results_and_charts(
    ran: list[Point], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="charts need the extra lab")
    words = ["lab", "run", "overlay/hops", *TINY, "--topology", "constant", "--seeds", "2", "--out", str(tmp_path)]
    assert main([*words, "--png"]) == 0
    out = capsys.readouterr().out
    assert "overlay/hops: hops, cost and state" in out and "log16 N + 0.1" in out
    assert [(point.nodes, point.seed) for point in ran] == [(4, 1), (4, 2), (6, 1), (6, 2)]
    folder = tmp_path / "overlay" / "hops"
    document = json.loads((folder / "results.json").read_text())
    assert [(row["nodes"], row["seed"], row["topology"]) for row in document["rows"]] == [
        (point.nodes, point.seed, "constant") for point in ran
    ]
    assert (document["settings"]["duration_s"], document["settings"]["lookups"]) == (5.0, 20)
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 4
    names = {"hops.svg", "hops.png", "hops-distribution.svg", "hops-distribution.png"}
    assert {path.name for path in folder.iterdir()} == names | {"points", "results.json", "results.csv"}


def test_resume_runs_only_what_is_missing(ran: list[Point], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "run", "overlay/hops", *TINY, "--no-charts", "--out", str(tmp_path), "--format", "json"]
    assert main([*words, "--nodes", "4"]) == 0
    (first,) = json.loads(capsys.readouterr().out)[0]["rows"]
    assert main([*words, "--resume"]) == 0
    rows = json.loads(capsys.readouterr().out)[0]["rows"]
    assert [point.nodes for point in ran] == [4, 6], "a point ran twice"
    assert [row["nodes"] for row in rows] == [4, 6] and rows[0] == first
    assert main([*words, "--resume", "--nodes", "4", "--seed", "2"]) == 0
    assert main([*words, "--nodes", "4"]) == 0
    assert [(point.nodes, point.seed) for point in ran[2:]] == [(4, 2), (4, 1)]


def test_a_simulation_that_fails_is_told_of_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_points(points: Sequence[Point], **options: Any) -> Iterator[Result]:
        yield Result(points[0], {**run_point(points[0]), "failure": "the sky fell"})
        yield Result(points[1], None, "its process was ended by SIGKILL")

    monkeypatch.setattr(pool, "run_points", run_points)
    assert main(["lab", "run", "overlay/hops", *TINY, "--no-charts", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "nodes=4 topology=euclidean seed=1: the sky fell" in captured.err
    assert "nodes=6 topology=euclidean seed=1: its process was ended by SIGKILL" in captured.err
    (row,) = json.loads((tmp_path / "overlay/hops/results.json").read_text())["rows"]
    assert row["nodes"] == 4


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["overlay/hop"], 2, 'did you mean "overlay/hops"'),
        (["nothing"], 2, "overlay, overlay/churn"),
        ([], 2, "NAME"),
        (["overlay/hops", "--nodes", "10,x"], 2, "expected sizes"),
        (["overlay/hops", "--nodes", "0"], 2, "expected sizes"),
        (["overlay/hops", "--duration", "soon"], 2, "--duration"),
        (["overlay/hops", "--duration", "0s"], 2, "--duration"),
        (["overlay/hops", "--topology", "shpere"], 78, 'did you mean "sphere"'),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(
    ran: list[Point], words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "run", *words, "--no-charts", "--out", str(tmp_path / "lab")]) == code
    assert told in " ".join(capsys.readouterr().err.split())
    assert not ran and not (tmp_path / "lab").exists()


def test_without_matplotlib_nothing_runs_unless_charts_are_left_out(
    ran: list[Point], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Any:
        raise Unavailable("charts need matplotlib: pip install 'peerd[lab]'")

    monkeypatch.setattr(drawing, "_matplotlib", missing)
    words = ["lab", "run", "overlay/hops", *TINY, "--nodes", "4", "--out", str(tmp_path)]
    assert main(words) == 69
    assert "pip install 'peerd[lab]'" in capsys.readouterr().err and not ran
    assert main([*words, "--no-charts"]) == 0 and len(ran) == 1


def test_neither_help_nor_list_loads_matplotlib() -> None:
    for words in (["--help"], ["lab", "list"]):
        code = f"import sys; from peerd.cli.main import main; main({words}); print(*sys.modules, file=sys.stderr)"
        result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        loaded = set(result.stderr.split())
        assert ("peerd.cli.lab" in loaded) == (words[0] == "lab") and not loaded & {"matplotlib", "numpy"}
        assert ("peerd.lab.registry" in loaded) == (words[0] == "lab")


def test_a_sweep_keeps_each_row_and_says_how_to_repeat_what_failed(
    ran: list[Point], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["lab", "sweep", "overlay/hops", "--quick", "--no-charts", "--out", str(tmp_path), "--resume"]
    tiny = ["--grid", "duration=5s", "--grid", "lookups=20", "--grid", "settle=1s", "--grid", "topology=constant"]
    assert main([*wanted, *tiny, "--grid", "nodes=4", "--seeds", "0:2", "-o", "json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert [(row["nodes"], row["seed"]) for row in document["rows"]] == [(4, 0), (4, 1)]
    assert len(list((tmp_path / "overlay/hops/rows").iterdir())) == 2
    assert main([*wanted, *tiny, "--grid", "nodes=4,6", "--seeds", "0:2", "-o", "csv"]) == 0
    assert [(point.nodes, point.seed) for point in ran] == [(4, 0), (4, 1), (6, 0), (6, 1)]
    told = json.loads((tmp_path / "overlay/hops/results.json").read_text())
    assert len(told["rows"]) == 4 and told["settings"]["grid"]["nodes"] == [4, 6]
    capsys.readouterr()

    def all_fail(points: Sequence[Point], **options: Any) -> Iterator[Result]:
        yield from (Result(point, None, "it broke") for point in points)

    monkeypatch.setattr(pool, "run_points", all_fail)
    assert main([*wanted, *tiny, "--grid", "nodes=7", "--seeds", "5:6"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("repeat with: peerd lab sweep overlay/hops --grid nodes=7") and last.endswith("--seeds 5:6")
    assert main(["lab", "sweep", "overlay/nothing"]) == 2 and main([*wanted, "--grid", "node=1"]) == 2
    assert "has no 'node', did you mean \"nodes\"" in capsys.readouterr().err.replace("\n", " ")
