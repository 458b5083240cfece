"""The report of tables that are there: what it says, and that no text of the logs becomes a part of the page."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from pyarrow import parquet
from typer.testing import CliRunner

from peerd.cli.app import COMMANDS
from peerd.errors import PeerdError, Unavailable
from peerd.front import Shown, SparkTable
from peerd.lab.charts import Chart, lines
from peerd.plugins import find_fronts
from peerd.report import making
from peerd.report.making import make_page, read_rows, write_report

pytestmark = pytest.mark.spark

A, B, C = "a" * 32, "b" * 32, "c" * 32
EVIL = '<script>alert("x")</script>|$\\frac{$'


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).mkdir()
    parquet.write_table(pa.Table.from_pylist(rows), folder / name / "part-0.parquet")
    (folder / name / "_SUCCESS").touch()


def node(node: str, boot: int, first: float, last: float, stopped: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "node": node,
        "boot": boot,
        "address": "10.0.0.1:7420",
        "first_ts": 1000.0 + first,
        "last_ts": 1000.0 + last,
        "events": 10,
        "ready_s": 0.5,
        "stopped": stopped,
        **more,
    }


NODES = [node(A, 1, 0, 600), node(B, 1, 60, 120), node(B, 2, 300, 590), node(C, 1, 60, 240, "drained", address=EVIL)]


def loss(node: str, missing: int) -> dict[str, Any]:
    return {"node": node, "boot": 1, "records": 9, "missing": missing, "missing_before": 0, "told": 0}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "img":
            self.pictures.append(dict(attributes)["src"] or "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "nodes", NODES)
    write(tmp_path, "losses", [loss(A, 0), loss(B, 3)])
    counts = {"sent": 5, "received": 4, "received_bytes": 80}
    write(
        tmp_path,
        "messages",
        [
            {"node": A, "boot": 1, "message": "Ping", "sent_bytes": 100, **counts},
            {"node": B, "boot": 1, "message": "Ping", "sent_bytes": 50, **counts},
            {"node": B, "boot": 1, "message": EVIL, "sent_bytes": 900, **counts},
        ],
    )
    return tmp_path


def test_what_it_says(folder: Path) -> None:
    page = make_page(folder, [])
    assert dict(page.facts) == {
        "from": "1970-01-01 00:16:40 UTC",
        "to": "1970-01-01 00:26:40 UTC (10.0 minutes)",
        "nodes": "3 (4 boots)",
        "events": "40",
        "events that are missing": "3",
    }
    nodes, losses, messages = page.sections
    assert [(row["node"][0], row["boot"], row["end"]) for row in nodes.cells] == [
        *(("a", 1, "up"), ("b", 1, "silent"), ("c", 1, "drained"), ("b", 2, "up")),
    ]
    ring, lives = nodes.charts
    steps = [(minute, up) for minute, up, _, _ in ring.lines[0].points]
    assert [steps[at] for at in range(1, len(steps), 2)] == [(0, 1), (1, 2), (1, 3), (2, 2), (4, 1), (5, 2), (10, 2)]
    assert [(span.row[0], span.begin, span.end, span.label) for span in lives.spans[:2]] == [
        *(("a", 0, 10, "up at the end"), ("b", 1, 2, "silent")),
    ]
    assert [row["missing"] for row in losses.rows] == [3], "only those with gaps"
    assert [(row["nodes"], row["sent"], row["sent_bytes"]) for row in messages.rows] == [(1, 5, 900), (2, 10, 150)]


def test_the_files(folder: Path) -> None:
    """Texts of logs are texts, in all three; each picture is one; nothing is fetched from anywhere."""
    paths = write_report(folder, [], folder / "out")
    html, markdown, told = (path.read_text() for path in paths)
    tags = Tags()
    tags.feed(html)
    assert "script" not in tags.tags and "link" not in tags.tags
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert len(tags.pictures) == 3
    for picture in tags.pictures:
        kind, _, data = picture.partition(",")
        assert kind == "data:image/svg+xml;base64"
        texts = "".join(ElementTree.fromstring(base64.b64decode(data)).itertext())
        assert "minutes" in texts or "$\\frac{$" in texts, "dollars are no mathematics"
    assert "<script" not in markdown
    assert all(line.count(" | ") in (0, 3, 5, 7) for line in markdown.replace("\\|", "").splitlines())
    assert json.loads(told)["sections"]["nodes"]["rows"][-1] == NODES[2]


def test_without_what_draws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = making._find
    monkeypatch.setattr(making, "_find", lambda module: None if module == "matplotlib" else find(module))
    html = make_page(folder, []).as_html()
    assert "<img" not in html and "pip install 'peerd[lab]'" in html and "Ping" in html


def test_a_long_table_is_thinned_out_evenly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "ROWS_MAX", 10)
    write(folder, "many", [{"number": number} for number in range(95)])
    assert [row["number"] for row in read_rows(folder, "many")] == list(range(0, 95, 10))
    (folder / "none").mkdir()
    parquet.write_table(pa.table({"number": pa.array([], pa.int64())}), folder / "none" / "part-0.parquet")
    assert read_rows(folder, "none") == []


def test_tables_of_plugins(folder: Path) -> None:
    """Rows in the order that the plugin says, with its pictures, and its way to write cells; without rows, nothing."""

    def charts(rows: Any, begin: float) -> list[Chart]:
        return [Chart("c", "A picture", f"since {begin}", "y", lines(rows, "x", "y"))]

    shown = Shown("Shown", {"x": "the x", "y": "the y"}, ("x",), lambda row: {**row, "y": "why"})
    tables = [
        SparkTable("both", lambda events, built: events, shown, charts=charts),
        SparkTable("pictured", lambda events, built: events, charts=charts),
        SparkTable("neither", lambda events, built: events),
        SparkTable("absent", lambda events, built: events, shown),
    ]
    for name in ("both", "pictured", "neither"):
        write(folder, name, [{"x": 2, "y": 5.0}, {"x": 1, "y": None}])
    both, pictured = make_page(folder, [tables]).sections[3:]
    assert [row["x"] for row in both.rows] == [1, 2] and both.cells[0]["y"] == "why"
    assert (pictured.title, pictured.columns, pictured.charts[0].x) == ("A picture", {}, "since 1000.0")


def test_what_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no table nodes"):
        make_page(tmp_path / "none", [])
    (folder / "losses" / "part-0.parquet").write_bytes(b"no Parquet")
    with pytest.raises(PeerdError, match="losses cannot be read"):
        make_page(folder, [])


def test_the_command(folder: Path) -> None:
    import typer

    from peerd.cli.report import report

    assert "report" in COMMANDS
    application = typer.Typer()
    application.command()(report)
    result = CliRunner().invoke(application, [str(folder)])
    assert result.exit_code == 0, result.output
    assert {Path(line).name for line in result.stdout.splitlines()} == {"report.html", "report.md", "report.json"}
    result = CliRunner().invoke(application, [str(folder / "none")])
    assert result.exit_code == 69 and "there is no table nodes" in result.stderr


def drawn(name: str, table: str, rows: list[dict[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The points of each line of each picture of a protocol's table; the log begins at 60 s."""
    [charts] = [each.charts for each in find_fronts()[name].tables() if each.name == table]
    assert charts is not None
    made = charts(rows, 60.0)
    return {each.name: {line.label: [point[:2] for point in line.points] for line in each.lines} for each in made}


