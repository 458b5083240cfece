"""Records without what their proofs end with, where the replica knows it already: a mark is sent in its place. Pure.

A root writes many records to the same few replicas, so each of them needs a writer's certificate only once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from peerd.ids import NodeId
from peerd.lib.proof_ends import SeenEnds, end_of, mark_of
from peerd.services.records.batches import shortened, whole, without_end
from peerd.services.records.messages import KnownEnd, ProofEnd, RecordCopy, ReplicaPut

TOLD_MAX: Final = 4096
"""So many times this node remembers that a peer knows an end."""


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
