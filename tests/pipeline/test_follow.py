"""Tables of logs that are being written: they are those of one job over all, whenever the process is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peerd.errors import Unavailable
from peerd.plugins import find_events
from peerd.telemetry.event_files import EventFiles
from peerd.telemetry.sinks import encode_record
from tests.support.event_logs import A, helper_log, killed_log, requester_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from peerd.pipeline.store import TableStore

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark

Rows = dict[str, list[str]]


CORE = ("node.", "link.", "sink.", "swap.", "traffic.", "metric.")
KNOWN = {kind: event for kind, event in find_events().items() if kind.startswith(CORE)}
"""Not all kinds, since Spark takes its time for each column; those of rounds are unknown then."""
ONCE: dict[str, Any] = {"events": KNOWN, "plugin_tables": [], "interval_s": None}


def batch_job(spark: SparkSession, logs: Path, out: Path) -> None:
    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources

    run_job(spark, Sources([str(logs)]), str(out), events=KNOWN, plugin_tables=[])


def rows_in(spark: SparkSession, out: Path) -> Rows:
    """Each table's rows as text, sorted, since their order means nothing; the column ``batch`` says nothing of them."""
    tables = sorted(path.name for path in out.iterdir())
    return {
        name: sorted(
            json.dumps({key: value for key, value in row.asDict(recursive=True).items() if key != "batch"}, default=str)
            for row in spark.read.parquet(str(out / name)).collect()
        )
        for name in tables
    }


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.fixture(scope="module")
def ring(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[str]], Rows]:
    """Batches of lines, with what came late and twice, and the tables of a job that reads them all at once."""
    logs = [
        [encode_record(record).decode().strip() for record in log.records]
        for log in (requester_log(), helper_log(), killed_log())
    ]
    first, second, third = logs
    batches = [
        [*first[:4], second[0]],
        [*second[1:], "torn"],
        [*first[3:], third[0], third[0]],
        [],
        third[2:],
        [third[1]],
    ]
    folder, out = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("out")
    for number, lines in enumerate(batches):
        (folder / f"{number}.ndjson").write_text("".join(f"{line}\n" for line in lines))
    batch_job(spark, folder, out)
    return batches, rows_in(spark, out)


def store_of(spark: SparkSession, out: str) -> TableStore:
    from peerd.pipeline.store import TableStore

    return TableStore(spark, out)


def following(spark: SparkSession, out: Path) -> Any:
    from peerd.pipeline.follow import _Following
    from peerd.pipeline.making import TableMaker
    from peerd.pipeline.sources import Sources

    store = store_of(spark, str(out))
    return _Following(spark, Sources([]), KNOWN, store, TableMaker(store, [], None), lambda news: None)


def take_all(spark: SparkSession, out: Path, batches: list[list[str]], done: list[int]) -> None:
    """As a process that goes on with the first batch that Spark does not know to be done."""
    here = following(spark, out)
    for number in range(len(done), len(batches)):
        lines = spark.createDataFrame(
            [(line, f"/logs/{number}") for line in batches[number]], "value string, file string"
        )
        here.take(lines, number)
        done.append(number)
        commits = out / "events" / "_checkpoint" / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(number)).touch()  # as Spark does
    here.make_tables_if_due(is_last=True)


