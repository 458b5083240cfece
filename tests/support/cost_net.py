"""Members of a stream of values that adapt by cost, without a driver: the real policy on the real tree.

All values are changes of one object, and node i wants each n-th of them; so each node's rate is known.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.policies.cost.messages import MESSAGES
from protocols.dissemination.policies.cost.model import Costs, CostTree, Delay, Server
from protocols.dissemination.policies.cost.policy import CostFactory, CostPolicy
from protocols.dissemination.ports import ChildInfo, Interest, ItemWork, ParsedItem
from protocols.dissemination.tree.links import ChildStage
from protocols.dissemination.tree.member import StreamMember
from tests.support.coherency_net import KIND, STREAM, TICK_S, ValueNet
from tests.support.member_owner import hook

SETTINGS = {"window": "2s", "round": "5s"}


class Access:
    """Implements `protocols.dissemination.ports.TreeAccess`."""

    stream = STREAM
    kind: Any = KIND
    interests: Sequence[Interest] = ()
    wants: Sequence[Interest] = ()

    def __init__(self, net: CostNet, me: PeerRef) -> None:
        self._net = net
        self.me = me
        self.producer = net.peers[0]
        self.seeds = [net.peers[0]]
        self.is_producer = me is net.peers[0]
        self.events: list[Event] = []

    @property
    def _member(self) -> StreamMember:
        return self._net.members[self.me.id]

    @property
    def parent(self) -> PeerRef | None:
        return None if self._member.up.parent is None else self._member.up.parent.peer

    @property
    def path(self) -> Sequence[NodeId]:
        return self._member.state.path

    def children(self) -> list[ChildInfo]:
        found = self._member.down.children.values()
        return [ChildInfo(child.peer, (), 0.0, 0) for child in found if child.stage is ChildStage.LIVE]

    def room(self) -> int:
        return max(0, self._net.fan_out - len(self._member.down.children))

    def now(self) -> float:
        return self._net.now

    def random(self) -> float:
        return self._net.rng.random()

    def work(self) -> ItemWork | None:
        costs = self._net.costs[self.me.id]
        return ItemWork(costs.filter_s, costs.send_s)

    def rtt_s(self, peer: PeerRef) -> float | None:
        return 2 * self._net.delay(self.me.id, peer.id)

    def send(self, peer: PeerRef, message: Message) -> None:
        self._net.post(self.me.id, peer.id, message)

    def move_to(self, peer: PeerRef) -> bool:
        return self._member.move_to(peer, self._net.now)

    def emit(self, event: Event) -> None:
        self.events.append(event)


class CostNet(ValueNet):
    """Node 0 is the source; node i wants every ``each[i]``-th change."""

    def __init__(
        self, each: Sequence[int], costs: Sequence[Costs], delay: Delay, rng: random.Random, fan_out: int = 32
    ) -> None:
        super().__init__(len(each), rng)
        self.fan_out = fan_out
        self.each = each
        self.costs = {peer.id: cost for peer, cost in zip(self.peers, costs, strict=True)}
        self.delay = delay
        self.factory = CostFactory()
        self.children: dict[NodeId, frozenset[NodeId]] = {}
        self.access = {peer.id: Access(self, peer) for peer in self.peers}
        settings = self.factory.settings(SETTINGS)
        self.policies: dict[NodeId, CostPolicy] = {}
        for number, peer in enumerate(self.peers):
            self.policies[peer.id] = self.factory.make(self.access[peer.id], settings)
            self._connect(number, peer)
            if number:
                self.subscribe(number, f"x CHANGES {each[number]}")

    def _connect(self, number: int, peer: PeerRef) -> None:
        member, policy = self.members[peer.id], self.policies[peer.id]
        flow: Callable[[ParsedItem], None] = member._flow

        def counted(parsed: ParsedItem) -> None:
            before = len(self.got.get((number, 0), ()))
            flow(parsed)
            policy.passed(parsed, len(self.got.get((number, 0), ())) > before, ())

        member._flow = counted  # type: ignore[method-assign]  # the plugin tells the policy of each item
        hook(
            member.owner,
            ended=lambda peer, end, why, others: policy.move_ended(peer, end.value, why, others),
            orphaned=policy.look_for_parent,
            admit=lambda *_: len(member.down.children) < self.fan_out,
        )

    def post(self, sender: NodeId, receiver: NodeId, message: Message) -> None:
        if receiver in self.members:
            self.links.setdefault((sender, receiver), deque()).append(message)

    def deliver(self, receiver: NodeId, peer: PeerRef, message: Message) -> None:
        if isinstance(message, MESSAGES):
            self.policies[receiver].received(peer, message)
        else:
            super().deliver(receiver, peer, message)
        self._tell_children()

    def _tell_children(self) -> None:
        for id in list(self.members):
            now = frozenset(child.peer.id for child in self.access[id].children())
            before = self.children.get(id, frozenset())
            self.children[id] = now
            for child in sorted(before - now):
                self.policies[id].child_went(child)
            for child in sorted(now - before):
                self.policies[id].child_came(child)

    def kill(self, number: int) -> None:
        super().kill(number)
        del self.policies[self.peers[number].id]
        self._tell_children()

    def tick(self) -> None:
        super().tick()
        self._tell_children()
        for id, policy in self.policies.items():
            policy.tick()
            if not self.access[id].is_producer and self.members[id].up.is_orphan:
                policy.look_for_parent()

    def live(self, seconds: float, a_tick: int = 3) -> None:
        """Time passes, with so many changes each quarter of a second."""
        for _ in range(int(seconds / TICK_S)):
            for _ in range(a_tick):
                self.publish("x", self.sequence)
                self.run()
            self.tick()
            self.run()

    def count_turns(self) -> Counter[NodeId]:
        """Count, from now on, how often each node has its turn."""
        turns: Counter[NodeId] = Counter()

        def counted(id: NodeId, adapt: Callable[[], None]) -> Callable[[], None]:
            def turn() -> None:
                turns[id] += 1
                adapt()

            return turn

        for id, policy in self.policies.items():
            policy.adapt = counted(id, policy.adapt)  # type: ignore[method-assign]  # the test looks on
        return turns

    def model(self, a_tick: int = 3) -> CostTree:
        """The same tree, with full knowledge."""
        rate = a_tick / TICK_S
        servers = [
            Server(peer.id, self.costs[peer.id], rate if number == 0 else rate / self.each[number])
            for number, peer in enumerate(self.peers)
            if peer.id in self.members
        ]
        tree = CostTree(self.peers[0].id, servers, self.delay)
        for id, member in self.members.items():
            if member.up.parent is not None:
                tree.attach(id, member.up.parent.peer.id)
        tree.refresh()
        return tree
