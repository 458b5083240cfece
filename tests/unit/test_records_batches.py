"""Many records in one message: what their proofs have in common is said once, whatever the proofs are."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd import limits
from peerd.api import RecordVersion
from peerd.ids import NodeId
from peerd.lib.proof_ends import MARK_BYTES
from peerd.limits import NAME_LENGTH_MAX, SIGNATURE_BYTES
from peerd.messages import encode_body
from peerd.services.records.batches import batches, shortened, whole
from peerd.services.records.messages import (
    BATCH_RECORDS_MAX,
    BUCKETS,
    DIGESTS_BYTES,
    ITEM_BYTES_MAX,
    LACKS_PROOF,
    PAGE_RECORDS_MAX,
    PUT,
    RANGES_MAX,
    VALUE_BYTES_HARD_MAX,
    VALUE_DIGEST_BYTES,
    DifferingParts,
    DigestReply,
    DigestRequest,
    KnownEnd,
    ProofEnd,
    RangeDigests,
    RecordAnswer,
    RecordCopy,
    RecordRequest,
    ReplicaAck,
    ReplicaGet,
    ReplicaGot,
    ReplicaPut,
    RequestId,
    SignedWrite,
    VersionsReply,
    VersionsRequest,
)
from peerd.services.records.record import Record, summary, to_copy

HEAD = bytes(SIGNATURE_BYTES)


def copy(proof: bytes, number: int = 0) -> RecordCopy:
    request = RequestId(NodeId(5), 1, number)
    version = RecordVersion(number, 1, NodeId(9))
    write = SignedWrite(300.0, 1e9, b"", proof)
    return RecordCopy("tests", NodeId(1), version, b"v", 300.0, 0.0, request, b"", NodeId(0), write)


heads = st.sampled_from([b"", b"short", HEAD, b"s" * SIGNATURE_BYTES])
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
    copies = [copy(bytes([number]) * SIGNATURE_BYTES + certificate, number) for number in range(50)]
    short, ends = shortened(copies)
    assert ends == (ProofEnd(certificate, tuple(range(50))),)
    assert {len(each.write.proof) for each in short} == {SIGNATURE_BYTES}
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


LONGEST = NodeId((1 << 128) - 1)
NUMBER = (1 << 64) - 1
LONGEST_VERSION = RecordVersion(NUMBER, NUMBER, LONGEST)


def longest(number: int, value: bytes = b"", proof: bytes = b"") -> Record:
    """A record of which everything but value and proof is as long as it may be."""
    write = SignedWrite(1e5, 1e9, bytes(VALUE_DIGEST_BYTES), proof)
    request = RequestId(LONGEST, NUMBER, NUMBER)
    item = number.to_bytes(ITEM_BYTES_MAX, "big")
    return Record("n" * NAME_LENGTH_MAX, LONGEST, LONGEST_VERSION, value, 1e5, 1e5, request, item, LONGEST, write)


@pytest.mark.parametrize(("value_bytes", "proof_bytes"), [(0, 2), (1, 64), (40, 1000), (0, limits.PROOF_BYTES_MAX)])
@pytest.mark.parametrize("is_alike", [False, True])
def test_every_batch_fits_its_messages_whatever_the_names(value_bytes: int, proof_bytes: int, is_alike: bool) -> None:
    records = [
        longest(number, bytes(value_bytes), (0 if is_alike else number).to_bytes(proof_bytes, "big"))
        for number in range(2 * BATCH_RECORDS_MAX)
    ]
    batch = batches(records)[0]
    copies, ends = shortened([to_copy(each, 0.0) for each in batch])
    known = tuple(KnownEnd(bytes(MARK_BYTES), end.indexes) for end in ends)
    messages = (
        ReplicaPut(copies, ends),
        ReplicaPut(copies, (), known),
        ReplicaAck((LACKS_PROOF,) * BATCH_RECORDS_MAX, copies, ends),
        VersionsReply(tuple(range(PAGE_RECORDS_MAX)), copies, True, ends),
        ReplicaGot(copies[0], True, tuple(to_copy(each, 0.0) for each in batch[1:])),
    )
    for message in messages:
        assert encode_body(message)


def test_the_longest_record_and_the_longest_page_fit() -> None:
    record = longest(0, bytes(VALUE_BYTES_HARD_MAX), bytes(limits.PROOF_BYTES_MAX))
    copy, write, version = to_copy(record, 0.0), record.write, record.version
    name, key, item, owner = record.namespace, record.key, record.item, record.owner
    one = RangeDigests(LONGEST, LONGEST, bytes(DIGESTS_BYTES), True, NUMBER, NUMBER)
    messages = (
        ReplicaPut((copy,)),
        ReplicaGot(copy, True),
        ReplicaGet(name, key, item, owner),
        VersionsRequest(LONGEST, LONGEST, (summary(record),) * PAGE_RECORDS_MAX, NUMBER, NUMBER),
        DigestRequest((one,) * RANGES_MAX, True),
        DigestReply((DifferingParts(tuple(range(BUCKETS))),) * RANGES_MAX, True),
        RecordAnswer(
            NUMBER, 255, 255, version, record.value, 1e5, 255, "d" * 256, owner, NUMBER, record.request, write
        ),
        RecordRequest(
            PUT, name, key, NUMBER, NUMBER, 255, record.value, 1e5, True, version, item, owner, 1e9, write.proof, NUMBER
        ),
    )
    for message in messages:
        assert encode_body(message)
