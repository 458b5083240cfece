"""An operator's order to forget nodes, which the node where it is given signs and everybody passes on. Pure.

The order ends only absences that began before it was given. So whoever shows an old one again, after those nodes were
back and are lost once more, achieves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from struct import pack
from typing import Final

from peerd.ids import NodeId, id_to_bytes

AHEAD_MAX_S: Final = 600.0
"""An order is not taken from a node whose clock is further ahead: it could be shown again for all that time."""

_TAG: Final = b"forget 1"


def statement(nodes: Iterable[NodeId], said_at: float) -> bytes:
    """What the node signs at which the order is given, at ``said_at`` by its clock."""
    return _TAG + pack(">d", said_at) + sha256(b"".join(map(id_to_bytes, nodes))).digest()
