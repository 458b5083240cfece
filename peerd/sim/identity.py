"""Signatures in the simulator: a keyed hash, whose secrets only the drivers of the nodes use.

A node's driver signs for that node and for no other, so a hostile simulated node can make up any bytes but not
somebody else's proof. Nobody is denied here. A proof is as long as in the daemon, so that bytes on the wire are
counted alike.
"""

from __future__ import annotations

import hashlib
from typing import Final

from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.limits import SIGNATURE_BYTES, STATEMENT_BYTES_MAX

PROOF_BYTES: Final = 576
"""A signature of 64 bytes and a certificate of some 515, in whole ids."""
_DIGEST_BYTES: Final = 32
_ID_BYTES: Final = 16
_ID_REPEATED: Final = (PROOF_BYTES - _DIGEST_BYTES) // _ID_BYTES


class SimulatedKeys:
    """The secrets of all nodes of one simulation. They belong to the drivers; nothing above a driver sees them."""

    def __init__(self, seed: int) -> None:
        self._secret = hashlib.sha256(f"statements/{seed}".encode()).digest()

    def sign(self, signer: NodeId, purpose: str, statement: bytes) -> bytes:
        """What proves that ``signer`` said it. Raises `Bug` for a statement that is too long."""
        if len(statement) > STATEMENT_BYTES_MAX:
            raise Bug(f"a statement of {len(statement)} bytes, limit {STATEMENT_BYTES_MAX}")
        return self._digest(signer, purpose, statement) + _rest(signer)

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        """Whether it is the proof that `sign` gives."""
        if len(proof) != PROOF_BYTES or len(statement) > STATEMENT_BYTES_MAX:
            return False
        return proof == self._digest(signer, purpose, statement) + _rest(signer)

    def verify_by_key(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes, key: bytes) -> bool:
        """Whether it begins like the proof that `sign` gives, and the key is the signer's."""
        if len(proof) != SIGNATURE_BYTES or len(statement) > STATEMENT_BYTES_MAX or key != public_key_of(signer):
            return False
        return proof == self.sign(signer, purpose, statement)[:SIGNATURE_BYTES]

    def _digest(self, signer: NodeId, purpose: str, statement: bytes) -> bytes:
        name = purpose.encode()
        head = signer.to_bytes(16, "big") + len(name).to_bytes(2, "big") + name
        return hashlib.blake2b(head + statement, key=self._secret, digest_size=_DIGEST_BYTES).digest()


def public_key_of(node: NodeId) -> bytes:
    """Stands for the key of a node and the salt of its id."""
    return node.to_bytes(_ID_BYTES, "big") * 3


def _rest(signer: NodeId) -> bytes:
    """Stands for what follows in every proof of one node, and differs from node to node: its certificate."""
    return signer.to_bytes(_ID_BYTES, "big") * _ID_REPEATED
