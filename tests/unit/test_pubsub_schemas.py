"""The book of schemas: declaring, looking up, keeping alive, and what it does not believe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peerd.api import NO_VERSION, LocalRecord, RecordOutcome, RecordResult, RecordRole, RecordVersion
from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.matching.index import LeafIndexes
from protocols.pubsub.messages import SubObject
from protocols.pubsub.models import Declared, SchemaEnded
from protocols.pubsub.names import EVERY, schema_key
from protocols.pubsub.schema import book as module
from protocols.pubsub.schema.book import (
    ABSENT_S,
    AGAIN_MAX_S,
    AGAIN_MIN_S,
    DECLARE_TRIES_MAX,
    LOOKUPS_MAX,
    REFRESH_MIN_S,
    SCHEMA_ITEM,
    SCHEMAS_MAX,
    STORE_PREFIX,
    SchemaBook,
)
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.schema.record import SchemaRecord
from protocols.pubsub.service import NotDone
from protocols.pubsub.tree.cells import WHOLE
from tests.support.pubsub_schemas import DOCUMENT, BookPlugin, names

ONE = {**DOCUMENT}
TWO = {**DOCUMENT, "version": 2, "attributes": [*DOCUMENT["attributes"], {"name": "venue", "type": "string"}]}
OTHER = {**DOCUMENT, "version": 3, "attributes": [{"name": "venue", "type": "string"}]}
VERSION = RecordVersion(4, 1, NodeId(9))


def creator(book: SchemaBook) -> str:
    """Whose the only known schema is."""
    [known] = book.known()
    return known.creator


def record_of(document: Any, creator: int = 1, *, is_over: bool = False) -> bytes:
    """A schema as a node has signed it; the one with the rig, unless the test says another."""
    host = FakeHost(creator)
    host.plugin = BookPlugin()
    return SchemaRecord.signed(EventSchema.read(document), host.id, host.sign, is_over=is_over).write()


class Rig:
    """One node's book, and a ring that the test plays."""

    def __init__(self, store: Any = None) -> None:
        self.plugin = BookPlugin()
        self.host = FakeHost(1)
        if store is not None:
            self.host.store = store
        self.host.plugin = self.plugin
        self.plugin.start(self.host)
        self.book = self.plugin.book
        self.answers: list[tuple[Any, str]] = []
        self.taken = 0

    def done(self, schema: EventSchema | None, why: str) -> None:
        self.answers.append((schema, why))

    def told(self, answer: Declared | SchemaEnded | Exception) -> None:
        self.answers.append((None, str(answer)) if isinstance(answer, Exception) else (answer, ""))

    def is_kept(self, name: str) -> bool:
        return self.host.store.get(STORE_PREFIX + name) is not None

    def asked(self, what: str) -> dict[str, Any]:
        """The next thing asked of the records, which has to be this."""
        asked = [each for each in self.host.asked if each.what.startswith("records.")][self.taken :]
        assert asked, f"nothing was asked, {what} was expected"
        self.taken += 1
        assert asked[0].what == f"records.{what}"
        assert asked[0].arguments["item"] == SCHEMA_ITEM
        return asked[0].arguments

    @property
    def is_quiet(self) -> bool:
        return len([each for each in self.host.asked if each.what.startswith("records.")]) == self.taken

    def answer(self, what: str, result: RecordResult) -> dict[str, Any]:
        arguments = self.asked(what)
        arguments["on_result"](result)
        return arguments

    def know(self, document: Any = ONE) -> None:
        """Have the book look a schema up that the ring has."""
        self.book.fetch(document["name"], self.done)
        self.answer("get", found(document))
        self.answers.clear()


def found(document: Any, remaining_s: float = 1700.0) -> RecordResult:
    data = document if isinstance(document, bytes) else record_of(document)
    return RecordResult(RecordOutcome.FOUND, VERSION, data, remaining_s)


ABSENT = RecordResult(RecordOutcome.ABSENT)
STORED = RecordResult(RecordOutcome.STORED, VERSION, copies=3)
UNKNOWN = RecordResult(RecordOutcome.UNKNOWN, detail="timeout")


# --- declaring ------------------------------------------------------------------------------------------------------


def test_a_new_schema_is_replicated_and_kept_on_disk() -> None:
    rig = Rig()
    rig.book.declare(ONE, rig.told)
    assert rig.asked("get")["key"] == schema_key("trades")
    rig.host.asked[-1].arguments["on_result"](ABSENT)
    put = rig.answer("put", STORED)
    assert (put["key"], put["ack"], put["shared"]) == (schema_key("trades"), "replicated", True)
    assert (put["ttl_s"], put["if_version"]) == (PubSubConfig().lease, NO_VERSION)
    assert rig.answers == [(Declared(name="trades", version=1, is_new=True), "")]
    assert (names(rig.book), rig.is_kept("trades")) == (["trades"], True)
    again = Rig(rig.host.store)
    assert names(again.book) == ["trades"]
    assert again.is_kept("trades")


