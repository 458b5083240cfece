"""Sharing the work of a hot leaf with neighbours: the messages between its root, its helpers and publishers.

What is lent to whom, and for how long, `loans` says. A helper has the pieces of the leaf in its index beside its own
leaves, and does for the events that are sent to it what the root would do. It takes no pieces from subscribers, has no
records, and reports nothing; all that knows of it is the root, and the publishers that the root has sent to it. It
gives the leaf back when the root says so, cannot be reached, or is not the root any more, and at the end of its lease.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from peerd.api import Part, handles
from peerd.ids import NodeId
from peerd.lib.admission import Admission
from peerd.messages import Message, PeerRef
from protocols.pubsub.matching.filter_work import WORK_BURST_S, WORK_PER_S, price_s
from protocols.pubsub.messages import SINCE_RETAINED, CellState, SubObject
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.ports import Schemas
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.forest import Forest, Standing
from protocols.pubsub.tree.loans import LEASE_S, Loans, SendPieces, TakeBack, sharer_of
from protocols.pubsub.tree.messages import PIECES_LENT_MAX, LeafHelper, LeafLent, LendLeaf, LoanQuestion, LoanState
from protocols.pubsub.tree.nearness import may_be_root
from protocols.pubsub.tree.storage import CellAddress

LENT_TIMEOUT_S: Final = 5.0
"""How long a helper or a root may take to answer."""
BORROWED_MAX: Final = 16
"""Leaves of others that a node helps with at a time."""
TELL_AGAIN_S: Final = 10.0
"""A publisher that goes on sending to the wrong one of those who share a leaf is told again after so long."""
TOLD_MAX: Final = 4096
"""Publishers of which it is remembered when they were told."""
COOL_SHARE: Final = 0.5
"""A leaf is not lent any more when for a while it has had less than this share of the events that it had when it was
lent."""


@dataclass(slots=True)
class _Borrowed:
    """A leaf that this node helps with. ``until``: it may serve up to then; 0: it never might."""

    node: CellNode
    root: PeerRef
    number: int
    until: float = 0.0
    helpers: tuple[PeerRef, ...] = ()
    """All that may serve, besides the root."""


@dataclass(slots=True)
class _Told:
    """When publishers were told of their helpers, the latest last; by leaf and publisher."""

    at_s: OrderedDict[tuple[CellAddress, NodeId], float] = field(default_factory=OrderedDict)

    def is_due(self, place: CellAddress, publisher: NodeId, now: float) -> bool:
        """Whether one may be told (again); then it counts as told."""
        key = place, publisher
        if now - self.at_s.get(key, -math.inf) < TELL_AGAIN_S:
            return False
        self.at_s[key] = now
        self.at_s.move_to_end(key)
        while len(self.at_s) > TOLD_MAX:
            self.at_s.popitem(last=False)
        return True


class Sharing(Part):
    """Both sides of all loans of this node."""

    def __init__(
        self,
        forest: Forest,
        schemas: Schemas,
        installed: Callable[[CellAddress, SubObject], None],
        resume: Callable[[CellAddress], None],
        wake: Callable[[], None],
        told: Callable[[str, CellAddress, int, float], None],
    ) -> None:
        """``installed``: a piece is new in a leaf that this node helps with. ``resume``: helpers of this leaf may have
        what they lacked. ``wake``: `tick` is due within a second. ``told``: for the event log, a leaf is "shared".
        """
        self._forest, self._host, self._schemas = forest, forest.host, schemas
        self._installed, self._resume, self._wake, self._log = installed, resume, wake, told
        self._borrowed: dict[CellAddress, _Borrowed] = {}
        self._work: Admission[NodeId] = Admission(WORK_PER_S, WORK_BURST_S)
        self._told = _Told()
        forest.give_back = self.give_back

    @property
    def is_busy(self) -> bool:
        """Whether `tick` has to be called every second."""
        return bool(self._borrowed) or any(node.loans is not None for node in self._forest.nodes())

    def tick(self) -> None:
        """Once a second: ask whether to go on, at the root bring what is missing, and end what is not needed."""
        for place in list(self._borrowed):
            self._ask(place)
        for node in self._forest.nodes():
            if node.loans is not None:
                self._look_after(node, node.loans)

    def neighbours_changed(self) -> None:
        """Another node may be the root of a leaf that this one helps with."""
        for place, borrowed in list(self._borrowed.items()):
            is_root_here = self._forest.standing(place.key) is not Standing.OTHER
            if is_root_here or not may_be_root(self._host, borrowed.root.id, place.key):
                self.give_back(place)
        for node in self._forest.nodes():
            if node.loans is not None and self._forest.standing(node.key) is Standing.OTHER:
                node.loans.is_ending = True
                self._bring(node, node.loans)

    def peer_down(self, peer: PeerRef) -> None:
        """A root cannot be reached: its successor knows nothing of what it has lent."""
        for place, borrowed in list(self._borrowed.items()):
            if borrowed.root.id == peer.id:
                self.give_back(place)

    def tell_publisher(self, place: CellAddress, publisher: PeerRef) -> None:
        """Events of a publisher have come to a leaf that is shared: perhaps the next ones are to go to another node."""
        sharers = self._sharers(place)
        if sharers and publisher.id != self._host.id and self._told.is_due(place, publisher.id, self._host.now()):
            sharer = sharer_of(publisher.id, sharers)
            if sharer.id != self._host.id:
                tree = place.tree
                self._host.send(publisher, LeafHelper(tree.schema, tree.attribute, place.cell, sharer))

    def _sharers(self, place: CellAddress) -> tuple[PeerRef, ...]:
        """Who may serve for a leaf of this node, or one that it helps with; nobody, where it is not shared."""
        borrowed, node = self._borrowed.get(place), self._forest.cells.get(place)
        if borrowed is not None:
            return borrowed.root, *borrowed.helpers
        if node is None or node.loans is None or node.loans.is_ending:
            return ()
        return self._host.peer, *node.loans.helpers(self._host.now())

    # At the root

    def share(self, node: CellNode, helper: PeerRef) -> None:
        """Have one more node help with a leaf."""
        if node.loans is None:
            node.loans = Loans()
            node.hot_load = node.load(self._host.now())
        node.loans.add(helper, self._host.rng.getrandbits(62) + 1, self._host.now())
        self._log("shared", node.place, node.kept_count(), 0.0)
        self._wake()
        self._bring(node, node.loans)

    def must_wait(self, node: CellNode, sub: SubObject) -> bool:
        """Whether a piece has to wait until helpers have it, which is seen to. `_resume` is called then."""
        if node.loans is None or not node.loans.lacks(sub, self._host.now()):
            return False
        self._bring(node, node.loans)
        return True

    def is_helper(self, place: CellAddress, node_id: NodeId) -> bool:
        """Whether a node helps this one with a leaf."""
        node = self._forest.cells.get(place)
        return node is not None and node.loans is not None and node_id in node.loans.of

    def _look_after(self, node: CellNode, loans: Loans) -> None:
        now, config = self._host.now(), self._forest.config
        loans.tidy(now)
        is_cool = node.load(now) + loans.load() < COOL_SHARE * node.hot_load
        loans.cool_since = (now if loans.cool_since is None else loans.cool_since) if is_cool else None
        is_over = loans.cool_since is not None and now >= loans.cool_since + config.merge_after
        loans.is_ending |= is_over or config.balancing != "adaptive"
        if not loans.of or loans.are_over(now):
            node.loans = None
        else:
            self._bring(node, loans)
        self._resume(node.place)

    def _bring(self, node: CellNode, loans: Loans) -> None:
        for action in loans.due(node.pieces, self._host.now()):
            self._send(node, loans, action)

    def _send(self, node: CellNode, loans: Loans, action: SendPieces | TakeBack) -> None:
        number, (schema, attribute) = action.number, node.place.tree
        subs: tuple[SubObject, ...] = ()
        message = LendLeaf(schema, attribute, node.cell, 0)
        if isinstance(action, SendPieces):
            subs = action.subs
            message = LendLeaf(schema, attribute, node.cell, number, action.begins, subs, action.gone)

        def replied(reply: Message, source: PeerRef) -> None:
            if not isinstance(reply, LeafLent) or reply.state == LoanState.OVER:
                loans.refused(number)
            elif reply.taken < len(subs):
                loans.taken(number, subs[: reply.taken])  # the rest at the next tick
            elif loans.taken(number, subs) and self._forest.is_current(node):
                self._bring(node, loans)
            self._resume(node.place)

        self._host.request(action.to, message, LENT_TIMEOUT_S, replied, partial(loans.silent, number))

    @handles(LoanQuestion)
    def _asked(self, message: LoanQuestion, source: PeerRef) -> LeafLent:
        node = self._forest.find(_place(message))
        if node is None or node.loans is None or not node.is_leaf:
            return LeafLent(LoanState.OVER)
        asked = source.id, message.number, message.load
        may_serve = node.loans.may_serve(*asked, node.pieces, self._host.now())
        if may_serve is None:
            return LeafLent(LoanState.GIVEN)
        if not may_serve:
            return LeafLent(LoanState.OVER)
        return LeafLent(LoanState.SERVING, helpers=node.loans.helpers(self._host.now()))

    # At a helper

    def serves(self, tree: Tree, cell: int) -> bool:
        """Whether this node may do the work of a leaf of another one."""
        borrowed = self._borrowed.get(CellAddress(tree, cell))
        return borrowed is not None and self._host.now() < borrowed.until

    def borrowed(self, place: CellAddress) -> CellNode | None:
        """A leaf that this node helps with."""
        found = self._borrowed.get(place)
        return None if found is None else found.node

    @handles(LendLeaf)
    def _lent(self, message: LendLeaf, source: PeerRef) -> LeafLent:
        place = _place(message)
        borrowed = self._borrowed.get(place)
        if not message.number:
            if borrowed is not None and borrowed.root.id == source.id:
                self.give_back(place)
            return LeafLent(LoanState.OVER)
        if borrowed is None or (borrowed.root.id, borrowed.number) != (source.id, message.number):
            if not (message.begins and self._may_borrow(place, source)):
                return LeafLent(LoanState.OVER)
            self.give_back(place)
            node = CellNode(place, place.key, CellState.LEAF)
            borrowed = self._borrowed[place] = _Borrowed(node, source, message.number)
            self._wake()
        for name in message.gone:
            self._forest.take_back(borrowed.node, SubscriptionKey(name.subscriber, name.sid, name.piece))
        taken = 0
        for sub in message.subs:
            if not self._take(borrowed, sub):
                break
            taken += 1
        return LeafLent(LoanState.GIVEN, taken)

    def _may_borrow(self, place: CellAddress, root: PeerRef) -> bool:
        """Nobody but the root of a leaf lends it; and that is not this node itself, as far as it knows."""
        has_room = place in self._borrowed or len(self._borrowed) < BORROWED_MAX
        is_other = self._forest.standing(place.key) is Standing.OTHER
        if not (has_room and is_other and may_be_root(self._host, root.id, place.key)):
            return False
        is_known = self._forest.knows_schema(place.tree.schema)
        if not is_known:
            self._schemas.fetch(place.tree.schema, lambda schema, why_not: None)  # it may be asked again
        return is_known

    def _take(self, borrowed: _Borrowed, sub: SubObject) -> bool:
        """Take a piece in; whether that could be done now."""
        node = borrowed.node
        if sub.key in node.pieces:
            return True
        if not node.holds(sub) or sub.attribute != node.place.tree.attribute or len(node.pieces) >= PIECES_LENT_MAX:
            return False
        is_free = self._forest.has_filter(node.place.tree.schema, sub.filter)
        if not (is_free or self._work.take(borrowed.root.id, self._host.now(), price_s(sub.filter))):
            return False
        try:
            self._forest.lend(node, sub)
        except ValueError:  # for a later version of the schema; this node finds that by itself
            return False
        if sub.since_ms != SINCE_RETAINED and self.serves(node.place.tree, node.cell):
            self._installed(node.place, sub)  # of what has come here since the loan began, the root knows nothing
        return True

    def _ask(self, place: CellAddress) -> None:
        """Ask the root whether to go on."""
        borrowed, asked_at = self._borrowed[place], self._host.now()

        def replied(reply: Message, source: PeerRef) -> None:
            if self._borrowed.get(place) is not borrowed:
                return
            if not isinstance(reply, LeafLent) or reply.state == LoanState.OVER:
                self.give_back(place)
            elif reply.state == LoanState.SERVING:
                borrowed.until = max(borrowed.until, asked_at + LEASE_S)
                borrowed.helpers = reply.helpers

        def silent() -> None:
            if self._borrowed.get(place) is borrowed and self._host.now() >= borrowed.until:
                self.give_back(place)

        tree, load = place.tree, borrowed.node.load(asked_at)
        question = LoanQuestion(tree.schema, tree.attribute, place.cell, borrowed.number, load)
        self._host.request(borrowed.root, question, LENT_TIMEOUT_S, replied, silent)

    def give_back(self, place: CellAddress) -> None:
        """Help with a leaf no longer; harmless where this node does not."""
        borrowed = self._borrowed.pop(place, None)
        if borrowed is not None:
            for key in list(borrowed.node.pieces):
                self._forest.take_back(borrowed.node, key)

    def unwanted(self, key: SubscriptionKey, schema: str) -> None:
        """The subscriber itself says that it has no such subscription."""
        for place, borrowed in self._borrowed.items():
            if place.tree.schema == schema:
                self._forest.take_back(borrowed.node, key)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._borrowed) <= BORROWED_MAX
        for place, borrowed in self._borrowed.items():
            assert place not in self._forest.cells, "a leaf that is lent is another node's"
            assert len(borrowed.node.pieces) <= PIECES_LENT_MAX


def _place(message: LendLeaf | LoanQuestion) -> CellAddress:
    return CellAddress(Tree(message.schema, message.attribute), message.cell)
