"""A stream's tree under CoDD's policies without a network: many nodes in one process, messages handed over at once.

It runs the very objects of the daemon (`StreamMember` and the policy) on CoDD's abstract data (section 5.1): nodes are
in classes, an item is wanted by all members of some classes, and from time to time classes are split and merged. Made
to be fast, so that hundreds of nodes and thousands of items take seconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination import messages as tree_messages
from protocols.dissemination.messages import AttachRefusal, StreamItem
from protocols.dissemination.names import interest_id, stream_key
from protocols.dissemination.policies.overlap.policy import OverlapFactory
from protocols.dissemination.ports import ChildInfo, Interest, InterestKind, ItemWork, ParsedItem, TreePolicy
from protocols.dissemination.tree.links import ChildStage
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.subscription import Lost, StaleFrom
from protocols.dissemination.tree.upstream import MoveEnd

STREAM = stream_key("net")
LOOK_EVERY_S = 1.0
_TREE_MESSAGES = frozenset(tree_messages.MESSAGES)
_STREAM_MESSAGES = frozenset((tree_messages.Carry, tree_messages.Beat))


class MemberKind:
    """Interests are names of members; an item's payload is its number, and `wanted` says which members want it."""

    name = "members"

    def __init__(self) -> None:
        self.wanted: dict[bytes, frozenset[bytes]] = {}
        """By payload: the ids of the interests that an item meets."""

    def parse(self, text: str) -> Interest:
        return Interest(interest_id(self.name, text), text, text)

    def content(self, item: StreamItem) -> Any:
        return self.wanted[item.payload]

    def make_set(self) -> MemberSet:
        return MemberSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        return interest.id in content

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        return wide.id == narrow.id

    def overlap(self, one: Interest, other: Interest) -> float:
        return float(one.id == other.id)

    def reduce(self, interests: Sequence[Interest], limit: int) -> list[Interest]:
        return list(interests)


class MemberSet:
    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def add(self, interest: Interest) -> None:
        self._known.add(interest.id)

    def remove(self, id: bytes) -> None:
        self._known.discard(id)

    def match(self, content: frozenset[bytes]) -> set[bytes]:
        return self._known & content

    def __len__(self) -> int:
        return len(self._known)


