"""Aggregation in the Python client: ``client.aggregation``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from peerd.client import Client, DaemonBusy, DaemonUnreachable
from peerd.client.streams import StreamEntry
from peerd.errors import Unavailable
from protocols.aggregation.answer import Answer, Failed, RoundProgress
from protocols.aggregation.front.routes import AGGREGATE, ANSWERS

DEADLINE_S: Final = 60.0
"""The deadline of repeated rounds with a longer period, as of a round that is asked for once."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rounds that were due and did not take place."""

    rounds: int
    reason: str


class RoundSchedule:
    """When rounds are due: at the start, and then after each period. A round that is late is skipped, not made up for.

    Times are seconds of one clock.
    """

    def __init__(self, start_s: float, period_s: float) -> None:
        self._due_s, self._period_s = start_s, period_s

    def next(self, now_s: float) -> tuple[float, int]:
        """The time of the next round that is not late yet, and how many are skipped for it."""
        periods = max(1, -int((self._due_s - now_s) // self._period_s))
        self._due_s += periods * self._period_s
        return self._due_s, periods - 1


class AggregationClient:
    """Rounds of aggregation, asked of the daemon that ``client`` talks to."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aggregate(
        self,
        query: str | Mapping[str, Any],
        *,
        files: str = "**/*",
        format: str | None = None,
        pattern: str | None = None,
        groups_max: int | None = None,
        deadline: str | float | None = None,
        top: int | None = None,
        to: str | None = None,
    ) -> AsyncGenerator[RoundProgress | Answer, None]:
        """Run a round; yields progress, then exactly one `Answer`. Leaving early ends the round.

        ``query``: text ("count by status where method = GET") or its parts as a mapping; ``deadline``: "30s", or
        seconds; ``to``: "all", or a filter on the tags of the other nodes that are given the answer, too.
        Raises `RequestRefused` for a query that cannot be run, `DaemonBusy`, `DaemonUnreachable`, and `Unavailable`
        when the round ended without an answer.
        """
        wanted = {"files": files, "format": format, "pattern": pattern, "groups_max": groups_max}
        body = {"query": query, **wanted, "deadline": deadline, "top": top, "to": to}
        given = {key: value for key, value in body.items() if value is not None}
        async with aclosing(self._client.answers(AGGREGATE, given)) as lines:
            async for line in lines:
                if isinstance(line, Failed):
                    raise Unavailable(line.detail)
                yield line

    def answers(self, *, after: str | None = None, follow: bool = True) -> AsyncGenerator[StreamEntry, None]:
        """The answers that the daemon's node was given (``to`` of a round): those that it holds, and those that come.

        The ``data`` of each item is a `protocols.aggregation.answers.GivenAnswer`, as JSON.
        """
        return self._client.follow(ANSWERS.at(), {"follow": int(follow)}, after=after)

    async def every(
        self, period_s: float, query: str | Mapping[str, Any], *, deadline: str | float | None = None, **options: Any
    ) -> AsyncGenerator[RoundProgress | Answer | Skipped, None]:
        """Run a round every ``period_s`` seconds, without end, and yield what `aggregate` yields of each.

        ``deadline``: by default the period, at most `DEADLINE_S`. A round that is still under way when the next one is
        due is not hurried; the rounds that it is late for are `Skipped`. So is a round that cannot be asked for, but
        the first: then it raises what `aggregate` raises.
        """
        loop, is_first = asyncio.get_running_loop(), True
        schedule, deadline = (
            RoundSchedule(loop.time(), period_s),
            min(period_s, DEADLINE_S) if deadline is None else deadline,
        )
        while True:
            began_s = loop.time()
            try:
                async with aclosing(self.aggregate(query, deadline=deadline, **options)) as lines:
                    async for line in lines:
                        yield line
            except (DaemonUnreachable, DaemonBusy, Unavailable) as error:
                if is_first:
                    raise
                yield Skipped(1, str(error))
            is_first = False
            due_s, late = schedule.next(loop.time())
            if late:
                yield Skipped(late, f"the round before them took {loop.time() - began_s:.1f} s")
            await asyncio.sleep(due_s - loop.time())
