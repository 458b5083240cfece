"""One decoder under test: where its cases come from, what it may raise, and what a case that breaks it looks like."""

from __future__ import annotations

import random
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from peerd.limits import KIB

CASE_S_MAX: Final = 0.050
"""Most processor time of one case of at most `CASE_BYTES`, on any input whatever (A02)."""
CASE_BYTES: Final = 64 * KIB
"""What the daemon takes from outside is no longer: a frame, a request body, a line of JSON. What a client reads from
its own daemon, and a daemon from its own disk, may be; a longer case may take longer in proportion, and not more."""
TRIES: Final = 3
"""A case that takes longer is run again: the processor may have been collecting garbage, or loading a module."""


@dataclass(frozen=True, slots=True)
class Target:
    """``make`` draws a case, ``run`` gives it to the decoder and checks what came of it.

    ``raises``: what the decoder's documentation says that it raises. ``weight``: its share of all cases; decoders that
    take long get few.
    """

    name: str
    make: Callable[[random.Random], Any]
    run: Callable[[Any], object]
    raises: tuple[type[BaseException], ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that raised what it must not, or took too long."""

    target: str
    number: int
    what: str
    case: Any

    def __str__(self) -> str:
        return f"{self.target} case {self.number}: {self.what}\n    {self.case!r:.2000}"


def case_random(seed: int, target: Target, number: int) -> random.Random:
    """The generator of one case: it depends on nothing else, so any case can be repeated alone."""
    return random.Random(seed << 96 | zlib.crc32(target.name.encode()) << 64 | number)


def run_cases(target: Target, seed: int, numbers: range) -> Iterator[Finding]:
    """Run these cases of a target; yields those that fail."""
    for number in numbers:
        case = target.make(case_random(seed, target, number))
        if (what := _run(target, case)) is not None:
            yield Finding(target.name, number, what, case)


def reported(validate: Callable[[Any], object]) -> Callable[[Any], None]:
    """``validate``, and what its callers do next with a ``ValidationError``: list what is wrong."""

    def run(case: Any) -> None:
        try:
            validate(case)
        except ValidationError as error:
            error.errors(include_url=False)
            raise

    return run


def allowed_s(case: Any) -> float:
    """How much processor time a case may take."""
    return CASE_S_MAX * max(1.0, _length(case) / CASE_BYTES)


def _length(case: Any) -> int:
    if isinstance(case, bytes | str):
        return len(case)
    return sum(map(_length, case)) if isinstance(case, list | tuple) else 0


def _run(target: Target, case: Any) -> str | None:
    for _ in range(TRIES):
        started = time.thread_time()
        try:
            target.run(case)
        except target.raises:
            pass
        except Exception as error:
            return _told(error)
        taken_s = time.thread_time() - started
        if taken_s <= allowed_s(case):
            return None
    return f"took {taken_s * 1000:.0f} ms of processor time for {_length(case)} bytes"


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if "/fuzz/" not in frame.filename), frames[-1])
    return f"{type(error).__name__}: {error!s:.300} ({place.filename}:{place.lineno} in {place.name})"
