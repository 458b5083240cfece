"""A stream's tree on virtual time: many nodes in one process, and a delay for each pair of them.

It runs the very objects of the daemon (`StreamMember` and a policy) on the lab's workloads. Every message, of tree,
policy and stream, takes the delay that the simulator's model of latency has for its pair of nodes. Made to be fast, so
that hundreds of nodes and thousands of items take seconds. What it leaves out: encoding, connections, bandwidth.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.sim.latency import ConstantLatency, LatencyModel
from peerd.telemetry.schema import Event
from protocols.dissemination import messages as tree_messages
from protocols.dissemination.access import MemberTree
from protocols.dissemination.front.lab.workloads import LabStream
from protocols.dissemination.messages import AttachRefusal, StreamItem
from protocols.dissemination.names import stream_key
from protocols.dissemination.policies.overlap.policy import OverlapFactory
from protocols.dissemination.ports import (
    Interest,
    InterestKind,
    ItemWork,
    ParsedItem,
    PolicyFactory,
    TreePolicy,
)
from protocols.dissemination.tree.allowance import PastAllowance
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.owner import MemberOwner
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.search import MoveEnd
from protocols.dissemination.tree.subscription import Delivered, Lost
from protocols.dissemination.tree.wants import Wants

STREAM: Final = stream_key("net")
AT_ONCE: Final = ConstantLatency(0.0)
"""No figure may rest on it alone: it hides every round trip."""
INNER_ITEMS_MIN: Final = 20
"""A member counts as an inner node when it has had so many items while it had children."""
_TREE_MESSAGES = frozenset(tree_messages.MESSAGES)
_STREAM_MESSAGES = frozenset((tree_messages.ItemBatch, tree_messages.TreeHeartbeat))


@dataclass(eq=False)
class NetNode(MemberTree, MemberOwner):
    """One node: implements `protocols.dissemination.ports.TreeAccess`."""

    net: DisseminationNet
    me: PeerRef
    fan_out: int
    member: StreamMember = field(init=False)
    policy: TreePolicy = field(init=False)
    got: list[int] = field(default_factory=list)
    losses: int = 0
    had: int = 0
    wanted: int = 0
    had_inner: int = 0
    """Of what it had, the part while it had children."""
    wanted_inner: int = 0
    sends: int = 0
    """Copies of items that it has sent to children."""
    depths: int = 0
    """The sum of its depths over the items that it had."""
    live_from: int | None = None
    _children: frozenset[NodeId] = frozenset()

    @property
    def stream(self) -> NodeId:
        return STREAM

    @property
    def kind(self) -> InterestKind:
        return self.net.kind

    @property
    def path(self) -> Sequence[NodeId]:
        return self.member.state.path

    @property
    def producer(self) -> PeerRef:
        return self.net.nodes[self.net.peers[0].id].me

    @property
    def seeds(self) -> Sequence[PeerRef]:
        return self.net.seeds

    def queued_for(self, child: NodeId) -> int:
        return 0

    def room(self) -> int:
        return max(0, self.fan_out - len(self.member.down.children))

    def now(self) -> float:
        return self.net.now

    def random(self) -> float:
        return self.net.rng.random()

    def rtt_s(self, peer: PeerRef) -> float | None:
        return 2 * self.net.latency_s(self.me.id, peer.id)

    def work(self) -> ItemWork | None:
        return None

    def send(self, peer: PeerRef, message: Message) -> None:
        self.net.send(self.me, peer, message)

    def move_to(self, peer: PeerRef) -> bool:
        return self.member.move_to(peer, self.net.now)

    def emit(self, event: Event) -> None:
        self.net.events.append(event)

    # What the plugin does for a member and a policy

    def admit(self, *_: object) -> bool:
        return self.room() > 0

    def ended(self, peer: PeerRef, end: MoveEnd, why: AttachRefusal | None, others: Sequence[PeerRef]) -> None:
        self.net.ends[end] = self.net.ends.get(end, 0) + 1
        self.policy.move_ended(peer, end.value, None if why is None else int(why), others)

    def passed(self, held: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """An item has come."""
        self.had += 1
        self.wanted += is_own
        if self.member.down.children:
            self.had_inner += 1
            self.wanted_inner += is_own
        self.depths += len(self.member.state.path)
        self.sends += len(children)
        self.policy.passed(held, is_own, children)

    def look_at_children(self) -> None:
        """Tell the policy who has come and gone."""
        live = set(self.member.down.live)
        if live != self._children:
            for id in sorted(self._children - live):
                self.policy.child_went(id)
            for id in sorted(live - self._children):
                self.policy.child_came(id)
            self._children = frozenset(live)

    def deliver(self, what: Delivered) -> None:
        if isinstance(what, Lost):
            self.losses += 1
        elif isinstance(what, ParsedItem):
            self.got.append(what.position.sequence)

    def went_live(self) -> None:
        """Its subscription is served from here on."""
        watermark = self.member.subscriptions[0].watermark
        self.live_from = None if watermark is None else watermark.sequence


class UnlimitedWants(Wants):
    """What a node wants where each member has an interest of its own and none covers another: without a limit."""

    def _is_full(self, more: Interest) -> bool:
        return False

    def _covering(self, *_: object) -> None:
        return None

    def _riders(self, *_: object) -> list[Any]:
        return []

    def validate(self) -> None:
        """There is no limit that could be broken."""


@dataclass(slots=True)
class DeliveryFaults:
    """What was found wrong with what members got; ``pairs``: so many items of members were looked at."""

    pairs: int = 0
    lost: int = 0
    unwanted: int = 0
    twice: int = 0
    unordered: int = 0
    """Members that had items in another order."""
    outside: int = 0
    """Members that are not in the tree in the end."""


class DisseminationNet:
    """A producer and its members. ``settings``: as in a stream's record.

    ``items_a_second``: how fast items follow each other, on the clock by which policies wait.
    ``is_limited``: whether the daemon's limit on a node's interests holds; for interests that cover each other.
    ``latency``: the one-way delays between nodes, by number; the producer is 0.
    """

    def __init__(
        self,
        members: int,
        workload: LabStream,
        rng: random.Random,
        settings: Mapping[str, Any],
        fan_out: int = 6,
        items_a_second: int = 20,
        tick_s: float = 1.0,
        remembered: int = 2000,
        policy: PolicyFactory | None = None,
        is_limited: bool = False,
        latency: LatencyModel = AT_ONCE,
    ) -> None:
        self.rng = rng
        self.now = 0.0
        self.workload = workload
        self.kind = workload.kind
        self.events: list[Event] = []
        self.ends: dict[MoveEnd, int] = {}
        self.sent: dict[type[Message], int] = {}
        self.nodes: dict[NodeId, NetNode] = {}
        self.peers = [PeerRef(NodeId(i + 1), "127.0.0.1", 1000 + i) for i in range(members + 1)]
        self.seeds = [self.peers[0]]
        self.published: list[frozenset[int]] = []
        self._fan_out = fan_out
        self._limits = BufferLimits(remembered, 1 << 30, 1e9)
        self._factory: PolicyFactory = OverlapFactory() if policy is None else policy
        self._settings = self._factory.settings(settings)
        self._latency = latency
        self._delays: dict[tuple[NodeId, NodeId], float] = {}
        self._on_way: list[tuple[float, int, PeerRef, NodeId, Message]] = []
        self._sent = 0
        self._per_tick = max(1, round(items_a_second * tick_s))
        self._ticks = max(1, round(self._per_tick / (items_a_second * tick_s)))
        """How often nodes look at the clock after so many items."""
        self._tick_s = tick_s
        self._ids: list[bytes] = [b"", *(workload.interest(number).id for number in range(1, members + 1))]
        self._is_limited = is_limited
        self._add(0)

    def _add(self, number: int) -> NetNode:
        peer = self.peers[number]
        node = NetNode(self, peer, self._fan_out)
        node.member = StreamMember(
            peer,
            STREAM,
            self.kind,
            self._limits,
            node,
            is_source=number == 0,
        )
        if not self._is_limited:
            node.member.state.wants = UnlimitedWants(self.kind)
            node.member.down.wants_max = node.member.down.unanswered_max = 1 << 30
            node.member.down.allowance = PastAllowance(1 << 60)
        self.nodes[peer.id] = node
        node.policy = self._factory.make(node, self._settings)
        return node

    def latency_s(self, sender: NodeId, to: NodeId) -> float:
        """How long a message takes."""
        pair = sender, to
        delay = self._delays.get(pair)
        if delay is None:
            delay = self._delays[pair] = self._latency.latency_s(sender - 1, to - 1)
        return delay

    def send(self, sender: PeerRef, to: PeerRef, message: Message) -> None:
        """It arrives after the pair's delay, which never changes: every link keeps its order."""
        self._sent += 1
        arrives_at = self.now + self.latency_s(sender.id, to.id)
        heappush(self._on_way, (arrives_at, self._sent, sender, to.id, message))

    def run(self, until: float) -> None:
        """Hand over what has arrived by then."""
        on_way, nodes, sent = self._on_way, self.nodes, self.sent
        while on_way and on_way[0][0] <= until:
            self.now, _, sender, to, message = heappop(on_way)
            kind = type(message)
            sent[kind] = sent.get(kind, 0) + 1
            node = nodes.get(to)
            if node is None:
                continue
            if kind in _STREAM_MESSAGES:
                node.member.received(sender, message, self.now)
            elif kind in _TREE_MESSAGES:
                node.member.received(sender, message, self.now)
                node.look_at_children()
            else:
                node.policy.received(sender, message)
        self.now = until

    def join(self, number: int) -> NetNode:
        """A member comes."""
        node = self._add(number)
        interest = self.workload.interest(number)
        node.member.subscribe(0, interest, None, node.deliver, self.now, node.went_live)
        node.policy.look_for_parent()
        self.run(self.now)
        return node

    def publish(self, count: int = 1) -> None:
        """The next items of the workload, at one moment: what goes to one child goes in one message."""
        source = self.nodes[self.peers[0].id]
        is_due = False
        for _ in range(count):
            wanted = self.workload.draw()
            self.published.append(wanted)
            number = len(self.published)
            payload = number.to_bytes(4, "big")
            self.kind.met[payload] = frozenset([self.kind.everything.id, *(self._ids[each] for each in wanted)])
            source.member.publish(StreamItem.of(1, number, round(self.now * 1000), payload), self.now)
            is_due = is_due or number % self._per_tick == 0
        source.member.flush(self.now)
        self.run(self.now)
        for _ in range(self._ticks if is_due else 0):
            self.tick()

    def tick(self) -> None:
        """Time passes."""
        self.run(self.now + self._tick_s)
        for node in list(self.nodes.values()):
            node.member.tick(self.now)
            node.policy.tick()
            node.look_at_children()
            if not node.is_producer and node.member.up.is_orphan:
                node.policy.look_for_parent()
        self.run(self.now)

    # What came of it

    def members(self) -> list[NetNode]:
        return [node for node in self.nodes.values() if not node.is_producer]

    def reset_counts(self) -> None:
        """Count from here."""
        for node in self.nodes.values():
            node.had = node.wanted = node.depths = node.had_inner = node.wanted_inner = node.sends = 0

    def spurious_share(self, inner_only: bool = False) -> float:
        """The mean over members of what each had in vain, as a part of what it had.

        ``inner_only``: over those that have had children, of what they had meanwhile.
        """
        if inner_only:
            counts = [
                (node.wanted_inner, node.had_inner) for node in self.members() if node.had_inner >= INNER_ITEMS_MIN
            ]
        else:
            counts = [(node.wanted, node.had) for node in self.members() if node.had]
        return sum(1 - wanted / had for wanted, had in counts) / max(1, len(counts))

    def vain_share(self) -> float:
        """Of all that members had, the part that they had in vain."""
        had = sum(node.had for node in self.members())
        return 1 - sum(node.wanted for node in self.members()) / max(1, had)

    @property
    def control(self) -> dict[type[Message], int]:
        """Messages that were no items, by type."""
        return {kind: count for kind, count in self.sent.items() if kind is not tree_messages.ItemBatch}

    def depths(self) -> list[float]:
        """For each member, the mean of its depths weighted with what it had there (figure 9), deepest first."""
        return sorted((node.depths / node.had for node in self.members() if node.had), reverse=True)

    def depth_max(self) -> int:
        return max(len(node.path) for node in self.members())

    def faults(self) -> DeliveryFaults:
        """What no run may have."""
        found = DeliveryFaults()
        for number, peer in enumerate(self.peers):
            node = self.nodes.get(peer.id)
            if node is None or node.is_producer or node.live_from is None:
                continue
            since = node.live_from
            expected = {at for at, wanted in enumerate(self.published, start=1) if number in wanted and at > since}
            got = [at for at in node.got if at > since]
            found.pairs += len(expected)
            found.lost += len(expected.difference(got))
            found.unwanted += len(set(got) - expected)
            found.twice += len(got) - len(set(got))
            found.unordered += got != sorted(got)
            found.outside += not node.path or node.path[0] != self.peers[0].id
        return found
