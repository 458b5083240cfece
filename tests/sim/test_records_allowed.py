"""What a plugin lets others write into its shared records, and how it learns that a root has all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from peerd.api import Host, RecordOutcome, RecordVersion
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, closeness
from peerd.messages import PeerRef
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import DELETE, PUT, RecordCopy, RecordRequest, ReplicaPut, RequestId, SignedWrite
from peerd.services.records.owners import SHARED, value_digest
from peerd.services.records.record import RecordId, owned_version
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from tests.support.record_checkers import Replication
from tests.support.records import (
    TTL_S,
    RecordUser,
    copies_of,
    delete,
    drop,
    get,
    held,
    holders,
    key_number,
    put,
    signed,
    user,
)

KEY = key_number(0)
Rule = Callable[["Gatekeeper", NodeId, bytes, bytes | None, NodeId], bool]


class Gatekeeper(RecordUser):
    """Asks the rule of its ring who may write, and counts how often it is told that its node has caught up."""

    rule: ClassVar[Rule]

    def start(self, host: Host) -> None:
        """Begin with nothing told."""
        super().start(host)
        self.settled = 0
        self.asked = 0

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Count the question, and put it to the rule."""
        self.asked += 1
        return self.rule(key, item, value, writer)

    def records_settled(self) -> None:
        """Count the call."""
        self.settled += 1


def guarded_ring(count: int, seed: int, rule: Rule) -> Simulation:
    """A ring in which the plugins of all nodes follow one rule."""
    kind = type("RuledGatekeeper", (Gatekeeper,), {"rule": rule})
    return ring(count, seed, plugins=lambda index: [kind()])


def gatekeeper(place: Place) -> Gatekeeper:
    plugin = user(place)
    assert isinstance(plugin, Gatekeeper)
    return plugin


def only(*writers: Place) -> Rule:
    """These may write, and nobody else."""
    ids = {place.id for place in writers}
    return lambda plugin, key, item, value, writer: writer in ids


