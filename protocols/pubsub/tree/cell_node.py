"""One cell of a tree at the root of its key: what it is, and the pieces of subscriptions in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId
from protocols.pubsub.messages import CellState, LeafEntry, SubObject
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.cells import alternate, children, holds_point, level
from protocols.pubsub.tree.leaf_table import COUNT_MAX, LeafTable
from protocols.pubsub.tree.loans import Loans
from protocols.pubsub.tree.merging import Merge, MoveUp
from protocols.pubsub.tree.meter import Meter
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.splitting import Split
from protocols.pubsub.tree.storage import CellAddress

MINUTE_S: Final = 60.0


@dataclass(slots=True)
class CellNode:
    """What the root of a cell's key knows of it.

    ``state`` is what is written in the record of the cell. While the next state, ``switching_to``, is being written,
    nobody may rely on either; ``when_switched`` is told how that ended.
    """

    place: CellAddress
    key: NodeId
    state: CellState
    count: int = 0
    switching_to: CellState | None = None
    when_switched: Callable[[bool], None] | None = None
    is_putting: bool = False
    """The record that says what the cell is is being written."""
    pieces: dict[SubscriptionKey, Piece] = field(default_factory=dict)
    table: LeafTable | None = None
    split: Split | None = None
    merge: Merge | None = None
    move_up: MoveUp | None = None
    parent_transfer: int = 0
    """The number of the split of the parent that it has confirmed."""
    split_after: float = 0.0
    """After a split that failed, when the next one may be begun."""
    empty_since: float | None = None
    """Since when there have been few subscriptions below it."""
    order_after: float = 0.0
    order_pause_s: float = 1.0
    """When halves of which nothing is known are told to report, and how long that was put off."""
    state_due: float = 0.0
    """When the record that says what the cell is has to be written again."""
    events: Meter = field(default_factory=Meter)
    """Events that visit the leaf."""
    copies: Meter = field(default_factory=Meter)
    """Other nodes that it has an event for: how many messages its deliveries take."""
    sent: Meter = field(default_factory=Meter)
    """The bytes of these."""
    hot_load: int = 0
    """Its events a minute when it was last split or moved because of its load; 0: never. See `Heat`."""
    moved_subs: int = 0
    """How many subscriptions it had when it was moved."""
    loans: Loans | None = None
    """The helpers that share its work."""

    @property
    def cell(self) -> int:
        """Its number."""
        return self.place.cell

    @property
    def level(self) -> int:
        """Its depth."""
        return level(self.place.cell)

    @property
    def is_inner(self) -> bool:
        """Whether its subscriptions are in parts of it."""
        return self.state in (CellState.INNER, CellState.MOVED)

    @property
    def parts(self) -> tuple[int, ...]:
        """The cells directly below it, where it is an inner node: its halves, or its alternate."""
        return (alternate(self.cell),) if self.state is CellState.MOVED else children(self.cell)

    @property
    def is_switching(self) -> bool:
        """Whether it is about to be something else."""
        return self.switching_to is not None

    def end_switching(self) -> Callable[[bool], None]:
        """It is known how writing the next state ended; returns who is to be told."""
        then = self.when_switched
        self.switching_to = self.when_switched = None
        return then if then is not None else lambda is_stored: None

    @property
    def is_draining(self) -> bool:
        """Whether new pieces have to wait until it is known which cell is their leaf."""
        is_moving = (self.split is not None and self.split.is_draining) or (
            self.move_up is not None and self.move_up.is_draining
        )
        return is_moving or self.is_handing_over

    @property
    def is_handing_over(self) -> bool:
        """Whether another cell may be the leaf of the same pieces: then nothing new may be kept in one of them only."""
        is_half = self.move_up is not None and self.move_up.is_handing_over
        return is_half or (self.merge is not None and self.merge.is_retiring)

    @property
    def is_leaf(self) -> bool:
        """Whether it is a leaf, and will be one a moment later."""
        return self.state is CellState.LEAF and not self.is_switching

    @property
    def is_at_rest(self) -> bool:
        """Whether it is a leaf that neither gives nor takes pieces, as a merge does until its parts have retired."""
        has_job = any(job is not None for job in (self.split, self.merge, self.move_up, self.loans))
        return self.is_leaf and not has_job

    @property
    def transfer(self) -> int:
        """The number of the split or merge that is under way, if there is one; 0: none."""
        if self.split is not None and self.state is CellState.LEAF:
            return self.split.copying.number  # even: see `CellAnswer`
        return self.merge.number if self.merge is not None else 0

    def holds(self, sub: SubObject) -> bool:
        """Whether the point of a piece lies in the cell."""
        return holds_point(self.place.cell, sub.low, sub.high)

    def kept(self) -> Iterator[tuple[SubscriptionKey, Piece]]:
        """The pieces that are more than provisional, in the order in which they came."""
        return ((key, piece) for key, piece in self.pieces.items() if piece.is_kept)

    def kept_count(self) -> int:
        """How many there are."""
        return sum(piece.is_kept for piece in self.pieces.values())

    def is_divisible(self) -> bool:
        """Whether the pieces have different points, so that halving the cell can part them at some time."""
        points = {(piece.sub.low, piece.sub.high) for _, piece in self.kept()}
        return len(points) > 1

    def load(self, now: float) -> int:
        """Events a minute, of late."""
        return min(COUNT_MAX, round(self.events.rate(now) * MINUTE_S))

    def entry(self, now: float) -> LeafEntry:
        """How a leaf is told of."""
        return LeafEntry(self.place.cell, self.kept_count(), self.load(now))
