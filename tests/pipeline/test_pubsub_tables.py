"""The tables of publish/subscribe, from the event log of a simulated ring."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from peerd.sim.records import NdjsonSink
from peerd.testing.simulation import ring
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.judging import Judge, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.plugin import PubSub
from tests.support.tables import events_of, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark

NODES, SUBSCRIPTIONS, EVENTS = 6, 20, 12


def simulated(directory: Path) -> Judge:
    """A small ring with subscriptions, some events, and a tree that is split; its log is in the folder."""
    config = PubSubConfig(leaf_capacity=4)
    sink = NdjsonSink(directory)
    simulation = ring(NODES, 3, plugins=lambda index: [PubSub(config)], sink=sink)
    rng = Random(3)
    workload, judge = ThesisWorkload(rng), Judge(lambda: simulation.now)
    plugin_of(simulation.nodes[0]).schemas.declare(workload.document(), lambda answer: None)
    simulation.run_for(3.0)
    for place in simulation.nodes:
        plugin_of(place).schemas.fetch(workload.schema, lambda schema, why: None)
    simulation.run_for(2.0)
    for number in range(SUBSCRIPTIONS):
        judge.subscribe(simulation.nodes[number % NODES], workload.schema, workload.subscription())
        simulation.run_for(0.5)
    simulation.run_for(20.0)
    for number in range(EVENTS):
        judge.publish(simulation.nodes[number % NODES], workload.schema, workload.event())
        simulation.run_for(0.5)
        judge.read()
    first = judge.watched[0]
    plugin_of(first.place).subscriptions.end(first.id)
    simulation.run_for(150.0)
    judge.read()
    sink.close()
    return judge


def test_the_tables_say_what_the_simulation_did(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    log, out = tmp_path / "log", tmp_path / "out"
    log.mkdir()
    judge = simulated(log)
    text = "".join(path.read_text() for path in log.iterdir())
    assert text.count('"pubsub.subscription_ended"') == 1 and '"pubsub.leaf_split"' in text
    run_job(spark, Sources([str(log)]), str(out), events=events_of("pubsub"), plugin_tables=tables_of("pubsub"))

    def rows(name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.parquet(str(out / name)).collect()]

    installed = rows("pubsub_installations")
    assert sum(row["pieces"] for row in installed) >= SUBSCRIPTIONS
    assert all(0 <= row["p50_s"] <= row["p90_s"] <= row["max_s"] for row in installed)
    ledger = {row["unit"]: row for row in rows("ledger")}
    assert ledger["publications"]["sent"] == EVENTS and {row["unknown"] for row in ledger.values()} == {0}
    delivered = rows("pubsub_deliveries")
    pairs = {(event, watched.place.id) for watched in judge.watched for event in watched.seen}
    assert pairs and len(pairs) <= ledger["matches"]["delivered"] == sum(row["events"] for row in delivered)
    assert {row["publisher"] for row in delivered} == {str(event).split("-")[0] for event, _ in pairs}
    load = rows("pubsub_load")
    assert len(load) <= NODES and sum(row["published"] for row in load) == EVENTS
    assert sum(row["delivered"] for row in load) == ledger["matches"]["delivered"]


def test_latencies_are_corrected_where_a_clock_is_off(spark: SparkSession) -> None:
    """Leaf b is 5 s ahead, and c, which publishes, 2 s behind; a is right. Each event took 0.5 s."""
    from protocols.pubsub.front.tables import deliveries

    a, b, c = ("a" * 32, "b" * 32, "c" * 32)
    told = [(a, f"{a}-1", a, 0.5), (b, f"{a}-1", b, 5.5), (a, f"{c}-1", a, 2.5), (b, f"{c}-1", b, 7.5)]
    rows = [("pubsub.event_delivered", *row) for row in told]
    events = spark.createDataFrame(
        rows, "event string, node string, publication string, subscriber string, latency_s double"
    )
    off = spark.createDataFrame([(b, 5.0), (c, -2.0)], "node string, offset_s double")
    assert {row["max_s"] for row in deliveries(events, {"clocks": off}).collect()} == {0.5}
    assert {row["max_s"] for row in deliveries(events, {}).collect()} == {0.5, 2.5, 5.5, 7.5}
