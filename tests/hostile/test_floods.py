"""A member sends too much, or what takes long to read, or wants more kept than its share."""

from __future__ import annotations

from itertools import count

import pytest

from peerd.ids import NodeId, key_of
from peerd.linking.rate_limit import SCORE_LIMIT
from peerd.messages import PeerRef
from peerd.overlay.messages import CANDIDATES_MAX, LeafSetProbe, Ping, Route
from peerd.services.records.messages import PUT, RecordRequest
from peerd.wire.codec import encode
from protocols.aggregation.messages import Enrolled, StartRound
from protocols.aggregation.query import parse_query
from protocols.aggregation.statements import NONCE_BYTES, round_id_of, start_statement
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring

pytestmark = pytest.mark.cluster

KEYS = 64
MULTICASTS = 8_020
PINGS = 80_000
DAYS_49_MS = 0xFFFFFFFF
RECORDS = 3_000
RECORD_BYTES = 4_000
ROUNDS = 600
BOMBS = (
    b"\x91" * 30_000,  # arrays in arrays
    b"\xdd\xff\xff\xff\xff" + b"\x90" * 20_000,  # an array of four thousand million, it says
    b"\xdf\xff\xff\xff\xff" + b"\x80" * 20_000,  # the same as a map
    b"\x95" + b"\xdc\x27\x10" + b"\xc0" * 30_000,  # ten thousand times nothing, for a list of neighbours
    b"\x95\xc3" + (b"\xdc\x00\x20" + b"\x93" + b"\xc4\x10" + bytes(16) + b"\xd9\x01x" + b"\xcd\x00\x01") * 8,
)


@pytest.mark.long
async def test_a_flood_of_multicasts_costs_the_sender_its_link(ring: Ring) -> None:
    """Messages to 64 keys each, as many as there were before anybody counted the keys.

    Nodes that pass them on may break the next one's limit with them: that costs them a link, and never leads to a ban.
    """
    async with ring.attacked(blame_max=SCORE_LIMIT / 2) as (attacker, _):
        frame = encode(Ping())
        keys = [tuple(NodeId((key_of(str(each)) + place) % (1 << 128)) for place in range(KEYS)) for each in range(9)]
        numbers = count()

        def multicast(number: int) -> None:
            for _ in range(MULTICASTS // 100):
                for peer in attacker.bystanders:
                    each = next(numbers)
                    attacker.request(peer, Route(keys[each % 9], frame[0], frame[2], attacker.peer, 1, each, 1))

        await attacker.moments(100, 0.01, multicast)
        await ring.is_named(attacker)


@pytest.mark.long
async def test_a_flood_of_small_messages_costs_the_sender_its_link(ring: Ring) -> None:
    """A hundred times what a member may send, to one node after the other (A09)."""
    async with ring.attacked() as (attacker, _):

        def flood(number: int) -> None:
            for _ in range(PINGS // 100):
                attacker.send(attacker.bystanders[number % len(attacker.bystanders)], Ping())

        await attacker.moments(100, 0.01, flood)
        await ring.is_named(attacker)


@pytest.mark.long
async def test_frames_that_are_dear_to_read_cost_the_sender_its_link(ring: Ring) -> None:
    """The largest frames of nested and of endless values (A03)."""
    async with ring.attacked() as (attacker, _):

        def bomb(number: int) -> None:
            for peer in attacker.bystanders:
                attacker.send_frame(peer, (LeafSetProbe.TYPE_ID, 0, BOMBS[number % len(BOMBS)]))

        await attacker.moments(60, 0.05, bomb)
        await ring.is_named(attacker)


@pytest.mark.long
async def test_valid_frames_of_the_largest_size_slow_nobody_down(ring: Ring) -> None:
    """What is allowed, as much of it as is allowed (A03)."""
    async with ring.attacked() as (attacker, work):
        everybody = tuple(PeerRef(peer.id, peer.host, peer.port) for peer in attacker.bystanders)
        many = (everybody * CANDIDATES_MAX)[:CANDIDATES_MAX]
        probe = LeafSetProbe(True, many, many, many, ())

        def send(number: int) -> None:
            for peer in attacker.bystanders:
                for _ in range(10):
                    attacker.request(peer, probe)

        await attacker.moments(60, 0.1, send)
        await work.enough()


@pytest.mark.long
async def test_records_without_number_leave_room_for_others(ring: Ring) -> None:
    """It wants more kept than its share: 3,000 records of 4 kB (A20)."""
    async with ring.attacked() as (attacker, work):
        numbers = count()

        def store(number: int) -> None:
            for _ in range(RECORDS // 60):
                each = next(numbers)
                key, to = key_of(f"hoard {each}"), attacker.bystanders[each % len(attacker.bystanders)]
                put = RecordRequest(PUT, "bystander", key, 1, each, 0, bytes(RECORD_BYTES), 600.0)
                attacker.route_as(attacker.peer, key, put, to)

        await attacker.moments(60, 0.05, store)
        await work.enough()
        assert not work.outcomes["put quota"]


async def test_rounds_without_end_leave_room_for_others(ring: Ring) -> None:
    """600 rounds of 49 days each, of which nobody hears again."""
    async with ring.attacked() as (attacker, work):
        attacker.listen = lambda peer, frame: frame[0] == Enrolled.TYPE_ID
        numbers = count()

        def start(number: int) -> None:
            for _ in range(ROUNDS // 30):
                attacker.aggregation.host.broadcast(endless(attacker, next(numbers)))

        await attacker.moments(30, 0.1, start)
        await work.enough()


def endless(attacker: Attacker, number: int) -> StartRound:
    """The start of a round as its requester may make it, but for its end."""
    query, host = parse_query("count").to_wire(), attacker.aggregation.host
    nonce, begins_at_ms = number.to_bytes(NONCE_BYTES, "big"), round(host.wall_time() * 1000)
    round_id = round_id_of(nonce, attacker.peer, query, begins_at_ms, DAYS_49_MS, True, True)
    how = True, True, begins_at_ms, DAYS_49_MS, nonce, host.sign(start_statement(round_id))
    return StartRound(round_id, attacker.peer, query, 0, DAYS_49_MS, *how)
