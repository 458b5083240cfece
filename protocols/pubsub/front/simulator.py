"""Publish/subscribe in the swarm: subscriptions and events while faults strike, and what must hold of them."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar, Final

from peerd.api import Plugin
from peerd.errors import Unavailable
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import SwarmWork
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.judging import Judge, PublishedEvent, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.service import NotDone

SETTINGS: Final[dict[str, Any]] = {
    "leaf_capacity": 6,
    "lease": "30s",
    "update_interval": "10s",
    "merge_after": "20s",
    "delivery_keep": "20s",
    "publish_timeout": "20s",
}
"""Small leaves, so that a few subscriptions make a tree, and short times, so that a seed sees what takes hours."""
SUBSCRIBE_SHARE: Final = 0.4
END_SHARE: Final = 0.1
PROOF_DELAY_S: Final = 12.0
"""From the beginning of the calm to the events that must arrive: each lease is renewed meanwhile."""
PROOF_EVENTS: Final = 10


class Traffic(SwarmWork):
    """Nodes subscribe, publish and end subscriptions. What arrives must be right, and in the calm ring all must arrive.

    Across partitions longer than deliveries are kept, recall is not promised; so it is asked of the last events only.
    """

    gap_s: ClassVar[float] = 1.5

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        super().__init__(simulation, rng)
        self._workload = ThesisWorkload(rng)
        self._judge = Judge(lambda: simulation.now)
        self._proof: list[PublishedEvent] = []
        self._declared = False

    @classmethod
    def plugin(cls, index: int) -> Plugin:
        return PubSub(PubSubConfig.model_validate({**SETTINGS, "leaf_capacity": 4 + index % 5}))

    def act(self, place: Place) -> None:
        self._judge.read()
        try:
            self._act(place)
        except (Unavailable, NotDone):
            return  # outside the ring, too busy, or the schema is not known there yet: an answer, too

    def _act(self, place: Place) -> None:
        if not self._declared:
            plugin_of(place).declare(self._workload.document(), self._told)
            return
        chance = self.rng.random()
        if chance < SUBSCRIBE_SHARE:
            self._judge.subscribe(place, self._workload.schema, self._workload.subscription())
        elif chance < SUBSCRIBE_SHARE + END_SHARE:
            self._end_one()
        else:
            self._judge.publish(place, self._workload.schema, self._workload.event())

    def _told(self, answer: object) -> None:
        self._declared = self._declared or not isinstance(answer, Exception)

    def _end_one(self) -> None:
        live = [watched for watched in self._judge.watched if watched.is_live]
        if live:
            watched = self.rng.choice(live)
            plugin_of(watched.place).end(watched.id)
            self._judge.watched.remove(watched)

    def prove(self, place: Place) -> None:
        def publish() -> None:
            for _ in range(PROOF_EVENTS):
                if place.is_live:
                    self._proof.append(self._judge.publish(place, self._workload.schema, self._workload.event()))

        if self._declared:
            self.simulation.after(PROOF_DELAY_S, publish)

    def verdict(self) -> list[str]:
        self._judge.read()
        late = [str(event.event) for event in self._proof if event.outcome not in ("received", "replicated")]
        told = [f"in a calm ring the outcome of {late[0]} is not known"] if late else []
        return [*self._judge.offences, *told, *self._judge.missing(self._proof)]
