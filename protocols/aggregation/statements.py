"""What the nodes of a round sign, because it reaches its reader through others: its start, its end and who takes part.

A round's id is a hash of everything that its requester says of it, and of a number drawn for it. So nobody can start
another round under the same id or pass the query on changed, and a signature over the id is one over all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from peerd.ids import NodeId, id_to_bytes
from peerd.messages import PeerRef

ROUND_ID_BYTES: Final = 16
NONCE_BYTES: Final = 16
_NUMBER_BYTES: Final = 8


def round_id_of(
    nonce: bytes,
    requester: PeerRef,
    query: bytes,
    begins_at_ms: int,
    lasts_ms: int,
    census: bool,
    is_direct: bool,
    nodes: Sequence[NodeId] = (),
    may_name: bool = False,
) -> bytes:
    """Return the id of the round that this node starts."""
    how = bytes((census, is_direct, may_name))
    named = b"".join(map(id_to_bytes, nodes))
    parts = (nonce, _peer(requester), _number(begins_at_ms), _number(lasts_ms), how, query, named)
    return hashlib.sha256(b"round" + _joined(parts)).digest()[:ROUND_ID_BYTES]


def start_statement(round_id: bytes) -> bytes:
    """The requester: I ask this."""
    return b"start" + round_id


def stop_statement(round_id: bytes) -> bytes:
    """The requester: there is no such round of mine (any more)."""
    return b"stop" + round_id


def answer_statement(round_id: bytes, requester: PeerRef, answered_at_ms: int, to: str, answer: bytes) -> bytes:
    """The requester: this is the answer of my round, which is over, and these nodes keep it."""
    parts = (_peer(requester), _number(answered_at_ms), to.encode(), answer)
    return b"answer" + round_id + hashlib.sha256(_joined(parts)).digest()


def enrolled_statement(
    round_id: bytes,
    node: PeerRef,
    reason: str,
    absent: Iterable[tuple[PeerRef, int]] = (),
    successor: NodeId | None = None,
) -> bytes:
    """A node: I take part, or do not for this reason; these neighbours of mine are missing for so long (ms), and this
    is the next node of the ring."""
    named = [part for peer, age_ms in absent for part in (_peer(peer), _number(age_ms))]
    following = () if successor is None else (id_to_bytes(successor),)
    said = _joined((_peer(node), reason.encode(), *named, *following))
    return b"enrolled" + round_id + hashlib.sha256(said).digest()


def names_statement(round_id: bytes, nodes: Iterable[PeerRef], in_pieces: bool) -> bytes:
    """The requester: these take part in my round, and their values go in pieces if so."""
    said = _joined((bytes((in_pieces,)), *map(_peer, nodes)))
    return b"names" + round_id + hashlib.sha256(said).digest()


def noted_statement(round_id: bytes, node: NodeId) -> bytes:
    """The requester: I count on this node."""
    return b"noted" + round_id + id_to_bytes(node)


def confirm_statement(round_id: bytes, node: NodeId) -> bytes:
    """The requester: a result names this node; does it take part?"""
    return b"confirm" + round_id + id_to_bytes(node)


def find_statement(round_id: bytes, asked: NodeId, node: NodeId) -> bytes:
    """The requester, to one node: a result names another one; has that one shown to you that it takes part?"""
    return b"find" + round_id + id_to_bytes(asked) + id_to_bytes(node)


def _peer(peer: PeerRef) -> bytes:
    return id_to_bytes(peer.id) + peer.address.encode()


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER_BYTES, "big")


def _joined(parts: Iterable[bytes]) -> bytes:
    """Each part with its length, so that no two lists of parts look alike."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
