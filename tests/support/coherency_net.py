"""Members of one stream of values, without a driver: links keep their order, and what is delivered next is drawn."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.interests.coherency import CoherencyKind
from protocols.dissemination.interests.coherency.tolerance import Divergence, Tolerance, apart
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import stream_key
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.subscription import StaleFrom
from tests.support.member_owner import owner

STREAM = stream_key("prices")
KIND = CoherencyKind()
TICK_S = 0.25
NEAR = 1e-9
"""Sums and differences of floating-point numbers are as exact as that."""


class ValueNet:
    """Node 0 is the source."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.links: dict[tuple[NodeId, NodeId], deque[Message]] = {}
        self.peers = [PeerRef(NodeId(i + 1), "127.0.0.1", 1000 + i) for i in range(count)]
        self.by_id = {peer.id: peer for peer in self.peers}
        self.members = {peer.id: self._member(peer) for peer in self.peers}
        self.got: dict[tuple[int, int], list[Any]] = {}
        self.texts: dict[tuple[int, int], str] = {}
        self.published: dict[str, list[ParsedItem]] = {}
        self.sequence = 0
        self.carried = 0

    def _member(self, peer: PeerRef) -> StreamMember:
        def send(to: PeerRef, message: Message) -> None:
            if to.id in self.members:
                self.links.setdefault((peer.id, to.id), deque()).append(message)

        limits = BufferLimits(4, 1 << 20, 1e9)  # what is remembered has to play no part
        return StreamMember(peer, STREAM, KIND, limits, owner(send), is_source=peer is self.peers[0])

    def member(self, number: int) -> StreamMember | None:
        return self.members.get(self.peers[number].id)

    def publish(self, name: str, value: Any, time_s: float | None = None) -> None:
        self.sequence += 1
        body = {"object": name, "value": value, "time": self.now if time_s is None else time_s}
        item = StreamItem.of(1, self.sequence, 0, json.dumps(body).encode())
        self.published.setdefault(name, []).append(ParsedItem(item, KIND.content(item)))
        source = self.member(0)
        assert source is not None
        source.publish(item, self.now)
        source.flush(self.now)

    def step(self) -> bool:
        busy = [link for link, queue in self.links.items() if queue]
        if not busy:
            return False
        sender, receiver = self.rng.choice(busy)
        message = self.links[sender, receiver].popleft()
        if receiver in self.members:
            self.deliver(receiver, self.by_id[sender], message)
        return True

    def deliver(self, receiver: NodeId, peer: PeerRef, message: Message) -> None:
        self.members[receiver].received(peer, message, self.now)

    def run(self, steps: int | None = None) -> None:
        while (steps is None or steps > 0) and self.step():
            steps = None if steps is None else steps - 1

    def run_link(self, sender: NodeId, receiver: NodeId) -> None:
        """Deliver what is on one link."""
        for message in [self.links[sender, receiver].popleft() for _ in range(len(self.links[sender, receiver]))]:
            self.deliver(receiver, self.by_id[sender], message)

    def tick(self) -> None:
        self.now += TICK_S
        for member in self.members.values():
            member.tick(self.now)

    def settle(self, seconds: float = 6.0) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.tick()
            self.run()

    def kill(self, number: int) -> None:
        id = self.peers[number].id
        del self.members[id]
        for link in [link for link in self.links if id in link]:
            del self.links[link]
        for member in self.members.values():
            member.gone(id, self.now)
        for key in [key for key in self.texts if key[0] == number]:
            del self.texts[key]

    def subscribe(self, number: int, text: str, sub: int = 0) -> None:
        member = self.member(number)
        assert member is not None
        got = self.got[number, sub] = []
        self.texts[number, sub] = text
        member.subscribe(sub, KIND.parse(text), None, got.append, self.now)

    def unsubscribe(self, number: int, sub: int) -> None:
        member = self.member(number)
        assert member is not None
        del self.texts[number, sub]
        member.unsubscribe(sub, self.now)

    def move(self, number: int, to: int) -> bool:
        member = self.member(number)
        return member is not None and member.move_to(self.peers[to], self.now)

    def is_connected(self, number: int) -> bool:
        """Whether the way up from a node leads to the source."""
        at, seen = self.peers[number].id, set()
        while at != self.peers[0].id:
            member = self.members.get(at)
            link = None if member is None else member.up.parent or member.up.next
            if link is None or not link.has_begun or at in seen:
                return False
            seen.add(at)
            at = link.peer.id
        return True

    def held(self, number: int, sub: int) -> dict[str, ParsedItem]:
        """What a subscription was given last; nothing of what it was told to be stale."""
        found: dict[str, ParsedItem] = {}
        for each in self.got[number, sub]:
            if isinstance(each, StaleFrom):
                found.clear()
            elif isinstance(each, ParsedItem):
                found[each.content.object] = each
        return found

    def check(self, *, only_connected: bool = True) -> int:
        """Every subscription that is not told to be stale is within its tolerances of the source."""
        looked = 0
        for (number, sub), text in self.texts.items():
            if only_connected and not self.is_connected(number):
                continue
            held = self.held(number, sub)
            for name, some in self.published.items():
                wanted = tolerances(text, name)
                if not wanted:
                    continue
                assert name in held, f"{number}.{sub} has nothing of {name}"
                for each in wanted:
                    self.check_one(f"{number}.{sub} {name} {each}", each, held[name], some)
                    looked += 1
        return looked

    @staticmethod
    def check_one(who: str, wanted: Tolerance, held: ParsedItem, some: list[ParsedItem]) -> None:
        if wanted.divergence is Divergence.CHANGES:
            lacking = sum(1 for each in some if each.position > held.position)
            assert lacking <= wanted.limit, f"{who}: lacks {lacking}"
            return
        limit = wanted.amount(held.content.value)
        found = apart(wanted.divergence, held.content, some[-1].content, limit)
        assert found <= limit * (1 + NEAR) + NEAR, f"{who}: {held.content} is {found} from {some[-1].content}"


def tolerances(text: str, name: str) -> list[Tolerance]:
    """What an interest says of an object."""
    needs = KIND.parse(text).meaning
    return [*needs.get(name, ()), *needs.get("*", ())]
