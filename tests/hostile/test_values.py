"""A member gives away values that are none, or that hold what is not so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest

from peerd.api import Value
from peerd.ids import NodeId, with_shared_prefix
from protocols.aggregation.exchange import decode_value
from protocols.aggregation.messages import StartRound
from protocols.aggregation.numbers import COUNT_MAX
from protocols.aggregation.partial import Partial
from protocols.aggregation.query import Query
from tests.hostile.attacker import Attacker
from tests.hostile.ring import Ring
from tests.support.link_rig import CollectingHandler

pytestmark = pytest.mark.cluster

INVENTED = 9
NEAR_BITS = 64


async def test_a_malformed_partial_costs_its_giver_the_link_and_no_plugin(ring: Ring) -> None:
    """The last number of its partial is an empty map; that once switched aggregation off on every node."""
    async with ring.attacked() as (attacker, _):

        def malformed(round_id: bytes, value: Value) -> bytes:
            data = whole(value)
            unpacker = msgpack.Unpacker()
            unpacker.feed(data[8:])
            return data[:8] + b"".join(map(msgpack.packb, [*list(unpacker)[:-1], {}]))

        attacker.aggregation.falsify = malformed
        await ring.is_named(attacker)


async def test_no_answer_names_contributors_that_it_invents(ring: Ring) -> None:
    """Its partial says that nine nodes more have contributed, with data that nobody has. The ring's nodes are all known
    to the requester, so nobody takes it for one of theirs, and it loses its link."""
    async with ring.attacked() as (attacker, work):

        def inflated(query: Query, value: Value) -> bytes:
            own, moved = decode_value(query, value)
            contributors = tuple(sorted({*own.contributors, *invented(attacker.peer.id)}))
            shares = (own.shares[0],) * len(contributors)
            records = len(contributors) * own.shares[0][1]
            report = replace(own.report, records=records, files_read=len(contributors) * own.shares[0][0])
            return sealed(moved, replace(own, contributors=contributors, shares=shares, report=report))

        falsify(attacker, inflated)
        await ring.is_named(attacker)
        await work.enough()


@pytest.mark.long
@pytest.mark.parametrize("how", ["twice", "largest counts"])
async def test_what_it_contributes_twice_or_beyond_all_bounds_spoils_no_answer(ring: Ring, how: str) -> None:
    """It names honest nodes as its own contributors, or counts to the end of what can be counted (A25)."""
    async with ring.attacked() as (attacker, work):

        def lying(query: Query, value: Value) -> bytes:
            own, moved = decode_value(query, value)
            if how == "largest counts":
                report = replace(own.report, records=COUNT_MAX)
                return sealed(moved, replace(own, report=report, shares=((own.shares[0][0], COUNT_MAX),)))
            everybody = tuple(sorted({*own.contributors, *(peer.id for peer in attacker.bystanders)}))
            return sealed(moved, replace(own, contributors=everybody, shares=(own.shares[0],) * len(everybody)))

        falsify(attacker, lying)
        await work.enough()


@pytest.mark.long
async def test_swaps_without_end_cost_no_round_its_data(ring: Ring) -> None:
    """It reads what its partners give and never gives anything, at whichever end of the swap."""
    async with ring.attacked() as (attacker, work):
        attacker.accept = lambda peer: CollectingHandler()
        await work.enough()


def falsify(attacker: Attacker, change: Callable[[Query, Value], bytes]) -> None:
    """Have it give changed values in each round that it hears of from now on; not in one that is under way."""
    queries: dict[bytes, Query] = {}

    def note(start: StartRound) -> None:
        queries[start.round_id] = Query.from_wire(start.query)

    def changed(round_id: bytes, value: Value) -> bytes:
        query = queries.get(round_id)
        return whole(value) if query is None else change(query, value)

    attacker.aggregation.on_round = note
    attacker.aggregation.falsify = changed


def whole(value: Value) -> bytes:
    """A value as bytes."""
    assert isinstance(value, bytes | bytearray | memoryview)
    return bytes(value)


def sealed(moved: int, partial: Partial) -> bytes:
    """A partial as it is swapped."""
    return moved.to_bytes(8, "big") + partial.encode()


def invented(own: NodeId) -> list[NodeId]:
    """Ids of nobody, in the attacker's part of the ring at every level of a small one."""
    return [with_shared_prefix(own, NEAR_BITS + each, 0) for each in range(INVENTED)]
