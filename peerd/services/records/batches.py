"""Records in one message: how many fit, and what their proofs have in common, which is said once. Pure.

A proof is a signature and the certificate of whoever signed, which is nine tenths of it. Most records that move between
two nodes at once have few writers, and a replica that has seen a writer's certificate gets a mark of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from peerd.ids import NodeId
from peerd.lib.proof_ends import SeenEnds, end_of, mark_of
from peerd.limits import SIGNATURE_BYTES
from peerd.services.records.messages import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    KnownEnd,
    ProofEnd,
    RecordCopy,
    ReplicaPut,
)
from peerd.services.records.record import Record

TOLD_MAX: Final = 4096
"""So many times this node remembers that a peer knows an end."""


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
    return _with_proof(copy, copy.write.proof[:SIGNATURE_BYTES])


def _with_proof(copy: RecordCopy, proof: bytes) -> RecordCopy:
    return replace(copy, write=replace(copy.write, proof=proof))


class ToldEnds:
    """Which ends peers are known to know. A guess: who has forgotten one says so, and gets it again."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[NodeId, bytes], None] = OrderedDict()

    def put_to(self, peer: NodeId, copies: Sequence[RecordCopy]) -> ReplicaPut:
        """The message that takes records to a peer, without the ends that it knows."""
        known: dict[bytes, list[int]] = {}
        left = list(copies)
        for index, copy in enumerate(copies):
            end = end_of(copy.write.proof)
            if end and (place := (peer, mark_of(end))) in self._told:
                self._told.move_to_end(place)
                known.setdefault(place[1], []).append(index)
                left[index] = without_end(copy)
        records, ends = shortened(left)
        return ReplicaPut(records, ends, tuple(KnownEnd(mark, tuple(indexes)) for mark, indexes in known.items()))

    def took(self, peer: NodeId, copy: RecordCopy) -> None:
        """A peer holds this record."""
        if end := end_of(copy.write.proof):
            self._told[peer, mark_of(end)] = None
            self._told.move_to_end((peer, mark_of(end)))
            if len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)

    def lacks(self, peer: NodeId, copy: RecordCopy) -> bool:
        """A peer says that it does not know the end of this record; whether it was thought to."""
        return self._told.pop((peer, mark_of(end_of(copy.write.proof))), False) is None


def complete(message: ReplicaPut, seen: SeenEnds) -> tuple[tuple[RecordCopy, ...], frozenset[int]]:
    """The records with whole proofs, and the indexes of those whose ends are not known here (any more)."""
    found = [ProofEnd(end, each.indexes) for each in message.known if (end := seen.find(each.mark)) is not None]
    lacking = _indexes(each for each in message.known if seen.find(each.mark) is None)
    return whole(message.records, (*message.ends, *found)), lacking


def _indexes(ends: Iterable[KnownEnd]) -> frozenset[int]:
    return frozenset(index for each in ends for index in each.indexes)
