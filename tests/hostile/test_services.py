"""A member goes for what others keep: their records, and their places in groups."""

from __future__ import annotations

from itertools import count

import pytest

from peerd.api import RecordVersion
from peerd.ids import NodeId, key_of, parse_id
from peerd.messages import PeerRef, encode_body
from peerd.services.groups.members import group_key
from peerd.services.groups.messages import (
    Attached,
    Bequest,
    Detach,
    GroupMulticast,
    Join,
    MulticastPosition,
    Publication,
    PublishOutcome,
    Redirect,
)
from peerd.services.records.messages import DELETE, PUT, RecordCopy, RecordRequest, ReplicaPut, RequestId
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


async def written_over(attacker: Attacker, work: Work, write: str) -> None:
    """Go for each record that is written, in one of the ways that there are."""
    numbers = count(1)

    def overwrite(_: int) -> None:
        for text in list(work.written):
            key, each = parse_id(text), next(numbers)
            if write == "signed":
                sign_over(attacker, key)
            for peer in attacker.bystanders:
                match write:
                    case "put":
                        request = RecordRequest(PUT, "bystander", key, 1, each, 0, b"forged", 600.0)
                        attacker.route_as(attacker.peer, key, request, peer)
                    case "delete":
                        attacker.route_as(attacker.peer, key, RecordRequest(DELETE, "bystander", key, 1, each, 0), peer)
                    case "put in another's name":
                        request = RecordRequest(PUT, "bystander", key, 1, each, 0, b"forged", 600.0)
                        attacker.route_as(peer, key, request, peer)
                    case "replica":
                        made_by = RequestId(attacker.peer.id, 1, each)
                        copy = RecordCopy("bystander", key, HIGH, b"forged", 600.0, 0.0, made_by)
                        attacker.request(peer, ReplicaPut((copy,)))

    await attacker.moments(10, 0.2, overwrite)


def sign_over(attacker: Attacker, key: NodeId) -> None:
    """Put and delete a record as the API allows anybody to ask for it: as its own, and as everybody's."""
    records = attacker.bystander.host.records
    for is_shared in (False, True):
        records.put(key, b"forged", 600.0, lambda result: None, shared=is_shared)
        records.delete(key, lambda result: None, shared=is_shared)


@pytest.mark.long
@pytest.mark.parametrize("write", ["signed", "put", "delete", "put in another's name", "replica"])
async def test_records_of_others_stay_as_they_were_written(ring: Ring, write: str) -> None:
    async with ring.attacked() as (attacker, work):
        await written_over(attacker, work, write)


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
                request = RecordRequest(PUT, "bystander", key, 1, each, 0, b"forged", 600.0)
                attacker.route_as(victim, key, request, root)

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


@pytest.mark.xfail(reason="a join says itself who joins; a newcomer finds a place by luck only", strict=False)
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


@pytest.mark.xfail(reason="a node believes anybody that it inherits a group, and that others leave", strict=True)
@pytest.mark.long
async def test_an_inheritance_that_it_invents_makes_no_root(own_ring: Ring) -> None:
    """It tells each node that all others leave, and that the group is now this node's, from the last word on."""
    async with own_ring.attacked() as (attacker, work):
        positions: list[MulticastPosition] = []

        def note(peer: PeerRef, frame: Frame) -> bool:
            if frame.type_id == GroupMulticast.TYPE_ID and (decoded := decode(frame)) is not None:
                assert isinstance(decoded.message, GroupMulticast)
                positions.append(decoded.message.position)
            return False

        def bequeath(_: int) -> None:
            for peer in attacker.bystanders:
                others = tuple(other.id for other in attacker.bystanders if other.id != peer.id)
                attacker.send(peer, Bequest(GROUP_ID, positions[-1], True, others))

        attacker.listen = note
        await work.enough()
        await attacker.moments(5, 0.1, bequeath)
        await work.enough()
