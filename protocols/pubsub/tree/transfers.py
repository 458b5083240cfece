"""Copies of pieces between a cell and its halves, on the ring: sent by splits and merges, stored, and answered.

A transfer is routed, and anybody may have made it up. So it counts only with the number of a split or merge that the
cell which gives has named itself, to who asked it; and an answer only with the number of the transfer.
"""

from __future__ import annotations

from typing import Final

from peerd.api import Part, handles, on_timer
from peerd.messages import PeerRef
from protocols.pubsub.messages import (
    SUBS_MAX,
    Confirm,
    PieceStatus,
    SubObject,
    Transferred,
    TransferResult,
    TransferSub,
)
from protocols.pubsub.names import Tree
from protocols.pubsub.ports import Schemas
from protocols.pubsub.tree.asking import SubscriberQuestions
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE, alternate, children, is_alternate, parent
from protocols.pubsub.tree.copying import Copying
from protocols.pubsub.tree.forest import Forest
from protocols.pubsub.tree.installing import Installing
from protocols.pubsub.tree.nearness import may_be_root
from protocols.pubsub.tree.piece import Piece, PieceLease
from protocols.pubsub.tree.storage import CellAddress
from protocols.pubsub.tree.ways import to_point

RESULTS_DELAY_S: Final = 0.05
"""What became of several copies within this time is told in one message."""
UNPROVED_MAX: Final = 64
"""Messages with copies that wait until the parent of their cell has said that it is being split."""


