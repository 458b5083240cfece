"""Streams that outlive their connection: the client reconnects by itself and goes on where it was.

    async for entry in client.events(kind="overlay.*"):
        match entry:
            case Item():
                print(entry.data)
            case Gap() | Dropped():
                print("missed", entry.count)

What was missed shows in the stream, as a `Gap` or a `Dropped`. An `End` that is final ends the iteration; after any
other (the daemon stops, its plugin was restarted) the client reconnects.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from peerd.errors import PeerdError, Unavailable
from peerd.models.streams import Dropped, End, Gap, Item, StreamHeartbeat, stream_lines

__all__ = ["Backoff", "Dropped", "End", "Gap", "Item", "StreamEntry", "follow", "json_lines", "one_by_one"]

SILENCE_MAX_S: Final = 45.0
"""Three heartbeats: a connection that is silent for longer is dead, whatever the kernel says."""
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 10.0
EXPONENT_MAX: Final = 16

T = TypeVar("T")
StreamEntry = Item | Gap | Dropped | End
Connect = Callable[[str | None], AsyncGenerator[bytes, None]]
"""Opens the stream after an id (``None``: where the daemon begins by itself) and yields its lines."""


def on_standard_error(text: str) -> None:
    """Tell whoever runs this program."""
    print(f"-- {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before reconnecting: a random time, whose bound doubles each time; when to stop trying; and who
    is told meanwhile.

    Random, so that a thousand clients of a daemon that was restarted do not come back in the same moment.
    """

    first_s: float = PAUSE_S
    most_s: float = PAUSE_S_MAX
    give_up_s: float | None = None
    """Without an answer for so long, the error is raised; ``None``: never."""
    tell: Callable[[str], None] = on_standard_error
    """Told at once when the connection is lost, and when there is one again."""

    def pause_s(self, failures: int) -> float:
        """Return how long to wait before the next attempt, after so many failures in a row."""
        return random.uniform(0.0, min(self.most_s, self.first_s * 2.0 ** min(failures, EXPONENT_MAX)))


class Outage:
    """Tells once that the daemon is not reached any more, and once that it is."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._is_lost = False

    def begins(self, why: str) -> None:
        """An attempt has failed, or a connection that was there is none any more."""
        if not self._is_lost:
            self._is_lost = True
            self._tell(f"connection lost, trying again ({why})")

    def ends(self) -> None:
        """The daemon answers."""
        if self._is_lost:
            self._is_lost = False
            self._tell("connected again")


async def follow(
    connect: Connect, after: str | None = None, backoff: Backoff | None = None
) -> AsyncGenerator[StreamEntry, None]:
    """Yield the entries of a stream, over as many connections as it takes.

    Raises what ``connect`` raises for the first connection. Later on an `Unavailable` is waited out, up to
    ``backoff.give_up_s``; anything else (the daemon refuses, it is another program) is raised. Raises
    ``ValidationError`` for a line that is not an entry of a stream.
    """
    patience = backoff if backoff is not None else Backoff()
    place, failures, is_known = after, 0, False
    outage = Outage(patience.tell)
    silent_since: float | None = None
    while True:
        has_said_why = False
        try:
            async with aclosing(connect(place)) as lines:
                async for line in lines:
                    entry = stream_lines.validate_json(line)
                    outage.ends()
                    has_said_why = isinstance(entry, End)
                    place, failures, silent_since, is_known = entry.id, 0, None, True
                    if not isinstance(entry, StreamHeartbeat):
                        yield entry
                    if isinstance(entry, End) and entry.is_final:
                        return
            if not has_said_why:
                outage.begins("it ended without a word")
        except Unavailable as error:
            now = time.monotonic()
            silent_since = now if silent_since is None else silent_since
            is_hopeless = patience.give_up_s is not None and now - silent_since >= patience.give_up_s
            if not is_known or is_hopeless:
                raise
            outage.begins(str(error))
        except PeerdError:  # there is an answer, although it is a refusal: whoever follows may subscribe anew
            outage.ends()
            raise
        await asyncio.sleep(patience.pause_s(failures))
        failures += 1


async def one_by_one(items: AsyncIterable[T] | Iterable[T]) -> AsyncGenerator[T, None]:
    """The items as they come, whatever they come from."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def json_lines(items: AsyncIterable[Any] | Iterable[Any]) -> AsyncGenerator[bytes, None]:
    """Each item as one line of JSON."""
    async for item in one_by_one(items):
        yield _line(item)


def _line(item: Any) -> bytes:
    """In UTF-8 as it is: escaped, a letter of two bytes has six, and a line is soon longer than the daemon takes."""
    try:
        return json_bytes(item) + b"\n"
    except UnicodeEncodeError:  # half a character, which only an escape can stand for: the daemon refuses this line
        return json.dumps(item, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8. Raises ``UnicodeEncodeError`` for half a character (a surrogate alone)."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
