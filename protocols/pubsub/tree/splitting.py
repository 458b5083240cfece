"""Splitting a leaf by copying, then switching (Program 3.1, made safe against crashes at any step). Pure.

A leaf is moved in the same way: its alternate is then the only part of it.

::

    COPYING -- all pieces are replicated at the halves --> SWITCHING -- the record says INNER --> ANNOUNCING --> over
       \\-- a refusal, or no progress for a minute --> given up: the cell is the leaf that it was

The cell is the leaf until it has written that it is an inner node, and until then nobody relies on the copies. So a
root that dies leaves either a leaf, which its successor splits again, or an inner node whose halves have everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from protocols.pubsub.messages import CellState, OrderKind
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.cells import is_alternate
from protocols.pubsub.tree.copying import Copying, GrowthAction, Order, PutState
from protocols.pubsub.tree.piece import Piece

ANNOUNCE_MIN_S: Final = 2.0
ANNOUNCE_MAX_S: Final = 60.0
"""Between two announcements to a half that has not answered; the pause doubles."""
DRAIN_S: Final = 2.0
"""How long a split waits, when all is copied, for subscribers that have been asked about a piece. One that has said yes
takes its subscription for established, so the yes must find the leaf. Meanwhile nobody else is asked."""


class SplitPhase(Enum):
    """How far a split is."""

    COPYING = "copying"
    SWITCHING = "switching"
    ANNOUNCING = "announcing"
    OVER = "over"
    GIVEN_UP = "given up"


class Split:
    """The split of one leaf into parts, or its move to the only one.

    ``number`` is random, and known only to those who are told of the split.
    """

    def __init__(self, parts: tuple[int, ...], number: int, now: float) -> None:
        self.parts = parts
        self.phase = SplitPhase.COPYING
        self.began_at = now
        self.copying = Copying(parts, number, now)
        self._silent = dict.fromkeys(parts)
        self._announce_at = now
        self._announce_pause_s = ANNOUNCE_MIN_S
        self._drained_at: float | None = None

    @property
    def is_move(self) -> bool:
        """Whether the leaf stays whole, at its other place."""
        return is_alternate(self.parts[0])

    @property
    def is_draining(self) -> bool:
        """Whether all was copied once: new pieces wait until the cell is something else."""
        return self.phase is SplitPhase.COPYING and self._drained_at is not None

    def step(self, pieces: Mapping[SubscriptionKey, Piece], now: float) -> list[GrowthAction]:
        """What is to be done now; call it when something has changed, and every second."""
        if self.phase is SplitPhase.COPYING:
            if self.copying.is_stalled(now):
                self.phase = SplitPhase.GIVEN_UP
            elif self.copying.is_complete(pieces):
                if self._drained_at is None:
                    self._drained_at = now + DRAIN_S
                if now < self._drained_at and not all(piece.is_kept for piece in pieces.values()):
                    return []
                self.phase = SplitPhase.SWITCHING
                return [PutState(CellState.MOVED if self.is_move else CellState.INNER)]
            else:
                return list(self.copying.due(pieces, now))
        if self.phase is SplitPhase.ANNOUNCING and now >= self._announce_at:
            self._announce_at = now + self._announce_pause_s
            self._announce_pause_s = min(ANNOUNCE_MAX_S, 2 * self._announce_pause_s)
            return [Order(child, OrderKind.BE_LEAF) for child in self._silent]
        return []

    def switched(self, is_stored: bool, now: float) -> None:
        """The record of the cell is written, or could not be."""
        if self.phase is SplitPhase.SWITCHING:
            self.phase = SplitPhase.ANNOUNCING if is_stored else SplitPhase.GIVEN_UP
            self._announce_at = now

    def heard(self, child: int) -> None:
        """A half has reported what it is."""
        self._silent.pop(child, None)
        if self.phase is SplitPhase.ANNOUNCING and not self._silent:
            self.phase = SplitPhase.OVER