class ClassWorkload:
    """Who wants which item: CoDD section 5.1. Members are numbered from 1."""

    def __init__(
        self, members: int, rng: random.Random, classes: int = 20, selectivity: float = 0.2, change_every: int = 200
    ) -> None:
        self._rng = rng
        self._each = max(1, round(selectivity * classes))
        self._change_every = change_every
        self._drawn = 0
        self.classes: list[list[int]] = [[] for _ in range(classes)]
        for member in range(1, members + 1):
            rng.choice(self.classes).append(member)

    def draw(self) -> frozenset[int]:
        """The members that want the next item."""
        if self._drawn and self._change_every and self._drawn % self._change_every == 0:
            self._change()
        self._drawn += 1
        return frozenset(member for each in self._rng.sample(self.classes, self._each) for member in each)

    def _change(self) -> None:
        """Split a fifth of the classes in two, and merge the halves in random pairs."""
        rng = self._rng
        rng.shuffle(self.classes)
        count = len(self.classes) // 5
        halves: list[list[int]] = []
        for members in self.classes[:count]:
            rng.shuffle(members)
            halves += [members[: len(members) // 2], members[len(members) // 2 :]]
        rng.shuffle(halves)
        self.classes[:count] = [halves[at] + halves[at + 1] for at in range(0, len(halves), 2)]


@dataclass(eq=False)
class NetNode:
    """One node: implements `protocols.dissemination.ports.TreeAccess`."""

    net: DisseminationNet
    me: PeerRef
    is_producer: bool
    fan_out: int
    member: StreamMember = field(init=False)
    policy: TreePolicy = field(init=False)
    own: frozenset[bytes] = frozenset()
    """The ids of its own interests."""
    got: list[int] = field(default_factory=list)
    losses: int = 0
    had: int = 0
    wanted: int = 0
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
    def parent(self) -> PeerRef | None:
        return None if self.member.up.parent is None else self.member.up.parent.peer

    @property
    def path(self) -> Sequence[NodeId]:
        return self.member.state.path

    @property
    def interests(self) -> Sequence[Interest]:
        return [each.interest for each in self.member.subscriptions.values()]

    @property
    def wants(self) -> Sequence[Interest]:
        return list(self.member.state.wants.sent().values())

    @property
    def producer(self) -> PeerRef:
        return self.net.nodes[self.net.peers[0].id].me

    @property
    def seeds(self) -> Sequence[PeerRef]:
        return self.net.seeds

    def children(self) -> Sequence[ChildInfo]:
        return [
            ChildInfo(child.peer, tuple(child.wants.values()), child.since_s, 0)
            for child in self.member.down.children.values()
            if child.stage is ChildStage.LIVE
        ]

    def has_room(self) -> bool:
        return len(self.member.down.children) < self.fan_out

    def now(self) -> float:
        return self.net.now

    def random(self) -> float:
        return self.net.rng.random()

    def rtt_s(self, peer: PeerRef) -> float | None:
        return None

    def work(self) -> ItemWork | None:
        return None

    def send(self, peer: PeerRef, message: Message) -> None:
        self.net.send(self.me, peer, message)

    def move_to(self, peer: PeerRef) -> bool:
        return self.member.move_to(peer, self.net.now)

    def emit(self, event: Event) -> None:
        self.net.events.append(event)

    # What the plugin does for a policy

    def ended(self, peer: PeerRef, end: MoveEnd, why: AttachRefusal | None, others: Sequence[PeerRef]) -> None:
        self.net.ends[end] = self.net.ends.get(end, 0) + 1
        self.policy.move_ended(peer, end.value, None if why is None else int(why), others)

    def flow(self, held: ParsedItem, ids: set[bytes]) -> Any:
        live = self.member.down.children.items()
        sent = [id for id, child in live if child.stage is ChildStage.LIVE and not ids.isdisjoint(child.wants)]
        found = self._flow(held, ids)
        is_own = not self.own.isdisjoint(ids)
        self.had += 1
        self.wanted += is_own
        self.depths += len(self.member.state.path)
        self.policy.passed(held, is_own, sent)
        return found

    def look_at_children(self) -> None:
        """Tell the policy who has come and gone."""
        live = {id for id, child in self.member.down.children.items() if child.stage is ChildStage.LIVE}
        if live != self._children:
            for id in sorted(self._children - live):
                self.policy.child_went(id)
            for id in sorted(live - self._children):
                self.policy.child_came(id)
            self._children = frozenset(live)

    def deliver(self, what: ParsedItem | Lost | StaleFrom) -> None:
        if isinstance(what, Lost):
            self.losses += 1
        elif isinstance(what, ParsedItem):
            self.got.append(what.item.sequence)

    def start(self, policy: TreePolicy) -> None:
        self.policy = policy
        self._flow: Callable[[ParsedItem, set[bytes]], Any] = self.member.down.flow
        self.member.down.flow = self.flow  # type: ignore[method-assign]  # counts what goes by
        self.member.on_ended = self.ended


class DisseminationNet:
    """A producer and its members. ``settings``: as in a stream's record."""

    def __init__(
        self,
        members: int,
        workload: ClassWorkload,
        rng: random.Random,
        settings: Mapping[str, Any],
        fan_out: int = 6,
        items_a_second: int = 20,
        tick_s: float = 1.0,
        remembered: int = 2000,
    ) -> None:
        self.rng = rng
        self.now = 0.0
        self.kind = MemberKind()
        self.workload = workload
        self.events: list[Event] = []
        self.ends: dict[MoveEnd, int] = {}
        self.sent: dict[type[Message], int] = {}
        self.nodes: dict[NodeId, NetNode] = {}
        self.peers = [PeerRef(NodeId(i + 1), "127.0.0.1", 1000 + i) for i in range(members + 1)]
        self.seeds = [self.peers[0]]
        self.published: list[frozenset[int]] = []
        self._fan_out = fan_out
        self._limits = BufferLimits(remembered, 1 << 30, 1e9)
        self._factory = OverlapFactory()
        self._settings = self._factory.settings(settings)
        self._queue: deque[tuple[PeerRef, NodeId, Message]] = deque()
        self._per_tick = max(1, round(items_a_second * tick_s))
        self._tick_s = tick_s
        self._interests = [self.kind.parse(f"m{number}") for number in range(members + 1)]
        self._add(0)

    def _add(self, number: int) -> NetNode:
        peer = self.peers[number]
        node = NetNode(self, peer, number == 0, self._fan_out)
        node.member = StreamMember(
            peer,
            STREAM,
            self.kind,
            self._limits,
            node.send,
            lambda *asked: node.has_room(),
            is_source=node.is_producer,
        )
        self.nodes[peer.id] = node
        node.start(self._factory.make(node, self._settings))
        return node

    def send(self, sender: PeerRef, to: PeerRef, message: Message) -> None:
        """Hand over, after all that is on its way already: every link keeps its order."""
        self._queue.append((sender, to.id, message))

    def run(self) -> None:
        """Until nothing is on its way."""
        queue, nodes, sent = self._queue, self.nodes, self.sent
        while queue:
            sender, to, message = queue.popleft()
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

    def join(self, number: int) -> NetNode:
        """A member comes."""
        node = self._add(number)
        interest = self._interests[number]
        node.own = frozenset((interest.id,))
        node.member.subscribe(0, interest, None, node.deliver, self.now)
        node.policy.look_for_parent()
        self.run()
        return node

    def leave(self, number: int) -> None:
        """A member goes, as it should."""
        peer = self.peers[number]
        node = self.nodes[peer.id]
        successor = node.policy.successor()
        for child in node.children():
            to = self.nodes[node.producer.id if node.parent is None else node.parent.id]
            if child.peer.id != successor and successor is not None:
                to = self.nodes[successor]
            self.nodes[child.peer.id].member.move_to(to.me, self.now)
        self.run()
        node.member.leave(self.now)
        del self.nodes[peer.id]
        self.run()

    def kill(self, number: int) -> None:
        """A member dies, and those that it had links with notice."""
        peer = self.peers[number]
        del self.nodes[peer.id]
        for node in self.nodes.values():
            node.member.gone(peer.id, self.now)
            node.look_at_children()
        self.run()

    def publish(self) -> None:
        """The next item of the workload."""
        wanted = self.workload.draw()
        self.published.append(wanted)
        number = len(self.published)
        payload = number.to_bytes(4, "big")
        self.kind.wanted[payload] = frozenset(self._interests[each].id for each in wanted)
        source = self.nodes[self.peers[0].id]
        source.member.publish(StreamItem(1, number, round(self.now * 1000), payload), self.now)
        source.member.flush(self.now)
        self.run()
        if number % self._per_tick == 0:
            self.tick()

    def tick(self) -> None:
        """Time passes."""
        self.now += self._tick_s
        for node in list(self.nodes.values()):
            node.member.tick(self.now)
            node.policy.tick()
            node.look_at_children()
            if not node.is_producer and node.member.up.is_orphan:
                node.policy.look_for_parent()
            elif node.live_from is None and node.member.subscriptions:
                through = node.member.subscriptions[0].through
                node.live_from = None if through is None else through.sequence
        self.run()

    # What came of it

    def members(self) -> list[NetNode]:
        return [node for node in self.nodes.values() if not node.is_producer]

    def reset_counts(self) -> None:
        for node in self.nodes.values():
            node.had = node.wanted = node.depths = 0

    def spurious_share(self, inner_only: bool = False) -> float:
        """The mean over members of what each had in vain, as a part of what it had."""
        nodes = [node for node in self.members() if node.had and (not inner_only or node.children())]
        return sum(1 - node.wanted / node.had for node in nodes) / max(1, len(nodes))

    def vain_share(self) -> float:
        """Of all that members had, the part that they had in vain."""
        had = sum(node.had for node in self.members())
        return 1 - sum(node.wanted for node in self.members()) / max(1, had)

    def depth(self) -> float:
        """The mean depth of members, weighted with what they had."""
        return sum(n.depths for n in self.members()) / max(1, sum(n.had for n in self.members()))

    def depth_max(self) -> int:
        return max(len(node.path) for node in self.members())

    def check(self) -> None:
        """Whether every member has had what it wanted, each item once and in order; and the tree is one."""
        for number, peer in enumerate(self.peers):
            node = self.nodes.get(peer.id)
            if node is None or node.is_producer or node.live_from is None:
                continue
            since = node.live_from
            expected = [at for at, wanted in enumerate(self.published, start=1) if number in wanted and at > since]
            assert [at for at in node.got if at > since] == expected, f"member {number}"
            assert not node.losses, f"member {number}"
            assert node.path and node.path[0] == self.peers[0].id, f"member {number} is not in the tree"
            assert len(node.member.down.children) <= self._fan_out
            node.member.validate()
