"""Splits, merges and stored cells without a network: transcripts of the pure machines, and what records may say."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from peerd.api import LocalRecord, RecordRole, RecordVersion
from peerd.errors import ProtocolError
from peerd.ids import NodeId, closeness
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.messages import CellState, OrderKind, PieceStatus, SubObject, TransferResult
from protocols.pubsub.names import STATE_ITEM, SubscriptionKey, Tree, key_of
from protocols.pubsub.tree import storage
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import SIDE, WHOLE, cell_at, children
from protocols.pubsub.tree.copying import (
    GIVE_UP_S,
    IN_FLIGHT_MAX,
    RESEND_S,
    Copying,
    Order,
    PutState,
    SendCopies,
)
from protocols.pubsub.tree.merging import ORDER_S, RETIRING_MAX_S, Merge, MergePhase, MoveUp
from protocols.pubsub.tree.piece import RENEWED_S, Piece
from protocols.pubsub.tree.splitting import DRAIN_S, Split, SplitPhase
from protocols.pubsub.tree.storage import CellAddress

TREE = Tree("stock", 1)
LOW, HIGH = SIDE // 8, SIDE * 5 // 8


def sub(sid: int, low: int = LOW, version: int = 1, text: str = "x", subscriber: int = 7) -> SubObject:
    return SubObject(peer(subscriber), sid, 0, version, TREE.attribute, low, low + 10, text)


def held(*subs: SubObject, is_kept: bool = True) -> dict[SubscriptionKey, Piece]:
    return {each.key: Piece(each, 1000.0, is_kept=is_kept) for each in subs}


def results(subs: Iterable[SubObject], status: PieceStatus = PieceStatus.REPLICATED) -> list[TransferResult]:
    return [TransferResult(each.subscriber.id, each.sid, each.piece, each.version, status) for each in subs]


def sent(actions: Iterable[object]) -> dict[int, list[int]]:
    """By cell, the sids of the copies that are sent."""
    found: dict[int, list[int]] = {}
    for action in actions:
        assert isinstance(action, SendCopies)
        found.setdefault(action.cell, []).extend(each.sid for each in action.subs)
    return found


# Splitting


def test_a_split_copies_then_switches_then_announces() -> None:
    pieces = held(sub(1, LOW), sub(2, HIGH), sub(3, HIGH))
    split = Split(children(WHOLE), 4, 0.0)
    assert sent(split.step(pieces, 0.0)) == {0b10: [1], 0b11: [2, 3]}
    assert split.step(pieces, 1.0) == []
    split.copying.answered(results([sub(1, LOW), sub(2, HIGH)]), 1.0)
    assert split.step(pieces, 1.0) == [], "one is still missing"
    split.copying.answered(results([sub(3, HIGH)]), 2.0)
    assert split.step(pieces, 2.0) == [PutState(CellState.INNER)]
    assert split.step(pieces, 3.0) == [], "nothing happens until it is written"
    split.switched(True, 3.0)
    assert split.step(pieces, 3.0) == [Order(0b10, OrderKind.BE_LEAF), Order(0b11, OrderKind.BE_LEAF)]
    split.heard(0b10)
    assert split.step(pieces, 4.0) == []
    assert split.step(pieces, 5.0) == [Order(0b11, OrderKind.BE_LEAF)]
    split.heard(0b11)
    assert split.phase is SplitPhase.OVER


def test_what_comes_or_changes_during_a_split_is_copied_before_the_switch() -> None:
    pieces = held(sub(1))
    split = Split(children(WHOLE), 4, 0.0)
    split.step(pieces, 0.0)
    pieces |= held(sub(1, version=2), sub(2, HIGH))
    split.copying.answered(results([sub(1)]), 1.0)
    assert sent(split.step(pieces, 1.0)) == {0b10: [1], 0b11: [2]}
    split.copying.answered(results([sub(1)]), 2.0)
    split.copying.answered(results([sub(2, HIGH)]), 2.0)
    assert split.step(pieces, 2.0) == [], "an answer about the old version says nothing of the new one"
    split.copying.answered(results([sub(1, version=2)]), 3.0)
    assert split.step(pieces, 3.0) == [PutState(CellState.INNER)]


def test_a_split_waits_for_subscribers_that_are_being_asked_but_not_for_long() -> None:
    """One that says yes takes its subscription for established: then the leaf must not have become an inner node."""
    pieces = held(sub(1)) | held(sub(2), is_kept=False)
    split = Split(children(WHOLE), 4, 0.0)
    assert sent(split.step(pieces, 0.0)) == {0b10: [1]} and not split.is_draining
    split.copying.answered(results([sub(1)]), 1.0)
    assert split.step(pieces, 1.0) == [] and split.is_draining
    late = 1.0 + DRAIN_S
    assert split.step(pieces, late - 0.1) == []
    assert split.step(pieces, late) == [PutState(CellState.INNER)] and not split.is_draining


def test_what_is_confirmed_while_a_split_waits_is_copied_too() -> None:
    pieces = held(sub(1)) | held(sub(2), is_kept=False)
    split = Split(children(WHOLE), 4, 0.0)
    split.step(pieces, 0.0)
    split.copying.answered(results([sub(1)]), 1.0)
    assert split.step(pieces, 1.0) == []
    pieces |= held(sub(2))
    assert sent(split.step(pieces, 1.1)) == {0b10: [2]}
    split.copying.answered(results([sub(2)]), 1.2)
    assert split.step(pieces, 1.2) == [PutState(CellState.INNER)]


def test_a_piece_that_its_subscriber_has_ended_is_reported_and_does_not_hold_a_split_up() -> None:
    pieces = held(sub(1), sub(2))
    split = Split(children(WHOLE), 4, 0.0)
    split.step(pieces, 0.0)
    assert split.copying.answered(results([sub(1)], PieceStatus.GONE), 1.0) == [sub(1).key]
    del pieces[sub(1).key]
    split.copying.answered(results([sub(2)]), 1.0)
    assert split.step(pieces, 1.0) == [PutState(CellState.INNER)]


@pytest.mark.parametrize("why", ["silence", "quota", "the record"])
def test_a_split_that_fails_leaves_the_leaf(why: str) -> None:
    pieces = held(sub(1))
    split = Split(children(WHOLE), 4, 0.0)
    split.step(pieces, 0.0)
    if why == "quota":
        split.copying.answered(results([sub(1)], PieceStatus.QUOTA), 1.0)
    elif why == "the record":
        split.copying.answered(results([sub(1)]), 1.0)
        split.step(pieces, 1.0)
        split.switched(False, 2.0)
    now = GIVE_UP_S if why == "silence" else 2.0
    assert split.step(pieces, now) == []
    assert split.phase is SplitPhase.GIVEN_UP


def test_copies_without_an_answer_are_sent_again_and_few_at_a_time() -> None:
    subs = [sub(number) for number in range(IN_FLIGHT_MAX + 5)]
    copying = Copying((0b10, 0b11), 4, 0.0)
    first = copying.due(held(*subs), 0.0)
    assert sum(len(batch.subs) for batch in first) == IN_FLIGHT_MAX
    assert copying.due(held(*subs), RESEND_S - 1) == []
    again = copying.due(held(*subs), RESEND_S)
    assert [batch.subs for batch in again] == [batch.subs for batch in first]


def test_a_piece_that_was_renewed_while_it_was_copied_is_sent_again() -> None:
    """The copy lapsed with the lease of before, though its subscriber had been told that the new one is kept."""
    pieces = held(sub(1))
    [key], copying = pieces, Copying((0b10, 0b11), 4, 0.0)
    assert [batch.remaining_s for batch in copying.due(pieces, 995.0)] == [(5,)]
    copying.answered([TransferResult(*key, pieces[key].sub.version, PieceStatus.REPLICATED)], 995.1)
    assert copying.is_complete(pieces) and copying.due(pieces, 995.2) == []
    pieces[key].expires_at += RENEWED_S / 2
    assert copying.is_complete(pieces), "that is rounding"
    pieces[key].expires_at += 30.0
    assert not copying.is_complete(pieces)
    assert [batch.remaining_s for batch in copying.due(pieces, 995.3)] == [(35,)]
    assert copying.due(pieces, 995.4) == [], "it is on its way"
    copying.answered([TransferResult(*key, pieces[key].sub.version, PieceStatus.REPLICATED)], 995.5)
    assert copying.is_complete(pieces)


def test_a_message_of_copies_fits_its_cap() -> None:
    subs = [sub(number, text="x" * 8000) for number in range(40)]
    batches = Copying((0b10, 0b11), 4, 0.0).due(held(*subs), 0.0)
    assert all(sum(len(each.filter) for each in batch.subs) < 40_000 for batch in batches)
    assert sum(len(batch.subs) for batch in batches) == 40


# Merging


def test_a_merge_gathers_then_switches_then_retires() -> None:
    merge = Merge(children(WHOLE), 5, 0.0)
    assert merge.step(0.0) == [Order(0b10, OrderKind.COPY_UP), Order(0b11, OrderKind.COPY_UP)]
    merge.has_all_of(0b10, 1.0)
    assert merge.step(ORDER_S) == [Order(0b11, OrderKind.COPY_UP)]
    merge.has_all_of(0b11, 6.0)
    assert merge.step(6.0) == [PutState(CellState.LEAF)]
    merge.switched(True, 7.0)
    assert merge.step(7.0) == [Order(0b10, OrderKind.RETIRE), Order(0b11, OrderKind.RETIRE)]
    merge.retired(0b10)
    merge.retired(0b11)
    assert merge.phase is MergePhase.OVER


def test_a_merge_without_progress_is_given_up() -> None:
    merge = Merge(children(WHOLE), 5, 0.0)
    merge.step(0.0)
    merge.arrived(30.0)
    assert len(merge.step(GIVE_UP_S)) == 2, "a copy came meanwhile"
    merge.retired(0b10)
    assert merge.step(30.0 + GIVE_UP_S) == []
    assert merge.phase is MergePhase.GIVEN_UP


def test_a_half_moves_up_says_so_and_retires_only_with_everything_copied() -> None:
    pieces = held(sub(1))
    move = MoveUp(WHOLE, 5, 0.0)
    assert sent(move.step(pieces, 0.0)) == {WHOLE: [1]}
    move.copying.answered(results([sub(1)]), 1.0)
    assert move.step(pieces, 1.0) == [SendCopies(WHOLE, (), ())]
    assert move.step(pieces, 2.0) == []
    move.is_retiring = True
    pieces |= held(sub(2))
    assert sent(move.step(pieces, 3.0)) == {WHOLE: [2]}
    move.copying.answered(results([sub(2)]), 4.0)
    assert move.step(pieces, 4.0) == [PutState(CellState.RETIRED)]
    assert move.step(pieces, 5.0) == []
    move.switched(False)
    assert move.step(pieces, 6.0) == [PutState(CellState.RETIRED)], "what could not be written is tried again"


def test_a_half_waits_for_subscribers_that_are_being_asked_before_it_says_that_all_is_copied() -> None:
    """One that says yes takes its subscription for established: then the parent must have it before it is a leaf."""
    pieces = held(sub(1)) | held(sub(2), is_kept=False)
    move = MoveUp(WHOLE, 5, 0.0)
    assert sent(move.step(pieces, 0.0)) == {WHOLE: [1]} and not move.is_draining
    move.copying.answered(results([sub(1)]), 1.0)
    assert move.step(pieces, 1.0) == [] and move.is_draining and not move.is_handing_over
    pieces |= held(sub(2))
    assert sent(move.step(pieces, 1.1)) == {WHOLE: [2]}
    move.copying.answered(results([sub(2)]), 1.2)
    assert move.step(pieces, 1.2) == [SendCopies(WHOLE, (), ())] and move.is_handing_over


def test_a_half_does_not_wait_long_for_a_subscriber_that_is_silent() -> None:
    pieces = held(sub(2), is_kept=False)
    move = MoveUp(WHOLE, 5, 0.0)
    assert move.step(pieces, 0.0) == move.step(pieces, DRAIN_S - 0.1) == []
    assert move.step(pieces, DRAIN_S) == [SendCopies(WHOLE, (), ())]
    move.is_retiring = True
    assert move.step(pieces, DRAIN_S) == [PutState(CellState.RETIRED)]


def test_a_half_whose_copies_are_refused_takes_new_pieces_again() -> None:
    pieces = held(sub(1))
    move = MoveUp(WHOLE, 5, 0.0)
    move.step(pieces, 0.0)
    move.copying.answered(results([sub(1)]), 1.0)
    move.step(pieces, 1.0)
    assert move.is_draining and move.is_handing_over
    pieces |= held(sub(2))
    move.step(pieces, 2.0)
    move.copying.answered(results([sub(2)], PieceStatus.QUOTA), 3.0)
    assert move.step(pieces, 3.0) == [] and not move.is_draining and not move.is_handing_over


def test_what_is_new_waits_at_the_parent_until_its_halves_have_retired() -> None:
    place = CellAddress(TREE, WHOLE)
    parent = CellNode(place, place.key, CellState.LEAF)
    parent.merge = Merge(children(WHOLE), 5, 0.0)
    for half in (0b10, 0b11):
        parent.merge.has_all_of(half, 1.0)
    assert not parent.is_draining
    parent.merge.step(1.0)
    parent.merge.switched(True, 2.0)
    parent.merge.retired(0b10)
    assert parent.is_draining and parent.is_handing_over
    parent.merge.step(2.0 + RETIRING_MAX_S)
    assert parent.merge.phase is MergePhase.OVER and not parent.is_draining


# Records


def record(place: CellAddress, item: bytes, value: bytes, writer: int = 3, owner: int | None = None) -> LocalRecord:
    version = RecordVersion(1, 1, NodeId(writer))
    owned_by = None if owner is None else NodeId(owner)
    return LocalRecord(place.key, value, version, 60.0, RecordRole.ROOT, item, owned_by)


def test_a_cell_is_read_back_from_its_records() -> None:
    one = sub(1)
    place = CellAddress(TREE, cell_at(one.low, one.high, 5))
    found = storage.read(
        [
            record(place, STATE_ITEM, storage.state_record(place, CellState.LEAF, 3)),
            record(place, one.key.item, storage.sub_record(place, one)),
        ]
    )
    assert found is not None and found.place == place
    assert (found.state, found.count) == (CellState.LEAF, 3)
    assert found.pieces[one.key].sub == one


def test_only_the_whole_cell_is_a_leaf_without_saying_so() -> None:
    one = sub(1)
    for place, state in ((CellAddress(TREE, WHOLE), CellState.LEAF), (CellAddress(TREE, 0b10), CellState.UNKNOWN)):
        found = storage.read([record(place, one.key.item, storage.sub_record(place, one))])
        assert found is not None and found.state is state
    assert storage.read([]) is None


def test_records_that_somebody_made_up_are_passed_over() -> None:
    one, place, other = sub(1), CellAddress(TREE, 0b10), CellAddress(TREE, 0b11)
    assert storage.read([record(place, STATE_ITEM, b"\xc1")]) is None
    assert storage.read([record(place, STATE_ITEM, storage.state_record(other, CellState.LEAF, 1))]) is None
    assert storage.read([record(place, sub(2).key.item, storage.sub_record(place, one))]) is None
    assert storage.read([record(other, one.key.item, storage.sub_record(other, one))]) is None, "another cell"
    value = storage.state_record(place, CellState.LEAF, 1)
    assert storage.read([record(place, STATE_ITEM, value, owner=9)]) is None, "owned: not written by the root"
    with pytest.raises(ProtocolError):
        storage.decode_cell(place.key, b"\x01")


def test_only_nodes_near_a_key_write_its_records() -> None:
    place = CellAddress(TREE, 0b10)
    host = FakeHost(1)
    host.neighbours = tuple(peer(number << 120) for number in range(1, 20))
    ranked = sorted(
        (each.id for each in (host.peer, *host.neighbours)), key=lambda node_id: closeness(place.key, node_id)
    )
    value = storage.state_record(place, CellState.LEAF, 1)

    def is_allowed(writer: NodeId, said: bytes | None = value, item: bytes = STATE_ITEM) -> bool:
        return storage.record_allowed(host, place.key, item, said, writer)

    assert all(is_allowed(node_id) for node_id in ranked[: storage.WRITERS_NEAR])
    assert not any(is_allowed(node_id) for node_id in ranked[storage.WRITERS_NEAR :])
    assert is_allowed(NodeId(ranked[0] ^ 1)), "near, and dead since: its writes are still good"
    assert is_allowed(ranked[0], None), "deleted"
    assert not is_allowed(ranked[0], b"what is this")
    assert not is_allowed(ranked[0], storage.state_record(CellAddress(TREE, 0b11), CellState.LEAF, 1))
    one = sub(1)
    assert is_allowed(ranked[0], storage.sub_record(place, one), one.key.item)
    assert not is_allowed(ranked[0], storage.sub_record(place, one), sub(2).key.item)


def test_records_of_cells_are_told_from_others() -> None:
    assert storage.is_of_tree(STATE_ITEM) and storage.is_of_tree(sub(1).key.item)
    assert not storage.is_of_tree(b"") and not storage.is_of_tree(b"x")
    assert key_of(TREE, WHOLE) == CellAddress(TREE, WHOLE).key


def test_the_whole_squares_of_one_schema_and_no_other_cells_have_keys_beside_each_other() -> None:
    whole = {key_of(Tree("s", attribute), WHOLE) for attribute in range(256)}
    assert len(whole) == 256
    places = (Tree("s", 1), 2), (Tree("s", 2), 2), (Tree("t", 1), WHOLE)
    assert len({key >> 8 for key in (*whole, *(key_of(*place) for place in places))}) == 4
