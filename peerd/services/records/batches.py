"""Records in one message: how many fit, and what their proofs have in common, which is said once. Pure.

A proof is a signature and the certificate of whoever signed, which is nine tenths of it. Most records that move between
two nodes at once have few writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from peerd.lib.proof_ends import HEAD_BYTES, end_of
from peerd.services.records.messages import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, ProofEnd, RecordCopy
from peerd.services.records.record import Record


def batches(records: Sequence[Record]) -> list[list[Record]]:
    """Cut into parts that fit one message each; the order stays."""
    found: list[list[Record]] = []
    size = BATCH_BYTES_MAX
    for record in records:
        size += record.charge_bytes
        if size > BATCH_BYTES_MAX or len(found[-1]) >= BATCH_RECORDS_MAX:
            found.append([])
            size = record.charge_bytes
        found[-1].append(record)
    return found


def first_batch(records: Iterable[Record]) -> tuple[list[Record], bool]:
    """Those of the records that fit one message, and whether there are more; takes at most one further."""
    found: list[Record] = []
    size = 0
    for record in records:
        size += record.charge_bytes
        if found and (size > BATCH_BYTES_MAX or len(found) >= BATCH_RECORDS_MAX):
            return found, True
        found.append(record)
    return found, False


def shortened(copies: Sequence[RecordCopy]) -> tuple[tuple[RecordCopy, ...], tuple[ProofEnd, ...]]:
    """The copies without what several of their proofs end with, and these ends."""
    alike: dict[bytes, list[int]] = {}
    for index, copy in enumerate(copies):
        alike.setdefault(end_of(copy.write.proof), []).append(index)
    found = list(copies)
    ends: list[ProofEnd] = []
    for end, indexes in alike.items():
        if end and len(indexes) > 1:
            ends.append(ProofEnd(end, tuple(indexes)))
            for index in indexes:
                found[index] = without_end(found[index])
    return tuple(found), tuple(ends)


def whole(copies: Sequence[RecordCopy], ends: Sequence[ProofEnd]) -> tuple[RecordCopy, ...]:
    """The copies with whole proofs. Each gets one end at most, and an index beyond them means nothing."""
    by_index = {index: end.end for end in ends for index in end.indexes}
    if not by_index:
        return tuple(copies)
    return tuple(
        _with_proof(copy, copy.write.proof + by_index[index]) if index in by_index else copy
        for index, copy in enumerate(copies)
    )


def without_end(copy: RecordCopy) -> RecordCopy:
    """The copy with only the head of its proof."""
    return _with_proof(copy, copy.write.proof[:HEAD_BYTES])


def _with_proof(copy: RecordCopy, proof: bytes) -> RecordCopy:
    return replace(copy, write=replace(copy.write, proof=proof))
