"""Sends lines that come slowly, or never end, to a route that takes JSON lines: one request after the other.

A daemon ends a request in which nothing comes for a minute, and says what became of its lines only at the end. So a
request ends when the lines pause, and the next line begins another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

from peerd.client import Client, IngestRefused
from peerd.client.patience import insist
from peerd.client.streams import Backoff, one_by_one
from peerd.errors import Unavailable
from peerd.models.streams import IngestAnswer, IngestError

QUIET_S: Final = 0.5
"""Without a line for so long the request is ended, and its answer says what became of the lines."""
REQUEST_LINES_MAX: Final = 5_000
REQUEST_S_MAX: Final = 2.0
"""A request is ended after this, although lines go on coming: only its answer says what was refused, and the lines that
have no answer yet are taken twice when the daemon is restarted."""
AHEAD_MAX: Final = 256
"""So many lines are read ahead of what is sent."""
ERRORS_TOLD_MAX: Final = 10
"""So many refusals are told word by word; further ones are only counted."""


async def send_in_batches(
    client: Client,
    path: str,
    items: AsyncIterable[Any] | Iterable[Any],
    on_progress: Callable[[IngestAnswer], None] = lambda answer: None,
    backoff: Backoff | None = None,
    on_refused: Callable[[IngestError], None] = lambda error: None,
) -> IngestAnswer:
    """Send each item as a line. Returns the sum of all answers; ``on_progress`` is told the sum after each request.

    ``on_refused`` is told of each line that the daemon names, by its number among all lines, before ``on_progress``.

    While a daemon that has answered before is away, the lines wait; what was under way when it went may then be taken
    twice. Raises what the source of the items raises, once those before have been sent, `RequestRefused` and, for the
    first request, `DaemonUnreachable`.
    """
    sending = _Sending(client, path, on_progress, backoff, on_refused)
    failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(sending.read(items))
        try:
            await sending.send_all()
        except Exception as error:  # raised below: a TaskGroup would make a group of exceptions of it
            failed = error
        reading.cancel()
    if failed is not None:
        raise failed
    return sending.total


class _Sending:
    """Lines on their way: those that were read ahead, and those of the request that has no answer yet."""

    def __init__(
        self,
        client: Client,
        path: str,
        on_progress: Callable[[IngestAnswer], None],
        backoff: Backoff | None,
        on_refused: Callable[[IngestError], None],
    ) -> None:
        self._client, self._path = client, path
        self._on_refused = on_refused
        self._on_progress, self._backoff = on_progress, backoff
        self._ahead: asyncio.Queue[tuple[Any] | None] = asyncio.Queue(AHEAD_MAX)
        self._source_failed: Exception | None = None
        self._is_over = False
        self._request: deque[Any] = deque()
        self._is_known = False
        self.total = IngestAnswer(accepted=0, refused=0, errors=[], is_complete=True)

    async def read(self, items: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Read the source ahead, to its end."""
        try:
            async for item in one_by_one(items):
                await self._ahead.put((item,))
        except Exception as error:  # whatever it is, what came before is sent first, and then it is raised
            self._source_failed = error
        await self._ahead.put(None)

    async def send_all(self) -> None:
        """Send until the source ends, or the daemon takes no more of it."""
        while self.total.is_complete and await self._next(None):
            if self._is_known:
                answer = await insist(self._send, self._backoff, waits_for_unknown=False)
            else:
                answer = await self._send()
            self._add(answer)
        if self._source_failed is not None:
            raise self._source_failed

    async def _send(self) -> IngestAnswer:
        try:
            return await self._client.send_lines(self._path, self._lines())
        except IngestRefused as refused:
            if refused.problem.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return refused.answer
            self._add(refused.answer.model_copy(update={"is_complete": True}))
            raise Unavailable(refused.answer.detail) from refused

    async def _lines(self) -> AsyncGenerator[Any, None]:
        """Those that another attempt has not brought to an end, then what comes until there is a pause."""
        for item in tuple(self._request):
            yield item
        ends_at = asyncio.get_running_loop().time() + REQUEST_S_MAX
        while len(self._request) < REQUEST_LINES_MAX and asyncio.get_running_loop().time() < ends_at:
            if not await self._next(QUIET_S):
                return
            yield self._request[-1]

    async def _next(self, patience_s: float | None) -> bool:
        """Move a line from what was read ahead into the request, if one comes in time."""
        if self._is_over:
            return False
        try:
            async with asyncio.timeout(patience_s):
                taken = await self._ahead.get()
        except TimeoutError:
            return False
        if taken is None:
            self._is_over = True
            return False
        self._request.append(taken[0])
        return True

    def _add(self, answer: IngestAnswer) -> None:
        """Count what became of lines; those that the daemon has not come to stay in the request."""
        self._is_known = True
        before = self.total.accepted + self.total.refused
        refused = (error for error in answer.errors if error.outcome == "refused")  # what has failed is sent again
        told = [error.model_copy(update={"line": error.line + before}) for error in refused]
        for error in told:
            self._on_refused(error)
        self.total = answer.model_copy(
            update={
                "accepted": self.total.accepted + answer.accepted,
                "refused": self.total.refused + answer.refused,
                "errors": [*self.total.errors, *told][:ERRORS_TOLD_MAX],
            }
        )
        for _ in range(min(len(self._request), answer.accepted + answer.refused)):
            self._request.popleft()
        self._on_progress(self.total)
