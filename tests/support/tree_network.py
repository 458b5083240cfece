"""A network of bare `BinomialTree` objects: every message and timer in flight is an entry of one list, drawn at random.

No clock: a seeded generator picks what happens next, so every order of events that a network can produce comes up
sooner or later. Timers fire only when nothing else is left, as if they were slow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from peerd.ids import ID_BITS, ID_BYTES, NodeId, id_from_bytes, id_to_bytes
from peerd.messages import PeerRef
from protocols.aggregation.effects import (
    AnswerHeld,
    Arm,
    Disarm,
    Effect,
    LevelDone,
    MergeOffer,
    OfferAhead,
    OpenSwap,
    RouteInvite,
    SendAnswer,
    SendInvite,
    SendProposal,
    TreeDone,
    TreePhase,
    TreeTimer,
    WithdrawOffer,
)
from protocols.aggregation.messages import AnswerKind
from protocols.aggregation.patience import TreeSettings
from protocols.aggregation.prefix import IdLevels, Levels, PlaceLevels
from protocols.aggregation.tree import BinomialTree

EVENTS_MAX = 200_000


def random_ids(count: int, seed: int) -> list[NodeId]:
    rng = random.Random(seed)
    return [NodeId(rng.getrandbits(ID_BITS)) for _ in range(count)]


def pause_s(effects: list[Effect]) -> float:
    """How long it waits for those that it has invited."""
    [armed] = [effect for effect in effects if isinstance(effect, Arm) and effect.timer is TreeTimer.INVITE]
    return armed.delay_s


class RingView:
    """A `Neighbourhood` with full knowledge of who is alive, or (``known``) of a few of each prefix only."""

    def __init__(self, own: NodeId, network: TreeNetwork, known: int | None) -> None:
        self._own, self._network, self._known = own, network, known
        self.levels: Levels = PlaceLevels(own, network.ids) if network.has_places else IdLevels(own)

    def _level(self, level: int) -> list[PeerRef]:
        alive = self._network.alive()
        return [peer for peer in alive if peer.id != self._own and self.levels.level_of(peer.id) == level]

    def longest_level(self) -> int | None:
        others = [peer.id for peer in self._network.alive() if peer.id != self._own]
        return max((level for other in others if (level := self.levels.level_of(other)) is not None), default=None)

    def members(self, level: int) -> tuple[PeerRef, ...]:
        return tuple(self._level(level)[: self._known])

    def is_exact(self, level: int) -> bool:
        return self._known is None or len(self._level(level)) <= self._known

    def estimated_size(self, level: int) -> float:
        return float(len(self._level(level)))

    def rtt_s(self, peer: PeerRef) -> float:
        return self._network.rtt_s


@dataclass
class TreeNetwork:
    """``swap_failure`` is the chance that a swap ends well on the acceptor's side only, or on neither, and that a value
    which rode along cannot be merged. ``riding`` is the chance that a node's aggregate rides at all its levels."""

    ids: list[NodeId]
    seed: int
    known: int | None = None
    swap_failure: float = 0.0
    riding: float = 0.0
    rtt_s: float = 0.05
    has_places: bool = False
    """Whether levels are by places, and not by ids."""
    views: dict[NodeId, RingView] = field(default_factory=dict)
    trees: dict[NodeId, BinomialTree] = field(default_factory=dict)
    results: dict[NodeId, frozenset[NodeId]] = field(default_factory=dict)
    outcomes: list[tuple[NodeId, LevelDone]] = field(default_factory=list)
    sides: dict[NodeId, dict[int, frozenset[NodeId]]] = field(default_factory=dict)
    """Whose data each node held before it merged at a level."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.peers = {node_id: PeerRef(node_id, "127.0.0.1", 1) for node_id in sorted(self.ids)}
        self.dead: set[NodeId] = set()
        self.in_flight: list[tuple[Any, ...]] = []
        self.timers: dict[tuple[NodeId, TreeTimer], None] = {}
        self.held: dict[tuple[NodeId, int], tuple[Any, ...]] = {}
        """By acceptor and level: the offer that is to be decided about when the acceptor comes to the level."""
        self.riders = {node_id for node_id in self.peers if self.rng.random() < self.riding}
        for node_id in self.peers:
            self.sides[node_id] = {}
            self.views[node_id] = RingView(node_id, self, self.known)
            self.trees[node_id] = BinomialTree(node_id, self.views[node_id], TreeSettings())
            self.in_flight.append(("begin", node_id))

    def alive(self) -> list[PeerRef]:
        return [peer for node_id, peer in self.peers.items() if node_id not in self.dead]

    def level_of(self, own: NodeId, other: NodeId) -> int | None:
        return self.views[own].levels.level_of(other)

    def kill(self, node_id: NodeId) -> None:
        """The node is gone; its neighbours notice."""
        self.dead.add(node_id)
        self.timers = {key: None for key in self.timers if key[0] != node_id}
        for other in self.trees:
            if other not in self.dead:
                self.in_flight.append(("neighbours", other))

    def cut_off(self, node_id: NodeId, other: NodeId) -> None:
        """A node can have no link to another one, which may live all the same."""
        if node_id != other and node_id not in self.dead:
            self.in_flight.append(("down", node_id, self.peers[other]))

    def step(self) -> bool:
        """One event; false when nothing is left to happen."""
        if self.in_flight:
            index = self.rng.randrange(len(self.in_flight))
            self.in_flight[index], self.in_flight[-1] = self.in_flight[-1], self.in_flight[index]
            self._deliver(*self.in_flight.pop())
            return True
        if not self.timers:
            return False
        node_id, timer = self.rng.choice(list(self.timers))
        del self.timers[node_id, timer]
        self._run(node_id, self.trees[node_id].timer_fired(timer))
        return True

    def run(self) -> None:
        """Until every tree is over. Fails when the network stops, or goes on for ever, before that."""
        for _ in range(EVENTS_MAX):
            if not self.step():
                break
        else:
            raise AssertionError(f"still busy after {EVENTS_MAX} events (seed {self.seed})")
        stuck = [tree for node_id, tree in self.trees.items() if node_id not in self.dead and not tree.is_over]
        assert not stuck, f"{len(stuck)} trees wait for ever in {[tree.phase.value for tree in stuck]}"

    def _run(self, node_id: NodeId, effects: list[Effect]) -> None:
        own = self.peers[node_id]
        for effect in effects:
            match effect:
                case SendInvite(peer, level, with_value):
                    value = self._side(node_id, level) if with_value else b""
                    self.in_flight.append(("invite", peer.id, own, level, self.trees[node_id].rides, value))
                case RouteInvite(level):
                    there = [p for p in self.alive() if self.level_of(node_id, p.id) == level]
                    if there:
                        invited = self.rng.choice(there).id
                        self.in_flight.append(("invite", invited, own, level, self.trees[node_id].rides, b""))
                    else:
                        self.in_flight.append(("answer", node_id, own, level, AnswerKind.HINT, True, b""))
                case SendAnswer(peer, level, kind):
                    value = self._side(node_id, level) if kind is AnswerKind.VALUE else b""
                    self.in_flight.append(("answer", peer.id, own, level, kind, False, value))
                case MergeOffer(peer, level, value):
                    self.in_flight.append(("merge", node_id, peer, level, value))
                case SendProposal(peer, level):
                    self.in_flight.append(("propose", peer.id, own, level))
                case OfferAhead(peer, level):
                    given = self.trees[node_id].contributors
                    has_connection = self.rng.random() >= self.swap_failure
                    offer = ("offer", peer.id, own, level, given) if has_connection else ("lost", node_id, peer)
                    self.in_flight.append(offer)
                case WithdrawOffer():
                    self._withdraw(own)
                case AnswerHeld(level):
                    self.in_flight.append(self.held.pop((node_id, level), ("held lost", node_id, level)))
                case OpenSwap(peer, level):
                    self.in_flight.append(("open", peer.id, own, level))
                case Arm(timer, delay_s):
                    assert delay_s > 0
                    self.timers[node_id, timer] = None
                case Disarm(timer):
                    self.timers.pop((node_id, timer), None)
                case LevelDone():
                    for key in [key for key in self.held if key[0] == node_id and key[1] >= effect.level]:
                        self.in_flight.append(self.held.pop(key))
                    self.outcomes.append((node_id, effect))
                case TreeDone(outcome):
                    if outcome == "result":
                        self.results[node_id] = self.trees[node_id].contributors
        self.trees[node_id].validate()

    def _deliver(self, kind: object, target: NodeId, *rest: object) -> None:
        if target in self.dead:
            self._bounce(kind, target, *rest)
            return
        tree, own = self.trees[target], self.peers[target]
        match kind, rest:
            case "begin", _:
                self._run(target, tree.begin(target in self.riders))
            case "neighbours", _:
                self._run(target, tree.neighbourhood_changed())
            case "down", (PeerRef() as other,):
                self._run(target, tree.peer_down(other))
            case "invite", (PeerRef() as source, int(level), bool(rides), bytes(value)):
                self._run(target, tree.invite_received(source, level, rides, value))
            case "answer", (PeerRef() as source, int(level), AnswerKind() as answer, bool(exact), bytes(value)):
                self._run(target, tree.answer_received(source, level, answer, (), exact, value))
            case "merge", (PeerRef() as source, int(level), bytes(value)):
                self._merge(target, source, level, value)
            case "propose", (PeerRef() as source, int(level)):
                accepted, answer, effects = tree.proposal_received(source, level)
                self._run(target, effects)
                self.in_flight.append(("proposed", source.id, own, accepted, answer))
            case "offer", (PeerRef() as source, int(level), frozenset() as given):
                self._offer(target, source, level, given)
            case "held lost", (int(level),):
                self._run(target, tree.held_lost(level))
            case "given", (PeerRef() as source, int(level), frozenset() as given):
                effects = tree.proposal_answered(source, True, AnswerKind.MAYBE_LATER)
                opened = [effect for effect in effects if isinstance(effect, OpenSwap)]
                self._run(target, [effect for effect in effects if effect not in opened])
                if opened and self.rng.random() < self.swap_failure:
                    self._run(target, tree.swap_failed(source))
                elif opened:
                    self._take(target, source, level, given)
            case "proposed", (PeerRef() as source, bool(accepted), AnswerKind() as answer):
                self._run(target, tree.proposal_answered(source, accepted, answer))
            case "lost", (PeerRef() as source,):
                self._run(target, tree.proposal_lost(source))
            case "failed", (PeerRef() as source,):
                self._run(target, tree.swap_failed(source))
            case "open", (PeerRef() as source, int(level)):
                self._swap(target, source, level)

    def _offer(self, target: NodeId, source: PeerRef, level: int, given: frozenset[NodeId]) -> None:
        """The value of a node that is at a level before its counterpart knows that: it comes with the question."""
        tree, own = self.trees[target], self.peers[target]
        if tree.holds(source, level):
            self.held[target, level] = ("offer", target, source, level, given)
            return
        accepted, answer, effects = tree.proposal_received(source, level)
        self._run(target, effects)
        if not accepted:
            self.in_flight.append(("proposed", source.id, own, False, answer))
            return
        self.in_flight.append(("given", source.id, own, level, tree.contributors))
        self._run(target, tree.swap_accepted(source))
        self._take(target, source, level, given)

    def _take(self, target: NodeId, source: PeerRef, level: int, given: frozenset[NodeId]) -> None:
        """Merge what a swap has brought."""
        tree = self.trees[target]
        assert not tree.contributors & given, "two partials with a common contributor were about to be merged"
        tree.swap_done(source)
        self.sides[target][level] = tree.contributors
        self._run(target, tree.merged(tree.contributors | given, target in self.riders))

    def _withdraw(self, own: PeerRef) -> None:
        """Half of the withdrawals come in time."""
        if self.rng.random() < 0.5:
            self.in_flight = [each for each in self.in_flight if each[0] != "offer" or each[2] != own]
            self.held = {key: each for key, each in self.held.items() if each[2] != own}

    def _side(self, node_id: NodeId, level: int) -> bytes:
        """Whose data a node held when it came to a level."""
        sides = self.sides[node_id]
        merged = max((each for each in sides if each <= level), default=None)
        held = self.trees[node_id].contributors if merged is None else sides[merged]
        return b"".join(map(id_to_bytes, sorted(held)))

    def _merge(self, target: NodeId, source: PeerRef, level: int, value: bytes) -> None:
        tree = self.trees[target]
        theirs = {id_from_bytes(value[start : start + ID_BYTES]) for start in range(0, len(value), ID_BYTES)}
        assert not tree.contributors & theirs, "two partials with a common contributor were about to be merged"
        assert all(self.level_of(target, node) == level for node in theirs)
        if self.rng.random() < self.swap_failure:
            self._run(target, tree.merge_rejected(source))
            return
        self.sides[target][level] = tree.contributors
        self._run(target, tree.merged(tree.contributors | theirs, target in self.riders))

    def _bounce(self, kind: object, target: NodeId, *rest: object) -> None:
        """Tell the sender that its message went to a dead node."""
        gone = self.peers[target]
        if kind in ("propose", "offer") and isinstance(rest[0], PeerRef):
            self.in_flight.append(("lost", rest[0].id, gone))
        if kind == "open" and isinstance(rest[0], PeerRef):
            self.in_flight.append(("failed", rest[0].id, gone))

    def _swap(self, target: NodeId, source: PeerRef, level: int) -> None:
        acceptor, opener = self.trees[target], self.trees[source.id]
        if not acceptor.accepts_swap(source, level):
            self.in_flight.append(("failed", source.id, self.peers[target]))
            return
        self._run(target, acceptor.swap_accepted(source))
        opener_dead = source.id in self.dead
        fails = opener_dead or self.rng.random() < self.swap_failure
        merged = acceptor.contributors | opener.contributors
        disjoint = not acceptor.contributors & opener.contributors
        assert disjoint, "two partials with a common contributor were about to be merged"
        one_sided = fails and not opener_dead and self.rng.random() < 0.5
        if fails and not one_sided:
            self._run(target, acceptor.swap_failed(source))
        else:
            acceptor.swap_done(source)
            self.sides[target][level] = acceptor.contributors
            self._run(target, acceptor.merged(merged, target in self.riders))
        if opener_dead:
            return
        if fails:
            self._run(source.id, opener.swap_failed(self.peers[target]))
        elif opener.phase is TreePhase.SWAPPING:
            opener.swap_done(self.peers[target])
            self.sides[source.id][level] = opener.contributors
            self._run(source.id, opener.merged(merged, source.id in self.riders))
