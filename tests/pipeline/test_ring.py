"""A real ring as a source of Spark (`peerd.spark`): what daemons answer, and a stream that is stopped and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peerd.client import DaemonUnreachable, run_sync
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from peerd.spark import register
from protocols.pubsub.front.client import PubSubClient
from tests.support.daemon_process import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

NODES = 2
SCHEMA: dict[str, Any] = {
    "name": "quotes",
    "attributes": [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": "float", "low": 0.0, "high": 1000.0},
        {"name": "lot", "type": "int", "low": 0, "high": 1000},
    ],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two daemons, each with a file of five records, that want tokens of their data clients."""
    folder = tmp_path_factory.mktemp("ring")
    (folder / "a.ndjson").write_text("".join(f'{{"status": {status}}}\n' for status in (200, 200, 200, 500, 404)))
    settings = {
        "data": {"http": "127.0.0.1:0", "tokens": "required"},
        "protocols": {"aggregation": {"data_root": str(folder)}},
    }
    with LocalCluster(folder / "cluster", name="test") as found:
        found.up(NODES, settings=lambda index: settings)
        yield found


@pytest.fixture
def sockets(cluster: LocalCluster) -> list[str]:
    """The operators' sockets of all daemons."""
    record = cluster.record()
    return [str(socket_file(record, node.index)) for node in record.nodes]


def load(spark: SparkSession, table: str, cluster: str, **options: str) -> DataFrame:
    """What Spark reads of it now."""
    register(spark)
    return spark.read.format("peerd").options(cluster=cluster, **options).load(table)


def test_events_of_all_daemons_are_read_and_daemons_look_for_their_kind(
    spark: SparkSession, sockets: list[str]
) -> None:
    events = load(spark, "events", ",".join(sockets)).where("event = 'node.ready'")
    rows = events.select("node", "boot", "id", "event").collect()
    assert len({row["node"] for row in rows}) == NODES == len(rows)
    [mine] = load(spark, "events", sockets[0], kinds="node.r*").select("event").distinct().collect()
    assert mine["event"] == "node.ready"
    with pytest.raises(Exception, match=r"no daemon answers at /none\.sock"):
        load(spark, "events", "/none.sock").collect()


def test_single_values_of_a_column_are_asked_of_the_daemon() -> None:
    datasource = pytest.importorskip("pyspark.sql.datasource")
    from peerd.spark.asking import question_of
    from peerd.spark.source import RingReader

    equal, among, less = datasource.EqualTo, datasource.In, datasource.LessThan
    for conditions, kinds in (
        ([less(("ts",), 4.0), equal(("event",), "node.ready")], "node.ready"),
        ([among(("event",), ("node.ready", "link.up"))], "node.ready,link.up"),
        ([among(("event",), ("a.*",))], None),  # it would be a pattern
        ([among(("event",), tuple(map(str, range(17))))], None),  # more than a daemon takes
        ([equal(("node",), "ab")], None),
    ):
        reader = RingReader(question_of({"path": "events", "cluster": "/a.sock"}), None)
        assert list(reader.pushFilters(conditions)) == conditions  # Spark looks again
        assert reader._question.options.get("kinds") == kinds
    reader = RingReader(question_of({"path": "events", "cluster": "/a.sock", "kinds": "link.*"}), None)
    reader.pushFilters([equal(("event",), "node.ready")])
    assert reader._question.options["kinds"] == "link.*"


def test_a_stream_goes_on_without_a_daemon_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark.sql.datasource")
    from pyspark.sql.types import StructType

    from peerd.spark.asking import question_of
    from peerd.spark.source import FeedPart, RingStreamReader

    reader = RingStreamReader(question_of({"path": "events", "cluster": "/none.sock"}), StructType())
    places = {"/none.sock": "e-1"}
    assert reader.latestOffset(places, None) == places == reader.latestOffset(places, None)
    assert reader.partitions(places, places) == []
    assert capsys.readouterr().err.count("/none.sock: no answer, going on without it") == 1
    with pytest.raises(DaemonUnreachable, match="no daemon answers at /none"):
        reader.initialOffset()
    earliest = {"path": "events", "cluster": "/none.sock", "startingOffsets": "earliest"}
    assert RingStreamReader(question_of(earliest), StructType()).initialOffset() == {"/none.sock": "start"}
    planned = FeedPart("/none.sock", "e-1", "e-3")  # it answered then
    assert list(reader.read(planned)) == [] and "its rows up to e-3 are left out" in capsys.readouterr().err
    given = {"path": "events", "cluster": "/none.sock", "failOnDataLoss": "true"}
    with pytest.raises(DaemonUnreachable):
        list(RingStreamReader(question_of(given), StructType()).read(planned))


