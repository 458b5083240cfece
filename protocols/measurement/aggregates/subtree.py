"""One aggregate at one node of the tree T: what its children have told, and what it has told its parent. Pure.

A node keeps one filter, on the aggregate of its whole subtree: it says a word when that leaves the bounds that it has
told, when other nodes are counted, and now and then so that nobody takes it for dead. Nothing relies on what a node
remembers of its children: what is not said anew grows old, with all that was made of it.

No node may be counted twice, though it change its place in T, with all its subtree. So a node speaks to one parent, and
when it has got another one, or is the root now, it is silent until what it has told the first one is too old for
anybody: what was made of that is as old. A node that has just started does not know whom it has told what, and is
silent for as long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

from peerd.ids import NodeId
from peerd.lib.leases import Asks, at_most
from protocols.measurement.aggregates.budget import child_half_widths
from protocols.measurement.aggregates.messages import AggregateAsk, AggregateSpec, AggregateWord
from protocols.measurement.aggregates.partial import NOTHING, PartialAggregate, merged
from protocols.measurement.guarantee.centre import Centre
from protocols.measurement.guarantee.interval import ROUNDING, VALUE_MAX, around

UPDATES: Final = 4.0
"""A node is heard of so many times while what it has said is not too old: one word may be lost, and each hop adds to
the age."""
ASKS: Final = 2.0
"""It is asked so many times: what clocks may be off is added to the age for the time since it was asked."""
LAPSE_ASKS: Final = 3.0
"""Who is not asked for so many times the pause between two questions has nothing more to tell."""
CHILDREN_MAX: Final = 512
"""Children that a node asks."""
ASKERS_MAX: Final = 256
"""Nodes that the root tells of one aggregate."""
EARLY: Final = 0.25
"""A word is not said anew so soon after another, in shares of the pause between them."""
PART_SHARE: Final = 0.8
"""Parts count inside the tree up to this share of the age up to which they count for who asks: so that what a silent
node has made old is left out, and said to be missing, before all that was told becomes stale."""
NEVER: Final = float("-inf")
NOBODY: Final = NodeId(-1)
"""A node that has just started does not know whom it has told."""


def ask_s(spec: AggregateSpec) -> float:
    """The pause between two questions."""
    return spec.stale_s / ASKS


@dataclass(slots=True)
class HeldPartial:
    """What a node holds of another one that it has asked."""

    asks: Asks = field(default_factory=Asks)
    boot: int = 0
    number: int = 0
    partial: PartialAggregate = NOTHING

    def take(self, word: AggregateWord, now: float) -> bool:
        """A word has come, said now or any time ago. Whether it says anything new."""
        said_at = self.asks.said_at(word.asked, word.since_s)
        if said_at is None or (word.boot, word.number) <= (self.boot, self.number):
            return False
        self.boot, self.number = word.boot, word.number
        self.partial = word.partial(min(said_at, now) - at_most(word.age_s)) if word.expected else NOTHING
        return True


@dataclass(slots=True)
class _Asker:
    """Who is told: the parent, or at the root of T whoever has asked."""

    boot: int
    asked: int
    heard_at: float
    half_width: float
    told: PartialAggregate | None = None
    next_at: float = NEVER
    """When a node without children says its word anew: all nodes of T were asked at nearly the same time, and count
    from then, so that the words of all go all the way up at once."""


class TellNode(NamedTuple):
    """Say this to that node."""

    to: NodeId
    message: AggregateAsk | AggregateWord


class SubtreeAggregate:
    """``numbers``: of questions and words, growing in this ``boot``. ``started_at``: when this node did."""

    def __init__(self, spec: AggregateSpec, boot: int, numbers: Iterator[int], started_at: float) -> None:
        self.spec, self._boot, self._numbers = spec, boot, numbers
        self.key = spec.key
        self.own = NOTHING
        self.children: dict[NodeId, HeldPartial] = {}
        self.askers: dict[NodeId, _Asker] = {}
        self._parent: NodeId | None = None
        """``None``: this node is the root."""
        self._told_parent: NodeId = NOBODY
        self._told_parent_at = started_at
        self._asked_at = NEVER
        self._centre: Centre | None = None
        self._middle = 0.0

    # Asked

    def asked(self, by: NodeId, ask: AggregateAsk, now: float, *, is_root: bool) -> list[TellNode]:
        """The parent asks, or, at the root of T, anybody."""
        parent = None if is_root else by
        if parent != self._parent:
            self._parent = parent
            self.askers.clear()
        asker = self.askers.get(by)
        if asker is None and len(self.askers) >= ASKERS_MAX:
            return []
        if asker is None or asker.boot < ask.boot:
            asker = self.askers[by] = _Asker(ask.boot, 0, NEVER, 0.0)
        if asker.boot > ask.boot or asker.asked >= ask.number:
            return []
        asker.asked, asker.heard_at, asker.half_width = ask.number, now, ask.half_width
        return self._words(now)

    def spread(self, children: Collection[NodeId], now: float) -> list[TellNode]:
        """Ask the children, unless that was done a moment ago: in a circle a question goes round once."""
        if now - self._asked_at >= ask_s(self.spec) / 2:
            self._asked_at = now
            return self._ask(children, children, now)
        return []

    def _ask(self, some: Collection[NodeId], children: Collection[NodeId], now: float) -> list[TellNode]:
        """Ask some of the children."""
        room = CHILDREN_MAX - len(self.children)
        new = [child for child in children if child not in self.children]
        self.children.update((child, HeldPartial()) for child in new[: max(0, room)])
        counts = {child: max(1, held.partial.expected) for child in children if (held := self.children.get(child))}
        half_width = max((self._half_width(each) for each in self.askers.values()), default=0.0)
        widths = child_half_widths(self.spec.word, half_width, counts)
        asks = []
        for child in (child for child in some if child in widths):
            number = next(self._numbers)
            self.children[child].asks.note(number, now)
            asks.append(TellNode(child, AggregateAsk(self._boot, number, self.spec, widths[child], True)))
        return asks

    # Known

    def heard(self, child: NodeId, word: AggregateWord, now: float) -> list[TellNode]:
        """A child says something."""
        held = self.children.get(child)
        if held is None or word.asker_boot != self._boot or not held.take(word, now):
            return []
        return self._words(now)

    def sampled(self, own: PartialAggregate, now: float) -> list[TellNode]:
        """What this node measures itself."""
        self.own = own
        return self._words(now)

    def known(self, now: float) -> PartialAggregate:
        """The aggregate of this subtree, of all parts that are not too old."""
        parts = [held.partial for held in self.children.values() if self._is_fresh(held.partial, now)]
        if self.own.expected:
            own = self.own if self._is_fresh(self.own, now) else PartialAggregate(None, 0, self.own.expected, now)
            parts.append(own)
        return merged(self.spec.word, parts)

    def _is_fresh(self, partial: PartialAggregate, now: float) -> bool:
        return partial.expected > 0 and now - partial.basis <= PART_SHARE * self.spec.stale_s

    # TellNode

    def _half_width(self, asker: _Asker) -> float:
        """A mean is a sum on the way; at the root it is known of how many."""
        is_root = self._parent is None and self.spec.word == "MEAN"
        return min(VALUE_MAX, asker.half_width * (max(1, self.known_nodes) if is_root else 1))

    @property
    def known_nodes(self) -> int:
        """The nodes that this one was told of."""
        return self.own.expected + sum(held.partial.expected for held in self.children.values())

    def _words(self, now: float) -> list[TellNode]:
        if not self.askers or (self._parent != self._told_parent and self._may_be_counted(now)):
            return []
        here = self.known(now)
        if here.interval is not None:
            middle = here.interval.centre
            if self._centre is None:
                self._centre = Centre(middle)
            elif middle != self._middle:
                self._centre.add(middle)
            self._middle = middle
        return [TellNode(to, word) for to, asker in self.askers.items() if (word := self._word(asker, here, now))]

    def _word(self, asker: _Asker, here: PartialAggregate, now: float) -> AggregateWord | None:
        """What an asker is to be told, if anything."""
        half_width, told = self._half_width(asker), asker.told
        if told is None and not here.expected and self._parent is not None:
            return None
        interval = here.interval
        if interval is not None and self._centre is not None:
            interval = around(interval, self._centre.place, max(half_width, interval.half_width))
        promise = PartialAggregate(interval, here.counted, here.expected, here.basis)
        if told is not None and told.contains(here) and not _is_narrower(promise, told, half_width):
            if not self._is_due(asker, here.basis - told.basis if here.expected else 0.0, now):
                return None
            promise = PartialAggregate(told.interval, here.counted, here.expected, here.basis)
        asker.told = promise
        rounds = ceil((now - asker.heard_at) / self._update_s + EARLY)
        asker.next_at = asker.heard_at + rounds * self._update_s
        if self._parent is not None:
            self._told_parent, self._told_parent_at = self._parent, now
        return AggregateWord(
            *(self.key, self._boot, next(self._numbers), asker.boot, asker.asked, now - asker.heard_at),
            *(promise.counted, promise.expected, max(0.0, now - here.basis) if here.expected else 0.0),
            promise.interval,
        )

    @property
    def _update_s(self) -> float:
        return self.spec.stale_s / UPDATES

    def _is_due(self, asker: _Asker, younger_s: float, now: float) -> bool:
        """Whether to say anew what has been said: at its time, or when all children have said it anew."""
        is_leaf = not any(self._is_fresh(held.partial, now) for held in self.children.values())
        return younger_s > 0.0 and now >= asker.next_at if is_leaf else younger_s >= self._update_s / 2

    # Time

    def tick(self, children: Collection[NodeId], now: float) -> list[TellNode]:
        """To be called a few times in each pause between words."""
        self.askers = {
            each: asker for each, asker in self.askers.items() if now - asker.heard_at <= LAPSE_ASKS * ask_s(self.spec)
        }
        self.children = {
            child: held
            for child, held in self.children.items()
            if child in children or self._is_fresh(held.partial, now)
        }
        new = [child for child in children if child not in self.children] if self.askers else []
        return [*self._words(now), *(self._ask(new, children, now) if new else ())]

    def is_over(self, now: float) -> bool:
        """Whether nobody asks any more, and nobody can have what this node has told its parent."""
        return not self.askers and not self._may_be_counted(now)

    def _may_be_counted(self, now: float) -> bool:
        """Whether anybody may count this node by what it has told a parent."""
        return now - self._told_parent_at <= at_most(self.spec.stale_s)


def _is_narrower(promise: PartialAggregate, told: PartialAggregate, half_width: float) -> bool:
    """Whether bounds as narrow as are wanted can be told now, and were not before."""
    if promise.interval is None or told.interval is None or told.interval.is_within(half_width):
        return False
    return promise.interval.half_width < told.interval.half_width * (1.0 - ROUNDING)
