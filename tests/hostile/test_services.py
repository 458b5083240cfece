"""A member goes for what others keep: their records."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from peerd.api import RecordVersion
from peerd.ids import NodeId, parse_id
from peerd.messages import PeerRef
from peerd.services.records.messages import (
    DELETE,
    PUT,
    UNSIGNED,
    RecordCopy,
    RecordRequest,
    ReplicaPut,
    RequestId,
    SignedWrite,
)
from peerd.services.records.owners import SHARED
from peerd.services.records.record import owned_version
from tests.hostile.attacker import Attacker
from tests.hostile.ring import ORIGIN_RECORDS_MAX, Ring
from tests.hostile.work import Work

pytestmark = pytest.mark.cluster

HIGH = RecordVersion(1 << 40, 1, NodeId(1))


def signed(attacker: Attacker, write: RecordRequest) -> RecordRequest:
    """A write with the attacker's own proof, as its node makes them; nobody else's key does it have."""
    return attacker.daemon.node.records._signed(write)


async def written_over(attacker: Attacker, work: Work, write: str) -> None:
    """Go for each record that is written, in one of the ways that there are."""
    numbers = count(1)

    def send(key: NodeId, owner: PeerRef, to: PeerRef) -> None:
        each, own = next(numbers), attacker.peer
        put = RecordRequest(PUT, "bystander", key, 1 << 40, each, 0, b"forged", 600.0)
        delete = RecordRequest(DELETE, "bystander", key, 1 << 40, each, 0)
        match write:
            case "put as its own":
                attacker.route_as(own, key, signed(attacker, replace(put, owner=own.id)), to)
            case "put as anybody's":
                attacker.route_as(own, key, signed(attacker, replace(put, owner=SHARED)), to)
            case "delete":
                for whose in (own.id, owner.id, SHARED):
                    attacker.route_as(own, key, signed(attacker, replace(delete, owner=whose)), to)
            case "put in the owner's name":
                attacker.route_as(owner, key, signed(attacker, replace(put, owner=owner.id)), to)
                attacker.route_as(owner, key, replace(put, owner=owner.id, until_s=1e10), to)
            case "delete in the owner's name":
                attacker.route_as(owner, key, signed(attacker, replace(delete, owner=owner.id)), to)
                attacker.route_as(owner, key, replace(delete, owner=owner.id, until_s=1e10), to)
            case "replica":
                made_by = RequestId(owner.id, 1 << 40, each)
                proof = signed(attacker, replace(put, owner=owner.id))
                made = SignedWrite(proof.ttl_s, proof.until_s, b"", proof.proof)
                copy = RecordCopy(
                    "bystander", key, owned_version(made_by), b"forged", 600.0, 0.0, made_by, b"", owner.id, made
                )
                anybodys = replace(copy, owner=SHARED, version=HIGH)
                for each_copy in (copy, replace(copy, write=UNSIGNED), replace(copy, value=None), anybodys):
                    attacker.request(to, ReplicaPut((each_copy,)))

    def overwrite(_: int) -> None:
        for text, value in list(work.written.items()):
            owner = attacker.bystanders[int(value.rsplit(" ", 1)[1])]
            for peer in attacker.bystanders:
                send(parse_id(text), owner, peer)

    await attacker.moments(10, 0.2, overwrite)


@pytest.mark.long
@pytest.mark.parametrize(
    "write",
    [
        "put as its own",
        "put as anybody's",
        "delete",
        "put in the owner's name",
        "delete in the owner's name",
        "replica",
    ],
)
async def test_records_of_others_stay_as_they_were_written(ring: Ring, write: str) -> None:
    async with ring.attacked() as (attacker, work):
        await written_over(attacker, work, write)
        await work.enough()


@pytest.mark.long
async def test_nobody_uses_up_what_another_may_keep(own_ring: Ring) -> None:
    """It puts records in the name of an honest node until that one may put none."""
    async with own_ring.attacked() as (attacker, work):
        victim, root = attacker.bystanders[0], attacker.bystanders[1]
        numbers = count()

        def put(_: int) -> None:
            for _ in range(ORIGIN_RECORDS_MAX // 40):
                each = next(numbers)
                key = NodeId((root.id + each) % (1 << 128))
                for owner in (victim.id, SHARED):
                    request = RecordRequest(
                        PUT, "bystander", key, 1, each, 0, b"forged", 600.0, owner=owner, until_s=1e10
                    )
                    attacker.route_as(victim, key, request if each % 2 else signed(attacker, request), root)

        await attacker.moments(50, 0.1, put)
        await work.enough()
        assert not work.outcomes["put quota"]
