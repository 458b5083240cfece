"""Adaptive load balancing: a node that does much more than others has a leaf moved or split that makes it so.

The thesis presets a cut-off line, and leaves open how to follow the load that there is (section 5.2). Here a leaf whose
events go to several nodes each is split before it is full. Its halves have other roots on the ring, and each delivers
to a part of its subscribers. Any other leaf would only weigh on one of its halves as it does now. It has two places to
choose from (the power of two choices): the node looks up who has the alternate, and moves the leaf there if that node
is less busy. No event has to visit one leaf more because of that. A leaf that can neither be split nor moved with
profit, because all its subscriptions have one point, is shared with neighbours that are less busy (`sharing`).

Whether a node does much more than others it asks of its neighbours on the ring, who are a random sample of all nodes.
It asks only when it has ``hot_rate`` and a leaf of which that can help, so a calm ring sends nothing for this. Its load
is what it sends for events, and its work for them at a price in bytes (`meter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from peerd.api import LookupResult, Part, handles
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.pubsub.messages import RATE_MAX, LoadAnswer, LoadQuestion
from protocols.pubsub.names import EVERY
from protocols.pubsub.publishing.handing_over import HandingOver
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import alternate, is_alternate
from protocols.pubsub.tree.forest import Forest
from protocols.pubsub.tree.messages import HELPERS_MAX, PIECES_LENT_MAX
from protocols.pubsub.tree.meter import METER_S, Meter
from protocols.pubsub.tree.storage import CellAddress

LOAD_TIMEOUT_S: Final = 5.0
"""How long a neighbour may take to answer."""
ANSWERS_MIN: Final = 4
"""With fewer answers nothing is split: in so small a ring it would not help much."""
COPIES_MIN: Final = 1.5
"""A leaf that sends each event to fewer nodes, in the mean, has a half that sends as much as it did."""
PLACES_ASKED: Final = 3
"""For so many of its busiest leaves a node looks at the other place."""
WORTH_MOVING: Final = 0.1
"""A leaf with less than this share of what its node sends is not moved."""
FAIR_SHARE: Final = 0.9
"""A node that a leaf is moved to sends at most this share, with the leaf, of what the one sends now that has it. With
more the two would have changed places."""
OWN_SHARE: Final = 0.25
"""A node hands its own events over only if they are so much of what it sends for events."""
WORTH_SHARING: Final = 0.25
"""A leaf with less than this share of what its node sends is not shared."""
DELIVERIES_MIN: Final = 4.0
"""A leaf that delivers to other nodes less often a second is not shared: each helper takes two messages a second."""
CALM_SHARE: Final = 0.75
"""A node goes on handing its events over until its load is below this share of what began it."""
HOT_PIECES_MIN: Final = 2
"""A leaf with fewer subscriptions is not split because of its load."""


@dataclass(slots=True)
class _Survey:
    """The answers of neighbours to one question."""

    waiting: int
    rates: dict[NodeId, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Search:
    """What the nodes send that have the other places of some leaves."""

    waiting: int
    found: list[tuple[float, CellNode, PeerRef]] = field(default_factory=list)
    """What such a node would send with the leaf."""


class Heat(Part):
    """Looks now and then whether this node is *hot*, and has one of its leaves moved or split if so."""

    def __init__(
        self,
        forest: Forest,
        split: Callable[[CellNode], None],
        move: Callable[[CellNode], None],
        share: Callable[[CellNode, PeerRef], None],
    ) -> None:
        self._forest = forest
        self._host = forest.host
        self._split, self._move, self._share = split, move, share
        self._sent = Meter()
        self._coming = Meter()
        """What leaves that are being moved here will send: it fades as fast as `_sent` comes to count it."""
        self.handing_over = HandingOver(forest.host)
        self.deliveries_min = DELIVERIES_MIN
        self._look_at = 0.0
        self._has_published_much = False
        """At the last look it was too busy because of its own events. One event may do that for a minute, so it needs
        two looks in a row before they are handed over."""

    def note_sent(self, size: int) -> None:
        """This node has sent so many bytes for events, of its own leaves or of others', or has done as much work."""
        self._sent.add(size, self._host.now())

    def tick(self) -> None:
        """Ask the neighbours, if there is a reason to and the last answers are old enough."""
        config, now, helped = self._forest.config, self._host.now(), self.handing_over
        if now < self._look_at:
            return
        is_calm = self.load(now) < config.hot_rate * (CALM_SHARE if helped.is_on else 1.0)
        is_over = is_calm or config.balancing != "adaptive"
        helped.is_on = helped.is_on and not is_over and self._publishes_much(now)
        if is_over:
            self._has_published_much = False
            return
        if not (self._publishes_much(now) or self._movable(now) or self._hottest(now) or self._shareable(now)):
            return
        self._look_at = now + config.hot_look
        self._ask()

    def _publishes_much(self, now: float) -> bool:
        """Whether it would help to hand this node's own events over."""
        share = OWN_SHARE * (CALM_SHARE if self.handing_over.is_on else 1.0)
        return self.handing_over.own_rate(now) >= share * self.load(now)

    def load(self, now: float) -> float:
        """What this node sends for events, or would if it did not hand its own ones over."""
        return self._sent.rate(now) + self.handing_over.spared_rate(now)

    def _ask(self) -> None:
        neighbours = self._host.leaf_set().members()
        survey = _Survey(len(neighbours))

        def on_reply(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, LoadAnswer):
                survey.rates[source.id] = reply.rate
            ended()

        def ended() -> None:
            survey.waiting -= 1
            if not survey.waiting:
                self._decide(survey.rates)

        for peer in neighbours:
            self._host.request(peer, LoadQuestion(), LOAD_TIMEOUT_S, on_reply, ended)

    @handles(LoadQuestion)
    def _asked(self, message: LoadQuestion, source: PeerRef) -> LoadAnswer:
        now = self._host.now()
        self._coming.add(message.brings * METER_S, now)
        sent, coming = (min(RATE_MAX, round(meter.rate(now))) for meter in (self._sent, self._coming))
        return LoadAnswer(sent, coming)

    def _decide(self, rates: Mapping[NodeId, float]) -> None:
        """Do something about it, if this node sends ``hot_share`` times the mean. No neighbour counts for more than
        this node itself, so that one that claims too much changes little."""
        now, helped = self._host.now(), self.handing_over
        helped.loads = dict(rates)
        if len(rates) < ANSWERS_MIN:
            return
        load, sent = self.load(now), self._sent.rate(now)
        mean = (sent + sum(min(rate, load) for rate in rates.values())) / (1 + len(rates))
        much = self._forest.config.hot_share * mean
        is_publisher = not helped.is_on and load >= much and self._publishes_much(now)
        before, self._has_published_much = self._has_published_much, is_publisher
        if is_publisher:
            helped.is_on = before
        elif helped.is_on and load < CALM_SHARE * much:
            helped.is_on = False
        elif sent >= much and (node := self._hottest(now)) is not None:
            self._relieved(node, self._split)
        elif sent >= much:
            self._look_elsewhere(self._movable(now))

    def _relieved(self, node: CellNode, give: Callable[[CellNode], None]) -> None:
        """A leaf goes away."""
        now = self._host.now()
        node.hot_load = node.load(now)
        self._sent.take_out(node.sent, now)
        give(node)

    def _look_elsewhere(self, leaves: list[CellNode]) -> None:
        """Find out what the nodes send that have the other places of these leaves, and move one if that is better."""
        search = _Search(1)

        def ended() -> None:
            search.waiting -= 1
            if not search.waiting:
                self._choose(search.found)

        def found(node: CellNode, result: LookupResult) -> None:
            if result.root is None or result.root.id == self._host.id:
                ended()
            else:
                self._host.request(result.root, LoadQuestion(), LOAD_TIMEOUT_S, partial(told, node), ended)

        def told(node: CellNode, reply: Message, source: PeerRef) -> None:
            if isinstance(reply, LoadAnswer):
                there = reply.rate + reply.coming + node.sent.rate(self._host.now())
                search.found.append((there, node, source))
            ended()

        for node in leaves:
            key = CellAddress(node.place.tree, alternate(node.cell)).key
            try:
                self._host.lookup(key, partial(found, node), LOAD_TIMEOUT_S)
            except Unavailable:
                break
            search.waiting += 1
        ended()

    def _choose(self, found: list[tuple[float, CellNode, PeerRef]]) -> None:
        """Move the leaf that fits best elsewhere, if one does. The node there is told at once, so that no other moves a
        leaf there before this one shows in what it sends."""
        now = self._host.now()
        fair = FAIR_SHARE * self._sent.rate(now)
        fitting = (each for each in found if each[0] <= fair and self._is_free(each[1], now))
        best = min(fitting, key=lambda each: each[0], default=None)
        if best is not None:
            _, node, peer = best
            self._tell_coming(peer, node.sent.rate(now))
            self._relieved(node, self._move)
        elif (busiest := self._shareable(now)) is not None:
            self._look_for_helper(busiest, now)

    def _tell_coming(self, peer: PeerRef, rate: float) -> None:
        brings = LoadQuestion(min(RATE_MAX, round(rate)))
        self._host.request(peer, brings, LOAD_TIMEOUT_S, lambda reply, source: None, lambda: None)

    def _look_for_helper(self, node: CellNode, now: float) -> None:
        """Have the least busy neighbour share a leaf, if it would still be less busy than this node is now."""
        loads, helpers = self.handing_over.loads, () if node.loans is None else node.loans.of
        free = [peer for peer in self._host.leaf_set().members() if peer.id in loads and peer.id not in helpers]
        peer = min(free, key=lambda each: loads[each.id], default=None)
        share = node.sent.rate(now) / (2 + len(helpers))
        if peer is not None and loads[peer.id] + share <= FAIR_SHARE * self._sent.rate(now):
            self._tell_coming(peer, share)
            self._share(node, peer)

    def _shareable(self, now: float) -> CellNode | None:
        """The busiest leaf, if it has much of what this node sends, and may have (one more) helper."""
        sent = self._sent.rate(now)
        busiest = max(self._forest.nodes(), key=lambda node: node.sent.rate(now), default=None)
        if busiest is None or busiest.sent.rate(now) < WORTH_SHARING * sent or not busiest.is_leaf:
            return None
        if busiest.copies.rate(now) < self.deliveries_min:
            return None
        if busiest.loans is None:
            is_free = busiest.is_at_rest and self._forest.is_current(busiest)
        else:
            is_free = not busiest.loans.is_ending and len(busiest.loans.of) < HELPERS_MAX
        return busiest if is_free and len(busiest.pieces) <= PIECES_LENT_MAX else None

    def _movable(self, now: float) -> list[CellNode]:
        """The busiest leaves, of those whose move can help. That of `EVERY` stays: subscribers ask its root what events
        look like (`protocols.pubsub.subscribing.samples`)."""
        sent = self._sent.rate(now)
        free = (
            node for node in self._forest.nodes() if self._is_free(node, now) and node.place.tree.attribute != EVERY
        )
        found = [node for node in free if WORTH_MOVING * sent < node.sent.rate(now) < FAIR_SHARE * sent]
        return sorted(found, key=lambda node: -node.sent.rate(now))[:PLACES_ASKED]

    def _hottest(self, now: float) -> CellNode | None:
        """The leaf that sends most, of those whose split can help."""
        found = (node for node in self._forest.nodes() if self._is_free(node, now) and self._can_share(node, now))
        return max(found, key=lambda node: node.sent.rate(now), default=None)

    def _is_free(self, node: CellNode, now: float) -> bool:
        is_ready = node.is_at_rest and now >= node.split_after
        return is_ready and self._forest.is_current(node) and not is_alternate(node.cell)

    def _can_share(self, node: CellNode, now: float) -> bool:
        """Whether each half of the leaf would have less to deliver than the leaf has."""
        copies, events = node.copies.rate(now), node.events.rate(now)
        is_divisible = node.kept_count() >= HOT_PIECES_MIN and node.is_divisible()
        return copies >= COPIES_MIN * events > 0 and is_divisible and node.level < self._forest.config.level_max
