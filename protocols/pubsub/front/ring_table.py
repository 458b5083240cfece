"""Durable subscriptions for Spark: the events that match a filter, typed by their schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.client import Client
from peerd.front import RingFeed, RingTable
from peerd.lib.filter.schema import Type
from protocols.pubsub import models
from protocols.pubsub.front import routes
from protocols.pubsub.front.client import PubSubClient

_KINDS: Final = {Type.INT: "bigint", Type.FLOAT: "double", Type.BOOL: "boolean"}
"""What Spark calls the types of attributes whose values are not texts in JSON."""


async def _subscription(client: Client, options: Mapping[str, str]) -> models.SubscriptionView:
    """The subscription of this name; it is made where there is none, and a schema says of what."""
    name, schema, filter = options.get("subscription"), options.get("schema"), options.get("filter", "TRUE")
    if not name:
        raise ValueError("pubsub needs the option subscription: a name, under which the daemon keeps events for Spark")
    pubsub = PubSubClient(client)
    if schema:
        return await pubsub.install(models.Whatever(schema=schema, filter=filter, name=name))
    for view in await pubsub.subscriptions():
        if view.name == name:
            return view
    raise ValueError(f"there is no subscription {name}; with the options schema and filter it is made")


async def _columns(client: Client, options: Mapping[str, str]) -> str:
    view = await _subscription(client, options)
    document = await PubSubClient(client).schema(view.schema_name)
    kinds = [f"`{each['name']}`: {_KINDS.get(each['type'], 'string')}" for each in document["attributes"]]
    values = f"values struct<{', '.join(kinds)}>"
    others = "payload string, is_base64 boolean, content_type string, is_replay boolean"
    return f"event string, publisher string, published_at double, {values}, {others}"


async def _feed(client: Client, options: Mapping[str, str]) -> RingFeed:
    return RingFeed(routes.HELD.at((await _subscription(client, options)).id))


def _row(item: object) -> dict[str, object]:
    return models.ReceivedEvent.model_validate(item).model_dump()


PUBSUB: Final = RingTable("pubsub", _columns, options=("subscription", "schema", "filter"), feed=_feed, row=_row)
"""Options: ``subscription``, the name of a durable one, ``schema`` and ``filter``."""
