"""The filters of this node's subscriptions, and the window of events that were taken."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.lib.feed import FeedLoss
from peerd.testing.host import FakeHost
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.losses import LostEvents
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import SchemaView
from protocols.pubsub.subscribing.inlets import TakenEvent
from protocols.pubsub.subscribing.local import LocalSubscriptions, TakenWindow
from protocols.pubsub.subscribing.writes import Writes
from tests.support.pubsub_subscribing import PUBLISHER, STOCKS, PlainIndex, PlainSchema, event, number_of


class Listener:
    """Implements `protocols.pubsub.subscribing.local.LocalReceiver`."""

    group = ""
    since_ms = 0
    may_block = False
    is_blocked = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.heard: list[int] = []
        self.failed: list[str] = []
        self.duplicates = self.lost = 0

    def give(self, item: TakenEvent, writes: Writes) -> None:
        self.heard.append(number_of(item.shown))

    def fail(self, why: str) -> None:
        self.failed.append(why)

    def note_duplicate(self) -> None:
        self.duplicates += 1

    def note_lost(self, loss: FeedLoss, writes: Writes) -> None:
        self.lost += loss.count

    def believes(self, leaf: NodeId, count: int) -> int:
        return count


def name(number: int) -> EventId:
    return EventId(PUBLISHER.id, 1, number)


def local(dedupe_window: int = 100) -> LocalSubscriptions:
    return LocalSubscriptions(FakeHost(1), PubSubConfig(dedupe_window=dedupe_window), PlainIndex)


def take(node: LocalSubscriptions, number: int, price: int, schema: PlainSchema | None = None) -> bool:
    return node.take(schema or PlainSchema(), event(number, price=price), {"price": price}, (), False)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=60))
def test_each_event_is_given_once_to_exactly_those_that_it_matches(events: list[tuple[int, int]]) -> None:
    node = local()
    listeners = {low: Listener(low) for low in range(0, 9, 3)}
    for low, listener in listeners.items():
        node.add(listener, PlainSchema(), low, f"price > {low}", is_current=True)
    prices = dict(reversed(events))  # an event that comes again is the same
    for number, _ in events:
        assert take(node, number, prices[number]) is (prices[number] > 0)
    for low, listener in listeners.items():
        matching = [number for number, _ in events if prices[number] > low]
        assert listener.heard == list(dict.fromkeys(matching))
        assert listener.duplicates == len(matching) - len(listener.heard)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3)), max_size=80), st.integers(1, 5))
def test_the_window_remembers_the_newest_events(steps: list[tuple[bool, int, int]], count_max: int) -> None:
    window = TakenWindow(count_max)
    model: dict[EventId, tuple[int, ...]] = {}
    for is_note, number, who in steps:
        if is_note:
            window.note(name(number), (who,))
            model[name(number)] = (who,)
            if len(model) > count_max:
                del model[next(iter(model))]
        else:
            window.forget(name(number), who)
            if model.get(name(number)) == (who,):
                model[name(number)] = ()
        assert len(window) == len(model) <= count_max
        for each in range(10):
            assert window.given(name(each)) == model.get(name(each))


def test_an_event_that_has_left_the_window_is_taken_again() -> None:
    node, listener = local(dedupe_window=2), Listener(1)
    node.add(listener, PlainSchema(), 1, "price > 5", is_current=True)
    for number in (1, 2, 3, 1, 3):
        take(node, number, 6)
    assert listener.heard == [1, 2, 3, 1]


def test_only_the_current_filter_of_a_subscription_gets_events_but_all_are_wanted() -> None:
    node, listener = local(), Listener(1)
    old = node.add(listener, PlainSchema(), 1, "price > 5", is_current=True)
    new = node.add(listener, PlainSchema(), 2, "price < 3", is_current=False)
    assert [take(node, price, price) for price in (1, 4, 7)] == [True, False, True]
    old.is_current, new.is_current = False, True
    assert [take(node, 10 + price, price) for price in (1, 4, 7)] == [True, False, True]
    assert listener.heard == [7, 11]
    node.remove(STOCKS, old)
    node.remove(STOCKS, old)
    assert not take(node, 20, 7)
    assert node.has(STOCKS)
    node.remove(STOCKS, new)
    assert not node.has(STOCKS)


def test_a_subscription_whose_filter_cannot_be_tried_is_told_of_and_gets_nothing() -> None:
    node = local()
    good, bad = Listener(1), Listener(2)
    node.add(good, PlainSchema(), 1, "price > 1", is_current=True)
    entry = node.add(bad, PlainSchema(), 2, "price > 2", is_current=True)
    node._side(PlainSchema()).index.failed[entry.sub.filter] = "a bug"
    assert take(node, 1, 5)
    assert (good.heard, bad.heard, good.failed, bad.failed) == ([1], [], [], ["a bug"])


def test_a_later_version_of_a_schema_gets_an_index_of_its_own() -> None:
    made: list[int] = []

    class Noted(PlainIndex):
        def __init__(self, schema: SchemaView) -> None:
            super().__init__(schema)
            made.append(schema.version)

    node, listener = LocalSubscriptions(FakeHost(1), PubSubConfig(), Noted), Listener(1)
    node.add(listener, PlainSchema(), 1, "price > 5", is_current=True)
    assert take(node, 1, 6, PlainSchema(version=2))
    assert take(node, 2, 6, PlainSchema(version=1))
    assert (made, listener.heard) == ([1, 2], [1, 2])


def test_what_a_leaf_has_dropped_is_told_to_all_who_might_have_got_it() -> None:
    node, current, coming, other, member = local(), *map(Listener, range(1, 5))
    member.group = "g"
    node.add(current, PlainSchema(), 1, "price > 5", is_current=True)
    node.add(coming, PlainSchema(), 2, "price > 5", is_current=False)
    node.add(other, PlainSchema("bonds"), 3, "price > 5", is_current=True)
    node.add(member, PlainSchema(), 4, "price > 5", is_current=True)
    for schema, count in ((STOCKS, 3), (STOCKS, 0), ("nobody's", 7)):
        node.note_lost(schema, (LostEvents(1, count),) if count else (), PUBLISHER.id)
    assert [each.lost for each in (current, coming, other, member)] == [3, 0, 0, 0]
