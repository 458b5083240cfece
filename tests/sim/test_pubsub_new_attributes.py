"""Attributes are added to a schema while everybody uses it: who subscribes or publishes with one need not wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peerd.sim.simulation import Place
from protocols.pubsub.front.judging import PublishedEvent, Watched, plugin_of
from protocols.pubsub.names import Tree
from tests.support.pubsub_rings import PubSubRing
from tests.support.pubsub_schemas import names

PAUSE_S = 2.0
"""A schema that was looked up a moment ago is not looked up again."""
VENUE = {"name": "venue", "type": "string"}


class World:
    """A ring whose nodes all know the first version of the schema, when one of them declares the second."""

    def __init__(self, seed: int) -> None:
        self.ring = PubSubRing(16, seed)
        self.schema = self.ring.workload.schema
        self.ring.run_for(PAUSE_S)
        self.declarer, self.subscriber, self.publisher, *self.others = self.ring.simulation.live_nodes()
        document = self.ring.workload.document()
        told: list[Any] = []
        later = {**document, "version": 2, "attributes": [*document["attributes"], VENUE]}
        plugin_of(self.declarer).schemas.declare(later, told.append)
        self.ring.simulation.run_until(lambda: bool(told), limit_s=60.0)
        assert told[0].version == 2
        assert self.version(self.subscriber) == self.version(self.publisher) == 1

    def version(self, place: Place) -> int:
        schema = plugin_of(place).schemas.get(self.schema)
        assert schema is not None
        return schema.version

    def subscribed(self, filter: str) -> Watched:
        begun = self.ring.simulation.now
        watched = self.ring.judge.subscribe(self.subscriber, self.schema, filter)
        self.ring.simulation.run_until(lambda: watched.state == "replicated", limit_s=60.0)
        assert self.ring.simulation.now - begun < PAUSE_S, "a leaf has refused it"
        return watched

    def published(self, values: Mapping[str, Any]) -> PublishedEvent:
        told: list[bool | Exception] = []
        plugin_of(self.publisher).entering.when_publishable(self.schema, values, told.append)
        self.ring.simulation.run_until(lambda: bool(told), limit_s=60.0)
        assert told == [True]
        event = self.ring.judge.publish(self.publisher, self.schema, values)
        self.ring.finish([event])
        return event

    def root(self) -> Place:
        """The root of the only leaf of the new attribute."""
        schema = plugin_of(self.declarer).schemas.get(self.schema)
        assert schema is not None
        [[root]] = [
            places
            for (tree, _), places in self.ring.leaves().items()
            if tree == Tree(self.schema, schema.attributes["venue"].number)
        ]
        return root


def test_a_new_attribute_is_used_at_once_everywhere() -> None:
    world = World(seed=1)
    watched = world.subscribed("venue = 'XETRA'")
    wanted, other = ({**world.ring.workload.event(), "venue": venue} for venue in ("XETRA", "NYSE"))
    events = [world.published(wanted), world.published(other)]
    assert list(watched.seen) == [events[0].event]
    assert not world.ring.offences(events)


def test_a_live_subscription_is_changed_to_a_new_attribute() -> None:
    world = World(seed=2)
    attribute = next(iter(world.ring.workload.event()))
    watched = world.subscribed(f"{attribute} >= 0")
    world.ring.run_for(PAUSE_S)
    told: list[Any] = []
    plugin_of(world.subscriber).subscriptions.change(watched.id, "venue = 'XETRA'", told.append)
    world.ring.simulation.run_until(lambda: bool(told), limit_s=60.0)
    assert (told[0].state, told[0].filter) == ("replicated", "venue = 'XETRA'")


def test_a_new_root_that_knows_the_first_version_takes_over_what_is_kept_for_the_second() -> None:
    world = World(seed=3)
    watched = world.subscribed("venue = 'XETRA'")
    ends = (world.declarer, world.subscriber, world.publisher)
    root = world.root()
    assert root not in ends, "choose another seed"
    assert all(world.version(place) == 1 for place in world.others if place is not root)
    world.ring.simulation.kill(root)
    world.ring.rest(limit_s=60.0)  # before the subscription is renewed
    assert not world.ring.lost()
    assert world.root() is not root
    event = world.published({**world.ring.workload.event(), "venue": "XETRA"})
    assert list(watched.seen) == [event.event]
    assert not world.ring.offences([event])


def test_nodes_that_had_forgotten_the_schema_take_subscriptions_to_a_new_attribute() -> None:
    """They know what they have looked up last, whatever their leaves were made with."""
    ring = PubSubRing(8, 1, {"lease": "30s", "update_interval": "10s"})
    declarer, subscriber, *_ = ring.simulation.live_nodes()
    schema = ring.workload.schema
    made = ring.subscribe(20, [subscriber])
    for each in made:
        plugin_of(subscriber).subscriptions.end(each.id)
    ring.run_for(200.0)
    assert sum(schema in names(plugin_of(place).schemas) for place in ring.simulation.nodes) == 1
    document, venues = ring.workload.document(), [{**VENUE, "name": f"venue{number}"} for number in range(8)]
    told: list[Any] = []
    plugin_of(declarer).schemas.declare(
        {**document, "version": 2, "attributes": [*document["attributes"], *venues]}, told.append
    )
    ring.simulation.run_until(lambda: bool(told), limit_s=60.0)
    asked = [ring.judge.subscribe(subscriber, schema, f"{venue['name']} = 'XETRA'") for venue in venues]
    ring.simulation.run_until(lambda: all(each.state == "replicated" for each in asked), limit_s=60.0)
