"""The job on event logs whose every number was worked out by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from peerd.errors import Unavailable
from peerd.telemetry.schema import (
    NodeReady,
    RecordsDropped,
)
from peerd.telemetry.sinks import encode_record
from tests.support.event_logs import (
    LOST_ROUND,
    ROUND,
    A,
    B,
    C,
    Log,
    helper_log,
    killed_log,
    level,
    requester_log,
    swap,
)
from tests.support.tables import events_of, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from peerd.pipeline.findings import Report

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark
EVENTS = events_of("aggregation")


def write_ring(directory: Path) -> int:
    """Three nodes in directories of their own; c's file is cut in its last line. Returns the number of whole lines."""
    logs = requester_log(), helper_log()
    for log in logs:
        log.write(directory / log.node[:8])
    torn = b"".join(encode_record(record) for record in killed_log().records)[:-30]
    part = directory / "c [odd] {name}" / f"events-{C[:8]}-7-1.ndjson.part"
    part.parent.mkdir()
    part.write_bytes(torn)
    return sum(len(log.records) for log in logs) + len(killed_log().records) - 1


def analyse(spark: SparkSession, directory: Path, out: Path) -> Report:
    """As ``peerd analyze`` does, with the tables of one plugin."""
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    sources = Sources([str(directory)])
    return run_job(spark, sources, str(out), events=EVENTS, plugin_tables=tables_of("aggregation"))


@pytest.fixture(scope="module")
def analysed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Report, Path, int]]:
    directory, out = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("out")
    whole_lines = write_ring(directory)
    analyse(spark, directory, out)
    yield analyse(spark, directory, out), out, whole_lines  # the second run: it overwrites


def read(spark: SparkSession, out: Path, name: str) -> DataFrame:
    return spark.read.parquet(str(out / name))


def row(table: DataFrame, **wanted: object) -> dict[str, Any]:
    """The one row with these values."""
    found: list[dict[str, Any]] = [candidate.asDict() for candidate in table.collect()]
    matching = [candidate for candidate in found if all(candidate[key] == value for key, value in wanted.items())]
    assert len(matching) == 1, found
    return matching[0]


def test_every_whole_line_is_an_event_and_the_torn_one_is_counted(
    spark: SparkSession, analysed: tuple[Report, Path, int]
) -> None:
    report, out, whole_lines = analysed
    assert (report.files, report.part_files) == (3, 1)
    assert (report.corrupt, report.duplicates, report.newer_schema) == (1, 0, 0)
    assert [entry["corrupt"] for entry in report.corrupt_files] == [1]
    assert report.corrupt_files[0]["file"].endswith(".ndjson.part")
    assert report.events == report.lines - 1 == whole_lines
    events = read(spark, out, "events")
    assert events.count() == whole_lines
    assert "_corrupt_record" not in events.columns
    assert row(events, node=A, id=1)["address"] == "127.0.0.1:1"


def test_the_round_is_what_its_requester_told(spark: SparkSession, analysed: tuple[Report, Path, int]) -> None:
    report, out, _ = analysed
    found = row(read(spark, out, "rounds"), round=ROUND)
    assert found == {
        "round": ROUND,
        "requester": A,
        "query": "count(*)",
        "outcome": "partial",
        "started_ts": 1001.0,
        "finished_ts": 1003.5,
        "duration_s": 2.5,
        "completeness": 0.75,
        "contributors": 3,
        "expected": 4.0,
        "missing": 1,
        "value_bytes": 64,
        "nodes": 3,
        "levels_swapped": 4,
        "levels_timed_out": 1,
        "swaps": 4,
        "swap_bytes": 100 + 200 + 110 + 90,
    }
    assert report.protocols["rounds"][0] == found


def test_a_round_without_an_answer_is_unfinished(spark: SparkSession, analysed: tuple[Report, Path, int]) -> None:
    found = row(read(spark, analysed[1], "rounds"), round=LOST_ROUND)
    assert (found["outcome"], found["requester"], found["query"]) == ("unfinished", B, "sum(x)")
    assert (found["duration_s"], found["completeness"], found["swap_bytes"]) == (None, None, 0)


def test_levels_have_the_swap_that_ended_them(spark: SparkSession, analysed: tuple[Report, Path, int]) -> None:
    levels = read(spark, analysed[1], "levels")
    assert levels.count() == 5
    assert row(levels, node=A, level=1)["swap_sent_bytes"] == 100
    assert row(levels, node=A, level=0)["swap_sent_bytes"] == 200  # not the stalled one before it
    assert row(levels, node=B, level=1)["swap_received_bytes"] == 100  # not the late one
    assert row(levels, node=B, level=0)["swap_sent_bytes"] is None


