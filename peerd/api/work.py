"""Work that a plugin gives away: what bounds it, and how it is called off (`peerd.api.Host.offload`); and the random
numbers that it draws."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """What a job in another process may use. A job that uses more is ended, and fails with `Unavailable`.

    The process does one job at a time. It may have done others before, with the same modules, which all went well.
    """

    memory_bytes: int
    """Address space of the process, with the interpreter's own (some 50 MiB)."""
    cpu_s: float
    wall_s: float
    """How long it may run, not counting the time until a process is free."""
    result_bytes_max: int
    name: str = "the work"
    """What it is, for the text of the failure: "its query exceeded 512 MiB of memory"."""
    modules: tuple[str, ...] = ()
    """What it imports besides the module of its function: this is then there before the process is made."""
    owner: Hashable = None
    """For whom the work is done. The processes are shared fairly among owners: none ever has them all."""


class WorkHandle(Protocol):
    """A job that was given away."""

    def cancel(self) -> None:
        """Call it off: it is not begun, or its process is killed, and neither of its callbacks is called.

        A thread cannot be killed: what runs in one runs on, and its result is thrown away. Harmless when it has ended.
        """


class Rng(Protocol):
    """The part of ``random.Random`` that protocols use."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randrange(self, start: int, stop: int | None = None, /) -> int: ...
    def getrandbits(self, k: int, /) -> int: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def sample(self, population: Sequence[T], k: int) -> list[T]: ...
    def shuffle(self, x: list[T], /) -> None: ...
