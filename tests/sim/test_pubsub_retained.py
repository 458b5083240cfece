"""The last value of a key: a new subscription gets it, and never one that was replaced."""

from __future__ import annotations

from random import Random

from peerd.lib.feed import FeedItem
from peerd.testing.simulation import ring
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.models import SubscriptionRequest
from protocols.pubsub.plugin import PubSub

CONFIG = PubSubConfig.model_validate({"leaf_capacity": 5})


def test_a_new_subscription_gets_the_last_value_of_a_key_and_no_older_one() -> None:
    simulation = ring(48, 3, plugins=lambda index: [PubSub(CONFIG)])
    rng = Random(3)
    workload, live = ThesisWorkload(rng), simulation.live_nodes()
    told: list[object] = []
    plugin_of(live[0]).schemas.declare(workload.document(), told.append)
    simulation.run_for(5.0)
    for place in live:
        plugin_of(place).schemas.fetch("thesis", lambda schema, why: None)
    simulation.run_for(5.0)
    for _ in range(120):  # so that the trees have several leaves
        asked = SubscriptionRequest.model_validate({"schema": "thesis", "filter": workload.subscription()})
        plugin_of(rng.choice(live)).subscriptions.subscribe(asked, told.append)
        simulation.run_for(0.5)
    simulation.run_for(30.0)
    for value in (10.0, 9000.0):  # the second one replaces the first one, and belongs to other leaves
        event = {"attr1": value, "attr2": 0.0, "attr3": 1.0, "attr4": 1.0, "_retain": "sensor"}
        plugin_of(live[1]).entering.publish("thesis", event, told.append)
        simulation.run_for(5.0)

    def retained(filter: str) -> list[float]:
        plugin = plugin_of(live[2])
        asked = SubscriptionRequest.model_validate({"schema": "thesis", "filter": filter, "retained": True})
        view = plugin.subscriptions.subscribe(asked, told.append)
        reader = plugin.subscriptions.reading(view.id)[1].reader("start")
        simulation.run_for(20.0)
        entries = iter(reader.take, None)
        return [entry.value.values["attr1"] for entry in entries if isinstance(entry, FeedItem)]

    assert retained("attr1 BETWEEN 8990 AND 9010") == [9000.0]
    assert retained("attr1 BETWEEN 5 AND 15") == []
    assert retained("attr1 >= 0") == [9000.0]
