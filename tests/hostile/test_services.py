"""A member goes for what others keep: their records, and their places in groups."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from peerd.api import RecordVersion
from peerd.ids import NodeId, key_of, parse_id
from peerd.messages import PeerRef, encode_body
from peerd.services.groups.members import group_key
from peerd.services.groups.messages import (
    Attached,
    Bequest,
    Departing,
    Detach,
    GroupMulticast,
    Join,
    MulticastPosition,
    Publication,
    PublishOutcome,
    Redirect,
)
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
from peerd.wire.codec import decode
from peerd.wire.frames import Frame
from tests.hostile.attacker import Attacker
from tests.hostile.bystander import GROUP, Bystander, Word
from tests.hostile.ring import ORIGIN_RECORDS_MAX, Ring, eventually
from tests.hostile.work import Work

pytestmark = pytest.mark.cluster

GROUP_ID = group_key(Bystander.name, GROUP)
FORGED = 1_000_000_000
"""Numbers from here on nobody says."""
HIGH = RecordVersion(1 << 40, 1, NodeId(1))
NOBODY = PeerRef(NodeId(7), "127.0.0.9", 9)


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


async def test_who_is_no_parent_says_nothing_in_a_group(ring: Ring) -> None:
    """It multicasts in the names of others, gives members up, and takes them, though it is not above them."""
    async with ring.attacked() as (attacker, work):
        numbers = count(FORGED)

        def forge(_: int) -> None:
            for peer in attacker.bystanders:
                for origin in attacker.bystanders:
                    number = next(numbers)
                    publication = Publication(origin, 1, number, Word.TYPE_ID, encode_body(Word(number)))
                    position = MulticastPosition(1 << 40, attacker.peer.id, number)
                    attacker.send(peer, GroupMulticast(GROUP_ID, position, publication))
                attacker.send(peer, Attached(GROUP_ID, (attacker.peer.id,), None))
                attacker.send(peer, Redirect(GROUP_ID, (NOBODY,)))
                attacker.send(peer, Detach(GROUP_ID))
                attacker.send(peer, PublishOutcome(FORGED, True))

        await attacker.moments(30, 0.1, forge)
        await work.enough()


@pytest.mark.long
async def test_members_that_it_invents_keep_no_newcomer_out_of_a_group(own_ring: Ring) -> None:
    """It asks for places in the names of nodes that do not exist, more than a node has."""
    async with own_ring.attacked() as (attacker, _):
        numbers = count()

        def join(_: int) -> None:
            for peer in attacker.bystanders:
                for _ in range(8):
                    nobody = PeerRef(key_of(f"nobody {next(numbers)}"), "127.0.0.9", 9)
                    attacker.route_as(attacker.peer, GROUP_ID, Join(GROUP_ID, nobody, None, False), peer)

        await attacker.moments(20, 0.1, join)
        async with own_ring.newcomer() as newcomer:

            async def hears() -> bool:
                await attacker.moments(2, 0.1, join)
                return bool(newcomer.bystander.heard)

            await eventually(hears, "the newcomer hears what the others say", 45.0)


@pytest.mark.long
async def test_an_inheritance_that_it_invents_makes_no_root(own_ring: Ring) -> None:
    """It tells each node that it leaves, and that the group is now that node's, from the last word on."""
    async with own_ring.attacked() as (attacker, work):
        positions: list[MulticastPosition] = []

        def note(peer: PeerRef, frame: Frame) -> bool:
            if frame[0] == GroupMulticast.TYPE_ID and (decoded := decode(frame)) is not None:
                assert isinstance(decoded[0], GroupMulticast)
                positions.append(decoded[0].position)
            return False

        def bequeath(_: int) -> None:
            for peer in attacker.bystanders:
                for is_final in (False, True):
                    attacker.send(peer, Bequest(GROUP_ID, positions[-1], is_final))
                attacker.send(peer, Departing())

        attacker.listen = note
        await work.enough()
        await attacker.moments(5, 0.1, bequeath)
        await work.enough()
