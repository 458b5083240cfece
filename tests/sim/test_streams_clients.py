"""What clients of a stream meet at its edges: the start of what is remembered, and room to publish."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.lib.feed import FeedEnd, FeedItem
from peerd.sim.simulation import Simulation
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.models import (
    ReceivedItem,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
)
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.service import StreamRefused

REMEMBERED = 5


def made(**settings: Any) -> Simulation:
    """Three nodes, the first of which produces a stream and has published more than it remembers."""
    config = DisseminationConfig(replay_items=REMEMBERED, **settings)
    simulation = ring(3, 1, plugins=lambda index: [Dissemination(config)])
    producer, told = plugin_of(simulation.nodes[0]), list[Any]()
    producer.changes.create(StreamSpec(name="news", kind="classes", policy="first_fit"), told.append)
    simulation.run_until(lambda: bool(told), limit_s=30.0)
    assert isinstance(told[0], StreamView), told
    for number in range(4 * REMEMBERED):
        producer.publishers.publish("news", f"a {number}".encode())
    simulation.run_for(1.0)
    return simulation


def received(simulation: Simulation, after: str) -> list[ReceivedItem]:
    """What a new subscription on the second node begins with."""
    plugin, told = plugin_of(simulation.nodes[1]), list[Any]()
    plugin.subscribing.subscribe(StreamSubscriptionRequest(stream="news", after=after), told.append)
    simulation.run_until(lambda: bool(told), limit_s=30.0)
    [view] = told
    assert isinstance(view, StreamSubscriptionView), view
    simulation.run_for(5.0)
    reader = plugin.subscribing.reading(view.id)[1].reader("start")
    entries = iter(reader.take, None)
    return [entry.value for entry in entries if isinstance(entry, FeedItem)]


def test_who_begins_at_the_start_gets_what_is_remembered_and_is_told_of_no_loss() -> None:
    found = received(made(), "start")
    numbers = range(3 * REMEMBERED, 4 * REMEMBERED)
    assert [(item.type, item.payload) for item in found] == [("item", f"a {number}") for number in numbers]


def test_who_resumes_where_nobody_remembers_is_told_what_is_lost() -> None:
    simulation = made()
    position = plugin_of(simulation.nodes[0]).questions.streams()[0].position or ""
    epoch = position.partition("-")[0]
    lost, *rest = received(simulation, f"{epoch}-1")
    assert (lost.type, lost.since) == ("lost", f"{epoch}-1")
    assert len(rest) == REMEMBERED and all(item.type == "item" for item in rest)


def test_a_publisher_goes_on_at_once_where_there_is_room() -> None:
    producer, told = plugin_of(made().nodes[0]), list[Any]()
    producer.publishers.when_publishable("news", told.append)
    assert told == [True]


def test_clients_of_a_node_that_leaves_the_ring_are_asked_to_come_back() -> None:
    simulation = made()
    leaver, told = plugin_of(simulation.nodes[1]), list[Any]()
    leaver.subscribing.subscribe(StreamSubscriptionRequest(stream="news"), told.append)
    simulation.run_until(lambda: bool(told), limit_s=30.0)
    reader = leaver.subscribing.reading(told[0].id)[1].reader("start")
    leaver.drain(lambda: told.append("drained"))
    simulation.run_until(lambda: told[1:] == ["drained"], limit_s=30.0)
    end = reader.take()
    assert isinstance(end, FeedEnd) and not end.is_final and "leaving" in end.reason
    with pytest.raises(Unavailable):
        leaver.subscribing.subscribe(StreamSubscriptionRequest(stream="news"), told.append)


def test_publishers_wait_while_the_producer_leaves_the_ring() -> None:
    simulation = made()
    producer, told = plugin_of(simulation.nodes[0]), list[Any]()
    producer.drain(lambda: told.append("drained"))
    simulation.run_until(lambda: told == ["drained"], limit_s=30.0)
    with pytest.raises(Unavailable):
        producer.publishers.publish("news", b"a")
    with pytest.raises(Unavailable):
        producer.publishers.when_publishable("news", told.append)


def test_subscriptions_to_a_stream_that_is_over_make_room_for_others() -> None:
    simulation = made(subscriptions_max=1)
    producer, told = plugin_of(simulation.nodes[0]), list[Any]()

    def answer(count: int) -> Any:
        simulation.run_until(lambda: len(told) == count, limit_s=30.0)
        return told[-1]

    producer.subscribing.subscribe(StreamSubscriptionRequest(stream="news", name="audit"), told.append)
    assert isinstance(answer(1), StreamSubscriptionView)
    with pytest.raises(StreamRefused):
        producer.subscribing.subscribe(StreamSubscriptionRequest(stream="news"), told.append)
    producer.changes.remove("news", told.append)
    answer(2)
    producer.changes.create(StreamSpec(name="other", kind="classes", policy="first_fit"), told.append)
    answer(3)
    producer.subscribing.subscribe(StreamSubscriptionRequest(stream="other"), told.append)
    assert isinstance(answer(4), StreamSubscriptionView)
    assert [view.stream for view in producer.subscribing.subscriptions()] == ["other"]


def test_who_is_at_another_node_is_told_where_the_producer_is_and_what_differs() -> None:
    simulation, told = made(), list[Any]()
    other, at = plugin_of(simulation.nodes[2]), plugin_of(simulation.nodes[0]).host.peer.address
    other.publishers.when_publishable("news", told.append)
    other.changes.create(StreamSpec(name="news", kind="classes", policy="first_fit", unsigned=True), told.append)
    simulation.run_until(lambda: len(told) == 2, limit_s=30.0)
    publishing, creating = map(str, told)
    assert at in publishing and "publish there" in publishing
    assert at in creating and "unsigned is false, not true" in creating
    with pytest.raises(StreamRefused, match='policy is "first_fit", not "cost"'):
        plugin_of(simulation.nodes[0]).changes.create(
            StreamSpec(name="news", kind="classes", policy="cost"), told.append
        )


def test_what_a_slow_reader_did_not_get_stands_in_its_view() -> None:
    simulation, told = made(feed_items=3), list[Any]()
    plugin = plugin_of(simulation.nodes[1])
    plugin.subscribing.subscribe(StreamSubscriptionRequest(stream="news"), told.append)
    simulation.run_until(lambda: bool(told), limit_s=30.0)
    plugin.subscribing.reading(told[0].id)[1].reader("now")
    for number in range(10):
        plugin_of(simulation.nodes[0]).publishers.publish("news", f"a {number}".encode())
        simulation.run_for(0.5)
    [view] = plugin.subscribing.subscriptions()
    assert (view.received, view.dropped, view.missed_gaps) == (10, 7, 0)
