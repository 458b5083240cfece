"""Named subscriptions on a simulated ring: their daemon loses its power, and they go on behind what was read."""

from __future__ import annotations

import pytest

from peerd.errors import Unavailable
from peerd.lib.feed import FeedItem
from peerd.sim.simulation import Place
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.models import (
    ReceivedItem,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
    item_order,
)
from protocols.dissemination.names import stream_key
from tests.sim.test_dissemination import SPEC, Streams


def subscribe(streams: Streams, place: Place, name: str = "audit", after: str | None = None) -> StreamSubscriptionView:
    told: list[StreamSubscriptionView | Exception] = []
    plugin_of(place).subscribing.subscribe(
        StreamSubscriptionRequest(stream="news", interest="a,b", name=name, after=after), told.append
    )
    streams.simulation.run_until(lambda: bool(told), limit_s=30.0)
    assert isinstance(told[0], StreamSubscriptionView), told
    return told[0]


def views(place: Place) -> list[StreamSubscriptionView]:
    return plugin_of(place).subscribing.subscriptions()


def read(place: Place, count: int = 1000, name: str = "audit") -> list[ReceivedItem]:
    """What a client gets that reads so many entries and goes away."""
    (view,) = [view for view in views(place) if view.name == name]
    reader = plugin_of(place).subscribing.reading(view.id)[1].reader("start")
    found: list[ReceivedItem] = []
    while len(found) < count and isinstance(entry := reader.take(), FeedItem):
        found.append(entry.value)
    reader.close()
    return found


def restart(streams: Streams, place: Place) -> None:
    streams.simulation.kill(place)
    streams.publish(10)
    streams.simulation.restart(place)

    def is_back() -> bool:
        return place.is_live and place.node.is_ready and any(view.state == "live" for view in views(place))

    streams.simulation.run_until(is_back, limit_s=90.0)
    streams.settle()


def restart_without_items(streams: Streams, place: Place) -> None:
    streams.simulation.kill(place)
    streams.simulation.restart(place)
    streams.simulation.run_until(
        lambda: _is_back(place) and any(view.state == "live" for view in views(place)), limit_s=90.0
    )
    streams.settle()


def _is_back(place: Place) -> bool:
    return place.is_live and place.node.is_ready and plugin_of(place).nodes.get(stream_key("news")) is not None


def wanted(streams: Streams) -> list[str]:
    stream = streams.judge.streams["news"]
    matching = zip(stream.positions, stream.classes, strict=True)
    return [f"{at.epoch}-{at.sequence}" for at, each in matching if each in "ab"]


@pytest.mark.parametrize("taken", [0, 7])
def test_it_goes_on_behind_what_a_reader_has_taken(taken: int) -> None:
    streams = Streams(8)
    place = streams.others[2]
    assert subscribe(streams, place).is_kept
    streams.publish(40)
    streams.settle()
    first = [item.id for item in read(place, taken)]
    streams.settle(2.0)
    restart(streams, place)
    streams.publish(10)
    streams.settle()
    (view,) = views(place)
    assert (view.state, view.interest, view.missed_gaps, view.is_kept) == ("live", "a,b", 0, True)
    assert first + [item.id for item in read(place)] == wanted(streams)


def test_one_that_was_not_read_since_begins_where_it_began_after_two_restarts() -> None:
    streams = Streams(8)
    place = streams.others[2]
    subscribe(streams, place)
    streams.publish(10)
    restart(streams, place)
    restart(streams, place)
    assert [item.id for item in read(place)] == wanted(streams)


def test_a_client_that_comes_before_it_is_made_again_gets_the_same_one() -> None:
    streams = Streams(8)
    place = streams.others[2]
    subscribe(streams, place)
    streams.publish(20)
    streams.settle()
    first = [item.id for item in read(place, 3)]
    streams.settle(2.0)
    streams.simulation.kill(place)
    streams.publish(10)
    streams.simulation.restart(place)
    streams.simulation.run_until(lambda: place.is_live and place.node.is_ready, limit_s=90.0)
    subscribe(streams, place)
    streams.settle()
    assert len(views(place)) == 1
    assert first + [item.id for item in read(place)] == wanted(streams)


