"""The tables of measurement queries, from the event log of a simulated ring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peerd.sim.records import NdjsonSink
from peerd.testing.simulation import ring
from protocols.measurement.bounds import usual_half_width
from protocols.measurement.plugin import MeasurementQueries
from protocols.measurement.readings import NoReading, Reading
from protocols.measurement.sources.source import MeasurementSource
from tests.support.tables import events_of, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark

NODES, READS, PERIOD_S = 5, 4, 2.0
NAME = "queue_bytes"
WIDTH = usual_half_width(NAME) / 4


class Queue(MeasurementSource):
    """A queue that grows."""

    is_at_hand = True

    def read(self, now: float) -> Mapping[str, float]:
        return {NAME: now * WIDTH / 3.0}


def simulated(directory: Path) -> None:
    """A client asks the first node a few times, and then watches through it."""
    sink = NdjsonSink(directory)
    simulation = ring(NODES, 3, plugins=lambda index: [MeasurementQueries(None, [Queue("queue", PERIOD_S)])], sink=sink)
    simulation.run_for(40.0)
    plugin = simulation.nodes[0].node.plugins["measurement"]
    assert isinstance(plugin, MeasurementQueries)
    told: list[list[Reading | NoReading] | Exception] = []
    for _ in range(READS):
        plugin.asking.read([NAME], lambda entry: True, {NAME: WIDTH}, 10.0, told.append)
        simulation.run_for(1.0)
    assert len(told) == READS
    plugin.watching.watch({NAME: WIDTH}, lambda entry: True, 10.0)
    simulation.run_for(130.0)
    sink.close()


def test_the_tables_say_what_the_simulation_did(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    log, out = tmp_path / "log", tmp_path / "out"
    log.mkdir()
    simulated(log)
    run_job(
        spark, Sources([str(log)]), str(out), events=events_of("measurement"), plugin_tables=tables_of("measurement")
    )

    def rows(name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.parquet(str(out / name)).collect()]

    by_node = rows("measurement_nodes")
    assert len(by_node) == NODES
    [asker] = [row for row in by_node if row["reads"]]
    assert (asker["reads"], asker["values"]) == (READS, READS * NODES)
    # Its own value each time, and the others' each time but the first.
    assert asker["hit_rate"] == pytest.approx((READS + (READS - 1) * (NODES - 1)) / (READS * NODES))
    assert asker["owner_questions"] == NODES - 1 == asker["held_values"]
    assert asker["relative_width"] == pytest.approx(0.25, rel=0.01)
    others = [row for row in by_node if not row["reads"]]
    assert all(row["hit_rate"] is None and row["relative_width"] is None for row in others)
    assert all(row["holders"] == 1 and row["updates_broken"] > 5 for row in others)
    minutes = sorted(rows("measurement_minutes"), key=lambda row: row["minute_s"])
    assert len(minutes) >= 2 and all(row["minute_s"] % 60 == 0 for row in minutes)
    for name in ("reads", "asks", "updates_broken", "updates_time_out", "owner_questions", "node_questions"):
        assert sum(row[name] for row in minutes) == sum(row[name] for row in by_node)
