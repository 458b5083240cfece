"""Batches of items, of which a producer signs each once: so that who gets a few of one can check these alone. Pure.

A batch is what a producer has to send at one moment, up to `BATCH_MAX` items, one after the other in the stream. Its
items are the leaves of a Merkle tree, and the root is what is signed. A node keeps of a batch which items it has, the
digests of these, and one digest for each largest part of the tree of which it has none (the *frontier*, left to right).
From that it can make what a child needs that gets only some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from struct import Struct
from typing import Final

from peerd.limits import SIGNATURE_BYTES

BATCH_MAX: Final = 256
DIGEST_BYTES: Final = 20
"""Of SHA-256. What stands before a payload, its place above all, its publisher cannot choose: so that a forger needs
another item of the same digest, at 2^160, and cannot make a pair of them beforehand."""
DIGESTS_MAX: Final = BATCH_MAX // 2
"""Largest parts without any of the items that a message has of a batch: every other one, at worst."""
_PLACE: Final = Struct(">QQH")
_LEAF: Final = b"\0"
_NODE: Final = b"\1"


def item_digest(packed: bytes) -> bytes:
    """Of all that a reader sees of an item, as it travels."""
    return sha256(_LEAF + packed).digest()[:DIGEST_BYTES]


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()[:DIGEST_BYTES]


def _middle(low: int, high: int) -> int:
    """Where a part of the tree is divided: the left half is as large as a power of two can be."""
    return low + (1 << ((high - low - 1).bit_length() - 1))


def _bits(low: int, high: int) -> int:
    return ((1 << (high - low)) - 1) << low


class SealedBatch:
    """What a node has of one batch. The producer's own is open until it is needed: then it is signed."""

    __slots__ = ("_frontier", "_root", "_sign", "certificate", "count", "epoch", "first", "present", "signature")

    def __init__(self, epoch: int, first: int, sign: Callable[[SealedBatch], bytes] | None = None) -> None:
        """``first``: the number of its first item. ``sign`` makes the proof, when the batch is closed."""
        self.epoch, self.first, self.count, self.present = epoch, first, 0, 0
        self.signature = self.certificate = b""
        self._sign = sign
        self._frontier = self._root = b""

    @classmethod
    def read(cls, epoch: int, first: int, count: int, own: Mapping[int, bytes], others: bytes) -> SealedBatch:
        """Of what a parent has sent: the digests of these items, by their index, and those of the largest other parts.

        Raises ``ValueError`` where ``others`` has more or fewer digests than that needs.
        """
        batch = cls(epoch, first)
        batch.count, batch.present = count, sum(1 << index for index in own)
        at, parts = 0, []

        def walk(low: int, high: int) -> bytes:
            nonlocal at
            if high - low > 1 and batch.present & _bits(low, high):
                middle = _middle(low, high)
                return _node(walk(low, middle), walk(middle, high))
            if low in own:
                digest = own[low]
            else:
                digest = others[at : at + DIGEST_BYTES]
                at += DIGEST_BYTES
            parts.append(digest)
            return digest

        batch._root = walk(0, count)
        if at != len(others):
            raise ValueError(f"{len(others)} bytes of digests for {len(own)} of {count} items, expected {at}")
        batch._frontier = b"".join(parts)
        return batch

    def is_next(self, epoch: int, sequence: int) -> bool:
        """Whether an item goes into this batch of the producer, as the last one so far."""
        is_next = epoch == self.epoch and sequence == self.first + self.count
        return self._sign is not None and is_next and self.count < BATCH_MAX

    def add(self, digest: bytes) -> None:
        """The producer has one more item."""
        self.present |= 1 << self.count
        self.count += 1
        self._frontier += digest

    def take_back(self) -> None:
        """The last item was refused in the end."""
        self.count -= 1
        self.present &= ~(1 << self.count)
        self._frontier = self._frontier[:-DIGEST_BYTES]

    def close(self) -> None:
        """Have it signed, unless that was done: nothing is added any more."""
        if self._sign is not None:
            sign, self._sign = self._sign, None
            proof = sign(self)
            self.signature, self.certificate = proof[:SIGNATURE_BYTES], proof[SIGNATURE_BYTES:]

    def statement(self, stream: bytes) -> bytes:
        """What is signed: ``stream`` names the stream and its creator."""
        return b"items" + stream + _PLACE.pack(self.epoch, self.first, self.count) + self.root()

    def root(self) -> bytes:
        """The digest of the whole batch."""
        if self._root:
            return self._root
        level = self._parts()
        while len(level) > 1:  # from below, which is faster for the one who has all of it
            odd = level[-1:] if len(level) % 2 else []
            level = [_node(left, right) for left, right in zip(level[::2], level[1::2], strict=False)] + odd
        return level[0]

    def _parts(self) -> list[bytes]:
        return [self._frontier[at : at + DIGEST_BYTES] for at in range(0, len(self._frontier), DIGEST_BYTES)]

    def without(self, wanted: int) -> bytes:
        """What somebody needs who gets only these items (a bit for each): the digests of the largest parts without any.

        They have to be among those that are here.
        """
        present, parts, found = self.present, iter(self._parts()), list[bytes]()

        def digest(low: int, high: int) -> bytes:
            if high - low == 1 or not present & _bits(low, high):
                return next(parts)
            middle = _middle(low, high)
            return _node(digest(low, middle), digest(middle, high))

        def look(low: int, high: int) -> None:
            if not wanted & _bits(low, high):
                found.append(digest(low, high))
            elif high - low == 1:
                next(parts)
            else:
                middle = _middle(low, high)
                look(low, middle)
                look(middle, high)

        if wanted != _bits(0, self.count):
            look(0, self.count)
        return b"".join(found)
