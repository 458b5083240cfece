"""Records go to a peer without what their proofs end with, once the peer has it."""

from __future__ import annotations

import pytest

from peerd.api import RecordVersion
from peerd.ids import NodeId
from peerd.lib import proof_ends
from peerd.lib.proof_ends import SeenEnds, end_of, mark_of
from peerd.messages import encode_body
from peerd.services.records import batches as record_ends
from peerd.services.records.batches import ToldEnds, complete
from peerd.services.records.messages import KnownEnd, RecordCopy, ReplicaPut, RequestId, SignedWrite

WRITER, PEER, OTHER = NodeId(1), NodeId(2), NodeId(3)


def copy(number: int, writer: int = 1, end: bytes | None = None) -> RecordCopy:
    proof = bytes([number]) * 64 + (bytes([writer]) * 500 if end is None else end)
    identity = RequestId(WRITER, 1, number)
    version = RecordVersion(1, number, WRITER)
    return RecordCopy(
        "notes", NodeId(number), version, b"x", 9.0, 0.0, identity, write=SignedWrite(9.0, 99.0, b"", proof)
    )


def mark(writer: int) -> bytes:
    return mark_of(end_of(copy(9, writer).write.proof))


def test_a_peer_gets_an_end_once_and_then_its_mark() -> None:
    told, seen = ToldEnds(), SeenEnds()
    first = told.put_to(PEER, [copy(1)])
    assert first == ReplicaPut((copy(1),)) and complete(first, seen) == ((copy(1),), frozenset())
    told.took(PEER, copy(1))
    seen.note(copy(1).write.proof)
    second = told.put_to(PEER, [copy(2), copy(3)])
    assert second.known == (KnownEnd(mark(1), (0, 1)),)
    assert len(encode_body(second)) < len(encode_body(first))
    assert complete(second, seen) == ((copy(2), copy(3)), frozenset())
    assert told.put_to(OTHER, [copy(2)]) == ReplicaPut((copy(2),)), "another peer has not got it"


def test_known_ends_and_shared_ones_in_one_message() -> None:
    told, seen = ToldEnds(), SeenEnds()
    told.took(PEER, copy(1))
    seen.note(copy(1).write.proof)
    copies = (copy(2, writer=8), copy(3), copy(4, writer=8), copy(5, writer=9))
    message = told.put_to(PEER, copies)
    assert [end.indexes for end in message.ends] == [(0, 2)] and [end.indexes for end in message.known] == [(1,)]
    assert complete(message, seen) == (copies, frozenset())


def test_who_has_forgotten_an_end_says_which_records_lack_it_and_gets_it_again_once() -> None:
    told = ToldEnds()
    told.took(PEER, copy(1))
    message = told.put_to(PEER, [copy(2, writer=5), copy(3)])
    assert complete(message, SeenEnds())[1] == {1}
    assert told.lacks(PEER, copy(3))
    assert told.put_to(PEER, [copy(3)]) == ReplicaPut((copy(3),))
    assert not told.lacks(PEER, copy(3)), "it was sent whole, so there is no sense in sending it at once again"


def test_where_nobody_proves_anything_nothing_is_left_out() -> None:
    told, bare = ToldEnds(), copy(1, end=b"")
    told.took(PEER, bare)
    assert told.put_to(PEER, [bare]) == ReplicaPut((bare,))
    assert not told.lacks(PEER, bare)


def test_only_so_many_ends_are_remembered_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_ends, "ENDS_KEPT_MAX", 2)
    monkeypatch.setattr(record_ends, "TOLD_MAX", 2)
    told, seen = ToldEnds(), SeenEnds()
    for writer in (1, 2, 1, 3):
        told.took(PEER, copy(writer, writer))
        seen.note(copy(writer, writer).write.proof)
    known = [bool(told.put_to(PEER, [copy(9, writer)]).known) for writer in (1, 2, 3)]
    assert known == [True, False, True]
    marks = tuple(KnownEnd(mark(writer), (index,)) for index, writer in enumerate((1, 2, 3)))
    assert complete(ReplicaPut((copy(9),) * 3, (), marks), seen)[1] == {1}


def test_a_mark_for_records_that_are_not_there_means_nothing() -> None:
    seen = SeenEnds()
    seen.note(copy(1).write.proof)
    marks = (KnownEnd(mark(1), (7, 255)), KnownEnd(bytes(16), (200,)))
    assert complete(ReplicaPut((copy(2),), (), marks), seen) == ((copy(2),), frozenset({200}))
