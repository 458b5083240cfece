"""Large items, and the work on them that is given away."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from peerd.errors import Unavailable
from protocols.dissemination.messages import StreamItem


class Aside:
    """Work that was given away and is done when the test says so."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], None], Any]] = deque()

    def offload(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], done: Callable[[Any], None], failed: Any
    ) -> None:
        self.jobs.append((function, arguments, done, failed))

    def do(self) -> None:
        function, arguments, done, failed = self.jobs.popleft()
        try:
            outcome = function(*arguments)
        except Exception as error:
            failed(error)
        else:
            done(outcome)

    def refuse(self) -> None:
        self.jobs.popleft()[3](Unavailable("256 jobs are waiting"))


def large(number: int, size: int, name: str = "a") -> StreamItem:
    """An item of a class, with a payload that tells its places apart."""
    rng = random.Random(number * 1_000_003 + size)
    body = name.encode() + b" " + rng.randbytes(64).hex().encode() * (size // 128 + 1)
    return StreamItem.of(1, number, 0, body[:size])
