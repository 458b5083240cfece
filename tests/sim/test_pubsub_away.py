"""A durable subscriber's node that is away: what was acknowledged meanwhile comes, or a mark says how much did not."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.lib.feed import FeedDropped, FeedItem, Policy
from peerd.sim.simulation import Place
from protocols.pubsub.front.judging import PublishedEvent, plugin_of
from protocols.pubsub.models import SubscriptionRequest
from tests.support.long_cases import cases
from tests.support.pubsub_rings import PubSubRing

WIDE = "attr1 >= 0 OR attr1 < 0"


class Absence:
    """A ring with one durable subscription to everything, whose node goes and comes back."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.ring = PubSubRing(8, seed)
        self.place = self.ring.simulation.nodes[2]
        self.others = [place for place in self.ring.simulation.nodes if place is not self.place]
        self.events: list[PublishedEvent] = []
        self.subscribe("audit", **options)
        self.ring.rest()

    def subscribe(self, name: str, **options: Any) -> None:
        asked = {"schema": self.ring.workload.schema, "filter": WIDE, "name": name, **options}
        told: list[object] = []
        plugin_of(self.place).subscriptions.subscribe(SubscriptionRequest.model_validate(asked), told.append)
        self.ring.simulation.run_until(lambda: bool(told), limit_s=60.0)

    def leave(self) -> None:
        self.ring.simulation.kill(self.place)

    def publish(self, count: int, over_s: float, payload: str = "") -> None:
        """Events from all other nodes that live, so long one after the other."""
        publishers = [place for place in self.others if place.is_live]
        for number in range(count):
            values = {**self.ring.workload.event(), "_payload": payload}
            place = publishers[number % len(publishers)]
            self.events.append(self.ring.judge.publish(place, self.ring.workload.schema, values))
            self.ring.simulation.run_for(over_s / count)

    def come_back(self) -> None:
        self.ring.simulation.restart(self.place)

    def read(self, name: str = "audit", wait_s: float = 60.0) -> tuple[list[str], int, list[str]]:
        """The events that are there, how many are said to be missing, and in what order both stand."""
        self.ring.simulation.run_for(wait_s)
        subscriptions = plugin_of(self.place).subscriptions
        reader = subscriptions.get(name).feed.reader("start", Policy.DROP_OLDEST)
        got, missing, order = [], 0, []
        while (entry := reader.take()) is not None:
            if isinstance(entry, FeedItem):
                got.append(entry.value.event)
                order.append("event")
            elif isinstance(entry, FeedDropped):
                missing += entry.count
                order.append(entry.loss.reason if entry.loss is not None else "unread")
        return got, missing, order

    def check_hole(self, got: list[str], missing: int, order: list[str], reason: str) -> None:
        """One mark, in the place of what is missing, and with the right number; all were published one by one."""
        places = [[str(event.event) for event in self.events].index(event) for event in got]
        assert places == sorted(places)
        assert [word for word in order if word != "event"] == [reason]
        at = order.index(reason)
        before = places[at - 1] if at else -1
        assert places[at] - before - 1 == missing

    def acknowledged(self) -> set[str]:
        return {str(event.event) for event in self.events if event.outcome == "replicated"}


@pytest.mark.parametrize("away_s", [80.0, 600.0])
def test_what_was_published_while_its_node_was_away_comes(away_s: float) -> None:
    absence = Absence()
    absence.leave()
    absence.publish(120, away_s)
    absence.come_back()
    got, missing, _ = absence.read()
    assert len(absence.acknowledged()) > 100
    assert set(got) >= absence.acknowledged()
    assert (len(got), missing) == (len(set(got)), 0)


