"""Puts, gets and deletes in a simulated ring: what each outcome means, quotas, lifetimes, upcalls, restarts."""

from __future__ import annotations

import pytest

from peerd.api import NO_VERSION, RecordOutcome, RecordResult, RecordRole, RecordVersion
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.services.records import operations, replication, sync
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import PUT, RecordCopy, RecordRequest, ReplicaPut, RequestId, SignedWrite
from peerd.services.records.owners import SHARED
from peerd.services.records.record import Record
from peerd.services.records.table import CHANGED, COUNTER_JUMP_MAX
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place
from tests.support.record_checkers import Replication
from tests.support.records import (
    TTL_S,
    copies_of,
    delete,
    get,
    get_many,
    held,
    holders,
    key_number,
    outcome_of,
    put,
    put_many,
    record_ring,
    signed,
    user,
)

KEY = key_number(0)


def test_put_get_delete_from_anywhere() -> None:
    simulation = record_ring(20, seed=1)
    first, second, third = simulation.nodes[:3]
    stored = put(simulation, first, KEY, b"one", ack="replicated", shared=True)
    assert (stored.outcome, stored.copies) == (RecordOutcome.STORED, 3)
    found = get(simulation, second, KEY)
    assert (found.outcome, found.value, found.version) == (RecordOutcome.FOUND, b"one", stored.version)
    assert TTL_S - 10 < found.remaining_s < TTL_S
    assert copies_of(simulation, KEY) == sorted(holders(simulation, KEY), key=lambda place: place.index)
    assert delete(simulation, third, KEY, ack="replicated", shared=True).outcome is RecordOutcome.STORED
    assert get(simulation, first, KEY).outcome is RecordOutcome.ABSENT
    assert copies_of(simulation, KEY) == []
    again = put(simulation, first, KEY, b"two", shared=True)
    assert (again.outcome, again.copies) == (RecordOutcome.STORED, 1)
    assert again.version is not None and stored.version is not None and again.version.rank > stored.version.rank
    simulation.run_for(1.0)
    assert len(copies_of(simulation, KEY)) == 3, "`received` is replicated too, the answer just does not wait for it"


def test_a_ring_of_one_and_of_two() -> None:
    for count in (1, 2):
        simulation = record_ring(count, seed=count)
        stored = put(simulation, simulation.nodes[0], KEY, b"x", ack="replicated")
        assert (stored.outcome, stored.copies) == (RecordOutcome.STORED, count)
        assert get(simulation, simulation.nodes[-1], KEY).value == b"x"


def test_if_version_decides_between_two_writers() -> None:
    simulation = record_ring(12, seed=2)
    one, two = simulation.nodes[:2]
    results: list[RecordResult] = []
    for place in (one, two):
        user(place).host.records.put(KEY, b"mine", TTL_S, results.append, if_version=NO_VERSION, shared=True)
    simulation.run_for(2.0)
    outcomes = sorted((result.outcome for result in results), key=lambda each: each.value)
    assert outcomes == [RecordOutcome.CONFLICT, RecordOutcome.STORED]
    version = next(result.version for result in results if result.outcome is RecordOutcome.CONFLICT)
    assert put(simulation, one, KEY, b"next", if_version=version, shared=True).outcome is RecordOutcome.STORED
    assert delete(simulation, two, KEY, if_version=version, shared=True).outcome is RecordOutcome.CONFLICT
    assert get(simulation, two, KEY).value == b"next"


def test_a_record_lapses_unless_it_is_put_again() -> None:
    simulation = record_ring(12, seed=3)
    place = simulation.nodes[0]
    kept, left = key_number(1), key_number(2)
    for key in (kept, left):
        put(simulation, place, key, b"x", ttl_s=20.0)
    simulation.run_for(12.0)
    put(simulation, place, kept, b"x", ttl_s=20.0)
    simulation.run_for(12.0)
    assert get(simulation, place, kept).outcome is RecordOutcome.FOUND
    assert get(simulation, place, left).outcome is RecordOutcome.ABSENT
    assert copies_of(simulation, left) == []
    simulation.run_for(40.0)
    assert all(len(node.node.records.state.table) == 0 for node in simulation.live_nodes()), "nothing is left over"


