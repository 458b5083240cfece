"""Tables of Delta Lake: as others read them, while they are written anew, and after a process was killed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peerd.errors import Unavailable
from tests.pipeline.test_follow import KNOWN, Killed, Rows, batch_job, rows_in, take_all
from tests.support.event_logs import helper_log, requester_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
pytestmark = pytest.mark.spark


def read(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    """The rows of a Delta table, by a reader that knows nothing of peerd."""
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return rows


def test_readers_see_a_version_whole(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    from peerd.pipeline.delta import DeltaStore

    store, path = DeltaStore(spark, tmp_path.as_uri()), tmp_path / "numbers"
    first = store.write("numbers", store.frame([(1,), (2,), (3,)], "number bigint"))
    store.rewrite("numbers", first.where("number > 1"))
    assert sorted(row["number"] for row in read(path)) == [2, 3] and DeltaTable(path).count() == 2
    assert sorted(row["number"] for row in read(path, version=0)) == [1, 2, 3], "for who read it meanwhile"
    store.write("numbers", store.read("numbers").selectExpr("cast(number as double) / 2 as half"))
    assert sorted(row["half"] for row in read(path)) == [1.0, 1.5]
    assert len(list(path.glob("v-*"))) == 2, "the version before this one is kept, and no other"
    store.draft("numbers", store.frame([(7.0,)], "half double"))
    assert [row["half"] for row in store.read("numbers").collect()] == [7.0]
    assert sorted(row["half"] for row in read(path)) == [1.0, 1.5], "a draft is nobody else's"
    store.settle("numbers")
    assert read(path) == [{"half": 7.0}]
    assert store.write("numbers", store.read("numbers").where("half < 0")).count() == 0
    assert read(path) == [] and store.read("numbers").columns == ["half"]
    store.remove("numbers")
    assert not path.exists()


def test_a_variant_is_json(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.delta import DeltaStore

    table = spark.sql("select parse_json('{\"a\": 1}') as raw, 'x' as `a b`")
    DeltaStore(spark, str(tmp_path)).write("events", table)
    assert read(tmp_path / "events") == [{"raw": '{"a":1}', "a b": "x"}]


def test_a_job_commits_its_events_once(spark: SparkSession, tmp_path: Path) -> None:
    """Not with what came twice in them. A job that writes plain Parquet leaves no log."""
    from deltalake import DeltaTable

    from peerd.pipeline.job import run_job
    from peerd.pipeline.sources import Sources
    from peerd.report.making import read_rows
    from peerd.report.opening import open_table

    logs, out = tmp_path / "logs", tmp_path / "out"
    log = requester_log()
    log.write(logs / "one")
    log.write(logs / "two")
    report = run_job(spark, Sources([str(logs)]), str(out), events=KNOWN, plugin_tables=[], is_delta=True)
    assert report.duplicates == len(log.records)
    assert DeltaTable(out / "events").version() == 0
    assert len(read(out / "events")) == len(log.records) == open_table(out / "events").count_rows()
    assert read_rows(out, "nodes") == read(out / "nodes") and len(read_rows(out, "nodes")) == 1
    batch_job(spark, logs, out)
    assert not list(out.rglob("_delta_log"))
    assert read_rows(out, "nodes") == spark_rows(spark, out / "nodes")


def spark_rows(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.parquet(str(path)).collect()]


def test_a_table_that_grows_is_in_its_log_whenever_it_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed where files, folders or the log change; its small folders are merged meanwhile."""
    from deltalake import DeltaTable

    from peerd.pipeline import batches as batches_module, delta
    from peerd.pipeline.store import TableStore

    logs = [[json.dumps(record) for record in log.records] for log in (requester_log(), helper_log())]
    batches = [[*logs[0][:4], logs[1][0]], logs[1][1:], [*logs[0][3:], logs[0][5]], []]
    folder = tmp_path / "all"
    folder.mkdir()
    for number, lines in enumerate(batches):
        (folder / f"{number}.ndjson").write_text("".join(f"{line}\n" for line in lines))
    batch_job(spark, folder, tmp_path / "batch")
    monkeypatch.setattr(batches_module, "MERGE_COUNT", 2)
    monkeypatch.setattr("tests.pipeline.test_follow.store_of", delta.DeltaStore)
    steps, kill_at = count(), -1

    def killing(plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            if next(steps) == kill_at:
                raise Killed
            return plain(*arguments)

        return step

    for name in ("write", "remove", "rename"):
        monkeypatch.setattr(TableStore, name, killing(getattr(TableStore, name)))
    monkeypatch.setattr(delta.DeltaStore, "_put", killing(delta.DeltaStore._put))
    out, done, kills = tmp_path / "out", list[int](), 0
    chosen = random.Random(1)
    while len(done) < len(batches):
        steps, kill_at = count(), chosen.randrange(12) if kills < 4 else -1
        try:
            take_all(spark, out, batches, done)
        except Killed:
            kills += 1
    assert kills == 4
    found: Rows = {path.name: sorted(map(as_text, read(path))) for path in out.iterdir() if path.is_dir()}
    wanted = {
        name: sorted(as_text(json.loads(row)) for row in rows)
        for name, rows in rows_in(spark, tmp_path / "batch").items()
    }
    assert found == wanted
    assert DeltaTable(out / "events").count() == len(wanted["events"])


def as_text(row: dict[str, Any]) -> str:
    """Without ``raw``, which is text in one table and a VARIANT in the other."""
    return json.dumps({name: value for name, value in row.items() if name != "raw"}, default=str)


def test_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from peerd.pipeline.requirements import check_delta

    check_delta()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"pip install 'peerd\[delta\]'"):
        check_delta()
