"""The id of a round, which says whose it is and who may end it, though it travels through others.

A requester draws a key for each round and tells its hash, the *lock*, with the query. The id is a hash of lock,
requester and query: nobody can start another round under the same id, or pass the query on changed. The key itself is
told when the round is over: whoever shows it is the requester, or has it from the requester.
"""

from __future__ import annotations

import hashlib
from typing import Final

from peerd.ids import NodeId, id_to_bytes

ROUND_ID_BYTES: Final = 16
KEY_BYTES: Final = 16
LOCK_BYTES: Final = 16


def lock_of(key: bytes) -> bytes:
    """Return the lock that this key opens."""
    return hashlib.sha256(b"lock" + key).digest()[:LOCK_BYTES]


def round_id_of(lock: bytes, requester: NodeId, query: bytes) -> bytes:
    """Return the id of the round for this query."""
    return hashlib.sha256(b"round" + lock + id_to_bytes(requester) + query).digest()[:ROUND_ID_BYTES]
