"""The table of events as it grows: a folder for each micro-batch, ``events/batch=17``.

A batch that is not known to be done is read again after a restart, with the same lines, and written over what is there
of it; so what is left by a process that was killed at any moment does no harm. Small folders are merged, since Spark
looks at each, and each has the description of all columns.

Spark's checkpoint, with the positions in the files, is inside the table: who removes one removes the other.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import LongType, StructType

from peerd.pipeline import tables
from peerd.pipeline.making import EVENTS
from peerd.pipeline.store import TableStore

CHECKPOINT: Final = f"{EVENTS}/_checkpoint"
BATCH: Final = "batch"
"""The column of the table that tells a row's folder."""
MERGE_COUNT: Final = 64
"""So many small folders in a row become one."""
SMALL_BYTES: Final = 64 * 1024 * 1024
_DONE: Final = "_SUCCESS"
"""Spark writes this file into a table at last."""

Incarnation = tuple[str, int]
"""Node and boot."""


class EventBatches:
    """The batches that are there; ``columns``: those of events, of whatever plugins there were before."""

    def __init__(self, store: TableStore, columns: StructType) -> None:
        self._store = store
        self._columns = StructType(columns.fields).add(BATCH, LongType())
        self._spans: dict[Incarnation, tuple[int, int]] | None = None
        """The lowest and the highest number of the events of each incarnation."""
        self._sizes: dict[int, int] = {}
        """The bytes of each batch's folder."""

    def events(self) -> DataFrame:
        """All events, each once."""
        return self._all().drop(BATCH)

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch yet."""
        return not self._sizes

    def recover(self) -> None:
        """Leave the batches that Spark knows to be done, whatever an earlier process was doing when it was killed.

        Without any, nothing of the table is left: it is of another run.
        """
        commits = self._store.inside(f"{CHECKPOINT}/commits")
        done = max((int(name) for name in commits if name.isdigit()), default=-1)
        for name in self._store.inside(EVENTS):
            merged = re.fullmatch(r"_merged-(\d+)-(\d+)", name)
            if merged and self._store.exists(f"{EVENTS}/{name}/{_DONE}"):
                self._put_merged(int(merged[1]), int(merged[2]))
            elif merged or name.startswith("_new_") or self._is_left(name, done):
                self._store.remove(f"{EVENTS}/{name}")
        self._look()
        columns = StructType([field for field in self._columns.fields if field.name != BATCH])
        self._store.recovered(EVENTS, columns, [_folder(number) for number in self._sizes])

    @staticmethod
    def _is_left(name: str, done: int) -> bool:
        """Whether this is of no batch that is done."""
        number = _batch_of(name)
        return done < 0 and not name.startswith("_") if number is None else number > done

    def _look(self) -> None:
        folders = {_batch_of(name): size for name, size in self._store.inside(EVENTS).items()}
        self._sizes = {number: size for number, size in folders.items() if number is not None}

    def begin(self) -> None:
        """Make room for one more batch."""
        if self._spans is None:
            rows = [] if self.is_empty else tables.spans(self._all()).collect()
            self._spans = {(row["node"], row["boot"]): (row["first"], row["last"]) for row in rows}
        self._merge()

    def _merge(self) -> None:
        """Merge the last folders, if so many of them are small."""
        small: list[int] = []
        for number in sorted(self._sizes, reverse=True):
            if self._sizes[number] >= SMALL_BYTES:
                break
            small.append(number)
        if len(small) < MERGE_COUNT:
            return
        first, last = small[-1], small[0]
        some = self._store.read_merged(map(self.folder, small))
        self._store.write(self._merged(first, last), some.coalesce(1))
        self._put_merged(first, last)
        self._look()
        self._store.changed(EVENTS, [_folder(number) for number in small])

    def add(self, number: int) -> int:
        """Take the batch that was written into `folder`; returns how many events were left out, since they are in an
        earlier one, or were twice in this."""
        assert self._spans is not None
        spans, name = self._spans, self.folder(number)
        found = tables.spans(self._store.read(name)).collect()
        again = [
            (row["node"], row["boot"])
            for row in found
            if row["lines"] > row["ids"] or _meet(spans.get((row["node"], row["boot"])), (row["first"], row["last"]))
        ]
        duplicates = self._leave_out(number, again, sum(row["lines"] for row in found)) if again else 0
        for row in found:
            known = spans.get((row["node"], row["boot"]), (row["first"], row["last"]))
            spans[row["node"], row["boot"]] = min(known[0], row["first"]), max(known[1], row["last"])
        self._sizes[number] = sum(self._store.inside(name).values())
        self._store.changed(EVENTS, [_folder(number)])
        return duplicates

    def _leave_out(self, number: int, again: list[Incarnation], lines: int) -> int:
        doubled = self._store.frame(again, "node string, boot bigint")
        batch = tables.once(self._store.read(self.folder(number)), doubled)
        before = self._all().where(F.col(BATCH) < number).join(F.broadcast(doubled), ["node", "boot"], "left_semi")
        fresh = batch.join(before.select("node", "boot", "id"), ["node", "boot", "id"], "left_anti").select(
            batch.columns
        )
        left: int = self._store.rewrite(self.folder(number), fresh).count()
        return lines - left

    def folder(self, number: int) -> str:
        """Where a batch is to be written."""
        return f"{EVENTS}/{_folder(number)}"

    def _all(self) -> DataFrame:
        return self._store.read(EVENTS, self._columns)

    @staticmethod
    def _merged(first: int, last: int) -> str:
        return f"{EVENTS}/_merged-{first}-{last}"

    def _put_merged(self, first: int, last: int) -> None:
        """Put merged batches in the place of theirs. May be done again, after a part of it."""
        for number in range(first, last + 1):
            self._store.remove(self.folder(number))
        self._store.rename(self._merged(first, last), self.folder(last))


def _folder(number: int) -> str:
    """The name of a batch's folder."""
    return f"{BATCH}={number}"


def _batch_of(name: str) -> int | None:
    """The number of a batch's folder."""
    batch = re.fullmatch(rf"{BATCH}=(\d+)", name)
    return None if batch is None else int(batch[1])


def _meet(known: tuple[int, int] | None, new: tuple[int, int]) -> bool:
    return known is not None and known[0] <= new[1] and new[0] <= known[1]
