"""Runs points in processes of their own, so that their memory can be measured, and a crash ends no other point.

Points that begin alike share a process: it simulates what they have in common, and each goes on in a fork of it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, Literal

from peerd.errors import ConfigError
from peerd.lab.experiment import Beginning, Notify, Point, Row
from peerd.lab.registry import experiment

Watch = Callable[[Point, str, float], None]
"""Called with the point, the phase that begins, and the virtual time in seconds."""
PHASE: Final = "phase"
ROW: Final = "row"
LOST: Final = "lost"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one point: its row, or the reason why there is none."""

    point: Point
    row: Row | None
    error: str = ""


def run_point(point: Point, notify: Notify = lambda phase, now: None) -> Row:
    """Simulate a point in this process. The row is the same each time, except for what it cost."""
    return {**point.parameters, **experiment(point.experiment).measure(point, notify)}


def groups(points: Sequence[Point]) -> list[list[Point]]:
    """The points, those that begin alike together; else in their order."""
    made: dict[object, list[Point]] = {}
    for number, point in enumerate(points):
        beginning = _beginning(point)
        made.setdefault(number if beginning is None else beginning.key(point), []).append(point)
    return list(made.values())


def run_points(
    points: Sequence[Point],
    jobs: int = 1,
    watch: Watch = lambda point, phase, now: None,
    method: Literal["spawn", "fork"] = "spawn",
) -> Iterator[Result]:
    """Yield the results as they come, from up to ``jobs`` processes at a time. Closing the iterator ends them.

    ``method``: how processes start. A fork has everything imported, and may be made by a process with one thread only.
    """
    waiting = list(reversed(groups(points)))
    running: dict[Connection, tuple[dict[int, Point], BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                group = waiting.pop()
                ours, process = _start(group, method)
                running[ours] = dict(enumerate(group)), process
                watch(group[0], "start", 0.0)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                left, process = running[ready]
                try:
                    kind, number, content, now_s = ready.recv()
                except EOFError:
                    del running[ready]
                    ready.close()
                    process.join()
                    yield from (Result(point, None, ending(process.exitcode or 0)) for point in left.values())
                    continue
                if kind == PHASE:
                    watch(left[number], content, now_s)
                elif kind == ROW:
                    yield Result(left.pop(number), content)
                else:
                    yield Result(left.pop(number), None, content)
    finally:
        for connection, (_, process) in running.items():
            process.terminate()
            process.join()
            connection.close()


def run_group(group: Sequence[Row]) -> list[tuple[Row | None, str]]:
    """Run points that begin alike, given as plain data, in a process below this one; for each its row, or why there is
    none. It is what a task on another machine calls, whose process has one thread, and which runs many groups."""
    points = [Point.of_json(each) for each in group]
    found = {result.point.digest: (result.row, result.error) for result in run_points(points, method="fork")}
    return [found[point.digest] for point in points]


def _beginning(point: Point) -> Beginning | None:
    try:
        return experiment(point.experiment).beginning
    except ConfigError:  # there is no such experiment: the process that is to run it says so
        return None


def _start(group: Sequence[Point], method: Literal["spawn", "fork"]) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork") if method == "fork" else multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(list(group), theirs), name=str(group[0]), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _work(group: Sequence[Point], connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reacts to Ctrl-C, and stops this process
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_with(lambda: wait([parent.sentinel]))

    def notify(number: int) -> Notify:
        return lambda phase, now: connection.send((PHASE, number, phase, now))

    def attempt(number: int, row: Callable[[], Row]) -> None:
        try:
            found = row()
        except Exception as error:  # whatever an experiment raises: its point has no row, and this is why
            traceback.print_exc()
            connection.send((LOST, number, f"{type(error).__name__}: {error}", 0.0))
        else:
            connection.send((ROW, number, found, 0.0))

    beginning = _beginning(group[0])
    if beginning is None or len(group) == 1:
        for number, point in enumerate(group):
            attempt(number, partial(run_point, point, notify(number)))
        return
    prepared = beginning.prepare(group[0], notify(0))
    gc.collect()
    gc.freeze()  # forks share this memory as long as nothing is written to it
    for number, point in enumerate(group):

        def measure(number: int = number, point: Point = point) -> Row:
            return {**point.parameters, **beginning.measure(prepared, point, notify(number))}

        if why := _fork(partial(attempt, number, measure)):
            connection.send((LOST, number, why, 0.0))


def _fork(act: Callable[[], None]) -> str:
    """Do something in a copy of this process; returns why that did not work, or nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(reading)
        _, status = os.waitpid(child, 0)
        os.close(writing)
        return ending(code) if (code := os.waitstatus_to_exitcode(status)) else ""
    os.close(writing)
    _end_with(lambda: os.read(reading, 1))  # there is nothing to read, but an end once the parent is gone
    code = 1
    try:
        act()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with(wait_for_end: Callable[[], object]) -> None:
    """End with the parent: one that is killed cannot end its simulations, which would go on for minutes."""

    def watch() -> None:
        wait_for_end()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ending(code: int) -> str:
    """How a process ended, for people."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name} (SIGKILL: out of memory?)"
    return f"its process ended with exit code {code}; the lines above say why"
