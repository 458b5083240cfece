"""Why an event arrived or did not: what nodes remember, and how it is joined."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from peerd.api import LookupResult
from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef, encode_body
from peerd.testing.host import peer
from protocols.pubsub.delivering.ledger import EVENTS_KEPT, OUTCOMES_KEPT, REPORT_S
from protocols.pubsub.explaining.explainer import TEXT_TOLD_MAX, UNDER_WAY_MAX
from protocols.pubsub.explaining.reports import (
    ArrivalVerdict,
    FilterCheck,
    LeafPlace,
    LeafReport,
    NodeReport,
    PublisherReport,
    SubscriberReport,
    verdict,
)
from protocols.pubsub.messages import DeliveryAnswer, EventDelivery, ExplainAnswer, ExplainQuestion
from protocols.pubsub.names import node_meant
from tests.support.pubsub_leaf import SCHEMA, BrokerRig, event, event_id, node, sub

PUBLISHER, LEAF_ROOT, SUBSCRIBER, ASKER = 9, 1, 5, 4
VISITED = LeafPlace(attribute=1, cell="", owner=format_id(node(LEAF_ROOT)))
SUBSCRIPTION = FilterCheck(sid=7, filter="price > 3")


class World:
    """Four nodes, of which the asker asks the others; ``dead`` ones do not answer."""

    def __init__(self) -> None:
        self.desks = {number: BrokerRig(number) for number in (PUBLISHER, LEAF_ROOT, SUBSCRIBER, ASKER)}
        self.dead: set[int] = set()
        self.publisher: PublisherReport | None = PublisherReport(
            schema_name=SCHEMA.name, outcome="replicated", visited=(VISITED,)
        )
        self.subscriber = SubscriberReport(fate="unseen", subscriptions=(SUBSCRIPTION,), places=(VISITED,))
        self.desks[PUBLISHER].explainer.publisher_view = lambda schema, event: self.publisher
        self.desks[SUBSCRIBER].explainer.subscriber_view = lambda schema, event: self.subscriber
        self.leaf = self.desks[LEAF_ROOT]
        self.leaf.leaves.subs = [sub(SUBSCRIBER, 7, "price > 3")]

    def explain(self, number: int = 4, *, shows_filters: bool = True) -> ArrivalVerdict:
        """Have the asker ask, and play the network."""
        found: list[ArrivalVerdict] = []
        asker = self.desks[ASKER]
        asker.explainer.find_out(event_id(number), node(SUBSCRIBER), found.append, shows_filters=shows_filters)
        asked = 0
        while not found:
            if asker.host.requests:
                self._answer(asker)
            else:
                lookup = [each for each in asker.host.asked if each.what == "lookup"][asked]
                asked += 1
                key = lookup.arguments["key"]
                root: PeerRef = peer(ASKER) if key in self.dead else peer(key)
                lookup.arguments["on_result"](LookupResult(key, root, (), 0.1))
        return found[0]

    def _answer(self, asker: BrokerRig) -> None:
        request = asker.host.requests.pop()
        reply = self.desks[request.peer.id].host.deliver(request.message, asker.host.peer)
        assert reply is not None
        request.on_reply(reply, request.peer)

    def arrive(self, number: int, *, taken: bool | None = None) -> None:
        """The event comes to the leaf. ``taken``: the subscriber's node takes it, or wants nothing of it."""
        self.leaf.arrive(event(number))
        for request in list(self.leaf.host.requests):
            if taken is not None and isinstance(request.message, EventDelivery):
                self.leaf.host.requests.remove(request)
                request.on_reply(DeliveryAnswer(1, 0, () if taken else (0,)), request.peer)


def test_it_arrived() -> None:
    world = World()
    world.arrive(4, taken=True)
    world.subscriber = SubscriberReport(fate="taken", subscriptions=(SUBSCRIPTION,), places=(VISITED,))
    found = world.explain()
    assert found.verdict == "arrived"
    assert list(found.lines) == [
        "the subscriber's node has taken the event",
        "publisher: replicated; it visited 1 leaf",
        f"  at {VISITED.owner}: attribute 1 whole",
        f"leaf at {VISITED.owner}: has seen the event",
        "  price > 3: matches (price > 3: true, price is 4)",
        "  to the subscriber's node: delivered",
        "subscriber: taken; it has 1 subscription",
        "  0000000000000007: price > 3",
    ]


def test_it_does_not_match() -> None:
    world = World()
    world.arrive(2)
    found = world.explain(2)
    assert (found.verdict, found.summary) == (
        "did not arrive",
        "it does not match: price > 3: false, price is 2",
    )


