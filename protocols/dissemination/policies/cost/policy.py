"""The cost-based policy of one stream at one node (Zhou, Ooi and Tan 2008). docs/protocols/coherency-trees.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from peerd.errors import Bug
from peerd.ids import NodeId, format_id
from peerd.lib.admission import TokenBucket
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import that_fit
from protocols.dissemination.models import PastMove, PlannedMove
from protocols.dissemination.policies.cost import messages
from protocols.dissemination.policies.cost.events import EVENTS, AdaptationMeasured, TreeAdapted
from protocols.dissemination.policies.cost.family import Relations, branch_figures
from protocols.dissemination.policies.cost.measuring import Rates, is_far
from protocols.dissemination.policies.cost.model import Branch, Costs, processing_s, step_loss
from protocols.dissemination.policies.cost.orders import UNIT, Changes, OrderedChange
from protocols.dissemination.policies.cost.rounds import NodeRounds
from protocols.dissemination.policies.cost.settings import CostSettings, read_settings
from protocols.dissemination.policies.cost.transformations import Family, Kind, Transformation, rate_max
from protocols.dissemination.policies.orders import OrderedMove, TakenOrder
from protocols.dissemination.ports import ParsedItem, TreeAccess, TreePolicy
from protocols.dissemination.tree.allowance import ASK_COST, ASKS_BURST_MAX, PastAllowance
from protocols.dissemination.tree.search import MoveEnd, Offer, ParentSearch, Question

PLAN_MAX: Final = 8
PLAN_KEPT_S: Final = 2.0
"""A plan is told again for so long: to work one out takes as long as a decision, and any member may ask for it."""
UNMEASURED: Final = Costs(0.0001, 0.0001)
"""Of a node that has not sent anything yet."""
RATE_GUESS: Final = 1.0
"""Of a newcomer, where nobody has measured anything yet."""
CHANGES_MAX: Final = 2000
"""Transformations that a node considers in one round: some 50 ms in which it does nothing else."""
REPORTS_BURST: Final = 6
"""Reports to the parent at once, and one a second in the long run, whatever the children and the parent say."""
DECISIONS_AT_ONCE: Final = 2
DECISIONS_A_ROUND: Final = 1
"""In the long run. A decision orders at most two moves."""
ORDERS_AT_ONCE: Final = 2
ORDERS_A_ROUND: Final = 2
"""In the long run: a node is ordered to move by its parent and by that one's parent, each in its own turn."""
PLACES_AT_ONCE: Final = 100
PLACES_A_SECOND: Final = 50
"""Newcomers that a node works a place out for, in the long run; who gets no answer asks again."""
JOIN_S: Final = 1.0
"""After so long a newcomer takes the best of the offers that it has."""
NEEDS_ROOM: Final = (Kind.PARENT_CHILD_SWAP, Kind.UNCLE_NEPHEW_SWAP)
"""These put one more child below the node that decides before they take one away."""


