"""Whose a record is, and what the writer of a version signs. Pure.

An owned record is one node's: its owner is part of what names it, so what two nodes write under one key are two
records, and no order of arrival, no lost message and no lie of a third node can make one of them replace the other. A
shared record is written by anybody, and names nobody.
"""

from __future__ import annotations

from hashlib import sha256
from struct import pack
from typing import Final

from peerd.ids import NodeId, id_to_bytes

SHARED: Final = NodeId(0)
"""In the place of an owner: everybody may write. No node has this id (but by a chance of 1 in 2^128)."""
CLOCK_MARGIN_S: Final = 600.0
"""A write is taken in until this long after the end of the lifetime that its writer has signed, by the clock of whoever
takes it. It is no longer than a tombstone outlives what it deleted, so what was deleted cannot be shown again."""

_TAG: Final = b"record 1"


def value_digest(value: bytes) -> bytes:
    """What stands for a value in a statement."""
    return sha256(value).digest()


def statement(
    namespace: str,
    key: NodeId,
    item: bytes,
    owner: NodeId,
    digest: bytes,
    epoch: int,
    sequence: int,
    ttl_s: float,
    until_s: float,
) -> bytes:
    """What a writer signs. ``digest`` is that of the value, empty for a deletion.

    The number of the write (``epoch``, ``sequence``) and the end of its life make it fresh: an older write never
    replaces a newer one of the same node, and after its end nobody takes it in.
    """
    name = namespace.encode()
    numbers = pack(">HHHQQdd", len(name), len(item), len(digest), epoch, sequence, ttl_s, until_s)
    return b"".join((_TAG, numbers, id_to_bytes(key), id_to_bytes(owner), name, item, digest))
