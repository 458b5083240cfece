"""The pure core of the record store: order of versions, merge, tombstones, lapse, quotas, digests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from peerd.api import RecordVersion
from peerd.ids import RING, NodeId
from peerd.services.records import table as tables
from peerd.services.records.batches import batches, first_batch
from peerd.services.records.config import RECORD_OVERHEAD_BYTES, TOMBSTONE_MARGIN_S, RecordsConfig
from peerd.services.records.exchange import packed_digests
from peerd.services.records.messages import DIGEST_BYTES, RequestId, SignedWrite
from peerd.services.records.owners import statement, value_digest
from peerd.services.records.record import Record, RecordId, from_copy, merge, owned_version, to_copy
from peerd.services.records.table import CHANGED, KEPT, RecordTable
from peerd.services.records.view import WHOLE_RING, Arc

CONFIG = RecordsConfig()
TTL_S = 300.0
STEP = RING // 16


def record(
    key: int = 1,
    counter: int = 1,
    value: bytes | None = b"v",
    *,
    writer: int = 9,
    epoch: int = 1,
    expires_at: float = TTL_S,
    covered_until: float = 0.0,
    origin: int = 5,
    sequence: int = 0,
    namespace: str = "tests",
) -> Record:
    version = RecordVersion(counter, epoch, NodeId(writer))
    request = RequestId(NodeId(origin), 1, sequence or counter)
    return Record(namespace, NodeId(key), version, value, expires_at, covered_until, request)


def owned(
    sequence: int = 1,
    value: bytes | None = b"v",
    *,
    owner: int = 5,
    epoch: int = 1,
    expires_at: float = TTL_S,
    lapsed: bytes = b"",
) -> Record:
    """A record of one owner; ``lapsed`` is the value that it had."""
    request = RequestId(NodeId(owner), epoch, sequence)
    write = SignedWrite(TTL_S, 1e9, value_digest(lapsed) if lapsed else b"", b"proof")
    return Record(
        "tests", NodeId(1), owned_version(request), value, expires_at, 0.0, request, b"", NodeId(owner), write
    )


def filled(*records: Record, config: RecordsConfig = CONFIG) -> RecordTable:
    table = RecordTable(config)
    for one in records:
        assert table.merge(one, 0.0) in (CHANGED, KEPT)
    return table


records = st.builds(
    record,
    st.just(1),
    st.integers(1, 3),
    st.sampled_from([b"", b"a", b"b", None]),
    writer=st.integers(0, 1),
    epoch=st.integers(1, 2),
    expires_at=st.sampled_from([10.0, 20.0]),
    covered_until=st.sampled_from([0.0, 15.0]),
)


owned_records = st.builds(
    owned,
    st.integers(1, 3),
    st.sampled_from([b"", b"a", None]),
    epoch=st.integers(1, 2),
    expires_at=st.sampled_from([10.0, 20.0]),
    lapsed=st.sampled_from([b"", b"a"]),
)


@given(owned_records, owned_records, owned_records)
def test_merge_of_owned_records_is_so_too(one: Record, two: Record, three: Record) -> None:
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, one) == one


def test_the_owners_last_write_wins_and_its_boots_come_in_order() -> None:
    for order in permutations([owned(7), owned(1, b"later", epoch=2), owned(8, None)]):
        assert list(filled(*order)) == [owned(1, b"later", epoch=2)]


def test_records_of_two_owners_are_two_and_the_shared_one_is_a_third() -> None:
    mine, yours, shared = owned(1, b"mine"), owned(1, b"yours", owner=6), record(1, 1, b"ours")
    for order in permutations([mine, yours, shared]):
        table = filled(*order)
        assert table.named((NodeId(1), "tests", b"")) == list(order), "the first that came is the first"
        table.validate()
        assert table.merge(owned(2, None), 0.0) == CHANGED
        assert [one.value for one in table.named((NodeId(1), "tests", b"")) if one.owner != 5] == [
            one.value for one in order if one is not mine
        ]
        for one in order:
            table.drop(one.identity)
        assert table.named((NodeId(1), "tests", b"")) == []
        table.validate()


def test_an_owned_record_is_ended_by_its_time_and_its_owner_only() -> None:
    held = owned(1, b"a", expires_at=20.0)
    lapse = owned(1, None, lapsed=b"a", expires_at=90.0)
    assert lapse.is_lapsed and not owned(1, None).is_lapsed
    table = filled(held)
    for copy in (lapse, replace(held, expires_at=10.0), replace(held, expires_at=90.0)):
        assert table.merge(copy, 0.0) == KEPT and list(table) == [held]
    later = filled(lapse)
    assert later.merge(held, 0.0) == CHANGED and list(later) == [held]
    assert filled(owned(2, None), held).get(held.identity) == owned(2, None)


def test_each_write_is_checked_once_and_what_fails_is_refused() -> None:
    checked: list[Record] = []
    genuine = True

    def check(one: Record) -> bool:
        checked.append(one)
        return genuine

    table = RecordTable(CONFIG, is_genuine=check)
    for copy in (owned(2), owned(2), replace(owned(2), expires_at=9.0), owned(1), owned(1)):
        assert table.merge(copy, 0.0) in (CHANGED, KEPT)
    assert checked == [owned(2), owned(1)], "once, also what is older"
    genuine = False
    for copy in (owned(3), owned(2, b"z"), owned(1, b"other", epoch=2), record(1, 9)):
        assert table.merge(copy, 0.0) == "forged"
    assert list(table) == [owned(2)]
    assert table.version_written(NodeId(5), 1, 3) is None, "what is forged is not remembered"
    genuine = True
    for copy in (
        replace(owned(3), owner=NodeId(6)),
        replace(owned(3), version=RecordVersion(2, 9, NodeId(5))),
        replace(owned(3), write=structs.replace(owned(3).write, value_digest=value_digest(b"v"))),
    ):
        assert table.merge(copy, 0.0) == "forged", "it contradicts itself"


def test_a_write_that_is_not_allowed_is_refused_each_time_and_asked_about_only_when_it_is_genuine() -> None:
    asked: list[Record] = []
    genuine, allowed = True, False

    def ask(one: Record) -> bool:
        asked.append(one)
        return allowed

    table = RecordTable(CONFIG, is_genuine=lambda one: genuine, is_allowed=ask)
    for _ in range(2):
        assert table.merge(record(), 0.0) == "not_allowed"
    assert len(table) == 0 and table.version_written(NodeId(5), 1, 1) is None and table.clock == 0
    allowed = True
    assert table.merge(record(), 0.0) == CHANGED, "it is offered again, and judged anew"
    allowed = False
    assert table.merge(record(), 0.0) == KEPT, "what is held is not asked about again"
    assert table.merge(record(1, 2, None), 0.0) == "not_allowed"
    assert asked == [record(), record(), record(), record(1, 2, None)]
    genuine = False
    assert table.merge(record(1, 3), 0.0) == "forged"
    assert len(asked) == 4 and list(table) == [record()]


def test_who_is_asked_may_look_into_the_table_later_than_the_write_came() -> None:
    """A real clock goes on while a plugin is asked, and every look lets what is over lapse."""
    table = RecordTable(CONFIG, is_allowed=lambda one: table.lapse(TTL_S) == 0)
    assert table.merge(record(), 0.0) == CHANGED
    assert table.merge(record(1, 2, b"w", expires_at=2 * TTL_S), TTL_S - 1.0) == CHANGED
    table.validate()
    assert table.lapse(2 * TTL_S) == 1


Texts = st.text(max_size=6)
Bytes = st.binary(max_size=6)
Numbers = st.integers(0, 3)
Parts = st.tuples(Texts, Numbers.map(NodeId), Bytes, Numbers.map(NodeId), Bytes, Numbers, Numbers)


@given(Parts, Parts, st.floats(0, 9), st.floats(0, 9))
def test_no_two_writes_have_the_same_statement(one: Any, other: Any, ttl_s: float, until_s: float) -> None:
    assert (statement(*(*one, ttl_s, until_s)) == statement(*(*other, ttl_s, until_s))) == (one == other)
    assert (statement(*(*one, ttl_s, 1.0)) == statement(*(*one, until_s, 1.0))) == (ttl_s == until_s)


@given(records, records, records)
def test_merge_is_associative_commutative_and_idempotent(one: Record, two: Record, three: Record) -> None:
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, one) == one


def test_versions_order_by_counter_then_epoch_then_writer() -> None:
    by_rank = [record(counter=1, epoch=9, writer=9), record(counter=2, epoch=1, writer=8), record(counter=2, epoch=2)]
    for order in permutations(by_rank):
        assert list(filled(*order)) == [by_rank[-1]]
    assert merge(record(writer=1, value=b"z"), record(writer=2, value=b"a")).value == b"a"


def test_one_version_lapsed_somewhere_is_lapsed_everywhere() -> None:
    alive = record(expires_at=10.0, covered_until=50.0)
    lapsed = alive.lapsed(TOMBSTONE_MARGIN_S)
    assert lapsed is not None and lapsed.value is None and lapsed.expires_at == 50.0 + TOMBSTONE_MARGIN_S
    assert merge(alive, lapsed) == lapsed == merge(lapsed, alive)
    assert record(expires_at=10.0).lapsed(TOMBSTONE_MARGIN_S) is None, "nothing older can be about"


def test_copies_of_one_version_never_prolong_it() -> None:
    assert merge(record(expires_at=10.0), record(expires_at=20.0)).expires_at == 10.0
    gone = record(value=None, expires_at=10.0)
    assert merge(gone, replace(gone, expires_at=20.0)).expires_at == 20.0


def test_tombstone_beats_the_copy_that_comes_back() -> None:
    table = filled(record(counter=1), record(counter=2, value=None, expires_at=CONFIG.tombstone_ttl_s))
    assert table.merge(record(counter=1), 100.0) == KEPT
    held = table.get(record().identity)
    assert held is not None and held.value is None and table.tombstones == 1


def test_tombstone_outlives_every_copy_of_what_it_deleted() -> None:
    config = RecordsConfig(ttl_max=50)
    assert config.tombstone_ttl_s > config.ttl_max
    stale = from_copy(to_copy(record(expires_at=1e6), 0.0), 0.0, config.ttl_max, config.tombstone_ttl_s)
    assert stale.expires_at == config.ttl_max, "no copy lives longer than the limit, whatever its sender says"
    table = filled(record(counter=2, value=None, expires_at=config.tombstone_ttl_s))
    table.lapse(config.tombstone_ttl_s - 1)
    assert len(table) == 1
    table.lapse(config.tombstone_ttl_s)
    assert len(table) == 0 and table.merge(stale, config.tombstone_ttl_s) == KEPT


def test_a_short_record_over_a_long_one_leaves_a_tombstone() -> None:
    """Else a replica that missed the second write would bring the first one back."""
    long, short = record(counter=1, expires_at=1000.0), record(counter=2, expires_at=10.0, covered_until=1000.0)
    table = filled(long, short)
    assert table.lapse(10.0) == 1
    assert table.merge(long, 11.0) == KEPT
    held = table.get(long.identity)
    assert held is not None and held.value is None
    assert table.lapse(1000.0 + TOMBSTONE_MARGIN_S) == 0 and len(table) == 0


def test_put_again_lives_on() -> None:
    table = filled(record(counter=1, expires_at=10.0), record(counter=2, expires_at=30.0, covered_until=10.0))
    assert table.lapse(10.0) == 0 and len(table) == 1
    assert table.lapse(30.0) == 1 and len(table) == 0


def test_remaining_time_travels_not_the_clock() -> None:
    copy = to_copy(record(expires_at=1030.0, covered_until=990.0), 1000.0)
    assert (copy.remaining_s, copy.covered_s) == (30.0, 0.0)
    assert from_copy(copy, 7.0, CONFIG.ttl_max, CONFIG.tombstone_ttl_s).expires_at == 37.0


def test_next_version_is_later_than_everything_seen() -> None:
    table = filled(record(counter=41))
    versions = [table.next_version(1, NodeId(3)) for _ in range(2)]
    assert [version.counter for version in versions] == [42, 43]
    assert table.merge(record(key=2, counter=tables.COUNTER_JUMP_MAX + 100), 0.0) == "version"
    assert table.merge(record(key=2, counter=tables.COUNTER_MAX + 1), 0.0) == "version"


def test_a_table_follows_counters_that_are_too_far_ahead_jump_by_jump() -> None:
    table = filled(record(counter=41))
    ahead = record(key=2, counter=3 * tables.COUNTER_JUMP_MAX)
    verdicts = [table.merge(ahead, 0.0) for _ in range(3)]
    assert verdicts == ["version", "version", CHANGED]
    assert table.next_version(1, NodeId(3)).counter == ahead.version.counter + 1


def test_a_table_follows_no_false_write_and_none_beyond_the_last_counter() -> None:
    table = RecordTable(CONFIG, is_genuine=lambda one: one.key != 2)
    assert table.merge(record(key=2, counter=3 * tables.COUNTER_JUMP_MAX), 0.0) == "forged"
    assert table.merge(record(key=3, counter=tables.COUNTER_MAX + 1), 0.0) == "version"
    assert table.clock == 0


def test_changes_are_told_once() -> None:
    told: list[RecordId] = []
    table = RecordTable(CONFIG, told.append)
    for one in (record(counter=1), record(counter=1), record(counter=2), record(counter=1, sequence=7)):
        table.merge(one, 0.0)
    assert told == [record().identity] * 2
    table.drop(record().identity)
    table.drop(record().identity)
    assert len(told) == 3 and len(table) == 0


def test_writes_are_remembered_by_request_even_when_superseded() -> None:
    table = filled(record(counter=2, sequence=2), record(counter=1, sequence=1))
    assert table.version_written(NodeId(5), 1, 1) == record(counter=1).version
    assert table.version_written(NodeId(5), 1, 2) == record(counter=2).version
    assert table.version_written(NodeId(5), 1, 3) is None


def test_memory_of_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "WRITES_REMEMBERED_MAX", 4)
    table = filled(*(record(key=number, counter=number) for number in range(1, 8)))
    known = [number for number in range(1, 8) if table.version_written(NodeId(5), 1, number)]
    assert known == [4, 5, 6, 7]


# Quotas


def small(**limits: int) -> RecordTable:
    return RecordTable(RecordsConfig.model_validate({"value_bytes_max": 700, **limits}))


def test_one_origin_cannot_fill_a_node() -> None:
    table = small(origin_records_max=2)
    assert [table.merge(record(key=key, counter=key), 0.0) for key in (1, 2, 3)] == [CHANGED, CHANGED, "origin_records"]
    assert table.merge(record(key=4, origin=6), 0.0) == CHANGED, "others are not affected"
    assert table.merge(record(key=1, counter=9, value=b"new"), 0.0) == CHANGED, "what is there may change"
    table.drop(record(key=2).identity)
    assert table.merge(record(key=3, counter=3), 0.0) == CHANGED


def test_bytes_are_charged_with_their_overhead() -> None:
    table = small(origin_bytes_max=1024)
    fits = 1024 - RECORD_OVERHEAD_BYTES
    assert table.merge(record(value=b"x" * fits), 0.0) == CHANGED
    assert table.merge(record(counter=2, value=b"x" * (fits + 1)), 0.0) == "origin_bytes"
    assert table.merge(record(key=2), 0.0) == "origin_bytes"
    assert table.merge(record(counter=3, value=b"x"), 0.0) == CHANGED
    assert table.usage.charged_bytes == 1 + RECORD_OVERHEAD_BYTES


def test_node_totals_hold_for_all_origins_together() -> None:
    table = small(records_max=2)
    assert [table.merge(record(key=key, origin=key), 0.0) for key in (1, 2, 3)] == [CHANGED, CHANGED, "records"]
    table = small(bytes_max=1024)
    assert [table.merge(record(key=key, origin=key, value=b"x" * 300), 0.0) for key in (1, 2)] == [CHANGED, "bytes"]


def test_a_full_origin_may_still_delete() -> None:
    table = small(origin_records_max=1)
    table.merge(record(key=1), 0.0)
    table.merge(record(key=2, origin=6), 0.0)
    assert table.merge(record(key=2, counter=2, value=None), 0.0) == CHANGED


def test_one_key_has_few_namespaces() -> None:
    table = filled(*(record(namespace=f"n{number}") for number in range(tables.NAMESPACES_PER_KEY_MAX)))
    assert table.merge(record(namespace="more"), 0.0) == "namespaces"


def test_a_plugin_of_this_node_always_has_a_place_under_a_key() -> None:
    """Else any member could keep it out with records of plugins that nobody has."""
    table = RecordTable(CONFIG, has_plugin=lambda namespace: namespace == "mine")
    for number in range(tables.NAMESPACES_PER_KEY_MAX):
        assert table.merge(record(namespace=f"n{number}"), 0.0) == CHANGED
    assert table.merge(record(namespace="more"), 0.0) == "namespaces"
    assert table.merge(record(namespace="mine"), 0.0) == CHANGED
    table.validate()


# Ranges and digests


def test_a_range_is_read_clockwise_and_over_zero() -> None:
    table = filled(*(record(key=number * STEP) for number in range(16)))
    over_zero = Arc(NodeId(14 * STEP), NodeId(2 * STEP))
    assert [one.key // STEP for one in table.within(over_zero)] == [14, 15, 0, 1]
    assert [one.key // STEP for one in table.within(over_zero, 2)] == [14, 15]
    assert len(table.within(WHOLE_RING)) == 16
    assert not table.within(Arc(NodeId(1), NodeId(STEP)))


def test_digests_differ_where_versions_do_and_nowhere_else() -> None:
    ours = filled(*(record(key=number * STEP) for number in range(16)))
    theirs = filled(*(record(key=number * STEP) for number in reversed(range(16))))
    assert ours.digests(WHOLE_RING, 16) == theirs.digests(WHOLE_RING, 16)
    theirs.merge(record(key=3 * STEP, counter=2), 0.0)
    theirs.merge(record(key=5 * STEP, namespace="other"), 0.0)
    theirs.drop(record(key=7 * STEP).identity)
    theirs.merge(record(key=9 * STEP, namespace="other"), 0.0)
    theirs.drop(record(key=9 * STEP, namespace="other").identity)
    theirs.validate()
    pairs = zip(ours.digests(WHOLE_RING, 16), theirs.digests(WHOLE_RING, 16), strict=True)
    assert [number for number, (one, other) in enumerate(pairs) if one != other] == [3, 5, 7]


@given(
    st.lists(st.integers(0, 63), max_size=20), st.integers(0, 63), st.integers(0, 63), st.sampled_from((2, 7, 8, 64))
)
def test_a_digest_is_that_of_the_records_in_its_part(keys: list[int], low: int, high: int, parts: int) -> None:
    """Whether there are fewer records than parts or more."""
    step = RING // 64
    arc = Arc(NodeId(low * step), NodeId(high * step))
    table = filled(*(record(key=key * step, counter=key + 1) for key in keys))
    for number, digest in enumerate(table.digests(arc, parts)):
        part = arc.part(number, parts)
        alone = filled(*(one for one in table if one.key in part))
        assert digest == alone.digests(WHOLE_RING, 2)[0] ^ alone.digests(WHOLE_RING, 2)[1]


def test_a_range_has_digests_to_send_as_far_as_it_holds_anything() -> None:
    assert packed_digests(filled(), WHOLE_RING) == b""
    first_part = Arc(NodeId(0), NodeId(STEP))
    assert len(packed_digests(filled(record(key=1)), first_part)) in range(1, DIGEST_BYTES + 1)


# Against a plain dict


class AgainstDict(RuleBasedStateMachine):
    """A table that takes in copies in any order holds, for each record, the one with the largest version."""

    copies = Bundle("copies")

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.table = RecordTable(RecordsConfig(origin_records_max=1000))
        self.model: dict[RecordId, Record] = {}

    @rule(
        target=copies,
        key=st.integers(0, 3),
        counter=st.integers(1, 6),
        is_delete=st.booleans(),
        ttl_s=st.sampled_from([5.0, 50.0]),
    )
    def write(self, key: int, counter: int, is_delete: bool, ttl_s: float) -> Record:
        """A copy that some node has: equal versions have equal contents."""
        value = None if (key + counter) % 3 == 0 else b"%d" % counter
        return record(key=key, counter=counter, value=value, expires_at=10_000.0 if value is None else self.now + ttl_s)

    @rule(copy=copies)
    def receive(self, copy: Record) -> None:
        if copy.expires_at <= self.now:
            assert self.table.merge(copy, self.now) == KEPT
            return
        held = self.model.get(copy.identity)
        self.model[copy.identity] = copy if held is None else merge(held, copy)
        self.table.merge(copy, self.now)

    @rule(copy=copies)
    def drop(self, copy: Record) -> None:
        self.table.drop(copy.identity)
        self.model.pop(copy.identity, None)

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table.lapse(self.now)
        self.model = {identity: held for identity, held in self.model.items() if held.expires_at > self.now}

    @invariant()
    def same(self) -> None:
        assert {one.identity: one for one in self.table} == self.model
        self.table.validate()
        assert Counter(one.value is None for one in self.table)[True] == self.table.tombstones


TestAgainstDict = AgainstDict.TestCase


class CountedLooks(dict[RecordId, tuple[int, int, int]]):
    """What a peer holds, which is nothing, and how often that was looked up."""

    looks = 0

    def get(self, key: RecordId, default: Any = None) -> Any:
        self.looks += 1
        return default


@pytest.mark.parametrize("arc", [WHOLE_RING, Arc(NodeId(0), NodeId(RING - 1)), Arc(NodeId(STEP), NodeId(STEP - 1))])
def test_what_a_peer_lacks_is_looked_for_until_one_message_is_full(arc: Arc) -> None:
    table = filled(*(record(STEP // 100 * number, number + 1) for number in range(1500)))
    theirs = CountedLooks()
    batch, is_partial = first_batch(table.newer(arc, theirs))
    assert is_partial
    assert batch == batches(table.within(arc))[0]
    assert theirs.looks == len(batch) + 1


def test_one_message_has_what_the_first_of_many_would_have() -> None:
    records = [record(number, number, b"x" * size) for number, size in enumerate((1, 40_000, 9_000, 1, 40_000), 1)]
    for count in range(len(records) + 1):
        some = records[:count]
        batch, is_partial = first_batch(iter(some))
        assert batch == (batches(some) or [[]])[0]
        assert is_partial == (len(batch) < count)
