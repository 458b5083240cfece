"""Splits and merges on the ring: the copies, orders and questions of `Split`, `Merge` and `MoveUp`.

All orders and reports are routed, and anybody may have made them up. So an order, or a claim that there are leaves
below, only makes a cell ask the other one what it is.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from peerd.api import Part, handles
from peerd.messages import PeerRef
from protocols.pubsub.messages import (
    CellAnswer,
    CellOrder,
    CellState,
    LeafEntry,
    OrderKind,
    PieceStatus,
    TransferSub,
)
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE, alternate, children, holds_point, is_alternate, lies_within, parent
from protocols.pubsub.tree.copying import GrowthAction, Order, PutState, SendCopies
from protocols.pubsub.tree.forest import Forest, Standing
from protocols.pubsub.tree.installing import Installing
from protocols.pubsub.tree.leaf_table import LeafTable
from protocols.pubsub.tree.merging import ORDER_S, Merge, MergePhase, MoveUp
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.questions import Questions
from protocols.pubsub.tree.reports import TreeReports, half_entry
from protocols.pubsub.tree.splitting import Split, SplitPhase
from protocols.pubsub.tree.storage import CellAddress
from protocols.pubsub.tree.transfers import Transfers
from protocols.pubsub.tree.ways import to_point

SPLIT_PAUSE_S: Final = 60.0
"""After a split that failed."""
CELLS_MAX: Final = 16_384
"""A node that has so many cells becomes the leaf of no more: who is the root of one may claim what it likes of it."""
VACANT_SHARE: Final = 0.1
"""What holds nothing is merged after this share of ``merge_after``: a chain of empty leaves, which subscriptions have
left for another tree, costs every event detours."""
COOL_SHARE: Final = 0.5
"""A cell that was split or moved because of its load is not merged while a part has more than this share of it."""
REPORTED_AFTER: Final = 1.5
"""A leaf has reported after so many update intervals, at the latest."""
GROWN: Final = 2.0
"""A leaf that was moved comes home when it has so many times the subscriptions that it had then, or too many. There it
is split, if it is still too busy."""
DENIED_S: Final = 5.0
"""For so long it is remembered that the parent of a cell did not know it."""
PARENT_TRIES: Final = 4
"""A parent that says nothing is asked so often: its root may have died, and the next one must catch up first."""


class GrowthListener(Protocol):
    """Who is told of what becomes of cells."""

    def changed(self, place: CellAddress) -> None:
        """What a cell is has changed, or has become known."""

    def wake(self) -> None:
        """There is something to be driven on by `Growth.tick`."""

    def told(self, what: str, place: CellAddress, pieces: int, duration_s: float) -> None:
        """For the event log. A leaf was "split" or "moved", two were "merged", or one has come home: "returned"."""


class Growth(Part):
    """Has leaves split when they are full, and merged when they are empty."""

    def __init__(
        self,
        forest: Forest,
        questions: Questions,
        reports: TreeReports,
        installing: Installing,
        transfers: Transfers,
        listener: GrowthListener,
    ) -> None:
        self._forest = forest
        self._host = forest.host
        self._questions = questions
        self._reports = reports
        self._installing = installing
        self._transfers = transfers
        self._asking: set[CellAddress] = set()
        """Cells whose parent is being asked what it is."""
        self._checking: set[CellAddress] = set()
        """Cells of which it is being asked whether they are leaves, as was claimed."""
        self._denied: dict[CellAddress, float] = {}
        self._listener = listener
        forest.growth = self

    @property
    def is_busy(self) -> bool:
        """Whether there is a split or merge that has to be driven on."""
        return any(job is not None for node in self._forest.nodes() for job in (node.split, node.merge, node.move_up))

    def tick(self) -> None:
        """Drive everything on."""
        now = self._host.now()
        self._denied = {place: until for place, until in self._denied.items() if now < until}
        for node in self._forest.nodes():
            self.step(node)
            if node.move_up is not None and node.move_up.must_ask(now):
                self.ask_parent(node.place)
            if node.is_inner and node.split is None and now >= node.order_after:
                self._order_missing(node, now)

    def step(self, node: CellNode) -> None:
        """Do what is due for one cell."""
        if not self._forest.is_current(node):
            return
        now = self._host.now()
        if node.split is not None:
            self._perform(node, node.split.copying.number, node.split.step(node.pieces, now))
            if node.split.phase in (SplitPhase.GIVEN_UP, SplitPhase.OVER):
                has_failed = node.split.phase is SplitPhase.GIVEN_UP
                node.split = None
                node.split_after = now + SPLIT_PAUSE_S if has_failed else now
                if has_failed:
                    self._listener.changed(node.place)  # what waited for the split goes on
        elif node.merge is not None:
            self._perform(node, node.merge.number, node.merge.step(now))
            if node.merge.phase is MergePhase.GIVEN_UP:
                self._abandon(node)
            elif node.merge.phase is MergePhase.OVER:
                node.merge = None
                self._listener.changed(node.place)  # what waited for the halves goes on
        elif node.move_up is not None:
            was_draining = node.is_draining
            self._perform(node, node.move_up.copying.number, node.move_up.step(node.pieces, now))
            if was_draining and not node.is_draining:
                self._listener.changed(node.place)
        elif node.is_leaf:
            self._split_if_full(node)
        elif node.state is CellState.INNER:
            self._begin_merge(node, now)
        elif node.state is CellState.MOVED:
            self._begin_return(node, now)

    def _order_missing(self, node: CellNode, now: float) -> None:
        """Have parts report of which nothing is known: this root is new, or all who knew the part have died."""
        known = () if node.table is None else [entry.cell for entry in node.table.entries()]
        missing = [part for part in node.parts if not any(lies_within(cell, part) for cell in known)]
        node.order_pause_s = min(self._forest.config.update_interval, 2 * node.order_pause_s) if missing else ORDER_S
        node.order_after = now + node.order_pause_s
        self._perform(node, 0, [Order(part, OrderKind.BE_LEAF) for part in missing])

    def _split_if_full(self, node: CellNode) -> None:
        config, now = self._forest.config, self._host.now()
        is_full = len(node.pieces) > config.leaf_capacity and node.kept_count() > config.leaf_capacity
        is_low = node.level < config.level_max and not is_alternate(node.cell)
        if is_full and is_low and now >= node.split_after and node.is_divisible():
            self.split(node)

    def split(self, node: CellNode) -> None:
        """Split a leaf that is at home."""
        self._give(node, children(node.cell))

    def move(self, node: CellNode) -> None:
        """Move a leaf that is at home to its alternate."""
        node.moved_subs = node.kept_count()
        self._give(node, (alternate(node.cell),))

    def _give(self, node: CellNode, parts: tuple[int, ...]) -> None:
        self._forest.register(node)
        node.split = Split(parts, (self._host.rng.getrandbits(61) + 1) << 1, self._host.now())
        self._listener.wake()
        self.step(node)

    def _begin_return(self, node: CellNode, now: float) -> None:
        """Have a leaf come home that was moved, if it is cool, or has too much to stay whole.

        It counts as cool as long as it has not said otherwise, and says so in its reports.
        """
        config, entry = self._forest.config, half_entry(node, alternate(node.cell))
        if entry is None or node.is_switching:
            return
        node.moved_subs = node.moved_subs or entry.subs
        has_grown = entry.subs > min(config.leaf_capacity, max(1, GROWN * node.moved_subs))
        is_warm = entry.load > COOL_SHARE * node.hot_load > 0
        if is_warm or not config.merge_share:
            node.empty_since = None
        elif node.empty_since is None:
            node.empty_since = now
        cool_s = config.merge_after + REPORTED_AFTER * config.update_interval
        if has_grown or (node.empty_since is not None and now >= node.empty_since + cool_s):
            self._take_back(node, now)

    def _begin_merge(self, node: CellNode, now: float) -> None:
        config, table = self._forest.config, node.table
        if not table or node.is_switching:
            node.empty_since = None
            return
        few = config.merge_share * config.leaf_capacity
        subs = table.subs(few)
        halves = [half_entry(node, child) for child in node.parts]
        is_warm = any(half.load > COOL_SHARE * node.hot_load > 0 for half in halves if half is not None)
        if subs >= few or is_warm:
            node.empty_since = None
        elif node.empty_since is None:
            node.empty_since = now
        elif None not in halves and now >= node.empty_since + config.merge_after * (1.0 if subs else VACANT_SHARE):
            self._take_back(node, now)

    def _take_back(self, node: CellNode, now: float) -> None:
        """Have the parts of a cell give what they have."""
        node.empty_since = None
        self._delete_leftovers(node)
        node.merge = Merge(node.parts, self._host.rng.getrandbits(62) << 1 | 1, now)
        self._listener.wake()
        self.step(node)

    def _abandon(self, node: CellNode) -> None:
        node.merge = None
        for key in list(node.pieces):  # their records lapse, and an inner node does not match with them
            self._forest.remove(node, key)

    def _perform(self, node: CellNode, number: int, actions: list[GrowthAction]) -> None:
        tree = node.place.tree
        for action in actions:
            if isinstance(action, PutState):
                self._forest.put_state(node, action.state, partial(self._switched, node, node.state))
                continue
            key = CellAddress(tree, action.cell).key
            if isinstance(action, Order):
                self._host.route(key, CellOrder(tree.schema, tree.attribute, action.cell, action.kind))
            elif isinstance(action, SendCopies):
                subs, rest = action.subs, action.remaining_s
                where = tree.schema, tree.attribute, action.cell, node.cell
                self._host.route(key, TransferSub(*where, subs, rest, number))

    # What a cell becomes

    def _switched(self, node: CellNode, before: CellState, is_stored: bool) -> None:
        now = self._host.now()
        if node.move_up is not None:
            node.move_up.switched(is_stored)
        if node.split is not None:
            node.split.switched(is_stored, now)
        if node.merge is not None:
            node.merge.switched(is_stored, now)
        if is_stored:
            self._became(node, before)
        self.step(node)
        self._reports.switched(node)
        self._listener.changed(node.place)

    def _became(self, node: CellNode, before: CellState) -> None:
        """What follows for the pieces and for those above, now that the record says what the cell is."""
        if node.is_inner and before is CellState.LEAF:
            entries = [self._half(node, child) for child in node.parts]
            if node.split is not None:
                what = "moved" if node.split.is_move else "split"
                self._listener.told(what, node.place, node.kept_count(), self._host.now() - node.split.began_at)
            self._empty(node, list(node.pieces.values()))
            node.table = LeafTable(node.cell, self._forest.config.leaf_table_max, node.parts)
            node.table.replace(node.cell, entries, self._host.now())
        elif node.state is CellState.LEAF:
            for _, piece in list(node.kept()):
                self._transfers.tell_subscriber(node, piece)
        if node.state is CellState.LEAF and before in (CellState.INNER, CellState.MOVED):
            began_at = self._host.now() if node.merge is None else node.merge.began_at
            what = "returned" if before is CellState.MOVED else "merged"
            self._listener.told(what, node.place, node.kept_count(), self._host.now() - began_at)
        elif node.state is CellState.RETIRED:
            node.move_up = None
            self._empty(node, list(node.pieces.values()))
        self._reports.changed(node)

    def _half(self, node: CellNode, child: int) -> LeafEntry:
        count = sum(holds_point(child, piece.sub.low, piece.sub.high) for _, piece in node.kept())
        return LeafEntry(child, count, 0)

    def _empty(self, node: CellNode, pieces: list[Piece]) -> None:
        """A cell is no leaf any more: its pieces are elsewhere, but for those that nobody has vouched for yet."""
        for piece in pieces:
            self._forest.remove(node, piece.sub.key)
            if piece.is_kept:
                self._installing.tell_kept(node, piece)
            else:
                self._send_piece(node, piece)

    def _send_piece(self, node: CellNode, piece: Piece) -> None:
        cell, vouched = to_point(node, piece.sub.low, piece.sub.high, is_careful=True)
        lasts_s = piece.expires_at - self._host.now()
        self._installing.send_on(node.place, piece.sub, lasts_s, cell, vouched=vouched)

    def _delete_leftovers(self, node: CellNode) -> None:
        """Before it was split an inner node had pieces that may have been ended since: they must not come back."""
        for record in list(self._host.records.items(node.key)):
            key = SubscriptionKey.of_item(record.item)
            if key is not None:
                self._forest.delete(node, key)

    def overruled(self, node: CellNode, before: CellState, pieces: list[Piece]) -> None:
        """Another root of the cell made something else of it, on the other side of a partition: bring together what
        both have."""
        node.split = node.merge = node.move_up = None
        if before is CellState.LEAF and node.state is not CellState.LEAF:
            for piece in pieces:
                self._forest.remove(node, piece.sub.key)
                self._send_piece(node, piece)
        self._reports.changed(node)
        self._listener.changed(node.place)

    def loaded(self, node: CellNode) -> None:
        """This node has taken a cell over: whoever had it may have been in the middle of something."""
        if node.cell != WHOLE and not node.is_inner:
            self.ask_parent(node.place)
        self._reports.changed(node)
        self.step(node)

    # Asking the parent

    def ask_parent(self, place: CellAddress) -> bool:
        """Ask the parent what it is, and follow it; whether the answer is still to come."""
        if place in self._asking:
            return True
        if place.cell == WHOLE or place in self._denied:
            return False
        if not self._put_question(place, 1):
            return False
        self._asking.add(place)
        return True

    def _put_question(self, place: CellAddress, number: int) -> bool:
        """Ask, for the first time or again: silence says nothing of the cell, so it is not taken for a no."""

        def answered(answer: CellAnswer | None, who: PeerRef | None) -> None:
            may_go_on = answer is None and number < PARENT_TRIES
            is_root = may_go_on and self._forest.standing(place.key) is Standing.ROOT
            if not is_root or not self._put_question(place, number + 1):
                self._parent_says(place, answer)

        return self._questions.ask(place.above, answered)

    def ask_parent_again(self, place: CellAddress) -> bool:
        """Ask, although the parent may have been asked a moment ago: there is something new."""
        self._denied.pop(place, None)
        return self.ask_parent(place)

    def _parent_says(self, place: CellAddress, answer: CellAnswer | None) -> None:
        self._asking.discard(place)
        node = self._forest.find(place)
        if node is None or node.is_switching:
            self._transfers.proved(place, 0)
            return
        was_draining = node.is_draining
        state, number = (CellState.UNKNOWN, 0) if answer is None else (answer.state, answer.transfer)
        is_merge = number % 2 == 1
        if number and not is_merge and state == CellState.LEAF and not node.is_inner:
            node.parent_transfer = number
            self._forest.register(node)
        if node.state in (CellState.UNKNOWN, CellState.RETIRED):
            self._follow_as_stranger(node, state)
        elif node.state is CellState.LEAF and answer is not None:
            self._follow_as_leaf(node, state, number if is_merge else 0)
        elif answer is not None:
            self._reports.changed(node)
        self._transfers.proved(place, node.parent_transfer)
        if self._forest.is_current(node):
            if was_draining and not node.is_draining:
                self._listener.changed(place)  # what waited goes on
            self.step(node)

    def _follow_as_stranger(self, node: CellNode, state: int) -> None:
        """For a cell that is no node of the tree, as far as its records say."""
        if state == _state_above(node.cell) and len(self._forest.cells) < CELLS_MAX:
            self._forest.put_state(node, CellState.LEAF, partial(self._switched, node, node.state))
            return
        self._denied[node.place] = self._host.now() + DENIED_S
        self._listener.changed(node.place)

    def _follow_as_leaf(self, node: CellNode, state: int, merge: int) -> None:
        is_parent_leaf, is_part = state == CellState.LEAF, state == _state_above(node.cell)
        if merge and (is_part or is_parent_leaf):
            if node.move_up is None or node.move_up.copying.number != merge:
                node.split = None
                node.move_up = MoveUp(parent(node.cell), merge, self._host.now())
                self._listener.wake()
            node.move_up.is_retiring = is_parent_leaf
        elif is_alternate(node.cell) and state == CellState.INNER:
            self._disown(node)
        else:  # if the parent does not know what lies below it, it hears that now, and then it becomes an inner node
            node.move_up = None
            if is_part:
                self._release(node)
            self._reports.changed(node)

    def _disown(self, node: CellNode) -> None:
        """The home of this leaf was split, on the other side of a partition: its halves get what there is here."""

        def retired(is_stored: bool) -> None:
            pieces = list(node.pieces.values())
            node.split = node.move_up = None
            for piece in pieces if is_stored else ():
                self._forest.remove(node, piece.sub.key)
                self._send_piece(node, piece)
            self._switched(node, CellState.LEAF, is_stored)

        self._forest.put_state(node, CellState.RETIRED, retired)

    def moved(self, node: CellNode) -> None:
        """Copies have arrived at another cell, or from there."""
        if node.move_up is not None:
            self._release(node)
        self.step(node)

    def _release(self, node: CellNode) -> None:
        """Tell subscribers what waited for the parent, or for the record."""
        for key, piece in list(node.kept()):
            is_there = node.move_up is None or node.move_up.copying.has(key, piece)
            if piece.is_stored and is_there:
                self._installing.tell_kept(node, piece)

    @handles(CellOrder)
    def _ordered(self, message: CellOrder, source: PeerRef) -> None:
        """The parent has become something else, says somebody."""
        place = CellAddress(Tree(message.schema, message.attribute), message.cell)
        node = None if message.cell == WHOLE else self._forest.find(place)
        if node is None or node.is_switching:
            return
        if message.kind == OrderKind.BE_LEAF:
            self._denied.pop(place, None)
        if node.state in (CellState.UNKNOWN, CellState.RETIRED) and message.kind != OrderKind.BE_LEAF:
            self._reports.tell(place, node.state)
        elif node.is_inner:
            self._reports.changed(node)
        else:
            self.ask_parent(place)

    # Claims from below

    def heard(self, node: CellNode, child: int, is_leaf: bool) -> None:
        if node.split is not None and is_leaf:
            node.split.heard(child)
        if node.merge is not None and not is_leaf and node.merge.phase is MergePhase.RETIRING:
            self._ask_retired(node, child)
        if node.split is None and node.merge is None and node.is_inner:
            self.step(node)

    def _ask_retired(self, node: CellNode, child: int) -> None:
        """A half that is still a leaf, and is not ordered any more, would keep events from what is new here."""
        place = CellAddress(node.place.tree, child)
        if place in self._checking:
            return

        def answered(answer: CellAnswer | None, who: PeerRef | None) -> None:
            self._checking.discard(place)
            if answer is not None and answer.state in (CellState.RETIRED, CellState.UNKNOWN) and node.merge is not None:
                node.merge.retired(child)
                self.step(node)

        if self._questions.ask(place, answered):
            self._checking.add(place)

    def claimed(self, node: CellNode, child: int) -> None:
        """Somebody says that there are leaves below a cell that is a leaf itself, or unknown.

        That happens after a partition, or when all who knew the cell have died. It becomes an inner node if it is so:
        growing is always safe. Where one side has split it and the other has moved it, the halves stay.
        """
        place = CellAddress(node.place.tree, child)
        if not _may_change(node, child) or place in self._checking:
            return
        if self._questions.ask(place, lambda answer, who: self._child_says(node.place, place, answer)):
            self._checking.add(place)

    def _child_says(self, place: CellAddress, child: CellAddress, answer: CellAnswer | None) -> None:
        self._checking.discard(child)
        node = self._forest.find(place)
        if node is None or node.is_switching or answer is None or not _may_change(node, child.cell):
            return
        if answer.state not in (CellState.LEAF, CellState.INNER, CellState.MOVED):
            return
        if node.state is CellState.LEAF:
            node.move_up = None
            (self.move if is_alternate(child.cell) else self.split)(node)
            self._listener.changed(node.place)
        elif node.state is CellState.MOVED:
            self._take_back(node, self._host.now())
        elif node.state is CellState.INNER:
            self._perform(node, 0, [Order(child.cell, OrderKind.RETIRE)])
        else:
            self._forest.put_state(node, _state_above(child.cell), partial(self._switched, node, node.state))

    # What the forest tells

    def stored(self, node: CellNode, key: SubscriptionKey, piece: Piece) -> None:
        """A piece is at the whole replica set: whoever waits for that is told."""
        if piece.giver is not None:
            self._transfers.result(node, piece.giver, piece.sub, PieceStatus.REPLICATED)
            piece.giver = None
        if node.move_up is None:
            self._installing.tell_kept(node, piece)
        self.step(node)

    def refused(self, node: CellNode, key: SubscriptionKey, piece: Piece, why: str) -> None:
        """A piece could not be stored."""
        if piece.giver is not None:
            self._transfers.result(node, piece.giver, piece.sub, PieceStatus.QUOTA)
        self._installing.tell_refused(node, piece, why)


def _may_change(node: CellNode, part: int) -> bool:
    """Whether a cell may become something else because of a part that is a leaf: of a split it may be, before it relies
    on its copies, into other parts. Events go to the one that there is meanwhile, and subscriptions would not."""
    is_too_late = node.split is not None and (part in node.split.parts or node.split.phase is not SplitPhase.COPYING)
    return node.merge is None and not is_too_late


def _state_above(part: int) -> CellState:
    """What the cell directly above a part is."""
    return CellState.MOVED if is_alternate(part) else CellState.INNER
