"""A few nodes that hold each other's values, and everything that may happen to them; and one who knows all values.

Messages lie about until they are delivered, in any order, any number of times, or never. Nodes pause, and start anew.
Each machine's clock runs at its own rate. After each step `World.offences` says what does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from peerd.ids import NodeId
from peerd.lib.leases import DRIFT_MAX
from protocols.measurement.guarantee.caching import CacheAnswer, Caching
from protocols.measurement.guarantee.effects import Effect, SendTo
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement, Terms, Want

TERMS: Final = Terms(max_age_s=30.0, update_s=5.0, ask_s=10.0)
PATIENT: Final = Terms(max_age_s=45.0, update_s=5.0, ask_s=10.0)
"""Those of every third node."""
OWNER: Final = 0
CPU: Final = Measurement(NodeId(OWNER), "cpu")
MESSAGES_MAX: Final = 64
STEP_S: Final = 0.001
"""No two steps are at one time."""
ROUNDING_S: Final = 1e-6
Op = tuple[str, int, float]
"""What happens, which node or message, and how much of it."""


@dataclass
class Machine:
    """One node: its clock, its process, and what it does at the moment."""

    rate: float
    offset: float
    half_width: float
    provider: int
    terms: Terms
    boot: int = 0
    is_paused: bool = False
    caching: Caching = field(init=False)

    def clock(self, real: float) -> float:
        return self.offset + self.rate * real


@dataclass
class Letter:
    """A message under way."""

    source: int
    to: int
    message: CacheAsk | CacheUpdate


class World:
    """``rates``: how fast the clocks run, one for each node. Each is provided for by a node before it, at first."""

    def __init__(self, rates: list[float], providers: list[int], half_widths: list[float]) -> None:
        self.real = 1000.0
        self.boots = 0
        self.letters: list[Letter] = []
        self.truth: list[tuple[float, float]] = [(0.0, 0.0)]
        """The true value since that time."""
        self.samples: dict[int, list[tuple[float, float]]] = {}
        """When the owner read which values, by its boot."""
        self.reading: tuple[int, float, float] | None = None
        """A reading under way: the owner's boot, when it began by the owner's clock, what it found."""
        self.withdrawn: set[tuple[int, int, int, int]] = set()
        """(provider, its boot, holder, its boot) of promises that were taken back."""
        self.fresh_reads = self.reads = 0
        self.nodes = [
            Machine(rate, 100.0 * index, half, provider, PATIENT if index % 3 == 2 else TERMS)
            for index, (rate, provider, half) in enumerate(zip(rates, providers, half_widths, strict=True))
        ]
        for index in range(len(self.nodes)):
            self._boot(index)

    # What happens

    def play(self, op: Op) -> None:
        """One step."""
        what, number, amount = op
        self.real += STEP_S
        getattr(self, f"_do_{what}")(number, amount)

    def _boot(self, index: int) -> None:
        node = self.nodes[index]
        self.boots += 1
        node.boot, node.is_paused = self.boots, False
        node.caching = Caching(NodeId(index), node.boot, node.terms)
        if index == OWNER:
            self.samples[node.boot] = []
        else:
            self._want(index)

    def _want(self, index: int) -> None:
        node = self.nodes[index]
        now = node.clock(self.real)
        self._carry_out(index, node.caching.want([Want(CPU, node.half_width)], NodeId(node.provider), now))

    def _carry_out(self, index: int, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, SendTo):
                continue
            message, to = effect.message, self.nodes[effect.to]
            if isinstance(message, CacheUpdate) and message.gone:
                self.withdrawn.add((index, message.boot, effect.to, message.holder_boot))
            if isinstance(message, CacheAsk) and message.drops:
                self.withdrawn.add((effect.to, to.boot, index, message.boot))
            self.letters.append(Letter(index, effect.to, message))
        del self.letters[: max(0, len(self.letters) - MESSAGES_MAX)]

    def _do_wait(self, number: int, amount: float) -> None:
        self.real += amount

    def _do_truth(self, number: int, amount: float) -> None:
        self.truth.append((self.real, self.truth[-1][1] + amount))

    def _do_read(self, number: int, amount: float) -> None:
        """The owner begins to read its source, which answers with what is true now, or ends to."""
        owner = self.nodes[OWNER]
        if owner.is_paused:
            return
        if self.reading is None or self.reading[0] != owner.boot:
            self.reading = owner.boot, owner.clock(self.real), self.truth[-1][1]
            return
        (boot, asked_at, value), self.reading = self.reading, None
        self.samples[boot].append((self.real, value))
        self._carry_out(OWNER, owner.caching.sampled({CPU.name: value}, asked_at, owner.clock(self.real)))

    def _do_blip(self, number: int, amount: float) -> None:
        """The value jumps, and is back at the owner's next reading."""
        for change in (amount, -amount):
            self._do_truth(0, 4.0 * change)
            for _ in range(2):
                self.real += STEP_S
                self._do_read(0, 0.0)

    def _do_deliver(self, number: int, amount: float) -> None:
        if self.letters:
            self._hand_over(self.letters.pop(number % len(self.letters)))

    def _do_copy(self, number: int, amount: float) -> None:
        if self.letters:
            self._hand_over(self.letters[number % len(self.letters)])

    def _do_lose(self, number: int, amount: float) -> None:
        if self.letters:
            del self.letters[number % len(self.letters)]

    def _hand_over(self, letter: Letter) -> None:
        node = self.nodes[letter.to]
        if node.is_paused:
            self.letters.append(letter)
            return
        now, source = node.clock(self.real), NodeId(letter.source)
        if isinstance(letter.message, CacheAsk):
            self._carry_out(letter.to, node.caching.asked(source, letter.message, now))
        else:
            self._carry_out(letter.to, node.caching.heard(source, letter.message, now))

    def _do_tick(self, number: int, amount: float) -> None:
        index = number % len(self.nodes)
        node = self.nodes[index]
        if not node.is_paused:
            self._carry_out(index, node.caching.tick(node.clock(self.real)))

    def _do_pause(self, number: int, amount: float) -> None:
        self.nodes[number % len(self.nodes)].is_paused = True

    def _do_resume(self, number: int, amount: float) -> None:
        self.nodes[number % len(self.nodes)].is_paused = False

    def _do_restart(self, number: int, amount: float) -> None:
        self._boot(number % len(self.nodes))

    def _do_move(self, number: int, amount: float) -> None:
        """A node wants the value from another one, which may be one below it."""
        index = number % len(self.nodes)
        provider = int(amount) % len(self.nodes)
        node = self.nodes[index]
        if index not in (OWNER, provider) and not node.is_paused:
            node.provider = provider
            self._want(index)

    def _do_tighten(self, number: int, amount: float) -> None:
        """A node wants other bounds."""
        index = number % len(self.nodes)
        node = self.nodes[index]
        if index != OWNER and not node.is_paused:
            node.half_width = amount
            self._want(index)

    def _do_calm(self, number: int, amount: float) -> None:
        """For a few seconds everything goes well, but for what is paused."""
        for _ in range(number % 4 + 1):
            self.real += min(amount, 2.0) + STEP_S
            self._do_read(0, 0.0)
            for index in range(len(self.nodes)):
                self._do_tick(index, 0.0)
            for _ in range(2 * len(self.nodes)):
                self._do_deliver(0, 0.0)

    def heal(self) -> None:
        """Nothing fails any more, and everybody asks the owner, for half a minute."""
        for index, node in enumerate(self.nodes):
            node.is_paused = False
            if index != OWNER:
                node.provider = OWNER
                self._want(index)
        for _ in range(30):
            self._do_calm(0, 1.0)

    # What must hold

    def offences(self) -> list[str]:
        """What does not hold at this moment."""
        found: list[str] = []
        for index, node in enumerate(self.nodes):
            answer = node.caching.read(CPU, node.clock(self.real))
            self.reads += answer is not None
            if answer is not None and not answer.is_stale:
                self.fresh_reads += 1
                found += [f"node {index}: {what}" for what in self._judge(node, answer)]
            node.caching.provider.validate(node.clock(self.real))
        return found

    def _judge(self, node: Machine, answer: CacheAnswer) -> list[str]:
        found = []
        interval, since = answer.claim.interval, answer.claim.since
        if answer.age_s > node.terms.max_age_s:
            found.append("too old")
        until = self.real - answer.age_s / node.rate - ROUNDING_S
        read = self.samples[since.epoch][since.number - 1 :]
        if wrong := [value for at, value in read if at <= until and not interval.holds(value)]:
            found.append(f"the owner read {wrong[0]} before the age of {interval}")
        if not any(interval.holds(value) for value in self._true_between(until)):
            found.append(f"no true value since its age was in {interval}")
        if answer.provider != node.caching.me:
            found += self._judge_edge(node, answer)
        return found

    def _true_between(self, begin: float) -> list[float]:
        earlier = [value for at, value in self.truth if at <= begin]
        return [*earlier[-1:], *(value for at, value in self.truth if at > begin)]

    def _judge_edge(self, node: Machine, answer: CacheAnswer) -> list[str]:
        """The provider keeps its promise for longer than the holder relies on it (invariant 27), and contains it, or
        knows that it has still to tell."""
        held = node.caching.holder.held[CPU]
        provider, me = self.nodes[held.provider], node.caching.me
        if provider.boot != held.boot or (held.provider, held.boot, me, node.boot) in self.withdrawn:
            return []
        known = provider.caching.fresh(CPU, provider.clock(self.real))
        if known is None:
            return []
        edge = provider.caching.provider.edges.get(me)
        promise = None if edge is None or edge.boot != node.boot else edge.guarantees.get(CPU)
        if promise is None or promise.number < held.number:
            return ["its provider has forgotten it"]
        is_right = promise.is_broken or held.claim.interval.contains(known.claim.interval)
        if promise.number == held.number and not is_right:
            return ["its interval does not contain that of its provider"]
        return []


