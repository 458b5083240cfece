"""Copies of pieces on their way from one cell to others: the first half of every split and merge. Pure.

The cell that gives goes on as before meanwhile, so what comes, changes or ends during the copying is seen by comparing
what it holds with what has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from peerd.frozen import Frozen
from protocols.pubsub.messages import CellState, OrderKind, PieceStatus, SubObject, TransferResult
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.cells import cell_at, home, level
from protocols.pubsub.tree.piece import Piece, PieceLease

IN_FLIGHT_MAX: Final = 128
"""Pieces that are on their way and not answered."""
BATCH_MAX: Final = 32
BATCH_BYTES_MAX: Final = 32 * 1024
SUB_BYTES: Final = 512
"""A piece on the wire takes at most so much beside its filter."""
RESEND_S: Final = 15.0
"""A copy that was not answered is sent again after this: its receiver asks the subscriber, which may take 10 s."""
GIVE_UP_S: Final = 60.0
"""A split or merge that has made no progress for so long is given up."""


_COPIED: Final = (PieceStatus.REPLICATED, PieceStatus.ELSEWHERE)
"""Where a copy has arrived. Elsewhere: the other cell is an inner node, and has sent it on to its leaf."""


class SendCopies(Frozen):
    """Send these pieces to the root of a cell; none: that was all."""

    cell: int
    subs: tuple[SubObject, ...]
    remaining_s: tuple[int, ...]


class PutState(Frozen):
    """Write that the cell is this from now on, and have it replicated."""

    state: CellState


class Order(Frozen):
    """Tell a cell to look at what its parent is now."""

    cell: int
    kind: OrderKind


GrowthAction: TypeAlias = SendCopies | PutState | Order


class Copying:
    """Brings the pieces of one cell to ``cells``, all of one level, each to the one that its point lies in."""

    def __init__(self, cells: tuple[int, ...], number: int, now: float) -> None:
        self.number = number
        self.progress_at = now
        self.has_failed = False
        self._cells = {home(cell): cell for cell in cells}
        self._level = level(cells[0])
        self._copied: dict[SubscriptionKey, PieceLease] = {}
        self._sent: dict[SubscriptionKey, tuple[PieceLease, float]] = {}
        """As what a piece was sent, and when."""

    def has(self, key: SubscriptionKey, piece: Piece) -> bool:
        """Whether a piece has arrived as it is now: this version, with a lease that lasts as long."""
        copied = self._copied.get(key)
        return copied is not None and copied.covers(piece.lease)

    def is_complete(self, pieces: Mapping[SubscriptionKey, Piece]) -> bool:
        """Whether all pieces that are kept have arrived as they are now."""
        return all(self.has(key, piece) for key, piece in pieces.items() if piece.is_kept)

    def due(self, pieces: Mapping[SubscriptionKey, Piece], now: float) -> list[SendCopies]:
        """What is to be sent now. What is returned counts as sent."""
        self._sent = {
            key: sent
            for key, sent in self._sent.items()
            if key in pieces and not self.has(key, pieces[key]) and now < sent[1] + RESEND_S
        }
        batches: dict[int, list[tuple[SubObject, int]]] = {}
        for key, piece in pieces.items():
            if len(self._sent) >= IN_FLIGHT_MAX:
                break
            sent = self._sent.get(key)
            if piece.is_kept and not self.has(key, piece) and (sent is None or not sent[0].covers(piece.lease)):
                cell = cell_at(piece.sub.low, piece.sub.high, self._level)
                self._sent[key] = piece.lease, now
                batches.setdefault(self._cells[cell], []).append((piece.sub, max(1, int(piece.expires_at - now))))
        return [part for cell in self._cells.values() for part in _parts(cell, batches.get(cell, ()))]

    def answered(self, results: Iterable[TransferResult], now: float) -> list[SubscriptionKey]:
        """Take in what became of copies; returns the pieces that their subscriber does not want any more."""
        gone: list[SubscriptionKey] = []
        for result in results:
            key = SubscriptionKey(result.subscriber, result.sid, result.piece)
            sent = self._sent.get(key)
            if sent is None or sent[0].version != result.version:
                continue
            if result.status in _COPIED:
                self._copied[key] = sent[0]
            elif result.status == PieceStatus.GONE:
                gone.append(key)
            else:  # a limit over there: who cannot give up sends it again after the usual pause
                self.has_failed = True
                continue
            del self._sent[key]
            self.progress_at = now
        return gone

    def is_stalled(self, now: float) -> bool:
        """Whether nothing has come back for so long that it is to be given up."""
        return self.has_failed or now >= self.progress_at + GIVE_UP_S


def _parts(cell: int, subs: Iterable[tuple[SubObject, int]]) -> list[SendCopies]:
    parts: list[list[tuple[SubObject, int]]] = []
    size = 0
    for sub, remaining_s in subs:
        size += len(sub.filter.encode()) + SUB_BYTES
        if not parts or len(parts[-1]) >= BATCH_MAX or size > BATCH_BYTES_MAX:
            parts.append([])
            size = len(sub.filter.encode()) + SUB_BYTES
        parts[-1].append((sub, remaining_s))
    return [SendCopies(cell, tuple(s for s, _ in part), tuple(r for _, r in part)) for part in parts]