def test_a_later_version_replaces_the_one_that_was_read() -> None:
    rig = Rig()
    rig.book.declare(TWO, rig.told, 1)
    rig.answer("get", found(ONE))
    assert rig.answer("put", STORED)["if_version"] == VERSION
    [(made, _)] = rig.answers
    assert made is not None
    assert made.version == 2


def test_declaring_the_same_again_writes_nothing() -> None:
    rig = Rig()
    rig.book.declare(ONE, rig.told)
    rig.answer("get", found(ONE))
    assert rig.is_quiet
    assert rig.answers[0][0] is not None
    assert rig.is_kept("trades")


@pytest.mark.parametrize(
    ("document", "if_version", "there", "why"),
    [
        (OTHER, None, ONE, "attributes can only be appended"),
        (ONE, None, TWO, "version 2 of trades is known already"),
        (TWO, 0, ONE, "the version of trades is 1, not 0"),
        (TWO, 2, ONE, "the version of trades is 1, not 2"),
        (ONE, 1, None, "the version of trades is 0, not 1"),
    ],
)
def test_conflicts_of_versions_are_told(document: Any, if_version: int | None, there: Any, why: str) -> None:
    rig = Rig()
    rig.book.declare(document, rig.told, if_version)
    rig.answer("get", ABSENT if there is None else found(there))
    assert rig.is_quiet
    [(made, said)] = rig.answers
    assert made is None
    assert why in said


def test_what_this_node_knows_counts_when_the_ring_has_lost_it() -> None:
    rig = Rig()
    rig.know(ONE)
    rig.book.declare(OTHER, rig.told)
    rig.answer("get", ABSENT)
    assert rig.is_quiet
    assert "attributes can only be appended" in rig.answers[0][1]


def test_a_race_is_decided_by_reading_again_and_ends() -> None:
    rig = Rig()
    rig.book.declare(TWO, rig.told)
    for _ in range(DECLARE_TRIES_MAX):
        rig.answer("get", found(ONE))
        rig.answer("put", RecordResult(RecordOutcome.CONFLICT, VERSION, detail="if_version"))
    assert rig.is_quiet
    assert rig.answers == [(None, "whether trades is declared is not certain: if_version")]


def test_an_invalid_document_is_refused_at_once() -> None:
    rig = Rig()
    with pytest.raises(NotDone, match=r"attributes\.a\.low"):
        rig.book.declare({"name": "s", "attributes": [{"name": "a", "type": "int"}]}, rig.told)
    assert rig.is_quiet


def test_trouble_with_the_ring_or_the_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.book.declare(ONE, rig.told)
    rig.answer("get", UNKNOWN)
    assert rig.answers.pop() == (None, "trades cannot be declared now: timeout")

    def refuse(*arguments: Any, **options: Any) -> None:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.host.records, "get", refuse)
        rig.book.declare(ONE, rig.told)
        assert rig.answers.pop() == (None, "trades cannot be declared now: the disk is full")
    monkeypatch.setattr(rig.host.store, "put", refuse)
    rig.book.declare(ONE, rig.told)
    rig.answer("get", ABSENT)
    rig.answer("put", STORED)
    assert rig.answers.pop() == (Declared(name="trades", version=1, is_new=True), ""), "without a copy on this disk"
    assert not rig.is_kept("trades")


# --- looking up -----------------------------------------------------------------------------------------------------


def test_lookups_of_one_name_are_one() -> None:
    rig = Rig()
    for _ in range(3):
        rig.book.fetch("trades", rig.done)
    rig.answer("get", found(ONE))
    assert rig.is_quiet
    assert [schema and schema.name for schema, _ in rig.answers] == ["trades"] * 3
    rig.book.fetch("trades", rig.done)
    assert rig.is_quiet, "what is known is given at once"
    assert len(rig.answers) == 4


def test_a_name_without_a_schema_is_not_looked_up_again_for_a_while() -> None:
    rig = Rig()
    rig.book.fetch("none", rig.done)
    rig.answer("get", ABSENT)
    rig.book.fetch("none", rig.done)
    assert rig.is_quiet
    assert rig.answers == [(None, "there is no schema none: declare it first (peerd schema declare FILE)")] * 2
    rig.host.time_s += ABSENT_S + 1
    rig.book.fetch("none", rig.done)
    rig.asked("get")


