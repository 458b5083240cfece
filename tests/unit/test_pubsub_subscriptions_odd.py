"""Subscriptions that are odd: refused, without any event that can match, found by their stream, without a schema."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from peerd.ids import format_id
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.models import SubscriptionRequest
from protocols.pubsub.service import NotDone
from protocols.pubsub.subscribing.subscriptions import AGAIN_MIN_S
from tests.support.pubsub_subscribing import STOCKS, Node1, PlainSchema, PlainSchemas


def test_filters_that_are_refused_are_counted_by_reason() -> None:
    node = Node1(PubSubConfig(subscriptions_local=1))
    for filter in ("price >", "NOT " * 40 + "price > 1", " OR ".join(f"price = {each}" for each in range(300))):
        node.subscribe(filter)
        assert isinstance(node.told[-1], NotDone)
    node.subscribe("price > 5")
    with pytest.raises(NotDone, match="limit"):
        node.subscribe("price > 6")
    own = format_id(node.host.id)[:8]
    assert {
        labels: count
        for (name, labels), count in node.host.counted.items()
        if name == "peerd_pubsub_subscriptions_refused_total"
    } == {f"{own},{reason},link": 1 for reason in ("filter", "depth_max", "tokens_max", "quota")}


def test_a_filter_that_contradicts_itself_says_so() -> None:
    node = Node1()
    id = node.subscribe("price IS NULL AND price IS NOT NULL").id  # no numbers: the points of these tests are none
    node.install()
    assert (node.view(id).state, node.view(id).detail) == ("replicated", "no event can match this filter")


def test_a_one_request_subscription_is_found_by_its_stream() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    node.install()
    epoch = node.plugin.subscriptions.reading(id)[1].epoch

    def continued(filter: str, **options: str) -> str | None:
        asked = SubscriptionRequest.model_validate({"schema": STOCKS, "filter": filter, **options})
        return node.plugin.subscriptions.continued(asked, epoch)

    assert continued("price   > 5") == id
    assert [continued("price > 6"), continued("price > 5", group="g"), continued("price > 5", policy="block")] == [
        None,
        None,
        None,
    ]


def test_a_subscription_is_back_soon_after_its_schema_is() -> None:
    node = Node1()
    id = node.subscribe("price > 5", name="audit").id
    node.install()
    schemas = PlainSchemas(PlainSchema())
    schemas.is_reachable = False
    again = Node1(schemas=schemas, before=node)
    again.pass_time(4 * AGAIN_MIN_S)
    schemas.is_reachable = True
    again.pass_time(4 * AGAIN_MIN_S)
    again.install()
    assert again.view(id).state == "replicated"


def test_the_end_of_one_that_was_covered_does_not_say_that_nothing_matches_it() -> None:
    node = Node1()
    node.subscribe("price > 5")
    node.install()
    narrow = node.subscribe("price > 8").id
    assert node.view(narrow).state == "covered"
    assert node.plugin.subscriptions.end(narrow).detail == ""


def test_the_name_of_a_group_has_so_many_bytes() -> None:
    """On the wire it is a name of 64 bytes at most; a leaf would take this node for a hostile one."""
    assert SubscriptionRequest.model_validate({"schema": STOCKS, "group": "ж" * 32}).group == "ж" * 32
    with pytest.raises(ValidationError, match="more than 64 bytes"):
        SubscriptionRequest.model_validate({"schema": STOCKS, "group": "ж" * 33})
