"""The record of a stream, what clients may give as a place in it, and the search for a parent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from peerd.errors import ConfigError, ProtocolError
from peerd.ids import NodeId
from peerd.limits import HOST_LENGTH_MAX
from peerd.messages import PeerRef, decode_body, encode_body, encode_struct
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.manifest import CHUNK_BYTES_MIN, Attachment
from protocols.dissemination.loading import load_kind, load_policy
from protocols.dissemination.messages import (
    CONTENT_TYPE_MAX,
    DEPTH_MAX,
    ITEM_BYTES_MAX,
    LARGE_FROM_BYTES,
    NODE_BYTES_MAX,
    PLACES_TOLD_MAX,
    Begin,
    Declined,
    ItemBatch,
    MoveAway,
    Reserved,
    StreamItem,
    TreeAnswer,
    TreeHeartbeat,
)
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import (
    PLACE_MAX,
    START,
    TERM_MAX,
    TERM_SHIFT,
    StreamPosition,
    epoch_of,
    position_of,
    position_text,
    stream_key,
)
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.statistics.received import ReceivedItems
from protocols.dissemination.stream import (
    FORMER_MAX,
    RECORD_BYTES_MAX,
    SEEDS_MAX,
    STANDBYS_MAX,
    FormerProducer,
    SeedRef,
    StreamRecord,
    decode_record,
)
from protocols.dissemination.subscriptions import FORGET_S, StreamSubscriptions
from protocols.dissemination.tree.search import TRIES_MAX, MoveEnd, Offer, ParentSearch, Question

PEERS = [PeerRef(NodeId(i + 1), "127.0.0.1", 7000 + i) for i in range(200)]
SPEC = StreamSpec(name="news", kind="classes", policy="first_fit", settings={"delta": 0.2, "on": True})
RECORD = StreamRecord.of(SPEC, PEERS[0])
KEY = stream_key("news")


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan"), float("inf"), "x" * 300])
def test_a_setting_that_no_record_can_have_is_refused_in_one_line(value: object) -> None:
    spec = SPEC.model_copy(update={"settings": {"delta": value}})
    with pytest.raises(ValueError, match="delta") as refused:
        StreamRecord.of(spec, PEERS[0])
    assert "\n" not in str(refused.value)


def test_a_setting_that_a_policy_does_not_have_is_named_with_those_that_it_has() -> None:
    for policy in ("overlap", "cost"):
        with pytest.raises(ValueError, match=r"^speed: the policy has no such setting; it has [a-z_]+, "):
            load_policy(policy).settings({"speed": 1})


def test_a_record_comes_back_as_it_was_written() -> None:
    with_seeds = RECORD.model_copy(update={"seeds": (SeedRef.of(PEERS[1]), SeedRef.of(PEERS[2]))})
    found = decode_record(with_seeds.encode(), KEY, PEERS[0].id)
    assert found == with_seeds
    assert found.seed_peers == (PEERS[1], PEERS[2]) and RECORD.seed_peers == (PEERS[0],)
    assert found.says_the_same(RECORD) and len(found.encode()) < RECORD_BYTES_MAX


@pytest.mark.parametrize(
    ("change", "owner"),
    [
        ({"name": "other"}, PEERS[0].id),
        ({"name": "../x"}, PEERS[0].id),
        ({"kind": "../../kind"}, PEERS[0].id),
        ({"policy": 7}, PEERS[0].id),
        ({"producer_gone": "explode"}, PEERS[0].id),
        ({"seeds": [{"id": "zz", "host": "h", "port": 1}]}, PEERS[0].id),
        ({"seeds": [{"id": "0" * 32, "host": "h", "port": 1}] * 9}, PEERS[0].id),
        ({"settings": {"x": {"deep": []}}}, PEERS[0].id),
        ({}, PEERS[1].id),
        ({}, None),
    ],
)
def test_a_record_that_no_producer_writes_is_not_believed(change: dict[str, Any], owner: NodeId | None) -> None:
    data = json.dumps({**json.loads(RECORD.encode()), **change}).encode()
    with pytest.raises(ProtocolError):
        decode_record(data, KEY, owner)


@given(st.binary(max_size=300))
def test_any_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(data, KEY, PEERS[0].id)


def test_a_record_that_is_too_large_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="is the limit"):
        StreamRecord.of(SPEC.model_copy(update={"settings": {f"k{i}": "x" * 250 for i in range(60)}}), PEERS[0])


def test_a_record_that_is_made_has_room_for_all_nodes_that_may_be_in_it() -> None:
    size = 1
    with pytest.raises(ValueError, match="is the limit"):
        while True:
            spec = SPEC.model_copy(
                update={"settings": {f"k{at}": "x" * size for at in range(20)}, "producer_gone": "hand-over"}
            )
            record = StreamRecord.of(spec, PEERS[0])
            size += 1
    far = SeedRef(id="f" * 32, host="h" * 253, port=65535)
    former = (FormerProducer(id="f" * 32, term=TERM_MAX),) * FORMER_MAX
    nodes = {"producer": far, "seeds": (far,) * SEEDS_MAX, "standbys": (far,) * STANDBYS_MAX}
    full = {**nodes, "former": former, "term": TERM_MAX}
    assert size > 50 and len(record.model_copy(update=full).encode()) > 0.9 * RECORD_BYTES_MAX


def test_messages_that_name_nodes_have_room_for_the_longest_names() -> None:
    key, most = stream_key("news"), (1 << 64) - 1
    far = [PeerRef(NodeId((1 << 127) + number), "h" * HOST_LENGTH_MAX, 65535) for number in range(DEPTH_MAX)]
    for message in (
        Declined(key, most, 0, tuple(far[:32]), "x" * 256),
        TreeHeartbeat(key, StreamPosition(most, most), tuple(far), most, most),
        Reserved(key, far[0].id, False, tuple(far[:PLACES_TOLD_MAX])),
        MoveAway(key, most, tuple(far[:4])),
        TreeAnswer(key, bytes(NODE_BYTES_MAX), tuple(far)),
    ):
        encode_body(message)


def test_the_host_of_a_seed_is_limited_in_bytes() -> None:
    """The size of a record is reckoned with so many bytes a node (SPEC_BYTES_MAX)."""
    assert SeedRef(id="f" * 32, host="h" * 253, port=1).host == "h" * 253
    with pytest.raises(ValidationError, match="more than 253 bytes"):
        SeedRef(id="f" * 32, host="ж" * 127, port=1)


@given(st.integers(0, PLACE_MAX), st.integers(0, PLACE_MAX))
def test_a_place_in_a_stream_comes_back_from_its_text(epoch: int, sequence: int) -> None:
    assert position_of(position_text(StreamPosition(epoch, sequence))) == StreamPosition(epoch, sequence)


@pytest.mark.parametrize("text", ["", "x", "1", "1-", "-1", "1-2-3", "١-1", f"{1 << 64}-1", "9" * 50 + "-1"])
def test_other_texts_are_no_places(text: str) -> None:
    with pytest.raises(ValueError, match="item"):
        position_of(text)


@pytest.mark.parametrize(("epoch", "sequence"), [(1, 0), (1, PLACE_MAX + 1), (PLACE_MAX + 1, 1), (1, (1 << 64) - 1)])
def test_an_item_at_a_place_that_no_stream_has_is_refused(epoch: int, sequence: int) -> None:
    with pytest.raises(ProtocolError):
        StreamItem.unpack(StreamItem.of(epoch, sequence, 5, b"x").packed)


REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "no array": encode_struct(StreamItem.of(1, 1, 5, b"x").body)[1:],
    "too short": msgpack.packb([1, 1, 5]),
    "a text as its payload": msgpack.packb([1, 1, 5, "x"]),
    "a number as its type": msgpack.packb([1, 1, 5, b"x", 7]),
    "a long type": msgpack.packb([1, 1, 5, b"x", "t" * (CONTENT_TYPE_MAX + 1)]),
    "a large payload": msgpack.packb([1, 1, 5, bytes(ITEM_BYTES_MAX + 1)]),
    "a time before 1970": msgpack.packb([1, 1, -5, b"x"]),
    "two items": StreamItem.of(1, 1, 5, b"x").packed * 2,
    "a manifest of nothing": StreamItem.of(1, 1, 5, b"x", "", Attachment("f", 0, CHUNK_BYTES_MIN, b"")).packed,
}


@pytest.mark.parametrize("packed", REFUSED.values(), ids=list(REFUSED))
def test_bytes_that_are_no_item_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        StreamItem.unpack(packed)


def test_an_item_goes_on_with_what_a_later_version_has_added_to_it() -> None:
    later = msgpack.packb([1, 1, 5, b"x", "", None, "something new"])
    item = StreamItem.unpack(later)
    item.rest()
    assert (item.packed, item.payload, item.body) == (later, b"x", StreamItem.of(1, 1, 5, b"x").body)


def test_a_message_has_no_item_that_had_to_come_in_parts() -> None:
    for size, is_small in ((LARGE_FROM_BYTES, True), (LARGE_FROM_BYTES + 1, False)):
        carried = encode_body(ItemBatch(stream_key("news"), (bytes(size),), StreamPosition(1, 1)))
        if is_small:
            decode_body(ItemBatch, carried)
        else:
            with pytest.raises(ProtocolError):
                decode_body(ItemBatch, carried)


def test_a_mark_may_be_before_the_first_item_and_not_after_the_last() -> None:
    for place in (StreamPosition(0, 0), StreamPosition(7, 0), StreamPosition(PLACE_MAX, PLACE_MAX)):
        mark = Begin(stream_key("news"), 1, place)
        assert decode_body(Begin, encode_body(mark)) == mark and position_of(position_text(place)) == place
    for place in (StreamPosition(0, PLACE_MAX + 1), StreamPosition(PLACE_MAX + 1, 0)):
        with pytest.raises(ProtocolError):
            decode_body(Begin, encode_body(Begin(stream_key("news"), 1, place)))


def test_the_last_places_that_a_stream_can_have_are_counted_as_others_are() -> None:
    received = ReceivedItems(1000)
    for number in (PLACE_MAX - 1, PLACE_MAX):
        received.passed(StreamPosition(epoch_of(TERM_MAX, (1 << TERM_SHIFT) - 1), number), True, [])
    assert epoch_of(TERM_MAX, (1 << TERM_SHIFT) - 1) == PLACE_MAX
    assert received.spurious_share(100) == 0.0 and len(received.needed().items) == 2


def test_start_is_before_everything() -> None:
    assert position_of("start") == START


def test_what_is_not_installed_is_named_with_what_is() -> None:
    with pytest.raises(ConfigError, match="first_fit"):
        load_policy("nonesuch")
    assert load_kind("classes").name == "classes"
    with pytest.raises(ValueError, match="no settings"):
        load_policy("first_fit").settings({"a": 1})


def search_of(refused: set[NodeId] | None = None) -> tuple[ParentSearch, list[PeerRef]]:
    asked: list[PeerRef] = []

    def move_to(peer: PeerRef) -> bool:
        if peer.id in (refused or ()):
            return False
        asked.append(peer)
        return True

    return ParentSearch(move_to, lambda: 0.5), asked


def begun(search: ParentSearch, candidates: Sequence[PeerRef]) -> list[bool]:
    over: list[bool] = []
    search.begin(candidates, over.append)
    return over


def test_a_search_goes_down_before_it_goes_on() -> None:
    search, asked = search_of()
    over = begun(search, PEERS[:2])
    search.ended(PEERS[0], MoveEnd.DECLINED, (PEERS[5], PEERS[6]))
    search.ended(asked[-1], MoveEnd.DECLINED, (PEERS[0],))  # nobody is asked twice
    search.ended(asked[-1], MoveEnd.SILENT, ())
    assert {peer.id for peer in asked[1:3]} == {PEERS[5].id, PEERS[6].id}
    assert asked[3] == PEERS[1] and not over
    assert search.ended(PEERS[1], MoveEnd.MOVED, ())
    assert over == [True] and not search.is_active


def test_a_search_ends_when_nobody_is_left_or_too_many_were_asked() -> None:
    search, asked = search_of({PEERS[0].id})
    over = begun(search, PEERS)
    while search.current is not None:
        search.ended(search.current, MoveEnd.DECLINED, ())
    assert over == [False] and len(asked) == TRIES_MAX - 1


def test_the_end_of_another_move_is_not_the_searchs() -> None:
    search, _ = search_of()
    over = begun(search, PEERS[:1])
    assert not search.ended(PEERS[3], MoveEnd.MOVED, ())
    assert not over and search.current == PEERS[0]


def asking_search(**limits: Any) -> tuple[ParentSearch, list[PeerRef], list[PeerRef]]:
    asked: list[PeerRef] = []
    tried: list[PeerRef] = []

    def move_to(peer: PeerRef) -> bool:
        tried.append(peer)
        return True

    question = Question(NodeId(1 << 100), asked.append, 1.0, **limits)
    return ParentSearch(move_to, lambda: 0.5, question=question), asked, tried


def test_a_search_with_a_question_goes_down_along_the_best_and_tries_offers_by_their_score() -> None:
    search, asked, tried = asking_search(asked_max=6)
    search.look(PEERS[:3], PEERS[9], 0.0)
    search.answered(1, PEERS[0].id, Offer(PEERS[0], 0.5), (PEERS[3],))
    search.answered(1, PEERS[1].id, Offer(PEERS[1], 0.7), (PEERS[4],))  # worse: nobody below it is asked
    search.answered(1, PEERS[1].id, Offer(PEERS[1], 0.0), (PEERS[4],))  # twice, as the network repeats messages
    search.answered(1, PEERS[2].id, None, (PEERS[5], PEERS[0], PEERS[6], PEERS[7]))
    assert asked == [*PEERS[:4], PEERS[5], PEERS[6]] and not tried
    search.answered(1, PEERS[5].id, Offer(PEERS[5], 0.5, depth=-1))
    search.tick(0.9)
    assert not tried
    search.tick(1.0)
    search.ended(tried[-1], MoveEnd.DECLINED, (PEERS[8], PEERS[2]))  # the last had no room when it was asked
    search.answered(1, PEERS[6].id, Offer(PEERS[6], 0.0))  # too late
    while search.current is not None:
        search.ended(search.current, MoveEnd.SILENT, ())
    assert tried == [PEERS[5], PEERS[0], PEERS[1], PEERS[8]]


def test_what_was_asked_counts_no_more_once_another_search_has_begun() -> None:
    search, asked, tried = asking_search()
    search.look([], PEERS[9], 0.0)
    search.look(PEERS, PEERS[9], 0.0)
    assert asked == [PEERS[9]], "a search is under way"
    search.begin([PEERS[1]])
    search.answered(1, PEERS[9].id, Offer(PEERS[9], 0.0))
    search.tick(5.0)
    search.ended(PEERS[1], MoveEnd.MOVED, ())
    search.look([], PEERS[8], 6.0)
    search.answered(1, PEERS[8].id, Offer(PEERS[9], 0.0))
    assert tried == [PEERS[1]]
    search.answered(2, PEERS[8].id, Offer(PEERS[3], 0.0))
    assert tried == [PEERS[1], PEERS[3]]


def fixed_host() -> Any:
    class FixedHost:
        rng = Random(1)

        def new_epoch(self) -> str:
            return "epoch"

        def now(self) -> float:
            return 0.0

    return FixedHost()


def test_what_readers_have_had_is_let_go_in_time_but_not_of_a_subscription_with_a_name() -> None:
    clients = StreamSubscriptions(fixed_host(), DisseminationConfig)
    interest = load_kind("classes").parse("a")
    named, other = (clients.make("news", interest, "classes", name, None) for name in ("n", ""))
    readers = [each.feed.reader("start") for each in (named, other)]
    for each in (named, other):
        each.begin_anew(StreamPosition(1, 1))
    assert all(reader.take() is not None for reader in readers)
    held = []
    for now in (0.0, FORGET_S - 1, FORGET_S, FORGET_S + 1):
        clients.forget_read(now)
        held.append((len(named.feed), len(other.feed)))
    assert held == [(1, 1), (1, 1), (1, 0), (1, 0)]


def test_a_name_leads_to_the_newest_subscription_and_an_id_to_its_own() -> None:
    clients = StreamSubscriptions(fixed_host(), DisseminationConfig)
    interest = load_kind("classes").parse("a")
    old, new, other = [clients.make("news", interest, "classes", name, None) for name in ("n", "n", "")]
    assert clients.named("n") is new and clients.named("") is None
    assert [clients.get(each.id) for each in (old, new, other)] == [old, new, other]
    clients.remove(old)
    assert clients.named("n") is new
    clients.remove(new)
    assert clients.named("n") is None
    for id in (new.id, "", "n", "-1", f"0x{other.id}", other.id.upper() + " ", "١"):
        with pytest.raises(StreamRefused):
            clients.get(id)
