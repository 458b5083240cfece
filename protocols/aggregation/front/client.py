"""Aggregation in the Python client: ``client.aggregation``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from peerd.client import Client
from peerd.errors import Unavailable
from protocols.aggregation.answer import Answer, Failed, RoundProgress
from protocols.aggregation.front.routes import AGGREGATE


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
    ) -> AsyncGenerator[RoundProgress | Answer, None]:
        """Run a round; yields progress, then exactly one `Answer`. Leaving early ends the round.

        ``query``: text ("count by status where method = GET") or its parts as a mapping; ``deadline``: "30s", or
        seconds.
        Raises `RequestRefused` for a query that cannot be run, `DaemonBusy`, `DaemonUnreachable`, and `Unavailable`
        when the round ended without an answer.
        """
        wanted = {"files": files, "format": format, "pattern": pattern, "groups_max": groups_max}
        body = {"query": query, **wanted, "deadline": deadline, "top": top}
        given = {key: value for key, value in body.items() if value is not None}
        async with aclosing(self._client.answers(AGGREGATE, given)) as lines:
            async for line in lines:
                if isinstance(line, Failed):
                    raise Unavailable(line.detail)
                yield line