def test_an_answer_that_is_none_is_not_remembered() -> None:
    rig = Rig()
    rig.book.fetch("trades", rig.done)
    rig.answer("get", UNKNOWN)
    assert rig.answers == [(None, "the schema trades cannot be looked up now: timeout")]
    rig.book.fetch("trades", rig.done)
    rig.asked("get")


def test_names_made_up_by_strangers_cost_a_bounded_number_of_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for number in range(LOOKUPS_MAX + 10):
        rig.book.fetch(f"s{number}", rig.done)
    assert rig.answers == [(None, "too many schemas are being looked up: try again")] * 10
    monkeypatch.setattr(module, "WAITERS_MAX", LOOKUPS_MAX)
    rig.book.fetch("s0", rig.done)
    assert len(rig.answers) == 11
    rig.book.fetch("x" * 65, rig.done)
    rig.book.fetch("", rig.done)
    for (_, why), name in zip(rig.answers[11:], ("x" * 64, ""), strict=True):
        assert why.startswith(f"there is no schema {name}: ")
    for _ in range(LOOKUPS_MAX):
        rig.answer("get", ABSENT)
    assert rig.is_quiet


def test_what_is_not_used_for_longest_is_forgotten_for_another() -> None:
    rig = Rig()
    rig.book.declare({**ONE, "name": "own"}, rig.told)
    rig.answer("get", ABSENT)
    rig.answer("put", STORED)
    for number in range(SCHEMAS_MAX):
        rig.host.time_s += 1
        rig.know({**ONE, "name": f"s{number:03}"})
    assert len(names(rig.book)) == SCHEMAS_MAX
    assert rig.book.get("s000") is None
    assert rig.book.get("own") is not None
    assert len(rig.host.timers) == SCHEMAS_MAX


def test_the_filters_of_a_schema_are_read_by_its_last_version_also_when_it_was_forgotten_meanwhile() -> None:
    rig = Rig()
    indexes = LeafIndexes(rig.book)
    assert indexes.of("trades") is None
    rig.know(ONE)
    index = indexes.of("trades")
    assert index is not None and index.schema.version == 1
    sub = SubObject(peer(1), 1, 0, 1, EVERY, 0, 0, "TRUE")
    index.add(sub.key, (EVERY, WHOLE), sub)
    rig.host.time_s += 2 * PubSubConfig().lease + 1
    rig.book.renew("trades")
    assert names(rig.book) == [] and indexes.of("trades") is index, "its leaves have filters all the same"
    rig.know(TWO)
    assert indexes.of("trades") is index and index.schema.version == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"rubbish", "is not valid: the record of a schema"),
        (record_of({**ONE, "name": "other"}), "the ring keeps other in the place of"),
    ],
)
def test_rubbish_in_the_ring_is_no_schema(data: bytes, why: str) -> None:
    rig = Rig()
    rig.book.fetch("trades", rig.done)
    rig.answer("get", found(data))
    [(schema, said)] = rig.answers
    assert schema is None
    assert why in said
    assert names(rig.book) == []


def test_a_later_version_is_found_by_whoever_asks_for_it() -> None:
    rig = Rig()
    rig.know(ONE)
    rig.book.refresh("trades", rig.done)
    assert rig.is_quiet, "it was looked up a moment ago"
    rig.host.time_s += REFRESH_MIN_S
    rig.book.refresh("trades", rig.done)
    rig.answer("get", found(TWO))
    schema = rig.book.get("trades")
    assert schema is not None
    assert schema.version == 2
    assert rig.answers[-1] == (schema, "")


def test_a_later_version_that_contradicts_what_is_known_is_not_believed() -> None:
    rig = Rig()
    rig.know(ONE)
    rig.host.time_s += REFRESH_MIN_S
    rig.book.refresh("trades", rig.done)
    rig.answer("get", found(OTHER))
    schema, _ = rig.answers[-1]
    assert schema is not None
    assert schema.version == 1


# --- keeping alive --------------------------------------------------------------------------------------------------


def renewed(rig: Rig, result: RecordResult) -> None:
    rig.host.fire("schema_renewal", "trades")
    rig.answer("get", result)


@pytest.mark.parametrize(
    ("mine", "result", "over"),
    [
        (ONE, ABSENT, NO_VERSION),
        (ONE, found(ONE, remaining_s=800), VERSION),
        (ONE, found(b"rubbish"), VERSION),
        (TWO, found(ONE), VERSION),
    ],
)
def test_a_record_that_is_gone_or_old_is_written_again(mine: Any, result: RecordResult, over: RecordVersion) -> None:
    rig = Rig()
    rig.know(mine)
    renewed(rig, result)
    put = rig.asked("put")
    assert put["value"] == record_of(mine)
    assert put["if_version"] == over
    assert ("schema_renewal", "trades") in rig.host.timers


