"""Items of all sizes through two edges, with all that happens at the same time in any order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, given, settings, strategies as st

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import ITEM_BYTES_MAX, PART_BYTES
from protocols.dissemination.names import START, stream_key
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree.matching import ASIDE_BYTES
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.subscription import Delivered, Lost
from tests.support.large_items import Aside, large
from tests.support.member_owner import owner

STREAM = stream_key("s")
PARENT, ME, CHILD = (PeerRef(NodeId(number), "127.0.0.1", number) for number in (1, 2, 3))
KIND = ClassesKind()


class Chain:
    """A producer, a member below it, and one below that; work aside and messages happen in any order."""

    def __init__(self, rng: random.Random, buffer_bytes: int) -> None:
        self.rng, self.aside = rng, Aside()
        self.peers = (PARENT, ME, CHILD)
        self.links: dict[tuple[NodeId, NodeId], deque[Message]] = {}
        self.now = 0.0
        self.again: set[NodeId] = set()
        self.got: list[Delivered] = []
        self.members = {peer.id: self._member(peer, buffer_bytes, is_source=peer is PARENT) for peer in self.peers}

    def _member(self, peer: PeerRef, buffer_bytes: int, *, is_source: bool) -> StreamMember:
        def send(to: PeerRef, message: Message) -> None:
            self.links.setdefault((peer.id, to.id), deque()).append(message)

        limits = BufferLimits(10_000, buffer_bytes, 1e9)
        node = owner(send, call_again=lambda: self.again.add(peer.id))
        return StreamMember(peer, STREAM, KIND, limits, node, is_source=is_source, offload=self.aside.offload)

    def step(self) -> bool:
        choices: list[Callable[[], None]] = []
        for (sender, to), queue in self.links.items():
            if queue:
                choices.append(partial(self._deliver, sender, to, queue))
        if self.aside.jobs:
            choices.append(self._work)
        choices += [partial(self._go_on, id) for id in sorted(self.again)]
        if choices:
            self.rng.choice(choices)()
        return bool(choices)

    def _deliver(self, sender: NodeId, to: NodeId, queue: deque[Message]) -> None:
        peer = next(each for each in self.peers if each.id == sender)
        self.members[to].received(peer, queue.popleft(), self.now)

    def _work(self) -> None:
        self.aside.jobs.rotate(self.rng.randrange(len(self.aside.jobs)))
        self.aside.do()

    def _go_on(self, id: NodeId) -> None:
        self.again.discard(id)
        self.members[id].go_on(self.now)

    def run(self, steps: int = 1 << 30) -> None:
        while steps > 0 and self.step():
            steps -= 1

    def settle(self) -> None:
        for _ in range(24):
            self.now += 0.25
            for member in self.members.values():
                member.tick(self.now)
            self.run()


SIZES = st.one_of(
    st.integers(3, 300),
    st.sampled_from([PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, ASIDE_BYTES - 64, ASIDE_BYTES - 63, ITEM_BYTES_MAX]),
    st.integers(3, 6 * PART_BYTES),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(st.tuples(st.sampled_from("ab"), SIZES), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 32),
    begin=st.integers(0, 12),
    is_cut=st.booleans(),
)
def test_sizes_and_orders_of_events_do_not_change_what_is_delivered(
    items: list[tuple[str, int]], seed: int, begin: int, is_cut: bool
) -> None:
    rng = random.Random(seed)
    net = Chain(rng, 1 << 30)
    middle, leaf = net.members[ME.id], net.members[CHILD.id]
    middle.subscribe(1, KIND.parse("b"), None, lambda what: None, 0.0)
    middle.move_to(PARENT, 0.0)
    net.run()
    published = []
    for number, (name, size) in enumerate(items, 1):
        if number == min(begin + 1, len(items)):
            leaf.subscribe(1, KIND.parse("a"), START, net.got.append, net.now)
            leaf.move_to(ME, net.now)
        item = large(number, size, name)
        published.append(item)
        net.members[PARENT.id].publish(item, net.now)
        net.members[PARENT.id].flush(net.now)
        net.run(rng.randrange(8))
    if is_cut:  # what was on the links is lost, and both ends notice
        net.links.pop((PARENT.id, ME.id), None)
        net.members[PARENT.id].gone(ME.id, net.now)
        middle.gone(PARENT.id, net.now)
        middle.move_to(PARENT, net.now)
    net.settle()
    assert [each.item for each in net.got if isinstance(each, ParsedItem)] == [
        item for item in published if item.payload[:1] == b"a"
    ]
    assert not any(isinstance(each, Lost) for each in net.got)
    for member in net.members.values():
        member.validate()
        assert not member.state.matching._jobs
