"""A member lies about the ring itself: who is there, who is next, what was said before."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from peerd.ids import NodeId, format_id
from peerd.linking.dial_limits import DIALS_PER_ADDRESS_BURST, DIALS_PER_ADDRESS_PER_SECOND
from peerd.messages import Message, PeerRef
from peerd.overlay.messages import (
    CANDIDATES_MAX,
    Broadcast,
    EntriesReply,
    EntriesRequest,
    FailureNotice,
    JoinReply,
    JoinRequest,
    LeafSetProbe,
    Route,
    RouteAck,
)
from peerd.wire.codec import decode, encode_reply
from peerd.wire.frames import Frame
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring, eventually, knows

pytestmark = pytest.mark.cluster

LIE_S = 0.2
SIDE = 8
FIRST_PORT = 20_000
FRAMES_KEPT = 2_000


class Inventor:
    """Makes up neighbours who would be ever nearer to a node; nobody is at their addresses."""

    def __init__(self) -> None:
        self._rng = random.Random(3)
        self._count = 0

    def near(self, node_id: NodeId, side: int) -> PeerRef:
        """Somebody new on one side of a node."""
        self._count += 1
        distance = self._rng.randrange(1, 1 << max(20, 110 - self._count // 400))
        return PeerRef(NodeId((node_id + side * distance) % (1 << 128)), "127.0.0.9", FIRST_PORT + self._count % 30_000)

    def some(self, node_id: NodeId, count: int) -> tuple[PeerRef, ...]:
        """Several, on both sides."""
        return tuple(self.near(node_id, self._rng.choice((-1, 1))) for _ in range(count))

    def probe(self, node_id: NodeId) -> LeafSetProbe:
        """As many lies as fit into what neighbours tell each other."""
        sides = [tuple(self.near(node_id, side) for _ in range(SIDE)) for side in (-1, 1)]
        return LeafSetProbe(True, sides[0], sides[1], self.some(node_id, CANDIDATES_MAX), ())


def hearsay(attacker: Attacker, inventor: Inventor) -> None:
    """Tell everybody of neighbours that do not exist."""
    for peer in attacker.bystanders:
        attacker.request(peer, inventor.probe(peer.id))


async def test_invented_neighbours_are_doubted_and_cost_nobody_its_answers(ring: Ring) -> None:
    """48 new ones five times a second to each node."""
    async with ring.attacked() as (attacker, _):
        inventor = Inventor()

        async def named() -> bool:
            await attacker.moments(5, LIE_S, lambda _: hearsay(attacker, inventor))
            return bool(await ring.names(attacker))

        await eventually(named, "somebody doubts the attacker")


@pytest.mark.long
async def test_nobody_is_made_to_dial_an_outsider_again_and_again(ring: Ring) -> None:
    """It names neighbours, ever nearer ones, that are all at one address, where somebody else listens."""
    dials = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials
        dials += 1
        writer.close()

    async with ring.attacked() as (attacker, work), await asyncio.start_server(hang_up, "127.0.0.1", 0) as outsider:
        port, began_s = outsider.sockets[0].getsockname()[1], asyncio.get_running_loop().time()

        def lie(number: int) -> None:
            for peer in attacker.bystanders:
                ids = ((peer.id + 8 * (100 - number) + each) % (1 << 128) for each in range(SIDE))
                there = tuple(PeerRef(NodeId(each), "127.0.0.1", port) for each in ids)
                attacker.request(peer, LeafSetProbe(True, (), there, (), ()))

        await attacker.moments(100, 0.05, lie)
        await work.enough()
        lasted_s = asyncio.get_running_loop().time() - began_s
        each_node = DIALS_PER_ADDRESS_BURST + DIALS_PER_ADDRESS_PER_SECOND * lasted_s + 1
        assert 0 < dials <= len(attacker.bystanders) * each_node


@pytest.mark.long
async def test_invented_neighbours_hide_no_death_and_keep_no_newcomer_out(own_ring: Ring) -> None:
    """A daemon is killed while the attacker goes on, and a newcomer, honest, joins."""
    ring, victim = own_ring, 4
    async with ring.attacked(spared=victim) as (attacker, _):
        inventor = Inventor()
        await attacker.moments(20, LIE_S, lambda _: hearsay(attacker, inventor))
        process = ring.cluster.node(victim).process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        dead = format_id(ring.ids[victim])

        async def is_noticed() -> bool:
            await attacker.moments(2, LIE_S, lambda _: hearsay(attacker, inventor))
            return not any([await knows(client, {dead}) for client in ring.clients])

        await eventually(is_noticed, "the death is noticed everywhere", 45.0)
        async with ring.newcomer() as newcomer:
            ids = {format_id(newcomer.peer.id)}

            async def is_in() -> bool:
                await attacker.moments(2, LIE_S, lambda _: hearsay(attacker, inventor))
                return all([await knows(client, ids) for client in ring.clients])

            await eventually(is_in, "the newcomer is in everybody's leaf set", 45.0)
    ring.wiped.add(victim)


@pytest.mark.long
async def test_who_is_sent_astray_by_a_member_joins_all_the_same(ring: Ring) -> None:
    """It tells newcomers that it is their only neighbour, and those who ask for entries of invented peers (A15)."""
    async with ring.attacked() as (attacker, _):
        inventor = Inventor()

        def mislead(peer: PeerRef, frame: Frame) -> bool:
            decoded = decode(frame)
            if decoded is None or decoded[1] is None or decoded[2]:
                return False
            answer: Message
            match decoded[0]:
                case JoinRequest():
                    answer = JoinReply(True, None, (), (), inventor.some(peer.id, SIDE))
                case EntriesRequest():
                    answer = EntriesReply(inventor.some(peer.id, SIDE), (None,) * SIDE)
                case _:
                    return False
            attacker.send_frame(peer, encode_reply(answer, decoded[1]))
            return True

        attacker.listen = mislead
        async with ring.newcomer(watermark=attacker.peer) as newcomer:
            honest = {format_id(node_id) for node_id in ring.ids}
            members = {format_id(peer.id) for peer in newcomer.daemon.node.overlay.leaf_set().members()}
            assert honest <= members


@pytest.mark.long
async def test_what_it_accepts_and_drops_is_lost_for_no_other_key(ring: Ring) -> None:
    """It accepts each message that it should pass on, and passes none on (A16)."""
    async with ring.attacked() as (attacker, work):
        dropped = 0

        def drop(peer: PeerRef, frame: Frame) -> bool:
            nonlocal dropped
            decoded = decode(frame)
            if decoded is None or not isinstance(decoded[0], Route | Broadcast):
                return False
            dropped += 1
            if decoded[1] is not None:
                attacker.send_frame(peer, encode_reply(RouteAck(True), decoded[1]))
            return True

        attacker.listen = drop
        await work.enough()
        assert dropped


@pytest.mark.long
async def test_deaths_that_it_invents_end_nobody(ring: Ring) -> None:
    """It tells everybody that all others have died, ten times a second."""
    async with ring.attacked() as (attacker, work):

        def accuse(number: int) -> None:
            for peer in attacker.bystanders:
                failed = tuple(other.id for other in attacker.bystanders if other.id != peer.id)
                attacker.send(peer, FailureNotice(failed))

        await attacker.moments(50, 0.1, accuse)
        await work.enough()


async def test_what_it_repeats_changes_nothing(ring: Ring) -> None:
    """It keeps what it is sent and sends all of it to everybody again, 200 messages a second (A12)."""
    async with ring.attacked() as (attacker, work):
        heard: list[Frame] = []

        def keep(peer: PeerRef, frame: Frame) -> bool:
            heard.append(frame)
            del heard[:-FRAMES_KEPT]
            return False

        def repeat(number: int) -> None:
            for place in range(10):
                for peer in attacker.bystanders:
                    attacker.send_frame(peer, heard[(10 * number + place) % len(heard)])

        attacker.listen = keep
        await work.enough()
        await attacker.moments(60, 0.05, repeat)
