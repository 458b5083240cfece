"""Roll calls in the Python client: ``client.rollcall``."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from peerd.client import Client
from peerd.client.streams import StreamEntry
from rollcall.front import routes
from rollcall.front.answers import Label, RollAnswer


class RollCallClient:
    """Calls, asked of the daemon that ``client`` talks to. Errors are those of `peerd.client.Client.call`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self) -> RollAnswer:
        """Ask every node who is there."""
        return await self._client.call(routes.CALL)

    def heard(self, after: str | None = None) -> AsyncGenerator[StreamEntry, None]:
        """The answers that the daemon hears, as they come in; ``after`` resumes behind an entry's id."""
        return self._client.follow(routes.HEARD.at(), after=after)

    async def label(self) -> str:
        """What the operator calls this node."""
        return (await self._client.call(routes.LABEL)).label

    async def set_label(self, label: str) -> None:
        """Call it something else."""
        await self._client.call(routes.SET_LABEL, body=Label(label=label))
