"""Answers of leaves' roots to publishers that take no more links, on whole simulated rings."""

from __future__ import annotations

import pytest

from peerd.sim.simulation import Place
from protocols.pubsub.front.judging import plugin_of
from tests.support.pubsub_rings import ACKNOWLEDGED, PubSubRing

CARRIED = "peerd_pubsub_acks_carried_total"
SOON_S = 8.0
"""Before what has not been answered is tried for the third time."""


def carried(place: Place, what: str) -> float:
    """How many answers this node has counted so."""
    return place.driver.metrics.get((CARRIED, (("what", what),)), 0.0)


def take_no_links(place: Place) -> None:
    """Have a node refuse every new link, as one does that has ``links_max`` of them, and uses all."""
    place.driver.policy._has_room = lambda: False  # type: ignore[method-assign]  # what its links are used for is chance


@pytest.mark.parametrize("ack", ["received", "replicated"])
def test_answers_come_to_a_publisher_that_takes_no_links_by_the_way_of_the_event(ack: str) -> None:
    tested = PubSubRing(60, seed=3, settings={"leaf_capacity": 4, "leaf_cache_max": 0})
    tested.subscribe(80)
    simulation = tested.simulation
    publisher = min(simulation.live_nodes(), key=lambda place: len(place.driver.links))
    take_no_links(publisher)
    events = []
    for _ in range(3):
        events += tested.publish(1, [publisher], ack=ack)
        tested.run_for(SOON_S)
    assert [event.outcome for event in events if event.outcome not in ACKNOWLEDGED] == []
    assert carried(publisher, "taken") > 0
    assert sum(carried(place, "lost") + carried(place, "forged") for place in simulation.live_nodes()) == 0
    assert not tested.judge.missing(events)
    assert not tested.judge.offences
    for place in simulation.live_nodes():
        plugin_of(place).validate()
