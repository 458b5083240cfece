"""Python calls as tasks of Spark, whose results come as they are done: many small ones, or few that take hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from peerd.errors import Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD: Final = 2
"""Tasks that wait on Spark's side for each that runs, so that no worker waits for this program."""
NO_MODULE: Final = "No module named 'peerd'"


def run_tasks(
    spark: SparkSession, call: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[Item, Result | str]]:
    """Call a function on each item, each in a task of its own; yields the result, or why there is none.

    ``call`` is a function of a module that the workers have, too. What it raises is not tried again; a worker that is
    lost is. Closing the iterator leaves out what has not begun. Raises `Unavailable` where workers have no peerd.
    """
    context = spark.sparkContext
    at_once = max(1, context.defaultParallelism) * AHEAD
    waiting = list(reversed(items))
    running: dict[Future[Result | str], Item] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    item = waiting.pop()
                    running[pool.submit(_run, spark, call, item)] = item
                for done in wait(running, return_when="FIRST_COMPLETED").done:
                    yield running.pop(done), done.result()
        finally:
            waiting.clear()
            for future in running:
                future.cancel()
            if any(not future.done() for future in running):
                context.cancelAllJobs()


def _run(spark: SparkSession, call: Callable[[Item], Result], item: Item) -> Result | str:
    """One job of one task."""
    try:
        result: Result
        [result] = spark.sparkContext.parallelize([item], 1).map(call).collect()
    except Exception as error:  # of the task, or of py4j with what the JVM says
        return _told(error)
    return result


def _told(error: Exception) -> str:
    text = str(error)
    if NO_MODULE in text:
        raise Unavailable(
            "a worker has no peerd: install it there, in the Python that PYSPARK_PYTHON names for the workers"
        ) from error
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
