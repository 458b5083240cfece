"""What a producer signs: no node on the way can alter, make up, move or take from elsewhere what others get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef, encode_body
from peerd.sim.identity import SimulatedKeys
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.front.hostile_base import altered
from protocols.dissemination.messages import (
    ITEMS_BYTES_MAX,
    ITEMS_MAX,
    ItemBatch,
    Seal,
    StreamItem,
)
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import StreamPosition, epoch_of, stream_key
from protocols.dissemination.proving import Proofs
from protocols.dissemination.sealing import BATCH_MAX, DIGEST_BYTES, SealedBatch, item_digest
from protocols.dissemination.stream import FORMER_MAX, StreamRecord
from protocols.dissemination.tree.seals import in_messages, seals_of

KEYS = SimulatedKeys(1)
PEERS = [PeerRef(NodeId((number << 120) + number), "10.0.0.1", 1000 + number) for number in range(1, 40)]
RECORD = StreamRecord.of(StreamSpec(name="news", kind="classes"), PEERS[0])
MANIFEST = Attachment("a.iso", 300_000, 256 * 1024, b"x" * 64)


def proofs_of(record: StreamRecord = RECORD, node: PeerRef = PEERS[0]) -> Proofs:
    """Those of one node."""

    def verify(signer: NodeId, statement: bytes, proof: bytes) -> bool:
        return KEYS.verify(signer, "dissemination", statement, proof)

    return Proofs(lambda: record, lambda statement: KEYS.sign(node.id, "dissemination", statement), verify)


def published(
    count: int, record: StreamRecord = RECORD, node: PeerRef = PEERS[0], first: int = 1, boot: int = 7
) -> list[StreamItem]:
    """A batch, as its producer sends it."""
    proofs, epoch = proofs_of(record, node), epoch_of(record.term, boot)
    return [
        proofs.sealed(StreamItem.of(epoch, number, 1000 + number, b"item %d" % number, "text/plain"))
        for number in range(first, first + count)
    ]


def bare(items: Iterable[StreamItem]) -> list[StreamItem]:
    """The items as they travel."""
    return [StreamItem.unpack(item.packed) for item in items]


def other(item: StreamItem, **changes: Any) -> StreamItem:
    """The item as somebody has altered it."""
    return StreamItem.unpack(altered(item.packed, **changes))


def passed_on(items: Sequence[StreamItem], record: StreamRecord = RECORD) -> list[StreamItem]:
    """What a child gets of items; raises what it raises."""
    seals, certificate = seals_of(items)
    return proofs_of(record, PEERS[9]).checked(bare(items), seals, certificate)


@given(st.integers(1, BATCH_MAX), st.randoms(use_true_random=False))
def test_whoever_gets_a_part_of_a_part_can_check_it_alone(count: int, rng: Random) -> None:
    """Down three edges, each with fewer items: the same root, and never more digests than halvings for an item."""
    items, some = published(count), list(range(count))
    for _ in range(3):
        some = sorted(rng.sample(some, rng.randint(1, len(some))))
        chosen = [items[index] for index in range(len(items)) if items[index].position.sequence - 1 in some]
        got = passed_on(chosen)
        assert bare(got) == bare(chosen)
        [seal] = seals_of(got)[0]
        assert len(seal.digests) <= DIGEST_BYTES * len(chosen) * (count - 1).bit_length()
        items = got


def test_all_of_a_batch_needs_a_signature_and_nothing_else() -> None:
    [seal] = seals_of(published(100))[0]
    assert seal.digests == b"" and (seal.first, seal.count) == (1, 100)


ALTERED: dict[str, dict[str, Any]] = {
    "payload": {"payload": b"item 9"},
    "time": {"published_ms": 5},
    "content type": {"content_type": "text/html"},
    "a manifest": {"attachment": MANIFEST},
    "number": {"sequence": 4},
    "number outside the batch": {"sequence": 99},
    "number before the batch": {"sequence": 20},
    "boot": {"epoch": epoch_of(0, 8)},
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_item_that_was_altered_is_noticed(what: str) -> None:
    items = published(8, first=40)[:3]
    seals, certificate = seals_of(items)
    false = [items[0], items[1], other(items[2], **ALTERED[what])]
    with pytest.raises(ProtocolError) as caught:
        proofs_of(node=PEERS[9]).checked(false, seals, certificate)
    assert caught.value.reason == "forged"


def test_items_that_change_places_are_noticed() -> None:
    one, two, *_ = items = published(4)
    swapped = [
        other(one, payload=two.payload),
        other(two, payload=one.payload),
        *items[2:],
    ]
    with pytest.raises(ProtocolError, match="has not signed"):
        proofs_of().checked(swapped, *seals_of(items))


def test_a_manifest_is_signed_also_in_an_unsigned_stream() -> None:
    record = StreamRecord.of(StreamSpec(name="news", kind="classes", unsigned=True), PEERS[0])
    proofs = proofs_of(record)
    items = [
        proofs.sealed(StreamItem.of(7, number, 0, b"x", "", MANIFEST if number == 2 else None))
        for number in range(1, 5)
    ]
    seals, certificate = seals_of(items)
    assert [(seal.items, seal.count) for seal in seals] == [(1, 0), (1, 1), (2, 0)]
    assert bare(passed_on(items, record)) == bare(items)
    others = [other(item, payload=b"y") if item.attachment is None else item for item in items]
    got = proofs_of(record).checked(bare(others), seals, certificate)
    assert bare(got) == bare(others)  # which is what its creator has chosen
    swapped = [*items[:1], other(items[1], attachment=replace(MANIFEST, digests=b"y" * 64)), *items[2:]]
    with pytest.raises(ProtocolError, match="has not signed"):
        proofs_of(record).checked(swapped, seals, certificate)
    with pytest.raises(ProtocolError, match="is not signed"):
        proofs_of(record).checked(items, (), b"")


def test_what_is_not_signed_is_no_item_of_a_signed_stream() -> None:
    items = published(3)
    seals, certificate = seals_of(items)
    for left in ((), (Seal(3),), (Seal(1), replace(seals[0], items=2)), seals * 2, (replace(seals[0], items=2),)):
        with pytest.raises(ProtocolError) as caught:
            proofs_of().checked(items, left, certificate)
        assert caught.value.reason == "forged"


def test_a_signature_of_another_stream_or_another_one_of_the_name_says_nothing() -> None:
    for other in (
        RECORD.model_copy(update={"name": "olds"}),
        RECORD.model_copy(update={"creator": format_id(PEERS[3].id)}),
    ):
        items = published(3, other)
        with pytest.raises(ProtocolError, match="has not signed"):
            passed_on(items)


def test_a_member_cannot_sign_for_the_producer() -> None:
    with pytest.raises(ProtocolError, match="has not signed"):
        passed_on(published(3, node=PEERS[5]))


def test_the_producer_of_each_term_signs_for_that_term() -> None:
    second = RECORD.handed_to(PEERS[1])
    third = second.taken_over(PEERS[2], 0).taken_back()
    old, middle, new = published(3), published(3, second, PEERS[1]), published(3, third, PEERS[2])
    for items in (old, middle, new):
        assert bare(passed_on(items, third)) == bare(items)
    for record, node in ((third, PEERS[0]), (third, PEERS[1]), (second, PEERS[0]), (RECORD, PEERS[2])):
        with pytest.raises(ProtocolError, match="has not signed"):
            passed_on(published(3, record, node), third)
    assert not proofs_of(second).is_term_known(seals_of(new)[0]) and proofs_of(third).is_term_known(seals_of(new)[0])
    assert proofs_of(second).is_term_known(seals_of(old)[0])


def test_items_of_a_term_that_nobody_knows_any_more_are_left_out() -> None:
    record = RECORD
    for number in range(FORMER_MAX + 1):
        record = record.handed_to(PEERS[1 + number])
    assert passed_on(published(2), record) == []
    assert len(record.former) == FORMER_MAX and record.encode()
    assert passed_on(published(2, RECORD.handed_to(PEERS[1]), PEERS[1]), record)


@given(st.integers(1, 40), st.binary(max_size=200), st.data())
def test_any_digests_are_no_proof(count: int, junk: bytes, data: st.DataObject) -> None:
    items = published(count)
    some = data.draw(st.lists(st.sampled_from(items), min_size=1, unique_by=lambda item: item.position.sequence))
    some.sort(key=lambda item: item.position.sequence)
    seals, certificate = seals_of(some)
    if junk != seals[0].digests:
        with pytest.raises(ProtocolError):
            proofs_of().checked(some, (replace(seals[0], digests=junk),), certificate)


def test_a_batch_is_what_is_there_to_be_sent() -> None:
    proofs = proofs_of()
    first = [proofs.sealed(StreamItem.of(7, number, 0, b"x")) for number in (1, 2)]
    assert len(seals_of(first)[0]) == 1  # they are sent: from now on the next batch
    second = proofs.sealed(StreamItem.of(7, 3, 0, b"x"))
    refused = proofs.sealed(StreamItem.of(7, 4, 0, b"refused"))
    proofs.take_back(refused)
    third = proofs.sealed(StreamItem.of(7, 4, 0, b"x"))
    [before, after] = seals_of([*first, second, third])[0]
    assert (before.first, before.count, after.first, after.count) == (1, 2, 3, 2)
    assert passed_on([*first, second, third])


def test_what_comes_in_several_messages_is_checked_once() -> None:
    asked: list[bytes] = []

    def verify(signer: NodeId, statement: bytes, proof: bytes) -> bool:
        asked.append(statement)
        return KEYS.verify(signer, "dissemination", statement, proof)

    proofs, items = Proofs(lambda: RECORD, lambda statement: b"", verify), published(9)
    for part in (items[:4], items[4:5], items[5:]):
        assert bare(proofs.checked(bare(part), *seals_of(part))) == bare(part)
    assert len(asked) == 1


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3000), st.integers(0, 2)), min_size=1, max_size=120))
def test_messages_with_seals_fit(batches: list[tuple[int, int, int]]) -> None:
    """Whatever the batches: small, with holes, and of producers with other certificates."""
    records = [RECORD, RECORD.handed_to(PEERS[1]), RECORD.handed_to(PEERS[1]).handed_to(PEERS[2])]
    items: list[StreamItem] = []
    for at, (count, size, term) in enumerate(sorted(batches, key=lambda batch: batch[2])):
        proofs = proofs_of(records[term], PEERS[term])
        batch = [
            proofs.sealed(StreamItem.of(epoch_of(term, 7), 10 * at + number, 1, bytes(size))) for number in range(1, 10)
        ]
        items += batch[::2][:count]
    watermark = StreamPosition(1, 1)
    for some in in_messages(items):
        seals, certificate = seals_of(some)
        carried = ItemBatch(
            stream_key("news"), tuple(item.packed for item in some), watermark, 1, 1, seals, certificate
        )
        assert len(encode_body(carried)) < ItemBatch.BYTES_MAX
        assert len(some) <= ITEMS_MAX and sum(item.size for item in some) <= ITEMS_BYTES_MAX
        assert bare(proofs_of(records[2]).checked(bare(some), seals, certificate)) == bare(some)


def test_no_leaf_is_taken_for_a_part_of_the_tree() -> None:
    digests = [item_digest(b"x%d" % number) for number in range(4)]
    whole, half = SealedBatch(1, 1), SealedBatch(1, 1)
    for digest in digests:
        whole.add(digest)
    for left, right in list(pairwise(digests))[::2]:
        half.add(item_digest(left + right))
    assert whole.root() != half.root()
