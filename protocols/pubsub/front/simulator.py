"""Publish/subscribe in the swarm: subscriptions and events while faults strike, and what must hold of them."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any, Final

from peerd.api import Host, Plugin
from peerd.errors import Unavailable
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import SwarmWork
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.checkers import SubscriptionsInPlace
from protocols.pubsub.front.judging import Judge, PublishedEvent, Watched, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.service import NotDone

REST_S: Final = 10.0
"""How long splits and moves of leaves that are under way at the end of the proof may take."""
REST_LOOK_S: Final = 0.5
SETTINGS: Final[dict[str, Any]] = {
    "leaf_capacity": 6,
    "lease": "30s",
    "update_interval": "10s",
    "merge_after": "20s",
    "delivery_keep": "20s",
    "publish_timeout": "20s",
    "subscriptions_per_member": 200,
    "hot_rate": "1B",
    "hot_share": 1.5,
    "hot_look": "5s",
    "widen": 0.0,
}
"""Small leaves, so that a few subscriptions make a tree, short times, so that a seed sees what takes hours, a quota
that a hostile node reaches at once, nodes that are too busy as soon as they do half as much again as others, and equal
subscriptions that cannot be split apart."""
CROWDED_SEEDS: Final = 0.25
CROWD_SHARE: Final = 0.6
"""In so many of the seeds, so many of the subscriptions are all the same."""
GAP_S: Final = 0.7
CROWDED_GAP_S: Final = 0.25
"""Between two actions. In a crowd more happens, so that helpers of its leaf get events, too."""
RINGS: Final = ((0.06, 1, 3), (0.85, 6, 12), (0.98, 13, 24), (0.995, 25, 64), (1.0, 65, 120))
"""Sizes of rings: up to this share of the seeds, the smallest, the largest. Most have room for a tree, its replicas and
the death of some nodes, and are fast; large ones cost as much as a hundred of those."""
SUBSCRIBE_SHARE: Final = 0.4
END_SHARE: Final = 0.1
PROOF_SUBSCRIPTIONS: Final = 5
PROOF_DELAY_S: Final = 12.0
"""From the beginning of the calm to the events that must arrive: each lease is renewed meanwhile."""
PROOF_EVENTS: Final = 10


class EagerPubSub(PubSub):
    """Shares a leaf for a few deliveries, which is all that there is in a seed."""

    def start(self, host: Host) -> None:
        super().start(host)
        self.rendezvous.heat.deliveries_min = 0.0


class PubSubTraffic(SwarmWork):
    """Nodes subscribe, publish and end subscriptions. What arrives must be right, and in the calm ring all must arrive.

    Across partitions longer than deliveries are kept, recall is not promised; so it is asked of the last events only.
    Where there are hostile nodes it is not asked at all: the root of a leaf may do with the leaf what it likes.
    """

    rings = RINGS
    refusals = (Unavailable, NotDone)

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        super().__init__(simulation, rng)
        is_crowded = rng.random() < CROWDED_SEEDS
        self._workload = ThesisWorkload(rng, crowd=CROWD_SHARE if is_crowded else 0.0)
        self.gap_s = CROWDED_GAP_S if is_crowded else GAP_S
        self._judge = Judge(lambda: simulation.now)
        self._proof: list[PublishedEvent] = []
        self._proof_subscriptions: list[Watched] = []
        self._declared = False

    @classmethod
    def plugin(cls, index: int) -> Plugin:
        return EagerPubSub(PubSubConfig.model_validate({**SETTINGS, "leaf_capacity": 4 + index % 5}))

    def act(self, place: Place) -> None:
        self._judge.read()
        try:
            self._act(place)
        except self.refusals:
            return  # outside the ring, too busy, or the schema is not known there yet: an answer, too

    def _act(self, place: Place) -> None:
        if not self._declared:
            plugin_of(place).schemas.declare(self._document(), self._told)
            return
        chance = self.rng.random()
        if chance < SUBSCRIBE_SHARE:
            self._judge.subscribe(place, self._workload.schema, self._workload.subscription())
        elif chance < SUBSCRIBE_SHARE + END_SHARE:
            self._end_one()
        else:
            self._judge.publish(place, self._workload.schema, self._workload.event())

    def _document(self) -> dict[str, Any]:
        """Among hostile nodes events are signed: else these may publish in the name of others, as is documented."""
        return self._workload.document(signed=bool(self.simulation.hostile))

    def _told(self, answer: object) -> None:
        self._declared = self._declared or not isinstance(answer, Exception)

    def _end_one(self) -> None:
        live = [watched for watched in self._judge.watched if watched.is_live]
        if live:
            self._judge.end(self.rng.choice(live))

    # The calm ring

    def prove(self, place: Place) -> None:
        """Everything is done as a client does it that tries again what was refused for the moment.

        The schema is declared in any case: all who had it may have died.
        """
        self.insist(place, self._declare)

    def _declare(self, place: Place) -> None:
        def told(answer: object) -> None:
            self._told(answer)
            if self._declared:
                self._go_on(place)
            else:
                self.not_done.append(f"in a calm ring {place} cannot declare the schema: {answer}")

        plugin_of(place).schemas.declare(self._document(), told)

    def _go_on(self, place: Place) -> None:
        honest = self.simulation.honest_nodes()
        for _ in range(PROOF_SUBSCRIPTIONS):
            self.insist(self.rng.choice(honest), self._subscribe)
        for _ in range(PROOF_EVENTS):
            publisher = place if self.rng.random() < 0.5 else self.rng.choice(honest)
            self.simulation.after(PROOF_DELAY_S, partial(self.insist, publisher, self._publish))

    def _subscribe(self, place: Place) -> None:
        self._proof_subscriptions.append(
            self._judge.subscribe(place, self._workload.schema, self._workload.subscription())
        )

    def _publish(self, place: Place) -> None:
        self._proof.append(self._judge.publish(place, self._workload.schema, self._workload.event()))

    def _let_trees_rest(self) -> None:
        """What the proof has published may have leaves moved just now, and for a moment their pieces are in none."""
        until = self.simulation.now + REST_S
        trees = [plugin_of(place).rendezvous.growth for place in self.simulation.live_nodes()]
        while self.simulation.now < until and any(tree.is_busy for tree in trees):
            self.simulation.run_for(REST_LOOK_S)

    def verdict(self) -> list[str]:
        self._judge.read()
        if self.simulation.hostile:
            return self._judge.offences
        late = [str(event.event) for event in self._proof if event.outcome not in ("received", "replicated")]
        told = [f"in a calm ring the outcome of {late[0]} is not known"] if late else []
        unknown = [each for each in self._proof_subscriptions if each.is_live and each.established_at is None]
        told += [f"in a calm ring {each.filter!r} of {each.place} is not established" for each in unknown[:1]]
        self._let_trees_rest()
        misplaced = SubscriptionsInPlace().check(self.simulation)
        return [*self._judge.offences, *self.not_done, *told, *self._judge.missing(self._proof), *misplaced]
