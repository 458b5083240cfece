"""CoDD's policies at one node of one stream: implements `protocols.dissemination.ports.TreePolicy`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.models import PastMove, PlannedMove
from protocols.dissemination.policies.overlap.events import EVENTS
from protocols.dissemination.policies.overlap.granting import Granter
from protocols.dissemination.policies.overlap.item_bits import from_bits, newest, to_bits
from protocols.dissemination.policies.overlap.joining import Greeter, ParentFinder
from protocols.dissemination.policies.overlap.lifting import Lifter
from protocols.dissemination.policies.overlap.messages import (
    CHILDREN_TOLD_MAX,
    MESSAGES,
    AddRequest,
    AddResult,
    ChildHistory,
    ChildPlace,
    GetOverhead,
    MoveOrder,
    MoveOutcome,
    MoveReport,
    MoveToGrandparent,
    OverheadAnswer,
    Reorganise,
    RoomAbove,
)
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.requesting import MoveRequester
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import ParsedItem, TreeAccess
from protocols.dissemination.statistics.received import ItemSet
from protocols.dissemination.stream import what_is_wrong

HISTORY_EVERY_S: Final = 1.0
"""A node tells its parent what it has needed at most so often."""
HISTORY_TAKEN_S: Final = 0.5
"""A parent takes it from a child at most so often."""
OUTCOME_ITEMS: Final = 50
"""What came of a move is judged by so many items of the stream at least: fewer say next to nothing."""
MOVED: Final = "moved"


@dataclass(frozen=True, slots=True)
class _Moved:
    """A move that this node was ordered to make, and has made."""

    order: int
    left: PeerRef
    number: int
    """The stream's newest item at that time."""


class OverlapPolicy:
    """See `protocols.dissemination.ports.TreePolicy`."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings) -> None:
        is_seed = tree.is_producer or any(seed.id == tree.me.id for seed in tree.seeds)
        self._tree = tree
        self._settings = settings
        self.overlaps = Overlaps(tree.kind, settings.window, settings.compared, settings.young, is_seed=is_seed)
        self._joiner = ParentFinder(tree, settings, self.overlaps.received.needed)
        self._greeter = Greeter(tree, self.overlaps)
        self._requester = MoveRequester(tree, settings, self.overlaps)
        self._granter = Granter(tree, settings, self.overlaps, self._places)
        self._lifter = Lifter(tree, settings, self.overlaps)
        self._order: MoveOrder | None = None
        self._left = tree.me
        """The parent that the order says to leave."""
        self._moved: _Moved | None = None
        self._is_history_due = False
        self._history_at = float("-inf")
        self._taken_at: dict[NodeId, float] = {}
        for child in tree.children():
            self.child_came(child.peer.id)

    # The tree

    def look_for_parent(self) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self._joiner.begin()

    def passed(self, item: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self.overlaps.passed(item, is_own, children)
        self._requester.passed(is_own)
        if self._tree.is_producer:
            self._granter.clock_ms = item.item.published_ms

    def move_ended(self, peer: PeerRef, end: str, why: int | None, others: Sequence[PeerRef]) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        order, is_done = self._order, end == MOVED
        if order is not None and order.to_parent.id == peer.id:
            self._order = None
            self._report(order, is_done=is_done)
            if is_done:
                self._moved = _Moved(order.number, self._left, self.overlaps.received.through)
        self._joiner.move_ended(peer, is_done, others)
        self._lifter.move_ended(peer, is_done)
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
        self._lifter.child_went(child)
        self.overlaps.received.child_went(child)
        self._taken_at.pop(child, None)
        self._is_history_due = True

    def tick(self) -> None:
        """See `protocols.dissemination.ports.TreePolicy`."""
        self.overlaps.tick(self._tree.now())
        self._joiner.tick()
        self._requester.tick()
        if self._tree.is_producer:
            self._granter.tick()
        self._lifter.tick()
        self._tell_history()
        self._tell_outcome()

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
                self._joiner.answered(peer, message)
            case Reorganise():
                asked = self._requester.from_below(peer, message)
                if asked is not None:
                    self._granter.requested(asked)
            case ChildHistory():
                self._child_told(peer, message)
            case GetOverhead() | MoveOrder():
                self._from_producer(peer, message)
            case RoomAbove():
                self._lifter.offered(peer)
            case MoveToGrandparent():
                if self._order is None and not self._joiner.is_busy:
                    self._lifter.ordered(peer, message.to_parent)
            case MoveOutcome():
                self._outcome(peer, message)
            case OverheadAnswer() | MoveReport():
                self._to_producer(peer, message)
            case _:
                raise Bug(f"{type(message).__name__} is no message of this policy")

    def _from_producer(self, peer: PeerRef, message: GetOverhead | MoveOrder) -> None:
        tree = self._tree
        if peer.id != tree.producer.id:
            return  # the stream may have been handed over, and this node has still to hear of that
        if isinstance(message, GetOverhead):
            items = from_bits(message.items)
            has_room = tree.has_room() and tree.parent is not None
            places = tuple(self._places(items))
            missing, shared = self.overlaps.missing(items), self.overlaps.shared(items)
            tree.send(peer, OverheadAnswer(tree.stream, message.search, missing, shared, has_room, places))
            return
        left = tree.parent
        if (
            left is None
            or left.id != message.from_parent
            or self._order is not None
            or self._joiner.is_busy
            or not tree.move_to(message.to_parent)
        ):
            self._report(message, is_done=False)
        else:
            self._order, self._left = message, left

    def _report(self, order: MoveOrder, *, is_done: bool) -> None:
        self._tree.send(self._tree.producer, MoveReport(self._tree.stream, order.number, is_done))

    def _to_producer(self, peer: PeerRef, message: OverheadAnswer | MoveReport) -> None:
        if not self._tree.is_producer:
            return  # it may have been the producer when it asked
        match message:
            case OverheadAnswer():
                self._granter.answered(peer, message)
            case MoveReport():
                self._granter.reported(peer, message)

    # What came of a move

    def _tell_outcome(self) -> None:
        """Some items after a move: what this node has needed since, for its old parent and its new one to judge."""
        moved, tree, received = self._moved, self._tree, self.overlaps.received
        enough = max(OUTCOME_ITEMS, self._settings.request_items)
        if moved is None or tree.parent is None or 0 <= received.through - moved.number < enough:
            return
        self._moved = None
        items = received.needed().within(moved.number, received.through)
        if not items.is_empty:
            told = MoveOutcome(tree.stream, moved.order, tree.me.id, to_bits(items))
            for peer in (moved.left, tree.parent):
                tree.send(peer, told)

    def _outcome(self, peer: PeerRef, message: MoveOutcome) -> None:
        tree = self._tree
        if message.items is None:
            if tree.is_producer:  # or else it was, when the move was made
                self._granter.measured(peer.id, message)
        elif peer.id != message.mover:
            raise ProtocolError("bad_outcome", f"{peer} tells what {message.mover:032x} has needed")
        elif tree.is_producer:  # it needs every item, so nothing costs it anything
            self._granter.measured(tree.me.id, replace(message, items=None, cost=0.0))
        elif self._requester.may_pass_on():
            cost = self.overlaps.shared(from_bits(message.items), message.mover)
            tree.send(tree.producer, replace(message, items=None, cost=cost))

    # Statistics that follow the moves

    def _places(self, items: ItemSet) -> list[ChildPlace]:
        children = self._tree.children()[:CHILDREN_TOLD_MAX]
        return [ChildPlace(each.peer, self.overlaps.missing_at(each.peer.id, items)) for each in children]

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
