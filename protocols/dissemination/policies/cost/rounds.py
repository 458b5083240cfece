"""All streams of one node that adapt by cost: they share one `HoldStill`, and so do not adapt at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol
from weakref import WeakValueDictionary

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.policies.cost.holding import HoldMessage, HoldRequest, HoldStill, TreeName
from protocols.dissemination.policies.cost.messages import AskToHold, AskToYield, HoldsStill, Yields

HOLD_MAX_S: Final = 20.0
"""A node holds still for so long at most: its parent's token is lost, or its parent."""
WAIT_MAX_S: Final = 15.0
"""A node waits for its children so long at most."""


class Adapting(Protocol):
    """One stream of a node, as its rounds see it."""

    def child_ids(self) -> Sequence[NodeId]: ...
    def adapt(self) -> None: ...
    def pass_token(self, child: NodeId) -> None: ...
    def tell(self, node: NodeId, message: Message) -> None:
        """Send to a child or to the parent; nothing happens when it is neither (any more)."""


class NodeRounds:
    """One node's rounds. Implements `protocols.dissemination.policies.cost.holding.Actions`."""

    def __init__(self, me: NodeId) -> None:
        self._streams: WeakValueDictionary[TreeName, Adapting] = WeakValueDictionary()
        self.hold = HoldStill(me, self)
        self._held_since: tuple[HoldRequest, float] | None = None
        self._waits_since: dict[TreeName, float] = {}

    def add(self, tree: TreeName, stream: Adapting) -> None:
        """A stream of this node."""
        self._streams[tree] = stream

    # What holding still does

    def children(self, tree: TreeName) -> Sequence[NodeId]:
        """See `Actions`."""
        stream = self._streams.get(tree)
        return () if stream is None else stream.child_ids()

    def adapt(self, tree: TreeName) -> None:
        """See `Actions`."""
        stream = self._streams.get(tree)
        if stream is not None:
            stream.adapt()

    def pass_token(self, child: NodeId, tree: TreeName) -> None:
        """See `Actions`."""
        stream = self._streams.get(tree)
        if stream is not None:
            stream.pass_token(child)

    def tell(self, node: NodeId, message: HoldMessage) -> None:
        """See `Actions`."""
        stream = self._streams.get(message.stream)
        if stream is not None:
            stream.tell(node, message)

    # Messages

    def received(self, peer: PeerRef, message: Message, tree: TreeName, parent: NodeId | None) -> None:
        """One of the four messages of holding still; from somebody who is not a relative: ignored."""
        is_parent, is_child = peer.id == parent, peer.id in self.children(tree)
        match message:
            case AskToHold() if is_parent:
                self.hold.requested(HoldRequest(peer.id, tree))
            case Yields() if is_parent:
                self.hold.yielded(peer.id, tree)
            case HoldsStill() if is_child:
                self.hold.child_held(peer.id, tree)
            case AskToYield() if is_child:
                self.hold.asked_to_yield(peer.id, tree)

    def parent_gone(self, parent: NodeId, tree: TreeName) -> None:
        """This node has another parent in a tree, or none: what it did for the old one is over."""
        gone = HoldRequest(parent, tree)
        if gone in self.hold.requests:
            self.hold.requests.remove(gone)
        if self.hold.held == gone:
            self.hold.expire()

    def tick(self, now: float) -> None:
        """Give up what takes too long: tokens get lost with the nodes that have them."""
        held = self.hold.held
        if held is None:
            self._held_since = None
        elif self._held_since is None or self._held_since[0] != held:
            self._held_since = (held, now)
        elif now - self._held_since[1] >= HOLD_MAX_S:
            self._held_since = None
            self.hold.expire()
        waiting = {each.tree for each in self.hold.rounds}
        self._waits_since = {tree: self._waits_since.get(tree, now) for tree in sorted(waiting)}
        for tree, since in self._waits_since.items():
            if now - since >= WAIT_MAX_S:
                self.hold.abandon(tree)
