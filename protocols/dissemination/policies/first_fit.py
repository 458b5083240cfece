"""The simplest policy: a newcomer asks a seed, and goes down at random until somebody has room. Nothing moves later.

It is the "random tree" that the other policies are compared with, and the one to take where all members want nearly the
same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.ports import TreeAccess, TreePolicy
from protocols.dissemination.tree.search import ParentSearch

NO_SETTINGS: Final = "the policy first_fit has no settings"


class FirstFit(TreePolicy):
    """See `protocols.dissemination.ports.TreePolicy`."""

    def __init__(self, tree: TreeAccess) -> None:
        self._tree = tree
        self.search = ParentSearch(tree.move_to, tree.random)

    def received(self, peer: PeerRef, message: Message) -> None:
        raise ProtocolError("unknown_policy_message", f"first_fit has no {type(message).__name__}")

    def successor(self) -> NodeId | None:
        """The child that has been here for longest."""
        children = self._tree.children()
        return min(children, key=lambda child: (child.since_s, child.peer.id)).peer.id if children else None


class FirstFitFactory:
    """Implements `protocols.dissemination.ports.PolicyFactory`."""

    name = "first_fit"
    messages: Sequence[type[Message]] = ()
    events: Sequence[type[Event]] = ()

    def settings(self, given: Mapping[str, Any]) -> None:
        if given:
            raise ValueError(f"{NO_SETTINGS}, and {', '.join(sorted(given))} was given")

    def make(self, tree: TreeAccess, settings: Any) -> TreePolicy:
        return FirstFit(tree)