@pytest.mark.parametrize("number", [2, 4])
def test_who_is_no_operator_sees_no_filter_and_no_value(number: int) -> None:
    world = World()
    world.arrive(number)
    told = world.explain(number, shows_filters=False)
    said = " ".join([told.summary, *told.lines])
    assert "price >" not in said and f"is {number}" not in said and "operators see" in said
    assert told.verdict == world.explain(number).verdict


def test_the_condition_that_matches_is_told_of_among_many() -> None:
    world = World()
    world.leaf.leaves.subs = [sub(SUBSCRIBER, sid, f"price > {sid}") for sid in range(20, 2, -1)]
    world.arrive(4)
    found = world.explain()
    assert found.summary == "a leaf is still trying to deliver it"
    told = [line.split(":")[0] for line in found.lines if line.startswith("  price > ")]
    assert told[:2] == ["  price > 3", "  price > 20"]


def test_a_leaf_dropped_it() -> None:
    world = World()
    world.arrive(4, taken=False)
    assert world.explain().summary == "a leaf has dropped it: filtered"


def test_it_is_under_way() -> None:
    world = World()
    world.arrive(4)
    found = world.explain()
    assert (found.verdict, found.summary) == ("did not arrive", "a leaf is still trying to deliver it")


def test_it_never_came_to_the_leaf() -> None:
    world = World()
    world.publisher = PublisherReport(schema_name=SCHEMA.name, outcome="unknown", missing=(VISITED,))
    found = world.explain()
    assert found.summary == "1 cells of the tree have not acknowledged it"
    assert "  no leaf acknowledged attribute 1 whole" in found.lines


def test_it_was_dropped_at_the_subscriber() -> None:
    world = World()
    world.arrive(4, taken=True)
    world.subscriber = world.subscriber.model_copy(update={"fate": "slow_reader"})
    assert world.explain().summary == "it came to the subscriber's node and was dropped there: slow_reader"


def test_there_is_no_subscription_or_no_event() -> None:
    world = World()
    world.subscriber = SubscriberReport(fate="unseen")
    assert world.explain().summary == "the node has no subscription of this schema"
    world = World()
    world.publisher = None
    found = world.explain()
    assert found.verdict == "unknown", "it may have been too long ago"
    assert found.summary.startswith("the publisher's node knows of no such event")


def test_the_subscriber_is_gone_but_the_leaf_knows() -> None:
    world = World()
    world.arrive(4, taken=True)
    world.dead = {SUBSCRIBER}
    found = world.explain()
    assert (found.verdict, found.summary) == ("arrived", "the subscriber's node confirmed the event")


def test_nobody_answers() -> None:
    world = World()
    world.dead = {SUBSCRIBER, PUBLISHER, LEAF_ROOT}
    found = world.explain()
    assert (found.verdict, found.summary) == ("unknown", "nobody who answered knows")
    assert list(found.lines[1:]) == ["publisher: its node did not answer", "subscriber: its node did not answer"]


def test_another_member_of_the_group_got_it() -> None:
    check = FilterCheck(sid=7, filter="price > 3", group="g", matches=True)
    leaf = LeafReport(schema_name=SCHEMA.name, has_event=True, checks=(check,), others=1)
    subscriber = NodeReport(subscriber=SubscriberReport(fate="unseen", subscriptions=(SUBSCRIPTION,)))
    assert verdict(None, subscriber, {"a": leaf}, str).summary == "another member of the group has got it"


def test_an_answer_that_is_no_report_costs_the_link() -> None:
    rig = BrokerRig(ASKER)
    found: list[ArrivalVerdict] = []
    rig.explainer.find_out(event_id(1), node(ASKER), found.append)
    lookup = next(each for each in rig.host.asked if each.what == "lookup")
    lookup.arguments["on_result"](LookupResult(node(PUBLISHER), peer(PUBLISHER), (), 0.1))
    rig.host.requests[0].on_reply(ExplainAnswer(b'{"leaf": 3}'), peer(PUBLISHER))
    assert [blamed.id for blamed, _ in rig.host.blamed] == [PUBLISHER]
    assert found[0].verdict == "unknown"


def test_so_many_at_a_time() -> None:
    rig = BrokerRig(ASKER)
    for number in range(UNDER_WAY_MAX):
        rig.explainer.find_out(event_id(number), node(SUBSCRIBER), lambda found: None)
    with pytest.raises(Unavailable):
        rig.explainer.find_out(event_id(1), node(SUBSCRIBER), lambda found: None)


