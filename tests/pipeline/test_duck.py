"""``peerd analyze --engine duckdb``: the same tables as Spark's, row by row, and no Java.

sqlframe stands in for pyspark in a whole process, so each run of it here is one.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from bench.event_log import write_event_log
from peerd.cli.analyze import analyze, plugin_tables, report_as_json, time_of
from peerd.errors import ExitCode
from peerd.plugins import find_events
from tests.support.event_logs import helper_log, killed_log, requester_log
from tests.support.interrupts import take_interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("duckdb", reason="the extra `duckdb` is not installed")
pytest.importorskip("pyarrow", reason="the extra `duckdb` is not installed")
pytest.importorskip("sqlframe", reason="the extra `duckdb` is not installed")

UNTIL = "2026-09-21T14:16"
DIGITS = 9
"""Sums of floats are not added up in the same order."""


def analyse(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peerd", "analyze", *arguments, "--engine", "duckdb", "--output", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)


def write_logs(folder: Path) -> None:
    """Events of all kinds, of nodes of which two have wrong clocks, with all that can be wrong with a file."""
    write_event_log(folder, 4_000, nodes=7)
    first, second, third, *_ = sorted(folder.iterdir())
    lines = first.read_bytes().splitlines(keepends=True)
    torn = b'{"schema_version": 1, "ts": "\xc3'
    first.with_name(f"{first.name}.part").write_bytes(b"".join(lines[3:50]) + torn)
    odd = [json.loads(lines[0]) | {"id": 900_001, "event": "elsewhere.happened", "words": {"a": [1, "b"]}}]
    odd.append(json.loads(lines[1]) | {"id": 900_002, "schema_version": 99, "new": True})
    told = "".join(f"{json.dumps(each)}\n" for each in odd).encode()
    bad = b'\n   \n[]\n3\nnull\n"text"\n{"node": "x"}\n{"a": 1\n' + b"\x01,\x01\xff\xfe\n"
    second.write_bytes(b"".join(second.read_bytes().splitlines(keepends=True)[:-5]) + told + bad)
    third.with_name(f"{third.name}.gz").write_bytes(gzip.compress(third.read_bytes()))
    third.unlink()
    later = folder / "dt=2026-11-27" / "hr=13" / second.name
    later.parent.mkdir(parents=True)
    later.write_bytes(lines[0])
    below = folder / "dt=1970-01-01" / "hr=00" / "it's [odd]"
    for log in (requester_log(), helper_log(), killed_log()):
        log.write(below)
    (folder / "readme.txt").write_text("not an event file")


def rows(folder: Path) -> list[dict[str, Any]]:
    from pyarrow import dataset

    table = dataset.dataset(folder, format="parquet").to_table()
    found: list[dict[str, Any]] = table.drop_columns(["raw"] if "raw" in table.column_names else []).to_pylist()
    return sorted((rounded(row) for row in found), key=repr)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted(map(rounded, value), key=repr)
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def types(folder: Path) -> dict[str, str]:
    from pyarrow import dataset

    schema = dataset.dataset(folder, format="parquet").schema
    return {field.name: str(field.type) for field in schema if field.name != "raw"}


@pytest.mark.spark
def test_tables_and_report_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    write_logs(tmp_path / "logs")
    sources = Sources([str(tmp_path / "logs")], until_s=time_of(UNTIL, 0.0))
    by_spark = run_job(spark, sources, str(tmp_path / "spark"), events=find_events(), plugin_tables=plugin_tables())
    done = analyse(str(tmp_path / "logs"), "--out", str(tmp_path / "duck"), "--until", UNTIL)
    assert done.returncode == 0, done.stderr
    told, wanted = json.loads(done.stdout), json.loads(json.dumps(report_as_json(by_spark)))
    assert set(told) == set(wanted)
    assert (told["corrupt"], told["duplicates"], told["newer_schema"]) == (8, 47, 1)
    for name in wanted:
        assert rounded(told[name]) == rounded(wanted[name]), name
    for name in by_spark.tables:
        assert types(tmp_path / "duck" / name) == types(tmp_path / "spark" / name), name
        assert rows(tmp_path / "duck" / name) == rows(tmp_path / "spark" / name), name


def test_it_needs_neither_pyspark_nor_java(tmp_path: Path) -> None:
    """With both out of reach there is a report, with pictures, of the same numbers."""
    write_logs(tmp_path / "logs")
    (tmp_path / "blocking").mkdir()
    (tmp_path / "blocking" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'py4j'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "blocking"), "PATH": str(tmp_path)}
    done = analyse(str(tmp_path / "logs"), "--out", str(tmp_path / "out"), env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["corrupt"] == 8
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_wrong_arguments_are_told_before_anything_is_read(tmp_path: Path) -> None:
    application = typer.Typer()
    application.command()(analyze)
    logs = str(tmp_path)
    for arguments, code, told in (
        ([f"{logs}/nowhere"], ExitCode.UNAVAILABLE, "nowhere: there is no such file or folder"),
        (["hdfs://host/logs"], ExitCode.UNAVAILABLE, "only files of this machine are read here"),
        ([logs, "--master", "spark://host:7077"], ExitCode.UNAVAILABLE, "DuckDB works on this machine alone"),
        ([logs, "--conf", "spark.x=1"], ExitCode.USAGE, "--follow, --delta and --conf are of Spark"),
        ([logs, "--follow"], ExitCode.USAGE, "--follow, --delta and --conf are of Spark"),
    ):
        done = CliRunner().invoke(application, [*arguments, "--out", f"{logs}/out", "--engine", "duckdb"])
        assert done.exit_code == code
        assert told in " ".join(done.output.replace("│", " ").split())


def test_what_cannot_be_read_or_would_be_written_over_is_told_in_a_line(tmp_path: Path) -> None:
    logs = tmp_path / "nodes" / "logs"
    write_event_log(logs, 20, nodes=2)
    cut = logs / "events-cut-1-1.ndjson.gz"
    cut.write_bytes(gzip.compress(b'{"node": 1}\n' * 1000)[:-20])
    over = f"the event file {logs}"
    for out, told in ((tmp_path, f"would be written over {over}"), (tmp_path / "out", f"{cut}")):
        done = analyse(str(tmp_path / "nodes"), "--out", str(out))
        assert done.returncode != 0
        assert done.stderr.startswith("peerd analyze: ") and told in done.stderr
        assert done.stderr.count("\n") == 1


LONG_QUERY = """
from peerd.pipeline.duck import duckdb_connection
with duckdb_connection(1, "256m") as connection:
    connection.execute("CREATE TABLE numbers AS SELECT * FROM range(1000)")
    print("now", flush=True)
    connection.execute("SELECT sum(hash(a.range * b.range)) FROM range(1000000000) a, range(1000000000) b")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_a_query_and_leaves_no_files(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG_QUERY],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_interrupts,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        assert list(tmp_path.glob("peerd-duckdb-*/lines.duckdb"))
        process.send_signal(number)
        _, errors = process.communicate(timeout=50)
    assert errors.endswith("\nKeyboardInterrupt\n")
    assert not list(tmp_path.iterdir())


