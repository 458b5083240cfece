"""Python calls as tasks of Spark, whose results come as they are done: many small ones, or few that take hours."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from pyspark.sql import SparkSession, functions as F

from peerd.errors import Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD: Final = 2
"""Tasks that wait on Spark's side for each that runs, so that no worker waits for this program."""
SLICES: Final = 1 << 16
"""More rows than a cluster has processors."""
NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")


def run_tasks(
    spark: SparkSession, call: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[Item, Result | str]]:
    """Call a function on each item, each in a task of its own; yields the result, or why there is none.

    ``call`` is a function of a module that the workers have, too. What it raises is not tried again; a worker that is
    lost is. Closing the iterator leaves out what has not begun. Raises `Unavailable` where workers lack a module.
    """

    def run(pickled: bytes) -> bytes:
        return pickle.dumps(call(pickle.loads(pickled)))

    on_worker = F.udf(run, "binary", useArrow=False).asNondeterministic()

    def result_of(item: Item) -> Result | str:
        """One job of one task. (Spark Connect has no RDD, so the task is a row.)"""
        try:
            [row] = spark.range(0, 1, 1, 1).select(on_worker(F.lit(pickle.dumps(item)))).collect()
        except Exception as error:  # of the task, or of Spark
            return _told(error)
        result: Result = pickle.loads(row[0])
        return result

    at_once = spark.range(SLICES).select(F.spark_partition_id()).distinct().count() * AHEAD
    waiting = list(reversed(items))
    running: dict[Future[Result | str], Item] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    item = waiting.pop()
                    running[pool.submit(result_of, item)] = item
                for done in wait(running, return_when="FIRST_COMPLETED").done:
                    yield running.pop(done), done.result()
        finally:
            waiting.clear()
            for future in running:
                future.cancel()
            if any(not future.done() for future in running):
                spark.interruptAll()


def _told(error: Exception) -> str:
    text = str(error)
    if lacked := NO_MODULE.search(text):
        raise Unavailable(
            f"a worker has no {lacked[1]}: install peerd there, in the Python that PYSPARK_PYTHON names for the workers"
        ) from error
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
