"""The tables that ``peerd analyze`` makes of the events of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from peerd.front import LedgerLines, Row, Shown, SparkTable
from peerd.pipeline.ledger import lines_of
from peerd.pipeline.tables import alone, of_kind
from protocols.dissemination.documents.manifest import DOCUMENT_ID_BYTES
from protocols.dissemination.front import charts

MEASURED: Final = "dissemination.*_measured"
"""The kinds of events that policies write once they have measured what came of a change that they had predicted."""

PRODUCER_KINDS: Final = ("dissemination.handed_over", "dissemination.producer_replaced")
DOCUMENT_ID_DIGITS: Final = 2 * DOCUMENT_ID_BYTES
"""The tag of a chunk's swap begins with the document's id."""


def _spurious_share() -> Column:
    """Of what came, the share that no subscription of the node wanted."""
    return (F.sum("spurious") / F.nullif(F.sum("items_in"), F.lit(0))).alias("spurious_share")


def _loads(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
    """What nodes tell of streams each minute; where clocks are off, ``ts`` and ``late_s`` are corrected.

    An item's delay is by the clock of who took it, less that of its producer: the node with depth 0 in that minute.
    """
    loads, off = of_kind(events, "dissemination.load"), built.get("clocks")
    if off is None:
        return loads
    ahead = off.select("node", F.col("offset_s").alias("_ahead_s"))
    loads = loads.join(ahead, "node", "left").withColumn("_ahead_s", F.coalesce("_ahead_s", F.lit(0.0)))
    loads = loads.withColumn("ts", F.col("ts") - F.col("_ahead_s")).withColumn("_minute", F.floor(F.col("ts") / 60))
    made_by = loads.where("depth = 0").groupBy("stream", "_minute").agg(F.max("_ahead_s").alias("_made_ahead_s"))
    too_late_s = F.col("_ahead_s") - F.coalesce("_made_ahead_s", F.lit(0.0))
    return loads.join(made_by, ["stream", "_minute"], "left").withColumn(
        "late_s", F.col("late_s") - (F.col("items_in") - F.col("spurious")) * too_late_s
    )


def _mean_late_s() -> Column:
    """How late items came on average that somebody at the node wanted."""
    wanted = F.sum("items_in") - F.sum("spurious")
    return (F.sum("late_s") / F.nullif(wanted, F.lit(0))).alias("mean_late_s")


def _fidelity() -> Column:
    """Of the time for which subscriptions held values, the share in which these were good, at least."""
    return (1 - F.sum("outdated_s") / F.nullif(F.sum("held_s"), F.lit(0))).alias("fidelity")


def streams(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
    """One row a stream: how many nodes it has had, what came to them, how much of it in vain, and how deep they were.

    Fidelity is there for streams of values only. A producer has depth 0, and an orphan, which counts as no depth, -1.
    """
    return (
        _loads(events, built)
        .groupBy("stream")
        .agg(
            F.countDistinct("node").alias("nodes"),
            *(F.sum(name).alias(name) for name in ("items_in", "bytes_in", "items_out", "refused")),
            _spurious_share(),
            _mean_late_s(),
            _fidelity(),
            F.avg(_depth()).alias("mean_depth"),
            F.max(_depth()).alias("max_depth"),
        )
    )


def _depth() -> Column:
    return F.when(F.col("depth") > 0, F.col("depth"))


def minutes(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
    """One row a stream and minute (seconds since 1970, or since the simulation began): how the tree has developed."""
    minute = (F.floor(F.col("ts") / 60) * 60).cast("long").alias("minute_s")
    return (
        _loads(events, built)
        .groupBy("stream", minute)
        .agg(
            F.countDistinct("node").alias("nodes"),
            F.sum("items_in").alias("items_in"),
            _spurious_share(),
            _mean_late_s(),
            _fidelity(),
            F.avg(_depth()).alias("mean_depth"),
            F.max(_depth()).alias("max_depth"),
            F.sum(F.when(F.col("depth") < 0, 1).otherwise(0)).alias("orphans"),
            F.max("queued_bytes").alias("most_queued_bytes"),
        )
    )


def moves(events: DataFrame) -> DataFrame:
    """One row a stream, reason and end: attempts to get another parent, and how long they took."""
    return (
        of_kind(events, "dissemination.moved")
        .groupBy("stream", "why", "end")
        .agg(
            F.count(F.lit(1)).alias("attempts"),
            F.avg("duration_s").alias("mean_s"),
            F.max("duration_s").alias("max_s"),
        )
    )


def losses(events: DataFrame) -> DataFrame:
    """One row a stream and node that has lost a part of it: how often."""
    return of_kind(events, "dissemination.loss").groupBy("stream", "node").agg(F.count(F.lit(1)).alias("gaps"))


def producers(events: DataFrame) -> DataFrame:
    """One row a stream and way in which it got another producer: handed over, or replaced because it was gone.

    ``mean_pause_s``, ``max_pause_s``: for so long nothing could be published; of a producer that was gone, how long
    the standby had not heard of it.
    """
    found = events.where(F.col("event").isin(*PRODUCER_KINDS))
    for name in ("paused_s", "silent_s", "term"):
        if name not in found.columns:
            found = found.withColumn(name, F.lit(None).cast("double"))
    pause_s = F.coalesce("paused_s", "silent_s")
    how = F.when(F.col("event") == "dissemination.handed_over", "handed over").otherwise("replaced")
    return found.groupBy("stream", how.alias("how")).agg(
        F.count(F.lit(1)).alias("times"),
        F.avg(pause_s).alias("mean_pause_s"),
        F.max(pause_s).alias("max_pause_s"),
        F.max("term").cast("long").alias("term"),
    )


def reorganisations(events: DataFrame) -> DataFrame:
    """One row a stream: what changes were expected to bring, beside what they have brought, by the policy's measure.

    ``error``: how far the two lie apart, on average. No rows where no policy is installed that measures it.
    """
    found = events.where(F.col("event").like(MEASURED.replace("*", "%")))
    missing = [name for name in ("predicted", "measured") if name not in found.columns]
    for name in missing:
        found = found.withColumn(name, F.lit(None).cast("double"))
    return found.groupBy("stream").agg(
        F.count(F.lit(1)).alias("changes"),
        F.avg("predicted").alias("mean_predicted"),
        F.avg("measured").alias("mean_measured"),
        F.avg(F.abs(F.col("predicted") - F.col("measured"))).alias("error"),
        F.avg((F.col("measured") > 0).cast("double")).alias("useful_share"),
    )


def documents(events: DataFrame) -> DataFrame:
    """One row a document: how many nodes have fetched it, how long that took, and how many chunks came in vain."""
    return (
        of_kind(events, "dissemination.document_finished")
        .groupBy("stream", "document")
        .agg(
            F.count(F.lit(1)).alias("nodes"),
            F.max("bytes").alias("bytes"),
            F.avg("duration_s").alias("mean_s"),
            F.max("duration_s").alias("max_s"),
            F.avg("senders").alias("mean_senders"),
            F.sum("again").alias("again"),
        )
    )


def document_senders(events: DataFrame) -> DataFrame:
    """One row a document and node that has served chunks of it: how many, and how many bytes."""
    is_chunk = (
        (F.col("plugin") == "dissemination")
        & F.col("initiated")
        & (F.col("outcome") == "done")
        & (F.length("tag") > DOCUMENT_ID_DIGITS)
    )
    return (
        of_kind(events, "swap.finished")
        .where(is_chunk)
        .groupBy(F.substring("tag", 1, DOCUMENT_ID_DIGITS).alias("document"), "node")
        .agg(F.count(F.lit(1)).alias("chunks"), F.sum("sent_bytes").alias("bytes"))
    )


def ledger(events: DataFrame) -> DataFrame:
    """What became of items on the edges of trees: *filtered* are those that nobody at the node wanted."""
    wanted = F.col("items_in") - F.col("spurious")
    counts = {"sent": F.col("items_out"), "delivered": wanted, "filtered": F.col("spurious")}
    return lines_of(of_kind(events, "dissemination.load"), "items", counts)


def _as_read(row: Row) -> Row:
    """Shares in percent, and measures of policies with three digits."""
    shown = dict(row)
    for name, value in row.items():
        if isinstance(value, float) and name.endswith("_share"):
            shown[name] = f"{value:.1%}"
        elif isinstance(value, float) and name == "fidelity":
            shown[name] = f"{value:.2%}"
        elif isinstance(value, float) and name in ("mean_predicted", "mean_measured", "error"):
            shown[name] = f"{value:.3g}"
    return shown


TABLES: Final = (
    SparkTable(
        "stream_totals",
        streams,
        Shown(
            "Streams",
            {
                "stream": "stream",
                "nodes": "nodes",
                "items_in": "items",
                "bytes_in": "bytes",
                "spurious_share": "spurious",
                "mean_late_s": "mean delay",
                "fidelity": "fidelity",
                "mean_depth": "mean depth",
                "max_depth": "deepest",
                "refused": "refused",
            },
            ("stream",),
            _as_read,
        ),
        ("dissemination.load",),
    ),
    SparkTable("stream_minutes", minutes, kinds=("dissemination.load",), charts=charts.minutes),
    SparkTable(
        "stream_moves",
        alone(moves),
        Shown(
            "Moves in the trees of streams",
            {
                "stream": "stream",
                "why": "why",
                "end": "end",
                "attempts": "attempts",
                "mean_s": "mean",
                "max_s": "longest",
            },
            ("stream", "why", "end"),
        ),
        ("dissemination.moved",),
    ),
    SparkTable(
        "stream_losses",
        alone(losses),
        Shown("Lost parts of streams", {"stream": "stream", "node": "node", "gaps": "gaps"}, ("stream", "node")),
        ("dissemination.loss",),
    ),
    SparkTable(
        "stream_producers",
        alone(producers),
        Shown(
            "Other producers of streams",
            {
                "stream": "stream",
                "how": "how",
                "times": "times",
                "mean_pause_s": "mean pause",
                "max_pause_s": "longest",
                "term": "last term",
            },
            ("stream", "how"),
        ),
        PRODUCER_KINDS,
    ),
    SparkTable(
        "stream_reorganisations",
        alone(reorganisations),
        Shown(
            "Reorganisations: expected and measured",
            {
                "stream": "stream",
                "changes": "changes",
                "mean_predicted": "predicted",
                "mean_measured": "measured",
                "error": "error",
                "useful_share": "useful",
            },
            ("stream",),
            _as_read,
        ),
        (MEASURED,),
    ),
    SparkTable(
        "stream_documents",
        alone(documents),
        Shown(
            "Documents of streams",
            {
                "stream": "stream",
                "document": "document",
                "nodes": "nodes",
                "bytes": "bytes",
                "mean_s": "mean",
                "max_s": "longest",
                "mean_senders": "senders",
                "again": "chunks in vain",
            },
            ("stream", "document"),
        ),
        ("dissemination.document_finished",),
    ),
    SparkTable(
        "stream_document_senders",
        alone(document_senders),
        Shown(
            "Who served documents",
            {"document": "document", "node": "node", "chunks": "chunks", "bytes": "bytes"},
            ("document", "node"),
        ),
        ("dissemination.document_*",),
        besides=("swap.finished",),
    ),
)
LEDGER: Final = LedgerLines(ledger, ("dissemination.load",))
