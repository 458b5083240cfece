"""Installing, renewing, changing and ending pieces of subscriptions at the leaf of their point (section 3.3).

A piece that came with a routed message is provisional: events match it from now on, but it is stored only when its
subscriber has said, on its own link, that it is its own. A piece from its subscriber's own link needs no question.

To read a filter and to index it costs up to 0.25 s (`filter_work`). What comes over a link is charged to the link. Of
what comes over others a little is read at once, because subscribers wait for it; for the rest their subscribers are
told to bring it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from peerd.api import Part, handles
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib.admission import Admission, TokenBucket
from peerd.limits import DETAIL_LENGTH_MAX
from peerd.messages import PeerRef
from protocols.pubsub.bodies import beginning
from protocols.pubsub.matching.filter_work import (
    BRINGS_BURST,
    BRINGS_PER_S,
    UNPROVEN_BURST_S,
    UNPROVEN_PER_S,
    WORK_BURST_S,
    WORK_PER_S,
    price_s,
)
from protocols.pubsub.messages import (
    HOPS_MAX,
    CellState,
    Confirm,
    EndSub,
    InsertAnswer,
    InsertSub,
    Kept,
    PieceStatus,
    ProbeSub,
    SubObject,
)
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.ports import Schemas, SchemaView
from protocols.pubsub.refusals import QUOTA, WORK, Refusals
from protocols.pubsub.tree.asking import SubscriberQuestions
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import holds_point
from protocols.pubsub.tree.forest import Forest, Standing
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.storage import CellAddress
from protocols.pubsub.tree.ways import to_point

PARKED_MAX: Final = 1024
"""Probes that wait until it is known what a cell is; above it they are dropped, and their subscribers try again."""
ASKED_PER_MEMBER: Final = 256
"""Pieces in probes that one subscriber is asked about at a time. Whoever makes up more in its name uses up no more of
its quota, and leaves room for other subscribers' questions; a true probe that is dropped for it is tried again."""
KEPT_DETAIL_MAX: Final = 96
"""Bytes of the reason in `Kept`, whose cap is small. It may name whatever a filter says."""
NO_SCHEMA: Final = "the schema is not known"