def drawn(rng: Random, steps: int) -> tuple[World, list[Op]]:
    """A world, and so many steps of what happens in it."""
    count = rng.randint(2, 4)
    rates = [rng.choice((1.0 - DRIFT_MAX, 1.0, 1.0 + DRIFT_MAX)) for _ in range(count)]
    providers = [max(0, rng.randrange(max(1, index))) for index in range(count)]
    half_widths = [rng.choice((1.0, 1.0, 2.0, 3.0)) for _ in range(count)]
    return World(rates, providers, half_widths), [drawn_op(rng) for _ in range(steps)]


OPS: Final[dict[str, int]] = {
    "wait": 8,
    "truth": 12,
    "read": 12,
    "blip": 3,
    "deliver": 24,
    "copy": 3,
    "lose": 4,
    "tick": 12,
    "calm": 8,
    "pause": 2,
    "resume": 4,
    "restart": 3,
    "move": 1,
    "tighten": 3,
}
"""What may happen, and how often it does."""


def drawn_op(rng: Random) -> Op:
    """One step."""
    what = rng.choices(list(OPS), list(OPS.values()))[0]
    amounts = {"wait": rng.choice((0.1, 1.0, 4.0, 12.0, 40.0)), "tighten": rng.choice((1.0, 2.0, 3.0))}
    amount = amounts.get(what, rng.choice((-4.0, -1.5, -0.7, -0.2, 0.2, 0.7, 1.5, 4.0)))
    if what in ("calm", "move"):
        amount = float(rng.randint(0, 3))
    return what, rng.randrange(8), amount
