"""When a node asks to have a child moved, and which (CoDD section 4), and what came of it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace
from pyroaring import BitMap64

from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.lib.admission import TokenBucket
from peerd.messages import PeerRef
from protocols.dissemination.messages import DEPTH_MAX
from protocols.dissemination.policies.overlap.events import ReorganisationAsked
from protocols.dissemination.policies.overlap.granting import Granter
from protocols.dissemination.policies.overlap.item_bits import from_bits, to_bits
from protocols.dissemination.policies.overlap.messages import Reorganise
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess
from protocols.dissemination.statistics.changes import since_change
from protocols.dissemination.statistics.received import ItemSet

IN_VAIN_MAX: Final = 32
"""Children that were asked to be moved and stayed: others are asked for first."""
ASKED_AGAIN: Final = 1.25
"""Such a child is asked for again at once when it costs so many times what it did then."""
PASSED_ON_EVERY_S: Final = 0.05
"""Requests of others are passed on up the tree with such a pause between them at least, in the mean."""
PASSED_ON_BURST: Final = 64


class MoveRequester:
    """One node's requests, and those from below that it passes on."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps, granter: Granter) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._granter = granter
        self._had = 0
        self._own = 0
        self._asked: OrderedDict[NodeId, float] = OrderedDict()
        """What children cost when they were asked to be moved, newest last."""
        self._allowance = TokenBucket(1 / PASSED_ON_EVERY_S, PASSED_ON_BURST, 0.0)

    def passed(self, is_own: bool) -> None:
        """An item has come."""
        self._had += 1
        self._own += is_own

    def tick(self) -> None:
        """Ask, when it is time."""
        if self._tree.is_producer:
            return
        if self._had < self._settings.request_items:
            return
        spurious = 1 - self._own / self._had
        self._had = self._own = 0
        if self._settings.reorganise and spurious > self._settings.threshold and self._tree.parent is not None:
            self._ask(spurious)

    def _ask(self, spurious: float) -> None:
        """Ask for the children with the least overlap: those that cost this node most."""
        tree, now = self._tree, self._tree.now()
        found: list[tuple[float, PeerRef, ItemSet]] = []
        for child in tree.children():
            items = self._deciding(child.peer.id, now)
            cost = self._overlaps.shared(items, child.peer.id) if items.items else 0.0
            if cost > ASKED_AGAIN * self._asked.get(child.peer.id, 0.0):
                found.append((cost, child.peer, items))
        if not found:
            self._asked.clear()  # all were asked for in vain; next time from the beginning
        found.sort(key=lambda each: (-each[0], each[1].id))
        for cost, peer, items in found[: self._settings.children]:
            self._asked[peer.id] = cost
            if len(self._asked) > IN_VAIN_MAX:
                self._asked.popitem(last=False)
            rest = items.minus(self._overlaps.received.needed(peer.id).items)
            stream, mover = format_id(tree.stream), format_id(peer.id)
            tree.emit(ReorganisationAsked(stream=stream, child=mover, spurious_share=spurious, predicted=rest.share))
            self._see_to(Reorganise(tree.stream, peer, to_bits(items), to_bits(rest), spurious, cost, (), ()), rest)

    def _deciding(self, child: NodeId, now: float) -> ItemSet:
        """Which of the newest items went to a child, since what it costs this node has last changed."""
        received = self._overlaps.received
        sent = received.sent_to(child)
        if sent is None:
            return ItemSet(received.epoch, received.watermark, received.watermark, BitMap64())
        return since_change(self._overlaps.settled(sent, now), received.needed(child).items)

    def child_went(self, child: NodeId) -> None:
        """A child is gone: because it was asked to, perhaps."""
        self._asked.pop(child, None)

    # Requests of those below

    def from_below(self, peer: PeerRef, message: Reorganise) -> None:
        """A request on its way up."""
        if len(message.path) != len(message.costs) or not message.path or message.path[-1] != peer.id:
            raise ProtocolError("bad_request", f"{peer} passes on a request that did not come through it")
        if all(child.peer.id != peer.id for child in self._tree.children()) or not self.may_pass_on():
            return
        items, rest = from_bits(message.items), from_bits(message.rest)
        if (items.epoch, items.since, items.watermark, items.every) != (
            rest.epoch,
            rest.since,
            rest.watermark,
            rest.every,
        ):
            raise ProtocolError("bad_request", f"{peer} tells of two sets of items that do not belong together")
        if len(message.path) < DEPTH_MAX - 1:
            if self._tree.is_producer:  # it needs every item in any case
                rest = rest.minus(rest.items)
            self._see_to(message, rest.minus(self._overlaps.received.needed(peer.id).items))

    def may_pass_on(self) -> bool:
        """Whether something of others may be passed on now: what others can make this node send has a limit."""
        return self._allowance.take(self._tree.now())

    def _see_to(self, message: Reorganise, rest: ItemSet) -> None:
        """Write down what the mover costs this node; then grant the move, or pass it on."""
        path, costs = (*message.path, self._tree.me.id), (*message.costs, rest.share)
        told = replace(message, rest=to_bits(rest), path=path, costs=costs)
        if not self._granter.takes(told):
            self.pass_on([told])

    def pass_on(self, messages: Sequence[Reorganise]) -> None:
        """To the parent."""
        for message in messages:
            if self._tree.parent is not None:
                self._tree.send(self._tree.parent, message)