def test_messages_are_the_last_snapshot(spark: SparkSession, analysed: tuple[Report, Path, int]) -> None:
    report, out, _ = analysed
    messages = read(spark, out, "messages")
    assert messages.count() == 3
    assert row(messages, node=A, message="Invite")["sent"] == 3
    metrics = read(spark, out, "metrics")
    assert metrics.count() == 2
    dialled = row(metrics, node=A, boot=1, metric="peerd_dials_total", labels="outcome=connected")
    assert (dialled["value"], dialled["ts"]) == (3.0, 1004.0)
    assert report.messages == [
        {
            "message": "Query",
            "nodes": 1,
            "sent": 5,
            "received": 0,
            "sent_bytes": 100,
            "received_bytes": 0,
            "sent_per_node": 5.0,
        },
        {
            "message": "Invite",
            "nodes": 2,
            "sent": 4,
            "received": 5,
            "sent_bytes": 80,
            "received_bytes": 100,
            "sent_per_node": 2.0,
        },
    ]


def test_bytes_by_kind(analysed: tuple[Report, Path, int]) -> None:
    rows = [
        (entry["kind"], entry["plugin"], entry["outcome"], entry["count"], entry["sent_bytes"], entry["received_bytes"])
        for entry in analysed[0].traffic
    ]
    assert rows == [
        ("control", None, None, 9, 180, 100),
        ("swap", "aggregation", "done", 2, 1500, 1500),
        ("swap", "aggregation", "failed", 1, 7, 0),
    ]


def test_a_swap_that_was_not_needed_any_more_has_not_failed(spark: SparkSession) -> None:
    """The requester of a small ring cancels the fetch of a result, as a rule: its own is there sooner."""
    from peerd.pipeline.tables import traffic_by_kind

    outcomes = ("done", "cancelled", "peer_cancelled:cancelled", "peer_cancelled:stalled", "cancelled_otherwise")
    rows = [("swap.finished", "aggregation", outcome, True, 2, 1) for outcome in outcomes]
    columns = "event string, plugin string, outcome string, initiated boolean, sent_bytes long, received_bytes long"
    found = traffic_by_kind(spark.createDataFrame(rows, columns), None).collect()
    assert {row["outcome"]: row["count"] for row in found} == {"done": 1, "cancelled": 2, "failed": 2}