class CostPolicy(TreePolicy):
    """Implements `protocols.dissemination.ports.TreePolicy`."""

    def __init__(self, tree: TreeAccess, settings: CostSettings, rounds: NodeRounds) -> None:
        self._tree = tree
        self._settings = settings
        self._rounds = rounds
        self._rates = Rates()
        self._relations = Relations(tree)
        self._changes = Changes(tree, settings.order_timeout, self._change_ended)
        self._taken = TakenOrder(tree)
        question = Question(tree.me.id, self._ask_for_place, JOIN_S, settings.join_asks)
        self.search = ParentSearch(tree.move_to, tree.random, question=question)
        self._asked: tuple[PeerRef, ...] = ()
        self._told_children: dict[NodeId, tuple[tuple[PeerRef, ...], float]] = {}
        self._parent: NodeId | None = None
        self._arrival_s = 0.0
        """How long an item takes from the producer to this node, without the last link."""
        self._involved: frozenset[NodeId] = frozenset()
        self._is_involved = False
        self._window_at = self._round_at = tree.now()
        self._reports = TokenBucket(1.0, REPORTS_BURST, tree.now())
        self._is_report_due = False
        self._plan: Sequence[PlannedMove] | None = None
        self._planned_at = 0.0
        now, round_s = tree.now(), settings.round
        self._decisions = TokenBucket(DECISIONS_A_ROUND / round_s, DECISIONS_AT_ONCE, now)
        self._obeys = TokenBucket(ORDERS_A_ROUND / round_s, ORDERS_AT_ONCE, now)
        self._askers = PastAllowance(ASKS_BURST_MAX)
        """What each newcomer has had this node work out."""
        self._places = TokenBucket(PLACES_A_SECOND, PLACES_AT_ONCE, now)
        rounds.add(tree.stream, self)

    # The place in the tree

    def child_ids(self) -> Sequence[NodeId]:
        """See `Adapting`."""
        return [child.peer.id for child in self._tree.children()]

    @property
    def costs(self) -> Costs:
        """What this node needs for an item, as measured."""
        work = self._tree.work()
        settings = self._settings
        filter_s, send_s = (UNMEASURED.filter_s, UNMEASURED.send_s) if work is None else (work.filter_s, work.send_s)
        at_most = messages.SECONDS_MAX
        collect, decide = settings.collect_s / settings.window, settings.decide_s / settings.round
        return Costs(min(filter_s, at_most), min(send_s, at_most), min(1.0, collect), min(1.0, decide))

    def _family(self) -> Family:
        rate = self._rates.all if self._tree.is_producer else self._rates.own
        return self._relations.family(self.costs, rate)

    # Joining: the same search as the greedy algorithm's (section 3.3.1), but down the best branch, not over all nodes

    def _ask_for_place(self, peer: PeerRef) -> None:
        branch = self._branch() if self._rates.is_known else None
        most, all = (None, None) if branch is None else (branch.rate_max, branch.rate_sum)
        self._tree.send(peer, messages.AskForPlace(self._tree.stream, self.search.attempt, most, all))

    def _branch(self) -> Branch:
        figures = branch_figures(self._figures())
        return Branch(figures.node, figures.rate_max, figures.rate_sum, figures.fan_out)

    def _offer_place(self, peer: PeerRef, message: messages.AskForPlace) -> None:
        now = self._tree.now()
        if not self._askers.take(peer.id, ASK_COST, now) or not self._places.take(now):
            return
        family = self._family()
        below = [family.relatives[id].branch for id in family.children if id != peer.id]
        most = message.rate_max if message.rate_max is not None else self._rates.all or RATE_GUESS
        all = message.rate_sum if message.rate_sum is not None else most
        newcomer = Branch(peer.id, most, all)
        slower_s = processing_s(family.costs, rate_max(family.rate, [*below, newcomer]), [*below, newcomer])
        now_s = processing_s(family.costs, rate_max(family.rate, below), below)
        others = (slower_s - now_s) * sum(branch.rate_sum for branch in below)
        children = [child for child in self._relations.children() if child.id != peer.id]
        children.sort(key=lambda child: (self._relations.to_peer(child), child.id))
        self._tree.send(
            peer,
            messages.PlaceOffered(
                self._tree.stream,
                message.ask,
                min(messages.SECONDS_MAX, self._own_arrival_s() + slower_s),
                max(-messages.LOSS_MAX, min(messages.LOSS_MAX, others)),
                all,
                self._tree.room() > 0 and (self._tree.is_producer or self._tree.parent is not None),
                tuple(children[: messages.CHILDREN_TOLD_MAX]),
            ),
        )

    def _offered(self, peer: PeerRef, message: messages.PlaceOffered) -> None:
        """What an item's delay would cost the newcomer there, and the others below that node."""
        loss = message.rate_sum * (message.delay_s + self._relations.to_peer(peer)) + message.others
        offer = Offer(peer, loss) if message.has_room else None
        self.search.answered(message.ask, peer.id, offer, message.children)

    def _own_arrival_s(self) -> float:
        parent = self._tree.parent
        return 0.0 if parent is None else self._arrival_s + self._relations.to_peer(parent)

    def move_ended(self, peer: PeerRef, end: str, why: int | None, others: Sequence[PeerRef]) -> None:
        """See `TreePolicy`."""
        is_moved = end == MoveEnd.MOVED.value
        super().move_ended(peer, end, why, others)
        self._check_parent()
        self._taken.ended(peer, is_moved=is_moved)

    def _check_parent(self) -> None:
        parent = self._tree.parent
        id = None if parent is None else parent.id
        if id == self._parent:
            return
        if self._parent is not None:
            self._rounds.parent_gone(self._parent, self._tree.stream)
        self._parent, self._asked = id, ()
        self._relations.forget_told()
        if parent is not None:
            self.search.stop()
            self._report()

    # Messages

    def received(self, peer: PeerRef, message: Message) -> None:
        """See `TreePolicy`."""
        stream, parent = self._tree.stream, self._tree.parent
        is_parent = parent is not None and parent.id == peer.id
        match message:
            case messages.CostReport():
                if peer.id in self.child_ids():
                    self._relations.report(peer, message)
                    self._report()
            case messages.CostRelatives():
                if is_parent:
                    self._relatives(message)
            case messages.CostToken():
                if is_parent:
                    self._token(message)
            case messages.OrderToMove():
                self._ordered(peer, message)
            case messages.OrderEnded():
                self._changes.reported(peer, message)
            case messages.AskForPlace():
                self._offer_place(peer, message)
            case messages.PlaceOffered():
                self._check_parent()
                self._offered(peer, message)
            case messages.AskToHold() | messages.HoldsStill() | messages.AskToYield() | messages.Yields():
                self._rounds.received(peer, message, stream, None if parent is None else parent.id)
            case _:
                raise Bug(f"{type(message).__name__} is no message of the cost-based policy")

    def _token(self, message: messages.CostToken) -> None:
        if self._decisions.take(self._tree.now()):
            self._is_involved = message.is_involved
            self._rounds.hold.token(self._tree.stream)
        else:
            self._rounds.hold.passed_over(self._tree.stream)

    def tell(self, node: NodeId, message: Message) -> None:
        """See `Adapting`."""
        parent = self._tree.parent
        known = {peer.id: peer for peer in (*self._relations.children(), *(() if parent is None else (parent,)))}
        if node in known:
            self._tree.send(known[node], message)

    # Figures (section 3.2.3)

    def passed(self, item: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """See `TreePolicy`."""
        self._rates.count(is_own=is_own)
        self._changes.clock_ms = item.item.published_ms

    def _figures(self) -> messages.NodeFigures:
        costs = self.costs
        return messages.NodeFigures(
            self._tree.me,
            costs.filter_s,
            costs.send_s,
            costs.collect,
            costs.decide,
            self._rates.own,
            self._tree.room() > 0,
            self._relations.branches(),
        )

    def _report(self) -> None:
        parent, now = self._tree.parent, self._tree.now()
        if parent is None:
            return
        self._is_report_due = not self._reports.has(now)
        if self._is_report_due:
            return
        report = self._relations.make_report(self._tree.stream, self._figures(), self._asked)
        if self._relations.is_news(report, self._settings.tau):
            self._reports.take(now)
            self._tree.send(parent, report)

    def _relatives(self, message: messages.CostRelatives) -> None:
        self._arrival_s = message.delay_s
        self._asked = message.peers
        self._report()

    def _tell_children(self) -> None:
        """Which delays are asked for, and how long an item takes to here."""
        family = self._family()
        branches = [family.relatives[id].branch for id in family.children]
        here_s = processing_s(family.costs, rate_max(family.rate, branches), branches)
        delay_s = min(messages.SECONDS_MAX, self._own_arrival_s() + here_s)
        peers = self._relations.peers()
        for child in self._relations.children():
            own = set(family.grandchildren(child.id)) | {child.id}
            others = [peers[id] for id in sorted(peers) if id not in own]
            below = [peers[id] for id in family.grandchildren(child.id)]
            asked = that_fit([*others, *below][: messages.DELAYS_MAX], messages.RELATIVES_BYTES_MAX)
            told = self._told_children.get(child.id)
            if told is None or told[0] != asked or is_far(delay_s, told[1], self._settings.tau):
                self._told_children[child.id] = (asked, delay_s)
                self._tree.send(child, messages.CostRelatives(self._tree.stream, delay_s, asked))

    def child_came(self, child: NodeId) -> None:
        """See `TreePolicy`."""
        self._relations.forget(child)
        self._told_children.pop(child, None)

    def child_went(self, child: NodeId) -> None:
        """See `TreePolicy`."""
        self._relations.forget(child)
        self._told_children.pop(child, None)
        self._rounds.hold.child_held(child, self._tree.stream)  # nobody need wait for it

    def tick(self) -> None:
        """See `TreePolicy`."""
        now = self._tree.now()
        self._check_parent()
        self._rounds.tick(now)
        self._changes.tick()
        super().tick()
        if self._is_report_due:
            self._report()
        if now - self._window_at >= self._settings.window:
            self._rates.end_window(now - self._window_at)
            self._window_at = now
            self._report()
            self._tell_children()
            self._measure(now)
        if self._tree.is_producer and now - self._round_at >= self._settings.round:
            self._round_at = now
            self._is_involved = False
            self._rounds.hold.token(self._tree.stream)

    # Rounds (section 3.2.2)

    def adapt(self) -> None:
        """See `Adapting`: the best transformation of this node's family, if it is worth while."""
        self._involved = frozenset()
        is_busy = self._is_involved or self._changes.is_busy or self._taken.is_busy
        if is_busy or not self._rates.is_known:
            return
        family = self._family()
        best = next(iter(self._ranked(family)), None)
        if best is None:
            return
        transformation, gain = best
        self._involved = frozenset(family.touched(transformation) | {move.node for move in transformation.moves})
        peers = self._relations.peers() | {self._tree.me.id: self._tree.me}
        self._changes.begin(transformation, family, peers, gain)

    def _ranked(self, family: Family) -> list[tuple[Transformation, float]]:
        """The transformations that are worth while, the best first. None while figures are missing, or contradict."""
        nodes = [*family.children, *(id for child in family.children for id in family.grandchildren(child))]
        if not self._relations.is_complete() or len(set(nodes)) < len(nodes) or self._tree.me.id in nodes:
            return []
        found = []
        for transformation in family.some(CHANGES_MAX, self._tree.random):
            gain = family.benefit(transformation)
            if gain > 0 and self._has_room_for(transformation):
                found.append((transformation, gain))
        found.sort(key=lambda pair: -pair[1])
        return [pair for pair in found if self._is_worth_it(family, *pair)]

    def _is_worth_it(self, family: Family, transformation: Transformation, gain: float) -> bool:
        before = family.loss_of(family.touched(transformation))
        return before is not None and gain > self._settings.gain_min * before

    def _has_room_for(self, transformation: Transformation) -> bool:
        if transformation.kind is Kind.COUSIN_SWAP:  # each comes before the other goes
            return all(self._relations.has_room(move.to) for move in transformation.moves[:1])
        if transformation.kind in NEEDS_ROOM:
            return self._tree.room() > 0
        return self._relations.has_room(transformation.moves[0].to)

    def pass_token(self, child: NodeId) -> None:
        """See `Adapting`."""
        self.tell(child, messages.CostToken(self._tree.stream, child in self._involved))

    def _ordered(self, peer: PeerRef, message: messages.OrderToMove) -> None:
        """An order of the parent or of its parent; from anybody else, who was that a moment ago perhaps, not obeyed."""
        now, left = self._tree.now(), self._tree.parent

        def ended(to: PeerRef | None) -> None:
            self._tree.send(peer, messages.OrderEnded(self._tree.stream, message.order, to is not None))

        is_above = peer.id in tuple(self._tree.path)[-2:]
        if left is not None and is_above and (self._taken.is_busy or self._obeys.take(now)):
            self._taken.obey(OrderedMove((peer.id, message.order), left, (message.to,), now, ended))
        else:
            ended(None)

    def _change_ended(self, change: OrderedChange) -> None:
        move = change.transformation.moves[0]
        stream, node = format_id(self._tree.stream), format_id(move.node)
        kind = change.transformation.kind.value
        event = TreeAdapted(
            stream=stream,
            transformation=kind,
            moved=node,
            moves=change.moved,
            is_complete=change.is_complete,
            predicted=change.predicted,
        )
        self._tree.emit(event)

    def _measure(self, now: float) -> None:
        change = self._changes.to_measure(now, self._settings.window)
        after = self._family().loss_of(change.touched) if change and self._relations.is_complete() else None
        if change is None or after is None:
            return
        change.measured = change.before - after
        event = AdaptationMeasured(
            stream=format_id(self._tree.stream),
            transformation=change.transformation.kind.value,
            moved=format_id(change.transformation.moves[0].node),
            predicted=change.predicted,
            measured=change.measured,
        )
        self._tree.emit(event)

    # For people, and leaving

    def successor(self) -> NodeId | None:
        """See `TreePolicy`: the child below which the others lose least."""
        family = self._family()
        best = None
        for child in family.children:
            own = family.relatives[child]
            others = [family.relatives[id].branch for id in family.children if id != child]
            below = [*own.children, *others]
            delay_s = processing_s(own.costs, rate_max(own.rate, below), below)
            loss = step_loss(child, delay_s, others, family.delay)
            loss += sum(branch.rate_sum for branch in own.children) * delay_s
            loss += sum(branch.rate_sum for branch in others) * family.delay(family.node, child)
            if best is None or (loss, child) < best:
                best = (loss, child)
        return None if best is None else best[1]

    def plan(self) -> Sequence[PlannedMove]:
        """See `TreePolicy`."""
        now = self._tree.now()
        if self._plan is None or now - self._planned_at >= PLAN_KEPT_S:
            self._plan, self._planned_at = self._make_plan(), now
        return self._plan

    def _make_plan(self) -> Sequence[PlannedMove]:
        family = self._family()
        return [
            PlannedMove(
                what=transformation.kind.value,
                node=format_id(move.node),
                from_parent=format_id(family.old_parent(move.node)),
                to_parent=format_id(move.to),
                gain=gain,
                unit=UNIT,
            )
            for transformation, gain in self._ranked(family)[:PLAN_MAX]
            for move in transformation.moves
        ]

    def history(self) -> Sequence[PastMove]:
        """See `TreePolicy`."""
        return self._changes.history()

    def figures(self) -> Mapping[str, float]:
        """See `TreePolicy`."""
        family = self._family()
        branches = [family.relatives[id].branch for id in family.children]
        rate = rate_max(family.rate, branches)
        delay_s = processing_s(family.costs, rate, branches)
        return {
            "filter_s": family.costs.filter_s,
            "send_s": family.costs.send_s,
            "own_items_per_s": self._rates.own,
            "items_per_s": self._rates.all,
            "processing_s": delay_s,
            "arrival_s": self._own_arrival_s(),
            "loss": step_loss(family.node, delay_s, branches, family.delay),
        }


class CostFactory:
    """Implements `protocols.dissemination.ports.PolicyFactory`: the cost-based trees of Zhou, Ooi and Tan."""

    name = "cost"
    messages: Sequence[type[Message]] = messages.MESSAGES
    events = EVENTS

    def __init__(self) -> None:
        self._rounds: WeakValueDictionary[NodeId, NodeRounds] = WeakValueDictionary()

    def settings(self, given: Mapping[str, Any]) -> CostSettings:
        """See `PolicyFactory`."""
        return read_settings(given)

    def make(self, tree: TreeAccess, settings: CostSettings) -> CostPolicy:
        """See `PolicyFactory`. All streams of a node share its rounds, however many nodes share this object."""
        rounds = self._rounds.get(tree.me.id)
        if rounds is None:
            rounds = self._rounds[tree.me.id] = NodeRounds(tree.me.id)
        return CostPolicy(tree, settings, rounds)
