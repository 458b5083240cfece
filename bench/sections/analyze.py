"""``peerd analyze`` over a generated event log, beside Spark's own typed read of the same files in the same session."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.event_log import write_event_log
from bench.measure import Bench, at_most, ratios
from bench.processes import resident_mb
from peerd.cli.analyze import plugin_tables
from peerd.errors import Unavailable
from peerd.pipeline.requirements import check_requirements
from peerd.plugins import find_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_AIM: Final = 2.0
"""The whole job, beside the read of all columns."""
GROWTH_AIM: Final = 1.3
"""A million events of a large log, beside a million of one that is a quarter of it."""
MEMORY: Final = "2g"


def run(bench: Bench) -> None:
    """A log, and one that is four times as long."""
    try:
        check_requirements()
    except Unavailable as error:
        bench.skip("the whole section", str(error))
        return
    from peerd.pipeline.session import spark_session

    bench.skip("DuckDB on the same files", "peerd has no tables by DuckDB yet")
    small = bench.scale.of(5_000_000, 1_000_000, 1_000)
    counts = (small, 4 * small)
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as scratch, spark_session("local[2]", MEMORY) as spark:
        folder = Path(scratch)
        for count in counts:
            bench.progress(f"writing {count:,} events")
            write_event_log(folder / str(count), count)
        _job(spark, folder / str(small), folder / "tables")  # Spark compiles what it runs often
        took: dict[int, list[float]] = {count: [] for count in counts}
        reads: list[float] = []
        for number in range(bench.runs):
            for count in counts:
                bench.progress(f"run {number + 1} of {bench.runs}: {count:,} events")
                took[count].append(_job(spark, folder / str(count), folder / "tables"))
            reads.append(_read(spark, folder / str(counts[-1])))
        memory_mb = resident_mb(spark.sparkContext._gateway.proc.pid)
    large, jobs = counts[-1], took[counts[-1]]
    bench.row("the whole job", "1/s", [large / each for each in jobs], note=f"{large:,} events")
    bench.row("Spark's typed read of all columns", "1/s", [large / each for each in reads])
    bench.row("job / typed read", "x", ratios(jobs, reads), at_most(READ_AIM))
    quarters = [each / 4 for each in jobs]
    bench.row("an event of four times as many", "x", ratios(quarters, took[small]), at_most(GROWTH_AIM))
    bench.row("memory of the JVM", "MiB", [memory_mb], note=f"--driver-memory {MEMORY}")


def _job(spark: SparkSession, log: Path, out: Path) -> float:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.source import Sources

    began = time.perf_counter()
    run_job(spark, Sources([str(log)]), str(out), events=find_events(), plugin_tables=plugin_tables())
    return time.perf_counter() - began


def _read(spark: SparkSession, log: Path) -> float:
    """The schema is given; the rows go nowhere."""
    from peerd.pipeline.schema import spark_schema

    began = time.perf_counter()
    events = spark.read.schema(spark_schema(find_events())).json(str(log))
    events.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
