"""What proofs end with, where the other node knows it already: a mark is sent in its place. Pure.

A proof is a signature and its writer's certificate, which is most of a small record. A root writes many records to the
same few replicas, so each of them needs the certificate only once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from peerd.ids import NodeId
from peerd.services.records.batches import PROOF_HEAD_BYTES, shortened, whole, without_end
from peerd.services.records.messages import MARK_BYTES, KnownEnd, ProofEnd, RecordCopy, ReplicaPut

ENDS_KEPT_MAX: Final = 1024
"""Ends that were seen in genuine records and are remembered, those used last: less than a MiB."""
TOLD_MAX: Final = 4096
"""So many times this node remembers that a peer knows an end."""


def end_of(copy: RecordCopy) -> bytes:
    """What a record's proof ends with; empty where there are no proofs."""
    return copy.write.proof[PROOF_HEAD_BYTES:]


def mark_of(end: bytes) -> bytes:
    """What stands for an end."""
    return blake2b(end, digest_size=MARK_BYTES).digest()


class ToldEnds:
    """Which ends peers are known to know. A guess: who has forgotten one says so, and gets it again."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[NodeId, bytes], None] = OrderedDict()

    def put_to(self, peer: NodeId, copies: Sequence[RecordCopy]) -> ReplicaPut:
        """The message that takes records to a peer, without the ends that it knows."""
        known: dict[bytes, list[int]] = {}
        left = list(copies)
        for index, copy in enumerate(copies):
            end = end_of(copy)
            if end and (place := (peer, mark_of(end))) in self._told:
                self._told.move_to_end(place)
                known.setdefault(place[1], []).append(index)
                left[index] = without_end(copy)
        records, ends = shortened(left)
        return ReplicaPut(records, ends, tuple(KnownEnd(mark, tuple(indexes)) for mark, indexes in known.items()))

    def took(self, peer: NodeId, copy: RecordCopy) -> None:
        """A peer holds this record."""
        if end := end_of(copy):
            self._told[peer, mark_of(end)] = None
            self._told.move_to_end((peer, mark_of(end)))
            if len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)

    def lacks(self, peer: NodeId, copy: RecordCopy) -> bool:
        """A peer says that it does not know the end of this record; whether it was thought to."""
        return self._told.pop((peer, mark_of(end_of(copy))), False) is None


class SeenEnds:
    """The ends of genuine records that this node has taken in, by their marks."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, bytes] = OrderedDict()

    def note(self, copy: RecordCopy) -> None:
        """A record is genuine."""
        if end := end_of(copy):
            mark = mark_of(end)
            self._seen[mark] = end
            self._seen.move_to_end(mark)
            if len(self._seen) > ENDS_KEPT_MAX:
                self._seen.popitem(last=False)

    def complete(self, message: ReplicaPut) -> tuple[tuple[RecordCopy, ...], frozenset[int]]:
        """The records with whole proofs, and the indexes of those whose ends are not known here (any more)."""
        found = [ProofEnd(self._seen[each.mark], each.indexes) for each in message.known if each.mark in self._seen]
        lacking = _indexes(each for each in message.known if each.mark not in self._seen)
        return whole(message.records, (*message.ends, *found)), lacking


def _indexes(ends: Iterable[KnownEnd]) -> frozenset[int]:
    return frozenset(index for each in ends for index in each.indexes)
