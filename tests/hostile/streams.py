"""A stream of an honest daemon that the attacker has a part in: who reads it, and whether all of it is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import count, cycle
from typing import Final

from peerd.ids import NodeId, format_id
from protocols.dissemination.front.client import DisseminationClient
from protocols.dissemination.models import ReceivedItem, StreamSubscriptionRequest, StreamWish
from protocols.dissemination.names import stream_key
from protocols.dissemination.stream_node import StreamNode
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring, eventually

TREES_MAX: Final = 20
"""Trees that are tried until somebody is below the attacker: whom a newcomer is sent to is up to chance."""
EVERYTHING: Final = ("",)
"""All readers want everything: who wants a part of a stream cannot tell what is left out of it (docs/security.md)."""
BOTH: Final = ("", "n >= 0")
"""Every second reader wants what is a part of the stream for its node, though every item belongs to it."""


class WatchedStream:
    """Its producer is the first daemon, and a client at each other one reads it."""

    def __init__(self, ring: Ring, attacker: Attacker, name: str, interests: tuple[str, ...]) -> None:
        self.name, self.key, self.interests = name, stream_key(name), interests
        self.clients = [DisseminationClient(client) for client in ring.clients]
        self.read: list[list[int]] = [[] for _ in ring.clients[1:]]
        self.marks: list[str] = []
        """What readers were told besides items: of losses, say."""
        self._attacker = attacker
        self._ring = ring
        self._last = 0

    @property
    def its_node(self) -> StreamNode:
        """The attacker's part in the tree."""
        node = self._attacker.streams.nodes.get(self.key)
        assert node is not None
        return node

    @property
    def below(self) -> list[NodeId]:
        """The attacker's children; none once the stream is over, when a script may still be asked what it sends."""
        node = self._attacker.streams.nodes.get(self.key)
        return [] if node is None else list(node.member.down.children)

    async def publish(self, count: int, pause_s: float = 0.02) -> None:
        """So many items more."""
        for _ in range(count):
            self._last += 1
            await self.clients[0].publish(self.name, {"n": self._last})
            await asyncio.sleep(pause_s)

    async def is_read(self) -> None:
        """Wait until everybody has read everything, once, as it was published and in order."""
        wanted = list(range(1, self._last + 1))

        async def all_read() -> bool:
            assert all(read == wanted[: len(read)] for read in self.read), self.read
            return all(read == wanted for read in self.read)

        await eventually(all_read, "every reader has every item")
        assert not self.marks, self.marks

    async def is_whole(self) -> None:
        """Wait until all honest nodes have a way up to the producer, which none of them is twice on."""
        honest = {format_id(self._ring.ids[index]) for index in self._ring.indexes()}

        async def whole() -> bool:
            tree = await self.clients[0].tree(self.name)
            parents = {node.node: node.parent for node in tree.nodes}
            return honest <= parents.keys() and all(self._leads_up(parents, node) for node in honest)

        await eventually(whole, "every honest node is in the tree")

    @staticmethod
    def _leads_up(parents: dict[str, str | None], node: str) -> bool:
        seen = set()
        at: str | None = node
        while at is not None and at not in seen:
            seen.add(at)
            if at not in parents:
                return False
            at = parents[at]
        return at is None

    async def liars(self) -> set[str]:
        """Whom the honest nodes name, and for what."""
        views = [await client.stream(self.name) for client in self.clients]
        named = {(node, why.partition(" at ")[0]) for view in views for node, why in view.liars.items()}
        assert {node for node, _ in named} <= {format_id(self._attacker.id)}
        return {why for _, why in named}

    async def subscribe(self) -> list[str]:
        """Subscribe at all other daemons, after the attacker; the ids of the subscriptions."""
        began: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._attacker.streams.subscribing.subscribe(
            StreamSubscriptionRequest(stream=self.name, name=self.name), began.set_result
        )
        assert not isinstance(told := await began, Exception), told
        wishes = [StreamWish(interest=interest, name=self.name) for interest in self.interests]
        readers = zip(self.clients[1:], cycle(wishes), strict=False)
        return [(await client.install(self.name, wish)).id for client, wish in readers]

    async def follow(self, place: int, id: str) -> None:
        """Read until cancelled."""
        async with aclosing(self.clients[place + 1].read(self.name, id)) as entries:
            async for entry in entries:
                if isinstance(entry, ReceivedItem) and entry.type == "item" and entry.payload is not None:
                    self.read[place].append(json.loads(entry.payload)["n"])
                else:
                    self.marks.append(f"{place}: {entry}")


@asynccontextmanager
async def watched(
    ring: Ring, attacker: Attacker, name: str, policy: str = "first_fit", interests: tuple[str, ...] = BOTH
) -> AsyncIterator[WatchedStream]:
    """Inside, all read it; with the policy ``first_fit`` some honest nodes are below the attacker."""
    for number in count(1):
        stream = WatchedStream(ring, attacker, f"{name}-{number}", interests)
        await stream.clients[0].create(stream.name, policy=policy)
        ids = await stream.subscribe()
        if stream.below or policy != "first_fit":
            break
        assert number < TREES_MAX
        await stream.clients[0].remove(stream.name)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stream.clients[0].remove, stream.name)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        readers = [tasks.create_task(stream.follow(place, id)) for place, id in enumerate(ids)]
        try:
            await stream.publish(5)
            await stream.is_read()
            yield stream
        finally:
            for reader in readers:
                reader.cancel()
