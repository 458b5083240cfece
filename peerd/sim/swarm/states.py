"""Rare states that a swarm should reach, which shows that its faults have an effect."""

from __future__ import annotations

from typing import Final

from peerd.messages import PeerRef, encode_body
from peerd.node.node import Node
from peerd.overlay.messages import Route
from peerd.sim.observed import Delivery
from peerd.sim.simulation import Place, Simulation, Watcher
from peerd.sim.workload import SimulationProbe
from peerd.telemetry.schema import Event, LeafSetChanged

SOMETIMES: Final = (
    *("crash", "power loss", "restart", "leave", "pause", "partition", "clog"),
    "false alarm",  # a running node was declared dead
    "place lost",  # a node saw that it was outside the ring
    "place found again",
    "side lost",  # a leaf set lost members that it could not replace at once
    "two rings",  # at the end of the faults
    "two answer",  # for one key, for a while
    "wrong delivery",  # while the network was disturbed
    "root moved",  # while a message was under way to it
    "probe lost",
    "source died",
    "copy suppressed",  # a second copy reached the root
    "way changed",  # a hop did not answer
    "message given up",
    "restart unnoticed",  # a node was back before anybody missed it
    "half the ring died at once",
    "start repeated",  # a node had nobody left to join through
    "liar accused",  # an honest node said of a hostile one that it broke the protocol
    "liar doubted",  # its names had proved false too often
    "message in a liar's hands",
    "lookup misled",  # it ended at a hostile node that was not the root
    "lookup unanswered",  # and its asker knows that
)
"""States that a swarm should reach. One that none of many seeds reaches is a hole in the swarm."""


class States(Watcher):
    """Notes states of `SOMETIMES` that only show while they last."""

    name = "states"
    watched_messages = (Route,)

    def __init__(self) -> None:
        self.reached: dict[str, None] = {}
        self._were_ready: set[tuple[int, int]] = set()
        self._seen: set[tuple[int, int, int, int, int, tuple[int, ...]]] = set()
        self._expected: dict[bytes, set[int]] = {}

    def count(self, state: str, is_reached: bool = True) -> None:
        """Note it."""
        if is_reached:
            self.reached.setdefault(state)

    def expect(self, probe: SimulationProbe) -> set[int]:
        """The ids of the nodes that a broadcast reaches, as it does."""
        return self._expected.setdefault(encode_body(probe), set())

    def booted(self, simulation: Simulation, place: Place, node: Node) -> str | None:
        """Note a node that is back before it was missed."""
        others = (other for other in simulation.live_nodes() if other is not place)
        if place.boot_epoch > 1 and any(place.id in other.node.overlay.state.leaves for other in others):
            self.count("restart unnoticed")
        return None

    def ready_changed(self, simulation: Simulation, place: Place, is_ready: bool) -> str | None:
        """Note nodes that get into the ring or lose their place."""
        incarnation = (place.index, place.boot_epoch)
        if is_ready:
            self.count("place found again", incarnation in self._were_ready)
            self._were_ready.add(incarnation)
        else:
            self.count("place lost", not place.node.overlay.state.is_leaving and incarnation in self._were_ready)
        return None

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """Note which nodes a broadcast has reached."""
        if delivery.body in self._expected:
            self._expected[delivery.body].add(delivery.node.id)
        return None

    def handled(self, simulation: Simulation, place: Place, message: Route, source: PeerRef) -> str | None:
        """Note copies of a message that has come before."""
        identity = (place.index, place.boot_epoch, message.source.id, message.epoch, message.sequence, message.keys)
        if identity in self._seen and message.trace is None:
            self.count("copy suppressed")
        self._seen.add(identity)
        return None

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        """Note leaf sets that lost members which they could not replace."""
        if isinstance(event, LeafSetChanged) and event.removed and not event.complete:
            self.count("side lost")
        return None


def count_rings(simulation: Simulation) -> int:
    """How many cycles the successors of the joined nodes form; a tail that leads into one counts as part of it."""
    follower: dict[int, int] = {}
    for node_id in simulation.truth.ready.ids:
        larger = simulation.places[node_id].node.overlay.leaf_set().larger
        follower[node_id] = larger[0].id if larger else node_id
    rings = 0
    seen: dict[int, int] = {}
    for number, first in enumerate(follower):
        current = first
        while current in follower and current not in seen:
            seen[current] = number
            current = follower[current]
        rings += current in follower and seen[current] == number
    return rings
