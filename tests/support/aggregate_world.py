"""A few nodes in a tree that reckon one aggregate, and all that may happen to them; and one who knows all values.

Messages take any time, are lost and doubled. Nodes change their place in the tree, pause, and start anew; clocks run at
rates of their own. With ``half_width`` 0, the sum says of every node whether it is counted, how often, and with which
value: each node's values are four bits of it, from 4 to 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

from peerd.ids import NodeId
from peerd.lib.leases import DRIFT_MAX
from protocols.measurement.aggregates.messages import AggregateAsk, AggregateSpec, AggregateWord
from protocols.measurement.aggregates.partial import FUNCTIONS, NOTHING, PartialAggregate, of_one
from protocols.measurement.aggregates.subtree import HeldPartial, SubtreeAggregate, TellNode, ask_s

ASKER: Final = 99
STEP_S: Final = 0.05
TICK_S: Final = 0.25
SAMPLE_S: Final = 1.0
ROUNDING_S: Final = 1e-6


def spec_of(function: str = "SUM", half_width: float = 0.0, stale_s: float = 6.0) -> AggregateSpec:
    """What is asked."""
    return AggregateSpec(FUNCTIONS.index(function), "walk", "", half_width, stale_s)


@dataclass
class Machine:
    """One node: its clock, its place, what it measures, and what it does at the moment."""

    index: int
    rate: float
    parent: int | None
    aggregate: SubtreeAggregate = field(init=False)
    numbers: Iterator[int] = field(init=False)
    boot: int = 0
    is_up: bool = True
    is_paused: bool = False
    ticked_at: float = 0.0
    values: list[tuple[float, float]] = field(default_factory=list)
    """What it has read, and when, by real time."""

    def clock(self, real: float) -> float:
        return 1000.0 * self.index + self.rate * real


class AggregateWorld:
    """``parents``: by node, ``None`` for the root. ``trouble``: how probable each trouble is, at each chance."""

    def __init__(self, parents: list[int | None], spec: AggregateSpec, seed: int, trouble: float = 0.0) -> None:
        self.rng, self.real, self.trouble, self.spec = Random(seed), 0.0, trouble, spec
        drift = DRIFT_MAX if trouble else 0.0
        rates = [1.0 + self.rng.uniform(-drift, drift) for _ in parents]
        self.nodes = [
            Machine(index, rate, parent) for index, (rate, parent) in enumerate(zip(rates, parents, strict=True))
        ]
        self.letters: list[tuple[float, int, int, AggregateAsk | AggregateWord]] = []
        self.held, self.numbers, self.asked_at, self.asked = HeldPartial(), count(1), -100.0, 0
        self.words: dict[int, int] = {}
        """Words upward, by who says them."""
        self.fresh = self.looks = self.complete = 0
        self.boots = 0
        for node in self.nodes:
            self._boot(node)

    def _boot(self, node: Machine) -> None:
        self.boots += 1
        node.boot, node.numbers, node.is_paused = self.boots, count(1), False
        node.aggregate = SubtreeAggregate(self.spec, node.boot, node.numbers, node.clock(self.real))

    # What happens

    def run(self, seconds: float) -> list[str]:
        """Let so much time pass; what does not hold meanwhile."""
        offences: list[str] = []
        end = self.real + seconds
        while self.real < end and not offences:
            self.real += STEP_S
            if self.trouble:
                self._harm()
            self._deliver()
            self._ask()
            for node in self.nodes:
                if node.is_up and not node.is_paused:
                    self._live(node)
            offences = list(self.offences())
        return offences

    def _live(self, node: Machine) -> None:
        now = node.clock(self.real)
        if not node.values or self.real - node.values[-1][0] >= SAMPLE_S:
            value = float(self.rng.randrange(4, 8) << (4 * node.index)) if self.rng.random() < 0.2 else 0.0
            node.values.append((self.real, value or (node.values[-1][1] if node.values else 4.0 * 16**node.index)))
            self._send(node, node.aggregate.sampled(self._own(node), now))
        if self.real - node.ticked_at >= TICK_S:
            node.ticked_at = self.real
            self._send(node, node.aggregate.tick(self._children(node), now))

    def _own(self, node: Machine) -> PartialAggregate:
        at, value = node.values[-1]
        return of_one(self.spec.word, value, True, node.clock(at))

    def _children(self, node: Machine) -> list[NodeId]:
        return [NodeId(each.index) for each in self.nodes if each.parent == node.index]

    def _ask(self) -> None:
        if self.real - self.asked_at >= ask_s(self.spec):
            self.asked_at = self.real
            self.asked = next(self.numbers)
            self.held.asks.note(self.asked, self.real)
            roots = [node for node in self.nodes if node.parent is None]
            self._post(ASKER, roots[0].index, AggregateAsk(1, self.asked, self.spec, self.spec.half_width))

    def _send(self, node: Machine, told: list[TellNode]) -> None:
        for to, message in told:
            if isinstance(message, AggregateWord):
                self.words[node.index] = self.words.get(node.index, 0) + 1
            self._post(node.index, int(to), message)

    def _post(self, source: int, to: int, message: AggregateAsk | AggregateWord) -> None:
        for _ in range(2 if self.rng.random() < self.trouble else 1):
            late = self.rng.uniform(0.0, 10.0) if self.rng.random() < self.trouble else 0.0
            if self.rng.random() >= self.trouble:
                self.letters.append((self.real + self.rng.uniform(0.01, 0.1) + late, source, to, message))

    def _deliver(self) -> None:
        due = sorted((each for each in self.letters if each[0] <= self.real), key=lambda each: each[:3])
        self.letters = [each for each in self.letters if each[0] > self.real]
        for letter in due:
            _, source, to, message = letter
            if to == ASKER:
                assert isinstance(message, AggregateWord)
                if source != self._root:
                    self.held, self._root = HeldPartial(self.held.asks, partial=self.held.partial), source
                self.held.take(message, self.real)
                continue
            node = self.nodes[to]
            if node.is_paused:
                self.letters.append((self.real + STEP_S, *letter[1:]))
            elif node.is_up:
                self._hear(node, source, message)

    _root = -1

    def _hear(self, node: Machine, source: int, message: AggregateAsk | AggregateWord) -> None:
        now = node.clock(self.real)
        if isinstance(message, AggregateWord):
            self._send(node, node.aggregate.heard(NodeId(source), message, now))
        elif node.parent == (None if source == ASKER else source):
            is_root = node.parent is None
            self._send(node, node.aggregate.asked(NodeId(source), message, now, is_root=is_root))
            self._send(node, node.aggregate.spread(self._children(node), now))

    def _harm(self) -> None:
        if self.rng.random() > self.trouble * 0.5:
            return
        node = self.rng.choice(self.nodes)
        what = self.rng.choice(("move", "move", "pause", "resume", "resume", "start", "down", "up", "root"))
        if what in ("move", "start") and node.parent is not None:
            node.parent = self.rng.choice([each.index for each in self.nodes if each is not node])  # maybe in a circle
        if what == "start" and node.is_up:
            self._boot(node)
        elif what == "root":
            for each in self.nodes:
                each.parent = None if each is node else node.index if each.parent is None else each.parent
        elif what in ("pause", "resume"):
            node.is_paused = what == "pause"
        elif what in ("down", "up"):
            node.is_up = what == "up"

    # What has to hold

    @property
    def answer(self) -> PartialAggregate | None:
        """What the asker has, if it is not stale."""
        known = self.held.partial
        is_fresh = known is not NOTHING and self.real - known.basis <= self.spec.stale_s
        return known if is_fresh else None

    def offences(self) -> Iterator[str]:
        self.looks += 1
        known = self.answer
        if known is None or known.interval is None:
            return
        self.fresh += 1
        self.complete += known.counted == len(self.nodes)
        since = self.real - (self.real - known.basis) / (1.0 - DRIFT_MAX) - ROUNDING_S
        had = [self._values_since(node, since) for node in self.nodes]
        if self.spec.half_width == 0.0 and self.spec.word == "SUM":
            yield from self._decoded(int(known.interval.low), known, had)
            return
        lows = sorted(min(each) for each in had if each)[: known.counted]
        highs = sorted((max(each) for each in had if each), reverse=True)[: known.counted]
        ends = {"SUM": (sum(lows), sum(highs)), "MIN": (lows[0], highs[-1]), "MAX": (lows[-1], highs[0])}
        least, most = ends[self.spec.word]  # that any so many of them can make
        if known.interval.high < least - 1e-6 or known.interval.low > most + 1e-6:
            yield f"at {self.real:.2f} {known} was told, and it was from {least} to {most} since {since:.2f}"

    def _decoded(self, total: int, known: PartialAggregate, had: list[list[float]]) -> Iterator[str]:
        counted = 0
        for node, values in zip(self.nodes, had, strict=True):
            digit = total >> (4 * node.index) & 15
            counted += digit > 0
            if digit and float(digit << (4 * node.index)) not in values:
                yield f"at {self.real:.2f} node {node.index} is told with {digit}, age {self.real - known.basis:.2f}"
        if counted != known.counted:
            yield f"at {self.real:.2f} {known.counted} nodes are said to be counted, and are {counted}"

    @staticmethod
    def _values_since(node: Machine, since: float) -> list[float]:
        """What it has read since then."""
        return [value for at, value in node.values if at >= since]
