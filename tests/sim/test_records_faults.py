"""The record store under faults: crashes of replicas, churn, partitions, stale replicas; and one seed, one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.api import RecordOutcome
from peerd.ids import NodeId, clockwise_distance
from peerd.overlay.config import OverlayConfig
from peerd.overlay.messages import Heartbeat
from peerd.services.records.config import RecordsConfig
from peerd.sim.checkers import RING_CHECKERS
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from tests.support.long_cases import cases, long_case
from tests.support.record_checkers import Replication
from tests.support.records import (
    Workload,
    copies_of,
    delete,
    get,
    get_many,
    holders,
    key_number,
    put,
    put_many,
    record_ring,
    user,
)

T_REPAIR_S = 30.0
SYNC_INTERVAL_S = 1.2 * RecordsConfig().sync_interval
T_DETECT_S = OverlayConfig().failure_timeout + 5.0
KEY = key_number(0)


def is_replicated(simulation: Simulation) -> bool:
    """Invariant: r holders of every record, the r closest."""
    return not Replication().check(simulation)


def other_than(simulation: Simulation, *places: Place) -> Place:
    """Some live node that is none of these."""
    return next(place for place in simulation.live_nodes() if place not in places)


@pytest.mark.parametrize(
    ("seed", "is_silent"), [(1, False), (3, True), *(long_case(seed, seed % 2 == 0) for seed in range(30, 50))]
)
def test_root_and_one_replica_die_at_once(seed: int, is_silent: bool) -> None:
    simulation = record_ring(60, seed=seed)
    values = put_many(simulation, 500)
    victims = holders(simulation, key_number(seed))[:2]
    affected = [key for key in values if set(victims) & set(holders(simulation, key))]
    assert len(affected) > 5
    for place in victims:
        (simulation.silence if is_silent else simulation.kill)(place)
    simulation.run_until(
        lambda: is_replicated(simulation), limit_s=T_REPAIR_S + (T_DETECT_S if is_silent else 0.0), poll_s=1.0
    )
    found = get_many(simulation, list(values))
    assert {key: result.value for key, result in found.items()} == values


def test_nothing_acknowledged_as_replicated_is_lost_with_two_of_three_the_moment_after() -> None:
    simulation = record_ring(60, seed=5)
    for number in range(8):
        key = key_number(number)
        root, second, third = holders(simulation, key)
        victims = [(root, second), (root, third), (second, third)][number % 3]
        origin = other_than(simulation, root, second, third)
        assert put(simulation, origin, key, b"%d" % number, ack="replicated").copies == 3
        for place in victims:
            simulation.kill(place)
        found = get(simulation, origin, key, timeout_s=T_REPAIR_S)
        assert (found.outcome, found.value) == (RecordOutcome.FOUND, b"%d" % number)
        simulation.run_for(20.0)
    simulation.check([Replication(), *RING_CHECKERS])


def test_all_replicas_die_and_nobody_pretends() -> None:
    simulation = record_ring(60, seed=6)
    values = put_many(simulation, 200)
    victims = holders(simulation, KEY)
    lost = [key for key in values if set(holders(simulation, key)) == set(victims)]
    assert lost[0] == KEY and len(lost) > 1
    origin = other_than(simulation, *victims)
    for place in victims:
        simulation.kill(place)
    written = put(simulation, origin, lost[-1], b"during", ack="replicated", timeout_s=T_REPAIR_S)
    assert written.outcome is RecordOutcome.STORED and written.copies == 3
    values[lost[-1]] = b"during"
    simulation.run_until(lambda: is_replicated(simulation), limit_s=T_REPAIR_S, poll_s=1.0)
    found = get_many(simulation, list(values))
    gone = [key for key, result in found.items() if result.outcome is RecordOutcome.ABSENT]
    assert sorted(gone) == sorted(lost[:-1])
    assert all(result.value == values[key] for key, result in found.items() if key not in gone)
    assert put(simulation, origin, KEY, b"refreshed", ack="replicated").outcome is RecordOutcome.STORED
    assert get(simulation, origin, KEY).value == b"refreshed"


def test_an_origin_without_a_ring_gets_no_false_answer() -> None:
    simulation = record_ring(20, seed=7)
    origin = simulation.nodes[0]
    for place in simulation.nodes[1:]:
        simulation.silence(place)
    for ack in ("received", "replicated"):
        result = put(simulation, origin, KEY, b"x", ack=ack, timeout_s=5.0)
        is_root = holders(simulation, KEY)[0] is origin and ack == "received"
        assert result.outcome is not RecordOutcome.STORED or is_root


def churn(seed: int, count: int, rounds: int, period_s: float) -> None:
    """Pairs of ring neighbours crash or fall silent, old ones restart, new ones join, while a workload runs."""
    simulation = record_ring(count, seed=seed)
    rng, dead = fork(seed, "record churn"), list[Place]()
    workload = Workload(simulation, seed, keys=60)
    workload.run_for(rounds * period_s)
    for _ in range(rounds):
        live = simulation.live_nodes()
        first = rng.choice(live)
        nearest = sorted(live, key=lambda place: clockwise_distance(first.id, place.id))[:2]
        end = simulation.kill if rng.random() < 0.6 else simulation.silence
        for place in nearest:
            end(place)
            dead.append(place)
        while len(dead) > 6:
            simulation.restart(dead.pop(0))
        if rng.random() < 0.5:
            simulation.add_node()
        simulation.run_for(period_s)
    simulation.run_for(2 * T_REPAIR_S)
    simulation.check([*RING_CHECKERS, Replication()])
    workload.check()
    assert workload.outcomes[RecordOutcome.STORED] > 4 * workload.outcomes[RecordOutcome.UNKNOWN]


@pytest.mark.parametrize("seed", cases([1], [2]))
def test_churn_loses_nothing_and_resurrects_nothing(seed: int) -> None:
    churn(seed, count=60, rounds=5, period_s=40.0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_long_churn_loses_nothing_and_resurrects_nothing(seed: int) -> None:
    churn(seed, count=100, rounds=40, period_s=40.0)


def test_a_burst_of_joins_between_the_holders_hides_nothing() -> None:
    """All three old holders leave the replica set at once; the new ones have nothing of their own."""
    simulation = record_ring(30, seed=8)
    origin = other_than(simulation, *holders(simulation, KEY))
    put(simulation, origin, KEY, b"x", ack="replicated")
    for offset in (-4, -3, -2, -1, 1, 2, 3, 4):
        simulation.add_node(NodeId(KEY + offset))
    outcomes = set()
    for _ in range(40):
        found = get(simulation, origin, KEY)
        outcomes.add((found.outcome, found.value))
    assert outcomes == {(RecordOutcome.FOUND, b"x")}
    simulation.run_for(T_REPAIR_S)
    simulation.check([Replication()])


@pytest.mark.parametrize("duration_s", [25.0, long_case(100.0)])
def test_both_sides_of_a_partition_accept_and_the_versions_decide(duration_s: float) -> None:
    simulation = record_ring(40, seed=9)
    keys = list(put_many(simulation, 60, shared=True))
    known = {place.index: place.node.overlay.leaf_set().members() for place in simulation.nodes}
    sides = {b"a": simulation.nodes[:20], b"b": simulation.nodes[20:]}
    simulation.partition(*sides.values())
    simulation.run_for(duration_s)
    ranks: dict[tuple[NodeId, bytes], tuple[int, int, int]] = {}
    for number, key in enumerate(keys):
        for name, side in sides.items():
            result = put(simulation, side[number % 20], key, name, ack="replicated", shared=True)
            assert result.version is not None
            assert (result.outcome, result.copies) == (RecordOutcome.STORED, 3)
            ranks[key, name] = result.version.rank
    gone = keys[0]
    deleted = delete(simulation, simulation.nodes[0], gone, ack="replicated", shared=True)
    assert delete(simulation, simulation.nodes[20], gone, ack="replicated", shared=True).outcome is RecordOutcome.STORED
    assert deleted.outcome is RecordOutcome.STORED
    simulation.heal()
    for place in simulation.nodes:  # the sides have given each other up: somebody has to speak first
        for peer in known[place.index]:
            place.node.send(peer, Heartbeat())
    simulation.run_for(T_REPAIR_S)
    simulation.check(RING_CHECKERS)
    # Links across the cut are dialled one by one, so views meet at different times: who hears late pushes a record to a
    # node that has looked for strays already. It drops the copy when it next compares.
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=SYNC_INTERVAL_S)
    found = get_many(simulation, keys)
    assert found[gone].outcome is RecordOutcome.ABSENT
    for key in keys[1:]:
        assert found[key].value == (b"a" if ranks[key, b"a"] > ranks[key, b"b"] else b"b")
    assert {result.value for result in found.values()} >= {b"a", b"b"}


def test_a_stale_replica_that_returns_brings_nothing_back() -> None:
    simulation = record_ring(30, seed=10)
    keys = changed, deleted, shortened = [key_number(number) for number in (0, 1, 2)]
    origin = other_than(simulation, *(place for key in keys for place in holders(simulation, key)))
    for key in keys:
        put(simulation, origin, key, b"old", ack="replicated")
    sleepers = dict.fromkeys(holders(simulation, key)[1] for key in keys)
    for place in sleepers:
        simulation.pause(place)
    simulation.run_for(60.0)
    assert put(simulation, origin, changed, b"new", ack="replicated").copies == 3
    assert delete(simulation, origin, deleted, ack="replicated").copies == 3
    assert put(simulation, origin, shortened, b"new", ttl_s=5.0, ack="replicated").copies == 3
    simulation.run_for(20.0)
    for place in sleepers:
        assert {record.value for record in user(place).host.records.held()} == {b"old"}
        simulation.resume(place)
    simulation.run_for(2 * T_REPAIR_S)
    assert get(simulation, origin, changed).value == b"new"
    for key in (deleted, shortened):
        assert get(simulation, origin, key).outcome is RecordOutcome.ABSENT
        assert not copies_of(simulation, key)
    simulation.check([*RING_CHECKERS, Replication()])


def trace_digest() -> str:
    """The hash of a run with writes, a crash and repair."""
    simulation = record_ring(16, seed=11)
    put_many(simulation, 40)
    simulation.kill(holders(simulation, KEY)[0])
    simulation.run_for(T_REPAIR_S)
    delete(simulation, simulation.live_nodes()[0], KEY)
    return simulation.digest()


def test_one_seed_is_one_run_whatever_the_hash_seed() -> None:
    root = Path(__file__).parent.parent.parent
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", "from tests.sim.test_records_faults import trace_digest as d; print(d())"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        digests.add(run.stdout.strip())
    assert len(digests) == 1 and digests != {""}
