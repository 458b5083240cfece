"""Many records in one message: what their proofs have in common is said once, whatever the proofs are."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd import limits
from peerd.api import RecordVersion
from peerd.ids import NodeId
from peerd.messages import encode_body
from peerd.services.records.batches import PROOF_HEAD_BYTES, shortened, whole
from peerd.services.records.messages import (
    BATCH_RECORDS_MAX,
    ProofEnd,
    RecordCopy,
    ReplicaPut,
    RequestId,
    SignedWrite,
)

HEAD = bytes(PROOF_HEAD_BYTES)


def copy(proof: bytes, number: int = 0) -> RecordCopy:
    request = RequestId(NodeId(5), 1, number)
    version = RecordVersion(number, 1, NodeId(9))
    write = SignedWrite(300.0, 1e9, b"", proof)
    return RecordCopy("tests", NodeId(1), version, b"v", 300.0, 0.0, request, b"", NodeId(0), write)


heads = st.sampled_from([b"", b"short", HEAD, b"s" * PROOF_HEAD_BYTES])
proofs = st.builds(lambda head, end: head + end, heads, st.sampled_from([b"", b"one", b"certificate " * 50]))
indexes = st.lists(st.integers(0, 255), max_size=BATCH_RECORDS_MAX).map(tuple)
made_up = st.lists(st.builds(ProofEnd, st.binary(max_size=limits.PROOF_BYTES_MAX), indexes), max_size=20)


@given(st.lists(proofs, max_size=40))
def test_what_was_shortened_is_whole_again(given_proofs: list[bytes]) -> None:
    copies = tuple(copy(proof, number) for number, proof in enumerate(given_proofs))
    short, ends = shortened(copies)
    assert whole(short, ends) == copies
    message = ReplicaPut(short, ends)
    assert len(encode_body(message)) <= len(encode_body(ReplicaPut(copies))) + 2 * len(copies)


def test_the_certificate_of_one_writer_is_sent_once() -> None:
    certificate = b"c" * 592
    copies = [copy(bytes([number]) * PROOF_HEAD_BYTES + certificate, number) for number in range(50)]
    short, ends = shortened(copies)
    assert ends == (ProofEnd(certificate, tuple(range(50))),)
    assert {len(each.write.proof) for each in short} == {PROOF_HEAD_BYTES}
    assert len(encode_body(ReplicaPut(tuple(copies)))) > 3 * len(encode_body(ReplicaPut(short, ends)))


def test_one_record_and_what_nobody_signed_stay_as_they_are() -> None:
    for copies in ((), (copy(HEAD + b"certificate"),), (copy(b""), copy(b"")), (copy(HEAD + b"a"), copy(HEAD + b"b"))):
        assert shortened(copies) == (copies, ())


@given(st.lists(proofs, max_size=5), made_up)
def test_ends_that_a_member_makes_up_lengthen_each_proof_once(given_proofs: list[bytes], ends: list[ProofEnd]) -> None:
    copies = [copy(proof, number) for number, proof in enumerate(given_proofs)]
    found = whole(copies, ends)
    assert len(found) == len(copies)
    for before, after in zip(copies, found, strict=True):
        assert after.write.proof.startswith(before.write.proof)
        assert len(after.write.proof) <= len(before.write.proof) + limits.PROOF_BYTES_MAX
        assert after.request == before.request and after.value == before.value
