"""A few groups services on fake hosts. The links keep their order, and nothing else can be relied on.

The test decides which link delivers next, when time passes, and which node dies. Routing is ideal: every hop is closer
to the key, and it ends at the closest live node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import cast

from peerd.api import Envelope, Host, NeighbourChange, Plugin, Verdict
from peerd.ids import NodeId, closeness
from peerd.messages import Message, PeerRef
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.members import group_key
from peerd.services.groups.service import BoundGroups, GroupService
from peerd.services.groups.state import Group
from peerd.testing.host import FakeHost, Request, peer
from tests.support.groups import Saying

GROUP = "g"
KEY = group_key("chatter", GROUP)
DELIVERIES_MAX = 20_000
QUICK = GroupsConfig(
    children_max=2,
    refresh_interval=4,
    refresh_timeout=1,
    lease=12,
    orphan_timeout=4,
    join_timeout=1,
    join_retry_max=4,
    publish_timeout=1,
)
SETTLE_S = 40.0
"""Long enough for a lease to run out, a pause between joins to pass, and a few refreshes to follow."""


class Speaker(Plugin):
    """Stands for the plugin whose group it is."""

    name = "chatter"
    messages = (Saying,)


class GroupNode:
    """One node: service, host, and what its member heard."""

    def __init__(self, node_id: int, config: GroupsConfig) -> None:
        self.host = FakeHost(node_id)
        self.service = GroupService(config)
        self.host.plugin = self.service
        self.groups = BoundGroups(lambda: self.service, Speaker())
        self.heard: list[int] = []
        self.is_member = False
        self.is_draining = False
        self.questions: list[list[Request]] = []
        """The service's requests that may still be answered."""

    @property
    def id(self) -> NodeId:
        """Its id."""
        return self.host.id

    @property
    def part(self) -> Group | None:
        """Its part in the group's tree."""
        return self.service.trees.groups.get(KEY)

    def join(self) -> None:
        """Become a member."""
        self.is_member = True
        self.groups.join(GROUP, self._hear)

    def _hear(self, message: Message, origin: PeerRef) -> None:
        assert self.is_member, "who is no member hears nothing"
        self.heard.append(cast(Saying, message).number)

    def leave(self) -> None:
        """Be no member any more."""
        self.is_member = False
        self.groups.leave(GROUP)


