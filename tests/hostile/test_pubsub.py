"""A member goes for publish/subscribe: others' schemas, a leaf's time and memory, and what subscribers believe."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from peerd.ids import NodeId, closest, format_id
from peerd.services.records.messages import PUT, RecordRequest
from peerd.services.records.owners import SHARED
from protocols.pubsub.delivering.losses import LossReason, LostEvents
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.messages import EventDelivery, ProbeSub, SubObject
from protocols.pubsub.models import Published, ReceivedEvent, SubscriptionRequest
from protocols.pubsub.names import Tree, key_of, schema_key
from protocols.pubsub.schema.book import SCHEMA_ITEM
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.schema.record import SchemaRecord
from protocols.pubsub.subscribing.subscription import DOUBTFUL_MAX
from protocols.pubsub.tree.cells import SIDE, WHOLE
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring
from tests.hostile.test_services import signed
from tests.hostile.work import PATIENCE_S

pytestmark = pytest.mark.cluster

VERSION_LAST = (1 << 32) - 1
PROBES_PER_S = 250
EQUALITIES = 250
FLOOD_VALUES = 600
FLOOD_BYTES = 16_000
"""Payload of a value: all of them together are more than a leaf's node has for what is retained."""
FLOOD_BATCH = 50


def document(name: str, **more: Any) -> dict[str, Any]:
    """A schema with one number."""
    return {"name": name, "attributes": [{"name": "a", "type": "int", "low": 0, "high": 100_000}], **more}


def schema_of_honest_roots(ring: Ring, attacker: Attacker, prefix: str = "schema") -> str:
    """A name whose record and tree have honest roots: what the attacker is the root of is its own affair."""
    everybody = [*ring.ids, attacker.id]

    def is_honest(key: NodeId) -> bool:
        return closest(key, everybody) != attacker.id

    names = (f"{prefix}{number}" for number in count())
    return next(name for name in names if is_honest(schema_key(name)) and is_honest(key_of(Tree(name, 1), WHOLE)))


async def arrives(ring: Ring, schema: str, number: int) -> None:
    """A client subscribes at one node, another one publishes at the next, and the event comes."""
    here, there = PubSubClient(ring.clients[0]), PubSubClient(ring.clients[1])
    view = await here.install(_wanted(schema, number))
    await there.publish(schema, {"a": number})
    async with aclosing(here.read(view.id)) as entries:
        async for entry in entries:
            if isinstance(entry, ReceivedEvent) and entry.values["a"] == number:
                break
    await here.end(view.id)


def _wanted(schema: str, number: int) -> Any:
    return SubscriptionRequest.model_validate({"schema": schema, "filter": f"a = {number}"})


async def test_a_schema_is_taken_from_nobody(ring: Ring) -> None:
    """It writes the record anew, as its own and in the creator's name, with the last version that there is."""
    async with ring.attacked() as (attacker, work):
        name = schema_of_honest_roots(ring, attacker, "taken")
        await PubSubClient(ring.clients[0]).declare(document(name))
        key, numbers = schema_key(name), count(1)
        other = {"name": "b", "type": "int", "low": 0, "high": 9}
        forged = EventSchema.read({"name": name, "attributes": [other], "version": VERSION_LAST})
        own = SchemaRecord.signed(forged, attacker.id, lambda said: attacker.daemon.driver.sign("pubsub", said))
        creators = SchemaRecord(forged, attacker.bystanders[0].id, own.proof)

        def write(_: int) -> None:
            for record in (own, creators):
                for peer in attacker.bystanders:
                    request = RecordRequest(
                        PUT,
                        "pubsub",
                        key,
                        1 << 40,
                        next(numbers),
                        0,
                        record.write(),
                        600.0,
                        item=SCHEMA_ITEM,
                        owner=SHARED,
                    )
                    attacker.route_as(attacker.peer, key, signed(attacker, request), peer)

        await attacker.moments(10, 0.2, write)
        for client in ring.clients:
            found = await PubSubClient(client).schema(name)
            assert (found["version"], [each["name"] for each in found["attributes"]]) == (1, ["a"])
        await arrives(ring, name, 7)
        await work.enough()


async def test_probes_with_dear_filters_keep_no_leaf_from_its_work(ring: Ring) -> None:
    """250 a second of 250 equalities each, in others' names, with the attacker's word: 75 ms each, once."""
    async with ring.attacked() as (attacker, work):
        name, numbers = schema_of_honest_roots(ring, attacker), count(1 << 40)
        await PubSubClient(ring.clients[0]).declare(document(name))
        dear = " OR ".join(f"a = {number}" for number in range(EQUALITIES))

        def probe(_: int) -> None:
            for _ in range(PROBES_PER_S // 10):
                number = next(numbers)
                whose = attacker.bystanders[number % len(attacker.bystanders)]
                sub = SubObject(whose, number, 0, 1, 1, SIDE // 3, SIDE // 3, f"{dear} OR a = {number}")
                message = ProbeSub(name, sub, WHOLE, 600, vouched=True)
                attacker.pubsub.host.route(key_of(Tree(name, 1), WHOLE), message)

        for number in range(3):
            await attacker.moments(10, 0.1, probe)
            await arrives(ring, name, number)
        await work.enough()


@pytest.mark.long
async def test_who_invents_losses_is_believed_in_little_and_named(ring: Ring) -> None:
    """It says five times to a subscriber's node that 1,000 events were lost."""
    async with ring.attacked() as (attacker, _):
        name, client = schema_of_honest_roots(ring, attacker), PubSubClient(ring.clients[0])
        await client.declare(document(name))
        view = await client.install(_wanted(name, 7))
        for stream in range(5):
            lost = (LostEvents(LossReason.QUEUE_FULL, 1000),)
            attacker.request(attacker.bystanders[0], EventDelivery(name, stream, 1, (), lost))
        await arrives(ring, name, 8)
        [known] = [each for each in await client.subscriptions() if each.id == view.id]
        assert known.missed <= DOUBTFUL_MAX
        assert {each.by for each in known.missed_because} <= {format_id(attacker.id)}
        await client.end(view.id)


@pytest.mark.long
async def test_a_flood_of_retained_values_takes_no_others_away(ring: Ring) -> None:
    """It publishes values under keys of its own, more than a leaf's node has room for."""
    async with ring.attacked() as (attacker, work):
        name, client = schema_of_honest_roots(ring, attacker), PubSubClient(ring.clients[0])
        await client.declare(document(name))
        await client.publish(name, {"a": 7, "_retain": "honest"})
        loop = asyncio.get_running_loop()
        known: asyncio.Future[Any] = loop.create_future()
        attacker.pubsub.schemas.fetch(name, lambda schema, why: known.set_result(schema))
        await known
        for begin in range(0, FLOOD_VALUES, FLOOD_BATCH):
            told: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(FLOOD_BATCH)]
            for key, future in enumerate(told, begin):
                value = {"a": 1, "_retain": f"{key}", "_payload": "x" * FLOOD_BYTES}
                attacker.pubsub.entering.publish(name, value, future.set_result)
            assert all(isinstance(each, Published) for each in await asyncio.gather(*told))
        wanted = {"schema": name, "filter": "a = 7", "retained": True}
        view = await client.install(SubscriptionRequest.model_validate(wanted))
        async with asyncio.timeout(PATIENCE_S), aclosing(client.read(view.id)) as entries:
            async for entry in entries:
                if isinstance(entry, ReceivedEvent):
                    break
        await client.end(view.id)
        await work.enough()
