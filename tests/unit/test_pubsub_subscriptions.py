"""Subscriptions of a node's clients: installed, covered, changed, durable, ended; leaves are played by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from peerd.errors import ProtocolError, Unavailable
from peerd.lib.feed import FeedEnd, Policy
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import (
    Confirm,
    DeliveredEvent,
    EndSub,
    Established,
    InsertAnswer,
    InsertSub,
    PieceStatus,
    ProbeSub,
)
from protocols.pubsub.models import SubscriptionRequest, SubscriptionView
from protocols.pubsub.names import Tree, key_of
from protocols.pubsub.service import NotDone
from protocols.pubsub.subscribing.installation import REFUSALS_MAX
from protocols.pubsub.subscribing.subscriptions import CHECK_S
from protocols.pubsub.tree.cells import cell_at
from tests.support.pubsub_subscribing import LEAF, STOCKS, Node1, PlainSchema, PlainSchemas, event

LEASE_S = PubSubConfig().lease


def filters(probes: list[ProbeSub]) -> list[str]:
    return [probe.sub.filter for probe in probes]


def told_state(told: Any) -> str:
    """The state of what a client was told; fails for an error."""
    assert isinstance(told, SubscriptionView), told
    return told.state


# --- installing -----------------------------------------------------------------------------------------------------


def test_a_subscription_is_told_of_when_the_replicas_of_all_its_leaves_have_it() -> None:
    """Not before: it would be lost with the root of a leaf that dies just then."""
    node = Node1()
    id = node.subscribe("price > 5 AND volume > 7").id
    first, second = node.probes()
    assert node.host.asked[-1].what == "set_timer"
    assert [probe.sub.piece for probe in (first, second)] == [0, 1]
    node.establish(first)
    assert (node.told, node.view(id).state) == ([], "installing")
    node.establish(second)
    assert (node.told, node.view(id).state) == ([], "received")
    node.keep(first)
    assert node.told == []
    node.keep(second)
    assert [told_state(told) for told in node.told] == ["replicated"]
    assert (node.view(id).state, node.view(id).pieces) == ("replicated", 2)


def test_versions_have_room_for_boots_that_are_numbered_by_milliseconds() -> None:
    before = Node1()
    before.host.boot_epoch = 1_795_334_395_223
    node = Node1(before=before)
    node.subscribe("price > 5")
    [probe] = node.probes()  # it has been through the wire format, which has 64 bits for a version
    later = Node1(before=node)
    later.subscribe("price > 5")
    [other] = later.probes()
    assert other.sub.version > probe.sub.version


def test_a_probe_goes_to_the_key_of_a_cell_that_its_point_lies_in() -> None:
    node = Node1()
    node.subscribe("price > 5")
    [(key, message)] = node.host.routed
    assert isinstance(message, ProbeSub)
    assert message.cell == cell_at(message.sub.low, message.sub.high, 4)
    assert key == key_of(Tree(STOCKS, 1), message.cell)
    assert (message.vouched, message.careful, message.lasts_s) == (False, False, LEASE_S)


def test_a_leaf_is_told_what_is_wanted_and_for_how_long() -> None:
    node = Node1()
    node.subscribe("price > 5")
    [probe] = node.probes()
    answer = node.establish(probe)
    assert (answer.is_wanted, answer.version, answer.lasts_s) == (True, probe.sub.version, LEASE_S)


@pytest.mark.parametrize("change", [{"sid": 12345}, {"piece": 9}, {"schema": "other"}, {"version": 1 << 62}])
def test_what_this_node_does_not_want_is_denied(change: dict[str, Any]) -> None:
    node = Node1()
    node.subscribe("price > 5")
    [probe] = node.probes()
    sub = probe.sub
    cell = cell_at(sub.low, sub.high, 6)
    said = {"schema": STOCKS, "sid": sub.sid, "piece": sub.piece, "version": sub.version, **change}
    answer = node.host.deliver(Established(**said, cell=cell, is_new=True, level=6), LEAF)
    assert isinstance(answer, Confirm)
    assert not answer.is_wanted
    assert node.told == []


def test_a_leaf_that_contradicts_itself_misbehaves() -> None:
    node = Node1()
    node.subscribe("price > 5")
    [probe] = node.probes()
    said = Established(STOCKS, probe.sub.sid, 0, probe.sub.version, cell_at(probe.sub.low, probe.sub.high, 6), True, 7)
    with pytest.raises(ProtocolError, match="wrong_level"):
        node.host.deliver(said, LEAF)


def test_a_piece_is_renewed_three_times_a_lease_at_its_leaf() -> None:
    node = Node1()
    node.subscribe("price > 5")
    [probe] = node.install()
    node.pass_time(LEASE_S / 3)
    [request] = node.host.requests
    assert isinstance(request.message, InsertSub)
    assert request.peer == LEAF
    assert request.message.sub.version > probe.sub.version
    assert request.message.sub.subscriber == node.host.peer


def test_the_gap_of_a_piece_that_was_lost_is_told() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    node.install()
    node.pass_time(LEASE_S / 3)
    [request] = node.host.requests
    assert isinstance(request.message, InsertSub)
    request.on_reply(InsertAnswer(PieceStatus.KEPT, request.message.cell, is_new=True), LEAF)
    assert LEASE_S / 3 * 0.8 <= node.view(id).gap_s <= LEASE_S / 3


def test_the_gaps_of_several_pieces_at_the_same_time_count_once() -> None:
    node = Node1()
    subscription = node.plugin.subscriptions.get(node.subscribe("price > 5").id)
    node.install()
    for now, gap_s, total_s in ((100.0, 30.0, 30.0), (110.0, 35.0, 40.0), (110.0, 35.0, 40.0), (200.0, 20.0, 60.0)):
        subscription.note_gap(gap_s, now)
        assert subscription.gap_s == total_s


def test_a_leaf_on_this_node_is_asked_without_the_network() -> None:
    node = Node1()
    asked: list[InsertSub | EndSub] = []

    def leaf(message: InsertSub | EndSub, source: object) -> InsertAnswer:
        asked.append(message)
        return InsertAnswer(PieceStatus.KEPT, message.cell)

    node.plugin.installer._own_leaves = SimpleNamespace(insert=leaf, end=leaf)  # type: ignore[assignment]  # a test's own
    id = node.subscribe("price > 5").id
    [probe] = node.probes()
    node.establish(probe, node.host.peer)
    node.keep(probe, leaf=node.host.peer)
    node.pass_time(LEASE_S / 3)
    node.plugin.subscriptions.end(id)
    assert [type(message) for message in asked] == [InsertSub, EndSub]
    assert (node.host.requests, len(node.plugin.installer)) == ([], 0)


def test_a_subscription_that_leaves_refuse_fails() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    node.refuse(REFUSALS_MAX)
    [told] = node.told
    assert isinstance(told, NotDone)
    assert str(told) == "no room"
    with pytest.raises(NotDone, match="no subscription"):
        node.view(id)
    assert len(node.plugin.installer) == 0


@pytest.mark.parametrize(
    ("filter", "schema", "text"),
    [
        ("prize > 5", STOCKS, "did you mean price"),
        ("price >", STOCKS, ""),
        ("price > 5", "shares", "nobody has declared"),
    ],
)
def test_what_cannot_be_subscribed_is_told_with_the_reason(filter: str, schema: str, text: str) -> None:
    node = Node1()
    node.plugin.subscriptions.subscribe(SubscriptionRequest(schema_name=schema, filter=filter), node.told.append)
    [told] = node.told
    assert isinstance(told, NotDone)
    assert text in str(told)
    assert node.plugin.subscriptions.views() == []


def test_clients_have_a_limited_number_of_subscriptions() -> None:
    node = Node1(PubSubConfig(subscriptions_local=2))
    for price in (1, 2):
        node.subscribe(f"price = {price}")
    with pytest.raises(NotDone, match="limit"):
        node.subscribe("price = 3")


def test_a_subscription_ends_at_its_leaves_and_for_its_readers() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    [probe] = node.install()
    reader = node.plugin.subscriptions.get(id).feed.reader("start", Policy.DROP_OLDEST)
    assert node.plugin.subscriptions.end(id).state == "ending"
    assert reader.take() == FeedEnd(0, "ended", is_final=True)
    assert [message.sid for message in node.ended()] == [probe.sub.sid]
    assert not node.establish(probe).is_wanted
    assert node.deliver(event(1, price=9)).unwanted == (0,)


def test_a_subscription_that_nobody_reads_ends() -> None:
    node = Node1(PubSubConfig(unread_for="60s"))
    id = node.subscribe("price > 5").id
    node.install()
    reader = node.plugin.subscriptions.get(id).feed.reader("start", Policy.DROP_OLDEST)
    node.pass_time(300)
    reader.close()
    node.pass_time(60)
    assert node.view(id).readers == 0
    node.pass_time(2 * CHECK_S)
    with pytest.raises(NotDone):
        node.view(id)


# --- covered ones ---------------------------------------------------------------------------------------------------


def test_a_covered_subscription_is_not_installed_and_gets_its_events_all_the_same() -> None:
    node = Node1()
    wide = node.subscribe("price > 5").id
    node.install()
    narrow = node.subscribe("price > 8").id
    assert node.probes() == []
    assert (node.view(narrow).state, node.view(narrow).covered_by) == ("covered", wide)
    assert len(node.told) == 2
    node.deliver(event(1, price=6), event(2, price=9))
    assert (node.numbers(wide), node.numbers(narrow)) == ([1, 2], [2])


def test_a_covered_subscription_is_received_only_when_the_covering_one_is() -> None:
    node = Node1()
    node.subscribe("price > 5")
    node.subscribe("price > 8")
    assert node.told == []
    node.install()
    assert len(node.told) == 2


def test_a_covered_subscription_is_installed_before_the_covering_one_leaves() -> None:
    node = Node1()
    wide, narrow = node.subscribe("price > 5").id, node.subscribe("price > 8").id
    node.install()
    node.plugin.subscriptions.end(wide)
    [probe] = node.probes()
    assert (probe.sub.filter, node.ended()) == ("price > 8", [])
    # Until it is installed, its events still come because of the one that is over.
    assert node.deliver(event(1, price=9), event(2, price=6)).unwanted == ()
    node.establish(probe)
    assert node.ended() == []
    node.keep(probe)
    assert len(node.ended()) == 1
    node.deliver(event(1, price=9), event(3, price=10))
    assert node.numbers(narrow) == [1, 3]
    assert node.view(narrow).state == "replicated"


def test_of_several_covered_ones_one_takes_the_place_where_it_covers_the_others() -> None:
    node = Node1()
    wide, *narrow = [node.subscribe(f"price > {low}").id for low in (5, 8, 10, 20)]
    node.install()
    node.plugin.subscriptions.end(wide)
    assert filters(node.install()) == ["price > 8"]
    assert [node.view(id).covered_by for id in narrow] == [None, narrow[0], narrow[0]]
    assert len(node.ended()) == 1


def test_groups_and_those_that_want_the_past_are_never_covered() -> None:
    node = Node1()
    node.host.time_s = 1000.0
    node.subscribe("price > 5")
    node.subscribe("price > 8", group="workers")
    node.subscribe("price > 9", since_s=60.0)
    probes = node.probes()
    assert filters(probes) == ["price > 5", "price > 8", "price > 9"]
    assert [probe.sub.since_ms for probe in probes] == [0, 0, 940_000]


def test_a_covering_subscription_that_is_refused_leaves_the_others_to_themselves() -> None:
    node = Node1()
    node.subscribe("price > 5")
    narrow = node.subscribe("price > 8").id
    node.refuse(REFUSALS_MAX)
    assert [type(told) for told in node.told] == [NotDone]
    probe = node.probes()[-1]
    assert probe.sub.filter == "price > 8"
    node.establish(probe)
    assert node.view(narrow).state == "received"


# --- changed ones ---------------------------------------------------------------------------------------------------


def test_a_change_takes_effect_at_once_when_the_new_filter_is_installed() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    [old] = node.install()
    node.change(id, "price < 7")
    [new] = node.probes()
    assert new.sub.sid != old.sub.sid
    # Both leaves have it now; only the old filter counts, and nothing is denied that one of them matches.
    assert node.deliver(event(1, price=3), event(2, price=6), event(3, price=9)).unwanted == ()
    assert node.numbers(id) == [2, 3]
    node.establish(new)
    assert node.view(id).filter == "price > 5"
    node.keep(new)
    assert [told_state(told) for told in node.told] == ["replicated", "replicated"]
    assert node.view(id).filter == "price < 7"
    # What the old leaf still sends is not for it any more; and what both send comes once.
    node.deliver(event(2, price=6), event(4, price=6), event(5, price=9), event(6, price=2))
    node.deliver(event(4, price=6))
    assert node.numbers(id) == [2, 3, 4, 6]
    assert [message.sid for message in node.ended()] == [old.sub.sid]


def test_a_change_that_is_refused_leaves_everything_as_it_was() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    node.install()
    node.change(id, "price < 7")
    node.refuse(REFUSALS_MAX)
    assert isinstance(node.told[-1], NotDone)
    node.deliver(event(1, price=3), event(2, price=9))
    assert node.numbers(id) == [2]
    node.change(id, "price < 6")
    assert filters(node.install()) == ["price < 6"]
    assert node.view(id).filter == "price < 6"


def test_a_subscription_is_changed_when_it_is_installed_and_one_change_at_a_time() -> None:
    schemas = PlainSchemas(PlainSchema())
    node = Node1(schemas=schemas)
    schemas.is_silent = True
    waiting = node.subscribe("price > 4").id
    with pytest.raises(Unavailable):
        node.change(waiting, "price < 7")
    schemas.is_silent = False
    id = node.subscribe("price > 5").id
    node.install()
    node.change(id, "price < 7")
    with pytest.raises(Unavailable):
        node.change(id, "price < 8")


def test_a_change_to_what_no_filter_is_is_refused_at_once() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    node.install()
    node.change(id, "prize < 7")
    assert isinstance(node.told[-1], NotDone) and "did you mean price" in str(node.told[-1])
    node.change(id, "price < 7")


def test_a_change_gives_those_that_it_covered_places_of_their_own_first() -> None:
    node = Node1()
    wide, narrow = node.subscribe("price > 5").id, node.subscribe("price > 8").id
    [old] = node.install()
    node.change(wide, "price < 3")
    [changed] = node.probes()
    node.establish(changed)
    node.keep(changed)
    [own] = node.probes()
    assert (own.sub.filter, node.ended()) == ("price > 8", [])
    assert node.deliver(event(1, price=9)).unwanted == ()
    assert node.numbers(narrow) == [1]
    node.establish(own)
    node.keep(own)
    assert [message.sid for message in node.ended()] == [old.sub.sid]


def test_a_member_of_a_group_gets_what_it_was_chosen_for_while_it_changes() -> None:
    node = Node1()
    id = node.subscribe("price > 5", group="workers").id
    [old] = node.install()
    node.change(id, "price < 3")
    [new] = node.probes()
    node.deliver(DeliveredEvent(event(1, price=9), (old.sub.sid,)), DeliveredEvent(event(2, price=1), (new.sub.sid,)))
    assert node.numbers(id) == [1, 2]