def test_gaps_are_lost_records(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(A, boot=3)
    for _ in range(12):
        log.add(1.0, NodeReady(duration_s=1.0, ring_size=3.0))
    kept = [record for record in log.records if record["id"] not in (1, 2, 5, 6, 7, 10)]
    kept.append(log.stamp(1.0, RecordsDropped(records=3), 5))  # stands in the place of 5, 6, 7
    log.records = kept
    log.write(tmp_path / "logs")
    report = analyse(spark, tmp_path / "logs", tmp_path / "out")
    assert report.losses == [
        {
            "node": A,
            "boot": 3,
            "records": 6,
            "first_id": 3,
            "last_id": 12,
            "missing": 4,
            "missing_before": 2,
            "told": 3,
        }
    ]
    assert (report.missing, report.told_dropped, report.protocols, report.corrupt) == (4, 3, {}, 0)
    assert report.tables == ["events", "losses", "nodes"], "nothing is said of what is not there"


def test_a_run_that_fails_leaves_no_table_that_was_not_wanted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    requester_log().write(tmp_path / "logs")

    def fail(*arguments: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr("peerd.pipeline.job.TableMaker.make", fail)
    with pytest.raises(Unavailable, match="the disk is full"):
        run_job(
            spark,
            Sources([str(tmp_path / "logs")]),
            str(tmp_path / "out"),
            events=EVENTS,
            plugin_tables=[],
            wanted={"nodes"},
        )
    assert not list((tmp_path / "out").iterdir())


def test_bad_lines_duplicates_and_newer_events(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(A)
    for _ in range(3):
        log.add(1.0, NodeReady(duration_s=1.0, ring_size=3.0))
    newer = {**log.stamp(1.0, NodeReady(duration_s=1.0, ring_size=3.0), 4), "schema_version": 2, "colour": "blue"}
    lines = [json.dumps(record) for record in [*log.records, log.records[1], newer]]
    lines += ["", "{}", "null", "[1]", '{"node":', json.dumps({**newer, "id": "five"}), "\x00\xff"]
    (tmp_path / "events-aaaaaaaa-1-1.ndjson").write_text("\n".join(lines), "utf-8")
    report = analyse(spark, tmp_path, tmp_path / "out")
    assert (report.events, report.duplicates, report.newer_schema, report.corrupt) == (4, 1, 1, 6)


def test_a_swap_belongs_to_its_round_and_level(spark: SparkSession, tmp_path: Path) -> None:
    from protocols.aggregation.front.tables import levels

    log = Log(A)
    log.add(1.0, swap(B, 2, 1, 1))
    log.add(1.0, level(2, "swapped", B))
    log.add(1.5, level(1, "swapped", B, duration_s=0.5))  # its swap's record was lost: not the one before
    log.add(1.5, swap(B, 2, 2, 2, round_id=LOST_ROUND))  # the same two nodes at the same time, another round
    log.add(1.5, level(2, "swapped", B, round_id=LOST_ROUND))
    log.add(2.0, swap(C, 0, 4, 4))  # done here; the value was then rejected, and the level went on
    log.add(2.5, swap(B, 0, 5, 5))
    log.add(2.6, level(0, "swapped", B, duration_s=1.1))
    log.add(2.7, level(1, "timed_out", C, duration_s=1.2, round_id=LOST_ROUND))
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"".join(encode_record(record) for record in log.records))
    table = levels(read_all(spark, path)).orderBy("id")
    assert [entry["swap_sent_bytes"] for entry in table.collect()] == [1, None, 2, 5, None]


def read_all(spark: SparkSession, path: Path) -> DataFrame:
    from peerd.pipeline.lines import parse, read_lines
    from peerd.pipeline.sources import Sources

    sources = Sources([str(path)])
    return parse(read_lines(spark, sources), EVENTS, sources)


def test_no_table_is_written_over_the_event_files(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.store import TableStore

    folder = tmp_path / "a ring" / "events" / "dt=2026-11-27"
    folder.mkdir(parents=True)
    (folder / "x.ndjson").write_text("{}\n")
    files = spark.read.text(str(folder)).inputFiles()
    TableStore(spark, str(tmp_path / "a ring" / "tables")).check_apart(files, ["events"])
    TableStore(spark, str(tmp_path / "a ring")).check_apart(files, ["event", "rounds"])
    with pytest.raises(Unavailable, match="over the event file"):
        TableStore(spark, str(tmp_path / "a ring")).check_apart(files, ["rounds", "events"])


def test_which_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.lines import read_lines
    from peerd.pipeline.sources import Sources

    names = ("x-2.ndjson.part", "x-3.ndjson", "notes.json", "a [1].ndjson")
    for name in names:
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "dt=2026-11-27").mkdir()
    (tmp_path / "dt=2026-11-27" / "y-1.ndjson.gz").write_bytes(gzip.compress(b"{}\n"))

    def found(*paths: Path, has_parts: bool = True) -> set[str]:
        lines = read_lines(spark, Sources([str(path) for path in paths], has_parts))
        assert lines.count() == len(lines.inputFiles())
        return {unquote(path).rpartition("/")[2] for path in lines.inputFiles()}

    assert found(tmp_path) == {"x-2.ndjson.part", "x-3.ndjson", "a [1].ndjson", "y-1.ndjson.gz"}
    assert found(tmp_path, has_parts=False) == {"x-3.ndjson", "a [1].ndjson", "y-1.ndjson.gz"}
    assert found(tmp_path / "a [1].ndjson", tmp_path / "x-?.ndjson") == {"x-3.ndjson", "a [1].ndjson"}
    with pytest.raises(Unavailable, match="there is no such file or folder"):
        found(tmp_path / "nowhere")
    with pytest.raises(Unavailable, match="there is no such file or folder"):
        found(tmp_path / "z*")
    with pytest.raises(Unavailable, match=r"no event files \(\*\.ndjson"):
        found(tmp_path / "notes.json")


def test_a_file_that_gets_its_name_while_it_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read under the other one; daemons finish their files all at the same time, when an hour ends."""
    from peerd.pipeline import lines

    log = killed_log()
    part = tmp_path / "logs" / "events-cccccccc-7-1.ndjson.part"
    part.parent.mkdir()
    part.write_bytes(b"".join(encode_record(record) for record in log.records))
    parse = lines.parse

    def finished_before(*arguments: Any) -> DataFrame:
        parsed = parse(*arguments)
        if part.exists():
            part.rename(part.with_suffix(""))
        return parsed

    monkeypatch.setattr("peerd.pipeline.job.parse", finished_before)
    report = analyse(spark, tmp_path / "logs", tmp_path / "out")
    assert (report.events, report.part_files, report.missing) == (len(log.records), 0, 0)


def test_a_copy_counts_once_and_nothing_else_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Also where it is as a daemon had it open, and has it grown since."""
    log, other = Log(A), Log(B)
    for number in range(5):
        log.add(float(number), NodeReady(duration_s=float(number), ring_size=3.0))
        other.add(float(number), NodeReady(duration_s=1.0, ring_size=3.0))
    lines = [encode_record(record) for record in log.records]
    (tmp_path / "events-aaaaaaaa-1-1.ndjson").write_bytes(b"".join(lines))
    (tmp_path / "events-aaaaaaaa-1-1.ndjson.part").write_bytes(b"".join(lines[:3]))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "events-aaaaaaaa-1-1.ndjson.gz").write_bytes(gzip.compress(b"".join(lines)))
    other.write(tmp_path / "other")
    report = analyse(spark, tmp_path, tmp_path / "out")
    assert (report.lines, report.events, report.duplicates, report.missing) == (18, 10, 8, 0)
    table = read(spark, tmp_path / "out", "events")
    assert table.count() == 10
    assert sorted(entry["duration_s"] for entry in table.where(table.node == A).collect()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"events", "losses", "nodes"}


def test_a_compressed_file_that_is_cut_off_is_named(spark: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError

    from peerd.pipeline.session import _first_line

    lines = b"".join(encode_record(record) for record in requester_log().records)
    (tmp_path / "cut.ndjson.gz").write_bytes(gzip.compress(lines)[:-200])
    with pytest.raises(Py4JJavaError) as failure:
        analyse(spark, tmp_path, tmp_path / "out")
    told = _first_line(failure.value)
    assert "cut.ndjson.gz" in told and "Unexpected end of input stream" in told


def test_of_a_time_only_what_was_then_is_read(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    hour = 1_790_000_000.0 // 3600 * 3600
    for number in range(6):
        log = Log(A, boot=number + 1)
        log.add(hour - 1000.0 + number * 3600.0, NodeReady(duration_s=1.0, ring_size=3.0))
        moment = datetime.fromtimestamp(hour + number * 3600.0, UTC)
        folder = tmp_path / "logs" / f"{moment:dt=%Y-%m-%d}" / f"{moment:hr=%H}"
        folder.mkdir(parents=True)
        lines = [encode_record(record) for record in log.records]
        (folder / f"events-a-{number}-1.ndjson").write_bytes(b"".join(lines) + b"torn")
    sources = Sources([str(tmp_path / "logs")], since_s=hour + 3 * 3600.0, until_s=hour + 5 * 3600.0)
    report = run_job(spark, sources, str(tmp_path / "out"), events=EVENTS, plugin_tables=(), wanted=["losses"])
    assert sorted(entry["boot"] for entry in report.losses) == [4, 5]
    assert report.corrupt == 5, "the first folder is not opened"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"losses"}, "what only helps is taken away"


def test_an_event_of_a_plugin_that_is_not_installed_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(A)
    log.add(1.0, NodeReady(duration_s=1.0, ring_size=3.0))
    stamps = log.stamp(1.0, NodeReady(duration_s=1.0, ring_size=3.0), 2)
    for name in ("duration_s", "ring_size"):
        del stamps[name]
    known_name = {**stamps, "event": "stranger.shouted", "peer": 5, "colour": "blü"}  # peer is a text elsewhere
    own_names = {**stamps, "event": "stranger.left", "id": 3, "loudness": 0.1}
    texts = [json.dumps(record, ensure_ascii=False) for record in (known_name, own_names)]
    lines = [json.dumps(log.records[0]), *texts, texts[0], '{"event": "stranger.shouted"}']
    (tmp_path / "events-aaaaaaaa-1-1.ndjson").write_text("\n".join(lines), "utf-8")
    report = analyse(spark, tmp_path, tmp_path / "out")
    assert (report.events, report.duplicates, report.corrupt, report.missing) == (3, 1, 1, 0)
    assert (
        report.unknown
        == report.kinds[1:]
        == [
            {"event": "stranger.left", "nodes": 1, "events": 1},
            {"event": "stranger.shouted", "nodes": 1, "events": 1},
        ]
    )
    table = read(spark, tmp_path / "out", "events")
    raw = [entry["raw"] for entry in table.orderBy("id").collect()]
    assert [each and json.loads(each.toJson()) for each in raw] == [None, *map(json.loads, texts)]
    assert row(table, id=2)["peer"] == "5", "a field that has the name of a known one"
    assert (row(table, id=3)["node"], row(table, id=3)["event"]) == (A, "stranger.left")
