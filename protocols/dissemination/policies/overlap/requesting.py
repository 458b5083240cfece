"""When a node asks to have a child moved, and which (CoDD section 4), and what came of it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.messages import DEPTH_MAX
from protocols.dissemination.policies.overlap.events import ReorganisationAsked
from protocols.dissemination.policies.overlap.item_bits import from_bits, to_bits
from protocols.dissemination.policies.overlap.messages import MoveOutcome, Reorganise
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess
from protocols.dissemination.statistics.received import ItemSet

IN_VAIN_MAX: Final = 32
"""Children that were asked to be moved and stayed: others are asked for first."""
MEASURED_MAX: Final = 16
"""Children that went after a request, and whose effect is being measured."""
GOES_WITHIN_S: Final = 60.0
"""A child that goes later than this went for another reason."""
PASSED_ON_EVERY_S: Final = 0.05
"""Requests of others are passed on up the tree with such a pause between them at least, in the mean."""
PASSED_ON_BURST: Final = 64


@dataclass(frozen=True, slots=True)
class _Asked:
    at_s: float
    vain_rate: float


@dataclass(frozen=True, slots=True)
class _Measured:
    child: NodeId
    before: float
    from_number: int


class Requester:
    """One node's requests, and those from below that it passes on."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._had = 0
        self._own = 0
        self._from_number = 0
        """The stream's item from which on these are counted."""
        self._asked: OrderedDict[NodeId, _Asked] = OrderedDict()
        """Children that were asked to be moved, newest last."""
        self._measured: list[_Measured] = []
        self._allowance = float(PASSED_ON_BURST)
        self._at_s = 0.0

    def passed(self, is_own: bool) -> None:
        """An item has come."""
        self._had += 1
        self._own += is_own

    def tick(self) -> None:
        """Ask, when it is time."""
        if self._tree.is_producer:
            return
        self._measure()
        if self._had < self._settings.request_items:
            return
        received = self._overlaps.received
        span = max(1, received.through - self._from_number)
        spurious, rate = 1 - self._own / self._had, (self._had - self._own) / span
        self._had = self._own = 0
        self._from_number = received.through
        if self._settings.reorganise and spurious > self._settings.threshold and self._tree.parent is not None:
            self._ask(spurious, min(1.0, max(0.0, rate)))

    def _ask(self, spurious: float, rate: float) -> None:
        """Ask for the children with the least overlap: those that cost this node most."""
        tree, now = self._tree, self._tree.now()
        found: list[tuple[float, PeerRef, ItemSet]] = []
        for child in tree.children():
            sent = self._overlaps.received.sent_to(child.peer.id)
            if sent is None or child.peer.id in self._asked:
                continue
            items = self._overlaps.settled(sent, now)
            if items.items and (cost := self._overlaps.shared(items, child.peer.id)) > 0:
                found.append((cost, child.peer, items))
        if not found:
            self._asked.clear()  # all were asked for in vain; next time from the beginning
        found.sort(key=lambda each: (-each[0], each[1].id))
        for cost, peer, items in found[: self._settings.children]:
            self._asked[peer.id] = _Asked(now, rate)
            if len(self._asked) > IN_VAIN_MAX:
                self._asked.popitem(last=False)
            rest = items.minus(self._overlaps.received.needed(peer.id).items)
            stream, mover = format_id(tree.stream), format_id(peer.id)
            tree.emit(ReorganisationAsked(stream=stream, child=mover, spurious_share=spurious, predicted=rest.share))
            self._pass_on(Reorganise(tree.stream, peer, to_bits(items), to_bits(rest), spurious, cost, (), ()), rest)

    def child_went(self, child: NodeId) -> None:
        """A child is gone: because it was asked to, perhaps."""
        asked = self._asked.pop(child, None)
        if asked is not None and self._tree.now() - asked.at_s <= GOES_WITHIN_S and len(self._measured) < MEASURED_MAX:
            self._measured.append(_Measured(child, asked.vain_rate, self._overlaps.received.through))

    def _measure(self) -> None:
        received = self._overlaps.received
        for each in list(self._measured):
            span = received.through - each.from_number
            if span < 0:
                self._measured.remove(each)  # the producer has begun again
            elif span >= self._settings.request_items:
                self._measured.remove(each)
                window = received.had.range_cardinality(each.from_number + 1, received.through + 1)
                window -= received.own.range_cardinality(each.from_number + 1, received.through + 1)
                since = min(1.0, max(0.0, window / span))
                self._tree.send(self._tree.producer, MoveOutcome(self._tree.stream, each.child, each.before, since))

    # Requests of those below

    def from_below(self, peer: PeerRef, message: Reorganise) -> Reorganise | None:
        """A request on its way up. Returns it, with what this node adds, at the producer only."""
        if len(message.path) != len(message.costs) or not message.path or message.path[-1] != peer.id:
            raise ProtocolError("bad_request", f"{peer} passes on a request that did not come through it")
        items, rest = from_bits(message.items), from_bits(message.rest)
        if (items.epoch, items.since, items.through, items.every) != (rest.epoch, rest.since, rest.through, rest.every):
            raise ProtocolError("bad_request", f"{peer} tells of two sets of items that do not belong together")
        if all(child.peer.id != peer.id for child in self._tree.children()) or not self._may_pass_on():
            return None
        if self._tree.is_producer:
            return message
        if len(message.path) < DEPTH_MAX - 1:
            self._pass_on(message, rest.minus(self._overlaps.received.needed(peer.id).items))
        return None

    def _may_pass_on(self) -> bool:
        now = self._tree.now()
        self._allowance = min(PASSED_ON_BURST, self._allowance + (now - self._at_s) / PASSED_ON_EVERY_S)
        self._at_s = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _pass_on(self, message: Reorganise, rest: ItemSet) -> None:
        """To the parent, with what the mover costs this node."""
        parent = self._tree.parent
        if parent is not None:
            path, costs = (*message.path, self._tree.me.id), (*message.costs, rest.share)
            self._tree.send(parent, replace(message, rest=to_bits(rest), path=path, costs=costs))
