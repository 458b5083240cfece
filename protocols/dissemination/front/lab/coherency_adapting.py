"""Trees that adapt: the policy ``cost`` of every node, with its messages, on the simulated servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.front.lab.coherency_system import System, TreeWatcher
from protocols.dissemination.front.lab.coherency_trees import FAN_OUT, id_of, number_of
from protocols.dissemination.front.lab.coherency_world import ADAPT_S, ROUND_S, WINDOW_S
from protocols.dissemination.interests.coherency import CoherencyKind
from protocols.dissemination.names import stream_key
from protocols.dissemination.policies.cost.policy import CostFactory, CostPolicy
from protocols.dissemination.ports import ChildInfo, Interest, ItemWork, ParsedItem

TICK_S: Final = 5.0
"""How often a policy looks at the time: a daemon's does so four times a second, and its windows are shorter."""
TAU: Final = 0.2
"""Of section 5.1."""
SETTINGS: Final[Mapping[str, Any]] = {
    "window": f"{WINDOW_S:g}s",
    "round": f"{ROUND_S:g}s",
    "collect_s": f"{1e6 * ADAPT_S:g}us",
    "decide_s": f"{1e6 * ADAPT_S:g}us",
}
MOVED: Final = "moved"
NOT_MOVED: Final = "circle"


class NodePlace:
    """Implements `protocols.dissemination.ports.TreeAccess`: a node's place in one simulated tree."""

    kind: Any = CoherencyKind()
    interests: Sequence[Interest] = ()
    wants: Sequence[Interest] = ()

    def __init__(self, trees: AdaptingTrees, tree: int, node: int) -> None:
        self._trees = trees
        self._system = trees.system
        self._number = tree
        self._node = node
        self._its = trees.system.trees[tree].nodes[node]
        self.me = trees.peers[node]
        self.stream = trees.streams[tree]
        self.producer = trees.peers[0]
        self.seeds = (trees.peers[0],)
        self.is_producer = node == 0

    @property
    def parent(self) -> PeerRef | None:
        return None if self._its.parent is None else self._trees.peers[self._its.parent]

    @property
    def path(self) -> Sequence[NodeId]:
        above = list(self._system.trees[self._number].above(self._node))
        return [id_of(node) for node in reversed(above[1:])]

    def children(self) -> Sequence[ChildInfo]:
        return [ChildInfo(self._trees.peers[child], (), 0.0, 0) for child in self._its.children]

    def room(self) -> int:
        return max(0, FAN_OUT - len(self._its.children))

    def now(self) -> float:
        return self._system.now

    def random(self) -> float:
        return self._trees.rng.random()

    def work(self) -> ItemWork | None:
        costs = self._system.costs[self._node]
        return ItemWork(costs.filter_s, costs.send_s)

    def rtt_s(self, peer: PeerRef) -> float | None:
        return 2 * self._system.world.delays[self._node][number_of(peer.id)]

    def send(self, peer: PeerRef, message: Message) -> None:
        self._trees.told += 1
        other = number_of(peer.id)
        self._system.tell(self._node, other, self._trees.policies[self._number, other].received, self.me, message)

    def move_to(self, peer: PeerRef) -> bool:
        def ended(is_moved: bool) -> None:
            policy = self._trees.policies[self._number, self._node]
            policy.move_ended(peer, MOVED if is_moved else NOT_MOVED, None, ())

        self._system.move(self._number, self._node, number_of(peer.id), ended)
        return True

    def emit(self, event: Event) -> None:
        """Nobody reads the events of these nodes."""


class AdaptingTrees(TreeWatcher):
    """The policies of all nodes in all trees of a system."""

    def __init__(self, system: System, rng: Random, tau: float = TAU) -> None:
        self.system = system
        self.rng = rng
        self.told = 0
        """Messages of the policies."""
        self.peers = [PeerRef(id_of(node), "127.0.0.1", 1 + node) for node in system.world.nodes]
        self.streams = [stream_key(f"tree {number}") for number in range(len(system.trees))]
        self.policies: dict[tuple[int, int], CostPolicy] = {}
        factory = CostFactory()
        settings = factory.settings({**SETTINGS, "tau": tau})
        for number, tree in enumerate(system.trees):
            for node in sorted(tree.nodes):
                self.policies[number, node] = factory.make(NodePlace(self, number, node), settings)
        self._factory = factory
        system.watcher = self
        count = len(self.policies)
        for number, policy in enumerate(self.policies.values()):
            system.after(TICK_S * number / count, self._tick, policy)

    def _tick(self, policy: CostPolicy) -> None:
        policy.tick()
        self.system.after(TICK_S, self._tick, policy)

    def passed(self, tree: int, node: int, held: ParsedItem, *, is_own: bool) -> None:
        """See `TreeWatcher`."""
        self.policies[tree, node].passed(held, is_own, ())

    def moved(self, tree: int, node: int, old: int, new: int) -> None:
        """See `TreeWatcher`."""
        self.policies[tree, old].child_went(id_of(node))
        self.policies[tree, new].child_came(id_of(node))
