"""What a node remembers of the events of its leaves: here, the last value of each key."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from protocols.pubsub.bodies import event_bytes, id_of
from protocols.pubsub.delivering.history import AHEAD_MAX_S, EventHistory
from protocols.pubsub.messages import EventBody
from tests.support.pubsub_leaf import event

WALL_S = 1_800_000_000.0


def value(number: int, published_s: float, publisher: int = 9) -> EventBody:
    return replace(event(number, publisher=publisher, retain=b"sensor"), published_ms=round(1000 * published_s))


def add(history: EventHistory, body: EventBody, now: float, wall_s: float) -> None:
    history.add("s", id_of(body), body, event_bytes(body), now, wall_s)


def retained(history: EventHistory) -> list[int]:
    return [past.event.sequence for past in history.retained("s")]


def test_the_last_value_of_a_key_is_the_one_that_was_published_last_whichever_came_last() -> None:
    history = EventHistory(1 << 20, 3600.0)
    for number, published_s in ((1, WALL_S - 3), (3, WALL_S - 1), (2, WALL_S - 2)):
        add(history, value(number, published_s), 0.0, WALL_S)
    assert retained(history) == [3]


def test_a_value_whose_time_is_far_ahead_is_replaced_all_the_same() -> None:
    history = EventHistory(1 << 20, 3600.0)
    add(history, value(1, WALL_S + 1e9, publisher=66), 0.0, WALL_S)
    add(history, value(2, WALL_S + 1), 1.0, WALL_S + 1)
    assert retained(history) == [1], "clocks may differ a little"
    later_s = WALL_S + AHEAD_MAX_S + 1
    add(history, value(3, later_s), AHEAD_MAX_S + 1, later_s)
    assert retained(history) == [3]


def test_a_flood_of_values_pushes_out_none_of_another_publisher() -> None:
    history = EventHistory(2 * 64 * 1024, 3600.0)
    add(history, replace(event(0, publisher=1, retain=b"quiet"), published_ms=1), 0.0, WALL_S)
    for number in range(1000):
        add(history, replace(event(number, publisher=66, retain=b"%d" % number), published_ms=2), 0.0, WALL_S)
    kept = [past.event for past in history.retained("s")]
    assert history.retained_size <= 64 * 1024
    assert kept[0].retain == b"quiet"
    assert [each.sequence for each in kept[1:]] == list(range(1001 - len(kept), 1000)), "its own newest stay"


def test_values_that_several_publishers_replace_in_turn_are_counted_once() -> None:
    rng, history = Random(1), EventHistory(2 * 16 * 1024, 3600.0)
    for number in range(2000):
        publisher, key = rng.choice((1, 1, 1, 2, 3)), b"%d" % rng.randrange(30)
        add(history, replace(event(number, publisher=publisher, retain=key), published_ms=number), 0.0, WALL_S)
        kept = list(history.retained("s"))
        assert history.retained_size == sum(past.size for past in kept) <= 16 * 1024
    assert {past.event.publisher.id for past in kept} == {1, 2, 3}
