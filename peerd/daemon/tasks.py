"""The one place that starts asyncio tasks.

The event loop keeps only weak references to tasks, so a bare ``create_task`` may be collected half-way, and an
exception in it is noticed only when (and if) the task is collected. `spawn` keeps a strong reference until the
task ends and reports its exception at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
ErrorHandler = Callable[[BaseException], None]

_running: Final[set[asyncio.Task[Any]]] = set()


def spawn(
    coro: Coroutine[Any, Any, Result], *, name: str, on_error: ErrorHandler | None = None
) -> asyncio.Task[Result]:
    """Start ``coro`` as a task of the running loop and watch it to its end.

    An exception goes to ``on_error`` when given, otherwise to the loop's exception handler; a cancellation is no
    error. It is reported even when somebody awaits the task as well. ``name`` appears in both reports and in task
    dumps. Raises ``RuntimeError`` when no loop is running.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        coro.close()  # otherwise Python warns about a coroutine that was never awaited
        raise
    task = loop.create_task(coro, name=name)
    _running.add(task)
    task.add_done_callback(partial(_report, on_error))
    return task


def running_tasks() -> list[asyncio.Task[Any]]:
    """Tasks of `spawn` that have not ended, by name: the task-leak checks and the QUIT dump read it."""
    return sorted(_running, key=asyncio.Task.get_name)


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel ``tasks`` and return once all have ended. Their errors are reported by `spawn`, not raised here."""
    ending = [task for task in tasks if not task.done()]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


def _report(on_error: ErrorHandler | None, task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        return
    if on_error is not None:
        on_error(error)
        return
    task.get_loop().call_exception_handler(
        {"message": f"task {task.get_name()!r} failed", "exception": error, "task": task}
    )
