"""What a policy sees of its node, and can do there: implements `protocols.dissemination.ports.TreeAccess`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.item_work import WorkMeter
from protocols.dissemination.ports import ChildInfo, Interest, InterestKind, ItemWork
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.tree.member import StreamMember


class NodeOfStream(Protocol):
    """What is needed of `protocols.dissemination.stream_node.StreamNode`."""

    host: Host
    kind: InterestKind
    record: StreamRecord
    member: StreamMember
    is_producer: bool
    work: WorkMeter

    @property
    def parent(self) -> PeerRef | None: ...
    def queued_for(self, child: NodeId) -> int:
        """Bytes that wait for a child."""

    def room(self) -> int: ...
    def move_to(self, peer: PeerRef) -> bool: ...


class NodeTree:
    """One node's place in one stream's tree."""

    def __init__(self, node: NodeOfStream) -> None:
        self._node = node

    @property
    def me(self) -> PeerRef:
        """See `TreeAccess.me`."""
        return self._node.host.peer

    @property
    def stream(self) -> NodeId:
        """See `TreeAccess.stream`."""
        return self._node.record.key

    @property
    def kind(self) -> InterestKind:
        """See `TreeAccess.kind`."""
        return self._node.kind

    @property
    def is_producer(self) -> bool:
        """See `TreeAccess.is_producer`."""
        return self._node.is_producer

    @property
    def parent(self) -> PeerRef | None:
        """See `TreeAccess.parent`."""
        return self._node.parent

    @property
    def path(self) -> Sequence[NodeId]:
        """See `TreeAccess.path`."""
        return () if self._node.member.up.is_orphan else self._node.member.state.path

    @property
    def interests(self) -> Sequence[Interest]:
        """See `TreeAccess.interests`."""
        own = (each.interest for each in self._node.member.subscriptions.values())
        return list({interest.id: interest for interest in own}.values())

    @property
    def wants(self) -> Sequence[Interest]:
        """See `TreeAccess.wants`."""
        return list(self._node.member.state.wants.sent().values())

    @property
    def producer(self) -> PeerRef:
        """See `TreeAccess.producer`."""
        return self._node.record.producer.peer

    @property
    def seeds(self) -> Sequence[PeerRef]:
        """See `TreeAccess.seeds`."""
        return [peer for peer in self._node.record.seed_peers if peer.id != self.me.id]

    def children(self) -> Sequence[ChildInfo]:
        """See `TreeAccess.children`."""
        return [
            ChildInfo(child.peer, tuple(child.wants.values()), child.since_s, self._node.queued_for(child.peer.id))
            for child in self._node.member.down.live.values()
        ]

    def room(self) -> int:
        """See `TreeAccess.room`."""
        return self._node.room()

    def now(self) -> float:
        """See `TreeAccess.now`."""
        return self._node.host.now()

    def random(self) -> float:
        """See `TreeAccess.random`."""
        return self._node.host.rng.random()

    def work(self) -> ItemWork | None:
        """See `TreeAccess.work`."""
        return self._node.work.work()

    def rtt_s(self, peer: PeerRef) -> float | None:
        """See `TreeAccess.rtt_s`."""
        return self._node.host.estimated_rtt(peer)

    def send(self, peer: PeerRef, message: Message) -> None:
        """See `TreeAccess.send`."""
        self._node.host.send(peer, message)

    def move_to(self, peer: PeerRef) -> bool:
        """See `TreeAccess.move_to`."""
        return self._node.move_to(peer)

    def emit(self, event: Event) -> None:
        """See `TreeAccess.emit`."""
        self._node.host.emit(event)
