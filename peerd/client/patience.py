"""Asking again until a daemon that was restarted can answer, and subscribing anew where it knows of nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import TypeVar

from peerd.client import RequestRefused
from peerd.client.streams import Backoff, Outage
from peerd.errors import Unavailable

T = TypeVar("T")


async def insist(
    call: Callable[[], Awaitable[T]], backoff: Backoff | None = None, *, waits_for_unknown: bool = True
) -> T:
    """Call again and again until it is done, however long a daemon that has just been started takes until it can.

    Waited out are `Unavailable` and, unless ``waits_for_unknown`` is false, the daemon's word that there is no such
    thing: it may have to find it first.
    Raises anything else at once, and these after ``backoff.give_up_s``.
    """
    patience, failures, begun = backoff or Backoff(), 0, time.monotonic()
    outage = Outage(patience.tell)
    while True:
        try:
            answer = await call()
        except (RequestRefused, Unavailable) as error:
            is_over = patience.give_up_s is not None and time.monotonic() - begun >= patience.give_up_s
            is_passing = isinstance(error, Unavailable) or (
                waits_for_unknown and error.problem.status == HTTPStatus.NOT_FOUND
            )
            if is_over or not is_passing:
                raise
            outage.begins(str(error))
        else:
            outage.ends()
            return answer
        failures += 1
        await asyncio.sleep(patience.pause_s(failures))


async def read_on(
    read: Callable[[], AsyncGenerator[T, None]],
    subscribe_anew: Callable[[], Awaitable[object]] | None,
    end: Callable[[], Awaitable[object]] | None,
    backoff: Backoff | None = None,
) -> AsyncGenerator[T, None]:
    """What a subscription's readers get, as ``read`` yields it.

    Where the daemon knows nothing of it (any more), ``subscribe_anew`` is insisted on, and ``read`` begins once more.
    When nobody reads any more, ``end`` ends it, if that is given.
    """
    try:
        while True:
            try:
                async with aclosing(read()) as entries:
                    async for entry in entries:
                        yield entry
                return
            except RequestRefused as error:
                if subscribe_anew is None or error.problem.status != HTTPStatus.NOT_FOUND:
                    raise
            await insist(subscribe_anew, backoff)
    finally:
        if end is not None:
            with suppress(RequestRefused, Unavailable):  # it is over already, or soon, because nobody reads it
                await end()
