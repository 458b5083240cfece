"""What befalls the ring: nodes come and go, the holders of a leaf die at once, the network is cut into two."""

from __future__ import annotations

from random import Random
from typing import Final

from peerd.ids import closeness
from peerd.sim.checkers import RING_CHECKERS
from peerd.sim.churn import Churn, ChurnSettings
from peerd.sim.simulation import Place, Simulation
from protocols.pubsub.front.checkers import held_pieces
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.names import SubscriptionKey

CUT_S: Final = 600.0
"""The network is cut for so long: each side removes the other one."""
WHOLE_LIMIT_S: Final = 600.0
POLL_S: Final = 1.0
AT_ONCE: Final = 2
"""Nodes that die at once: one less than hold each subscription."""
MINUTE_S: Final = 60.0


class Departures:
    """Counts the nodes that go while events are published."""

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        self._simulation = simulation
        self._rng = rng
        self._churn: Churn | None = None
        self._killed = 0

    @property
    def total(self) -> int:
        """How many nodes have gone."""
        return self._killed + (0 if self._churn is None else self._churn.report.departures)

    def come_and_go(self, session_min: float) -> None:
        """From now on nodes come and go; this is the median of their sessions."""
        self._churn = Churn(self._simulation, ChurnSettings(session_median_s=session_min * MINUTE_S))
        self._churn.start()

    def strike(self, times: int, within_s: float) -> None:
        """So often, at equal distances, kill the root of a random leaf and its first replica at one instant."""
        for number in range(times):
            self._simulation.after((number + 0.5) * within_s / times, self._kill_holders)

    def _kill_holders(self) -> None:
        live = self._simulation.live_nodes()
        key = self._rng.choice([node.key for place in live for node in plugin_of(place).rendezvous.forest.nodes()])
        for place in sorted(live, key=lambda each: closeness(key, each.id))[:AT_ONCE]:
            self._simulation.kill(place)
            self._killed += 1


def sides(simulation: Simulation, share: float, rng: Random) -> tuple[list[Place], list[Place]]:
    """Deal the nodes out to two sides; ``share``: of the first one."""
    live = simulation.live_nodes()
    first = set(rng.sample(range(len(live)), max(1, round(share * len(live)))))
    return [live[index] for index in sorted(first)], [each for index, each in enumerate(live) if index not in first]


def seconds_until_whole(simulation: Simulation) -> float | None:
    """Run until all nodes agree on one ring, and return how long that took; ``None`` if they never do."""
    begun = simulation.now
    while any(checker.check(simulation) for checker in RING_CHECKERS):
        if simulation.now - begun >= WHOLE_LIMIT_S:
            return None
        simulation.run_for(POLL_S)
    return round(simulation.now - begun, 1)


def pieces_lost(simulation: Simulation) -> int:
    """How many pieces of running nodes' subscriptions are in no leaf."""
    held = held_pieces(simulation)
    lost = 0
    for place in simulation.live_nodes():
        subscriptions = plugin_of(place).subscriptions
        for piece in (each for made in subscriptions.all() for each in subscriptions.pieces(made)):
            lost += SubscriptionKey(place.id, piece.sub.sid, piece.sub.piece) not in held
    return lost
