"""Values of many groups, in slices: the same answers as whole values, whatever bytes come from others."""

from __future__ import annotations

import json
import random
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.api import IN_MEMORY, Scratch
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.system.scratch import DiskScratch
from protocols.aggregation import extraction, partial as partial_module
from protocols.aggregation.columns import parts_of
from protocols.aggregation.exchange import (
    Aggregate,
    PieceRejected,
    extract_own,
    join_pieces,
    merge_all,
    merge_pieces,
    merge_received,
    open_own,
    split_own,
)
from protocols.aggregation.extraction import extract
from protocols.aggregation.groups import GROUPS_HARD_MAX, SLICES, GroupStates, Remainder, put_groups
from protocols.aggregation.partial import Extraction, ExtractionReport, Partial, merge
from protocols.aggregation.prefix import IdLevels
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.scalars import ScalarWriter
from protocols.aggregation.slices import SIZES, SlicedGroups, SlicedStates
from tests.support.aggregation_calls import CALLS, record
from tests.support.long_cases import cases

MANY = GROUPS_HARD_MAX + 1
COUNTS = parse_query("count by k", groups_max=MANY)
NODES = tuple(NodeId(index << 120) for index in range(1, 6))
HEAD = 4
"""So many bytes say how long the head of a value is."""


def own_of(query: Query, node: NodeId, pairs: list[tuple[str, Any]], scratch: Scratch = IN_MEMORY) -> Aggregate:
    """What a node has extracted: these groups and records."""
    function: Any = query.function
    groups: dict[str, Any] = {}
    for key, value in pairs:
        state = function.lift(record(query, value))
        groups[key] = function.merge(groups[key], state) if key in groups else state
    report = ExtractionReport(records=len(pairs), records_selected=len(pairs))
    own = Partial.of(query, node, GroupStates(groups, Remainder(0, function.zero)), report)
    return open_own(query, node, 0, own.encode(), "", scratch)


def counted(node: NodeId, *keys: str) -> Aggregate:
    return own_of(COUNTS, node, [(key, 1) for key in keys])


rows = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.integers(-5, 5)), max_size=9
)


@pytest.mark.parametrize("calls", [*CALLS, "count, max(x), sum(x)"])
@settings(max_examples=8)
@given(values=st.lists(rows, min_size=1, max_size=5), shuffle=st.randoms(use_true_random=False))
def test_slices_give_the_answer_of_whole_values(
    calls: str, values: list[list[tuple[str, int]]], shuffle: random.Random
) -> None:
    whole, sliced = parse_query(f"{calls} by k"), parse_query(f"{calls} by k", groups_max=MANY)
    assert sliced.is_sliced and not whole.is_sliced
    answers = []
    for query in (whole, sliced):
        partials = [own_of(query, NODES[at], value).partial for at, value in enumerate(values)]
        shuffle.shuffle(partials)
        merged = reduce(merge, partials)
        again = Partial.decode(merged.encode(), query)
        assert again.encode() == merged.encode()
        assert again.finish(2) == merged.finish(2)
        answers.append((again.finish(), again.finish(2), again.size, again.report, again.contributors, again.shares))
    assert answers[0] == answers[1]


@settings(max_examples=15)
@given(st.lists(rows, min_size=2, max_size=5))
def test_pieces_of_slices_joined_are_all_values_merged(values: list[list[tuple[str, int]]]) -> None:
    owns = {NODES[at]: own_of(COUNTS, NODES[at], value) for at, value in enumerate(values)}
    pieces = {node: split_own(own, len(owns)) for node, own in owns.items()}
    merged = {
        node: merge_pieces(COUNTS, node, {giver: pieces[giver][place] for giver in owns}).value
        for place, node in enumerate(owns)
    }
    joined = join_pieces(COUNTS, NODES[0], merged).partial
    assert joined.encode() == reduce(merge, [own.partial for own in owns.values()]).encode()


def test_slices_that_are_there_as_bytes_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's value in pieces, and what the requester joins, are whole slices of what there is."""
    values = {node: counted(node, *"abcdefgh") for node in NODES[:3]}
    encoded: list[GroupStates[Any]] = []
    encode = SlicedGroups._encode

    def counting(monoid: SlicedGroups[Any], groups: GroupStates[Any]) -> bytes:
        if len(groups):
            encoded.append(groups)
        return encode(monoid, groups)

    monkeypatch.setattr(SlicedGroups, "_encode", counting)
    given = {node: split_own(value, 3) for node, value in values.items()}
    assert not encoded
    merged = [
        merge_pieces(COUNTS, node, {giver: parts[part] for giver, parts in given.items()}).value
        for part, node in enumerate(values)
    ]
    assert len(encoded) == 8
    encoded.clear()
    joined = join_pieces(COUNTS, NODES[0], dict(zip(values, merged, strict=True)))
    assert not encoded
    expected = reduce(merge, [value.partial for value in values.values()])
    assert joined.partial.finish() == expected.finish()


