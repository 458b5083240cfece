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
    """It has been told that it is a child: it waits while this node has no path itself."""
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
    """What it has passed on. What the member here has heard outlives this part: see `Entrusted`."""
    is_wanted: bool = False
    """A plugin of this node is a member, or has created the group."""
    is_root: bool = False
    heir_until: float | None = None
    """Until then this node stays in the tree for a root that leaves, and will be the root."""
    parent: PeerRef | None = None
    path: Path = ()
    children: dict[NodeId, Child] = field(default_factory=dict)
    position: MulticastPosition | None = None
    is_joining: bool = False
    attempts: int = 0
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
    """It has not answered yet."""
    asks: int = 0
    """How often it was asked in a row, without a pause between."""
    promised: MulticastPosition | None = None
    """Where the parent was at the refresh before: behind it by the next one, something was lost."""

    @property
    def is_attached(self) -> bool:
        """There is a path from a root to this node."""
        return bool(self.path)

    @property
    def is_gathering(self) -> bool:
        """Without parent and path, but on its way: joins that pass by may wait here."""
        return self.is_joining and self.parent is None and not self.path

    @property
    def is_needed(self) -> bool:
        """Somebody here or below wants the group, or somebody is about to."""
        return self.is_wanted or bool(self.children) or self.heir_until is not None

    def is_child_of(self, peer: PeerRef) -> bool:
        """Whether ``peer`` is this node's parent."""
        return self.parent is not None and self.parent.id == peer.id

    def may_adopt(self, node_id: NodeId) -> bool:
        """Whether a node may hang below this one: that makes no loop and no too long path."""
        return self.is_attached and node_id not in self.path and len(self.path) < DEPTH_MAX

    def is_loop(self, parent_path: Path) -> bool:
        """Whether hanging below such a path would make a loop, or a too long path."""
        return self.own in parent_path or len(parent_path) >= DEPTH_MAX

    def nearest_children(self) -> list[PeerRef]:
        """Children by round trip as far as it is known, then by id."""
        infinity = float("inf")
        ordered = sorted(
            self.children.values(),
            key=lambda child: (infinity if child.rtt_s is None else child.rtt_s, child.peer.id),
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
