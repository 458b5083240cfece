"""Answers of HTTP that a plugin gives later, through a callback, and the status of what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, TypeVar

from fastapi import HTTPException

from peerd.errors import ClientRefusal, Unavailable

ANSWER_S_MAX: Final = 60.0
"""Everything that is asked over HTTP ends sooner by itself; this is for what should not happen."""
STATUS: Final[Mapping[str, HTTPStatus]] = {
    "unknown": HTTPStatus.NOT_FOUND,
    "conflict": HTTPStatus.CONFLICT,
    "invalid": HTTPStatus.UNPROCESSABLE_ENTITY,
    "quota": HTTPStatus.TOO_MANY_REQUESTS,
}
T = TypeVar("T")


async def answer_of(
    ask: Callable[[Callable[[T | Exception], None]], object], limit_s: float | None = ANSWER_S_MAX
) -> T:
    """Wait for what ``ask`` calls back with. Raises what it was told, as an answer of HTTP.

    ``limit_s``: ``None`` where the client waits for something that takes as long as it takes.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(answer: T | Exception) -> None:
        if future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    try:
        ask(done)
        if future.done():  # at once, so that of many events in one request each need not wait for the event loop
            return future.result()
        return await asyncio.wait_for(future, limit_s)
    except ClientRefusal as error:
        raise http_error(error) from error
    except TimeoutError as error:
        raise Unavailable("there was no answer in time; the daemon's log may say why") from error


@contextmanager
def refusals() -> Iterator[None]:
    """Answer what a plugin refuses at once."""
    try:
        yield
    except ClientRefusal as error:
        raise http_error(error) from error


def http_error(error: ClientRefusal) -> HTTPException:
    """Return the answer that says so."""
    return HTTPException(STATUS.get(error.kind, HTTPStatus.UNPROCESSABLE_ENTITY), str(error))