def everybody(plugin: Gatekeeper, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
    return True


def have_rule(simulation: Simulation, rule: Rule) -> None:
    """From now on the plugins of all nodes follow this rule."""
    for place in simulation.live_nodes():
        type(gatekeeper(place)).rule = rule


def does_as_it_likes(place: Place) -> None:
    """This node has a plugin of its own making, which lets everything pass."""
    gatekeeper(place).record_allowed = lambda *asked: True  # type: ignore[method-assign]  # of this node only


def refused(simulation: Simulation, reason: str = "not_allowed") -> float:
    labels = (("reason", reason),)
    return sum(place.driver.metrics.get(("peerd_records_refusals_total", labels), 0) for place in simulation.nodes)


def written_by(place: Place, value: bytes | None, counter: int, lapsed: bytes = b"", item: bytes = b"") -> RecordCopy:
    """A shared record under `KEY` that this node has signed, with a version of its own making."""
    verb = PUT if value is not None or lapsed else DELETE
    request = RequestId(place.id, 1, 1_000_000 + counter)
    said = lapsed or value
    write = signed(
        place,
        RecordRequest(verb, "record_user", KEY, 1, request.sequence, 0, said, TTL_S, item=item, owner=SHARED),
    )
    proof = SignedWrite(write.ttl_s, write.until_s, value_digest(lapsed) if lapsed else b"", write.proof)
    version = RecordVersion(counter, 1, place.id)
    return RecordCopy("record_user", KEY, version, value, TTL_S, TTL_S, request, item, SHARED, proof)


def values_held(simulation: Simulation) -> list[bytes | None]:
    return [held(place, KEY).value for place in holders(simulation, KEY)]


def test_a_writer_that_the_plugin_does_not_allow_is_told_so_and_nothing_changes() -> None:
    simulation = guarded_ring(12, 1, everybody)
    writer, other = simulation.nodes[:2]
    have_rule(simulation, only(writer))
    assert put(simulation, writer, KEY, b"mine", shared=True, ack="replicated").copies == 3
    for result in (
        put(simulation, other, KEY, b"theirs", shared=True),
        put(simulation, other, KEY, b"theirs", shared=True, item=b"new"),
        delete(simulation, other, KEY, shared=True, ack="replicated"),
    ):
        assert (result.outcome, result.detail, result.copies) == (RecordOutcome.QUOTA, "not_allowed", 0)
    assert values_held(simulation) == [b"mine"] * 3
    assert refused(simulation) == 3, "one for each, at the root"
    assert not simulation.misbehaviours
    assert get(simulation, other, KEY).value == b"mine"
    assert delete(simulation, writer, KEY, shared=True, ack="replicated").outcome is RecordOutcome.STORED


def test_it_is_asked_about_shared_records_only() -> None:
    simulation = guarded_ring(12, 2, lambda *asked: False)
    owner = simulation.nodes[0]
    assert put(simulation, owner, KEY, b"mine", ack="replicated").copies == 3
    assert get(simulation, owner, KEY).value == b"mine"
    assert delete(simulation, owner, KEY, ack="replicated").outcome is RecordOutcome.STORED
    assert all(gatekeeper(place).asked == 0 for place in simulation.nodes)


def test_where_all_records_are_shared_no_member_fills_a_key_or_takes_a_name_with_its_own() -> None:
    simulation = guarded_ring(12, 14, everybody)
    writer, liar = [place for place in simulation.nodes if place not in holders(simulation, KEY)][:2]
    type(gatekeeper(writer)).takes_owned_records = False
    refusal = put(simulation, liar, KEY, b"theirs", ack="replicated")
    assert (refusal.outcome, refusal.detail) == (RecordOutcome.QUOTA, "not_allowed")
    request = RequestId(liar.id, 1, 1_000_000)
    said = signed(liar, RecordRequest(PUT, "record_user", KEY, 1, request.sequence, 0, b"theirs", TTL_S, owner=liar.id))
    write = SignedWrite(said.ttl_s, said.until_s, b"", said.proof)
    own = RecordCopy("record_user", KEY, owned_version(request), b"theirs", TTL_S, 0.0, request, b"", liar.id, write)
    for place in holders(simulation, KEY):
        liar.node.hosts["records"].send(place.peer, ReplicaPut((own,)))
    simulation.run_for(5.0)
    assert copies_of(simulation, KEY) == [] and not simulation.misbehaviours
    assert refused(simulation) == 4
    assert put(simulation, writer, KEY, b"anybody's", shared=True, ack="replicated").copies == 3


def test_no_holder_takes_from_a_member_what_the_plugin_does_not_allow() -> None:
    """The liar gives each holder what it has signed itself, past the root, as if it were the root."""
    simulation = guarded_ring(12, 3, everybody)
    writer = simulation.nodes[0]
    liar = next(place for place in simulation.nodes[1:] if place not in holders(simulation, KEY))
    have_rule(simulation, only(writer))
    put(simulation, writer, KEY, b"mine", shared=True, ack="replicated")
    lies = [written_by(liar, b"theirs", 50), written_by(liar, None, 51), written_by(liar, None, 52, lapsed=b"gone")]
    for place in holders(simulation, KEY):
        for lie in lies:
            liar.node.hosts["records"].send(place.peer, ReplicaPut((lie,)))
    simulation.run_for(5.0)
    assert values_held(simulation) == [b"mine"] * 3
    assert refused(simulation) == 3 * len(lies)
    assert refused(simulation, "forged") == 0
    assert not simulation.misbehaviours, "what a neighbour passes on costs it nothing"


@pytest.mark.parametrize("value", [b"theirs", None])
def test_a_holder_that_lets_everything_pass_infects_no_other_in_comparisons(value: bytes | None) -> None:
    simulation = guarded_ring(12, 4, everybody)
    writer, liar = simulation.nodes[0], holders(simulation, KEY)[1]
    have_rule(simulation, only(writer))
    put(simulation, writer, KEY, b"mine", shared=True, ack="replicated")
    does_as_it_likes(liar)
    assert liar.node.records.state.admit(written_by(liar, value, 50)) == "changed"
    simulation.run_for(600.0)
    [root, _, replica] = holders(simulation, KEY)
    assert [held(place, KEY).value for place in (root, liar, replica)] == [b"mine", value, b"mine"]
    assert refused(simulation) > 0, "it was offered"
    assert not simulation.misbehaviours
    assert get(simulation, writer, KEY).value == b"mine"


def test_what_is_refused_does_not_hide_what_comes_behind_it() -> None:
    """A partner without the plugin holds many records that are not allowed, and sends them in order, some at a time."""
    simulation = guarded_ring(2, 16, everybody)
    one, other = sorted(simulation.nodes, key=lambda place: place.id)  # the smaller one begins comparisons
    names = sorted((b"%d" % number for number in range(200)), key=lambda item: RecordId(KEY, "record_user", item).place)
    have_rule(simulation, only(one))
    does_as_it_likes(other)
    for item in (names[0], names[-1]):
        assert put(simulation, one, KEY, b"mine", shared=True, item=item, ack="replicated").copies == 2
    for number, item in enumerate(names[1:-1]):
        assert other.node.records.state.admit(written_by(other, b"theirs", 50 + number, item=item)) == "changed"
    drop(one, KEY, names[-1])
    simulation.run_for(600.0)
    assert {record.item for record in user(one).host.records.items(KEY)} == {names[0], names[-1]}
    assert refused(simulation) >= len(names) - 2


def test_a_reader_does_not_take_it_from_the_root() -> None:
    simulation = guarded_ring(12, 5, everybody)
    writer, reader = [place for place in simulation.nodes if place not in holders(simulation, KEY)][:2]
    root = holders(simulation, KEY)[0]
    have_rule(simulation, only(writer))
    does_as_it_likes(root)
    assert root.node.records.state.admit(written_by(root, b"theirs", 50)) == "changed"
    result = get(simulation, reader, KEY, timeout_s=3.0)
    assert (result.outcome, result.detail, result.value) == (RecordOutcome.UNKNOWN, "not_allowed", None)


def test_what_a_replica_refused_it_takes_later_from_a_comparison() -> None:
    """While the ring changes, two nodes may judge differently; the one that said no must not stay without a copy."""
    simulation = guarded_ring(12, 6, everybody)
    writer, doubter = simulation.nodes[0], holders(simulation, KEY)[2]
    gatekeeper(doubter).record_allowed = lambda *asked: False  # type: ignore[method-assign]  # of this node only
    result = put(simulation, writer, KEY, b"mine", shared=True, ack="replicated")
    assert (result.outcome, result.copies, result.detail) == (RecordOutcome.QUOTA, 2, "replica")
    assert doubter not in copies_of(simulation, KEY)
    del gatekeeper(doubter).record_allowed
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=300.0, poll_s=5.0)
    assert doubter in copies_of(simulation, KEY)
    assert not simulation.misbehaviours


