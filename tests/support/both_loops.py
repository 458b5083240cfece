"""Runs async tests on both event loops, and collects counters."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from peerd.daemon import loops
from peerd.daemon.tasks import running_tasks
from tests.support.long_cases import cases

Scenario = Callable[..., Coroutine[Any, Any, None]]


def both_loops(scenario: Scenario) -> Callable[..., None]:
    """Run an async test on uvloop, and if asked for long tests on asyncio; what only the loop noticed fails it, too."""

    async def watched(arguments: dict[str, Any]) -> None:
        unhandled: list[Mapping[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        await scenario(**arguments)
        for context in unhandled:
            raise AssertionError(f"the loop noticed: {context}") from context.get("exception")
        assert running_tasks() == [], running_tasks()

    def run(loop_name: loops.LoopName, **arguments: Any) -> None:
        loops.run(watched(arguments), loop=loop_name)

    run.__name__, run.__doc__, run.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    parameters = [*inspect.signature(scenario).parameters.values()]
    loop_name = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([*parameters, loop_name])  # type: ignore[attr-defined]  # pytest reads it
    parametrised: Callable[..., None] = pytest.mark.parametrize("loop_name", cases(["uvloop"], ["asyncio"]))(run)
    return parametrised


class Counters:
    """Counters and gauges as ``name{label=value}`` keys."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        key = name + "".join(f"{{{name}={value}}}" for name, value in sorted(labels.items()))
        self.values[key] = self.values.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.values[name] = value