@pytest.mark.parametrize("turns", [1, pytest.param(8, marks=pytest.mark.long)])
def test_it_may_be_killed_at_any_step(
    spark: SparkSession,
    ring: tuple[list[list[str]], Rows],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    turns: int,
) -> None:
    """At each thing that it does with a file system, before it and after it; a batch that was begun is taken again."""
    from peerd.pipeline import batches as batches_module
    from peerd.pipeline.store import TableStore

    batches, wanted = ring
    monkeypatch.setattr(batches_module, "MERGE_COUNT", 3)
    steps, kill_at = count(), -1

    def killing(plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            if next(steps) == kill_at:
                raise Killed
            done = plain(*arguments)
            if next(steps) == kill_at:
                raise Killed
            return done

        return step

    for name in ("write", "remove", "rename"):
        monkeypatch.setattr(TableStore, name, killing(getattr(TableStore, name)))
    take_all(spark, tmp_path / "never", batches, [])
    assert rows_in(spark, tmp_path / "never") == wanted
    assert len(list((tmp_path / "never/events").glob("batch=*"))) < len(batches), "some were merged"
    total = next(steps)
    chosen = random.Random(1)
    for turn in range(turns):
        out, done, kills = tmp_path / f"{turn}", list[int](), 0
        while len(done) < len(batches) or kill_at >= 0:
            steps, kill_at = count(), chosen.randrange(total // 3) if kills < 4 else -1
            try:
                take_all(spark, out, batches, done)
            except Killed:
                kills += 1
        assert kills == 4
        assert rows_in(spark, out) == wanted, f"killed {kills} times"


def follow_once(
    spark: SparkSession, paths: list[str], out: Path, **options: Any
) -> tuple[list[tuple[int, int, int]], Any]:
    """New events, corrupt lines and copies of each batch; and what was told last."""
    from peerd.pipeline.follow import BatchDone, TablesRenewed, follow
    from peerd.pipeline.sources import Sources

    told: list[BatchDone | TablesRenewed] = []
    follow(spark, Sources(paths), str(out), **ONCE, **options, told=told.append)
    batches = [(each.events, each.counts.corrupt, each.duplicates) for each in told if isinstance(each, BatchDone)]
    return batches, told[-1]


def test_files_that_grow(spark: SparkSession, tmp_path: Path) -> None:
    """Read once through Spark's stream: what is there, then what is new, in files that got other names meanwhile."""
    from peerd.pipeline.follow import TablesRenewed

    logs, out = tmp_path / "logs", tmp_path / "out"

    def once() -> list[tuple[int, int, int]]:
        return follow_once(spark, [str(logs)], out)[0]

    with pytest.raises(Unavailable, match="no event files"):
        once()
    log, files = requester_log(), EventFiles(logs, A, boot=1)
    for record in log.records[:5]:
        files.write(record)
    batch_job(spark, logs, out)  # without a checkpoint in them, nobody knows what is in its tables
    (out / "events" / "_delta_log").mkdir()  # of a run with --delta
    batches, last = follow_once(spark, [str(logs)], out)
    assert batches == [(5, 0, 0)]
    assert isinstance(last, TablesRenewed) and last.tables == ["events", "losses", "nodes", "messages"]
    assert not (out / "events" / "_delta_log").exists()
    for record in log.records[5:8]:
        files.write(record)
    files.finish()
    (logs / "copy.ndjson").write_bytes(b"".join(encode_record(record) for record in log.records[:9]) + b"torn")
    assert once() == [(4, 1, 8)], "the ninth event is new, in the copy"
    shutil.rmtree(out / "losses")
    assert once() == [], "nothing is new, but the tables may be those of a process that was killed"
    batch_job(spark, logs, tmp_path / "batch")
    assert rows_in(spark, out) == rows_in(spark, tmp_path / "batch")


def test_finished_files_of_any_file_system(spark: SparkSession, tmp_path: Path) -> None:
    """Each is read when it has its name; what its daemon still writes is not."""
    logs, more, out = tmp_path / "logs", tmp_path / "more", tmp_path / "out"

    def once() -> list[tuple[int, int, int]]:
        return follow_once(spark, [logs.as_uri(), more.as_uri()], out, is_here=False)[0]

    with pytest.raises(Unavailable, match="there is no such file or folder"):
        once()
    log, files = requester_log(), EventFiles(logs, A, boot=1)
    for record in log.records[:5]:
        files.write(record)
    more.mkdir()
    with pytest.raises(Unavailable, match="no event files"):
        once()
    files.finish()
    (more / "other.ndjson").write_bytes(b"torn\n" + b"".join(map(encode_record, helper_log().records)))
    assert once() == [(5 + len(helper_log().records), 1, 0)]
    for record in log.records[5:]:
        files.write(record)
    files.finish()
    (logs / "old.ndjson").write_bytes(b"".join(map(encode_record, killed_log().records)))
    os.utime(logs / "old.ndjson", (0, 0))  # copied there with its time, after newer ones were read
    assert once() == [(len(log.records) - 5 + len(killed_log().records), 0, 0)]
    shutil.copytree(more, logs / "more")
    batch_job(spark, logs, tmp_path / "batch")
    assert rows_in(spark, out) == rows_in(spark, tmp_path / "batch")
