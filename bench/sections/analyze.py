"""``peerd analyze`` over a generated event log, beside Spark's own typed read of the same files in the same session."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.event_log import write_event_log
from bench.measure import Bench, at_least, at_most, ratios
from bench.processes import resident_mb
from peerd.cli.analyze import plugin_tables
from peerd.pipeline.requirements import check_requirements
from peerd.plugins import find_events
from peerd.telemetry.event_files import EventFiles
from peerd.telemetry.schema import SCHEMA_VERSION, NodeReady

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_AIM: Final = 2.0
"""The whole job, beside the read of all columns."""
GROWTH_AIM: Final = 1.3
"""A million events of a large log, beside a million of one that is a quarter of it."""
MEMORY: Final = "2g"
FOLLOW_AIM: Final = 0.7
"""Events a second of what --follow finds when it begins, beside the job that reads all at once."""
INTERVAL_S: Final = 5.0
DELAY_AIM: Final = 2.0
"""Intervals from when an event was written until it is in the table."""
WRITE_PAUSE_S: Final = 0.2


def run(bench: Bench) -> None:
    """A log, and one that is four times as long."""
    if not bench.has(check_requirements):
        return
    from peerd.pipeline.session import spark_session

    has_duckdb = find_spec("sqlframe") is not None
    if not has_duckdb:
        bench.skip("DuckDB on the same files", "the extra `duckdb` is not installed")
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
        follows: list[float] = []
        ducks: list[float] = []
        for number in range(bench.runs):
            for count in counts:
                bench.progress(f"run {number + 1} of {bench.runs}: {count:,} events")
                took[count].append(_job(spark, folder / str(count), folder / "tables"))
            reads.append(_read(spark, folder / str(counts[-1])))
            if has_duckdb:
                bench.progress(f"run {number + 1} of {bench.runs}: {counts[-1]:,} events, by DuckDB")
                ducks.append(_on_duckdb(folder / str(counts[-1]), folder / "by-duckdb"))
            bench.progress(f"run {number + 1} of {bench.runs}: {counts[-1]:,} events, followed")
            follows.append(_follow(spark, folder / str(counts[-1]), folder / f"followed-{number}"))
        memory_mb = resident_mb(spark.sparkContext._gateway.proc.pid)
        shutil.rmtree(folder / str(small))
        duration_s = bench.scale.of(60.0, 30.0, 0.0)
        delays = _delays(bench, folder, duration_s) if duration_s else []
    large, jobs = counts[-1], took[counts[-1]]
    bench.row("the whole job", "1/s", [large / each for each in jobs], note=f"{large:,} events")
    bench.row("Spark's typed read of all columns", "1/s", [large / each for each in reads])
    bench.row("job / typed read", "x", ratios(jobs, reads), at_most(READ_AIM))
    if ducks:
        bench.row("--engine duckdb / the job", "x", ratios(jobs, ducks), note="events a second, its whole process")
    quarters = [each / 4 for each in jobs]
    bench.row("an event of four times as many", "x", ratios(quarters, took[small]), at_most(GROWTH_AIM))
    bench.row("--follow / the job", "x", ratios(jobs, follows), at_least(FOLLOW_AIM), note="events a second")
    if delays:
        note = f"of {len(delays)} events, one each {WRITE_PAUSE_S:g} s; half of them within {median(delays):.1f} s"
        worst = max(delays) / INTERVAL_S
        bench.row("an event is in the table within", "intervals", [worst], at_most(DELAY_AIM), note=note)
    bench.row("memory of the JVM", "MiB", [memory_mb], note=f"--driver-memory {MEMORY}")


def _job(spark: SparkSession, log: Path, out: Path) -> float:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    began = time.perf_counter()
    run_job(spark, Sources([str(log)]), str(out), events=find_events(), plugin_tables=plugin_tables())
    return time.perf_counter() - began


def _on_duckdb(log: Path, out: Path) -> float:
    """As a process of its own: in this one pyspark is there."""
    command = [sys.executable, "-m", "peerd", "analyze", str(log), "--out", str(out), "--engine", "duckdb"]
    began = time.perf_counter()
    subprocess.run([*command, "--driver-memory", MEMORY, "--no-report"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _follow(spark: SparkSession, log: Path, out: Path) -> float:
    """As ``peerd analyze --follow --once``."""
    from peerd.pipeline.follow import follow
    from peerd.pipeline.sources import Sources

    began = time.perf_counter()
    follow(
        spark,
        Sources([str(log)]),
        str(out),
        events=find_events(),
        plugin_tables=plugin_tables(),
        interval_s=None,
        told=lambda news: None,
    )
    return time.perf_counter() - began


def _delays(bench: Bench, folder: Path, duration_s: float) -> list[float]:
    """How long events took from a daemon's file to the table: of a process of its own, while they are written."""
    from pyarrow import dataset

    log, out = folder / "written", folder / "delays"
    files = EventFiles(log, "a" * 32, boot=1)
    command = [sys.executable, "-m", "peerd", "analyze", str(log), "--out", str(out), "--follow"]
    command += ["--every", f"{INTERVAL_S:g}s"]
    number = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = None
            while until is None or time.monotonic() < until:
                number += 1
                files.write(_record(number))
                time.sleep(WRITE_PAUSE_S)
                if until is None and any(out.glob("events/batch=*")):  # it works from now on
                    bench.progress(f"an event each {WRITE_PAUSE_S:g} s, followed")
                    first, until = number + 1, time.monotonic() + duration_s
            time.sleep(2 * INTERVAL_S)
        finally:
            process.terminate()
    delays = []
    for path in (out / "events").glob("batch=*/*.parquet"):
        there_at = path.stat().st_mtime
        rows = dataset.dataset(path).to_table(columns=["id", "ts"]).to_pylist()
        delays += [there_at - row["ts"] for row in rows if row["id"] >= first]
    return delays


def _record(number: int) -> dict[str, object]:
    event = NodeReady(duration_s=1.0, ring_size=1.0)
    stamps = {"schema_version": SCHEMA_VERSION, "ts": time.time(), "mono_s": 1.0, "node": "a" * 32, "boot": 1}
    return {**stamps, "id": number, "cause": None, "event": event.KIND, **event.columns()}


def _read(spark: SparkSession, log: Path) -> float:
    """The schema is given; the rows go nowhere."""
    from peerd.pipeline.schema import spark_schema

    began = time.perf_counter()
    events = spark.read.schema(spark_schema(find_events())).json(str(log))
    events.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
