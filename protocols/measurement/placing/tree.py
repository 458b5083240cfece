"""T: the union of the routes of all nodes to one key (section 4.1), and who is below whom.

A node's parent is its next hop to that key; the node at which routes end is the root. Children are those that have said
so lately, each with a filter of the nodes at or below it. No agreement is needed: where two nodes see T differently for
a while, a question goes a longer way, or comes to an end and is asked of the owner itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, key_of
from peerd.messages import PeerRef
from protocols.measurement.directory import Directory, by_value
from protocols.measurement.placing.messages import Subtree
from protocols.measurement.placing.subtree import SubtreeFilter, joined

ROOT_KEY: Final = key_of("peerd measurement caches")
SAY_S: Final = 60.0
"""A node says to its parent so often what is below it."""
LEASE_S: Final = 2.5 * SAY_S
"""A child that has said nothing for so long is none."""
LOOK_S: Final = 15.0
"""How often it is looked whether the parent is still the next hop: routes change when round trips do."""
SOON_S: Final = 1.0
"""Changes below are told together, at most so often."""
CHILDREN_MAX: Final = 4096
UP_HOPS: Final = 2
"""A question about owners of a region that a tag makes goes so far up T, where readers near each other meet."""
_SAY: Final = "subtree"
_SOON: Final = "subtree_soon"


@dataclass(slots=True)
class TreeChild:
    """A node whose route leads through this one."""

    peer: PeerRef
    below: SubtreeFilter
    heard_at: float


class RouteTree(Part):
    """This node's place in T."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parent: PeerRef | None = None
        self._children: dict[NodeId, TreeChild] = {}
        self._named: dict[NodeId, NodeId] | None = None
        """Which child names a node; made anew after a change."""
        self._said_at = float("-inf")
        self._is_soon = False

    def start(self) -> None:
        """Begin to look for a parent."""
        self._host.set_timer(_SAY, self._host.rng.uniform(0.0, SOON_S))

    def parent(self) -> PeerRef | None:
        """``None``: this node is the root, or in no ring."""
        return self._parent

    def children(self) -> Mapping[NodeId, PeerRef]:
        """All of them."""
        return {node: child.peer for node, child in self._children.items()}

    def below(self) -> SubtreeFilter:
        """The nodes at or below this one."""
        filters = (child.below for child in self._children.values())
        return joined(self._host.id, filters, self._host.estimated_ring_size())

    def branch(self, owner: NodeId, came_from: NodeId | None = None) -> PeerRef | None:
        """Where a question about an owner goes on, one that came from that node; ``None``: nobody beyond is known to
        have it (section 4.2.2).

        Unlike the paper's, a question does not also go up where a Bloom filter says that the owner is below: if it is
        not, the node at which the question ends says so to the reader, who asks the owner itself.
        """
        node = self._child_of(owner)
        if node is not None and node != came_from:
            return self._children[node].peer
        is_from_above = self._parent is not None and came_from == self._parent.id
        return None if is_from_above else self._parent

    def _child_of(self, owner: NodeId) -> NodeId | None:
        """The child below which a node is: one that names it, else one whose Bloom filter has it."""
        if self._named is None:
            self._named = {each: node for node, child in self._children.items() for each in child.below.ids}
        if (node := self._named.get(owner)) is not None:
            return node
        blooms = (node for node, child in self._children.items() if child.below.size and owner in child.below)
        return next(blooms, None)

    # Who is below

    @on_timer(_SAY)
    def _look(self, payload: None) -> None:
        host, now = self._host, self._host.now()
        lapsed = [node for node, child in self._children.items() if now - child.heard_at > LEASE_S]
        for node in lapsed:
            del self._children[node]
            self._named = None
        self._find_parent()
        if lapsed or now - self._said_at >= SAY_S:
            self._say()
        host.set_timer(_SAY, LOOK_S * host.rng.uniform(0.8, 1.0))

    def _find_parent(self) -> None:
        try:
            parent = self._host.next_hop(ROOT_KEY)
        except Unavailable:
            return  # it is being found out
        before = self._parent
        if before is not None and parent is not None and before.id == parent.id:
            self._parent = parent  # its address may be another one
            return
        self._parent = parent
        if before is not None:
            self._host.send(before, Subtree())
        if parent is not None and self._children.pop(parent.id, None) is not None:
            self._named = None
            self._soon()
        if before is not None or parent is not None:
            self._say()
            self._said_at = float("-inf")  # and at the next look once more, should this be lost

    def _say(self) -> None:
        self._said_at = self._host.now()
        if self._parent is not None:
            below = self.below()
            self._host.send(self._parent, Subtree(tuple(below.ids), below.bits.to_bytes(below.size // 8, "little")))

    def _soon(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self._host.set_timer(_SOON, SOON_S)

    @on_timer(_SOON)
    def _is_due(self, payload: None) -> None:
        self._is_soon = False
        self._say()

    @handles(Subtree)
    def _heard(self, word: Subtree, source: PeerRef) -> None:
        size = 8 * len(word.bloom)
        if size & (size - 1):
            raise ProtocolError("malformed", "a Bloom filter has a power of two of bits")
        before = self._children.get(source.id)
        if not (word.ids or word.bloom):
            if self._children.pop(source.id, None) is not None:
                self._named = None
                self._soon()
            return
        is_parent = self._parent is not None and self._parent.id == source.id
        if is_parent or (before is None and len(self._children) >= CHILDREN_MAX):
            return
        below = SubtreeFilter(frozenset(word.ids), int.from_bytes(word.bloom, "little"), size)
        self._children[source.id] = TreeChild(source, below, self._host.now())
        if before is None or before.below != below:
            self._named = None
            self._soon()

    def lost(self, nodes: Iterable[NodeId]) -> None:
        """These do not answer: they are no children any more, and a parent among them is looked for at once."""
        gone = [node for node in nodes if self._children.pop(node, None) is not None]
        if gone:
            self._named = None
            self._soon()
        self._find_parent()


class TreeRoutes:
    """The ways of questions over T; where regions are those of a tag, up T and on over T_app (section 5.2).

    In T_app all nodes with one value of the tag are below one of them, its *head*. Each node that knows the others can
    tell who that is, so T_app needs no ring of its own and no message.
    """

    def __init__(self, tree: RouteTree, directory: Directory) -> None:
        self._tree, self._directory = tree, directory
        self._regions: Mapping[NodeId, str] = {}
        self._members: dict[str, list[NodeId]] = {}

    def branch(self, owner: NodeId, path: Sequence[NodeId]) -> PeerRef | None:
        """Where a question about an owner goes on, by the nodes that had it, this one the last; ``None``: nobody beyond
        is known to have it."""
        head = self._head(owner)
        if head is None:
            return self._tree.branch(owner, *path[-2:-1])
        if head in path:
            return self._directory.peer(owner)
        up = self._tree.parent() if len(path) <= UP_HOPS else None
        return up or self._directory.peer(head)

    def _head(self, owner: NodeId) -> NodeId | None:
        """Of the nodes with the same value as an owner, the first that is not lost."""
        directory = self._directory
        if self._regions is not directory.regions:
            self._regions, self._members = directory.regions, {}
        if (value := self._regions.get(owner)) is None:
            if directory.has_regions and directory.peer(owner) is None:  # it has no clients, and learns who there is
                directory.refreshed(lambda: None)
            return None
        if value not in self._members:
            self._members[value] = by_value(value, (node for node, its in self._regions.items() if its == value))
        return next((node for node in self._members[value] if not directory.is_lost(node)), None)

    def may_answer(self, node: NodeId, owner: NodeId) -> bool:
        """Anybody on the way may cache."""
        return True
