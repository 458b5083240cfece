"""Measurement queries in the Python client: ``client.measurement``."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

from peerd.client import Client
from peerd.client.streams import StreamEntry
from protocols.measurement import models
from protocols.measurement.bounds import STALE_S
from protocols.measurement.front import routes


class MeasurementClient:
    """Questions, asked of the daemon that ``client`` talks to. Errors are those of `peerd.client.Client.call`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def nodes(self, where: str = "") -> models.MeasuredNodes:
        """The nodes of the ring, with their tags and what they measure; ``where``: a filter on them."""
        return await self._client.call(routes.NODES, where=where or None)

    async def read(
        self,
        names: Sequence[str],
        *,
        nodes: Sequence[str] = (),
        where: str = "",
        within: Mapping[str, float] | None = None,
        stale: str | float = STALE_S,
    ) -> models.ValueViews:
        """Values of these names, of the nodes that are named, or that meet a filter, or of all.

        ``within``: half the width of bounds, by name; ``stale``: the oldest that counts, "5s" or seconds.
        """
        asked = {"names": list(names), "nodes": list(nodes), "where": where, "within": dict(within or {})}
        return await self._client.call(routes.READ, body=json.dumps({**asked, "stale": stale}).encode())

    async def own(self) -> models.OwnViews:
        """What the daemon's own node measures."""
        return await self._client.call(routes.OWN)

    async def put(self, name: str, value: float, ttl: str | float = 60.0) -> models.OwnView:
        """Have the daemon's node measure a value, until it is put again or ``ttl`` is over."""
        body = json.dumps({"value": value, "ttl": ttl}).encode()
        return await self._client.call(routes.PUT, name, body=body)

    async def query(self, text: str) -> models.QueryView:
        """The answer to a statement: ``SELECT node, cpu FROM nodes WHERE cpu < 0.5 WITHIN 0.05 STALE 5s``."""
        return await self._client.call(routes.QUERY, body=json.dumps({"query": text}).encode())

    def watch_query(self, text: str, after: str | None = None) -> AsyncGenerator[StreamEntry, None]:
        """The answer to a statement, and then each that says something else.

        The ``data`` of each item is a `protocols.measurement.models.QueryView`.
        """
        return self._client.follow(routes.WATCH_QUERY.at(), {"query": text}, after=after)

    def watch(
        self,
        names: Iterable[str],
        *,
        nodes: Iterable[str] = (),
        where: str = "",
        within: Mapping[str, float] | None = None,
        stale: str = "30s",
        after: str | None = None,
    ) -> AsyncGenerator[StreamEntry, None]:
        """The values as `read` has them, and then each that leaves its bounds, or becomes stale.

        The ``data`` of each item is a `protocols.measurement.models.ValueView`.
        """
        widths = [f"{name}:{width!r}" for name, width in (within or {}).items()]
        query = {"name": list(names), "node": list(nodes), "within": widths, "where": where, "stale": stale}
        return self._client.follow(routes.WATCH.at(), query, after=after)
