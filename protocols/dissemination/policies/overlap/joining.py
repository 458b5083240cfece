"""Finding a first parent (CoDD figures 3 and 4). Pure.

The newcomer asks each seed; the request goes down along the child of maximal overlap until a node has room, and that
node answers the newcomer itself. Of the offers, the newcomer takes the one with the least overhead; among those that
are about equal, the nearest; then the one with the fewest children; then the highest in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import format_id
from peerd.lib.admission import TokenBucket
from peerd.limits import KIB
from peerd.messages import PeerRef
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.messages import DEPTH_MAX, WANTS_MAX
from protocols.dissemination.policies.overlap.events import OverlapJoined
from protocols.dissemination.policies.overlap.item_bits import from_bits, to_bits
from protocols.dissemination.policies.overlap.messages import AddRequest, AddResult
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import ChildInfo, Interest, TreeAccess
from protocols.dissemination.statistics.received import ItemSet
from protocols.dissemination.tree.allowance import ASK_COST, ASKS_BURST_MAX, PastAllowance, new_looks
from protocols.dissemination.tree.search import Offer, ParentSearch, Question

MOVES_TRIED_MAX: Final = 6
"""Offers, and nodes that those name instead, that are tried before all is asked again."""
ADDS_A_SECOND_MAX: Final = 50.0
"""Newcomers that a node helps on in a second; requests above it are dropped, and asked again by who wants in."""
ADD_WANTS_BYTES_MAX: Final = 40 * KIB
"""Of its interests, a newcomer tells so much while it asks around; who becomes its parent is told all."""
NEAR_SHARE: Final = 0.8
"""One of two equal offers is nearer when its round trip is shorter than this part of the other's."""


