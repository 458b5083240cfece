"""A daemon that gets no memory any more ends; one allocation that fails does not end it."""

from __future__ import annotations

import asyncio
from typing import Any

from peerd.daemon.memory_watch import FAILURES_MAX, WINDOW_S, MemoryWatch, tell_loop_of_memory


def test_several_failures_within_a_minute_end_it_once() -> None:
    given_up: list[int] = []
    watch = MemoryWatch(lambda: given_up.append(1))
    for number in range(4 * FAILURES_MAX):
        watch.failed(ValueError(), number)
        watch.failed(MemoryError(), number * WINDOW_S)
    assert not given_up
    for number in range(3 * FAILURES_MAX):
        watch.failed(MemoryError(), 1e6 + number)
    assert given_up == [1]


async def test_failures_that_were_caught_elsewhere_are_told_to_the_loop() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    tell_loop_of_memory(ValueError())
    tell_loop_of_memory(error := MemoryError())
    assert [context["exception"] for context in told] == [error]
