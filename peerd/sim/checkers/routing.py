"""Invariants of routed messages: where they end, the path they take, and how often they arrive."""

from __future__ import annotations

import math
from typing import Final

from peerd.api import Plugin
from peerd.ids import (
    DIGIT_VALUES,
    RING,
    NodeId,
    clockwise_distance,
    format_id,
    is_closer,
    shared_prefix_digits,
    short_id,
)
from peerd.messages import PeerRef, message_type
from peerd.overlay.messages import Route
from peerd.sim.observed import Delivery
from peerd.sim.simulation import Checker, Place, Simulation
from peerd.sim.truth import DETECT_S, HEAL_S, SERVE_TWICE_S, answers_for

HOPS_SLACK: Final = 8
SEEN_MAX: Final = 1_000_000


class CorrectDelivery(Checker):
    """A key is delivered by the joined node closest to it, and by nobody else.

    Checked once the network has been calm for `HEAL_S`: lost messages and cut paths make running nodes look dead.
    ``ignored`` are type ids that are delivered everywhere (broadcasts).
    """

    name = "correct delivery"
    number = 2
    holds_always = True

    def __init__(self, ignored: frozenset[int] = frozenset(), tolerate_wrong: int = 0) -> None:
        self._ignored = ignored
        self._tolerate_wrong = tolerate_wrong
        self.deliveries = 0
        self.wrong = 0
        self.excused = 0
        """How many wrong deliveries there were while something disturbed the network."""

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """Compare with the truth."""
        if delivery.type_id in self._ignored:
            return None
        self.deliveries += 1
        ready = simulation.truth.ready
        root = ready.root(delivery.key) if len(ready) else None
        if root == delivery.node.id or (root is not None and _is_next_to(simulation, root, delivery)):
            return None
        if simulation.truth.calm_s() < HEAL_S:
            self.excused += 1
            return None
        self.wrong += 1
        if self.wrong <= self._tolerate_wrong:
            return None
        kind = message_type(delivery.type_id)
        closer = "nobody has joined" if root is None else f"{short_id(root)} is closer"
        return (
            f"{kind.__name__ if kind else hex(delivery.type_id)} for {format_id(delivery.key)} was delivered at "
            f"{short_id(delivery.node.id)}, but {closer}"
        )


def _is_next_to(simulation: Simulation, root: NodeId, delivery: Delivery) -> bool:
    """Whether only hostile nodes are closer: the others may have good reasons to have nothing to do with those."""
    return simulation.is_hostile(root) and simulation.honest_root(delivery.key) == delivery.node.id


class SingleRoot(Checker):
    """No two nodes answer for one key for longer than `SERVE_TWICE_S`.

    Checked for neighbours on the true ring: a node that answers for keys that are not its own answers for some keys of
    its neighbour. Checked once the network has been calm for `HEAL_S`.
    """

    name = "single root"
    number = 3
    holds_always = True

    def __init__(self) -> None:
        self._since: dict[tuple[NodeId, NodeId], float] = {}
        self._asked_at = 0.0
        self.longest_s = 0.0
        """The longest time for which two nodes answered for one key, also during disturbances."""

    def check(self, simulation: Simulation) -> list[str]:
        """Check which neighbours answer for the same keys, and since when."""
        now, ids = simulation.now, simulation.truth.ready.ids
        before, self._since = self._since, {}
        if now - self._asked_at > SERVE_TWICE_S:
            before = {}  # the last look was too long ago to conclude anything
        self._asked_at = now
        offences = []
        for position, first in enumerate(ids if len(ids) > 1 else ()):
            second = ids[(position + 1) % len(ids)]
            key = _served_twice(simulation.places[first], simulation.places[second])
            if key is None or simulation.is_hostile(first) or simulation.is_hostile(second):
                continue
            since = self._since[first, second] = before.get((first, second), now)
            self.longest_s = max(self.longest_s, now - since)
            if now - since > SERVE_TWICE_S and simulation.truth.calm_s() >= HEAL_S:
                pair = f"{short_id(first)} and {short_id(second)}"
                offences.append(f"{pair} have both answered for {format_id(key)} for {now - since:.1f} s")
        return offences


