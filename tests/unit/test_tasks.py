"""peerd.daemon.tasks: references are kept, errors are reported."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from peerd.daemon.tasks import cancel_and_wait, running_tasks, spawn


async def _fail() -> None:
    raise LookupError("broken")


def _collect_loop_reports() -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    return reports


async def test_an_error_reaches_the_loop_exception_handler_with_the_task_name() -> None:
    reports = _collect_loop_reports()
    task = spawn(_fail(), name="failing")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [str(report["exception"]) for report in reports] == ["broken"]
    assert "failing" in reports[0]["message"]
    assert running_tasks() == []


async def test_an_error_handler_replaces_the_loop_report() -> None:
    reports = _collect_loop_reports()
    errors: list[BaseException] = []
    await asyncio.wait([spawn(_fail(), name="failing", on_error=errors.append)])
    await asyncio.sleep(0)
    assert [type(error) for error in errors] == [LookupError]
    assert reports == []


async def test_a_task_that_nobody_holds_survives_garbage_collection() -> None:
    done = asyncio.Event()

    async def wait_on_an_object_only_this_task_knows() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect()
        done.set()

    spawn(wait_on_an_object_only_this_task_knows(), name="lonely")
    assert [task.get_name() for task in running_tasks()] == ["lonely"]
    await asyncio.wait_for(done.wait(), 30)


async def test_cancelling_is_no_error_and_waits_for_cleanup() -> None:
    reports = _collect_loop_reports()
    cleaned: list[str] = []

    async def worker() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("yes")

    task = spawn(worker(), name="worker")
    await asyncio.sleep(0)
    await cancel_and_wait([task])
    assert (task.cancelled(), cleaned, reports) == (True, ["yes"], [])


async def test_the_result_is_returned() -> None:
    async def answer() -> int:
        return 42

    assert await spawn(answer(), name="answer") == 42


def test_without_a_loop_it_raises_and_leaves_no_unawaited_coroutine() -> None:
    with pytest.raises(RuntimeError):
        spawn(_fail(), name="never")
    gc.collect()  # an unawaited coroutine would warn here, and warnings are errors