SPARKS_OWN = """
import sys
from peerd.pipeline.duck import duckdb_connection, run_on_duckdb, use_duckdb
use_duckdb()
from peerd.front import SparkTable
from peerd.pipeline.sources import Sources
from peerd.plugins import find_events
from pyspark.sql import functions as F
table = SparkTable("own", lambda events, built: events.select(F.bitmap_bucket_number("id")))
with duckdb_connection(1, "256m") as connection:
    run_on_duckdb(connection, Sources(sys.argv[1:2]), sys.argv[2], events=find_events(), plugin_tables=[[table]])
"""


def test_a_table_that_needs_spark_is_told(tmp_path: Path) -> None:
    write_event_log(tmp_path / "logs", 20, nodes=2)
    command = [sys.executable, "-c", SPARKS_OWN, str(tmp_path / "logs"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = done.stderr.splitlines()[-1]
    assert told.startswith("peerd.errors.Unavailable: a plugin's table needs Spark (")
    assert "bitmap_bucket_number" in told


FINISHED_MEANWHILE = """
import sys
from pathlib import Path
from peerd.pipeline import duck
duck.use_duckdb()
from peerd.pipeline.sources import Sources
from peerd.plugins import find_events
logs, out = map(Path, sys.argv[1:])
read = duck._read
def renamed(connection, files, *others):
    for part in logs.glob("*.part"):
        part.rename(part.with_suffix(""))
    return read(connection, files, *others)
duck._read = renamed
steps = []
with duck.duckdb_connection(1, "256m") as connection:
    report = duck.run_on_duckdb(
        connection, Sources([str(logs)]), str(out), events=find_events(), plugin_tables=[], progress=steps.append
    )
print(report.events, report.part_files, steps.count("a file got another name meanwhile: reading again"))
"""


def test_a_file_that_its_daemon_finishes_meanwhile_is_read(tmp_path: Path) -> None:
    write_event_log(tmp_path / "logs", 20, nodes=2)
    first, _ = sorted((tmp_path / "logs").iterdir())
    first.rename(f"{first}.part")
    command = [sys.executable, "-c", FINISHED_MEANWHILE, str(tmp_path / "logs"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "20 0 1\n", done.stderr
