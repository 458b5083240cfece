"""The 128-bit ring: ids, digits, prefixes, distances.

An id is an ``int`` in ``[0, 2**128)``: prefix and distance arithmetic are single integer operations.
On the wire it is 16 big-endian bytes, for people it is 32 hexadecimal digits. One digit is ``DIGIT_BITS``
(Pastry's b = 4) bits; digit 0 is the most significant one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import methodcaller
from typing import Final


class NodeId(int):
    """A point on the ring: the id of a node, or a key (the two share one space).

    A class of its own, because messages have 16 bytes for it where they have up to 8 for other whole numbers.
    """

    __slots__ = ()
    packed = property(methodcaller("to_bytes", 16, "big"))
    """Those bytes. In compiled code, as this runs for every id in a message that is sent."""


ID_BITS: Final = 128
ID_BYTES: Final = ID_BITS // 8
DIGIT_BITS: Final = 4
DIGITS: Final = ID_BITS // DIGIT_BITS
DIGIT_VALUES: Final = 1 << DIGIT_BITS
RING: Final = 1 << ID_BITS
_MASK: Final = RING - 1
_DIGIT_MASK: Final = DIGIT_VALUES - 1
_HALF: Final = RING >> 1


def digit(node_id: NodeId, index: int) -> int:
    """Digit number ``index`` (0 = most significant) of an id, in ``[0, 16)``."""
    return (node_id >> (ID_BITS - DIGIT_BITS * (index + 1))) & _DIGIT_MASK


def shared_prefix_bits(a: NodeId, b: NodeId) -> int:
    """How many leading bits two ids share (128 when equal)."""
    return ID_BITS - (a ^ b).bit_length()


def shared_prefix_digits(a: NodeId, b: NodeId) -> int:
    """How many leading base-16 digits two ids share (32 when equal)."""
    return (ID_BITS - (a ^ b).bit_length()) // DIGIT_BITS


def clockwise_distance(a: NodeId, b: NodeId) -> int:
    """Steps from ``a`` to ``b`` going up the ring, in ``[0, 2**128)``."""
    return (b - a) & _MASK


def ring_distance(a: NodeId, b: NodeId) -> int:
    """Steps between two ids the short way round, in ``[0, 2**127]``."""
    forward = (b - a) & _MASK
    return forward if forward <= _HALF else RING - forward


def closeness(key: NodeId, node_id: NodeId) -> tuple[int, int]:
    """Sort key for "numerically closest to ``key``": the smaller tuple is the closer node.

    Tie rule: of two nodes at equal distance the one with the smaller id is the root. It is a total order, so
    every node that knows both names the same root.
    """
    return ring_distance(key, node_id), node_id


def is_closer(key: NodeId, candidate: NodeId, incumbent: NodeId) -> bool:
    """Whether ``candidate`` is strictly closer to ``key`` than ``incumbent`` (see `closeness`)."""
    return closeness(key, candidate) < closeness(key, incumbent)


def closest(key: NodeId, candidates: Iterable[NodeId]) -> NodeId:
    """The root of ``key`` among ``candidates``. Raises ``ValueError`` when there are none."""
    return min(candidates, key=lambda node_id: closeness(key, node_id))


def with_shared_prefix(node_id: NodeId, bits: int, random_bits: int) -> NodeId:
    """An id that shares exactly ``bits`` leading bits with ``node_id``; the rest comes from ``random_bits``.

    ``random_bits`` is a uniform integer of 128 bits. This draws a uniform member of the paper's L^i set
    (Cappos and Hartman 2008, section 2: nodes whose longest common prefix is exactly i bits).
    """
    if not 0 <= bits < ID_BITS:
        raise ValueError(f"a proper shared prefix has 0 to {ID_BITS - 1} bits, not {bits}")
    tail = ID_BITS - bits - 1
    kept_and_flipped = ((node_id >> tail) ^ 1) << tail
    return NodeId(kept_and_flipped | (random_bits & ((1 << tail) - 1)))


def id_to_bytes(node_id: NodeId) -> bytes:
    """16 big-endian bytes."""
    return node_id.to_bytes(ID_BYTES, "big")


def id_from_bytes(data: bytes) -> NodeId:
    """Inverse of `id_to_bytes`. Raises ``ValueError`` unless given exactly 16 bytes."""
    if len(data) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(data)}")
    return NodeId(int.from_bytes(data, "big"))


def format_id(node_id: NodeId) -> str:
    """32 lower-case hexadecimal digits."""
    return f"{node_id:032x}"


def short_id(node_id: NodeId) -> str:
    """The first 8 hexadecimal digits, for tables and logs that people read."""
    return f"{node_id >> 96:08x}"


def parse_id(text: str) -> NodeId:
    """Inverse of `format_id`. Raises ``ValueError`` unless given exactly 32 hexadecimal digits."""
    if len(text) != DIGITS or any(character not in "0123456789abcdefABCDEF" for character in text):
        raise ValueError(f"an id has {DIGITS} hexadecimal digits, not {text[:64]!r}")
    return NodeId(int(text, 16))


def key_of(text: str) -> NodeId:
    """The key that a name hashes to: the first 128 bits of SHA-256 of its UTF-8 form."""
    return NodeId(int.from_bytes(hashlib.sha256(text.encode()).digest()[:ID_BYTES], "big"))