class Installing(Part):
    """The requests of subscribers, for the cells that this node is the root of."""

    def __init__(
        self,
        forest: Forest,
        schemas: Schemas,
        subscribers: SubscriberQuestions,
        installed: Callable[[CellAddress, SubObject], None],
    ) -> None:
        """``installed``: a piece is new in a leaf."""
        self._installed = installed
        self.must_wait: Callable[[CellNode, SubObject], bool]
        """Whether helpers of a leaf have to get a piece first (`Sharing`, which is made after this)."""
        self._forest = forest
        self._host = forest.host
        self._refusals = Refusals(forest.host)
        self._schemas = schemas
        self._subscribers = subscribers
        self._parked: dict[CellAddress, list[ProbeSub]] = {}
        self._asking: set[tuple[CellAddress, SubscriptionKey, int]] = set()
        self._unproven = TokenBucket(UNPROVEN_PER_S, UNPROVEN_BURST_S, self._host.now())
        self._work: Admission[NodeId] = Admission(WORK_PER_S, WORK_BURST_S)
        self._brings: Admission[NodeId] = Admission(BRINGS_PER_S, BRINGS_BURST)
        self._asked: Counter[NodeId] = Counter()
        """How many questions to each subscriber are under way, so that its pieces here may be made up."""

    # Probes

    @handles(ProbeSub)
    def _probed(self, message: ProbeSub, source: PeerRef) -> None:
        sub = message.sub
        if sub.low <= sub.high and holds_point(message.cell, sub.low, sub.high):
            self.take(message)

    def take(self, message: ProbeSub) -> None:
        """A probe is at the root of its cell, as far as routing knows."""
        place = CellAddress(Tree(message.schema, message.sub.attribute), message.cell)
        node = self._forest.find(place)
        if node is None:
            if self._forest.standing(place.key) is Standing.OTHER:
                self.send_on(place, message.sub, message.lasts_s, message.cell, message)
            else:
                self._park(place, message)
        elif node.is_switching or node.is_draining or (node.is_leaf and self.must_wait(node, message.sub)):
            self._park(place, message)
        elif node.is_leaf:
            self._offer(node, message)
        elif message.only_leaf:
            return
        elif not node.is_inner and message.vouched and self._forest.growth.ask_parent(place):
            self._park(place, message)
        else:
            cell, vouched = to_point(node, message.sub.low, message.sub.high, is_careful=message.careful)
            self.send_on(place, message.sub, message.lasts_s, cell, message, vouched=vouched)

    def send_on(
        self,
        place: CellAddress,
        sub: SubObject,
        lasts_s: float,
        cell: int,
        before: ProbeSub | None = None,
        *,
        vouched: bool = False,
    ) -> None:
        """Have another cell of the tree install a piece; after too many hops the subscriber has to try again."""
        hops = 0 if before is None else before.hops + 1
        careful, only_leaf = before is not None and before.careful, before is not None and before.only_leaf
        if hops <= HOPS_MAX:
            probe = ProbeSub(place.tree.schema, sub, cell, max(1, int(lasts_s)), vouched, careful, hops, only_leaf)
            self._host.route(CellAddress(place.tree, cell).key, probe)

    def _park(self, place: CellAddress, message: ProbeSub) -> None:
        if sum(map(len, self._parked.values())) < PARKED_MAX:
            self._parked.setdefault(place, []).append(message)

    def resume(self, place: CellAddress) -> None:
        """It is known now what the cell is: probes that waited for that go on."""
        for message in self._parked.pop(place, ()):
            self.take(message)

    def resume_settled(self) -> None:
        """Probes whose cells this node can say something about now go on."""
        for place in list(self._parked):
            if self._forest.standing(place.key) is not Standing.UNSETTLED:
                self.resume(place)

    # At the leaf

    def _offer(self, node: CellNode, message: ProbeSub) -> None:
        sub, key = message.sub, message.sub.key
        known, question = node.pieces.get(key), (node.place, key, sub.version)
        if question in self._asking or (known is not None and known.sub.version > sub.version):
            return
        if self._asked[sub.subscriber.id] >= ASKED_PER_MEMBER:
            return
        if not self._has_schema(node.place.tree.schema, lambda: self.take(replace(message, hops=message.hops + 1))):
            return
        if self._is_over_quota(sub, known):
            self._refusals.count(sub.subscriber.id, QUOTA, is_proved=False)
            self._tell(node, sub, PieceStatus.QUOTA, "subscriptions_per_member")
            return
        if not self._may_read(node, sub):
            if sub.subscriber.id != self._host.id and self._brings.take(sub.subscriber.id, self._host.now()):
                self._tell(node, sub, PieceStatus.ELSEWHERE)  # the subscriber brings it, over its own link
            return
        try:
            if known is None or not known.is_kept:  # what is kept is not replaced by what somebody may have made up
                self._forest.add(node, sub, message.lasts_s)
        except ValueError as error:
            self._refuse(node, message, error)
            return
        is_new = known is None or not known.is_kept
        self._asking.add(question)
        self._asked[sub.subscriber.id] += 1
        done = partial(self._confirmed, node, message, is_new)
        if not self._subscribers.ask(node, sub, is_new=is_new, done=done):
            done(None)

    def _may_read(self, node: CellNode, sub: SubObject) -> bool:
        """Whether a filter may be read that came over other nodes, so that nobody can be charged for it."""
        if self._forest.has_filter(node.place.tree.schema, sub.filter):
            return True
        if sub.subscriber.id == self._host.id:
            return self._subscribers.own.knows(sub.sid, sub.piece)
        return self._unproven.take(self._host.now(), price_s(sub.filter))

    def _refuse(self, node: CellNode, message: ProbeSub, error: ValueError) -> None:
        """The filter does not fit the schema, unless there is a later version of it, with more attributes."""

        def looked(is_later: bool) -> None:
            if is_later:
                self.take(replace(message, hops=min(HOPS_MAX, message.hops + 1)))
            else:
                self._refusals.count(message.sub.subscriber.id, error, is_proved=False)
                self._tell(node, message.sub, PieceStatus.REFUSED, str(error))

        self._schemas.look_again(node.place.tree.schema, looked)

    def _confirmed(self, node: CellNode, message: ProbeSub, is_new: bool, confirm: Confirm | None) -> None:
        sub, key = message.sub, message.sub.key
        self._asking.discard((node.place, key, sub.version))
        self._asked[sub.subscriber.id] -= 1
        if not self._asked[sub.subscriber.id]:
            del self._asked[sub.subscriber.id]
        if not self._forest.is_current(node):
            return
        known = node.pieces.get(key)
        is_known = known is not None and known.sub.version == sub.version
        is_provisional = known is not None and not known.is_kept and is_known
        is_outdated = known is not None and known.is_kept and known.sub.version > sub.version
        is_wanted = confirm is not None and confirm.is_wanted and confirm.version <= sub.version
        if confirm is None or not is_wanted:
            if is_provisional or (confirm is not None and not confirm.is_wanted and is_known):
                self._forest.remove(node, key, with_record=True)
        elif node.is_switching or node.is_handing_over:
            self._park(node.place, message)
        elif not node.is_leaf:
            self.take(replace(message, hops=min(HOPS_MAX, message.hops + 1)))
        elif known is not None and not known.is_kept and self._is_full(sub.subscriber.id):
            self._forest.remove(node, key)
            self._refusals.count(sub.subscriber.id, QUOTA, is_proved=True)
            self._tell(node, sub, PieceStatus.QUOTA, "subscriptions_per_member")
        elif not is_outdated:
            self._keep(node, sub, confirm.lasts_s or message.lasts_s, is_new)

    def _keep(self, node: CellNode, sub: SubObject, lasts_s: float, is_new: bool) -> None:
        piece = self._forest.add(node, sub, lasts_s)
        piece.tells_subscriber = True
        self._forest.keep(node, sub.key)
        if is_new:
            self._installed(node.place, sub)
        self._forest.growth.step(node)

    def _is_over_quota(self, sub: SubObject, known: Piece | None) -> bool:
        subscriber = sub.subscriber.id
        count = self._forest.members[subscriber] - self._asked[subscriber]
        return known is None and count >= self._forest.config.subscriptions_per_member

    def _is_full(self, subscriber: NodeId) -> bool:
        """Whether a subscriber has more here than it may, without what it is being asked about."""
        count = self._forest.members[subscriber] - self._asked[subscriber]
        return count > self._forest.config.subscriptions_per_member

    def _has_schema(self, name: str, then: Callable[[], None]) -> bool:
        """Whether the schema is known; if not it is looked up, and ``then`` is called if that succeeds."""
        if self._schemas.get(name) is not None:
            return True

        def fetched(schema: SchemaView | None, why: str) -> None:
            if schema is not None:
                then()

        self._schemas.fetch(name, fetched)
        return False

    def _tell(self, node: CellNode, sub: SubObject, status: PieceStatus, detail: str = "") -> None:
        schema, cell = node.place.tree.schema, node.cell
        short = beginning(detail, KEPT_DETAIL_MAX)
        self._host.send(sub.subscriber, Kept(schema, sub.sid, sub.piece, sub.version, cell, status, short))

    def tell_kept(self, node: CellNode, piece: Piece) -> None:
        """Tell the subscriber, if it waits for that, that the whole replica set has its piece."""
        if piece.tells_subscriber:
            piece.tells_subscriber = False
            self._tell(node, piece.sub, PieceStatus.REPLICATED)

    def tell_refused(self, node: CellNode, piece: Piece, why: str) -> None:
        """Tell the subscriber that the piece could not be stored."""
        if piece.tells_subscriber:
            self._tell(node, piece.sub, PieceStatus.QUOTA, why)

    # From the subscriber itself

    @handles(InsertSub)
    def insert(self, message: InsertSub, source: PeerRef) -> InsertAnswer:
        """The subscriber gives a piece to a leaf that it knows."""
        sub = message.sub
        if sub.subscriber.id != source.id:
            raise ProtocolError("forged", "a subscription of somebody else")
        if sub.low > sub.high or not holds_point(message.cell, sub.low, sub.high):
            raise ProtocolError("invalid", "a point that does not lie in the cell")
        place = CellAddress(Tree(message.schema, sub.attribute), message.cell)
        node, elsewhere = self._leaf(place, (sub.low, sub.high))
        if node is None:
            return elsewhere
        known = node.pieces.get(sub.key)
        if known is not None and known.sub.version > sub.version:
            return InsertAnswer(PieceStatus.KEPT, node.cell)
        if not self._has_schema(message.schema, lambda: None):
            return InsertAnswer(PieceStatus.ELSEWHERE, node.cell, detail=NO_SCHEMA)  # a probe waits for it
        if self._is_over_quota(sub, known):
            self._refusals.count(source.id, QUOTA, is_proved=True)
            return InsertAnswer(PieceStatus.QUOTA, node.cell, detail="subscriptions_per_member")
        if self.must_wait(node, sub):
            return InsertAnswer(PieceStatus.ELSEWHERE, node.cell)  # a probe waits for it
        is_free = source.id == self._host.id or self._forest.has_filter(message.schema, sub.filter)
        if not (is_free or self._work.take(source.id, self._host.now(), price_s(sub.filter))):
            self._refusals.count(source.id, WORK, is_proved=True)
            return InsertAnswer(PieceStatus.QUOTA, node.cell, detail="too many new filters at once")
        is_new = known is None or not known.is_kept
        try:
            self._keep(node, sub, message.lasts_s, is_new)
        except ValueError as error:
            self._refusals.count(source.id, error, is_proved=True)
            self._schemas.look_again(message.schema, lambda is_later: None)  # the next try may find a later version
            return InsertAnswer(PieceStatus.REFUSED, node.cell, detail=beginning(str(error), DETAIL_LENGTH_MAX))
        return InsertAnswer(PieceStatus.KEPT, node.cell, is_new)

    @handles(EndSub)
    def end(self, message: EndSub, source: PeerRef) -> InsertAnswer | None:
        """The subscriber ends a piece.

        While it is not known here what the cell is, there is no answer, and the subscriber tries again: it would take
        "elsewhere" for a leaf that was split, look for the piece below, and think that it is nowhere.
        """
        place = CellAddress(Tree(message.schema, message.attribute), message.cell)
        known_cell = self._forest.find(place)
        if known_cell is None or known_cell.is_switching or known_cell.is_handing_over:
            return None
        node, elsewhere = self._leaf(place, None)
        if node is None:
            return elsewhere
        key = SubscriptionKey(source.id, message.sid, message.piece)
        known = node.pieces.get(key)
        if known is not None and known.sub.version <= message.version:
            self._forest.remove(node, key, with_record=True)
        return InsertAnswer(PieceStatus.GONE, node.cell)

    def _leaf(self, place: CellAddress, point: tuple[int, int] | None) -> tuple[CellNode | None, InsertAnswer]:
        """The leaf that is meant, or the answer that says where to look next."""
        node = self._forest.find(place)
        if node is None or node.is_switching or node.is_handing_over:
            return None, InsertAnswer(PieceStatus.ELSEWHERE, place.cell)
        if node.is_leaf:
            return node, InsertAnswer(PieceStatus.KEPT, place.cell)
        x, y = point if point is not None else (0, 0)
        if node.state is CellState.INNER and point is None:  # which half has it, only the subscriber knows
            return None, InsertAnswer(PieceStatus.ELSEWHERE, place.cell)
        return None, InsertAnswer(PieceStatus.ELSEWHERE, to_point(node, x, y, is_careful=False)[0])