def test_a_request_sent_again_takes_effect_once() -> None:
    simulation = record_ring(12, seed=4)
    origin, other = simulation.nodes[:2]
    request = signed(origin, RecordRequest(PUT, "record_user", KEY, origin.boot_epoch, 99, 0, b"old", TTL_S))
    host = origin.node.hosts["records"]
    host.route(KEY, request)
    simulation.run_for(1.0)
    version = get(simulation, other, KEY).version
    assert version is not None
    host.route(KEY, request)
    simulation.run_for(1.0)
    assert get(simulation, other, KEY).version == version, "the same write, not another one"
    put(simulation, other, KEY, b"new", ack="replicated", shared=True)
    simulation.kill(holders(simulation, KEY)[0])
    origin = next(place for place in (origin, *simulation.live_nodes()) if place.is_live)
    simulation.run_for(10.0)
    if origin.node.hosts["records"] is host:
        host.route(KEY, request)
        simulation.run_for(1.0)
    assert get(simulation, origin, KEY).value == b"new", "the new root knows the request from its copies"


def test_a_request_that_was_overtaken_is_refused() -> None:
    simulation = record_ring(12, seed=5)
    origin = simulation.nodes[0]
    put(simulation, origin, KEY, b"second")
    late = RecordRequest(PUT, "record_user", KEY, origin.boot_epoch, 0, 0, b"first", TTL_S, owner=origin.id)
    origin.node.hosts["records"].route(KEY, signed(origin, late))
    shared = RecordRequest(PUT, "record_user", key_number(1), origin.boot_epoch, 0, 0, b"first", TTL_S)
    put(simulation, origin, key_number(1), b"second", shared=True)
    origin.node.hosts["records"].route(key_number(1), signed(origin, shared))
    simulation.run_for(1.0)
    assert get(simulation, origin, KEY).value == get(simulation, origin, key_number(1)).value == b"second"


def test_quota_of_one_writer_is_answered_and_others_are_served() -> None:
    simulation = record_ring(3, seed=6, config=RecordsConfig(origin_records_max=5))
    greedy, other = simulation.nodes[:2]
    results = [put(simulation, greedy, key_number(number), b"x", ack="replicated") for number in range(8)]
    assert [result.outcome for result in results] == [RecordOutcome.STORED] * 5 + [RecordOutcome.QUOTA] * 3
    assert (results[-1].detail, results[-1].copies) == ("origin_records", 0)
    assert get(simulation, greedy, key_number(7)).outcome is RecordOutcome.ABSENT
    assert put(simulation, other, key_number(7), b"x").outcome is RecordOutcome.STORED
    delete(simulation, greedy, key_number(0))
    assert put(simulation, greedy, key_number(1), b"y").outcome is RecordOutcome.STORED
    simulation.run_for(1.0)
    simulation.check([Replication()])


def test_a_replica_without_room_is_told_not_hidden() -> None:
    simulation = record_ring(3, seed=7)
    table = holders(simulation, KEY)[1].node.records.state.table
    table._config = RecordsConfig(records_max=1)
    table.merge(_record(simulation.nodes[0], key_number(9)), simulation.now)
    refused = put(simulation, simulation.nodes[0], KEY, b"x", ack="replicated")
    assert (refused.outcome, refused.copies, refused.detail) == (RecordOutcome.QUOTA, 2, "replica")


def _record(place: Place, key: NodeId) -> Record:
    """One of another plugin, signed by the place's node."""
    write = signed(place, RecordRequest(PUT, "other", key, 1, 1, 0, b"", 3000.0))
    made = SignedWrite(write.ttl_s, write.until_s, b"", write.proof)
    version, request = RecordVersion(1, 1, NodeId(1)), RequestId(place.id, 1, 1)
    return Record("other", key, version, b"", 5000.0, 0.0, request, write=made)


def test_a_root_without_room_never_says_absent() -> None:
    simulation = record_ring(12, seed=30)
    origin = simulation.nodes[0]
    put(simulation, origin, KEY, b"x", ack="replicated")
    newcomer = simulation.add_node(NodeId(KEY + 1))
    simulation.run_until(lambda: newcomer.current is not None, limit_s=5.0)
    table, filler = newcomer.node.records.state.table, _record(origin, NodeId(KEY + 2))
    table._config = RecordsConfig(records_max=1)
    assert table.merge(filler, simulation.now) == CHANGED
    simulation.run_for(30.0)
    assert holders(simulation, KEY)[0] is newcomer and user(newcomer).host.records.local(KEY) is None
    result = get(simulation, origin, KEY)
    assert (result.outcome, result.detail) == (RecordOutcome.NOT_ROOT, "no_room")
    table._config = RecordsConfig()
    simulation.run_for(90.0)
    assert get(simulation, origin, KEY).value == b"x"


