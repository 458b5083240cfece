"""A few nodes of T that splice caches of one value in and out, and every order in which that may happen.

A world is its choices so far, played from the beginning: which link hands over its oldest message next, which message
is lost, who crashes, when the owner reads another value. Between two readings no time passes, so that worlds which
differ only in the order of what does not matter are the same one, and are looked at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final, cast

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Effect, ProviderLost, SendTo
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement, Terms, Want
from protocols.measurement.placing.along import WayProofs
from protocols.measurement.placing.messages import MoveCaches, SpliceIn
from protocols.measurement.placing.splicing import Splicing
from protocols.measurement.placing.statistics import Statistics
from protocols.measurement.placing.tree import TreeRoutes

TERMS: Final = Terms(max_age_s=30.0, update_s=5.0, ask_s=10.0)
HALF_WIDTH: Final = 1.0
Choice = tuple[Hashable, ...]
"""("deliver" or "lose", source, to), ("crash", node), ("read",), ("in" or "out", node)."""


def _know(peer: PeerRef) -> None:
    """All nodes know each other."""


class _Host:
    """What `Splicing` needs of a host."""

    def __init__(self, world: SpliceWorld, index: int) -> None:
        self._world, self._index = world, index
        self.peer = PeerRef(NodeId(index), "10.0.0.1", index + 1)
        self.id = self.peer.id
        self.rng = Random(0)

    def now(self) -> float:
        return self._world.now

    def set_timer(self, name: str, delay_s: float, payload: Hashable = None) -> None:
        self._world.timers[self._index, name, payload] = self._world.now + delay_s

    def cancel_timer(self, name: str, payload: Hashable = None) -> None:
        self._world.timers.pop((self._index, name, payload), None)

    def may_pass(self, peer: PeerRef) -> bool:
        return True

    def sign(self, statement: bytes) -> bytes:
        return b"signed"

    def verify(self, signer: NodeId, statement: bytes, proof: bytes) -> bool:
        return proof == b"signed"


class _Tree:
    """T as it is drawn."""

    def __init__(self, world: SpliceWorld, index: int) -> None:
        self._world, self._index = world, index

    def branch(self, owner: NodeId, path: Sequence[NodeId]) -> PeerRef | None:
        came_from = path[-2] if len(path) > 1 else None
        parents = self._world.parents
        above = [int(owner)]
        while parents[above[-1]] is not None:
            above.append(cast(int, parents[above[-1]]))
        child = next((low for low, high in pairwise(above) if high == self._index), None)
        to = parents[self._index] if child is None else child
        is_back = to is None or to == came_from
        return None if is_back or to is None else self._world.peers[to]


@dataclass
class SpliceNode:
    """One node: what is pure of it."""

    caching: Caching
    splicing: Splicing
    is_up: bool = True
    wants_out: bool = False


@dataclass
class SpliceWorld:
    """``parents``: T, by node; node 0 owns the value."""

    parents: tuple[int | None, ...]
    now: float = 100.0
    value: float = 0.0
    links: dict[tuple[int, int], list[Message]] = field(default_factory=dict)
    timers: dict[tuple[int, str, Hashable], float] = field(default_factory=dict)
    samples: list[tuple[int, float, float]] = field(default_factory=list)
    """Number, time and value of all readings of the owner."""

    def __post_init__(self) -> None:
        self.peers = [PeerRef(NodeId(index), "10.0.0.1", index + 1) for index in range(len(self.parents))]
        self.cpu = Measurement(NodeId(0), "cpu")
        self.nodes = [self._boot(index, 1) for index in range(len(self.parents))]
        self.read()

    def _boot(self, index: int, boot: int) -> SpliceNode:
        host, caching = cast(Host, _Host(self, index)), Caching(NodeId(index), boot, TERMS)

        def carry_out(effects: Iterable[Effect]) -> None:
            self.carry_out(index, effects)

        def send(peer: PeerRef, message: Message) -> None:
            self.links.setdefault((index, int(peer.id)), []).append(message)

        routes, statistics = cast(TreeRoutes, _Tree(self, index)), Statistics(1e9, lambda: None)
        known = dict(enumerate(self.peers))
        splicing = Splicing(
            host, caching, routes, statistics, WayProofs(host, send), carry_out, send, _know, known.get, 1e9
        )
        return SpliceNode(caching, splicing)

    def carry_out(self, index: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendTo(to, message):
                    self.links.setdefault((index, int(to)), []).append(message)
                case ProviderLost(measurement, provider):
                    self.nodes[index].splicing.lost(measurement, provider)

    # What happens

    def read(self) -> None:
        """The owner reads another value, far from the one before; time passes."""
        self.now += 1.0
        self.value += 10.0
        owner = self.nodes[0]
        self.carry_out(0, owner.caching.sampled({"cpu": self.value}, self.now, self.now))
        self.samples.append((len(self.samples) + 1, self.now, self.value))

    def play(self, choice: Choice) -> None:
        """One step."""
        what, *rest = choice
        numbers = cast(list[int], rest)
        if what == "read":
            self.read()
        elif what == "in":
            self.nodes[numbers[0]].splicing.seek([Want(self.cpu, HALF_WIDTH)], TERMS.update_s)
        elif what == "out":
            self.nodes[numbers[0]].wants_out = True
            self.nodes[numbers[0]].splicing.decided((self.cpu,))
        elif what == "crash":
            self._crash(numbers[0])
        else:
            source, to = numbers
            message = self.links[source, to].pop(0)
            if what == "deliver" and self.nodes[to].is_up:
                self._hand_over(source, to, message)

    def _crash(self, index: int) -> None:
        self.nodes[index] = self._boot(index, 2)
        self.nodes[index].is_up = False
        self.links = {link: waiting for link, waiting in self.links.items() if index not in link}
        self.timers = {timer: at for timer, at in self.timers.items() if timer[0] != index}

    def _hand_over(self, source: int, to: int, message: Message) -> None:
        node, peer = self.nodes[to], self.peers[source]
        match message:
            case CacheAsk():
                self.carry_out(to, node.caching.asked(peer.id, message, self.now))
            case CacheUpdate():
                node.splicing.heard(peer.id, message)
                self.carry_out(to, node.caching.heard(peer.id, message, self.now))
            case SpliceIn() | MoveCaches():
                getattr(node.splicing, Splicing.message_handlers[type(message)])(message, peer)
        self._leave(to)

    def _leave(self, index: int) -> None:
        node = self.nodes[index]
        if node.wants_out and self.cpu in node.splicing.left(self.now):
            node.wants_out = False
            node.splicing.forget([self.cpu])
            self.carry_out(index, node.caching.unwant([self.cpu], self.now))

    def waiting(self) -> list[tuple[int, int]]:
        """Links that have a message to hand over."""
        return sorted(link for link, messages in self.links.items() if messages)

    def settle(self, until_s: float) -> None:
        """Everything is handed over, timers run, and each node does its rounds, for so long."""
        end = self.now + until_s
        while True:
            while self.waiting():
                source, to = self.waiting()[0]
                self.play(("deliver", source, to))
            due = min(self.timers.values(), default=end)
            tick = self.now + 1.0
            self.now = min(due, tick, end)
            if self.now >= end:
                return
            for (index, name, payload), at in list(self.timers.items()):
                if at <= self.now:
                    del self.timers[index, name, payload]
                    getattr(self.nodes[index].splicing, Splicing.timer_handlers[name])(payload)
            for index, node in enumerate(self.nodes):
                if node.is_up:
                    if index == 0:
                        self.carry_out(0, node.caching.sampled({"cpu": self.value}, self.now, self.now))
                        self.samples.append((len(self.samples) + 1, self.now, self.value))
                    self.carry_out(index, node.caching.tick(self.now))
                    self._leave(index)

    def renew(self) -> None:
        """Each cache seeks its provider anew."""
        for node in self.nodes:
            if node.is_up:
                node.splicing._seek_again(list(node.splicing._sought))

    # What must hold

    def offences(self) -> Iterator[str]:
        """Values that count as fresh, and have left their bounds before the time up to which they are vouched for."""
        for index, node in enumerate(self.nodes):
            answer = node.caching.read(self.cpu, self.now) if index and node.is_up else None
            if answer is None or answer.is_stale:
                continue
            for number, at, value in self.samples:
                is_about = number >= answer.claim.since.number and at <= self.now - answer.age_s - 1e-9
                if is_about and not answer.claim.interval.holds(value):
                    yield f"node {index} takes {answer.claim.interval} for true of {value}, read at {at}"

    def provider(self, index: int) -> int | None:
        """Who provides for a node."""
        wanted = self.nodes[index].caching.holder.wanted.get(self.cpu)
        return None if wanted is None else int(wanted.provider)

    def first_on_the_way(self, index: int) -> int:
        """The first node that holds the value on the way from a node to the owner over T (Proposition 2)."""
        at, path = index, [NodeId(index)]
        while True:
            to = _Tree(self, at).branch(NodeId(0), path)
            if to is None:
                return 0
            at = int(to.id)
            path.append(to.id)
            if at == 0 or (self.nodes[at].is_up and self.provider(at) is not None):
                return at

    def key(self) -> Hashable:
        """What tells this world from others."""
        return repr([(self.now, sorted(self.links.items())), [_state(node) for node in self.nodes]])


def _state(node: SpliceNode) -> tuple[Any, ...]:
    holder, provider, splicing = node.caching.holder, node.caching.provider, node.splicing
    edges = [(of, edge.asked, edge.heard_at, sorted(edge.guarantees.items())) for of, edge in provider.edges.items()]
    tables = (splicing._open, splicing._ways, splicing._holders, splicing._leaving, splicing._lost)
    return node.is_up, node.wants_out, holder.wanted, holder.held, sorted(edges), tables


def played(parents: tuple[int | None, ...], before: Iterable[Choice], choices: Iterable[Choice]) -> SpliceWorld:
    """A world after ``before``, each of which has come to rest, and then these choices."""
    world = SpliceWorld(parents)
    for choice in before:
        world.play(choice)
        world.settle(2.0)
    for choice in choices:
        world.play(choice)
    return world