def test_only_slices_with_groups_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most slices of a piece have none, and a sketch of zeros for each took most of the time of small values."""
    data = counted(NODES[0], *"abc").partial.encode()
    decoded: list[int] = []
    decode = SlicedGroups.decoded

    def counting(monoid: SlicedGroups[Any], data: bytes | memoryview) -> GroupStates[Any]:
        decoded.append(len(data))
        return decode(monoid, data)

    monkeypatch.setattr(SlicedGroups, "decoded", counting)
    found = Partial.decode(data, COUNTS)
    assert len(decoded) == 3
    assert found.size == 3


def test_a_cap_holds_and_nothing_of_the_total_is_lost() -> None:
    monoid: SlicedGroups[int] = SlicedGroups(COUNTS.function, 2 * SLICES)
    values = [
        monoid.cut(GroupStates({f"{at}-{number}": number + 1 for number in range(400)}, Remainder(0, 0)))
        for at in range(3)
    ]
    merged, most = reduce(monoid.merge, values), monoid.of_slice.groups_max
    assert 2 < most < 8, "slices are not filled alike"
    assert [len(each) for each in merged] == [most] * SLICES
    assert monoid.total(merged) == 3 * sum(range(1, 401))
    answer = monoid.lower(merged, 3)
    assert (answer.groups_total, len(answer.groups), answer.exact) == (most * SLICES, 3, False)
    assert answer.remainder_groups_max == 1200 - most * SLICES
    listed = monoid.lower(merged)
    assert sum(listed.groups.values()) + listed.remainder == monoid.total(merged)  # type: ignore[operator, arg-type]  # counts
    assert list(answer.groups) == list(listed.groups)[:3]


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_merged_values_are_written_where_there_is_room(tmp_path: Path, memory_bytes: int) -> None:
    scratch = DiskScratch(str(tmp_path), memory_bytes)
    own, other = (
        own_of(COUNTS, node, [(f"key-{number}", 1) for number in range(start, start + 2000)], scratch)
        for node, start in ((NODES[0], 0), (NODES[1], 1000))
    )
    levels = IdLevels(NODES[0])
    level = levels.level_of(NODES[1])
    assert level is not None
    merged = merge_received(levels, level, own, other.value)
    assert merged.scratch == scratch
    assert merged.partial.size == 3000
    assert merged.encoded[8:] == merge(own.partial, other.partial).encode()
    assert not list(tmp_path.iterdir()), "files have no name"


def test_a_disk_that_is_full_is_nobodys_fault(tmp_path: Path) -> None:
    gone = DiskScratch(str(tmp_path / "gone"), 0)
    own, other = counted(NODES[0], "a"), counted(NODES[1], "b")
    with pytest.raises(ProtocolError, match="aggregation_overflow"):
        merge_pieces(COUNTS, NODES[0], {NODES[0]: own.value, NODES[1]: other.value}, gone)
    with pytest.raises(Unavailable, match="no room"):
        gone.new_file()


# --- what a worker writes -----------------------------------------------------------------------------------


def test_a_worker_leaves_its_result_in_a_file(tmp_path: Path) -> None:
    scratch = DiskScratch(str(tmp_path), 0)
    path = scratch.new_file()
    states: GroupStates[int] = GroupStates({"a": 2, "b": 1}, Remainder(0, 0))
    extracted = Extraction(states, ExtractionReport(records=3, records_selected=3))
    assert extract_own(lambda query, own: extracted, COUNTS, NODES[0], path, scratch) == b""
    own = open_own(COUNTS, NODES[0], 0, b"", path, scratch)
    assert not list(tmp_path.iterdir())
    assert own.partial.finish() == Partial.of(COUNTS, NODES[0], states, extracted.report).finish()
    with pytest.raises(Unavailable, match="could not be read"):
        open_own(COUNTS, NODES[0], 0, b"", path, scratch)
    path = scratch.new_file()
    extract_own(lambda query, own: extracted, COUNTS, NODES[1], path, scratch)
    with pytest.raises(ProtocolError, match="foreign_contributor"):
        open_own(COUNTS, NODES[0], 0, b"", path, scratch)


@pytest.mark.parametrize("text", ["count by k", "sum(x), distinct(x) by k", "mean(x) by k"])
@pytest.mark.parametrize("run_groups", cases([7], [1, 10_000]))
def test_more_groups_than_fit_are_read_in_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, run_groups: int
) -> None:
    rng = random.Random(5)
    lines = [json.dumps({"k": f"key {rng.randrange(60)}", "x": rng.randrange(100)}) for _ in range(300)]
    data, room = tmp_path / "data", tmp_path / "room"
    data.mkdir()
    room.mkdir()
    (data / "a.ndjson").write_text("\n".join(lines))
    whole, sliced = parse_query(text), parse_query(text, groups_max=MANY)
    expected = Partial.of(whole, NODES[0], *_extracted(extract(whole, data)))
    monkeypatch.setattr(extraction, "RUN_GROUPS", run_groups)
    found = Partial.of(sliced, NODES[0], *_extracted(extract(sliced, data, scratch=DiskScratch(str(room), 0))))
    assert isinstance(found.value, SlicedStates)
    assert (found.finish(), found.report) == (expected.finish(), expected.report)
    assert not list(room.iterdir())


def _extracted(found: Extraction) -> tuple[Any, ExtractionReport]:
    return found.value, found.report


# --- what others send -----------------------------------------------------------------------------------------


def test_what_is_cut_off_or_changed_is_no_value() -> None:
    data = bytes(merge(counted(NODES[0], *"abc").partial, counted(NODES[1], *"cd").partial).encode())
    rng = random.Random(1)
    for length in (*range(HEAD + 3), *(rng.randrange(len(data)) for _ in range(20))):
        with pytest.raises(ProtocolError, match="aggregation_partial"):
            Partial.decode(data[:length], COUNTS)
    with pytest.raises(ProtocolError, match="aggregation_partial"):
        Partial.decode(data + b"\0", COUNTS)
    taken = 0
    for _ in range(600):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(data))] = rng.getrandbits(8)
        try:
            found = Partial.decode(changed, COUNTS)
        except ProtocolError:
            continue
        taken += 1
        assert Partial.decode(found.encode(), COUNTS).finish() == found.finish()
    assert 0 < taken < 120


def sliced_bytes(groups: dict[int, dict[str, int]], records: int) -> bytes:
    """A value with these groups in these slices, whatever belongs there."""
    monoid = COUNTS.monoid
    assert isinstance(monoid, SlicedGroups)
    report = ExtractionReport(records=records, records_selected=records)
    states = monoid.of(lambda number: GroupStates(groups.get(number, {}), Remainder(0, 0)))
    return Partial.of(COUNTS, NODES[1], states, report).encode()


def test_a_total_of_all_slices_that_no_records_can_have_is_refused() -> None:
    Partial.decode(sliced_bytes({1: {"a": 2}, 5: {"b": 3}}, 5), COUNTS)
    with pytest.raises(ProtocolError, match="records cannot have"):
        Partial.decode(sliced_bytes({1: {"a": 2}, 5: {"b": 3}}, 4), COUNTS)


def test_a_member_that_lies_where_a_group_belongs_hides_nobodys_records() -> None:
    [place] = parts_of("a", SLICES)
    lie = Partial.decode(sliced_bytes({(place + 1) % SLICES: {"a": 2}}, 2), COUNTS)
    honest = counted(NODES[0], "a", "a", "a", "b").partial
    assert merge(honest, lie).finish().groups == {"a": 5, "b": 1}  # type: ignore[union-attr]  # it has groups
    assert merge(honest, lie).finish(1).groups == {"a": 5}  # type: ignore[union-attr]  # it has groups


def test_a_piece_that_cannot_be_read_is_its_givers_fault() -> None:
    pieces = {node: split_own(counted(node, "a"), 2)[0] for node in NODES[:2]}
    broken = bytearray(memoryview(pieces[NODES[1]]))  # type: ignore[arg-type]  # without padding
    broken[-1] ^= 0xFF
    with pytest.raises(PieceRejected, match="aggregation_partial") as caught:
        merge_pieces(COUNTS, NODES[0], {**pieces, NODES[1]: bytes(broken)})
    assert caught.value.giver == NODES[1]


def test_counts_that_pass_a_bound_together_fail_when_all_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    partials = [counted(node, "a").partial for node in NODES[:2]]
    assert merge_all(partials).finish().groups == {"a": 2}  # type: ignore[union-attr]  # it has groups

    def overflows(*_: object) -> int:
        raise ProtocolError("aggregation_overflow", "too many")

    monkeypatch.setattr(type(COUNTS.function), "merge", overflows)
    with pytest.raises(ProtocolError, match="too many"):
        merge_all(partials)


def test_a_value_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    value = counted(NODES[0], *"abc").partial
    data = value.encode()
    monkeypatch.setattr(partial_module, "SLICED_BYTES_MAX", len(data) - 1)
    with pytest.raises(Unavailable, match="lower groups_max"):
        value.encode()
    with pytest.raises(ProtocolError, match="more than"):
        Partial.decode(data, COUNTS)


def test_the_sizes_of_slices_are_those_of_the_slices() -> None:
    data = counted(NODES[0], "a").partial.encode()
    at = HEAD + int.from_bytes(data[:HEAD], "big")
    sizes = list(SIZES.unpack_from(data, at))
    sizes[0], sizes[1] = sizes[0] + 1, sizes[1] - 1
    for changed in (sizes, [1 << 31, *sizes[1:]]):
        with pytest.raises(ProtocolError, match="aggregation_partial"):
            Partial.decode(data[:at] + SIZES.pack(*changed) + data[at + SIZES.size :], COUNTS)
    stream = ScalarWriter()
    put_groups(stream, COUNTS.function, GroupStates({}, Remainder(0, 0)))
    assert sizes.count(len(stream.bytes())) >= SLICES - 3
