"""One node's part in its groups: parent, children, path from the root. Pure state, no Host."""

from __future__ import annotations

from dataclasses import dataclass, field

from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.services.groups.messages import DEPTH_MAX, MulticastPosition, Path
from peerd.services.groups.stream import Seen


@dataclass(slots=True)
class Child:
    """A node that gets this group's multicasts from here."""

    peer: PeerRef
    expires_at: float
    joined_at: float
    is_welcomed: bool = False
    """Whether it was told that it is a child. While this node has no path, it is not."""
    position: MulticastPosition | None = None
    """The last multicast that it had when it asked."""
    rtt_s: float | None = None


@dataclass(slots=True)
class Group:
    """A node's place in the tree of one group.

    ``path`` leads from the root to this node, both included; empty, the node has no way to the root, takes no child
    (but see `is_gathering`), and its children know. A root that has seen a closer node keeps its path while it joins
    that one.
    """

    id: NodeId
    own: NodeId
    seen: Seen
    """What this node has passed on. What the member here has heard is kept longer: see `Entrusted`."""
    is_wanted: bool = False
    """Whether a plugin of this node is a member, or has created the group."""
    is_root: bool = False
    heir_until: float | None = None
    """While this time has not passed, this node stays in the tree as the heir of a root that leaves."""
    parent: PeerRef | None = None
    path: Path = ()
    children: dict[NodeId, Child] = field(default_factory=dict)
    position: MulticastPosition | None = None
    is_joining: bool = False
    attempts: int = 0
    insists: bool = False
    """Whether its joins are only for nodes that have a path."""
    candidates: list[PeerRef] = field(default_factory=list)
    redirects: int = 0
    heard_at: float = 0.0
    """When the parent last said anything about the group."""
    refreshed_at: float = 0.0
    """When the parent last answered."""
    lost_at: float = 0.0
    """When the path was lost."""
    asked_at: float = float("-inf")
    """When the parent was last asked for lost multicasts."""
    is_asking: bool = False
    """Whether the parent has not answered that yet."""
    asks: int = 0
    """How often the parent was asked in a row, without a pause."""
    promised: MulticastPosition | None = None
    """The parent's last multicast at the previous refresh. If this node has not got it by the next one, it was lost."""

    @property
    def is_attached(self) -> bool:
        """Whether there is a path from a root to this node."""
        return bool(self.path)

    @property
    def is_gathering(self) -> bool:
        """Whether this node has neither parent nor path but is joining, so that joins that pass by may wait here."""
        return self.is_joining and self.parent is None and not self.path

    @property
    def is_needed(self) -> bool:
        """Whether a plugin here or a node below wants the group, or is about to."""
        return self.is_wanted or bool(self.children) or self.heir_until is not None

    def is_child_of(self, peer: PeerRef) -> bool:
        """Whether ``peer`` is this node's parent."""
        return self.parent is not None and self.parent.id == peer.id

    def may_adopt(self, node_id: NodeId) -> bool:
        """Whether a node may be below this one: that makes no loop and no path that is too long."""
        return self.is_attached and node_id not in self.path and len(self.path) < DEPTH_MAX

    def is_loop(self, parent_path: Path) -> bool:
        """Whether being below a parent with this path would make a loop, or a path that is too long."""
        return self.own in parent_path or len(parent_path) >= DEPTH_MAX

    def nearest_children(self) -> list[PeerRef]:
        """Children by round trip as far as it is known, then by id."""
        infinity = float("inf")
        ordered = sorted(
            self.children.values(), key=lambda child: (infinity if child.rtt_s is None else child.rtt_s, child.peer.id)
        )
        return [child.peer for child in ordered]

    def validate(self, children_max: int) -> None:
        """Assert what must hold between any two events."""
        if self.is_root and (self.parent is not None or self.path != (self.own,)):
            raise Bug("a root with a parent or somebody else's path")
        if self.parent is not None and self.parent.id in self.children:
            raise Bug("the parent is a child as well")
        if self.path and self.path[-1] != self.own:
            raise Bug("the path does not end here")
        if len(set(self.path)) != len(self.path) or len(self.path) > DEPTH_MAX:
            raise Bug("the path is a loop or too long")
        if set(self.path[:-1]) & self.children.keys():
            raise Bug("an ancestor is a child")
        if len(self.children) > children_max or self.own in self.children:
            raise Bug("too many children, or the node itself is one")
        if self.parent is None and not self.is_root and not self.is_joining:
            raise Bug("neither root, nor child, nor joining")
        if not self.is_needed:
            raise Bug("nobody here or below wants the group")