def test_what_cannot_be_stored_is_refused_before_it_is_sent() -> None:
    simulation = record_ring(2, seed=8, config=RecordsConfig(ttl_max=60, value_bytes_max=10))
    place = simulation.nodes[0]
    for value, ttl_s, detail in ((b"x" * 11, 10.0, "value_bytes"), (b"x", 61.0, "ttl"), (b"x", 0.0, "ttl")):
        result = put(simulation, place, KEY, value, ttl_s=ttl_s)
        assert (result.outcome, result.detail) == (RecordOutcome.QUOTA, detail)
    assert put(simulation, place, KEY, b"x" * 10, ttl_s=60.0).outcome is RecordOutcome.STORED


def test_largest_value_fits_its_messages() -> None:
    simulation = record_ring(5, seed=9, config=RecordsConfig(value_bytes_max=40 * 1024))
    value = bytes(range(256)) * 160
    assert put(simulation, simulation.nodes[0], KEY, value, ack="replicated").copies == 3
    assert get(simulation, simulation.nodes[1], KEY).value == value


def test_too_many_operations_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "OPERATIONS_MAX", 2)
    simulation = record_ring(2, seed=10)
    records = user(simulation.nodes[0]).host.records
    results: list[RecordResult] = []
    for _ in range(2):
        records.get(KEY, results.append)
    with pytest.raises(Unavailable, match="2 operations"):
        records.get(KEY, results.append)
    assert results == [], "never from within the call"
    simulation.run_for(1.0)
    assert len(results) == 2


def test_nobody_to_reach_is_unknown_never_stored() -> None:
    simulation = record_ring(6, seed=11)
    root = holders(simulation, KEY)[0]
    origin = next(place for place in simulation.nodes if place is not root)
    simulation.partition([root])
    result = put(simulation, origin, KEY, b"x", timeout_s=1.0)
    assert (result.outcome, result.version, result.copies) == (RecordOutcome.UNKNOWN, None, 0)


def test_a_node_that_is_not_the_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = record_ring(6, seed=12)
    root = holders(simulation, KEY)[0]
    monkeypatch.setattr(root.node.records.state, "is_root", lambda key: False)
    result = put(simulation, simulation.nodes[0], KEY, b"x", timeout_s=3.0)
    assert (result.outcome, result.detail) == (RecordOutcome.NOT_ROOT, "not_root")
    assert copies_of(simulation, KEY) == []


def test_plugins_hear_of_their_records_and_roles() -> None:
    simulation = record_ring(16, seed=13)
    put(simulation, simulation.nodes[0], KEY, b"x", ack="replicated", shared=True)
    root, second, third = holders(simulation, KEY)
    roles = [user(place).roles.get(KEY) for place in (root, second, third)]
    assert roles == [RecordRole.ROOT, RecordRole.REPLICA, RecordRole.REPLICA]
    simulation.kill(root)
    simulation.run_for(10.0)
    fourth = holders(simulation, KEY)[2]
    assert [user(place).roles.get(KEY) for place in (second, fourth)] == [RecordRole.ROOT, RecordRole.REPLICA]
    assert [record.key for record in user(fourth).host.records.held()] == [KEY]
    delete(simulation, second, KEY, ack="replicated", shared=True)
    assert all(KEY not in user(place).roles for place in simulation.live_nodes())


def test_a_newcomer_takes_over_and_the_last_holder_lets_go() -> None:
    simulation = record_ring(16, seed=14)
    put(simulation, simulation.nodes[0], KEY, b"x", ack="replicated")
    before = holders(simulation, KEY)
    newcomer = simulation.add_node(NodeId(KEY + 1))
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    assert get(simulation, simulation.nodes[3], KEY).value == b"x", "the new root answers, or asks first"
    simulation.run_for(5.0)
    assert user(newcomer).roles[KEY] is RecordRole.ROOT
    assert {place.index for place in copies_of(simulation, KEY)} == {newcomer.index, before[0].index, before[1].index}
    assert KEY not in user(before[2]).roles
    simulation.check([Replication()])


@pytest.mark.parametrize("part", [3, 1024])
def test_draining_leaves_nothing_to_repair(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(sync, "HANDOVER_RECORDS", part)
    simulation = record_ring(16, seed=15)
    values = put_many(simulation, 100)
    place = holders(simulation, KEY)[0]
    failed: list[int] = []
    place.node.records.hand_over(failed.append)
    simulation.run_until(lambda: bool(failed), limit_s=30.0)
    simulation.stop(place)
    simulation.run_for(0.01)
    assert failed == [0]
    assert all(len(copies_of(simulation, key)) >= 3 for key in values), "without waiting for repair"
    simulation.run_for(10.0)
    simulation.check([Replication()])


def test_records_that_are_a_newcomers_are_handed_over_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "HANDOVER_RECORDS", 3)
    simulation = record_ring(8, seed=17)
    values = put_many(simulation, 100)
    simulation.start(4)
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    simulation.run_for(30.0)
    assert {len(copies_of(simulation, key)) for key in values} == {3}
    simulation.check([Replication()])


