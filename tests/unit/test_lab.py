"""The frame of the lab: points, the store, charts, processes."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pytest

from peerd.errors import ConfigError, Unavailable
from peerd.lab import drawing, pool
from peerd.lab.charts import Chart, Line, Stack, lines, reference
from peerd.lab.experiment import Column, Point, Row, Settings, chosen
from peerd.lab.overlay.churn import traffic_charts
from peerd.lab.overlay.hops import hops_charts
from peerd.lab.pool import run_points
from peerd.lab.registry import CORE, find
from peerd.lab.store import ResultStore, as_csv
from peerd.lab.topologies import check, label_of, table_of
from peerd.sim.scenario import parse_scenario

HOPS = CORE["overlay/hops"]
POINT = Point("overlay/hops", 5, "constant", duration_s=5.0, lookups=10, settle_s=1.0, seed=1)

# Points


def test_points_are_all_combinations_in_the_order_of_the_table() -> None:
    settings = chosen(HOPS.quick, nodes=(10, 20), topologies=("sphere", "constant"), seed=7, seeds=2, lookups=None)
    assert settings.lookups == HOPS.quick.lookups
    points = HOPS.points(settings)
    assert [(point.nodes, point.topology, point.seed) for point in points] == [
        (nodes, topology, seed) for nodes in (10, 20) for topology in ("sphere", "constant") for seed in (7, 8)
    ]
    failures = CORE["overlay/failure"]
    assert [point.variant for point in failures.points(failures.quick)] == list(failures.variants)


def test_a_digest_is_of_everything_that_a_point_says() -> None:
    changes: list[dict[str, Any]] = [
        {"experiment": "overlay/stretch"},
        {"nodes": 6},
        {"topology": "sphere"},
        {"duration_s": 6.0},
        {"lookups": 11},
        {"settle_s": 2.0},
        {"seed": 2},
        {"variant": {"loss": 0.5}},
    ]
    assert {name for change in changes for name in change} == set(Point.__slots__)
    digests = {replace(POINT, **change).digest for change in changes}
    assert len(digests | {POINT.digest}) == len(changes) + 1
    assert Point.of_json(json.loads(json.dumps(POINT.to_json()))).digest == POINT.digest


def test_experiments_are_found_by_name_and_group() -> None:
    assert [each.name for each in find(["overlay/clogs", "overlay/hops"])] == ["overlay/clogs", "overlay/hops"]
    assert find(["overlay/clogs", "overlay"])[0].name == "overlay/clogs"
    assert {each.name for each in find(["overlay"])} == {name for name in CORE if name.startswith("overlay/")}
    with pytest.raises(ConfigError, match='did you mean "overlay/hops"'):
        find(["overlay/hop"])


@pytest.mark.parametrize(
    ("value", "digits", "cell"),
    [(1.23456, 2, 1.23), (1234.5, 0, 1234), (None, 2, "-"), ("vanish", 2, "vanish"), (7, 0, 7)],
)
def test_cells(value: object, digits: int, cell: object) -> None:
    assert Column("key", "heading", "meaning", digits).cell({"key": value}) == cell


# Topologies


def test_topologies_by_name_and_by_file(tmp_path: Path) -> None:
    assert table_of("transit-stub") == {"model": "transit-stub"}
    rtt = tmp_path / "rtt.txt"
    rtt.write_text("0.4\n62.1 0.5\n")
    assert table_of(str(rtt)) == {"model": "matrix", "file": str(rtt)}
    assert label_of(str(rtt)) == "rtt.txt" and label_of(f"two cities={rtt}") == "two cities"
    assert table_of(f"two cities={rtt}") == table_of(str(rtt))
    check(str(rtt), seed=1)
    table = tmp_path / "scaled.toml"
    table.write_text('[topology]\nmodel = "matrix"\nfile = "rtt.txt"\nscale_mean_rtt = "180ms"\n')
    assert table_of(str(table)) == {"model": "matrix", "file": str(rtt), "scale_mean_rtt": "180ms"}
    check(str(table), seed=1)


def test_a_graph_of_routers_is_told_by_its_name_and_is_scaled(tmp_path: Path) -> None:
    graph = tmp_path / "inet-3.txt"
    graph.write_text("3 2\nR 0 1 1\nR 1 2 2\nR 2 3 3\n0 1 5\n1 2 5\n")
    table = table_of(f"three={graph}@40ms")
    assert table == {"model": "inet", "file": str(graph), "scale_mean_rtt": 0.04}
    check(f"three={graph}@40ms", 1)
    with pytest.raises(ConfigError, match="expected @TIME"):
        table_of(str(graph))


def test_a_topology_is_scaled_to_a_mean_round_trip(tmp_path: Path) -> None:
    rtt = tmp_path / "rtt.txt"
    rtt.write_text("0.4\n62.1 0.5\n")
    assert table_of(f"two={rtt}@180ms") == {"model": "matrix", "file": str(rtt), "scale_mean_rtt": 0.18}
    assert table_of(f"two={rtt}#1@180ms") == {**table_of(f"{rtt}@180ms"), "slice": 1}
    at = tmp_path / "rtt@home.txt"
    at.write_text(rtt.read_text())
    assert table_of(str(at)) == {"model": "matrix", "file": str(at)}
    latency = parse_scenario({"topology": table_of("euclidean@180ms")}).topology.build(seed=1)
    pairs = [(one, other) for one in range(200) for other in range(one)]
    assert 2 * fmean(latency.latency_s(*pair) for pair in pairs) == pytest.approx(0.18, rel=0.05)
    for given, latency_s in (("constant@100ms", 0.05), ("zero=constant@0s", 0.0)):
        assert table_of(given) == {"model": "constant", "latency_s": latency_s}
        check(given, 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("euclidean@fast", None, "expected a duration with its unit"),
        ("euclidean@0s", None, "above 0"),
        ("spehre@1s", None, 'did you mean "sphere"'),
        ("spehre", None, 'no file and no model, did you mean "sphere"'),
        ("bad.toml", "[topology", "not TOML"),
        ("other.toml", "[network]\n", r"expected a table \[topology\]"),
        ("typo.toml", '[topology]\nmodell = "sphere"\n', 'did you mean "model"'),
        ("bad.txt", "abc\n", r"bad\.txt"),
        ("bad.npz", "abc\n", r"bad\.npz"),
    ],
)
def test_a_topology_that_is_none_is_refused(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=words):
        check(str(tmp_path / name) if content is not None else name, seed=1)


# The store


def test_the_store_gives_back_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "hops")
    assert store.kept(POINT) is None
    row: Row = {"nodes": 5, "stretch": 1.25, "failure": None, "sent_per_s": {"Ping": 0.5}}
    store.keep(POINT, row)
    assert ResultStore(tmp_path / "hops").kept(POINT) == row
    assert store.kept(replace(POINT, lookups=11)) is None
    (file,) = (tmp_path / "hops" / "points").iterdir()
    for damaged in (b"", b"{", b"[]", file.read_bytes().replace(b'"nodes": 5', b'"nodes": 6')):
        file.write_bytes(damaged)
        assert store.kept(POINT) is None, damaged


def test_results_have_rows_settings_and_meanings(tmp_path: Path) -> None:
    rows: list[Row] = [{"nodes": 5, "hops_shares": [0.25, 0.75], "sent_per_s": {"Ping": 0.5}}, {"nodes": 6, "lost": 1}]
    ResultStore(tmp_path).finish(HOPS, asdict(HOPS.quick), rows)
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["rows"] == rows
    assert (document["experiment"], document["settings"]["seed"]) == ("overlay/hops", 1)
    assert set(document["settings"]) == set(Settings.__slots__)
    assert document["columns"].keys() == {column.key for column in HOPS.columns}
    table = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert table[0] == {"nodes": "5", "hops_shares.0": "0.25", "hops_shares.1": "0.75", "sent_per_s.Ping": "0.5"} | {
        "lost": ""
    }
    assert table[1]["lost"] == "1" and as_csv([]).strip() == ""


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/hops: .*cannot be made|cannot be made"):
        ResultStore(tmp_path / "file" / "hops")


# Charts


def test_lines_have_the_mean_and_range_over_seeds() -> None:
    rows = [
        {"nodes": nodes, "topology": "sphere", "seed": seed, "hops": hops}
        for nodes, seed, hops in ((20, 1, 3.0), (10, 1, 1.0), (10, 2, 2.0), (20, 2, None))
    ]
    (line,) = lines(rows, "nodes", "hops", "topology", name="measured")
    assert line == Line("measured", ((10, 1.5, 1.0, 2.0), (20, 3.0, 3.0, 3.0)))
    several = lines([*rows, {**rows[0], "topology": "plane"}], "nodes", "hops", "topology")
    assert [line.label for line in several] == ["sphere", "plane"]


def test_traffic_is_stacked_by_type_and_is_control_only() -> None:
    def row(session: float | str, rates: dict[str, float]) -> Row:
        return {"nodes": 9, "topology": "sphere", "session_min": session, "sent_per_s": rates}

    many = {f"Kind{number}": 1.0 / (number + 1) for number in range(9)}
    rows = [row("calm", {"Ping": 1.0, "Route": 9.0}), row("calm", {"Ping": 2.0}), row(5.0, {"Ping": 3.0, **many})]
    (chart,) = traffic_charts(rows)
    assert chart.categories == ("calm", "5 min")
    assert chart.stacks[0] == Stack("Ping", (1.5, 3.0))
    assert "Route" not in {stack.label for stack in chart.stacks}
    total = sum(stack.heights[1] for stack in chart.stacks)
    assert chart.stacks[-1].label == "others" and total == pytest.approx(3.0 + sum(many.values()))


CHARTS = (
    Chart("a", "Title", "x", "y", (reference("theory", [(1, 1), (10, 2)]), Line("m", ((1, 2, 1, 3), (10, 3, 3, 3))))),
    Chart("b", "Title", "x", "y", (Line("m", ((1, 0.0, 0.0, 0.0),)),), x_is_log=True, x_ticks=(1.0,)),
    Chart("c", "Title", "x", "y", categories=("one", "two"), stacks=(Stack("p", (1.0, 2.0)), Stack("q", (0.5, 0.0)))),
)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_chart_is_the_same_bytes_each_time(chart: Chart) -> None:
    pytest.importorskip("matplotlib", reason="charts need the extra lab")
    first = drawing.draw(chart)
    assert first == drawing.draw(chart)
    text = first.decode()
    assert text.count("Title") == 1 and "<dc:date>" not in text and "matplotlib.org/" not in text.split("<defs")[0]
    assert all(word in text for word in ("x", "y", *(line.label for line in chart.lines)))
    assert drawing.draw(chart, "png").startswith(b"\x89PNG")


def test_charts_without_matplotlib_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(Unavailable, match=r"pip install 'peerd\[lab\]'"):
        drawing.require()


def test_charts_of_rows_that_lack_everything_are_empty() -> None:
    empty = {"nodes": 9, "topology": "sphere", "seed": 1, "hops_shares": []}
    measured = [line for line in hops_charts([empty])[0].lines if not line.is_reference]
    assert not any(line.points for line in measured)
    assert Chart("a", "", "", "").is_empty and not CHARTS[2].is_empty


# Processes


def test_points_run_in_processes_and_one_that_dies_takes_no_other_along() -> None:
    watched: list[tuple[int, str]] = []

    def watch(point: Point, phase: str, now_s: float) -> None:
        watched.append((point.seed, phase))

    bad = replace(POINT, experiment="no/such", seed=2)
    results = {result.point.seed: result for result in run_points([POINT, bad], 2, watch)}
    assert results.keys() == {1, 2}
    row = results[1].row
    assert row is not None and row["nodes"] == 5 and results[1].error == ""
    assert row["node_kib"] is None or row["node_kib"] > 0
    assert results[2].row is None and "no experiment 'no/such'" in results[2].error
    assert [phase for seed, phase in watched if seed == 1] == ["start", "join", "settle", "lookups", "drain"]


def test_leaving_early_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = pool._start

    def noted(group: Sequence[Point], method: Literal["spawn", "fork"]) -> Any:
        started.append(start(group, method))
        return started[-1]

    monkeypatch.setattr(pool, "_start", noted)
    long = replace(POINT, nodes=200, settle_s=100_000.0, seed=2)
    results = run_points([POINT, long], 2)
    assert next(results).point is POINT
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert [process.is_alive() for _, process in started] == [False, False]
