"""A member asks for everything and lies about everybody's measurements: clients are told the truth, and soon."""

from __future__ import annotations

import asyncio
import time

import pytest

from peerd.ids import NodeId, closest, format_id
from peerd.messages import PeerRef
from protocols.measurement import models
from protocols.measurement.aggregates.messages import STALE_MIN_S, AggregateAsk, AggregateSpec, AggregateWord
from protocols.measurement.aggregates.partial import COUNT_MAX, FUNCTIONS
from protocols.measurement.bounds import usual_half_width
from protocols.measurement.directory import COPIES, shard_key, shard_of
from protocols.measurement.front.client import MeasurementClient
from protocols.measurement.front.hostile import lie_of
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.messages import WANTED_MAX, CacheAsk, CacheEntry, CacheUpdate, StandingPromises
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.messages import NodesQuestion, ReadValues
from protocols.measurement.placing.messages import (
    COST_MAX,
    AlongWant,
    MoveCaches,
    MovedCache,
    ReadAlong,
    SpliceIn,
    Subtree,
)
from protocols.measurement.placing.subtree import BITS_MAX
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring, eventually

pytestmark = pytest.mark.cluster

NAMES = ("cpu", "memory", "disk")
MOMENTS = 60
TOLD_MIN = 100
"""Values that clients are told under attack."""
SLOW_S = 5.0
"""An answer within this time is no slow one, on a machine that does much else."""


def lies_of_aggregates(attacker: Attacker, moment: int, peer: PeerRef) -> None:
    """It asks for much, and says what nobody has asked it."""
    spec = AggregateSpec(moment % len(FUNCTIONS), "cpu", f"cpu > {moment}", 0.0, STALE_MIN_S)
    attacker.send(peer, AggregateAsk(1 << 50, moment + 1, spec, VALUE_MAX))
    told = Interval(-VALUE_MAX, VALUE_MAX)
    attacker.send(peer, AggregateWord(spec.key, 1 << 50, moment, 1, moment, 0.0, COUNT_MAX, COUNT_MAX, 0.0, told))


def is_right(view: models.ValueView) -> bool:
    """Whether that is a share, in bounds as narrow as usual. What is asked for often is held, with bounds that may
    reach out of what a share can be."""
    is_narrow = view.high - view.low <= 2.001 * usual_half_width(view.name)
    return is_narrow and 0.0 <= view.value <= 1.0 and view.low <= view.value <= view.high


async def test_what_a_member_says_of_others_is_not_told_and_its_questions_keep_nobody_waiting(ring: Ring) -> None:
    async with ring.attacked() as (attacker, _):
        clients = [MeasurementClient(client) for client in ring.clients]
        everybody = [*ring.ids, attacker.id]

        def is_hidden(node: NodeId) -> bool:
            """The attacker, which answers no such question, is the root of both of its shards: that hides a node."""
            shards = (shard_of(node, copy) for copy in range(COPIES))
            return all(closest(shard_key(shard), everybody) == attacker.id for shard in shards)

        honest = {format_id(ring.ids[index]) for index in ring.indexes() if not is_hidden(ring.ids[index])}

        async def all_known() -> bool:
            found = [await client.nodes() for client in clients]
            return all(
                honest <= {node.node for node in each.nodes if set(NAMES) <= set(node.measurements)} for each in found
            )

        await eventually(all_known, "every daemon knows what every other one measures")
        number = 0

        def strike(moment: int) -> None:
            nonlocal number
            for peer in attacker.bystanders:
                number += 1
                lies = [lie_of(other, name) for other in ring.ids for name in NAMES]
                entries = tuple(CacheEntry(number, 0, False, claim, measurement) for measurement, claim in lies)
                standing = StandingPromises((number,), (0,))
                attacker.send(peer, CacheUpdate(1 << 50, moment << 10, number, 0, entries, standing, (), number))
                wants = tuple(Want(Measurement(other, f"{name}{moment}"), 0.0) for other in ring.ids for name in NAMES)
                attacker.send(peer, CacheAsk(1, number, 3600.0, 0.0, wants[:WANTED_MAX]))
                lies_over_the_tree(moment, peer)
                lies_of_aggregates(attacker, moment, peer)
                for shard in (0, 1, 2, 3, 255):
                    attacker.request(peer, NodesQuestion(shard, NodeId(0)))
                attacker.request(peer, ReadValues(tuple(Want(Measurement(peer.id, "rtt@"), 0.0) for _ in range(64))))

        def lies_over_the_tree(moment: int, peer: PeerRef) -> None:
            """It has all nodes below it, provides everything, asks in the name of others, and has much cached."""
            attacker.send(peer, Subtree((), b"\xff" * (BITS_MAX // 8) if moment % 2 else b"\xff"))
            other = ring.ids[moment % len(ring.ids)]
            cpu, me = Measurement(other, "cpu"), attacker.peer
            if other != peer.id:
                attacker.send(peer, MoveCaches(me, (MovedCache(cpu, (peer.id, me.id)),)))
                wants, way = (AlongWant(cpu, 0.0, COST_MAX, COST_MAX),), (other, me.id)
                reader = PeerRef(other, "192.0.2.1", 7420)
                attacker.send(peer, ReadAlong(reader, moment, 1e9, wants, way, COST_MAX, b"x" * 64))
                for path in (way, (other, peer.id)):  # with a mark that nobody knows, and as if it came back
                    attacker.send(peer, ReadAlong(reader, moment, 1e9, wants, path, COST_MAX, b"x" * 80))
                attacker.send(peer, SpliceIn(reader, 1 << 50, moment, 1e9, 0.0, wants, way, b"x" * 64))

        told: list[models.ValueView] = []
        slowest_s = 0.0

        async def strike_until_much_is_told() -> None:
            while len(told) <= TOLD_MIN:  # once, but on a machine that does much else
                await attacker.moments(MOMENTS, 0.05, strike)

        async with asyncio.TaskGroup() as group:
            striking = group.create_task(strike_until_much_is_told())
            while not striking.done():
                for client in clients:
                    began = time.monotonic()
                    answer = await client.read(NAMES, stale="1s")
                    slowest_s = max(slowest_s, time.monotonic() - began)
                    told += [view for view in answer.values if view.node in honest]
        assert all(is_right(view) for view in told)
        assert slowest_s < SLOW_S
        answer = await clients[0].read(NAMES)
        assert {view.node for view in answer.values if not view.stale} >= honest