def test_draining_alone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "HANDOVER_RECORDS", 3)
    simulation = record_ring(1, seed=16)
    for number in range(10):
        put(simulation, simulation.nodes[0], key_number(number), b"x")
    failed: list[int] = []
    simulation.nodes[0].node.records.hand_over(failed.append)
    assert failed == [0]


def test_a_restarted_plugin_gets_no_answers_for_the_one_before() -> None:
    simulation = record_ring(4, seed=17)
    place = simulation.nodes[0]
    results: list[RecordResult] = []
    user(place).host.records.put(KEY, b"x", TTL_S, results.append)
    place.node.restart_plugin("record_user")
    simulation.run_for(2.0)
    assert results == []
    assert get(simulation, place, KEY).value == b"x", "the write was sent before"


def test_a_restarted_store_comes_back_empty_and_is_filled_by_its_neighbours() -> None:
    simulation = record_ring(12, seed=18)
    values = put_many(simulation, 60)
    place = holders(simulation, KEY)[0]
    facade = user(place).host.records
    place.node.restart_plugin("records")
    assert facade.local(KEY) is None
    found = get_many(simulation, list(values))
    assert {key: result.value for key, result in found.items()} == values, "it asks before it answers"
    simulation.run_for(10.0)
    assert facade.local(KEY) is not None, "the same facade, the new store"
    simulation.check([Replication()])


def test_a_read_repairs_replicas_that_missed_a_write() -> None:
    """The root has not caught up, so it asks; one replica has an older version, the other one nothing."""
    simulation = record_ring(12, seed=31)
    origin = simulation.nodes[0]
    put(simulation, origin, KEY, b"old", ack="replicated")
    root, second, third = holders(simulation, KEY)
    stale = held(second, KEY)
    newest = put(simulation, origin, KEY, b"new", ack="replicated")
    for place in (second, third):
        place.node.records.state.table.drop(stale.identity)
    second.node.records.state.table.merge(stale, simulation.now)
    root.node.records.state.catch_up_again()
    found = get(simulation, origin, KEY)
    assert (found.value, found.version) == (b"new", newest.version)
    assert root.driver.metrics["peerd_records_read_repairs_total", ()] == 1
    simulation.run_for(1.0)
    simulation.check([Replication()])
    root.node.records.state.catch_up_again()
    assert get(simulation, origin, KEY).value == b"new"
    assert root.driver.metrics["peerd_records_read_repairs_total", ()] == 1, "there was nothing to repair"


def test_absurd_versions_and_lifetimes_of_a_peer_do_no_harm() -> None:
    simulation = record_ring(4, seed=19)
    liar, victim = simulation.nodes[:2]
    request = RequestId(liar.id, 1, 1)
    write = signed(liar, RecordRequest(PUT, "record_user", KEY, 1, 1, 0, b"x", 8 * 86_400.0))
    made = SignedWrite(write.ttl_s, write.until_s, b"", write.proof)
    for counter, remaining_s in ((1 << 63, 10.0), (1 << 41, 10.0), (5, 8 * 86_400.0)):
        version = RecordVersion(counter, 1, liar.id)
        copy = RecordCopy("record_user", KEY, version, b"x", remaining_s, 0.0, request, write=made)
        liar.node.hosts["records"].send(victim.peer, ReplicaPut((copy,)))
    simulation.run_for(1.0)
    local = user(victim).host.records.local(KEY)
    assert local is not None and local.version.counter == 5 and local.remaining_s <= RecordsConfig().ttl_max
    refused = victim.driver.metrics["peerd_records_refusals_total", (("reason", "version"),)]
    assert refused == 2


