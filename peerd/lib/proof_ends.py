"""What proofs end with, where the other node knows it already: a mark stands for it. Pure.

A proof is a signature and its signer's certificate, which is nine tenths of it and the same in all proofs of one node.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from peerd.limits import SIGNATURE_BYTES

MARK_BYTES: Final = 16
ENDS_KEPT_MAX: Final = 4096
"""Ends of genuine proofs that are remembered, those used last: 2.5 MiB."""


def end_of(proof: bytes) -> bytes:
    """The certificate; empty where there are no proofs."""
    return proof[SIGNATURE_BYTES:]


def mark_of(end: bytes) -> bytes:
    """What stands for an end."""
    return blake2b(end, digest_size=MARK_BYTES).digest()


def shortened(proof: bytes) -> bytes:
    """The proof with a mark in place of its end."""
    end = end_of(proof)
    return proof[:SIGNATURE_BYTES] + mark_of(end) if end else proof


def is_short(proof: bytes) -> bool:
    """Whether it is a shortened one: no certificate is as short as a mark."""
    return len(proof) == SIGNATURE_BYTES + MARK_BYTES


class SeenEnds:
    """The ends of genuine proofs that have come here, by their marks."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, bytes] = OrderedDict()

    def note(self, proof: bytes) -> None:
        """This whole proof is genuine: nobody can have others remembered than those of members."""
        if end := end_of(proof):
            mark = mark_of(end)
            self._seen[mark] = end
            self._seen.move_to_end(mark)
            if len(self._seen) > ENDS_KEPT_MAX:
                self._seen.popitem(last=False)

    def find(self, mark: bytes) -> bytes | None:
        """The end for which it stands; ``None``: it is not known here (any more)."""
        return self._seen.get(mark)

    def whole(self, proof: bytes) -> bytes | None:
        """The proof with its end; ``None``: that is not known here."""
        if not is_short(proof):
            return proof
        end = self.find(end_of(proof))
        return None if end is None else proof[:SIGNATURE_BYTES] + end
