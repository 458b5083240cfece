"""Whose a record is: only its owner changes or deletes it, whatever members say, send again or make up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from peerd.api import NO_VERSION, RecordOutcome, RecordResult, RecordVersion
from peerd.ids import format_id
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import (
    ABSENT,
    CONFLICT,
    DELETE,
    OWNED,
    PUT,
    QUOTA,
    STORED,
    UNSIGNED,
    RecordAnswer,
    RecordCopy,
    RecordRequest,
    ReplicaPut,
    RequestId,
    SignedWrite,
)
from peerd.services.records.owners import CLOCK_MARGIN_S, SHARED, value_digest
from peerd.services.records.record import Record, owned_version
from peerd.sim.simulation import Place, Simulation
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
    put,
    put_many,
    record_ring,
    signed,
    user,
)

KEY = key_number(0)


def outsider(simulation: Simulation, *others: Place) -> Place:
    """A node that neither holds `KEY` nor is one of these: the one that lies."""
    taken = [*holders(simulation, KEY), *others]
    return next(place for place in simulation.live_nodes() if place not in taken)


def give(simulation: Simulation, liar: Place, copies: Sequence[RecordCopy]) -> None:
    """The liar has every holder take these copies, as a root does."""
    simulation.misbehaviour_is_failure = False
    for place in holders(simulation, KEY):
        for copy in copies:
            liar.node.hosts["records"].send(place.peer, ReplicaPut((copy,)))
    simulation.run_for(5.0)


def copy_of(simulation: Simulation) -> RecordCopy:
    """A copy of `KEY` as its root would send it: every member that it passes can keep it."""
    root = holders(simulation, KEY)[0]
    return root.node.records.state.copy(held(root, KEY))


def refused(simulation: Simulation, reason: str) -> float:
    labels = (("reason", reason),)
    return sum(place.driver.metrics.get(("peerd_records_refusals_total", labels), 0) for place in simulation.nodes)


def verifications(simulation: Simulation) -> int:
    return sum(place.driver.verifications for place in simulation.nodes)


def test_only_the_owner_changes_and_deletes_and_others_hear_whose_it_is() -> None:
    simulation = record_ring(12, seed=1)
    owner, other = simulation.nodes[:2]
    stored = put(simulation, owner, KEY, b"mine", ack="replicated")
    assert (stored.outcome, stored.owner) == (RecordOutcome.STORED, owner.id)
    for result in (
        put(simulation, other, KEY, b"theirs"),
        put(simulation, other, KEY, b"theirs", if_version=stored.version),
        put(simulation, other, KEY, b"theirs", if_version=NO_VERSION),
        put(simulation, other, KEY, b"anybody's", shared=True),
        put(simulation, owner, KEY, b"anybody's", shared=True),
        delete(simulation, other, KEY),
        delete(simulation, other, KEY, shared=True),
    ):
        assert (result.outcome, result.owner) == (RecordOutcome.OWNED, owner.id)
        assert result.detail == f"it belongs to {format_id(owner.id)}"
    found = get(simulation, other, KEY)
    assert (found.value, found.owner, found.version) == (b"mine", owner.id, stored.version)
    assert get(simulation, other, KEY, owner=owner.id).value == b"mine"
    assert get(simulation, other, KEY, owner=other.id).outcome is RecordOutcome.ABSENT
    local = user(holders(simulation, KEY)[0]).host.records.local(KEY)
    assert local is not None and local.owner == owner.id
    assert put(simulation, owner, KEY, b"changed", ack="replicated").copies == 3
    assert delete(simulation, owner, KEY, ack="replicated").outcome is RecordOutcome.STORED
    assert put(simulation, other, KEY, b"theirs", ack="replicated").outcome is RecordOutcome.STORED
    found = get(simulation, owner, KEY)
    assert (found.value, found.owner) == (b"theirs", other.id), "what was deleted is nobody's any more"


def test_a_shared_record_says_so_and_is_everybodys() -> None:
    simulation = record_ring(12, seed=2)
    one, two, three = simulation.nodes[:3]
    stored = put(simulation, one, KEY, b"first", shared=True)
    assert (stored.outcome, stored.owner) == (RecordOutcome.STORED, None)
    assert put(simulation, two, KEY, b"second", shared=True).outcome is RecordOutcome.STORED
    found = get(simulation, three, KEY)
    assert (found.value, found.owner) == (b"second", None)
    for result in (put(simulation, three, KEY, b"mine"), delete(simulation, three, KEY)):
        assert (result.outcome, result.owner, result.detail) == (RecordOutcome.OWNED, None, "it is a shared record")
    assert delete(simulation, three, KEY, shared=True, ack="replicated").outcome is RecordOutcome.STORED
    assert get(simulation, one, KEY).outcome is RecordOutcome.ABSENT


def test_the_owner_is_remembered_when_the_root_dies_and_the_owner_has_restarted() -> None:
    simulation = record_ring(16, seed=3)
    owner, other = [place for place in simulation.nodes if place not in holders(simulation, KEY)][:2]
    first = put(simulation, owner, KEY, b"mine", ack="replicated")
    simulation.kill(holders(simulation, KEY)[0])
    simulation.kill(owner)
    simulation.run_for(20.0)
    assert put(simulation, other, KEY, b"theirs").outcome is RecordOutcome.OWNED
    simulation.restart(owner)
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    again = put(simulation, owner, KEY, b"still mine", ack="replicated")
    assert again.outcome is RecordOutcome.STORED
    assert again.version is not None and first.version is not None and again.version.rank > first.version.rank
    assert get(simulation, other, KEY).value == b"still mine"


def test_no_copy_that_a_member_makes_up_changes_or_ends_a_record() -> None:
    simulation = record_ring(12, seed=4)
    owner = simulation.nodes[0]
    put(simulation, owner, KEY, b"mine", ack="replicated")
    liar = outsider(simulation, owner)
    genuine = copy_of(simulation)
    later = RequestId(owner.id, genuine.request.epoch, genuine.request.sequence + 7)
    own = signed(
        liar, RecordRequest(PUT, "record_user", KEY, later.epoch, later.sequence, 0, b"false", TTL_S, owner=owner.id)
    )
    lie = replace(genuine, value=b"false", request=later, version=owned_version(later))
    lies = [
        replace(lie, write=UNSIGNED),
        lie,
        replace(lie, write=SignedWrite(own.ttl_s, own.until_s, b"", own.proof)),
        replace(lie, value=None),
        replace(genuine, value=None),
        replace(genuine, value=b"false"),
        replace(genuine, version=RecordVersion(genuine.version.counter + 1, 1, owner.id)),
        replace(genuine, request=later, version=owned_version(later)),
        replace(genuine, owner=liar.id),
        replace(genuine, owner=SHARED, version=RecordVersion(9, 9, liar.id)),
        replace(genuine, item=b"another"),
        replace(genuine, namespace="another"),
        replace(genuine, write=replace(genuine.write, ttl_s=1.0), version=owned_version(later), request=later),
        replace(genuine, write=replace(genuine.write, until_s=genuine.write.until_s + 9), remaining_s=9.0),
    ]
    give(simulation, liar, lies)
    for place in holders(simulation, KEY):
        record = held(place, KEY)
        assert (record.value, record.version, record.owner) == (b"mine", genuine.version, owner.id)
        assert len(place.node.records.state.table) == 1
    # One has no life, and two have the number of the write that is held and would lose: they are not even checked.
    assert refused(simulation, "forged") == 3 * (len(lies) - 3)
    simulation.check([Replication()])


def test_who_gives_forged_copies_without_end_loses_its_link() -> None:
    simulation = record_ring(6, seed=5)
    simulation.misbehaviour_is_failure = False
    owner = simulation.nodes[0]
    put(simulation, owner, KEY, b"mine", ack="replicated")
    liar = outsider(simulation, owner)
    root = holders(simulation, KEY)[0]
    genuine = copy_of(simulation)
    later = RequestId(owner.id, 1, 99)
    write = replace(genuine.write, proof=bytes(65))
    forged = replace(genuine, value=b"", write=write, request=later, version=owned_version(later))
    for _ in range(60):
        liar.node.hosts["records"].send(root.peer, ReplicaPut((forged,) * 180))
    simulation.run_for(5.0)
    assert (root.peer, liar.peer) in {(says, about) for _, says, about, _ in simulation.misbehaviours}
    assert get(simulation, owner, KEY).value == b"mine"


def test_a_forged_lapse_or_a_short_life_ends_nothing_that_is_held() -> None:
    simulation = record_ring(12, seed=6)
    owner = simulation.nodes[0]
    put(simulation, owner, KEY, b"mine", ack="replicated")
    liar, genuine = outsider(simulation, owner), copy_of(simulation)
    lapsed = replace(genuine, value=None, write=replace(genuine.write, value_digest=value_digest(b"mine")))
    short = replace(genuine, remaining_s=0.01, covered_s=3000.0)
    before = [held(place, KEY).expires_at for place in holders(simulation, KEY)]
    give(simulation, liar, [lapsed, replace(lapsed, remaining_s=3000.0), short, replace(genuine, remaining_s=3000.0)])
    simulation.run_for(30.0)
    assert [held(place, KEY).expires_at for place in holders(simulation, KEY)] == before, "nor is it prolonged"
    assert all(held(place, KEY).value == b"mine" for place in holders(simulation, KEY))
    found = get(simulation, liar, KEY)
    assert found.value == b"mine" and found.remaining_s > TTL_S - 120.0


def test_what_was_signed_before_brings_nothing_back() -> None:
    """A member keeps every copy that it has seen, and shows them again and again."""
    config = RecordsConfig(ttl_max=1900)
    simulation = record_ring(12, seed=7, config=config)
    owner = simulation.nodes[0]
    liar = outsider(simulation, owner)
    kept: list[RecordCopy] = []
    for value in (b"one", b"two"):
        put(simulation, owner, KEY, value, ack="replicated")
        kept.append(copy_of(simulation))
    give(simulation, liar, kept[:1])
    assert get(simulation, liar, KEY).value == b"two"
    delete(simulation, owner, KEY, ack="replicated")
    give(simulation, liar, kept)
    assert get(simulation, liar, KEY).outcome is RecordOutcome.ABSENT
    for _ in range(4):
        simulation.run_for(config.tombstone_ttl_s / 3)
        give(simulation, liar, kept)
        assert get(simulation, liar, KEY).outcome is RecordOutcome.ABSENT
        assert copies_of(simulation, KEY) == []
    assert all(not len(place.node.records.state.table) for place in simulation.live_nodes()), "no tombstone is left"


def test_a_request_kept_by_a_hop_takes_effect_only_within_its_life() -> None:
    simulation = record_ring(8, seed=8)
    owner = simulation.nodes[0]
    kept = signed(owner, RecordRequest(PUT, "record_user", KEY, owner.boot_epoch, 7, 0, b"x", 60.0, owner=owner.id))
    root = holders(simulation, KEY)[0]
    simulation.run_for(60.0 + CLOCK_MARGIN_S + 1.0)
    root.node.records.deliver(KEY, kept, owner.peer)
    simulation.run_for(1.0)
    assert copies_of(simulation, KEY) == []
    assert refused(simulation, "late") == 1


def test_a_forged_source_uses_up_nobodys_quota() -> None:
    simulation = record_ring(6, seed=9, config=RecordsConfig(origin_records_max=5))
    simulation.misbehaviour_is_failure = False
    victim = simulation.nodes[0]
    liar = outsider(simulation, victim)
    for number in range(1, 40):
        key = key_number(number)
        for owner in (victim.id, SHARED):
            forged = signed(liar, RecordRequest(PUT, "record_user", key, 1, 1000 + number, 0, b"x", TTL_S, owner=owner))
            for place in simulation.nodes:
                place.node.records.deliver(key, forged, victim.peer)
    simulation.run_for(5.0)
    assert [put(simulation, victim, key_number(number), b"x").outcome for number in range(1, 5)] == [
        RecordOutcome.STORED
    ] * 4
    assert put(simulation, liar, key_number(39), b"x").outcome is RecordOutcome.STORED


def test_two_creators_on_both_sides_of_a_partition_keep_a_record_each() -> None:
    simulation = record_ring(24, seed=10)
    sides = simulation.nodes[:12], simulation.nodes[12:]
    simulation.partition(*sides)
    simulation.run_for(25.0)
    owners = [side[0] for side in sides]
    for place in owners:
        assert put(simulation, place, KEY, b"of %d" % place.index, ack="replicated").outcome is RecordOutcome.STORED
    simulation.heal()
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=1200.0, poll_s=5.0)
    for place in owners:
        found = get(simulation, simulation.nodes[5], KEY, owner=place.id)
        assert (found.value, found.owner) == (b"of %d" % place.index, place.id)
    assert get(simulation, simulation.nodes[5], KEY).owner in {place.id for place in owners}
    assert put(simulation, owners[0], KEY, b"changed", ack="replicated").outcome is RecordOutcome.STORED
    assert delete(simulation, owners[1], KEY, ack="replicated").outcome is RecordOutcome.STORED
    found = get(simulation, simulation.nodes[5], KEY)
    assert (found.value, found.owner) == (b"changed", owners[0].id)


def test_a_record_that_a_member_puts_beside_another_is_found_by_who_names_it_only() -> None:
    """The liar gives its own record to the holders past the root, which would have refused it."""
    simulation = record_ring(12, seed=11)
    owner = simulation.nodes[0]
    put(simulation, owner, KEY, b"mine", ack="replicated")
    liar, genuine = outsider(simulation, owner), copy_of(simulation)
    request = RequestId(liar.id, 1, 1)
    write = signed(liar, RecordRequest(PUT, "record_user", KEY, 1, 1, 0, b"theirs", TTL_S, owner=liar.id))
    beside = replace(
        genuine,
        value=b"theirs",
        owner=liar.id,
        request=request,
        version=owned_version(request),
        write=SignedWrite(write.ttl_s, write.until_s, b"", write.proof),
    )
    give(simulation, liar, [beside])
    assert get(simulation, liar, KEY).value == b"mine"
    assert get(simulation, liar, KEY, owner=owner.id).value == b"mine"
    assert get(simulation, owner, KEY, owner=liar.id).value == b"theirs"
    assert put(simulation, owner, KEY, b"changed").outcome is RecordOutcome.STORED
    [root, *_] = holders(simulation, KEY)
    assert {record.owner for record in user(root).host.records.items(KEY)} == {owner.id, liar.id}


def test_a_store_at_rest_and_repair_check_nothing_that_is_held() -> None:
    simulation = record_ring(12, seed=12)
    values = put_many(simulation, 100)
    assert verifications(simulation) == 3 * len(values), "once at the root and at each replica"
    simulation.run_for(300.0)
    assert verifications(simulation) == 3 * len(values)
    lost = holders(simulation, KEY)[0]
    moved = len(lost.node.records.state.table)
    simulation.kill(lost)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=300.0, poll_s=5.0)
    assert verifications(simulation) <= 3 * len(values) + 3 * moved, "what moved, and what was taken on the way"
    found = get_many(simulation, list(values))
    assert {key: result.value for key, result in found.items()} == values


@pytest.mark.parametrize("verb", [PUT, DELETE])
def test_a_hop_that_alters_a_request_has_it_refused(verb: int) -> None:
    simulation = record_ring(8, seed=13)
    owner, root = simulation.nodes[0], holders(simulation, KEY)[0]
    put(simulation, owner, KEY, b"mine", ack="replicated")
    value = b"new" if verb == PUT else None
    request = signed(
        owner, RecordRequest(verb, "record_user", KEY, owner.boot_epoch, 50, 0, value, TTL_S, owner=owner.id)
    )
    for altered in (
        replace(request, verb=PUT, value=b"other"),
        replace(request, verb=PUT, value=b"new", ttl_s=1.0),
        replace(request, item=b"other"),
        replace(request, sequence=51),
        replace(request, owner=SHARED),
    ):
        root.node.records.deliver(KEY, altered, owner.peer)
    simulation.run_for(5.0)
    assert get(simulation, owner, KEY).value == b"mine"
    root.node.records.deliver(KEY, request, owner.peer)
    simulation.run_for(5.0)
    assert get(simulation, owner, KEY).value == value


def test_a_root_cannot_make_up_what_it_has_found() -> None:
    simulation = record_ring(8, seed=14)
    owner, root = simulation.nodes[0], holders(simulation, KEY)[0]
    put(simulation, owner, KEY, b"mine", ack="replicated")
    genuine = held(root, KEY)
    reader = outsider(simulation, owner)
    for lie in (
        dataclasses.replace(genuine, value=b"false"),
        dataclasses.replace(genuine, value=b"false", write=UNSIGNED),
        dataclasses.replace(genuine, owner=root.id),
        dataclasses.replace(genuine, write=replace(genuine.write, until_s=genuine.write.until_s + 1.0)),
        held_by_root_of_another(simulation, owner),
    ):
        root.node.records._root._state.current = lambda *wanted, lie=lie: lie  # type: ignore[method-assign]  # it lies
        result = get(simulation, reader, KEY, timeout_s=3.0)
        assert (result.outcome, result.detail, result.value) == (RecordOutcome.UNKNOWN, "forged", None)
    del root.node.records.state.current
    found = get(simulation, reader, KEY)
    assert (found.value, found.owner) == (b"mine", owner.id)
    assert refused(simulation, "forged") >= 5


def held_by_root_of_another(simulation: Simulation, owner: Place) -> Record:
    """A genuine record of the same owner under another name."""
    put(simulation, owner, key_number(1), b"other", ack="replicated")
    return held(holders(simulation, key_number(1))[0], key_number(1))


def test_who_has_not_seen_a_request_cannot_answer_it() -> None:
    simulation = record_ring(8, seed=15)
    reader = outsider(simulation)
    liar = outsider(simulation, reader)
    results: list[RecordResult] = []
    user(reader).host.records.get(KEY, results.append)
    sequence = reader.node.records.operations._sequence
    for status in (ABSENT, STORED, CONFLICT, QUOTA, OWNED):
        liar.node.hosts["records"].send(reader.peer, RecordAnswer(sequence, 0, status))
        reader.node.records.operations._answered(RecordAnswer(sequence, 0, status), liar.peer)
    assert results == []
    simulation.run_for(2.0)
    assert [result.outcome for result in results] == [RecordOutcome.ABSENT]
    assert refused(simulation, "not_asked") >= 5
