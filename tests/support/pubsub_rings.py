"""Whole simulated rings with publish/subscribe: nodes, clients and the judge of what they get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from peerd.sim.simulation import Checker, Place, Simulation
from peerd.testing.simulation import ring
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.checkers import OrderAtLeaves, SubscriptionsConserved, SubscriptionsInPlace, held_pieces
from protocols.pubsub.front.judging import Judge, PublishedEvent, Watched, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.plugin import PubSub

SETTINGS: dict[str, Any] = {"leaf_capacity": 10, "lease": "10m", "update_interval": "1m", "merge_share": 0.0}
REST_S = 600.0
ACKNOWLEDGED = ("received", "replicated")


class PubSubRing:
    """A ring whose nodes know one schema, a client on each, and the judge."""

    def __init__(
        self,
        count: int,
        seed: int = 0,
        settings: dict[str, Any] | None = None,
        plugin: Callable[[PubSubConfig], PubSub] = PubSub,
        checkers: Sequence[Checker] = (),
    ) -> None:
        config = PubSubConfig.model_validate({**SETTINGS, **(settings or {})})
        self.rng = Random(seed)
        self.order = OrderAtLeaves()
        asked = [SubscriptionsConserved(), self.order, *checkers]
        self.simulation: Simulation = ring(count, seed, plugins=lambda index: [plugin(config)], checkers=asked)
        self.workload = ThesisWorkload(self.rng)
        self.judge = Judge(lambda: self.simulation.now)
        self._declare()

    def _declare(self) -> None:
        told: list[object] = []
        plugin_of(self.simulation.nodes[0]).schemas.declare(self.workload.document(), told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=60.0)
        self.learn(self.simulation.live_nodes())

    def learn(self, places: Sequence[Place]) -> None:
        """Have nodes look the schema up, as their first client's request does."""
        for place in places:
            plugin_of(place).schemas.fetch(self.workload.schema, lambda schema, why: None)
        self.simulation.run_until(
            lambda: all(plugin_of(place).schemas.get(self.workload.schema) for place in places if place.is_live),
            limit_s=60.0,
        )

    # Clients

    def subscribe(self, count: int, places: Sequence[Place] | None = None, *, spacing_s: float = 0.2) -> list[Watched]:
        """Have so many subscriptions made, on nodes drawn from these, and wait until all are established."""
        made = []
        for _ in range(count):
            place = self.rng.choice(self._usable(places))
            made.append(self.judge.subscribe(place, self.workload.schema, self.workload.subscription()))
            self.run_for(spacing_s)
        self.simulation.run_until(
            lambda: all(each.established_at is not None for each in made if each.is_live), limit_s=REST_S
        )
        return made

    def _usable(self, places: Sequence[Place] | None) -> list[Place]:
        """Those of them that are in the ring now and know the schema."""
        asked = [place for place in places or self.simulation.nodes if place.is_live and place.node.is_ready]
        return [place for place in asked if plugin_of(place).schemas.get(self.workload.schema) is not None]

    def publish(
        self, count: int, places: Sequence[Place] | None = None, *, spacing_s: float = 0.2, ack: str | None = None
    ) -> list[PublishedEvent]:
        """Have so many events published, one after the other, by nodes drawn from these; does not wait for the last."""
        made = []
        for _ in range(count):
            place = self.rng.choice(self._usable(places))
            made.append(self.judge.publish(place, self.workload.schema, self.workload.event(), ack))
            self.run_for(spacing_s)
        return made

    # Time

    def run_for(self, duration_s: float) -> None:
        """Let time pass, with clients that read what comes."""
        self.simulation.run_for(duration_s)
        self.judge.read()

    def finish(self, events: Sequence[PublishedEvent], after_s: float = 15.0) -> None:
        """Wait until it is known what became of these events, and until what was pending is delivered."""
        places = self.simulation.places
        waited_for = [event for event in events if places[event.event.publisher].is_live]
        self.simulation.run_until(lambda: all(event.outcome != "pending" for event in waited_for), limit_s=120.0)
        self.run_for(after_s)

    def rest(self, limit_s: float = REST_S) -> float:
        """Wait until each subscription is in its leaf, and only there; returns for how long that was."""
        begun, checker = self.simulation.now, SubscriptionsInPlace()
        self.simulation.run_until(lambda: not checker.check(self.simulation), limit_s=limit_s, poll_s=1.0)
        return self.simulation.now - begun

    # What is asked

    def lost(self) -> list[Watched]:
        """Subscriptions of live nodes that were established, and of which a piece is in no leaf."""
        held = held_pieces(self.simulation)
        live = [watched for watched in self.judge.watched if watched.is_live and watched.established_at is not None]
        return [watched for watched in live if not held.keys() >= set(self.keys(watched))]

    @staticmethod
    def keys(watched: Watched) -> list[SubscriptionKey]:
        """The pieces of a subscription; none where another one covers it."""
        plugin = plugin_of(watched.place)
        found = plugin.subscriptions.pieces(plugin.subscriptions.get(watched.id))
        return [SubscriptionKey(watched.place.id, each.sub.sid, each.sub.piece) for each in found]

    def offences(self, owed: Sequence[PublishedEvent], outcomes: tuple[str, ...] = ACKNOWLEDGED) -> list[str]:
        """All that was wrong; these events have to have come to every subscription that they match."""
        self.judge.read()
        order = self.order.check(self.simulation)
        return [*self.judge.offences, *self.judge.missing(list(owed), outcomes), *order]

    def leaves(self) -> dict[tuple[Tree, int], list[Place]]:
        """All leaves in this moment, with the nodes that hold themselves for their root."""
        found: dict[tuple[Tree, int], list[Place]] = {}
        for place in self.simulation.live_nodes():
            for node in plugin_of(place).rendezvous.forest.nodes():
                if node.is_leaf:
                    found.setdefault((node.place.tree, node.cell), []).append(place)
        return found
