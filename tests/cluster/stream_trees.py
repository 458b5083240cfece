"""The tree of a stream of real daemons."""

from __future__ import annotations

import asyncio

from protocols.dissemination.front.client import DisseminationClient
from protocols.dissemination.models import StreamTreeView

WAIT_S = 60.0


async def whole_tree(streams: DisseminationClient, name: str, count: int) -> StreamTreeView:
    """Wait until so many nodes hang together. The shape may be another one later."""
    async with asyncio.timeout(WAIT_S):
        while True:
            view = await streams.tree(name)
            ids = {node.node for node in view.nodes}
            if len(ids) == count and sum(node.parent not in ids for node in view.nodes) == 1:
                return view
            await asyncio.sleep(0.1)
