"""CoDD's policies at one node of one stream: implements `protocols.dissemination.ports.TreePolicy`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace
from pydantic import ValidationError

from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.models import PastMove, PlannedMove
from protocols.dissemination.policies.orders import TakenOrder
from protocols.dissemination.policies.overlap.events import EVENTS
from protocols.dissemination.policies.overlap.granting import Granter
from protocols.dissemination.policies.overlap.item_bits import from_bits, newest, to_bits
from protocols.dissemination.policies.overlap.joining import Greeter, Newcomer
from protocols.dissemination.policies.overlap.lifting import Lifter
from protocols.dissemination.policies.overlap.messages import (
    MESSAGES,
    AddRequest,
    AddResult,
    ChildHistory,
    GetOverhead,
    MoveOrder,
    MoveOutcome,
    MoveReport,
    MoveToGrandparent,
    OverheadAnswer,
    Reorganise,
    RoomAbove,
)
from protocols.dissemination.policies.overlap.moving import OrderedMover
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.requesting import MoveRequester
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import ParsedItem, TreeAccess, TreePolicy
from protocols.dissemination.stream import what_is_wrong
from protocols.dissemination.tree.search import MoveEnd

HISTORY_EVERY_S: Final = 1.0
"""A node tells its parent what it has needed at most so often."""
HISTORY_TAKEN_S: Final = 0.5
"""A parent takes it from a child at most so often."""


class OverlapPolicy(TreePolicy):
    """See `protocols.dissemination.ports.TreePolicy`."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings) -> None:
        self._tree = tree
        self._settings = settings
        limits = settings.window, settings.compared, settings.young
        self.overlaps = Overlaps(tree.kind, *limits, is_producer=tree.is_producer)
        self._newcomer = Newcomer(tree, settings, self.overlaps.received.needed)
        self.search = self._newcomer.search
        self._greeter = Greeter(tree, self.overlaps)
        self._granter = Granter(tree, settings, self.overlaps)
        self._requester = MoveRequester(tree, settings, self.overlaps, self._granter)
        self._taken = TakenOrder(tree)
        self._lifter = Lifter(tree, settings, self.overlaps, self._taken)
        self._mover = OrderedMover(tree, settings, self.overlaps, self._taken)
        self._is_history_due = False
        self._history_at = float("-inf")
        self._taken_at: dict[NodeId, float] = {}
        for child in tree.children():
            self.child_came(child.peer.id)

    # The tree

    def passed(self, item: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self.overlaps.passed(item, is_own, children)
        self._requester.passed(is_own)
        self._granter.clock_ms = item.item.published_ms

    def move_ended(self, peer: PeerRef, end: str, why: int | None, others: Sequence[PeerRef]) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        is_done = end == MoveEnd.MOVED.value
        self._taken.ended(peer, is_moved=is_done)
        if self.search.ended(peer, MoveEnd(end), others) and is_done:
            self._newcomer.found(peer)
        if is_done:
            self._is_history_due = True
            self._history_at = float("-inf")

    def child_came(self, child: NodeId) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self.overlaps.received.child_came(child)
        self._lifter.child_came(child)
        if self._lifter.children == 1:
            self._is_history_due = True

    def child_went(self, child: NodeId) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self._requester.child_went(child)
        self._requester.pass_on(self._granter.swept(self._granter.sweeper.child_went(child)))
        self._lifter.child_went(child)
        self.overlaps.received.child_went(child)
        self._taken_at.pop(child, None)
        self._is_history_due = True

    def tick(self) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self.overlaps.tick(self._tree.now())
        super().tick()
        self._requester.tick()
        self._requester.pass_on(self._granter.tick())
        self._taken.tick()
        self._mover.tick()
        self._lifter.tick()
        self._tell_history()

    def successor(self) -> NodeId | None:
        """The child of maximal overlap with this node (figure 5)."""
        own = self.overlaps.received.own

        def overlap(child: NodeId) -> int:
            sent = self.overlaps.received.sent_to(child)
            return 0 if sent is None else sent.items.intersection_cardinality(own)

        children = [child.peer.id for child in self._tree.children()]
        return max(children, key=lambda child: (overlap(child), child), default=None)

    def plan(self) -> Sequence[PlannedMove]:
        """See `protocols.dissemination.ports.TreePolicy`."""
        return self._granter.plan()

    def history(self) -> Sequence[PastMove]:
        """See `protocols.dissemination.ports.TreePolicy`."""
        return self._granter.history()

    def figures(self) -> Mapping[str, float]:
        """See `protocols.dissemination.ports.TreePolicy`."""
        received = self.overlaps.received
        share = 0.0 if self._tree.is_producer else received.spurious_share(received.window)
        return {"spurious_share": share, "window_items": float(len(received.had))}

    # Messages

    def received(self, peer: PeerRef, message: Message) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        match message:
            case AddRequest():
                self._greeter.asked(peer, message)
            case AddResult():
                self._newcomer.answered(peer, message)
            case Reorganise():
                self._requester.from_below(peer, message)
            case ChildHistory():
                self._child_told(peer, message)
            case GetOverhead():
                self._granter.sweeper.asked(peer, message)
            case OverheadAnswer():
                self._requester.pass_on(self._granter.swept(self._granter.sweeper.answered(peer, message)))
            case MoveOrder():
                self._mover.ordered(peer, message, is_busy=self.search.is_active)
            case MoveReport():
                self._granter.reported(peer, message)
            case RoomAbove():
                self._lifter.offered(peer)
            case MoveToGrandparent():
                if not self._taken.is_busy and not self.search.is_active:
                    self._lifter.ordered(peer, message.to_parent)
            case MoveOutcome():
                self._outcome(peer, message)
            case _:
                raise Bug(f"{type(message).__name__} is no message of this policy")

    def _outcome(self, peer: PeerRef, message: MoveOutcome) -> None:
        """What came of a move: a parent of the mover judges that for the granter, which is above it or is itself."""
        tree, granter = self._tree, message.granter
        if message.items is None:
            self._granter.measured(peer.id, message)
        elif peer.id != message.mover:
            raise ProtocolError("bad_outcome", f"{peer} tells what {message.mover:032x} has needed")
        elif self._requester.may_pass_on():
            cost = 0.0 if tree.is_producer else self.overlaps.shared(from_bits(message.items), message.mover)
            told = replace(message, items=None, cost=cost)
            if granter.id == tree.me.id:
                self._granter.measured(tree.me.id, told)
            elif granter.id in tree.path:
                tree.send(granter, told)

    # Statistics that follow the moves

    def _child_told(self, peer: PeerRef, message: ChildHistory) -> None:
        now = self._tree.now()
        is_child = any(child.peer.id == peer.id for child in self._tree.children())
        if not is_child or now - self._taken_at.get(peer.id, float("-inf")) < HISTORY_TAKEN_S:
            return
        self._taken_at[peer.id] = now
        self._lifter.child_told(peer.id, message.children)
        if self.overlaps.received.child_told(peer.id, from_bits(message.needed)):
            self._is_history_due = True

    def _tell_history(self) -> None:
        tree, now = self._tree, self._tree.now()
        if not self._is_history_due or tree.parent is None or now - self._history_at < HISTORY_EVERY_S:
            return
        self._history_at = now
        needed = newest(self.overlaps.received.needed())
        if not needed.is_empty:
            self._is_history_due = False
            told = ChildHistory(tree.stream, to_bits(needed), self._lifter.children)
            tree.send(tree.parent, told)


class OverlapFactory:
    """Makes CoDD's policies: see `protocols.dissemination.ports.PolicyFactory`."""

    name: str = "overlap"
    messages: Sequence[type[Message]] = MESSAGES
    events: Sequence[type[Event]] = EVENTS

    def settings(self, given: Mapping[str, Any]) -> OverlapSettings:
        """See `protocols.dissemination.ports.PolicyFactory`."""
        try:
            return OverlapSettings.model_validate(dict(given))
        except ValidationError as error:
            raise ValueError(what_is_wrong(error, OverlapSettings)) from error

    def make(self, tree: TreeAccess, settings: Any) -> OverlapPolicy:
        """See `protocols.dissemination.ports.PolicyFactory`."""
        return OverlapPolicy(tree, settings)