def test_what_nobody_remembers_any_more_is_told() -> None:
    streams = Streams(6, replay_items=20)
    place = streams.others[2]
    subscribe(streams, place)
    streams.publish(5)
    streams.simulation.kill(place)
    streams.publish(100)
    streams.simulation.restart(place)
    streams.simulation.run_until(
        lambda: place.is_live and place.node.is_ready and any(view.state == "live" for view in views(place)),
        limit_s=90.0,
    )
    streams.settle()
    (view,) = views(place)
    assert view.missed_gaps == 1 and read(place)[0].type == "lost"


def test_one_that_was_ended_or_has_no_name_is_not_back() -> None:
    streams = Streams(6)
    place = streams.others[2]
    plugin_of(place).subscribing.unsubscribe(subscribe(streams, place).id)
    subscribe(streams, place, name="")
    streams.simulation.kill(place)
    streams.simulation.restart(place)
    streams.simulation.run_until(lambda: place.is_live and place.node.is_ready, limit_s=90.0)
    streams.settle(20.0)
    assert views(place) == [] and place.driver._stores["dissemination"].keys() == []


def test_one_whose_stream_was_created_anew_meanwhile_has_all_of_the_new_one_and_is_told_so() -> None:
    streams = Streams(8)
    simulation, place, creator = streams.simulation, streams.others[2], streams.others[4]
    simulation.kill(streams.producer)
    simulation.restart(streams.producer)  # its boot is a later one than those of the others, so its ids are larger
    simulation.run_until(lambda: _is_back(streams.producer), limit_s=90.0)
    streams.settle()
    subscribe(streams, place)
    for _ in range(5):
        plugin_of(streams.producer).publishers.publish("news", b"a old")
    streams.settle()
    old = [item.id for item in read(place)]
    streams.settle(3.0)
    simulation.kill(place)
    plugin_of(streams.producer).changes.remove("news", lambda answer: None)
    streams.settle()
    told: list[StreamView | Exception] = []
    plugin_of(creator).changes.create(SPEC, told.append)
    simulation.run_until(lambda: bool(told), limit_s=30.0)
    for _ in range(3):
        plugin_of(creator).publishers.publish("news", b"a new")
    simulation.restart(place)
    simulation.run_until(lambda: _is_back(place) and any(view.state == "live" for view in views(place)), limit_s=90.0)
    plugin_of(creator).publishers.publish("news", b"a new")
    streams.settle()
    mark, *new = read(place)
    assert mark.type == "lost" and mark.since is None and "created anew" in mark.reason
    assert [item.payload for item in new] == ["a new"] * 4
    assert max(map(item_order, [item.id for item in new])) < min(map(item_order, old)), "the case that is tested"
    (view,) = views(place)
    assert (view.missed_gaps, view.note) == (1, "")
    streams.settle(3.0)
    restart_without_items(streams, place)
    assert read(place) == [] and views(place)[0].missed_gaps == 0, "it is told once"


def test_one_whose_stream_is_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(6)
    place = streams.others[2]
    subscribe(streams, place)
    plugin_of(streams.producer).changes.remove("news", lambda answer: None)
    streams.settle()
    assert place.driver._stores["dissemination"].keys() == []


def test_a_disk_that_refuses_does_not_refuse_the_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(key: str, value: bytes) -> None:
        raise Unavailable("no room")

    streams = Streams(6)
    monkeypatch.setattr(plugin_of(streams.others[2]).host.store, "put", refuse)
    view = subscribe(streams, streams.others[2])
    assert (view.state, view.is_kept) == ("live", False)


def test_the_places_take_a_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peerd.lib.saved.PLACES_BYTES", 500)
    streams = Streams(6)
    place = streams.others[2]
    subscribe(streams, place)
    (view,) = views(place)
    reader = plugin_of(place).subscribing.reading(view.id)[1].reader("start")
    for _ in range(60):
        streams.publish(1, 1.0)
        while reader.take() is not None:
            pass
    disk = place.driver._stores["dissemination"].logs["places"]
    assert sum(len(record) for record in disk.records.values()) < 1000
    restart(streams, place)
    assert [item.id for item in read(place)] == wanted(streams)[-len(read(place)) :]
    assert len(read(place)) <= 12