class GroupWorld:
    """The nodes, and what is under way between them."""

    def __init__(self, config: GroupsConfig | None = None) -> None:
        self.config = config or QUICK
        self.nodes: dict[NodeId, GroupNode] = {}
        self.links: dict[tuple[NodeId, NodeId], deque[Callable[[], None]]] = {}
        self.expiries: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self.boots = 0

    # Nodes

    def add(self, node_id: int) -> GroupNode:
        """Add a node to the ring; every other node knows at once."""
        node = GroupNode(node_id, self.config)
        node.host.time_s = self.now
        self.boots += 1
        node.host.boot_epoch = self.boots
        self.nodes[node.id] = node
        node.service.start(cast(Host, node.host))
        self._ring_changed(NeighbourChange((node.host.peer,), ()))
        return node

    def crash(self, node: GroupNode) -> None:
        """Remove a node, with all messages on their way to it and from it."""
        del self.nodes[node.id]
        for link in [link for link in self.links if node.id in link]:
            del self.links[link]
        self._ring_changed(NeighbourChange((), (node.host.peer,)))

    def stop(self, node: GroupNode) -> None:
        """Have a node leave in order: its last messages arrive."""
        node.service.stop()
        self.collect(node)
        del self.nodes[node.id]
        for link in [link for link in self.links if link[1] == node.id]:
            del self.links[link]
        self._ring_changed(NeighbourChange((), (node.host.peer,)))

    def drain(self, node: GroupNode) -> None:
        """A node hands over what hangs below it, and leaves some time after it has done so."""
        node.is_draining = True
        node.service.drain(lambda: self._put(node.id, node.id, partial(self.stop, node)))
        self.collect(node)

    def restart(self, node: GroupNode) -> None:
        """Have the service of a node fail. The next instance inherits what belongs to the plugins."""
        failed = node.service
        failed.plugin_disabled(failed.name)
        node.host.timers.clear()
        for waiting in node.questions:
            waiting.clear()
        node.questions.clear()
        node.service = GroupService(self.config)
        node.service.inherit(failed)
        node.host.plugin = node.service
        node.service.start(cast(Host, node.host))
        self.collect(node)

    def _ring_changed(self, change: NeighbourChange) -> None:
        for node in list(self.nodes.values()):
            node.host.neighbours = tuple(other.host.peer for other in self.nodes.values() if other is not node)
            node.service.neighbours_changed(change)
            self.collect(node)

    # What is under way

    def collect(self, node: GroupNode) -> None:
        """Put what a node has just done onto the links."""
        host = node.host
        host.run_later()
        for target, message in host.take_sent():
            self._put(node.id, target.id, partial(self._deliver, node, target, message))
        routed, host.routed = host.routed, []
        for key, routed_message in routed:
            self._put(node.id, node.id, partial(self._hop, host.peer, node.id, key, routed_message, 0))
        requests, host.requests = host.requests, []
        for request in requests:
            waiting = [request]
            node.questions = [*filter(None, node.questions), waiting]
            self.expiries.append((self.now + request.timeout_s, partial(self._expire, node, waiting)))
            self._put(node.id, request.peer.id, partial(self._ask, node, request, waiting))

    def _expire(self, node: GroupNode, waiting: list[Request]) -> None:
        if waiting and node.id in self.nodes:
            waiting.pop().on_timeout()
            self.collect(node)

    def _put(self, source: NodeId, target: NodeId, delivery: Callable[[], None]) -> None:
        self.links.setdefault((source, target), deque()).append(delivery)

    def _deliver(self, source: GroupNode, target: PeerRef, message: Message) -> None:
        node = self.nodes.get(target.id)
        if node is not None:
            node.service.handlers.messages[type(message)](message, source.host.peer)
            self.collect(node)

    def _ask(self, source: GroupNode, request: Request, waiting: list[Request]) -> None:
        target = self.nodes.get(request.peer.id)
        if target is None:
            return
        handler = target.service.handlers.messages[type(request.message)]
        reply = handler(request.message, source.host.peer)
        assert reply is not None
        self.collect(target)

        def answer() -> None:
            if waiting and source.id in self.nodes:
                waiting.pop().on_reply(reply, request.peer)
                self.collect(source)

        self._put(target.id, source.id, answer)

    def _hop(self, source: PeerRef, at: NodeId, key: NodeId, message: Message, hops: int) -> None:
        node = self.nodes.get(at)
        if node is None:
            return
        closer = sorted(
            (other for other in self.nodes if closeness(key, other) < closeness(key, at)),
            key=lambda other: closeness(key, other),
        )
        next_hop = self.nodes[closer[len(closer) // 2]] if closer else node
        verdict = node.service.forward(Envelope(key, source, message, next_hop.host.peer, hops, source))
        if verdict is Verdict.PASS and next_hop is node:
            node.service.deliver(key, message, source)
        elif verdict is Verdict.PASS:
            self._put(at, next_hop.id, partial(self._hop, source, next_hop.id, key, message, hops + 1))
        self.collect(node)

    # What the test decides

    def busy_links(self) -> list[tuple[NodeId, NodeId]]:
        """Links with something under way, longest busy first."""
        return list(self.links)

    def deliver_next(self, link: tuple[NodeId, NodeId]) -> None:
        """The first message of a link arrives."""
        queue = self.links[link]
        delivery = queue.popleft()
        if not queue:
            del self.links[link]
        delivery()

    def deliver_all(self) -> None:
        """Everything arrives, also what that causes."""
        for _ in range(DELIVERIES_MAX):
            if not self.links:
                return
            self.deliver_next(next(iter(self.links)))
        raise AssertionError("messages cause messages without end")

    def pass_time(self) -> None:
        """Let time pass until the next timer or time-out is due, and fire it."""
        timers: list[tuple[float, NodeId, tuple[str, Hashable]]] = [
            (due, node.id, timer) for node in self.nodes.values() for timer, due in node.host.timers.items()
        ]
        due_timer = min(timers, key=lambda timer: timer[0], default=None)
        due_expiry = min(self.expiries, key=lambda expiry: expiry[0], default=None)
        if due_expiry is not None and (due_timer is None or due_expiry[0] <= due_timer[0]):
            self.expiries.remove(due_expiry)
            self._set_time(due_expiry[0])
            due_expiry[1]()
        elif due_timer is not None:
            due, node_id, (name, payload) = due_timer
            self._set_time(due)
            node = self.nodes[node_id]
            node.host.fire(name, payload)
            self.collect(node)

    def _set_time(self, now: float) -> None:
        self.now = max(self.now, now)
        for node in self.nodes.values():
            node.host.time_s = self.now

    def settle(self, duration_s: float) -> None:
        """For a while deliver every message at once."""
        until = self.now + duration_s
        while self.now < until and (self.expiries or any(node.host.timers for node in self.nodes.values())):
            self.deliver_all()
            self.pass_time()
        self.deliver_all()

    # What must hold

    def parts(self) -> dict[NodeId, Group]:
        """The nodes in the tree, with their parts."""
        return {node.id: part for node in self.nodes.values() if (part := node.part) is not None}

    def validate(self) -> None:
        """Assert what holds on each node at any time."""
        for node in self.nodes.values():
            node.service.validate()

    def check_tree(self) -> None:
        """Assert that there is one tree below the closest node, with all members and no node that is not needed."""
        parts = self.parts()
        members = {node.id for node in self.nodes.values() if node.is_member}
        assert members <= parts.keys(), "a member is in no tree"
        if not parts:
            return
        root = min(self.nodes, key=lambda node_id: closeness(KEY, node_id))
        assert [node_id for node_id, part in parts.items() if part.is_root] == [root]
        for node_id, part in parts.items():
            assert part.path[0] == root and part.path[-1] == node_id and not part.is_joining
            if part.parent is not None:
                assert part.path[-2] == part.parent.id and node_id in parts[part.parent.id].children
            assert all(parts[child].is_child_of(peer(node_id)) for child in part.children)
            assert part.children or node_id in members, "a node is in the tree for nobody"