def test_a_root_whose_counter_was_led_far_ahead_is_followed_by_its_replicas() -> None:
    simulation = record_ring(12, seed=1)
    places = holders(simulation, KEY)
    others = [place for place in simulation.live_nodes() if place not in places]
    liar, writer = others[:2]
    assert put(simulation, writer, KEY, b"one", shared=True, ack="replicated").outcome is RecordOutcome.STORED
    write = signed(liar, RecordRequest(PUT, "x", KEY, 1, 1, 0, b"v", 1800.0, owner=SHARED))
    made, request = SignedWrite(1800.0, write.until_s, b"", write.proof), RequestId(liar.id, 1, 1)
    clock = places[0].node.records.state.table.clock
    for counter in (clock + COUNTER_JUMP_MAX, 2 * COUNTER_JUMP_MAX - 1):
        version = RecordVersion(counter, 1, liar.id)
        copy = RecordCopy("x", KEY, version, b"v", 1800.0, 1800.0, request, write=made)
        liar.node.hosts["records"].send(places[0].peer, ReplicaPut((copy,)))
        simulation.run_for(0.3)
    assert places[0].node.records.state.table.clock == 2 * COUNTER_JUMP_MAX - 1
    put(simulation, writer, KEY, b"two", shared=True)
    simulation.run_for(600.0)
    stored = put(simulation, writer, KEY, b"three", shared=True, ack="replicated")
    assert (stored.outcome, stored.copies) == (RecordOutcome.STORED, 3)
    simulation.run_for(1.0)
    simulation.check([Replication()])


@pytest.mark.parametrize("seed", [20, 21])
def test_on_a_lossy_network_what_is_acknowledged_is_there(seed: int) -> None:
    simulation = record_ring(20, seed=seed, network=NetworkConfig(loss=0.1))
    place = simulation.nodes[0]
    acknowledged: dict[NodeId, bytes] = {}
    for number in range(40):
        key, value = key_number(number), b"%d" % number
        result = put(simulation, place, key, value, ack="replicated")
        assert result.outcome in (RecordOutcome.STORED, RecordOutcome.UNKNOWN)
        if result.outcome is RecordOutcome.STORED:
            acknowledged[key] = value
    assert len(acknowledged) >= 35
    found = get_many(simulation, list(acknowledged))
    lost = [key for key, result in found.items() if result.outcome not in (RecordOutcome.FOUND, RecordOutcome.UNKNOWN)]
    assert not lost
    assert sum(result.value == acknowledged[key] for key, result in found.items()) >= 35


def test_outcome_of_waits_for_one_result() -> None:
    simulation = record_ring(1, seed=22)
    result = outcome_of(simulation, lambda done: user(simulation.nodes[0]).host.records.get(KEY, done))
    assert result.outcome is RecordOutcome.ABSENT


def test_a_restarted_store_uses_no_number_and_no_version_twice_and_owes_no_outcome() -> None:
    simulation = record_ring(8, seed=41)
    root = holders(simulation, KEY)[0]
    first = put(simulation, root, KEY, b"one", ack="replicated")
    results: list[RecordResult] = []
    user(root).host.records.put(KEY, b"two", TTL_S, results.append, ack="replicated")
    user(root).host.records.get(key_number(1), results.append)
    root.node.restart_plugin("records")
    simulation.run_for(0.1)
    assert [result.outcome for result in results] == [RecordOutcome.UNKNOWN] * 2
    third = put(simulation, root, KEY, b"three", ack="replicated")
    assert third.outcome is RecordOutcome.STORED
    assert first.version is not None and third.version is not None
    assert third.version.epoch > first.version.epoch + 1, "one was given to what is unknown now"
    assert get(simulation, simulation.nodes[0], KEY).value == b"three"


def test_writes_that_wait_for_a_silent_replica_are_bounded() -> None:
    simulation = record_ring(8, seed=42)
    root, replica, _ = holders(simulation, KEY)
    simulation.pause(replica)
    results: list[RecordResult] = []
    for number in range(2 * replication.WAITING_MAX):
        user(root).host.records.put(KEY, b"%d" % number, TTL_S, results.append, ack="replicated", timeout_s=60.0)
    simulation.run_for(1.0)
    simulation.validate()
    held = user(root).host.records.local(KEY)
    assert held is not None and held.value == b"%d" % (replication.WAITING_MAX - 1)
    simulation.resume(replica)
    simulation.run_until(lambda: len(results) == 2 * replication.WAITING_MAX, limit_s=70.0)
    assert RecordOutcome.UNKNOWN not in {result.outcome for result in results}


def test_a_write_in_the_name_of_another_is_counted_and_answered_to_nobody() -> None:
    simulation = record_ring(8, seed=43)
    victim, root = simulation.nodes[0], holders(simulation, KEY)[0]
    for owner in (victim.id, SHARED):
        forged = RecordRequest(PUT, "record_user", KEY, victim.boot_epoch, 999, 0, b"x", TTL_S, owner=owner)
        root.node.records.deliver(KEY, signed(simulation.nodes[1], forged), victim.peer)
    simulation.run_for(1.0)
    assert root.driver.metrics["peerd_records_refusals_total", (("reason", "forged"),)] == 2
    assert ("peerd_records_refusals_total", (("reason", "not_asked"),)) not in victim.driver.metrics
    assert copies_of(simulation, KEY) == []