def test_what_is_more_than_it_states_is_told_before_the_newest() -> None:
    absence = Absence(keep_bytes=64 * 1024)
    absence.publish(5, 5.0)
    absence.leave()
    absence.publish(60, 120.0, payload="x" * 4000)
    absence.come_back()
    got, missing, order = absence.read()
    assert set(got[-5:]) == {str(event.event) for event in absence.events[-5:]}
    absence.check_hole(got, missing, order, "keep_bytes")
    assert 30 < missing < 60


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_more_than_it_states_is_told_where_only_its_reader_is_away(is_restarted: bool) -> None:
    """Its own node let the oldest go, and neither its reader nor the list of subscriptions said so."""
    absence = Absence(keep_bytes=64 * 1024)
    absence.publish(60, 120.0, payload="x" * 4000)
    absence.ring.rest()
    [view] = plugin_of(absence.place).subscriptions.views()
    if is_restarted:
        absence.leave()
        absence.come_back()
    got, missing, order = absence.read()
    absence.check_hole(got, missing, order, "unread")
    assert 20 < missing == view.dropped < 60


def test_what_was_read_before_its_node_was_restarted_is_not_told() -> None:
    absence = Absence(keep_bytes=64 * 1024)
    absence.publish(20, 20.0, payload="x" * 4000)
    assert len(absence.read()[0]) == 20
    absence.ring.simulation.run_for(10.0)  # how far readers are is written now and then
    absence.leave()
    absence.come_back()
    absence.ring.rest()
    absence.publish(20, 20.0, payload="x" * 4000)
    got, missing, _ = absence.read()
    assert missing == 0 and 20 <= len(got) < 40


def test_what_is_older_than_it_states_is_told() -> None:
    absence = Absence(keep_s=60)
    absence.leave()
    absence.publish(40, 40.0)
    absence.ring.simulation.run_for(90.0)
    absence.publish(10, 10.0)
    absence.come_back()
    got, missing, order = absence.read()
    assert set(got) >= {str(event.event) for event in absence.events[-10:]}
    absence.check_hole(got, missing, order, "keep_time")
    assert missing > 30


@pytest.mark.parametrize("seed", cases([0, 1], [2, 3, 4]))
def test_the_owners_of_its_leaves_die_meanwhile(seed: int) -> None:
    """Whoever follows them on the ring has what they kept."""
    absence = Absence(seed)
    absence.leave()
    absence.publish(60, 90.0)
    owners = {place.id: place for places in absence.ring.leaves().values() for place in places}
    owner: Place = next(place for place in owners.values() if place is not absence.place)
    absence.ring.simulation.kill(owner)
    absence.publish(30, 60.0)
    absence.come_back()
    got, missing, _ = absence.read(wait_s=120.0)
    lost = absence.acknowledged() - set(got)
    assert not lost or len(lost) <= missing
    assert len(got) == len(set(got))


def test_the_owners_of_its_leaves_are_restarted_meanwhile() -> None:
    absence = Absence()
    absence.leave()
    absence.publish(60, 90.0)
    for place in absence.others[:4]:
        absence.ring.simulation.kill(place)
        absence.ring.simulation.run_for(1.0)
        absence.ring.simulation.restart(place)
        absence.ring.simulation.run_for(30.0)
    absence.come_back()
    got, missing, _ = absence.read(wait_s=120.0)
    lost = absence.acknowledged() - set(got)
    assert not lost or len(lost) <= missing


def test_a_covered_subscription_gets_what_was_kept_for_the_one_that_covers_it() -> None:
    absence = Absence()
    absence.subscribe("second")
    views = {view.name: view for view in plugin_of(absence.place).subscriptions.views()}
    assert views["second"].covered_by == views["audit"].id
    absence.leave()
    absence.publish(60, 100.0)
    absence.come_back()
    for name in ("audit", "second"):
        got, missing, _ = absence.read(name)
        assert set(got) >= absence.acknowledged() and missing == 0, name


def test_one_that_states_more_is_not_covered_by_one_that_states_less() -> None:
    absence = Absence(keep_bytes=64 * 1024)
    absence.subscribe("second", keep_bytes=128 * 1024)
    assert all(view.covered_by is None for view in plugin_of(absence.place).subscriptions.views())