@pytest.mark.parametrize("result", [found(ONE), found(TWO), found(OTHER), UNKNOWN])
def test_a_record_that_is_fresh_or_contradicts_is_left_alone(result: RecordResult) -> None:
    rig = Rig()
    rig.know(ONE)
    renewed(rig, result)
    assert rig.is_quiet


def due_s(rig: Rig) -> float:
    """In how many seconds the record is looked at again."""
    return rig.host.timers["schema_renewal", "trades"] - rig.host.time_s


def test_a_ring_that_cannot_answer_yet_is_asked_again_soon_and_ever_less_often() -> None:
    rig = Rig()
    rig.know(ONE)
    pauses = []
    for result in (RecordResult(RecordOutcome.NOT_ROOT), *[UNKNOWN] * 20):
        renewed(rig, result)
        pauses.append(due_s(rig))
    assert pauses[0] <= 1.2 * AGAIN_MIN_S
    assert 0.8 * AGAIN_MAX_S <= pauses[-1] <= 1.2 * AGAIN_MAX_S
    renewed(rig, ABSENT)
    rig.answer("put", UNKNOWN)
    assert 0.8 * AGAIN_MAX_S <= due_s(rig) <= 1.2 * AGAIN_MAX_S
    renewed(rig, ABSENT)
    rig.answer("put", STORED)
    assert due_s(rig) > 2 * AGAIN_MAX_S
    renewed(rig, UNKNOWN)
    assert due_s(rig) <= 1.2 * AGAIN_MIN_S


def test_a_schema_that_nobody_here_uses_is_forgotten_unless_it_was_declared_here() -> None:
    rig = Rig()
    rig.know(ONE)
    rig.host.time_s += 2 * PubSubConfig().lease + 1
    rig.host.fire("schema_renewal", "trades")
    assert names(rig.book) == []
    assert rig.host.timers == {}
    rig.book.declare(ONE, rig.told)
    rig.answer("get", ABSENT)
    rig.answer("put", STORED)
    rig.host.time_s += 2 * PubSubConfig().lease + 1
    rig.host.fire("schema_renewal", "trades")
    rig.asked("get")
    assert names(rig.book) == ["trades"]


def test_a_damaged_copy_on_disk_is_told_and_left_out() -> None:
    rig = Rig()
    rig.host.store.put("schema.trades", b"{")
    rig.host.store.put("other", b"{")
    again = Rig(rig.host.store)
    assert names(again.book) == []


# --- other nodes' writes --------------------------------------------------------------------------------------------


def held(rig: Rig, document: Any) -> None:
    key = schema_key("trades")
    data = record_of(document)
    rig.host.records.here[key, SCHEMA_ITEM] = LocalRecord(key, data, VERSION, 100.0, RecordRole.REPLICA, SCHEMA_ITEM)


@pytest.mark.parametrize("before", [held, Rig.know])
def test_a_holder_takes_only_what_extends_the_schema(before: Callable[[Rig, Any], None]) -> None:
    rig, key = Rig(), schema_key("trades")

    def may(document: Any) -> bool:
        return rig.book.may_write(key, record_of(document))

    assert may(OTHER), "nothing is known yet"
    before(rig, ONE)
    assert may(ONE)
    assert may(TWO)
    assert not may(OTHER)
    assert not may({**ONE, "name": "other"})
    assert not rig.book.may_write(key, b"rubbish")
    assert not rig.book.may_write(key, None)


def test_a_holder_does_not_go_back_to_an_older_version() -> None:
    rig = Rig()
    held(rig, TWO)
    assert not rig.book.may_write(schema_key("trades"), record_of(ONE))


# --- whose it is ----------------------------------------------------------------------------------------------------

MALLORY = 7
LAST = {**OTHER, "version": (1 << 32) - 1}
"""What once took a schema away from everybody for good: nothing follows this version."""


