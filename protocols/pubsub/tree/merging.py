"""Merging two leaves back into their parent, by copying and then switching. Pure. In the thesis trees only grow.

At the parent::

    GATHERING -- both halves say that it has all of theirs --> SWITCHING -- the record says LEAF --> RETIRING --> over
       \\-- no progress for a minute --> given up: all three are what they were

The halves stay leaves the whole time. While one moves up, what is new there counts as kept only when the parent has
it, too: so whenever the parent becomes the leaf, it has everything that anybody was promised. An order only makes a
half ask its parent; what the parent itself answers is what counts.

From the parent's record until the halves have retired, events visit the parent or a half. Both match alike, because
what is new waits meanwhile: at a half since it has said that all is copied, at the parent until the halves are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from protocols.pubsub.messages import CellState, OrderKind
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.copying import GIVE_UP_S, Copying, GrowthAction, Order, PutState, SendCopies
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.splitting import DRAIN_S

ORDER_S: Final = 5.0
"""Between two orders, or two words that all is copied."""
ASK_S: Final = 10.0
"""Between two questions of a half that moves up to its parent."""
RETIRING_MAX_S: Final = 60.0
"""A half that has not answered for so long is not ordered any more, and new subscriptions do not wait for it. If it
lives, its reports split the parent again."""


class MergePhase(Enum):
    """How far a merge is at the parent."""

    GATHERING = "gathering"
    SWITCHING = "switching"
    RETIRING = "retiring"
    OVER = "over"
    GIVEN_UP = "given up"


class Merge:
    """The merge at the parent of its parts, or the return of its alternate.

    ``number`` is random, and known only to those who are told of it.
    """

    def __init__(self, parts: tuple[int, ...], number: int, now: float) -> None:
        self.parts = parts
        self.number = number
        self.phase = MergePhase.GATHERING
        self.began_at = self.progress_at = now
        self._missing = dict.fromkeys(parts)
        self._serving = dict.fromkeys(parts)
        self._order_at = now

    def step(self, now: float) -> list[GrowthAction]:
        """What is to be done now; call it when something has changed, and every second."""
        if self.phase is MergePhase.GATHERING:
            if now >= self.progress_at + GIVE_UP_S:
                self.phase = MergePhase.GIVEN_UP
                return []
            if not self._missing:
                self.phase = MergePhase.SWITCHING
                return [PutState(CellState.LEAF)]
        if self.phase is MergePhase.RETIRING and now >= self.progress_at + RETIRING_MAX_S:
            self.phase = MergePhase.OVER
        if self.phase not in (MergePhase.GATHERING, MergePhase.RETIRING) or now < self._order_at:
            return []
        self._order_at = now + ORDER_S
        is_gathering = self.phase is MergePhase.GATHERING
        kind, cells = (OrderKind.COPY_UP, self._missing) if is_gathering else (OrderKind.RETIRE, self._serving)
        return [Order(cell, kind) for cell in cells]

    @property
    def is_retiring(self) -> bool:
        """Whether the parent is a leaf, and its halves may still be."""
        return self.phase is MergePhase.RETIRING

    def arrived(self, now: float) -> None:
        """A copy has come."""
        self.progress_at = max(self.progress_at, now)

    def has_all_of(self, child: int, now: float) -> None:
        """A half says that the parent has all that it holds."""
        if self.phase is MergePhase.GATHERING and child in self._missing:
            del self._missing[child]
            self.progress_at = now

    def switched(self, is_stored: bool, now: float) -> None:
        """The record of the parent is written, or could not be."""
        if self.phase is MergePhase.SWITCHING:
            self.phase = MergePhase.RETIRING if is_stored else MergePhase.GIVEN_UP
            self.progress_at = self._order_at = now

    def retired(self, child: int) -> None:
        """A half is no leaf any more."""
        if self.phase is MergePhase.RETIRING:
            self._serving.pop(child, None)
            if not self._serving:
                self.phase = MergePhase.OVER


class MoveUp:
    """The merge at one of the halves."""

    def __init__(self, parent: int, number: int, now: float) -> None:
        self.copying = Copying((parent,), number, now)
        self.is_retiring = False
        """The parent is a leaf already: give it the rest, and be none any more."""
        self.is_switching = False
        self._parent = parent
        self._word_at = now
        self._ask_at = now + ASK_S
        self._drained_at: float | None = None
        self._has_said_all = False

    @property
    def is_draining(self) -> bool:
        """Whether all was copied once: new pieces wait until it is known which cell is their leaf."""
        return self._drained_at is not None or self.is_handing_over

    @property
    def is_handing_over(self) -> bool:
        """Whether the parent may be the leaf already: nothing more may come to be kept here only."""
        return self._has_said_all or self.is_retiring

    def step(self, pieces: Mapping[SubscriptionKey, Piece], now: float) -> list[GrowthAction]:
        """What is to be done now; call it when something has changed, and every second."""
        if self.is_switching:
            return []
        if self.copying.has_failed and not self.is_retiring:
            self._drained_at, self._has_said_all = None, False
            return []
        if not self.copying.is_complete(pieces):
            return list(self.copying.due(pieces, now))
        if self._drained_at is None:
            self._drained_at = now + DRAIN_S
        if now < self._drained_at and not all(piece.is_kept for piece in pieces.values()):
            return []
        if self.is_retiring:
            self.is_switching = True
            return [PutState(CellState.RETIRED)]
        if now >= self._word_at:
            self._word_at = now + ORDER_S
            self._has_said_all = True
            return [SendCopies(self._parent, (), ())]
        return []

    def must_ask(self, now: float) -> bool:
        """Whether it is time to ask the parent how things stand."""
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_S
        return True

    def switched(self, is_stored: bool) -> None:
        """The record is written, or could not be: then it is tried again."""
        self.is_switching = is_stored