def test_a_plugin_that_blames_the_writer_refuses_and_one_out_of_service_does_too() -> None:
    simulation = guarded_ring(12, 7, everybody)
    writer, root = simulation.nodes[0], holders(simulation, KEY)[0]

    def blames(*asked: Any) -> bool:
        raise ProtocolError("bad_value", "this is no value of mine")

    gatekeeper(root).record_allowed = blames  # type: ignore[method-assign, assignment]  # of one node
    assert put(simulation, writer, KEY, b"mine", shared=True).detail == "not_allowed"
    assert not simulation.misbehaviours
    root.node.restart_plugin("record_user")
    assert put(simulation, writer, KEY, b"mine", shared=True).outcome is RecordOutcome.STORED
    root.node.disable_plugin("record_user")
    assert put(simulation, writer, KEY, b"again", shared=True).detail == "not_allowed"


def test_a_plugin_may_look_at_its_records_while_it_is_asked() -> None:
    """Here a value is allowed if it is larger than the one that is held."""

    def grows(plugin: Gatekeeper, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        held_now = plugin.host.records.local(key, item)
        plugin.host.records.is_settled(key)
        assert [each.value for each in plugin.host.records.items(key)] == ([held_now.value] if held_now else [])
        return value is not None and (held_now is None or held_now.value < value)

    simulation = guarded_ring(12, 8, grows)
    one, two = simulation.nodes[:2]
    assert put(simulation, one, KEY, b"b", shared=True, ack="replicated").copies == 3
    assert put(simulation, two, KEY, b"a", shared=True).detail == "not_allowed"
    assert put(simulation, two, KEY, b"c", shared=True, ack="replicated").copies == 3
    simulation.validate()


# Whether a root has all of it


def settled_roots(simulation: Simulation, key: NodeId) -> list[Place]:
    return [place for place in simulation.live_nodes() if user(place).host.records.is_settled(key)]


def test_one_node_is_settled_for_a_key_and_every_node_was_told_so() -> None:
    simulation = guarded_ring(12, 9, everybody)
    for number in range(20):
        key = key_number(number)
        assert settled_roots(simulation, key) == holders(simulation, key)[:1]
    assert all(gatekeeper(place).settled >= 1 for place in simulation.nodes)
    before = [gatekeeper(place).settled for place in simulation.nodes]
    simulation.run_for(600.0)
    assert [gatekeeper(place).settled for place in simulation.nodes] == before, "nothing has changed"


def test_a_node_that_is_alone_is_told_too() -> None:
    simulation = guarded_ring(1, 10, everybody)
    [place] = simulation.nodes
    assert gatekeeper(place).settled == 1
    assert user(place).host.records.is_settled(KEY)


def test_a_new_root_is_told_when_it_holds_all_items_and_not_before() -> None:
    simulation = guarded_ring(16, 11, everybody)
    names = [b"item %d" % number for number in range(30)]
    [old, new, *_] = holders(simulation, KEY)
    writer = next(place for place in simulation.nodes if place not in holders(simulation, KEY))
    for name in names:
        assert put(simulation, writer, KEY, b"x", shared=True, item=name, ack="replicated").copies == 3
    for record in list(new.node.records.state.table):
        new.node.records.state.table.drop(record.identity)
    told: list[tuple[bool, int]] = []
    records = user(new).host.records

    def note() -> None:
        told.append((records.is_settled(KEY), len(list(records.items(KEY)))))

    gatekeeper(new).records_settled = note  # type: ignore[method-assign]  # of this node only
    simulation.kill(old)
    simulation.run_until(lambda: bool(told), limit_s=120.0, poll_s=0.05)
    assert told == [(True, len(names))]
    simulation.run_for(120.0)
    assert len(told) == 1, "once for this change"
    newcomer = simulation.add_node()
    simulation.run_until(lambda: newcomer.is_live and gatekeeper(newcomer).settled > 0, limit_s=120.0)


def test_one_member_cannot_keep_a_root_from_being_settled() -> None:
    """A root that must refuse a record says so. That its writer has used up its share, or has lied, is no reason."""
    simulation = guarded_ring(12, 15, everybody)
    root, liar = holders(simulation, KEY)[0], holders(simulation, KEY, 12)[11]
    records, state = user(root).host.records, root.node.records.state
    first = written_by(liar, b"x", 1)
    assert state.admit(first) == "changed"
    state.table._config = RecordsConfig(origin_records_max=1)
    more = replace(written_by(liar, b"x", 2), item=b"more")
    assert state.admit(more) == "forged" and state.is_caught_up, "the signature is for another item"
    more = written_by(liar, b"x", 2, item=b"more")
    assert state.admit(more) == "origin_records"
    assert not state.is_caught_up and records.is_settled(KEY)
    state.table._config = RecordsConfig(key_items_max=1)
    false = replace(written_by(liar, b"x", 3), item=b"false")
    assert state.admit(false) == "forged" and records.is_settled(KEY)
    assert state.admit(written_by(liar, b"x", 3, item=b"many")) == "key_items"
    assert not records.is_settled(KEY), "there may be more than it holds"
    before = gatekeeper(root).settled
    state.table._config = RecordsConfig()
    simulation.run_until(lambda: gatekeeper(root).settled > before, limit_s=120.0)
    assert records.is_settled(KEY), "after the next routine comparison"


def test_who_asks_too_early_is_told_later() -> None:
    """A node that stood still asks its neighbours before it answers as a root again, though they are still the same."""
    simulation = guarded_ring(12, 12, everybody)
    place = holders(simulation, KEY)[0]
    records, before = user(place).host.records, gatekeeper(place).settled
    leaf_set = place.node.overlay.leaf_set()
    simulation.pause(place)
    simulation.run_for(12.0)
    simulation.resume(place)
    simulation.run_until(lambda: not records.is_settled(KEY), limit_s=5.0, poll_s=0.001)
    simulation.run_until(lambda: gatekeeper(place).settled > before, limit_s=120.0)
    assert place.node.overlay.leaf_set() is leaf_set, "no change of neighbours has led to it"
    assert records.is_settled(KEY)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_root_that_others_are_vouched_for_is_not_settled(is_held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its leaf set it is the root. But a neighbour reaches somebody closer, or that is being found out."""
    simulation = guarded_ring(12, 17, everybody)
    root, other, *_ = holders(simulation, KEY)
    records, before = user(root).host.records, gatekeeper(root).settled

    def elsewhere(key: NodeId) -> PeerRef:
        if is_held:
            raise Unavailable("being found out")
        return other.peer

    with monkeypatch.context() as patch:
        patch.setattr(root.node.overlay, "next_hop", elsewhere)
        assert not records.is_settled(KEY)
        simulation.run_until(lambda: gatekeeper(root).settled > before, limit_s=60.0)
        assert not records.is_settled(KEY), "and asks again"
    before = gatekeeper(root).settled
    simulation.run_until(lambda: gatekeeper(root).settled > before, limit_s=60.0)
    assert records.is_settled(KEY)
    assert not user(other).host.records.is_settled(KEY)
    before = gatekeeper(other).settled
    simulation.run_for(60.0)
    assert gatekeeper(other).settled == before, "there the answer is sure"


def test_the_root_may_be_all_that_writes_while_nodes_come_and_go() -> None:
    """A rule that also holds for a writer that has died: those who come into its place must take its records in."""

    def is_near(plugin: Gatekeeper, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        near = plugin.host.replica_set(key, 4)
        return len(near) < 4 or closeness(key, writer) <= closeness(key, near[-1].id)

    simulation = guarded_ring(24, 13, is_near)
    stranger = next(place for place in simulation.nodes if place not in holders(simulation, KEY, 16))
    root = holders(simulation, KEY)[0]
    assert put(simulation, root, KEY, b"1", shared=True, ack="replicated").copies == 3
    for number in range(2, 5):
        simulation.kill(holders(simulation, KEY)[0])
        simulation.add_node()
        simulation.run_until(lambda: len(settled_roots(simulation, KEY)) == 1, limit_s=120.0, poll_s=0.5)
        [root] = settled_roots(simulation, KEY)
        assert [each.value for each in user(root).host.records.items(KEY)] == [b"%d" % (number - 1)]
        simulation.run_until(lambda: not Replication().check(simulation), limit_s=300.0, poll_s=5.0)
        assert put(simulation, stranger, KEY, b"0", shared=True).detail == "not_allowed"
        [root] = settled_roots(simulation, KEY)
        assert put(simulation, root, KEY, b"%d" % number, shared=True, ack="replicated").copies == 3
    lie = written_by(stranger, b"0", 99)
    for place in holders(simulation, KEY):
        stranger.node.hosts["records"].send(place.peer, ReplicaPut((lie,)))
    simulation.run_for(5.0)
    assert values_held(simulation) == [b"4"] * 3
