"""Many records under one key in a simulated ring: operations, crashes, hand-over, and what comparing them costs."""

from __future__ import annotations

from functools import partial

from peerd.api import NO_VERSION, RecordOutcome, RecordResult, RecordRole
from peerd.ids import NodeId
from peerd.messages import Message
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import ITEM_BYTES_MAX, DigestRequest, ReplicaPut, VersionsRequest
from peerd.sim.simulation import Place, Simulation
from tests.support.record_checkers import Replication
from tests.support.records import TTL_S, delete, drop, get, holders, key_number, put, record_ring, user

KEY = key_number(0)
ITEMS = 1000


def name(number: int) -> bytes:
    return b"subscriber %d" % number


def put_items(simulation: Simulation, count: int) -> None:
    """``count`` items under `KEY`, from all over the ring, each acknowledged as replicated."""
    live, results = simulation.live_nodes(), list[RecordResult]()
    for number in range(count):
        records = user(live[number % len(live)]).host.records
        records.put(KEY, b"%d" % number, TTL_S, results.append, item=name(number), ack="replicated")
    simulation.run_until(lambda: len(results) == count, limit_s=60.0, poll_s=0.1)
    assert {(result.outcome, result.copies) for result in results} == {(RecordOutcome.STORED, 3)}


def get_items(simulation: Simulation, count: int) -> dict[int, RecordResult]:
    live, results = simulation.live_nodes(), dict[int, RecordResult]()
    for number in range(count):
        records = user(live[-1 - number % len(live)]).host.records
        records.get(KEY, partial(results.__setitem__, number), item=name(number))
    simulation.run_until(lambda: len(results) == count, limit_s=60.0, poll_s=0.1)
    return results


def assert_all_found(simulation: Simulation, count: int) -> None:
    found = get_items(simulation, count)
    assert {number: result.value for number, result in found.items()} == {n: b"%d" % n for n in range(count)}


def sent(simulation: Simulation, kind: type[Message]) -> tuple[int, int]:
    """Messages of one type, and their bytes, that live nodes have sent."""
    counts = [place.node.traffic[kind.TYPE_ID] for place in simulation.live_nodes()]
    return sum(count[0] for count in counts), sum(count[1] for count in counts)


def names_at(place: Place, key: NodeId = KEY) -> list[bytes]:
    return [record.item for record in user(place).host.records.items(key)]


def test_items_have_values_versions_and_lifetimes_of_their_own() -> None:
    simulation = record_ring(12, seed=1)
    one, two = simulation.nodes[:2]
    first = put(simulation, one, KEY, b"a", item=b"one", ack="replicated")
    second = put(simulation, two, KEY, b"b", item=b"two", ack="replicated", ttl_s=20.0)
    assert first.outcome is second.outcome is RecordOutcome.STORED and first.version != second.version
    assert get(simulation, two, KEY).outcome is RecordOutcome.ABSENT, "nobody wrote the one without a name"
    assert get(simulation, two, KEY, item=b"one").value == b"a"
    assert put(simulation, one, KEY, b"x", item=b"two", if_version=NO_VERSION).outcome is RecordOutcome.OWNED
    assert put(simulation, two, KEY, b"x", item=b"two", if_version=NO_VERSION).outcome is RecordOutcome.CONFLICT
    root = holders(simulation, KEY)[0]
    assert names_at(root) == [b"one", b"two"]
    assert user(root).items[KEY, b"one"] is RecordRole.ROOT
    assert delete(simulation, two, KEY, item=b"one").outcome is RecordOutcome.OWNED
    assert delete(simulation, one, KEY, item=b"one", ack="replicated").outcome is RecordOutcome.STORED
    assert get(simulation, one, KEY, item=b"two").value == b"b"
    assert all(names_at(place) == [b"two"] for place in holders(simulation, KEY))
    simulation.run_for(30.0)
    assert get(simulation, one, KEY, item=b"two").outcome is RecordOutcome.ABSENT
    assert user(root).items == {} and names_at(root) == []


def test_limits_of_items_are_outcomes() -> None:
    simulation = record_ring(6, seed=2, config=RecordsConfig(key_items_max=2))
    place = simulation.nodes[0]
    outcomes = [put(simulation, place, KEY, b"x", item=name(number)) for number in range(3)]
    assert [(each.outcome, each.detail) for each in outcomes[1:]] == [
        (RecordOutcome.STORED, ""),
        (RecordOutcome.QUOTA, "key_items"),
    ]
    assert put(simulation, place, key_number(1), b"x", item=name(2)).outcome is RecordOutcome.STORED
    long = put(simulation, place, KEY, b"x", item=bytes(ITEM_BYTES_MAX + 1))
    assert (long.outcome, long.detail) == (RecordOutcome.QUOTA, "item_bytes")


def test_a_thousand_items_of_one_key_survive_a_crash_and_move_to_a_newcomer() -> None:
    simulation = record_ring(10, seed=3)
    put_items(simulation, ITEMS)
    root, replica = holders(simulation, KEY)[:2]
    simulation.kill(replica)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=120.0, poll_s=1.0)
    simulation.kill(root)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=120.0, poll_s=1.0)
    assert_all_found(simulation, ITEMS)
    last = holders(simulation, KEY)[2]
    newcomer = simulation.add_node(NodeId(KEY + 1))
    simulation.run_for(1.0)
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=120.0, poll_s=1.0)
    assert names_at(newcomer) == sorted(name(number) for number in range(ITEMS))
    assert {user(newcomer).items[KEY, name(number)] for number in range(ITEMS)} == {RecordRole.ROOT}
    assert names_at(last) == [] and user(last).items == {}
    assert_all_found(simulation, ITEMS)
    simulation.validate()


def test_comparing_costs_what_differs_and_not_what_is_there() -> None:
    """One of 1,000 items is missing at a replica: its neighbours find it without listing the others."""
    simulation = record_ring(10, seed=4)
    put_items(simulation, ITEMS)
    simulation.run_for(200.0)
    replica = holders(simulation, KEY)[1]
    before = {kind: sent(simulation, kind) for kind in (DigestRequest, VersionsRequest, ReplicaPut)}
    drop(replica, KEY, name(77))
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=1200.0, poll_s=1.0)
    spent = {
        kind: tuple(now - then for now, then in zip(sent(simulation, kind), before[kind], strict=True))
        for kind in before
    }
    assert 1 <= spent[VersionsRequest][0] <= 2
    assert spent[VersionsRequest][1] < 5_000, "some twenty names, not a thousand"
    assert spent[ReplicaPut][0] <= 1
    assert names_at(replica) == sorted(name(number) for number in range(ITEMS))


def test_items_of_a_node_that_leaves_are_handed_over() -> None:
    simulation = record_ring(10, seed=5)
    put_items(simulation, 300)
    root, done = holders(simulation, KEY)[0], list[tuple[str, ...]]()
    root.node.drain(60.0, done.append)
    simulation.run_until(lambda: bool(done), limit_s=60.0)
    simulation.kill(root)
    simulation.run_for(5.0)
    assert done == [()]
    assert_all_found(simulation, 300)
