"""A member goes for publish/subscribe: others' schemas, and the memory for retained values."""

from __future__ import annotations

from contextlib import aclosing
from itertools import count
from typing import Any

import msgpack
import pytest

from peerd.services.records.messages import PUT, RecordRequest
from peerd.services.records.owners import SHARED
from protocols.pubsub.cells import WHOLE
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.messages import EventBody, ProbePub, TreeCells
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest
from protocols.pubsub.names import EVERY, schema_key
from protocols.pubsub.schema import EventSchema
from protocols.pubsub.schema_record import SchemaRecord
from protocols.pubsub.schemas import SCHEMA_ITEM
from tests.hostile.ring import Ring, eventually
from tests.hostile.test_services import signed

pytestmark = pytest.mark.cluster

VERSION_LAST = (1 << 32) - 1
RETAINED = 6_000
PAYLOAD = bytes(8_000)


def document(name: str, **more: Any) -> dict[str, Any]:
    """A schema with one number."""
    return {"name": name, "attributes": [{"name": "a", "type": "int", "low": 0, "high": 100_000}], **more}


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
        name = "taken"
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


@pytest.mark.long
async def test_retained_values_without_number_leave_room_for_others(ring: Ring) -> None:
    """It publishes 6,000 values of 8 kB, each to be kept under a key of its own."""
    async with ring.attacked() as (attacker, work):
        name = "retained"
        await PubSubClient(ring.clients[0]).declare(document(name))
        numbers = count(1)

        def publish(_: int) -> None:
            for _ in range(RETAINED // 60):
                each = next(numbers)
                values = msgpack.packb({"1": each})
                event = EventBody(attacker.peer, 1, each, 1_700_000_000_000, values, PAYLOAD, retain=b"key %d" % each)
                places = (TreeCells(EVERY, (WHOLE,)), TreeCells(1, (WHOLE,)))
                to = attacker.bystanders[each % len(attacker.bystanders)]
                attacker.send(to, ProbePub(name, attacker.peer, (event,), places, 2))

        await attacker.moments(60, 0.1, publish)
        await eventually(lambda: _comes(ring, name), "an honest event arrives")
        await work.enough()


async def _comes(ring: Ring, schema: str) -> bool:
    await arrives(ring, schema, 9)
    return True