class Newcomer:
    """What a node asks and chooses by while it looks for a parent."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, known: Callable[[], ItemSet]) -> None:
        self._tree = tree
        self._settings = settings
        self._known = known
        """What this node has needed, if it was in the tree before."""
        question = Question(
            tree.me.id, self._ask, settings.answer_timeout, tries_max=MOVES_TRIED_MAX, choose=self._choose
        )
        self.search = ParentSearch(tree.move_to, tree.random, question=question)

    def _ask(self, seed: PeerRef) -> None:
        tree, known = self._tree, self._known()
        items = None if known.is_empty or not known.items else to_bits(known)
        tree.send(seed, AddRequest(tree.stream, tree.me, self.search.attempt, seed.id, _some(tree.wants), items))

    def answered(self, peer: PeerRef, message: AddResult) -> None:
        """A node has room, or none was found."""
        offer = Offer(peer, message.missing, message.depth, message.children) if message.is_offer else None
        self.search.answered(message.attempt, message.seed, offer)

    def _choose(self, offers: Sequence[Offer]) -> Offer:
        ties = [(offer, self._rtt_s(offer)) for offer in offers if offer.score <= offers[0].score + self._settings.tie]
        nearest = min(rtt_s for _, rtt_s in ties)
        near = [(offer, rtt_s) for offer, rtt_s in ties if rtt_s * NEAR_SHARE <= nearest]
        return min(near, key=lambda each: (each[0].children, each[0].depth, each[1], each[0].peer.id))[0]

    def _rtt_s(self, offer: Offer) -> float:
        rtt_s = self._tree.rtt_s(offer.peer)
        return float("inf") if rtt_s is None else rtt_s

    def found(self, peer: PeerRef) -> None:
        """The search is over. Nothing to tell where it got on without asking."""
        tree, offers = self._tree, self.search.offers
        if offers:
            missing = next((offer.score for offer in offers if offer.peer.id == peer.id), 0.0)
            duration_s = tree.now() - self.search.asked_at
            stream, parent = format_id(tree.stream), format_id(peer.id)
            told = OverlapJoined(
                stream=stream, parent=parent, offers=len(offers), overhead=missing, duration_s=duration_s
            )
            tree.emit(told)


def _some(wants: Sequence[Interest]) -> tuple[str, ...]:
    """As many interests as fit into a request."""
    told: list[str] = []
    size = 0
    for interest in wants[:WANTS_MAX]:
        size += _size(interest.text)
        if size > ADD_WANTS_BYTES_MAX:
            break
        told.append(interest.text)
    return tuple(told)


def _size(text: str) -> int:
    return len(text.encode()) + 8


class Greeter:
    """What a node does for newcomers: offers a place, or names the child that wants most of the same."""

    def __init__(self, tree: TreeAccess, overlaps: Overlaps) -> None:
        self._tree = tree
        self._overlaps = overlaps
        self._allowance = TokenBucket(ADDS_A_SECOND_MAX, ADDS_A_SECOND_MAX, 0.0)
        self._askers = PastAllowance(ASKS_BURST_MAX)
        """What each newcomer has had this node look at."""

    def asked(self, peer: PeerRef, message: AddRequest) -> None:
        """A newcomer looks for a parent."""
        tree = self._tree
        if message.hops == 0 and message.joiner.id != peer.id:
            raise ProtocolError("bad_joiner", f"{peer} asks for {message.joiner}")
        if sum(map(_size, message.wants)) > ADD_WANTS_BYTES_MAX:  # what this node adds to it would have no room
            raise ProtocolError("too_many_wants", f"a newcomer tells at most {ADD_WANTS_BYTES_MAX} bytes of its wants")
        if message.hops and (tree.parent is None or tree.parent.id != peer.id):
            return
        looks = ASK_COST + new_looks(set(message.wants))
        if message.items is None:
            looks += self._overlaps.looks(len(message.wants))
        now = tree.now()
        if not self._askers.take(message.joiner.id, looks, now) or not self._allowance.take(now):
            return
        try:
            wants = [tree.kind.parse(text) for text in message.wants]
        except InterestError as error:
            raise ProtocolError("bad_interest", str(error)[:256]) from error
        if not message.hops and len(tree.path) == 1:  # seeds are the producer and children of it
            self._overlaps.greet()
        items = self._overlaps.wanted_by(wants) if message.items is None else from_bits(message.items)
        is_below = message.joiner.id in tree.path or message.joiner.id == tree.me.id
        is_member = tree.is_producer or tree.parent is not None
        if is_below or not is_member or message.hops >= DEPTH_MAX:
            self._answer(message, items, is_offer=False)
        elif tree.room():
            self._answer(message, items, is_offer=True)
        elif (child := self._child_for(message, wants, items)) is not None:
            told = message.items if items is None else to_bits(items)
            tree.send(child, replace(message, items=told, hops=message.hops + 1))
        else:
            self._answer(message, items, is_offer=False)

    def _answer(self, message: AddRequest, items: ItemSet | None, *, is_offer: bool) -> None:
        tree = self._tree
        missing = 0.0 if items is None else self._overlaps.missing(items)
        children, depth = min(len(tree.children()), 0xFFFF), min(len(tree.path), DEPTH_MAX)
        told = AddResult(tree.stream, message.attempt, message.seed, is_offer, missing, children, depth)
        tree.send(message.joiner, told)

    def _child_for(self, message: AddRequest, wants: Sequence[Interest], items: ItemSet | None) -> PeerRef | None:
        """The child of maximal overlap. When a newcomer asks again, the next best one: the first led nowhere."""
        ranked = [
            (self._loss(child, wants, items), self._tree.random(), child)
            for child in self._tree.children()
            if child.peer.id != message.joiner.id
        ]
        if not ranked:
            return None
        ranked.sort(key=lambda each: each[:2])
        return ranked[(message.attempt - 1) % len(ranked)][2].peer

    def _loss(self, child: ChildInfo, wants: Sequence[Interest], items: ItemSet | None) -> float:
        if items is not None and items.items:
            return self._overlaps.missing_at(child.peer.id, items)
        return 1 - self._overlaps.structural(wants, child)
