"""Looking for a parent: the one search that orphans, newcomers and all policies have. Pure.

It tries one node after the other, and goes down where there is no room. Where a policy has a `Question`, candidates are
asked first, down along what is best so far, and those that have room are tried in the order of their scores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef

TRIES_MAX: Final = 64
"""Nodes that one search tries."""
SEEDS_ASKED_MAX: Final = 8
"""Nodes that a question goes to at first."""


class MoveEnd(Enum):
    """How an attempt to get a parent ended."""

    MOVED = "moved"
    DECLINED = "declined"
    CIRCLE = "circle"
    """The new parent is below this node, or it cannot be known whether it is."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Offer:
    """A node has room. The least ``score`` is the best; of equal ones, the highest in the tree."""

    peer: PeerRef
    score: float
    depth: int = 0
    children: int = 0


def first(offers: Sequence[Offer]) -> Offer:
    """The one with the best score."""
    return offers[0]


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy asks before anybody is tried; the policy gives the answers to `ParentSearch.answered`.

    Who does not answer is not waited for longer than ``answer_s``. ``choose``: which of the offers, the best first, is
    tried before the others.
    """

    me: NodeId
    ask: Callable[[PeerRef], None]
    answer_s: float
    asked_max: int = SEEDS_ASKED_MAX
    tries_max: int = TRIES_MAX
    choose: Callable[[Sequence[Offer]], Offer] = first


class ParentSearch:
    """``move_to`` begins a try; whoever makes this calls `ended` when the try is over.

    ``draw``: nodes that are named by one that has no room come next, in random order. After a `Question` they come
    last: the offers are better.
    """

    def __init__(
        self,
        move_to: Callable[[PeerRef], bool],
        draw: Callable[[], float],
        tries_max: int = TRIES_MAX,
        question: Question | None = None,
    ) -> None:
        self._move_to = move_to
        self._tries_max = tries_max
        self._draw = draw
        self._question = question
        self._queue: deque[PeerRef] = deque()
        self._tried: set[NodeId] = set()
        self._asked: set[NodeId] = set()
        self._open: set[NodeId] = set()
        """Those that have not answered."""
        self._on_over: Callable[[bool], None] | None = None
        self.offers: list[Offer] = []
        """What has come of the question."""
        self.attempt = 0
        """The number of the question, of which one search asks several."""
        self.asked_at = 0.0
        self.current: PeerRef | None = None
        """Who is tried now."""

    @property
    def is_active(self) -> bool:
        """Whether it has begun and is not over."""
        return self._on_over is not None

    def begin(self, candidates: Iterable[PeerRef], on_over: Callable[[bool], None] = lambda is_found: None) -> None:
        """Try these in their order, without a question. A search that was under way is forgotten.

        ``on_over(is_found)`` is called once.
        """
        self._begin(on_over)
        self._queue.extend(candidates)
        self._next()

    def look(self, seeds: Sequence[PeerRef], producer: PeerRef, now: float) -> None:
        """Begin at the seeds: with the question, if there is one. Nothing happens while a search is under way."""
        if self.is_active:
            return
        if (question := self._question) is None:
            self.begin([*self._shuffled(seeds), producer])
            return
        self._begin(lambda is_found: None)
        self.attempt += 1
        self.asked_at = now
        self._asked.add(question.me)
        self._ask(question, (seeds or [producer])[:SEEDS_ASKED_MAX])
        self._try_offers(question)

    def prefer(self, peer: PeerRef) -> None:
        """Try this node next, in a search that is under way."""
        self._queue.appendleft(peer)
        self._tried.discard(peer.id)

    def stop(self) -> None:
        """Forget what was begun; ``on_over`` is not called."""
        self._on_over = self.current = None
        self._open.clear()

    def _begin(self, on_over: Callable[[bool], None]) -> None:
        self._queue, self._tried, self._asked, self.offers = deque(), set(), set(), []
        self.stop()
        self._on_over = on_over

    # The question

    def _ask(self, question: Question, peers: Sequence[PeerRef]) -> None:
        for peer in peers:
            if peer.id not in self._asked and len(self._asked) <= question.asked_max:  # this node is one of them
                self._asked.add(peer.id)
                self._open.add(peer.id)
                question.ask(peer)

    def answered(self, attempt: int, asked: NodeId, offer: Offer | None, below: Sequence[PeerRef] = ()) -> None:
        """Who was asked has answered: with an offer, or that there is no room. ``below``: others to ask.

        Those are asked unless a better offer is known: down along the best branch.
        """
        question = self._question
        if question is None or attempt != self.attempt or asked not in self._open:
            return
        self._open.discard(asked)
        if offer is None or all(offer.score <= other.score for other in self.offers):
            self._ask(question, below)
        if offer is not None and offer.peer.id != question.me:
            self.offers.append(offer)
        self._try_offers(question)

    def tick(self, now: float) -> None:
        """Time passes: do not wait for answers for ever."""
        if self._question is not None and self._open and now - self.asked_at >= self._question.answer_s:
            self._open.clear()
            self._try_offers(self._question)

    def _try_offers(self, question: Question) -> None:
        if self._open:
            return
        if offers := sorted(self.offers, key=lambda offer: (offer.score, offer.depth, offer.peer.id)):
            self._queue.append(question.choose(offers).peer)
            self._queue.extend(offer.peer for offer in offers)
        self._next()

    # The tries

    def _next(self) -> None:
        tries_max = self._question.tries_max if self._question is not None and self.offers else self._tries_max
        while self._queue and len(self._tried) < tries_max:
            peer = self._queue.popleft()
            if peer.id not in self._tried:
                self._tried.add(peer.id)
                self.current = peer
                if self._move_to(peer):
                    return
        self._over(is_found=False)

    def _over(self, *, is_found: bool) -> None:
        on_over, self._on_over, self.current = self._on_over, None, None
        if on_over is not None:
            on_over(is_found)

    def ended(self, peer: PeerRef, end: MoveEnd, others: Sequence[PeerRef]) -> bool:
        """A try is over; whether it was one of this search."""
        if self.current is None or self.current.id != peer.id:
            return False
        if end is MoveEnd.MOVED:
            self._over(is_found=True)
        else:
            if self.offers:
                self._queue.extend(other for other in others if other.id not in self._asked)
            else:
                self._queue.extendleft(self._shuffled(others))
            self._next()
        return True

    def _shuffled(self, peers: Iterable[PeerRef]) -> list[PeerRef]:
        return sorted(peers, key=lambda each: (self._draw(), each.id))
