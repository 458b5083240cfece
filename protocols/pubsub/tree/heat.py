"""Adaptive load balancing: a node that sends much more than others has the leaf split that makes it so.

The thesis presets a cut-off line, and leaves open how to follow the load that there is (section 5.2). Here a leaf whose
events go to several nodes each is split before it is full. Its halves have other roots on the ring, and each delivers
to a part of its subscribers.

Whether a node sends much more than others it asks of its neighbours on the ring, who are a random sample of all nodes.
It asks only when it sends ``hot_rate`` and has a leaf whose split can help, so a calm ring sends nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Part, handles
from peerd.messages import Message, PeerRef
from protocols.pubsub.messages import RATE_MAX, LoadAnswer, LoadQuestion
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.forest import Forest
from protocols.pubsub.tree.meter import Meter

LOOK_S: Final = 60.0
"""Between two questions to the neighbours, and so between two splits of one node because of load: what the last one has
changed shows by then."""
LOAD_TIMEOUT_S: Final = 5.0
"""How long a neighbour may take to answer."""
ANSWERS_MIN: Final = 4
"""With fewer answers nothing is split: in so small a ring it would not help much."""
COPIES_MIN: Final = 1.5
"""A leaf is split only if it sends each event to so many nodes, in the mean: else its halves send as much as it did."""
HOT_PIECES_MIN: Final = 2
"""A leaf with fewer subscriptions is not split because of its load."""


@dataclass(slots=True)
class _Survey:
    """The answers of neighbours to one question."""

    waiting: int
    rates: list[float] = field(default_factory=list)


class Heat(Part):
    """Looks now and then whether this node is *hot*, and has one of its leaves split if so."""

    def __init__(self, forest: Forest, split: Callable[[CellNode], None]) -> None:
        self._forest = forest
        self._host = forest.host
        self._split = split
        self._sent = Meter()
        self._look_at = 0.0

    def note_sent(self, size: int) -> None:
        """This node has sent so many bytes for events, of its own leaves or of others'."""
        self._sent.add(size, self._host.now())

    def tick(self) -> None:
        """Ask the neighbours, if there is a reason to and the last answers are old enough."""
        config, now = self._forest.config, self._host.now()
        if config.balancing != "adaptive" or now < self._look_at or self._sent.rate(now) < config.hot_rate:
            return
        if self._hottest(now) is None:
            return
        self._look_at = now + LOOK_S
        self._ask()

    def _ask(self) -> None:
        neighbours = self._host.leaf_set().members()
        survey = _Survey(len(neighbours))

        def on_reply(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, LoadAnswer):
                survey.rates.append(reply.rate)
            ended()

        def ended() -> None:
            survey.waiting -= 1
            if not survey.waiting:
                self._decide(survey.rates)

        for peer in neighbours:
            self._host.request(peer, LoadQuestion(), LOAD_TIMEOUT_S, on_reply, ended)

    @handles(LoadQuestion)
    def _asked(self, message: LoadQuestion, source: PeerRef) -> LoadAnswer:
        return LoadAnswer(min(RATE_MAX, round(self._sent.rate(self._host.now()))))

    def _decide(self, rates: list[float]) -> None:
        """Split a leaf, if this node sends ``hot_share`` times the mean. No neighbour counts for more than this node
        itself, so that one that claims too much changes little."""
        now = self._host.now()
        own = self._sent.rate(now)
        if len(rates) < ANSWERS_MIN:
            return
        mean = (own + sum(min(rate, own) for rate in rates)) / (1 + len(rates))
        node = self._hottest(now)
        if node is not None and own >= self._forest.config.hot_share * mean:
            node.hot_load = node.load(now)
            self._sent.take_out(node.sent, now)
            self._split(node)

    def _hottest(self, now: float) -> CellNode | None:
        """The leaf that sends most, of those whose split can help."""
        found = (node for node in self._forest.nodes() if self._can_help(node, now))
        return max(found, key=lambda node: node.sent.rate(now), default=None)

    def _can_help(self, node: CellNode, now: float) -> bool:
        return (
            node.is_leaf
            and node.split is None
            and node.move_up is None
            and now >= node.split_after
            and node.level < self._forest.config.level_max
            and node.copies.rate(now) >= COPIES_MIN * node.events.rate(now) > 0
            and node.kept_count() >= HOT_PIECES_MIN
            and node.is_divisible()
        )
