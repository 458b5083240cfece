"""Many records under one key: limits, order, ranges and digests of the table."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from peerd.ids import RING, NodeId
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import RecordRequest
from peerd.services.records.record import Record, RecordId
from peerd.services.records.table import CHANGED, RecordTable
from peerd.services.records.view import ITEM_BITS, PLACES, WHOLE_RING, Arc
from peerd.wire.codec import decode
from peerd.wire.frames import FrameDecoder
from tests.unit.test_records_table import filled, record, small

KEY = NodeId(1)
OLD_REQUEST = (
    "510060000000003f9a01a57465787432c41003000000000000000000000000000003040506c40137cb40210000"
    "00000000c3930102c41003000000000000000000000000000003"
)


def item(number: int, counter: int = 0, *, key: int = KEY, value: bytes | None = b"v", origin: int = 5) -> Record:
    one = record(key=key, counter=counter or number + 1, value=value, origin=origin)
    return replace(one, item=b"item %d" % number)


def arc_of(key: NodeId) -> Arc:
    """Return the arc that holds everything under one key."""
    return Arc.of_places(key << ITEM_BITS, (key + 1) << ITEM_BITS)


def test_items_are_records_of_their_own() -> None:
    table = filled(*(item(number) for number in range(10)), record(counter=20))
    table.merge(item(3, counter=30, value=None), 0.0)
    assert [one.item for one in table.items(KEY, "tests")] == sorted([b"", *(b"item %d" % n for n in range(10))])
    assert table.get(RecordId(KEY, "tests")) == record(counter=20)
    assert table.tombstones == 1 and len(table) == 11
    table.drop(item(5).identity)
    assert table.get(item(5).identity) is None and len(table) == 10
    assert table.items(KEY, "another") == [] and table.items(NodeId(2), "tests") == []
    table.validate()


def test_a_key_has_a_limit_for_items_and_for_bytes() -> None:
    table = small(key_items_max=3)
    verdicts = [table.merge(item(number, origin=number), 0.0) for number in range(4)]
    assert verdicts == [CHANGED, CHANGED, CHANGED, "key_items"]
    assert table.merge(replace(item(4), namespace="other"), 0.0) == CHANGED, "another plugin has its own"
    assert table.merge(item(4, key=2), 0.0) == CHANGED
    assert table.merge(item(0, counter=9, value=None), 0.0) == CHANGED
    assert table.merge(item(1, counter=9, value=b"changed"), 0.0) == CHANGED
    table = small(key_bytes_max=1024)
    assert [table.merge(item(number, value=b"x" * 300), 0.0) for number in range(2)] == [CHANGED, "key_bytes"]
    assert table.merge(item(0, counter=9, value=b"x" * 100), 0.0) == CHANGED
    assert table.merge(item(1, value=b"x" * 100), 0.0) == CHANGED
    table.validate()


@given(st.lists(st.integers(0, 200), unique=True, max_size=60), st.integers(1, 64), st.integers(1, 40))
def test_parts_and_pages_of_one_key_have_each_item_once(numbers: list[int], parts: int, limit: int) -> None:
    table = filled(*(item(number) for number in numbers), record(key=0), record(key=2))
    arc, found = arc_of(KEY), list[bytes]()
    for number in range(parts):
        part = arc.part(number, parts)
        while part.low_place != part.high_place:
            page = table.within(part, limit)
            found += [one.item for one in page]
            if len(page) < limit:
                break
            part = Arc.of_places(page[-1].identity.place + 1, part.high_place)
    assert sorted(found) == sorted(b"item %d" % number for number in numbers)
    count, first, last = table.extent(arc)
    assert count == len(numbers)
    if numbers:
        assert len(table.within(Arc.of_places(first, last + 1))) == count


def test_a_range_over_zero_has_an_extent() -> None:
    table = filled(*(record(key=key) for key in (5, RING - 5, RING - 9, RING // 2)))
    low, high = RecordId(NodeId(RING - 9), "tests").place, RecordId(NodeId(5), "tests").place
    assert table.extent(Arc(NodeId(RING - 20), NodeId(20))) == (3, low, high)
    assert table.extent(Arc(NodeId(RING - 4), NodeId(2))) == (0, -1, -1)
    assert table.extent(WHOLE_RING)[0] == 4
    assert RecordTable(RecordsConfig()).extent(WHOLE_RING) == (0, -1, -1)


def test_one_changed_item_changes_one_digest_of_its_key() -> None:
    ours = filled(*(item(number) for number in range(1000)))
    theirs = filled(*(item(number) for number in range(1000)))
    theirs.merge(item(77, counter=5000), 0.0)
    pairs = enumerate(zip(ours.digests(arc_of(KEY), 64), theirs.digests(arc_of(KEY), 64), strict=True))
    [part] = [number for number, (one, other) in pairs if one != other]
    place = item(77).identity.place
    assert part == (place - (KEY << ITEM_BITS)) * 64 >> ITEM_BITS
    assert 5 < len(ours.within(arc_of(KEY).part(part, 64))) < 40, "the hash spreads them"


def test_places_keep_the_order_of_keys_and_tell_items_and_namespaces_apart() -> None:
    places = [RecordId(NodeId(key), name, name.encode()).place for key in (1, 2, RING - 1) for name in ("a", "b")]
    assert [place >> ITEM_BITS for place in places] == [1, 1, 2, 2, RING - 1, RING - 1]
    assert len(set(places)) == 6 and max(places) < PLACES
    assert RecordId(KEY, "a", b"b").place != RecordId(KEY, "b", b"a").place


def test_a_request_of_before_there_were_items_is_for_the_one_without_a_name() -> None:
    [frame] = FrameDecoder().feed(bytes.fromhex(OLD_REQUEST))
    decoded = decode(frame)
    assert decoded is not None and isinstance(decoded[0], RecordRequest)
    assert decoded[0].item == b"" and decoded[0].namespace == "text2"
