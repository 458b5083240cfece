"""Event files of this machine that grow, as a stream of Spark: each micro-batch has the lines that are new in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from peerd.pipeline.lines import FOLLOWED_BYTES, LINES
from peerd.pipeline.sources import FolderHours
from peerd.pipeline.tail import EventFileTail, FileEnd, FileRange, advance, chunks, tasks

FORMAT: Final = "peerd-event-files"


def stream_lines(spark: SparkSession, tail: EventFileTail) -> DataFrame:
    """A stream of the lines, in the columns of `LINES`: ``file`` is a path without ``.part`` and ``.gz``."""
    spark.dataSource.register(EventFileSource)
    options = {
        "paths": json.dumps(list(tail.paths)),
        "parts": str(tail.has_parts),
        "since": str(tail.hours.since),
        "until": str(tail.hours.until),
    }
    return spark.readStream.format(FORMAT).options(**options).load()


class EventFileSource(DataSource):  # type: ignore[misc]  # mypy does not read pyspark
    """See `stream_lines`."""

    @classmethod
    def name(cls) -> str:
        """The format's name for Spark."""
        return FORMAT

    def schema(self) -> str:
        """The columns."""
        return LINES

    def streamReader(self, schema: StructType) -> EventFileReader:
        """Spark asks for one on its driver, and for one in each task."""
        hours = FolderHours(self.options["since"], self.options["until"])
        return EventFileReader(
            EventFileTail(json.loads(self.options["paths"]), self.options["parts"] == "True", hours),
        )


class FileRanges(InputPartition):  # type: ignore[misc]  # mypy does not read pyspark
    """What one task reads."""

    def __init__(self, ranges: list[FileRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class EventFileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy does not read pyspark
    """Spark keeps the positions, in its checkpoint; what is here is of one process only."""

    def __init__(self, tail: EventFileTail) -> None:
        self._tail = tail
        self._last: Mapping[str, FileEnd] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Nothing was read yet."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Of a batch."""
        return ReadMaxBytes(FOLLOWED_BYTES)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on only what is there now is read."""
        self._last = self._tail.ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far the next batch reads."""
        ends = self._tail.ends() if self._last is None else self._last
        return advance(start, ends, None if isinstance(limit, ReadAllAvailable) else FOLLOWED_BYTES)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[FileRanges]:
        """The tasks of a batch."""
        return [FileRanges(ranges) for ranges in tasks(start, end)]

    def read(self, partition: FileRanges) -> Iterator[Any]:
        """The lines of a task, as batches of Arrow."""
        for part in partition.ranges:
            for lines in chunks(part):
                columns = [pa.array(lines, pa.string()), pa.array([part.file] * len(lines), pa.string())]
                yield pa.RecordBatch.from_arrays(columns, ["value", "file"])
