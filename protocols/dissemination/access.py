"""What a policy sees of its node, and can do there: implements `protocols.dissemination.ports.TreeAccess`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.item_work import WorkMeter
from protocols.dissemination.ports import ChildInfo, Interest, InterestKind, ItemWork, TreePolicy
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.tree.member import StreamMember


class MemberTree:
    """The part of it that a member of a tree knows by itself."""

    member: StreamMember

    @property
    def is_producer(self) -> bool:
        """Whether this node is at the top of the tree. The member knows; nobody else notes it."""
        return self.member.state.is_source

    @property
    def parent(self) -> PeerRef | None:
        """The parent."""
        return self.member.up.parent_peer

    @property
    def path(self) -> Sequence[NodeId]:
        """See `TreeAccess.path`."""
        return () if self.member.up.is_orphan else self.member.state.path

    @property
    def interests(self) -> Sequence[Interest]:
        """See `TreeAccess.interests`."""
        own = (each.interest for each in self.member.subscriptions.values())
        return list({interest.id: interest for interest in own}.values())

    @property
    def wants(self) -> Sequence[Interest]:
        """See `TreeAccess.wants`."""
        return list(self.member.state.wants.sent().values())

    def children(self) -> Sequence[ChildInfo]:
        """See `TreeAccess.children`."""
        return [
            ChildInfo(child.peer, tuple(child.wants.values()), child.since_s, self.queued_for(child.peer.id))
            for child in self.member.down.live.values()
        ]

    def queued_for(self, child: NodeId) -> int:
        """What waits to be sent to a child."""
        return self.member.down.children[child].queue_bytes


class NodeTree(MemberTree):
    """One node's place in one stream's tree."""

    policy: TreePolicy
    leaving_since: float | None = None

    def __init__(
        self, host: Host, config: Callable[[], DisseminationConfig], record: StreamRecord, kind: InterestKind
    ) -> None:
        self.host, self._config, self._record, self.kind = host, config, record, kind
        self.stream = record.key
        self._work = WorkMeter()

    @property
    def record(self) -> StreamRecord:
        """The stream's, as far as this node knows."""
        return self._record

    @record.setter
    def record(self, record: StreamRecord) -> None:
        self._record = record
        self.member.record_changed(self.host.now())

    @property
    def config(self) -> DisseminationConfig:
        """The settings of this moment."""
        return self._config()

    @property
    def name(self) -> str:
        """The stream's."""
        return self._record.name

    @property
    def me(self) -> PeerRef:
        """See `TreeAccess.me`."""
        return self.host.peer

    @property
    def producer(self) -> PeerRef:
        """See `TreeAccess.producer`."""
        return self._record.producer.peer

    @property
    def seeds(self) -> Sequence[PeerRef]:
        """See `TreeAccess.seeds`."""
        return [peer for peer in self._record.seed_peers if peer.id != self.me.id]

    @property
    def is_unused(self) -> bool:
        """Whether nobody here or below wants anything of the stream."""
        return not (self.is_producer or self.member.subscriptions or self.member.down.children)

    def queued_for(self, child: NodeId) -> int:
        """What waits to be sent to a child, here and in its connection."""
        return super().queued_for(child) + self.host.queued_bytes(self.member.down.children[child].peer)

    def now(self) -> float:
        """See `TreeAccess.now`."""
        return self.host.now()

    def random(self) -> float:
        """See `TreeAccess.random`."""
        return self.host.rng.random()

    def work(self) -> ItemWork | None:
        """See `TreeAccess.work`."""
        return self._work.work()

    def rtt_s(self, peer: PeerRef) -> float | None:
        """See `TreeAccess.rtt_s`."""
        return self.host.estimated_rtt(peer)

    def emit(self, event: Event) -> None:
        """See `TreeAccess.emit`."""
        self.host.emit(event)
