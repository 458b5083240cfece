"""Anti-entropy and hand-over: only what differs moves, in bounded messages, and no copy is dropped too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from peerd.api import RecordOutcome, RecordResult, RecordVersion
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.node import SENT, SENT_BYTES
from peerd.services.records.config import RecordsConfig
from peerd.services.records.exchange import CHARGED_RECORDS, SLICE_S
from peerd.services.records.messages import (
    BATCH_BYTES_MAX,
    BUCKETS,
    PAGE_RECORDS_MAX,
    RECORD_MESSAGES,
    DifferingParts,
    DigestReply,
    DigestRequest,
    RangeDigests,
    RecordSummary,
    ReplicaAck,
    ReplicaGet,
    ReplicaPut,
    VersionsReply,
    VersionsRequest,
)
from peerd.sim.simulation import Place, Simulation
from tests.support.record_checkers import Replication
from tests.support.records import (
    TTL_S,
    drop,
    get,
    get_many,
    held,
    holders,
    key_number,
    put,
    put_many,
    record_ring,
    user,
)

KEY = key_number(0)
Q = TypeVar("Q", bound=Message)


def sent(simulation: Simulation, kind: type[Message], column: int = SENT) -> int:
    """Messages of one type that live nodes have sent, or their bytes."""
    return sum(place.node.traffic[kind.TYPE_ID][column] for place in simulation.live_nodes())


def ask(simulation: Simulation, place: Place, peer: PeerRef, message: Message) -> Message:
    """A request of the store of one node, and its reply."""
    replies: list[Message] = []
    place.node.hosts["records"].request(peer, message, 5.0, lambda reply, source: replies.append(reply), lambda: None)
    simulation.run_until(lambda: bool(replies), limit_s=5.0)
    return replies[0]


def lie(place: Place, kind: type[Q], answer: Callable[[Q], Message]) -> None:
    """From now on the store of one node answers this kind of question so."""
    place.node._handlers[kind] = ("records", lambda message, source: answer(message))


def record_traffic(simulation: Simulation, duration_s: float) -> dict[type[Message], float]:
    """Messages of the store a node, by type, while nothing happens."""
    before = {kind: sent(simulation, kind) for kind in RECORD_MESSAGES}
    simulation.run_for(duration_s)
    live = len(simulation.live_nodes())
    return {kind: (sent(simulation, kind) - before[kind]) / live for kind in RECORD_MESSAGES}


def test_without_records_nothing_is_sent() -> None:
    simulation = record_ring(30, seed=1)
    assert set(record_traffic(simulation, 600.0).values()) == {0.0}


def test_an_arrival_in_an_empty_ring_is_compared_with_by_those_near_it_only() -> None:
    simulation = record_ring(60, seed=1)
    before = sent(simulation, DigestRequest)
    newcomer = simulation.add_node()
    simulation.run_for(15.0)
    assert newcomer.node.records.state.is_established
    assert all(place.node.records.state.is_caught_up for place in simulation.live_nodes())
    assert 1 <= sent(simulation, DigestRequest) - before <= 14, "six neighbours and the newcomer, each way at most"


def test_what_does_not_fit_one_message_is_asked_for_from_where_it_ended() -> None:
    """Versions that were compared once are not sent again with every further question."""
    simulation = record_ring(4, seed=4)
    results: list[RecordResult] = []
    for number in range(300):
        records = user(simulation.nodes[number % 4]).host.records
        records.put(KEY, b"x" * 50, TTL_S, results.append, item=b"%d" % number, ack="replicated")
    simulation.run_until(lambda: len(results) == 300, limit_s=60.0)
    table = holders(simulation, KEY)[1].node.records.state.table
    for record in list(table):
        table.drop(record.identity)
    before = {kind: sent(simulation, kind, SENT_BYTES) for kind in (VersionsRequest, VersionsReply)}
    holders(simulation, KEY)[1].node.records.state.catch_up_again()
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=360.0, poll_s=5.0)
    asked, answered = (sent(simulation, kind, SENT_BYTES) - before[kind] for kind in (VersionsRequest, VersionsReply))
    assert answered >= 300 * 50, "this is how they came back"
    assert asked < answered / 5


def test_one_member_that_compares_with_nobody_does_not_stop_its_neighbours() -> None:
    """It answers the overlay, so it stays; the other holders have told what there is."""
    simulation = record_ring(12, seed=5)
    put_many(simulation, 40, shared=True)
    [root, _, liar] = holders(simulation, KEY)
    for kind in (DigestRequest, VersionsRequest, ReplicaGet, ReplicaPut):
        liar.node._handlers[kind] = ("records", lambda message, source: None)
    simulation.kill(root)
    honest = [place for place in simulation.live_nodes() if place is not liar]

    def has_caught_up(place: Place) -> bool:
        is_noticed = root.id not in {peer.id for peer in place.node.records.state.refresh().leaf_set.members()}
        return is_noticed and place.node.records.state.is_caught_up

    simulation.run_until(lambda: all(map(has_caught_up, honest)), limit_s=180.0, poll_s=1.0)
    keys = [key for key in map(key_number, range(40)) if holders(simulation, key)[0] is not liar]
    assert len(keys) > 20
    assert {result.outcome for result in get_many(simulation, keys).values()} == {RecordOutcome.FOUND}


def test_the_timer_for_lapses_runs_while_something_may_lapse() -> None:
    simulation = record_ring(4, seed=3)
    lapses = [place.node.hosts["records"] for place in simulation.nodes]
    assert not any(("lapse", None) in host._timers for host in lapses)
    put(simulation, simulation.nodes[0], KEY, b"short", ttl_s=3.0)
    assert any(("lapse", None) in host._timers for host in lapses)
    simulation.run_for(60.0)
    assert not any(("lapse", None) in host._timers for host in lapses)


def test_at_rest_ever_fewer_comparisons() -> None:
    simulation = record_ring(30, seed=1)
    put_many(simulation, 200)
    simulation.run_for(60.0)
    each = [record_traffic(simulation, 480.0) for _ in range(3)]
    asked = [traffic.pop(DigestRequest) for traffic in each]
    assert asked == pytest.approx([traffic.pop(DigestReply) for traffic in each], abs=0.1), "but for those under way"
    assert 6 >= asked[0] > asked[1] > asked[2] >= 0.9, "two larger neighbours, each every 60, 120, ... 960 seconds"
    assert {count for traffic in each for count in traffic.values()} == {0.0}


def test_a_node_that_lost_what_it_held_is_found_by_those_who_hold_it() -> None:
    """It has nothing to compare and asks nobody; its neighbours do, once they have waited for it."""
    simulation = record_ring(12, seed=12)
    put_many(simulation, 30)
    table = holders(simulation, KEY)[1].node.records.state.table
    for record in list(table):
        table.drop(record.identity)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=360.0, poll_s=5.0)


def test_one_difference_is_repaired_by_moving_one_record() -> None:
    simulation = record_ring(12, seed=2)
    put_many(simulation, 300)
    replica = holders(simulation, KEY)[1]
    drop(replica, KEY)
    before = sent(simulation, ReplicaPut), sent(simulation, VersionsRequest)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=300.0, poll_s=5.0)
    after = sent(simulation, ReplicaPut), sent(simulation, VersionsRequest)
    assert after[1] - before[1] == 1 and after[0] - before[0] <= 1
    moved = Counter[str]()
    for place in simulation.live_nodes():
        for direction in ("sent", "received"):
            moved[direction] += int(
                place.driver.metrics.get(("peerd_records_repaired_total", (("direction", direction),)), 0)
            )
    assert moved.total() == 1


def test_many_records_and_large_ones_move_in_bounded_messages() -> None:
    simulation = record_ring(4, seed=3)
    results: list[RecordResult] = []
    for number in range(1200):
        value = b"x" * 30_000 if number % 50 == 0 else b"%d" % number
        records = user(simulation.nodes[number % 4]).host.records
        records.put(key_number(number), value, TTL_S, results.append, ack="replicated")
    simulation.run_until(lambda: len(results) == 1200, limit_s=60.0, poll_s=1.0)
    assert {(result.outcome, result.copies) for result in results} == {(RecordOutcome.STORED, 3)}
    pages = sent(simulation, VersionsRequest)
    newcomer = simulation.add_node()
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    simulation.run_until(lambda: not Replication().check(simulation), limit_s=120.0, poll_s=2.0)
    assert len(newcomer.node.records.state.table) > PAGE_RECORDS_MAX
    assert sent(simulation, VersionsRequest) > pages + 3
    simulation.validate()


def test_a_stray_is_kept_until_everybody_who_should_have_it_has() -> None:
    simulation = record_ring(20, seed=4, config=RecordsConfig(records_max=50))
    put(simulation, simulation.nodes[0], KEY, b"x", ack="replicated")
    last = holders(simulation, KEY)[2]
    newcomer = simulation.add_node(NodeId(KEY + 1))
    simulation.run_until(lambda: newcomer.current is not None, limit_s=5.0)
    table = newcomer.node.records.state.table
    table._config = RecordsConfig(records_max=1, sync_interval=1)
    table._refusal = lambda held, record: "records"  # type: ignore[method-assign]  # a newcomer without room
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    simulation.run_for(200.0)
    assert user(last).host.records.local(KEY) is not None, "the newcomer refuses it"
    del table._refusal
    simulation.run_for(200.0)
    assert user(newcomer).host.records.local(KEY) is not None
    assert user(last).host.records.local(KEY) is None
    simulation.check([Replication()])


def test_replies_say_what_is_held_and_what_is_newer() -> None:
    simulation = record_ring(3, seed=5)
    one, two = simulation.nodes[:2]
    old = put(simulation, one, KEY, b"old", ack="replicated").version
    assert old is not None
    stale = one.node.records.state.copy(held(one, KEY))
    new = put(simulation, one, KEY, b"new", ack="replicated").version
    ack = ask(simulation, one, two.peer, ReplicaPut((stale,)))
    assert isinstance(ack, ReplicaAck)
    assert ack.statuses == (0,) and [copy.version for copy in ack.newer] == [new]
    entries = (
        RecordSummary("record_user", KEY, old, owner=one.id),
        RecordSummary("record_user", key_number(1), old, owner=one.id),
    )
    nothing = NodeId(0)
    reply = ask(simulation, one, two.peer, VersionsRequest(nothing, nothing, entries))
    assert reply == VersionsReply((1,), (), False), "an offer: only the second is wanted"
    reply = ask(simulation, one, two.peer, VersionsRequest(KEY, NodeId(KEY + 1), entries[:1]))
    assert isinstance(reply, VersionsReply) and [copy.value for copy in reply.newer] == [b"new"]


def test_a_page_that_does_not_fit_says_so() -> None:
    simulation = record_ring(2, seed=6)
    one, two = simulation.nodes
    for number in range(4):
        put(simulation, one, key_number(number), b"x" * 20_000, ack="replicated")
    reply = ask(simulation, one, two.peer, VersionsRequest(NodeId(0), NodeId((1 << 128) - 1), ()))
    assert isinstance(reply, VersionsReply)
    assert reply.is_partial and sum(len(copy.value or b"") for copy in reply.newer) <= BATCH_BYTES_MAX


def test_digests_of_many_records_cost_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = record_ring(3, seed=1)
    asker, asked = simulation.nodes[:2]
    put_many(simulation, CHARGED_RECORDS)
    charged: list[tuple[PeerRef, int]] = []
    monkeypatch.setattr(asked.node.driver, "charge", lambda peer, messages: charged.append((peer, messages)))
    whole_ring = RangeDigests(NodeId(0), NodeId(0), b"", is_pull=True)
    nothing = RangeDigests(NodeId(1), NodeId(2), b"", is_pull=True)
    ask(simulation, asker, asked.peer, DigestRequest((nothing,)))
    assert not charged
    ask(simulation, asker, asked.peer, DigestRequest((whole_ring, nothing, whole_ring)))
    assert charged == [(asker.peer, 2)]


def test_a_peer_that_answers_nonsense_is_given_up_and_the_rest_goes_on() -> None:
    """Digest replies of the wrong length, versions that are wanted but were never offered."""
    simulation = record_ring(8, seed=7)
    put_many(simulation, 40)
    liar = holders(simulation, KEY)[1]
    lie(liar, DigestRequest, lambda message: DigestReply((), False))
    lie(liar, VersionsRequest, lambda message: VersionsReply((200, 255), (), False))
    victim = next(place for place in simulation.live_nodes() if place not in holders(simulation, KEY))
    simulation.kill(victim)
    simulation.run_for(60.0)
    found = get(simulation, liar, KEY)
    assert found.outcome in (RecordOutcome.FOUND, RecordOutcome.NOT_ROOT, RecordOutcome.UNKNOWN)
    simulation.validate()


def test_a_comparison_without_end_makes_way_for_others() -> None:
    """A peer that always has something newer would keep this node from all its other neighbours."""
    simulation = record_ring(8, seed=13)
    put_many(simulation, 40)
    liar = holders(simulation, KEY)[1]
    counter = iter(range(10_000, 1_000_000))
    put(simulation, liar, KEY, b"x", item=b"anybody's", ack="replicated", shared=True)
    copy = liar.node.records.state.copy(held(liar, KEY, b"anybody's"))

    def versions(message: VersionsRequest) -> VersionsReply:
        return VersionsReply((), (replace(copy, version=RecordVersion(next(counter), 1, liar.id)),), True)

    lie(liar, VersionsRequest, versions)
    differing = DifferingParts(tuple(range(BUCKETS)))
    lie(liar, DigestRequest, lambda message: DigestReply((differing,) * len(message.ranges), True))
    for _ in range(2):
        simulation.add_node()
    simulation.run_for(240.0)
    for place in simulation.live_nodes():
        state = place.node.records.state
        if liar.id in {peer.id for peer in state.view.partners}:
            assert state.pulled, "no neighbour of the other side had its turn"
    slices = [exchange for place in simulation.live_nodes() if (exchange := place.node.records._synchroniser._exchange)]
    assert all(simulation.now - exchange.started_at <= 2 * SLICE_S for exchange in slices)
