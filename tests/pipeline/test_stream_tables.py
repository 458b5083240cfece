"""The tables of streams, from the event log of a simulated ring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peerd.sim.records import NdjsonSink
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.models import StreamSpec, StreamSubscriptionRequest
from protocols.dissemination.plugin import Dissemination
from tests.support.tables import events_of, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark

NODES, ITEMS = 6, 90
PREDICTED = ((0.5, 0.4), (0.3, -0.1))
"""Reorganisations, as a policy writes them: expected and measured."""
VALUES = ((60.0, 0.6), (120.0, 0.0), (20.0, 3.4))
"""A stream of values, as its nodes tell of it: for how long values were held, and were out of date."""


def plugin_of(place: Any) -> Dissemination:
    found = place.node.plugins["dissemination"]
    assert isinstance(found, Dissemination)
    return found


def simulated(directory: Path) -> None:
    """Six nodes of a stream, each with room for one child, so that most get what they do not want."""
    sink = NdjsonSink(directory)
    config = DisseminationConfig(fan_out=1)
    simulation = ring(NODES, 3, plugins=lambda index: [Dissemination(config)], sink=sink)
    producer = plugin_of(simulation.nodes[0])
    producer.changes.create(StreamSpec(name="news", kind="classes", policy="first_fit"), lambda answer: None)
    simulation.run_for(3.0)
    told: list[Any] = []
    for number in range(1, NODES):
        wish = StreamSubscriptionRequest(stream="news", interest=str(number), name="kept")
        plugin_of(simulation.nodes[number]).subscribing.subscribe(wish, told.append)
        simulation.run_for(3.0)
    assert len(told) == NODES - 1 and not any(isinstance(answer, Exception) for answer in told), told
    for number in range(ITEMS):
        producer.publishers.publish("news", f"{number % NODES} item".encode())
        simulation.run_for(1.0)
    simulation.run_for(70.0)
    sink.close()


def add(directory: Path, like: str, some: list[dict[str, Any]]) -> None:
    """Add events to the log that have these fields, and otherwise those of one that is there."""
    [file] = [path for path in directory.iterdir() if f'"{like}"' in path.read_text()][:1]
    first = next(json.loads(line) for line in file.read_text().splitlines() if f'"{like}"' in line)
    with file.open("a") as log:
        for fields in some:
            log.write(json.dumps(first | fields) + "\n")


def add_reorganisations(directory: Path) -> None:
    """What a policy that predicts adds to the log."""
    moved = {"event": "dissemination.reorganisation_measured", "stream": "news", "child": "aa" * 16}
    some = [
        moved | {"id": number, "predicted": predicted, "measured": measured}
        for number, (predicted, measured) in enumerate(PREDICTED, 1_000_000)  # no event has such a number
    ]
    add(directory, "dissemination.moved", some)


def add_values(directory: Path) -> None:
    """A minute of a stream of values, in which one node had no parent for some seconds."""
    some = [
        {
            "stream": "prices",
            "ts": 600.0,
            "node": f"{number:032x}",
            "id": number,
            "held_s": held,
            "outdated_s": outdated,
        }
        for number, (held, outdated) in enumerate(VALUES, 2_000_000)
    ]
    add(directory, "dissemination.load", some)


def add_documents(directory: Path) -> None:
    """Two nodes that have fetched a document, one of them in part from the other, and a swap that is no chunk's."""
    document = "ab" * 16
    finished = {"event": "dissemination.document_finished", "stream": "files", "document": document, "bytes": 300}
    swap = {"event": "swap.finished", "plugin": "dissemination", "peer": "", "received_bytes": 0, "initiated": True}
    sent = swap | {"tag": document + "00000001", "outcome": "done", "sent_bytes": 100, "duration_s": 1.0}
    some = [
        finished | {"senders": 1, "duration_s": 2.0, "again": 0},
        finished | {"senders": 2, "duration_s": 4.0, "again": 3},
        *(sent | {"node": "01" * 16} for _ in range(4)),
        sent | {"node": "02" * 16},
        sent | {"node": "02" * 16, "outcome": "refused:not_asked"},
        sent | {"node": "02" * 16, "initiated": False},
        sent | {"node": "02" * 16, "plugin": "aggregation"},
        sent | {"node": "02" * 16, "tag": "01"},
    ]
    add(directory, "dissemination.load", [fields | {"id": id} for id, fields in enumerate(some, 3_000_000)])


def add_producers(directory: Path) -> None:
    """A stream that was handed over once, and taken over twice."""
    some = [
        {"event": "dissemination.handed_over", "successor": "01" * 16, "term": 1, "paused_s": 0.5},
        {"event": "dissemination.producer_replaced", "term": 4, "rank": 0, "silent_s": 50.0},
        {"event": "dissemination.producer_replaced", "term": 8, "rank": 1, "silent_s": 70.0},
    ]
    some = [fields | {"stream": "news", "id": id} for id, fields in enumerate(some, 4_000_000)]
    add(directory, "dissemination.load", some)