def test_pictures_of_rounds() -> None:
    rows = [{"level": at, "duration_s": 0.5 + at, "outcome": "swapped"} for at in (2, 1, 1)]
    assert drawn("aggregation", "levels", rows) == {"levels": {"swapped": [(1, 1.5), (2, 2.5)]}}
    ended: dict[str, Any] = {"started_ts": 120.0, "duration_s": 2.0, "completeness": 0.5}
    unfinished: dict[str, Any] = {"started_ts": None, "duration_s": None, "completeness": None}
    assert drawn("aggregation", "rounds", [ended, unfinished]) == {
        "rounds": {"rounds": [(1.0, 2.0)]},
        "completeness": {"rounds": [(1.0, 0.5)]},
    }


def test_pictures_of_publish_subscribe() -> None:
    rows: list[dict[str, Any]] = [{"p50_s": 0.2, "p99_s": 0.4}, {"p50_s": 0.1, "p99_s": 0.9}]
    points = drawn("pubsub", "pubsub_deliveries", rows)["deliveries"]
    assert points["half of a pair's events"] == [(0.1, 0.5), (0.2, 1.0)]
    assert points["99 % of a pair's events"] == [(0.4, 0.5), (0.9, 1.0)]
    rows = [{"pieces": 1, "matched": 0}, {"pieces": 3, "matched": 0}]
    assert drawn("pubsub", "pubsub_load", rows)["load"] == {"pieces": [(1, 0.75), (2, 0.25)]}


def test_pictures_of_streams() -> None:
    """Of the eight streams with most items."""
    rows = [
        {"stream": f"s{at}", "minute_s": 120.0, "items_in": at, "spurious_share": at / 10, "mean_depth": 2.0}
        for at in range(1, 10)
    ]
    points = drawn("dissemination", "stream_minutes", rows)
    assert points["spurious"] == {f"s{at}": [(1.0, at / 10)] for at in range(2, 10)}
    assert set(points["depth"]) == set(points["spurious"])


def test_pictures_of_measurement_queries() -> None:
    counts = {"tree_questions": 1, "owner_questions": 2, "updates_broken": 3, "updates_time_out": 4}
    points = drawn("measurement", "measurement_minutes", [{"minute_s": 120.0, "hit_rate": 0.75, **counts}])
    assert points["hits"] == {"all nodes": [(1.0, 0.75)]}
    assert [line[0][1] for line in points["measurement-sent"].values()] == [1, 2, 3, 4]


def test_clocks(folder: Path) -> None:
    assert "clocks" not in [section.name for section in make_page(folder, []).sections]
    rows = [
        {"node": A, "offset_s": 0.01, "error_s": 0.02, "is_off": False, "pairs": 9},
        {"node": B, "offset_s": -5.0, "error_s": 0.02, "is_off": True, "pairs": 3},
    ]
    write(folder, "clocks", rows)
    [clocks] = [section for section in make_page(folder, []).sections if section.name == "clocks"]
    assert [row["node"] for row in clocks.rows] == [B, A] and "1 clock off" in clocks.text


def test_who_is_silent() -> None:
    """Who said nothing for two minutes, while others went on; in a ring that was stopped, who did not say so."""
    from peerd.report.lives import bar, ends_of

    up, gone, left = node(A, 1, 0, 600), node(B, 1, 0, 300), node(C, 1, 0, 599, "drained")
    assert ends_of([up, node(B, 1, 0, 500), gone]) == ["up", "up", "silent"]
    assert ends_of([up, node(B, 1, 0, 500), left]) == ["up", "up", "drained"], "one of three was stopped"
    assert ends_of([node(A, 1, 0, 600, "stopped"), node(B, 1, 0, 500), left]) == ["stopped", "silent", "drained"]
    assert bar(gone, 1000.0, 1600.0, 10) == "#####....."
    assert bar(node(A, 1, 599, 600), 1000.0, 1600.0, 10) == ".........#"
    assert bar(node(A, 1, 0, 0), 1000.0, 1000.0, 10) == "#........."
