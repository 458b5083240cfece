"""A certificate goes once over each way of T, then its mark: who does not know that gets the question again, whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib import proof_ends
from peerd.lib.proof_ends import SeenEnds, end_of, is_short, mark_of, shortened
from peerd.limits import SIGNATURE_BYTES
from peerd.messages import Message, encode_body
from peerd.testing.host import FakeHost, peer
from protocols.measurement.guarantee.words import Want
from protocols.measurement.placing.messages import AlongRead, AlongWant, QuestionWay, ReadAlong, SpliceIn
from protocols.measurement.placing.splicing import statement as splice_statement
from tests.support.measurement_spot import (
    LEFT,
    LEFT_OWNER,
    ME,
    READER,
    RIGHT,
    RIGHT_OWNER,
    STRANGER,
    Spot,
    cpu,
    measuring,
)
from tests.unit.test_measurement_along import question, value


def sent(spot: Spot) -> list[tuple[NodeId, Message]]:
    return [(to.id, message) for to, message in spot.host.take_sent()]


def questions(spot: Spot) -> dict[NodeId, ReadAlong]:
    return {to: message for to, message in sent(spot) if isinstance(message, ReadAlong)}


def short(asked: ReadAlong) -> ReadAlong:
    return replace(asked, proof=shortened(asked.proof))


def told(asked: ReadAlong, *costs: float) -> ReadAlong:
    """As a reader asks that has paid so much for the last READ of each, or has had no answer over T."""
    wants = tuple(replace(want, cost=cost) for want, cost in zip(asked.wants, costs, strict=True))
    return replace(asked, wants=wants)


def splice(owner: int, path: tuple[int, ...] = (READER,)) -> SpliceIn:
    asked = SpliceIn(peer(READER), 1, 3, 8.0, 2.0, (AlongWant(cpu(owner), 0.5),), tuple(map(NodeId, path)), b"")
    return replace(asked, proof=FakeHost(READER, measuring()).sign(splice_statement(asked)))


# Ends and marks


def test_a_shortened_proof_is_whole_again_where_its_end_was_seen() -> None:
    proof, seen = bytes(SIGNATURE_BYTES) + b"certificate" * 40, SeenEnds()
    assert not is_short(proof) and is_short(shortened(proof)) and shortened(b"") == b""
    assert seen.whole(proof) == proof and seen.whole(b"") == b""
    assert seen.whole(shortened(proof)) is None
    seen.note(proof)
    assert seen.whole(shortened(proof)) == proof
    assert seen.whole(b"\1" * SIGNATURE_BYTES + mark_of(end_of(proof))) == b"\1" * SIGNATURE_BYTES + end_of(proof)


def test_as_many_ends_are_kept_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_ends, "ENDS_KEPT_MAX", 3)
    seen = SeenEnds()
    proofs = [bytes(SIGNATURE_BYTES) + bytes([number]) * 500 for number in range(5)]
    for proof in (*proofs[:3], proofs[0], *proofs[3:]):
        seen.note(proof)
    assert [seen.whole(shortened(proof)) is not None for proof in proofs] == [True, False, False, True, True]


# On the way


def test_each_branch_gets_the_certificate_unless_its_reader_has_had_all_answers_over_t_before() -> None:
    spot = Spot()
    asked = question([LEFT_OWNER, LEFT, RIGHT_OWNER])
    spot.host.deliver(told(asked, 2.0, 2.0, 0.0), peer(READER))
    branches = questions(spot)
    assert is_short(branches[NodeId(LEFT)].proof) and branches[NodeId(RIGHT)].proof == asked.proof
    assert len(encode_body(branches[NodeId(LEFT)])) < len(encode_body(branches[NodeId(RIGHT)])) / 2
    spot.host.deliver(told(short(asked), 2.0, 0.0, 0.0), peer(READER))
    assert [each.proof for each in questions(spot).values()] == [asked.proof] * 2, "its mark is known here"


def test_who_does_not_know_a_mark_sends_the_question_back_and_gets_it_whole() -> None:
    before, spot = Spot(me=LEFT), Spot()
    asked = told(question([RIGHT_OWNER], (READER,)), 2.0)
    before.host.deliver(asked, peer(READER))
    [passed] = questions(before).values()
    assert is_short(passed.proof) and passed.path == (READER, LEFT)
    spot.host.deliver(passed, peer(LEFT))
    assert sent(spot) == [(NodeId(LEFT), passed)], "nothing is said to the reader, nor kept"
    before.host.deliver(passed, peer(ME))
    [(to, again)] = sent(before)
    assert (to, again) == (NodeId(ME), told(replace(passed, proof=asked.proof), 0.0))
    spot.host.deliver(again, peer(LEFT))
    [(to, beyond)] = questions(spot).items()
    assert (to, beyond.proof) == (NodeId(RIGHT), asked.proof), "nobody beyond has to send it back as well"
    spot.host.deliver(passed, peer(LEFT))
    assert list(questions(spot)) == [NodeId(RIGHT)], "now it knows the mark"


def test_what_comes_back_is_whole_or_ends_so_that_nothing_goes_to_and_fro() -> None:
    spot = Spot()
    spot.host.deliver(short(question([RIGHT_OWNER], (READER, ME))), peer(LEFT))
    assert not sent(spot), "the certificate is not known here any more"
    with pytest.raises(ProtocolError, match="the way of a question"):
        spot.host.deliver(question([RIGHT_OWNER], (READER, ME)), peer(LEFT))
    assert not sent(spot)


def test_a_mark_proves_nothing_but_what_its_certificate_does() -> None:
    spot = Spot()
    spot.host.deliver(question([LEFT_OWNER]), peer(READER))
    other = question([LEFT_OWNER], (STRANGER,), reader=STRANGER)
    spot.host.deliver(other, peer(STRANGER))
    assert len(sent(spot)) == 2
    genuine = question([LEFT_OWNER], (READER, RIGHT))
    for proof in (
        genuine.proof[:SIGNATURE_BYTES] + mark_of(end_of(other.proof)),
        bytes(SIGNATURE_BYTES) + short(genuine).proof[-16:],
    ):
        spot.host.deliver(replace(genuine, proof=proof), peer(RIGHT))
        assert not sent(spot)
    forged = replace(genuine, path=(NodeId(READER),), proof=bytes(SIGNATURE_BYTES) + short(genuine).proof[-16:])
    with pytest.raises(ProtocolError, match="forged"):
        spot.host.deliver(forged, peer(READER))


def test_the_end_of_a_forged_proof_is_not_remembered() -> None:
    spot = Spot()
    forged = question([LEFT_OWNER], (READER, RIGHT), signer=STRANGER)
    spot.host.deliver(forged, peer(RIGHT))
    assert not sent(spot)
    spot.host.deliver(short(forged), peer(RIGHT))
    assert sent(spot) == [(NodeId(RIGHT), short(forged))], "its mark means nothing here"


# As a reader


def test_a_reader_sends_its_certificate_until_it_has_an_answer() -> None:
    spot = Spot(me=READER)
    wants = {NodeId(owner): [Want(cpu(owner), 1.0)] for owner in (LEFT_OWNER, RIGHT_OWNER)}
    for [want] in wants.values():
        spot.plugin.decider.statistics.read(want, 8.0)
    forms = []
    for source in (LEFT, RIGHT, LEFT):
        spot.plugin.along.ask(wants, 8.0, QuestionWay.TREE)
        asked = questions(spot)
        forms.append([is_short(asked[NodeId(branch)].proof) for branch in (LEFT, RIGHT)])
        owner = LEFT_OWNER if source == LEFT else RIGHT_OWNER
        answer = AlongRead(asked[NodeId(source)].number, 2.0, (value(owner),), (0.0,))
        spot.host.deliver(answer, peer(source))
    assert forms == [[False, False], [True, False], [True, True]]
    passed = asked[NodeId(LEFT)]
    spot.host.deliver(passed, peer(LEFT))
    [(_, again)] = sent(spot)
    assert isinstance(again, ReadAlong) and not is_short(again.proof) and shortened(again.proof) == passed.proof


# SPLICE_IN


def test_a_splice_goes_on_as_it_came_and_is_sent_again_whole() -> None:
    spot = Spot()
    asked = splice(LEFT_OWNER)
    marked = replace(asked, proof=shortened(asked.proof))
    spot.host.deliver(marked, peer(READER))
    assert sent(spot) == [(NodeId(READER), marked)]
    spot.host.deliver(asked, peer(READER))
    assert sent(spot) == [(NodeId(LEFT), replace(asked, path=(*asked.path, NodeId(ME))))]
    spot.host.deliver(marked, peer(READER))
    [(to, passed)] = sent(spot)
    assert (to, passed) == (NodeId(LEFT), replace(marked, path=(*asked.path, NodeId(ME))))
    spot.host.deliver(passed, peer(LEFT))
    assert sent(spot) == [(NodeId(LEFT), replace(passed, proof=asked.proof))]
