"""Which event loop runs the daemon: uvloop where it is installed, or plain asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from peerd.errors import ConfigError

LoopName = Literal["auto", "uvloop", "asyncio"]
Result = TypeVar("Result")


def loop_factory(loop: LoopName = "auto") -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the function that makes the loop. Raises `ConfigError` when uvloop is asked for and missing."""
    if loop == "asyncio" or (loop == "auto" and find_spec("uvloop") is None):
        return asyncio.SelectorEventLoop
    try:
        import uvloop  # absent on Windows
    except ImportError as error:
        raise ConfigError(f"uvloop cannot be imported: {error}; use the loop asyncio", key="loop") from error
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(main: Coroutine[Any, Any, Result], *, loop: LoopName = "auto") -> Result:
    """Run ``main`` to its end on a new loop, then close the loop."""
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        return runner.run(main)