def _served_twice(first: Place, second: Place) -> NodeId | None:
    """A key between two neighbours that both answer for, if there is one."""
    right, left = first.node.overlay.leaf_set().larger, second.node.overlay.leaf_set().smaller
    reach = clockwise_distance(first.id, right[0].id) // 2 if right else RING // 2
    begin = clockwise_distance(first.id, second.id)
    begin -= clockwise_distance(left[0].id, second.id) // 2 if left else RING // 2
    if reach <= begin + 1:
        return None
    key = NodeId((first.id + (max(begin, 0) + min(reach, clockwise_distance(first.id, second.id))) // 2) % RING)
    return key if answers_for(first, key) and answers_for(second, key) else None


class Progress(Checker):
    """Each hop is closer to the key or shares a longer prefix with it; hops stay few; no copy visits a node twice.

    A hop inside a leaf set may share a shorter prefix, so one of the two is enough. Loops are seen on lookups, which
    carry their path; messages that a plugin redirects, or that are on a detour, are not checked. Hops and loops are
    checked once the network has been calm for `DETECT_S`, and never where there are hostile nodes: those send messages
    anywhere. What honest nodes send is checked there, too.
    """

    name = "progress"
    number = 7
    holds_always = True
    watched_messages = (Route,)

    def __init__(self) -> None:
        self.hops_max = 0

    def handled(self, simulation: Simulation, place: Place, message: Route, source: PeerRef) -> str | None:
        """Judge the hop that brought it here."""
        here, there = place.id, source.id
        self.hops_max = max(self.hops_max, message.hops)
        if message.detours or _is_redirected(place, message.type_id) or simulation.is_hostile(there):
            return None
        for key in message.keys:
            if shared_prefix_digits(here, key) <= shared_prefix_digits(there, key) and not is_closer(key, here, there):
                return f"{short_id(there)} sent {format_id(key)} to {short_id(here)}, which is no step forward"
        if simulation.truth.calm_s() < DETECT_S or simulation.hostile:
            return None
        bound = math.ceil(math.log(max(len(simulation.truth.running), 2), DIGIT_VALUES)) + HOPS_SLACK
        if message.hops > bound:
            return f"a message of {short_id(message.source.id)} has made {message.hops} hops, over {bound}"
        if message.trace is not None:
            way = [message.source.id, *(hop.peer.id for hop in message.trace[:-1])]
            if here in way:
                return f"a lookup of {short_id(message.source.id)} is here for the second time"
        return None


def _is_redirected(place: Place, type_id: int) -> bool:
    return any(
        type(plugin).forward is not Plugin.forward and any(type_id == kind.TYPE_ID for kind in plugin.messages)
        for plugin in place.node.plugins.values()
    )


class Dedupe(Checker):
    """No node gets a message of these types twice. No two bodies from one source may be equal."""

    name = "dedupe"
    number = 8
    holds_always = True

    def __init__(self, unique: frozenset[int]) -> None:
        self._unique = unique
        self._seen: dict[tuple[NodeId, int, NodeId, int, NodeId, bytes], None] = {}

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """Remember a delivery: the message, and the incarnation that got it.

        Messages are told apart by numbers that nobody has signed: a hostile node on the way can make two of one.
        """
        if delivery.type_id not in self._unique or simulation.is_hostile(delivery.source.id):
            return None
        if simulation.was_in_hostile_hands(delivery.type_id, delivery.body):
            return None
        place = simulation.places[delivery.node.id]
        identity = (*(place.id, place.boot_epoch, delivery.source.id), *(delivery.type_id, delivery.key, delivery.body))
        if identity in self._seen:
            return f"{short_id(place.id)} got {delivery.body.hex()} of {short_id(delivery.source.id)} twice"
        if len(self._seen) >= SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[identity] = None
        return None
