"""A member goes for a stream: what it passes on, who is above whom, and whose the stream is."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from peerd.ids import format_id
from peerd.messages import Message, PeerRef
from peerd.services.records.messages import DELETE, PUT, RecordRequest
from protocols.dissemination.front.hostile import (
    AltersManifests,
    FalseItems,
    LeavesOut,
    RunsAhead,
    TakesFromElsewhere,
    Withholds,
)
from protocols.dissemination.front.hostile_base import StreamBehaviour
from protocols.dissemination.messages import (
    Attach,
    Begin,
    Climb,
    Climbed,
    DetachFromParent,
    Dismiss,
    HandOver,
    HandOverAnswer,
    HandOverState,
    HandOverStep,
    MoveAway,
    StreamEnds,
    TreeHeartbeat,
)
from protocols.dissemination.names import START
from protocols.dissemination.policies.overlap.messages import (
    ChildHistory,
    GetOverhead,
    ItemBits,
    MoveOrder,
    MoveReport,
    MoveToGrandparent,
    Reorganise,
    RoomAbove,
    Sought,
)
from protocols.dissemination.registry import RECORD_ITEM
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring
from tests.hostile.streams import BOTH, EVERYTHING, WatchedStream, watched
from tests.hostile.test_services import signed

pytestmark = pytest.mark.cluster

ITEMS = 60
NOTHING = ItemBits(0, 0, 7, b"\x00", 0)
LATER = 1_000
"""Terms from here on no producer has reached."""
LATE = 1 << 60
"""Attempts from here on no node has made."""
LIES: dict[type[StreamBehaviour], set[str]] = {
    FalseItems: {"forged"},
    AltersManifests: {"forged"},
    TakesFromElsewhere: {"forged"},
    LeavesOut: {"withheld"},
    RunsAhead: {"withheld", "out_of_order"},
    Withholds: set(),
}


@pytest.mark.parametrize(
    "kind",
    [kind if kind is FalseItems else pytest.param(kind, marks=pytest.mark.long) for kind in LIES],
    ids=lambda kind: kind.name,
)
async def test_what_it_forges_or_leaves_out_as_a_parent_is_read_by_nobody(
    ring: Ring, kind: type[StreamBehaviour]
) -> None:
    """Those below it notice, name it where it has lied, and lose nothing: they have another parent."""
    interests = EVERYTHING if kind is LeavesOut else BOTH
    async with ring.attacked() as (attacker, _), watched(ring, attacker, "forged", interests=interests) as stream:
        attacker.behave(kind)
        await stream.publish(ITEMS)
        await stream.is_read()
        await stream.is_whole()
        assert await stream.liars() <= LIES[kind]
        if LIES[kind]:
            await ring.is_named(attacker)


def storm(attacker: Attacker, stream: WatchedStream, to: PeerRef, number: int) -> list[Message]:
    """What only parents, granters and children may say, and requests to be moved, with numbers that may be right."""
    key, attempt, first = stream.key, stream.its_node.member.up._attempts, LATE + 3 * number
    others = [peer for peer in attacker.bystanders if peer.id != to.id]
    elsewhere = others[number % len(others)]
    return [
        *(MoveOrder(key, number, other.id, elsewhere) for other in others),
        Reorganise(key, to, NOTHING, NOTHING, 1.0, 1.0, (attacker.id,), (1.0,)),
        Reorganise(key, elsewhere, NOTHING, NOTHING, 1.0, 1.0, (attacker.id,), (1.0,)),
        GetOverhead(key, number, 0, (Sought(NOTHING, 0.0, 9.0),)),
        ChildHistory(key, NOTHING, 9),
        MoveReport(key, number, True, elsewhere.id),
        MoveToGrandparent(key, elsewhere),
        RoomAbove(key),
        MoveAway(key, attempt, (elsewhere,), True),
        Dismiss(key, attempt),
        StreamEnds(key, attempt),
        *(Attach(key, first + each, ("",), START, False, bool(each % 2)) for each in range(3)),
        Begin(key, first, START),
        DetachFromParent(key, first),
    ]


async def test_storms_of_moves_move_nobody_and_hold_nothing_up(ring: Ring) -> None:
    """400 a second to each node: orders, requests, places that it wants and gives back, as if it were anything."""
    async with ring.attacked() as (attacker, _), watched(ring, attacker, "storm", "overlap") as stream:
        numbers = count(1)

        def blow(_: int) -> None:
            for peer in attacker.bystanders:
                for message in storm(attacker, stream, peer, next(numbers)):
                    attacker.send(peer, message)

        for _ in range(2):
            await attacker.moments(20, 0.05, blow)
            await stream.publish(ITEMS // 4)
        await stream.is_read()
        await stream.is_whole()


@pytest.mark.long
async def test_circles_that_it_arranges_leave_everybody_a_way_to_the_producer(ring: Ring) -> None:
    """It hangs below its own children, says that no way up leads through them, and that their ways do."""
    async with ring.attacked() as (attacker, _), watched(ring, attacker, "circle") as stream:
        key, below = stream.key, [peer for peer in attacker.bystanders if peer.id in stream.below]
        attempts = count(LATE)

        def twist(peer: PeerRef, message: Message) -> Message | None:
            if isinstance(message, TreeHeartbeat) and peer.id in stream.below:
                return TreeHeartbeat(key, message.watermark, (*below, attacker.peer), message.attempt, message.number)
            return None if isinstance(message, Climb) else message

        def close(_: int) -> None:
            for peer in attacker.bystanders:
                attempt = next(attempts)
                attacker.send(peer, Attach(key, attempt, ("",), START, False, True))
                attacker.send(peer, Climb(key, peer, attempt))
                for other in attacker.bystanders:
                    attacker.send(peer, Climb(key, other, stream.its_node.member.up._attempts))
                for attempt in range(3):
                    attacker.send(peer, Climbed(key, attempt, True))

        attacker.twist = twist
        for _ in range(4):
            await attacker.moments(10, 0.1, close)
            await stream.publish(ITEMS // 4)
        await stream.is_whole()
        await stream.is_read()


@pytest.mark.long
async def test_a_stream_is_handed_over_to_nobody_who_says_so(ring: Ring) -> None:
    """It says that it produces the stream, asks others to, and writes a record of a later term."""
    async with ring.attacked() as (attacker, _), watched(ring, attacker, "taken") as stream:
        record = stream.its_node.record
        own = record.handed_to(attacker.peer).model_copy(update={"seeds": record.seeds})
        request = RecordRequest(PUT, "dissemination", stream.key, 1 << 40, 0, 0, own.encode(), 600.0)
        written, numbers = replace(request, item=RECORD_ITEM), count(1)

        def take(_: int) -> None:
            for peer in attacker.bystanders:
                for step in HandOverStep:
                    for term in (record.term, record.term + 1, record.term + LATER):
                        attacker.request(peer, HandOver(stream.key, step, term, START))
                attacker.request(peer, HandOverAnswer(stream.key, HandOverState.PRODUCING))
                for owner in (attacker.id, attacker.bystanders[0].id):
                    put = replace(written, owner=owner, sequence=next(numbers))
                    for write in (put, replace(put, verb=DELETE, value=None, sequence=next(numbers))):
                        attacker.route_as(attacker.peer, stream.key, signed(attacker, write), peer)

        for _ in range(4):
            await attacker.moments(5, 0.1, take)
            await stream.publish(ITEMS // 4)
        await stream.is_read()
        for client in stream.clients:
            view = await client.stream(stream.name)
            assert (view.producer, view.term) == (format_id(ring.ids[0]), record.term)
