"""Runs each point in a process of its own, so that its memory can be measured, and a crash ends no other point."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from peerd.lab.experiment import Point, Row
from peerd.lab.registry import experiment

Watch = Callable[[Point, str, float], None]
"""Called with the point, the phase that begins, and the virtual time in seconds."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one point: its row, or the reason why there is none."""

    point: Point
    row: Row | None
    error: str = ""


def run_point(point: Point, notify: Callable[[str, float], None] = lambda phase, now: None) -> Row:
    """Simulate a point in this process. The row is the same each time, except for what it cost."""
    return {**point.parameters, **experiment(point.experiment).measure(point, notify)}


def run_points(
    points: Sequence[Point], jobs: int = 1, watch: Watch = lambda point, phase, now: None
) -> Iterator[Result]:
    """Yield the results as they come, from up to ``jobs`` processes at a time. Closing the iterator ends them."""
    waiting = list(reversed(points))
    running: dict[Connection, tuple[Point, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                point = waiting.pop()
                ours, process = _start(point)
                running[ours] = point, process
                watch(point, "start", 0.0)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                point, process = running[ready]
                try:
                    kind, content, now_s = ready.recv()
                except EOFError:
                    kind, content, now_s = "row", None, 0.0
                if kind == "phase":
                    watch(point, content, now_s)
                    continue
                del running[ready]
                ready.close()
                process.join()
                yield Result(point, content, "" if content is not None else _ending(process))
    finally:
        for connection, (_, process) in running.items():
            process.terminate()
            process.join()
            connection.close()


def _start(point: Point) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(point, theirs), name=str(point), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _work(point: Point, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reacts to Ctrl-C, and stops this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    row = run_point(point, lambda phase, now: connection.send(("phase", phase, now)))
    connection.send(("row", row, 0.0))


def _end_with_parent() -> None:
    """End with the parent: one that is killed cannot end its simulations, which would go on for minutes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _ending(process: BaseProcess) -> str:
    code = process.exitcode or 0
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name} (SIGKILL: out of memory?)"
    return f"its process ended with exit code {code}; the lines above say why"
