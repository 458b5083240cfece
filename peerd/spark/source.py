"""The data source itself: Spark's questions, put to daemons, and their answers as batches of Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from peerd.client import Client, DaemonUnreachable
from peerd.client.streams import on_standard_error
from peerd.errors import Unavailable
from peerd.front import Row
from peerd.spark.asking import RingQuestion, question_of

PUSHED_MAX: Final = 16
"""So many values of a column a daemon looks for itself."""
_PATTERN: Final = frozenset("*?[,")
"""Characters of a value that would be more than a text in a list of patterns."""

T = TypeVar("T")
Places = dict[str, str]
"""The positions of a stream, by the addresses of daemons. "start": before all that is held."""
Asked = dict[str, int]
"""How often a question was asked."""


class RingSource(DataSource):  # type: ignore[misc]  # mypy does not read pyspark
    """See `peerd.spark.register`."""

    @classmethod
    def name(cls) -> str:
        """The format's name for Spark."""
        return "peerd"

    def schema(self) -> str:
        """The columns, where the user does not name them."""
        return question_of(self.options).columns()

    def reader(self, schema: StructType) -> RingReader:
        """For ``spark.read``."""
        return RingReader(question_of(self.options), schema)

    def streamReader(self, schema: StructType) -> RingStreamReader | AnswerStreamReader:
        """For ``spark.readStream``."""
        question = question_of(self.options)
        reader = AnswerStreamReader if question.table.feed is None else RingStreamReader
        return reader(question, schema)


class FeedPart(InputPartition):  # type: ignore[misc]  # mypy does not read pyspark
    """A piece of a daemon's feed; without ``end`` all that is held."""

    def __init__(self, address: str, start: str = "start", end: str | None = None) -> None:
        super().__init__(None)
        self.address, self.start, self.end = address, start, end


class RingReader(DataSourceReader):  # type: ignore[misc]  # mypy does not read pyspark
    """One answer of the ring, or what daemons hold."""

    def __init__(self, question: RingQuestion, schema: StructType) -> None:
        self._question, self._schema = question, schema

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Have daemons look for single values themselves. Spark looks again: a daemon may be of another version."""
        for each in filters:
            values = _values(each)
            option = self._question.table.pushed.get(".".join(each.attribute)) if values else None
            if option is not None and option not in self._question.options:
                self._question = self._question.wanting(option, ",".join(values))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """One for each daemon that is asked."""
        if self._question.table.feed is None:
            return [InputPartition(None)]
        if self._question.table.is_each_daemons:
            return [FeedPart(address) for address in self._question.addresses]
        return [FeedPart(self._question.newest_of_first()[0])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as batches of Arrow."""
        if isinstance(partition, FeedPart):
            return _batches(self._question, partition, self._schema)
        return iter([_batch(self._question.rows(), self._schema)])


class RingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy does not read pyspark
    """What daemons' feeds get. Spark keeps the positions, in its checkpoint."""

    def __init__(self, question: RingQuestion, schema: StructType) -> None:
        self._question, self._schema = question, schema
        self._last: Places | None = None
        self._silent: set[str] = set()
        """Daemons that did not answer when they were asked last."""

    def initialOffset(self) -> Places:
        """Where a new stream begins."""
        question = self._question
        if not question.table.is_each_daemons:
            address, place = question.newest_of_first()
            return {address: place if question.starts == "now" else "start"}
        if question.starts != "now":
            return dict.fromkeys(question.addresses, "start")
        question.ask_first(Client.status)  # where nobody answers, it is an error
        places = {address: self._newest(address, "") for address in question.addresses}
        return {address: place for address, place in places.items() if place}

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on only what is there now is read."""
        self._last = {}

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:
        """How far the next batch reads. A daemon that does not answer stays where it was."""
        is_asked_once = self._last is not None
        if self._last:
            return self._last
        known = list(start)
        if self._question.table.is_each_daemons:
            known += [address for address in self._question.addresses if address not in start]
        places = {address: self._newest(address, start.get(address, "start")) for address in known}
        if is_asked_once:
            self._last = places
        return places

    def _newest(self, address: str, before: str) -> str:
        try:
            place = self._question.newest(address)
        except Unavailable as error:
            if address not in self._silent:
                self._silent.add(address)
                on_standard_error(f"{address}: no answer, going on without it ({error})")
            return before
        self._silent.discard(address)
        return place

    def partitions(self, start: Places, end: Places) -> list[FeedPart]:
        """One for each daemon that has something new."""
        places = [(address, start.get(address, "start"), until) for address, until in end.items()]
        return [FeedPart(address, since, until) for address, since, until in places if since != until]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as batches of Arrow."""
        return _batches(self._question, partition, self._schema)


class AnswerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy does not read pyspark
    """The same question in each micro-batch. A batch that is taken again has the answer of then."""

    def __init__(self, question: RingQuestion, schema: StructType) -> None:
        self._question, self._schema = question, schema
        self._only: Asked | None = None

    def initialOffset(self) -> Asked:
        """Nothing was asked yet."""
        return {"asked": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on it is asked once."""
        self._only = {}

    def latestOffset(self, start: Asked, limit: ReadLimit) -> Asked:
        """There is always one more answer."""
        if self._only:
            return self._only
        following = {"asked": start["asked"] + 1}
        if self._only is not None:
            self._only = following
        return following

    def partitions(self, start: Asked, end: Asked) -> list[InputPartition]:
        """One task asks."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of an answer, as a batch of Arrow."""
        return iter([_batch(self._question.rows(), self._schema)])


def _values(condition: Filter) -> list[str]:
    """The texts one of which the column has to be; none where the condition says something else."""
    values = (condition.value,) if isinstance(condition, EqualTo) else getattr(condition, "value", ())
    if not isinstance(condition, EqualTo | In) or not 0 < len(values) <= PUSHED_MAX:
        return []
    return list(values) if all(isinstance(each, str) and not _PATTERN & set(each) for each in values) else []


def _batches(question: RingQuestion, part: FeedPart, schema: StructType) -> Iterator[Any]:
    try:
        for rows in _in_this_thread(question.items(part.address, part.start, part.end)):
            yield _batch(rows, schema)
    except DaemonUnreachable as error:
        # It answered when the batch was planned. As an error, a machine that is gone would end the stream for ever.
        if part.end is None or question.fails_on_loss:
            raise
        on_standard_error(f"{part.address}: no answer, its rows up to {part.end} are left out ({error})")


def _in_this_thread(found: AsyncGenerator[T, None]) -> Iterator[T]:
    """What an asynchronous generator yields, for a caller that is none."""
    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    yield runner.run(anext(found))
                except StopAsyncIteration:
                    return
        finally:
            runner.run(found.aclose())


def _batch(rows: Sequence[Row], schema: StructType) -> Any:
    """Rows with the columns of the schema. A value of another type than its column is null, as in event logs."""
    shape = to_arrow_schema(schema)
    columns = [_column([row.get(field.name) for row in rows], field.type) for field in shape]
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def _column(values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([_fitting(value, kind) for value in values], kind)


def _fitting(value: Any, kind: Any) -> Any:
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
