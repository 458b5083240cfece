"""Looking for a parent by trying one node after the other, and going down where there is no room. Pure.

It is what an orphan does first, and all that the policy ``first_fit`` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.tree.below import MoveEnd

TRIES_MAX: Final = 64
"""Nodes that one search tries."""


class ParentSearch:
    """``move_to`` begins a try; whoever makes this calls `ended` when the try is over.

    ``draw``: nodes that are named by one that has no room come next, in random order; ``None``: they come last.
    ``on_over(found)`` is called once for each `begin`.
    """

    def __init__(
        self, move_to: Callable[[PeerRef], bool], draw: Callable[[], float] | None, tries_max: int = TRIES_MAX
    ) -> None:
        self._move_to = move_to
        self._tries_max = tries_max
        self._draw = draw
        self._queue: deque[PeerRef] = deque()
        self._tried: set[NodeId] = set()
        self._on_over: Callable[[bool], None] | None = None
        self.current: PeerRef | None = None
        """Who is tried now."""

    @property
    def is_active(self) -> bool:
        """Whether it has begun and is not over."""
        return self._on_over is not None

    def begin(self, candidates: Iterable[PeerRef], on_over: Callable[[bool], None]) -> None:
        """Try these in their order. A search that was under way is forgotten."""
        self._queue, self._tried, self._on_over = deque(candidates), set(), on_over
        self.current = None
        self._next()

    def prefer(self, peer: PeerRef) -> None:
        """Try this node next, in a search that is under way."""
        self._queue.appendleft(peer)
        self._tried.discard(peer.id)

    def stop(self) -> None:
        """Forget what was begun; ``on_over`` is not called."""
        self._on_over = self.current = None

    def _next(self) -> None:
        while self._queue and len(self._tried) < self._tries_max:
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
            if (draw := self._draw) is None:
                self._queue.extend(others)
            else:
                self._queue.extendleft(sorted(others, key=lambda each: (draw(), each.id)))
            self._next()
        return True
