"""What became of one thing, by the events of all nodes that name it and those that they led to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import typer
from pyarrow import parquet
from typer.testing import CliRunner

from peerd.cli.report import report
from peerd.errors import PeerdError, Unavailable
from peerd.report import story
from peerd.report.story import details, tell
from tests.support.event_logs import LOST_ROUND, ROUND, A, B, C, helper_log, killed_log, requester_log

pytestmark = pytest.mark.spark

COLUMNS = ("round", "tag", "peer", "outcome", "duration_s", "level", "plugin", "query", "requester")


def write(folder: Path, records: list[dict[str, Any]]) -> None:
    """As ``peerd analyze`` does, and ``--follow``, with a folder for each batch."""
    common = ("ts", "node", "boot", "id", "cause", "event")
    rows = [{name: record.get(name) for name in (*common, *COLUMNS)} for record in records]
    fields = [("ts", pa.float64()), ("node", pa.string()), ("boot", pa.int64()), ("id", pa.int64())]
    fields += [("cause", pa.int64()), ("event", pa.string())]
    types = {"duration_s": pa.float64(), "level": pa.int64()}
    schema = pa.schema(fields + [(name, types.get(name, pa.string())) for name in COLUMNS])
    for batch, some in enumerate((rows[::2], rows[1::2])):
        path = folder / "events" / f"batch={batch}"
        path.mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(some, schema=schema), path / "part-0.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = requester_log(), helper_log(), killed_log()
    records = [dict(record) for log in logs for record in log.records]
    requester = [record for record in records if record["node"] == A]
    requester[4]["cause"] = requester[3]["id"]  # the snapshot of traffic, which names no round
    requester[6]["cause"] = requester[4]["id"]
    write(tmp_path, records)
    return tmp_path


def test_a_round(folder: Path) -> None:
    """Also its swaps, whose tags have the round's id in them, and what an event led to that names it not."""
    told = tell(folder, ROUND)
    assert {step.node for step in told.steps} == {A, B, C}
    assert [step.after_s for step in told.steps] == sorted(step.after_s for step in told.steps)
    kinds = [step.event for step in told.steps]
    assert kinds.count("aggregation.round_started") == 3, "of the other round there is nothing"
    assert kinds.count("swap.finished") == 6
    assert [step.why for step in told.steps if step.event == "traffic.snapshot"] == [4]
    assert not any("round" in step.fields and step.fields["round"] != ROUND for step in told.steps)
    parts = {(part["event"], part["outcome"]): part for part in told.parts()}
    assert parts["swap.finished", "done"] == {
        "event": "swap.finished",
        "outcome": "done",
        "nodes": 3,
        "times": 5,
        "first_s": 0.5,
        "last_s": 98.0,
        "longest_s": 0.25,
    }
    assert [(step.event, step.fields["duration_s"]) for step in told.longest()][:2] == [
        *(("aggregation.round_finished", 2.5), ("aggregation.level_finished", 1.5)),
    ]


def test_the_beginning_of_an_id(folder: Path) -> None:
    assert tell(folder, "2222").name == LOST_ROUND
    with pytest.raises(Unavailable, match=r"no event in .* names 22$"):
        tell(folder, "22")
    with pytest.raises(Unavailable, match="names 3333"):
        tell(folder, "3333")
    write(folder / "other", [{**killed_log().records[3], "round": "2222" + "3" * 28}, *killed_log().records])
    with pytest.raises(PeerdError, match=f"2222 is the beginning of several ids: {LOST_ROUND}, 22223333"):
        tell(folder / "other", "2222")


def test_it_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "STEPS_MAX", 5)
    told = tell(folder, ROUND)
    assert len(told.steps) == 5 and told.is_cut


def test_a_clock_that_is_off_is_corrected(folder: Path) -> None:
    """Node b told all 10 s too late; what it did is in its place."""
    (folder / "clocks").mkdir()
    rows = [{"node": B, "offset_s": 10.0, "is_off": True}, {"node": C, "offset_s": 0.1, "is_off": False}]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "clocks" / "part-0.parquet")
    after = {step.node: step.after_s for step in tell(folder, ROUND).steps if step.event.endswith("round_started")}
    assert after == {A: 0.0, B: 0.0, C: 0.0}


def test_details() -> None:
    assert details({"round": ROUND, "query": "x" * 40 + " y", "duration_s": 1.23456}) == (
        f"round 11111111.., query {'x' * 40} y, duration_s 1.23"
    )


def test_the_command(folder: Path) -> None:
    application = typer.Typer()
    application.command()(report)
    result = CliRunner().invoke(application, [str(folder), "--explain", ROUND])
    assert result.exit_code == 0, result.output
    assert "events of 3 nodes within" in result.stdout
    for title in ("What happened", "What took longest", "In order"):
        assert title in result.stdout
    result = CliRunner().invoke(application, [str(folder), "--explain", ROUND, "-o", "json"])
    assert json.loads(result.stdout)["name"] == ROUND
    result = CliRunner().invoke(application, [str(folder), "--explain", "4" * 32])
    assert result.exit_code == 69 and "no event in" in result.stderr
    result = CliRunner().invoke(application, [str(folder / "none"), "--explain", ROUND])
    assert result.exit_code == 69 and "there is no table of events" in result.stderr
