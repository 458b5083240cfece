"""Durable subscriptions of one node: what is on disk, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from peerd.api import Log
from peerd.errors import Unavailable
from peerd.ids import format_id
from peerd.lib.feed import FeedDropped, FeedItem, FeedLoss, Policy
from peerd.lib.group_log import GroupLog
from peerd.testing.host import FakeHost, FakeStore, peer
from protocols.pubsub.bodies import id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.losses import LossReason, LostEvents
from protocols.pubsub.messages import DeliveredEvent, DeliveryAnswer, EventDelivery, InsertSub, ProbeSub
from protocols.pubsub.models import SubscriptionView
from protocols.pubsub.service import NotDone
from protocols.pubsub.subscribing.inlets import DurableInlet, TakenEvent, taken
from protocols.pubsub.subscribing.local import EXPECTED_S, SCHEMA_PAUSE_MS
from protocols.pubsub.subscribing.saved import DURABLE_MAX
from protocols.pubsub.subscribing.subscriptions import AGAIN_S, CHECK_S
from protocols.pubsub.subscribing.writes import Writes
from tests.support.pubsub_subscribing import LEAF, STOCKS, Node1, PlainSchema, PlainSchemas, event, number_of

LEASE_S = PubSubConfig().lease


def filters(probes: list[ProbeSub]) -> list[str]:
    return [probe.sub.filter for probe in probes]


def told_state(told: Any) -> str:
    """The state of what a client was told; fails for an error."""
    assert isinstance(told, SubscriptionView), told
    return told.state


# --- durable ones ---------------------------------------------------------------------------------------------------


def test_a_durable_subscription_and_its_events_are_back_after_a_crash() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    [old] = node.install()
    node.deliver(event(1, price=6), event(2, price=3), event(3, price=7))
    position = node.plugin.subscriptions.get(id).feed.position
    again = Node1(before=node)
    assert again.view("audit").id == id
    [probe] = again.install()
    # It takes the place of its old piece in the leaf, in place of standing beside it.
    assert probe.sub == replace(old.sub, version=probe.sub.version)
    assert probe.sub.version > old.sub.version
    # The leaf has not heard the answer and sends the events again; then comes a new one.
    again.deliver(event(3, price=7), event(4, price=8))
    assert again.numbers(id) == [1, 3, 4]
    reader = again.plugin.subscriptions.get(id).feed.reader(position, Policy.DROP_OLDEST)
    taken = reader.take()
    assert isinstance(taken, FeedItem)
    assert number_of(taken.value) == 4


def restarted_without_schema() -> Node1:
    """A node with a durable subscription that has been restarted, in a ring that does not answer."""
    node = Node1()
    node.subscribe("price > 5", name="audit")
    node.install()
    schemas = PlainSchemas()
    schemas.is_silent = True
    return Node1(schemas=schemas, before=node)


def test_leaves_wait_until_a_subscription_that_was_brought_back_knows_its_schema() -> None:
    """It was answered that nobody wants the event: the leaf forgot it, and the piece as well."""
    node = restarted_without_schema()
    assert node.batch(1, 1, event(1, price=6)) == DeliveryAnswer(0, SCHEMA_PAUSE_MS, (), 1)
    node.plugin.schemas.known[STOCKS] = PlainSchema()
    node.plugin.schemas.is_silent = False
    node.plugin.subscriptions.on_subscription_again(node.view("audit").id)
    assert node.deliver(event(1, price=6)).taken == 1
    assert node.numbers("audit") == [1]


def test_a_subscription_that_never_knows_its_schema_is_told_what_it_misses() -> None:
    node = restarted_without_schema()
    node.host.time_s += EXPECTED_S
    assert node.batch(1, 1, event(1, price=6)) == DeliveryAnswer(1, 0, (), 1)
    assert node.view("audit").missed == 1


def test_a_mark_of_lost_events_stands_in_its_place_also_after_a_restart() -> None:
    node = Node1()
    node.subscribe("price > 5", name="audit")
    node.install()
    node.deliver(event(1, price=6))
    lost = LostEvents(LossReason.KEEP_TIME, 7)
    node.host.deliver(EventDelivery(STOCKS, 9, 1, (DeliveredEvent(event(2, price=6)),), (lost,)), LEAF)
    node.host.run_later()
    again = Node1(before=node)
    reader = again.plugin.subscriptions.get("audit").feed.reader("start", Policy.DROP_OLDEST)
    entries = [reader.take() for _ in range(3)]
    assert entries[1] == FeedDropped(2, 2, FeedLoss(7, "keep_time", format_id(LEAF.id)))
    assert [number_of(entry.value) for entry in entries if isinstance(entry, FeedItem)] == [1, 2]
    assert again.view("audit").missed == 7


def test_a_node_without_durable_subscriptions_opens_no_log() -> None:
    node = Node1()
    node.subscribe("price > 5")
    node.install()
    again = Node1(before=node)
    assert again.host.store.logs == node.host.store.logs == {}


def test_an_event_that_the_disk_has_lost_is_marked_in_its_place() -> None:
    node = Node1()
    node.subscribe("price > 5", name="audit")
    node.install()
    node.deliver(*(event(number, price=6) for number in range(1, 6)))
    del node.host.store.logs["events-00"].records[3], node.host.store.logs["events-00"].records[5]
    again = Node1(before=node)
    reader = again.plugin.subscriptions.get("audit").feed.reader("start", Policy.DROP_OLDEST)
    entries = [reader.take() for _ in range(5)]
    assert [number_of(entry.value) for entry in entries if isinstance(entry, FeedItem)] == [1, 2, 4]
    lost = FeedLoss(1, "damaged")
    assert [entries[2], entries[4]] == [FeedDropped(3, 3, lost), FeedDropped(5, 5, lost)]
    assert again.view("audit").missed == 2


def test_whose_a_durable_subscription_is_survives_a_crash_and_nobody_else_gets_it_by_its_name() -> None:
    node = Node1()
    node.subscribe("price > 5", "token anna", name="audit")
    node.install()
    again = Node1(before=node)
    assert again.view("audit").owner == "token anna"
    with pytest.raises(NotDone, match="belongs to another") as refused:
        again.subscribe("price > 5", "user 1001", name="audit")
    assert refused.value.kind == "conflict"
    assert again.subscribe("price > 5", "token anna", name="audit").id == again.view("audit").id


def test_one_owner_uses_up_its_share_and_leaves_room_for_others() -> None:
    """64 durable subscriptions that nobody reads used up what was for everybody."""
    config = PubSubConfig(durable_bytes="64KiB", durable_total="1MiB", subscriptions_local=20, owner_share=0.25)
    node = Node1(config)
    for number in range(4):
        node.subscribe("price > 5", "user 1001", is_bounded=True, name=f"junk-{number}")
    with pytest.raises(NotDone, match=r"256.* that are for one .owner_share.") as refused:
        node.subscribe("price > 5", "user 1001", is_bounded=True, name="junk-4")
    assert refused.value.kind == "quota"
    node.subscribe("price > 5", "user 1001", is_bounded=True)
    with pytest.raises(NotDone, match="user 1001 has 5 subscriptions here"):
        node.subscribe("price > 5", "user 1001", is_bounded=True)
    node.subscribe("price > 5", "token anna", is_bounded=True, name="audit")
    for number in range(4, 14):  # an operator's, who is bounded by the whole only
        node.subscribe("price > 5", "user 0", name=f"kept-{number}")


def test_what_was_not_on_disk_was_not_taken() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    node.deliver(event(1, price=6))
    node.batch_then_crash(event(2, price=7))
    again = Node1(before=node)
    again.install()
    assert again.numbers(id) == [1]
    again.deliver(event(1, price=6), event(2, price=7))
    assert again.numbers(id) == [1, 2]


def taken_event(number: int) -> TakenEvent:
    body = event(number, price=6)
    return taken(id_of(body), body, {}, False, 0)


@pytest.mark.parametrize("damaged", [(), (1,), (2,), (1, 2)])
def test_what_an_instance_that_has_failed_had_under_way_to_the_disk_keeps_its_number(damaged: tuple[int, ...]) -> None:
    host = FakeHost(1)
    log = host.store.log("events-00")

    def inlet() -> DurableInlet:
        return DurableInlet(log, 0, 7, 1 << 20, lambda event_id: None, lambda: 0)

    failed = inlet()
    for number in (1, 2):
        failed.put(taken_event(number), Writes())
    again = inlet()
    host.run_later()
    for number in damaged:
        del host.store.logs["events-00"].records[number]
    again.put(taken_event(3), Writes())
    host.run_later()
    reader = again.feed.reader("start")
    entries = [reader.take() for _ in range(3)]
    found = [(entry.number, number_of(entry.value)) for entry in entries if isinstance(entry, FeedItem)]
    assert found == [(number, number) for number in (1, 2, 3) if number not in damaged]
    assert [entry for entry in entries if isinstance(entry, FeedDropped)] == [
        FeedDropped(number, number, FeedLoss(1, "damaged")) for number in damaged
    ]


def test_what_the_disk_refuses_is_taken_when_it_comes_again() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    other = node.subscribe("price > 5").id
    node.install()
    log = node.host.store.log("events-00")
    assert isinstance(log, GroupLog)
    room, log._bytes = log._bytes, 1 << 40  # the disk is full
    assert node.deliver(event(1, price=6)).taken == 0
    assert (node.numbers(id), node.numbers(other)) == ([], [1])
    log._bytes = room
    node.batch(1, 1, event(1, price=6))
    assert (node.numbers(id), node.numbers(other)) == ([1], [1])
    assert node.view(id).delivered == 1


def test_a_durable_subscription_keeps_its_changed_filter() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    node.change(id, "price < 3")
    before = Node1(before=node)
    assert before.view(id).filter == "price > 5"
    node.install()
    assert Node1(before=node).view(id).filter == "price < 3"


def test_a_durable_subscription_is_found_again_by_its_name_and_wishes() -> None:
    node = Node1()
    first = node.subscribe("price>5", name="audit")
    node.install()
    assert node.subscribe("price > 5", name="audit").id == first.id
    assert len(node.told) == 2
    with pytest.raises(NotDone, match="another subscription"):
        node.subscribe("price > 6", name="audit")
    with pytest.raises(NotDone, match="another subscription"):
        node.subscribe("price > 5", name="audit", group="workers")


def test_a_durable_subscription_that_has_ended_leaves_nothing() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    node.deliver(event(1, price=6))
    node.plugin.subscriptions.end("audit")
    node.host.run_later()
    again = Node1(before=node)
    assert again.plugin.subscriptions.views() == []
    second = again.subscribe("price > 5", name="audit").id
    assert (second == id, again.numbers(second)) == (False, [])


def test_there_is_a_limited_number_of_durable_subscriptions() -> None:
    node = Node1()
    for number in range(DURABLE_MAX):
        node.subscribe("price > 5", name=f"audit{number}", bytes_max=200_000)
    with pytest.raises(NotDone, match="limit"):
        node.subscribe("price > 5", name="more", bytes_max=200_000)
    node.plugin.subscriptions.end("audit3")
    node.subscribe("price > 5", name="more", bytes_max=200_000)


def test_durable_subscriptions_have_so_many_bytes_together() -> None:
    node = Node1(PubSubConfig(durable_bytes="1MiB", durable_total="2560KiB"))
    for number in range(2):
        node.subscribe("price > 5", name=f"n{number}")
    with pytest.raises(NotDone, match=r"2 durable subscriptions have 2MiB of the 2560KiB .*durable_total"):
        node.subscribe("price > 5", name="one-more")
    node.subscribe("price > 5", name="small", bytes_max=512 * 1024)
    node.plugin.subscriptions.end("n0")
    node.subscribe("price > 5", name="one-more")


def test_old_events_of_a_durable_subscription_are_let_go() -> None:
    node = Node1(PubSubConfig(durable_age="1h"))
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    for number in range(100):
        node.deliver(event(number, price=6))
    node.host.time_s += 1800
    node.deliver(event(100, price=6))
    node.pass_time(1790)
    assert node.numbers(id) == list(range(101))
    node.pass_time(10 + CHECK_S)
    assert node.numbers(id) == [100]
    assert Node1(before=node).numbers(id) == [100]


def test_what_was_read_before_a_restart_is_not_missed_when_it_is_let_go() -> None:
    node = Node1(PubSubConfig(durable_age="1h"))
    for times in (1, 2):  # what the reader of an earlier one of the name has had says nothing
        id = node.subscribe("price > 5", name="audit").id
        node.install()
        node.deliver(*(event(10 * times + number, price=6) for number in range(10)))
        reader = node.plugin.subscriptions.get(id).feed.reader("start")
        for _ in range(7 if times == 1 else 4):
            reader.take()
        node.pass_time(CHECK_S)
        if times == 1:
            node.plugin.subscriptions.end("audit")
    again = Node1(PubSubConfig(durable_age="1h"), before=node)
    again.install()
    again.pass_time(3600 + CHECK_S)
    assert again.numbers(id) == [] and again.view(id).dropped == 6


def test_a_durable_subscription_has_no_more_than_its_bytes() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit", bytes_max=200_000).id
    node.install()
    for number in range(2000):
        node.deliver(event(number, price=6))
    reader = node.plugin.subscriptions.get(id).feed.reader("start")
    dropped, kept = reader.take(), []
    while isinstance(entry := reader.take(), FeedItem):
        kept.append(number_of(entry.value))
    assert dropped == FeedDropped(1, 2000 - len(kept)) and node.view(id).dropped == 2000 - len(kept)
    assert kept == list(range(2000 - len(kept), 2000))
    assert 200_000 / 400 < len(kept) < 2000
    assert node.host.store.log("events-00").bytes_used <= 200_000


def test_a_subscription_whose_schema_is_out_of_reach_after_a_restart_is_tried_again() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    node.deliver(event(1, price=6))
    schemas = PlainSchemas(PlainSchema())
    schemas.is_reachable = False
    again = Node1(schemas=schemas, before=node)
    assert (again.view(id).state, again.numbers(id)) == ("refused", [1])
    again.pass_time(AGAIN_S)
    assert again.probes() == []
    schemas.is_reachable = True
    again.pass_time(AGAIN_S)
    again.install()
    assert again.view(id).state == "replicated"


def test_a_log_that_cannot_be_read_costs_only_its_own_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node1()
    for name in ("audit", "billing"):
        node.subscribe("price > 5", name=name)
    node.install()
    log_of = FakeStore.log

    def refuse_first(store: FakeStore, name: str) -> Log:
        if name == "events-00":
            raise Unavailable("the disk refuses")
        return log_of(store, name)

    monkeypatch.setattr(FakeStore, "log", refuse_first)
    again = Node1(before=node)
    assert [view.name for view in again.plugin.subscriptions.views()] == ["billing"]
    monkeypatch.undo()
    assert [view.name for view in Node1(before=again).plugin.subscriptions.views()] == ["audit", "billing"]


def test_a_subscription_is_not_ended_while_the_disk_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node1()
    node.subscribe("price > 5", name="audit")
    node.install()

    def refuse(store: FakeStore, key: str) -> None:
        raise Unavailable("the disk refuses")

    with monkeypatch.context() as patch:
        patch.setattr(FakeStore, "delete", refuse)
        with pytest.raises(Unavailable):
            node.plugin.subscriptions.end("audit")
    assert node.view("audit").state == "replicated"
    node.plugin.subscriptions.end("audit")


def test_a_file_that_makes_no_sense_is_counted_and_left() -> None:
    node = Node1()
    node.host.store.put("subscription.audit", b'{"name": 3}')
    again = Node1(before=node)
    assert again.plugin.subscriptions.views() == []
    assert again.host.counted["peerd_pubsub_subscriptions_damaged_total", ""] == 1


def test_readers_are_let_go_when_the_plugin_ends_and_nothing_is_lost() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    [over] = node.host.over
    over("restarting")
    node.deliver(event(1, price=6))
    assert Node1(before=node).numbers(id) == [1]


def test_a_node_with_another_address_says_so_when_it_renews() -> None:
    node = Node1()
    node.subscribe("price > 5")
    node.install()
    moved = peer(1)
    node.host.peer = type(moved)(moved.id, "10.9.9.9", 999)
    node.pass_time(LEASE_S / 3)
    [request] = node.host.requests
    assert isinstance(request.message, InsertSub)
    assert request.message.sub.subscriber == node.host.peer