@pytest.mark.parametrize("forged", [TWO, OTHER, LAST, {**TWO, "version": (1 << 32) - 1}])
@pytest.mark.parametrize("before", [held, Rig.know])
def test_another_node_makes_no_version_of_a_schema(before: Callable[[Rig, Any], None], forged: Any) -> None:
    rig, key = Rig(), schema_key("trades")
    before(rig, ONE)
    assert not rig.book.may_write(key, record_of(forged, MALLORY)), "neither as its own"
    head = len(record_of(forged, MALLORY)) - len(EventSchema.read(forged).document.to_json())
    assert not rig.book.may_write(key, record_of(ONE)[:head] + EventSchema.read(forged).document.to_json()), (
        "nor as ours"
    )
    assert not rig.book.may_write(key, record_of(ONE, MALLORY, is_over=True)), "nor its end"
    rig.host.time_s += REFRESH_MIN_S
    rig.book.refresh("trades", rig.done)
    rig.answer("get", found(record_of(forged, MALLORY)))
    schema, _ = rig.answers[-1]
    if before is Rig.know:
        assert schema is not None and schema.version == 1, "the root's word does not change what is known"


@pytest.mark.parametrize("version", [3, (1 << 32) - 1])
def test_versions_are_declared_one_after_the_other(version: int) -> None:
    rig = Rig()
    rig.book.declare({**TWO, "version": version}, rig.told)
    rig.answer("get", found(ONE))
    assert rig.is_quiet
    assert rig.answers == [(None, "version 1 of trades is known: the next one is 2")]


def test_who_has_not_made_it_cannot_change_or_end_it_and_may_keep_it_alive() -> None:
    rig = Rig()
    rig.book.declare(TWO, rig.told)
    rig.answer("get", found(record_of(ONE, 2)))
    rig.book.fetch("trades", rig.done)
    rig.answer("get", found(record_of(ONE, 2)))
    rig.book.end("trades", rig.told)
    assert rig.is_quiet
    assert [f"belongs to node {2:032x}" in why for _, why in (rig.answers[0], rig.answers[2])] == [True, True]
    rig.book.declare(ONE, rig.told)
    rig.answer("get", ABSENT)
    assert rig.answer("put", STORED)["value"] == record_of(ONE, 2), "with the proof of its creator"
    assert rig.is_kept("trades") and creator(rig.book) == format_id(NodeId(2))


def test_a_schema_is_ended_by_its_creator_and_its_name_is_free_afterwards() -> None:
    rig, other = Rig(), Rig()
    rig.book.declare(ONE, rig.told)
    rig.answer("get", ABSENT)
    rig.answer("put", STORED)
    other.know(ONE)
    rig.host.time_s += REFRESH_MIN_S
    rig.book.end("trades", rig.told)
    rig.answer("get", found(ONE))
    rig.answer("get", found(ONE))
    put = rig.answer("put", STORED)
    assert put["value"] == record_of(ONE, is_over=True) and rig.answers[-1][0] is not None
    assert names(rig.book) == [] and names(Rig(rig.host.store).book) == []
    assert other.book.may_write(schema_key("trades"), put["value"])
    renewed(other, found(put["value"]))
    assert names(other.book) == [] and other.is_quiet, "it is not written again"
    held_end = record_of(ONE, is_over=True)
    key = schema_key("trades")
    other.host.records.here[key, SCHEMA_ITEM] = LocalRecord(
        key, held_end, VERSION, 100.0, RecordRole.REPLICA, SCHEMA_ITEM
    )
    assert not other.book.may_write(key, record_of(ONE)), "an old version shown again brings nothing back"
    assert not other.book.may_write(key, record_of(OTHER, MALLORY)), "while its end is told, it is its creator's"
    assert other.book.may_write(key, record_of(OTHER))
    del other.host.records.here[key, SCHEMA_ITEM]
    assert other.book.may_write(key, record_of(OTHER, MALLORY))


def test_operators_take_a_schema_back_by_denying_who_has_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody was the first to use the name. What a member signed that is denied now proves nothing."""
    rig, key = Rig(), schema_key("trades")
    rig.book.fetch("trades", rig.done)
    rig.answer("get", found(record_of(LAST, MALLORY)))
    rig.book.declare(ONE, rig.told)
    rig.answer("get", found(record_of(LAST, MALLORY)))
    assert "where that node was denied (peerd deny), its name is free" in rig.answers[-1][1]
    verify = rig.host.verify
    monkeypatch.setattr(rig.host, "verify", lambda signer, *said: signer != NodeId(MALLORY) and verify(signer, *said))
    assert not rig.book.may_write(key, record_of(LAST, MALLORY))
    assert rig.book.may_write(key, record_of(ONE, 2))
    rig.book.declare(ONE, rig.told)
    rig.answer("get", found(record_of(LAST, MALLORY)))
    rig.answer("put", STORED)
    schema, why = rig.answers[-1]
    assert schema is not None and (schema.version, creator(rig.book)) == (1, format_id(NodeId(1))), why