class Transfers(Part):
    """Takes copies in, and the answers to those that were sent."""

    def __init__(
        self, forest: Forest, schemas: Schemas, subscribers: SubscriberQuestions, installing: Installing
    ) -> None:
        self._forest = forest
        self._host = forest.host
        self._schemas = schemas
        self._subscribers = subscribers
        self._installing = installing
        self._results: dict[tuple[PeerRef, CellAddress, int], list[TransferResult]] = {}
        self._unproved: dict[CellAddress, list[tuple[TransferSub, PeerRef]]] = {}
        """Copies that have come before it was known whether the parent is being split."""

    @handles(TransferSub)
    def _given(self, message: TransferSub, source: PeerRef) -> None:
        place = CellAddress(Tree(message.schema, message.attribute), message.cell)
        is_down = message.from_cell == parent(message.cell) and message.cell != WHOLE
        is_up = parent(message.from_cell) == message.cell
        node = self._forest.find(place) if is_down or is_up else None
        if node is None or node.is_switching or len(message.subs) != len(message.remaining_s):
            return
        if is_up:
            self._take_from_below(node, message, source)
        elif node.is_inner:
            self._pass_down(node, message, source)
        elif message.transfer and node.parent_transfer == message.transfer:
            self._take(node, message, source)
        elif self._forest.growth.ask_parent_again(place) and sum(map(len, self._unproved.values())) < UNPROVED_MAX:
            self._unproved.setdefault(place, []).append((message, source))

    def proved(self, place: CellAddress, number: int) -> None:
        """The parent of a cell has said which split of it is under way, if there is one: 0."""
        for message, source in self._unproved.pop(place, ()):
            if number and message.transfer == number:
                self._given(message, source)

    def _take_from_below(self, node: CellNode, message: TransferSub, source: PeerRef) -> None:
        """A half gives what it holds to a cell that is being merged, and nobody else knows the number of that."""
        if node.merge is None or node.merge.number != message.transfer:
            return
        node.merge.arrived(self._host.now())
        self._take(node, message, source)
        if not message.subs:
            node.merge.has_all_of(message.from_cell, self._host.now())
            self._forest.growth.moved(node)

    def _pass_down(self, node: CellNode, message: TransferSub, source: PeerRef) -> None:
        """The parent did not know that this half is an inner node: what it gives goes on to the leaves."""
        for sub, remaining_s in zip(message.subs, message.remaining_s, strict=True):
            if node.holds(sub) and sub.attribute == message.attribute:
                cell, vouched = to_point(node, sub.low, sub.high, is_careful=True)
                self._installing.send_on(node.place, sub, remaining_s, cell, vouched=vouched)
                self.result(node, (source, message.transfer), sub, PieceStatus.ELSEWHERE)

    def _take(self, node: CellNode, message: TransferSub, source: PeerRef) -> None:
        """Store copies on the word of the cell that gives them; subscribers are asked when this cell is the leaf."""
        giver = source, message.transfer
        for sub, remaining_s in zip(message.subs, message.remaining_s, strict=True):
            known = node.pieces.get(sub.key)
            if not node.holds(sub) or sub.attribute != message.attribute:
                continue
            given = PieceLease(sub.version, self._host.now() + remaining_s)
            if known is not None and known.is_kept and known.lease.covers(given):
                known.giver = giver
                if known.is_stored:
                    self.result(node, giver, sub, PieceStatus.REPLICATED)
            elif known is None and self._is_over_quota(sub):
                self.result(node, giver, sub, PieceStatus.QUOTA)
            else:
                self._store(node, sub, remaining_s, giver)

    def _store(self, node: CellNode, sub: SubObject, remaining_s: int, giver: tuple[PeerRef, int]) -> None:
        try:
            piece = self._forest.add(node, sub, remaining_s)
        except ValueError:
            self._store_later(node, sub, remaining_s, giver)
            return
        piece.giver = giver
        self._forest.keep(node, sub.key)
        if node.is_leaf:
            self.tell_subscriber(node, piece)

    def _store_later(self, node: CellNode, sub: SubObject, remaining_s: int, giver: tuple[PeerRef, int]) -> None:
        """The filter does not fit the schema, unless there is a later version of it, with more attributes."""

        def looked(is_later: bool) -> None:
            if not is_later:
                self.result(node, giver, sub, PieceStatus.REFUSED)
            elif self._forest.is_current(node):
                self._store(node, sub, remaining_s, giver)

        self._schemas.look_again(node.place.tree.schema, looked)

    def _is_over_quota(self, sub: SubObject) -> bool:
        return self._forest.members[sub.subscriber.id] >= self._forest.config.subscriptions_per_member

    def tell_subscriber(self, node: CellNode, piece: Piece) -> None:
        """This cell is the leaf of a piece from now on: if it was ended meanwhile, its subscriber says so."""
        sub, key = piece.sub, piece.sub.key

        def told(confirm: Confirm | None) -> None:
            known = node.pieces.get(key) if self._forest.is_current(node) else None
            is_unwanted = confirm is not None and not confirm.is_wanted
            if is_unwanted and known is not None and known.sub.version == sub.version:
                self._forest.remove(node, key, with_record=True)

        self._subscribers.ask(node, sub, is_new=False, done=told)

    def result(self, node: CellNode, giver: tuple[PeerRef, int], sub: SubObject, status: PieceStatus) -> None:
        """Tell the cell that gave a copy what became of it."""
        if not self._results:
            self._host.set_timer("tree_results", RESULTS_DELAY_S)
        result = TransferResult(sub.subscriber.id, sub.sid, sub.piece, sub.version, status)
        self._results.setdefault((giver[0], node.place, giver[1]), []).append(result)

    @on_timer("tree_results")
    def _send_results(self, payload: None) -> None:
        results, self._results = self._results, {}
        for (giver, place, number), found in results.items():
            for first in range(0, len(found), SUBS_MAX):
                part, (schema, attribute) = tuple(found[first : first + SUBS_MAX]), place.tree
                self._host.send(giver, Transferred(schema, attribute, place.cell, part, number))

    @handles(Transferred)
    def _transferred(self, message: Transferred, source: PeerRef) -> None:
        """Nodes on the way to the other cell have seen the number of the transfer, too; so only its root is believed.
        What is not believed is sent again."""
        place = CellAddress(Tree(message.schema, message.attribute), message.cell)
        if not may_be_root(self._host, source.id, place.key):
            return
        below = () if is_alternate(place.cell) else (*children(place.cell), alternate(place.cell))
        for cell in (*below, parent(place.cell)):
            node = self._forest.cells.get(CellAddress(place.tree, cell))
            for copying in () if node is None else self._copyings(node):
                if node is not None and copying.number == message.transfer:
                    for key in copying.answered(message.results, self._host.now()):
                        self._forest.remove(node, key, with_record=True)
                    self._forest.growth.moved(node)

    def _copyings(self, node: CellNode) -> list[Copying]:
        found = [] if node.split is None else [node.split.copying]
        return found if node.move_up is None else [*found, node.move_up.copying]