def test_the_largest_report_fits_into_its_message() -> None:
    rig = BrokerRig(LEAF_ROOT)
    long = " OR ".join(f"name{'x' * 50}{number} = '{'y' * 50}'" for number in range(60))
    rig.leaves.subs = [sub(SUBSCRIBER, sid, long, piece=sid) for sid in range(40)]
    rig.arrive(replace(event(4), values=SCHEMA.pack({f"name{'x' * 50}{n}": "z" * 100 for n in range(60)})))
    place = LeafPlace(attribute=255, cell="01" * 30, owner="f" * 32)
    rig.explainer.publisher_view = lambda schema, event: PublisherReport(
        schema_name="s" * 64, outcome="unknown", visited=(place,) * 64, missing=(place,) * 64
    )
    rig.explainer.subscriber_view = lambda schema, event: SubscriberReport(
        fate="unseen", subscriptions=(FilterCheck(sid=1 << 63, filter=long),) * 64, places=(place,) * 64
    )
    question = ExplainQuestion(SCHEMA.name, *event_id(4)._replace(publisher=rig.host.id), rig.host.id)
    assert isinstance(rig.host.deliver(question, peer(2)), ExplainAnswer)
    question = ExplainQuestion(SCHEMA.name, *event_id(4), node(SUBSCRIBER))
    answer = rig.host.deliver(question, peer(2))
    assert isinstance(answer, ExplainAnswer)
    report = NodeReport.model_validate_json(answer.report)
    assert report.leaf is not None
    assert len(report.leaf.checks) == 8


@pytest.mark.parametrize(("character", "told"), [("x", 8), ("\u6587", 8), ("\x01", 2)])
def test_conditions_of_any_characters_fit_into_the_message(character: str, told: int) -> None:
    """JSON writes a control character as six bytes, so there are fewer of these."""
    rig = BrokerRig(LEAF_ROOT)
    long = " AND ".join(f"name <> '{character * 150}{number}'" for number in range(12))
    rig.leaves.subs = [sub(SUBSCRIBER, sid, long) for sid in range(8)]
    rig.arrive(event(4, price=1, name="a"))
    answer = rig.host.deliver(ExplainQuestion(SCHEMA.name, *event_id(4), node(SUBSCRIBER)), peer(2))
    assert isinstance(answer, ExplainAnswer) and encode_body(answer)
    report = NodeReport.model_validate_json(answer.report)
    assert report.leaf is not None and len(report.leaf.checks) == told
    assert all(len(reason.encode()) <= TEXT_TOLD_MAX for reason in report.leaf.checks[0].reasons)


def test_memory_of_outcomes_is_bounded_and_ages() -> None:
    rig = BrokerRig(history_age="10m")
    for number in range(EVENTS_KEPT + 10):
        rig.ledger.matched(event_id(number), 0, 0)
    assert rig.ledger.outcomes(event_id(9)) is None
    assert rig.ledger.outcomes(event_id(10)) is not None
    for _ in range(OUTCOMES_KEPT + 5):
        rig.ledger.dropped(event_id(10), None, "slow_reader")
    known = rig.ledger.outcomes(event_id(10))
    assert known is not None
    assert len(known.outcomes) == OUTCOMES_KEPT
    rig.host.time_s = 601.0
    assert rig.ledger.outcomes(event_id(20)) is None


def test_every_minute_the_sums_are_told() -> None:
    rig = BrokerRig()
    rig.ledger.start()
    rig.leaves.forest.nodes = lambda: [SimpleNamespace(is_leaf=True, pieces=range(15)) for _ in range(2)]
    rig.leaves.subs = [sub(SUBSCRIBER, 1)]
    rig.arrive(event(1), event(2))
    rig.ledger.dropped(event_id(3), None, "slow_reader")
    rig.host.fire("pubsub_report")
    told = [each.columns() for each in rig.host.events]
    assert told == [
        {"reason": "slow_reader", "dropped": 1},
        {"leaves": 2, "pieces": 30, "published": 0, "matched": 2, "delivered": 0, "pending": 2, "kept": 0},
    ]
    rig.host.fire("pubsub_report")
    assert rig.host.timers["pubsub_report", None] == rig.host.time_s + REPORT_S
    assert rig.host.events[-1].columns()["matched"] == 0


def test_a_node_may_be_named_by_its_first_digits() -> None:
    one, other = NodeId(0xABCDEF0123 << 88), NodeId(0xABCDEF0124 << 88)
    assert node_meant("abcdef01", {one}) == one
    assert node_meant("ABCDEF0124", {one, other}) == other
    assert node_meant(format_id(other), set()) == other
    for text in ("abcdef01", "abc", "fedcba98", "no digits at all"):
        with pytest.raises(ValueError, match="the first 8 of them are enough"):
            node_meant(text, {one, other})