def test_queries_and_rounds_are_answered_with_typed_columns(spark: SparkSession, sockets: list[str]) -> None:
    query = "SELECT node, cpu FROM nodes"

    def all_measured() -> bool:
        return bool(load(spark, "measurement", sockets[0], query=query).count() == NODES)

    wait_until(all_measured, "all nodes have measured their load", 60.0)
    measured = load(spark, "measurement", sockets[0], query=query)
    assert measured.where("cpu between cpu_low and cpu_high and not cpu_stale").count() == NODES
    none = load(spark, "measurement", sockets[0], query=f"{query} WHERE cpu > 1000000")
    assert none.schema == measured.schema and none.count() == 0
    counts = load(spark, "aggregation", sockets[0], query="count by status", files="*.ndjson").collect()
    assert {row["group"]: row["value"] for row in counts} == {"200": 6.0, "500": 2.0, "404": 2.0}
    assert {(row["contributors"], row["expected"]) for row in counts} == {(NODES, NODES)}
    [total] = load(spark, "aggregation", sockets[0], query="count", files="*.ndjson").collect()
    assert (total["group"], total["value"]) == (None, 10.0)
    with pytest.raises(Exception, match="needs the option query"):
        load(spark, "measurement", sockets[0])
    with pytest.raises(Exception, match="no node has 'cpus'"):
        load(spark, "measurement", sockets[0], query="SELECT cpus FROM nodes")


def test_a_stream_of_events_goes_on_where_it_was_and_has_each_event_once(
    spark: SparkSession, sockets: list[str], tmp_path: Path
) -> None:
    register(spark)
    run_sync(lambda client: PubSubClient(client).declare(SCHEMA), sockets[1])
    options = {"cluster": sockets[0], "subscription": "spark", "schema": "quotes", "filter": "price > 10"}
    stream = spark.readStream.format("peerd").options(**options).load("pubsub")
    got: list[tuple[int, str, float, int]] = []

    def read() -> None:
        def keep(rows: DataFrame, number: int) -> None:
            got.extend((number, *row) for row in rows.collect())

        wanted = stream.select("values.symbol", "values.price", "values.lot")
        writer = wanted.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def publish(lots: range) -> None:
        events = [{"symbol": "IBM", "price": float(lot % 100), "lot": lot} for lot in lots]
        run_sync(lambda client: PubSubClient(client).publish_many("quotes", events), sockets[1])

    def delivered(count: int) -> bool:
        return run_sync(lambda client: PubSubClient(client).subscriptions(), sockets[0])[0].delivered == count

    read()
    publish(range(150))
    wait_until(lambda: delivered(139 - 11), "events have come")
    read()
    publish(range(150, 300))
    wait_until(lambda: delivered(2 * 128 + 11), "events have come")
    read()
    assert sorted(lot for _, _, _, lot in got) == [lot for lot in range(300) if lot % 100 > 10]
    assert len({number for number, *_ in got}) == 2 and {symbol for _, symbol, _, _ in got} == {"IBM"}
    held = load(spark, "pubsub", sockets[0], subscription="spark")
    assert held.where("event is null or published_at is null").count() == 0 < held.count()


def test_a_stream_of_answers_asks_once_a_batch(spark: SparkSession, sockets: list[str], tmp_path: Path) -> None:
    register(spark)
    options = {"cluster": sockets[0], "query": "count by status", "files": "*.ndjson"}
    stream = spark.readStream.format("peerd").options(**options).load("aggregation")
    got: list[tuple[int, str, float, str]] = []

    def keep(rows: DataFrame, number: int) -> None:
        got.extend((number, *row) for row in rows.select("group", "value", "round").collect())

    for _ in range(2):
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    answer = {"200": 6.0, "500": 2.0, "404": 2.0}
    assert [{group: value for batch, group, value, _ in got if batch == number} for number in (0, 1)] == [answer] * 2
    assert len({asked for *_, asked in got}) == 2, "a round each"


def test_a_token_without_the_scope_is_refused_in_words(
    spark: SparkSession, cluster: LocalCluster, sockets: list[str]
) -> None:
    token = run_sync(lambda client: client.create_access("spark", ["measurement:read"], 600), sockets[0]).text
    status = run_sync(lambda client: client.status(), sockets[0])
    [port] = [address for address in status.data_addresses if not address.startswith("/")]
    url = f"http://{port}"
    query = "SELECT node, uptime_seconds FROM nodes"
    assert load(spark, "measurement", url, token=token, query=query).columns[:2] == ["node", "uptime_seconds"]
    with pytest.raises(Exception, match=r"aggregation:read"):
        load(spark, "aggregation", url, token=token, query="count").collect()
    with pytest.raises(Exception, match="token"):
        load(spark, "measurement", url, query=query)
