"""One member of a simulated ring misbehaves in publish/subscribe: what is promised to honest nodes holds all the same.

The schema is signed: whether a member may publish in another's name depends on that.
"""

from __future__ import annotations

from random import Random

import pytest

from peerd.api import Plugin
from peerd.sim.hostile.member import Party, behaviours_of
from peerd.sim.simulation import Simulation
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.hostile import (
    KINDS,
    InsertsForOthers,
    LearnsTransfers,
    ManySubscriptions,
    OthersBegin,
    WrongBatches,
)
from protocols.pubsub.front.hostile_base import PubSubBehaviour
from protocols.pubsub.front.judging import Judge, PublishedEvent, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.plugin import PubSub
from tests.support.branch import branched
from tests.support.liars import misbehave

COUNT, LIAR = 14, 3
QUOTA = 100
CONFIG = PubSubConfig.model_validate(
    {"leaf_capacity": 6, "merge_after": "10s", "update_interval": "10s", "subscriptions_per_member": QUOTA}
)
LONGEST_PAUSE_S = 12.0
"""Longer than leaves wait with a merger, and than replicas are told."""
DELIVERED_S = 20.0
OUTCOMES = ("received", "replicated", "unknown")
IS_SEEN_AT_ONCE = (InsertsForOthers, OthersBegin, WrongBatches)


class World:
    """A ring with one liar, honest subscribers and publishers, and a judge."""

    def __init__(self) -> None:
        self.simulation = Simulation(21, plugins=pubsub_plugins)
        self.party = Party(self.simulation, {LIAR: []})
        self.simulation.start(COUNT, spacing_s=0.2)
        self.simulation.run_for(COUNT * 0.2)
        self.simulation.run_until(self.simulation.is_ready, 60.0)
        self.simulation.run_for(5.0)
        self.rng = Random(4)
        self.workload = ThesisWorkload(self.rng)
        self.judge = Judge(lambda: self.simulation.now)
        self.honest = [place for place in self.simulation.nodes if place.index != LIAR]
        plugin_of(self.honest[0]).schemas.declare(self.workload.document(signed=True), lambda answer: None)
        self.simulation.run_for(4.0)
        for place in self.simulation.nodes:
            plugin_of(place).schemas.fetch(self.workload.schema, lambda schema, why: None)
        self.simulation.run_for(2.0)

    def subscribe(self, count: int) -> None:
        """Honest clients subscribe, one after the other."""
        for _ in range(count):
            self.judge.subscribe(self.rng.choice(self.honest), self.workload.schema, self.workload.subscription())
            self.simulation.run_for(0.2)

    def publish(self, count: int) -> list[PublishedEvent]:
        """Honest clients publish, and their subscribers read meanwhile."""
        found = []
        for _ in range(count):
            place = self.rng.choice(self.honest)
            found.append(self.judge.publish(place, self.workload.schema, self.workload.event()))
            self.simulation.run_for(0.3)
            self.judge.read()
        return found

    def come_to_rest(self, events: list[PublishedEvent]) -> None:
        """Wait, while the liar goes on, for as long as trees need to change, and then until all is told and delivered.

        Whether that is so is for the caller to judge: it may never be.
        """
        self.simulation.run_for(LONGEST_PAUSE_S)
        until = self.simulation.now + DELIVERED_S
        while self.simulation.now < until and not self._is_at_rest(events):
            self.simulation.run_for(1.0)
        self.judge.read()

    def _is_at_rest(self, events: list[PublishedEvent]) -> bool:
        self.judge.read()
        is_told = all(event.outcome != "pending" for event in events) and all(
            each.established_at is not None for each in self.judge.watched
        )
        return is_told and not self.judge.missing(events, OUTCOMES)

    def forest_size(self) -> int:
        """How many cells there are in all trees."""
        return sum(len(plugin_of(place).rendezvous.forest.cells) for place in self.simulation.nodes)

    @property
    def liar(self) -> PubSubBehaviour:
        """What the liar does."""
        [behaviour] = behaviours_of(self.simulation.nodes[LIAR])
        assert isinstance(behaviour, PubSubBehaviour)
        return behaviour


def pubsub_plugins(index: int) -> list[Plugin]:
    return [PubSub(CONFIG)]


@pytest.fixture(scope="module")
def grown() -> World:
    """A ring with subscriptions, in which nobody has misbehaved yet. For branches: it stays as it is."""
    world = World()
    world.subscribe(30)
    world.publish(5)
    return world


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@branched
def test_honest_nodes_get_exactly_what_matches(grown: World, kind: type[PubSubBehaviour]) -> None:
    world = grown
    misbehave(world.party, LIAR, kind)
    events = world.publish(10)
    world.subscribe(20)  # trees grow meanwhile
    events += world.publish(20)
    world.come_to_rest(events)
    assert world.liar.said, "it has tried"
    assert not world.judge.offences
    assert not world.judge.missing(events, OUTCOMES)
    assert {event.outcome for event in events} <= {"received", "replicated"}
    assert all(watched.established_at is not None for watched in world.judge.watched)
    accused = {about.id for _, _, about, _ in world.simulation.misbehaviours}
    assert accused <= {world.simulation.nodes[LIAR].id}
    assert bool(accused) or kind not in IS_SEEN_AT_ONCE
    for place in world.honest:
        plugin_of(place).validate()


def test_one_member_fills_its_own_quota_only() -> None:
    world = World()
    misbehave(world.party, LIAR, ManySubscriptions)
    world.simulation.run_for(20.0)
    world.subscribe(10)
    world.simulation.run_for(20.0)
    liar = world.simulation.nodes[LIAR].id
    counts = [plugin_of(place).rendezvous.forest.members[liar] for place in world.honest]
    assert world.liar.said and max(counts) > QUOTA / 2, "it has got far"
    assert max(counts) <= QUOTA
    assert all(watched.established_at is not None for watched in world.judge.watched)


def test_the_number_of_a_split_is_told_to_the_roots_of_its_halves_only() -> None:
    world = World()
    misbehave(world.party, LIAR, LearnsTransfers)
    world.subscribe(60)
    behaviour = world.liar
    assert isinstance(behaviour, LearnsTransfers)
    assert behaviour.said and not behaviour.learnt
    assert world.forest_size() > 20, "trees have grown meanwhile"