def test_the_tables_say_what_the_simulation_did(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    log, out = tmp_path / "log", tmp_path / "out"
    log.mkdir()
    simulated(log)
    add_reorganisations(log)
    add_values(log)
    add_documents(log)
    add_producers(log)
    run_job(
        spark,
        Sources([str(log)]),
        str(out),
        events=events_of("dissemination"),
        plugin_tables=tables_of("dissemination"),
    )

    def rows(name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.parquet(str(out / name)).collect()]

    total, values = sorted(rows("stream_totals"), key=lambda row: str(row["stream"]))
    assert (values["stream"], values["nodes"], values["fidelity"]) == ("prices", 3, pytest.approx(0.98))
    assert total["fidelity"] is None, "its items are no values"
    assert (total["stream"], total["nodes"], total["max_depth"]) == ("news", NODES, NODES - 1)
    # Items of class N go down N edges: 1 + 2 + ... of each six items, and only the last edge's end wants them.
    edges = ITEMS // NODES * sum(range(1, NODES))
    assert total["items_in"] == total["items_out"] == edges
    assert total["spurious_share"] == pytest.approx(1 - ITEMS / NODES * (NODES - 1) / edges)
    assert 0 < total["mean_late_s"] < 5
    [ledger] = rows("ledger")
    assert (
        ledger["sent"] == edges + values["items_out"] and ledger["unknown"] == values["items_out"] - values["items_in"]
    )
    assert ledger["filtered"] == pytest.approx(total["spurious_share"] * edges)
    minutes = rows("stream_minutes")
    [minute] = [row for row in minutes if row["stream"] == "prices"]
    assert (minute["minute_s"], minute["fidelity"]) == (600, pytest.approx(0.98))
    minutes = [row for row in minutes if row["stream"] == "news"]
    assert all(row["fidelity"] is None for row in minutes)
    assert len(minutes) >= 2 and sum(row["items_in"] for row in minutes) == edges
    assert all(0 <= row["spurious_share"] <= 1 for row in minutes if row["items_in"])
    moved = {(row["why"], row["end"]): row["attempts"] for row in rows("stream_moves")}
    assert moved["new", "moved"] == NODES - 1
    assert not (out / "stream_losses").exists(), "there are none"
    handed, replaced = sorted(rows("stream_producers"), key=lambda row: str(row["how"]))
    assert (handed["how"], handed["times"], handed["mean_pause_s"], handed["term"]) == ("handed over", 1, 0.5, 1)
    assert (replaced["times"], replaced["mean_pause_s"], replaced["max_pause_s"]) == (2, 60.0, 70.0)
    assert replaced["term"] == 8
    [document] = rows("stream_documents")
    assert (document["nodes"], document["bytes"], document["again"]) == (2, 300, 3)
    assert (document["mean_s"], document["max_s"], document["mean_senders"]) == (3.0, 4.0, 1.5)
    served = sorted((row["node"][:2], row["chunks"], row["bytes"]) for row in rows("stream_document_senders"))
    assert served == [("01", 4, 400), ("02", 1, 100)]
    reorganised = rows("stream_reorganisations")
    events = events_of("dissemination")
    if "dissemination.reorganisation_measured" in events:
        [row] = reorganised
        assert (row["changes"], row["mean_predicted"], row["useful_share"]) == (2, pytest.approx(0.4), 0.5)
        assert row["error"] == pytest.approx(0.25)


def test_delays_are_by_corrected_clocks(spark: SparkSession) -> None:
    """The producer's clock is 5 s ahead, and one member's 2 s behind; items take 0.1 s and 0.3 s."""
    from protocols.dissemination.front.tables import minutes, streams

    load = "event string, stream string, node string, ts double, depth int, items_in int, spurious int, late_s double"
    rest = ("bytes_in", "items_out", "refused", "queued_bytes", "held_s", "outdated_s")
    rows = [
        ("dissemination.load", "news", "producer", 605.0, 0, 0, 0, 0.0),
        ("dissemination.load", "news", "right", 601.0, 1, 12, 2, 10 * (0.1 - 5.0)),
        ("dissemination.load", "news", "slow", 598.5, 2, 10, 0, 10 * (0.3 - 2.0 - 5.0)),
        ("dissemination.load", "news", "right", 661.0, 1, 4, 0, 4 * 0.1),  # of another producer, whose clock is right
        ("dissemination.load", "news", "other", 662.0, 0, 0, 0, 0.0),
    ]
    events = spark.createDataFrame(rows, load).selectExpr("*", *(f"0.0 as {name}" for name in rest))
    off = spark.createDataFrame([("producer", 5.0), ("slow", -2.0)], "node string, offset_s double")
    found = {row["minute_s"]: row["mean_late_s"] for row in minutes(events, {"clocks": off}).collect()}
    assert found == {600: pytest.approx(0.2), 660: pytest.approx(0.1)}
    [total] = streams(events, {"clocks": off}).collect()
    assert total["mean_late_s"] == pytest.approx((10 * 0.1 + 10 * 0.3 + 4 * 0.1) / 24)
    [told] = streams(events, {}).collect()
    assert told["mean_late_s"] < 0, "without clocks, as the nodes told"
