"""What a node says through others: signed with its own key, checked with the certificate that comes along.

A proof is an Ed25519 signature (64 bytes) and behind it the signer's certificate in DER, some 600 bytes. So anybody can
check it who trusts the cluster's root, without asking anybody. What is signed begins with a fixed tag, the cluster's
name and the purpose, each with its length: a signature for one purpose is one for no other, and neither is a TLS
handshake, which the same key signs, too.

A certificate is checked as that of a link, but for one thing: its end does not count. A statement may be kept for
longer than the day that a certificate lives, and says itself until when it holds. Who must not be heard any more is
denied, and a root that is not trusted any more takes all that was certified by it along.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from peerd.errors import Bug, ConfigError, HandshakeRefused
from peerd.identity.node_identity import SALT_BYTES, PeerIdentity, derive_node_id, public_key_der, read_identity
from peerd.identity.roots import Roots
from peerd.ids import NodeId
from peerd.limits import PROOF_BYTES_MAX, SIGNATURE_BYTES, STATEMENT_BYTES_MAX

TAG: Final = b"peerd-statement-v1"
KEY_BYTES: Final = 32
CERTIFICATES_KEPT_MAX: Final = 4096
"""So many checked certificates are remembered, about 1 KiB each; checking one again costs about 0.25 ms."""


class Denied(NamedTuple):
    """Whom nobody of the cluster talks to."""

    ids: frozenset[NodeId]
    serials: frozenset[int]


class _Known(NamedTuple):
    """What was found in a certificate that a trusted root has issued."""

    node_id: NodeId
    serial: int
    public_key: Ed25519PublicKey


class Statements:
    """Implements `peerd.driver.Identity` with a node's key and certificate.

    ``roots`` and ``denied`` give what is trusted at the moment. Make it with the node's certificate in DER, and call
    `use` with every one that follows. Raises `ConfigError` as `use` does.
    """

    def __init__(
        self,
        cluster: str,
        key: Ed25519PrivateKey,
        certificate_der: bytes,
        *,
        roots: Callable[[], Roots],
        denied: Callable[[], Denied],
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._roots = roots
        self._denied = denied
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._known_under: Roots | None = None
        self.use(certificate_der)

    def use(self, certificate_der: bytes) -> None:
        """Put this certificate of the same key into proofs from now on. Raises `ConfigError` for one too large."""
        if SIGNATURE_BYTES + len(certificate_der) > PROOF_BYTES_MAX:
            limit = PROOF_BYTES_MAX - SIGNATURE_BYTES
            raise ConfigError(f"the node's certificate has {len(certificate_der)} bytes, at most {limit} are usable")
        self._certificate = certificate_der

    def sign(self, purpose: str, statement: bytes) -> bytes:
        """See `peerd.driver.Identity.sign`."""
        if len(statement) > STATEMENT_BYTES_MAX:
            raise Bug(f"a statement of {len(statement)} bytes, limit {STATEMENT_BYTES_MAX}")
        return self._key.sign(signed_bytes(self._cluster, purpose, statement)) + self._certificate

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        """See `peerd.driver.Identity.verify`."""
        if not SIGNATURE_BYTES < len(proof) <= PROOF_BYTES_MAX or len(statement) > STATEMENT_BYTES_MAX:
            return False
        known = self._certified(proof[SIGNATURE_BYTES:])
        if known is None or known.node_id != signer:
            return False
        denied = self._denied()
        if signer in denied.ids or known.serial in denied.serials:
            return False
        signed = signed_bytes(self._cluster, purpose, statement)
        return _has_signed(known.public_key, signed, proof[:SIGNATURE_BYTES])

    def public_key(self) -> bytes:
        """See `peerd.driver.Identity.public_key`."""
        return self._key_and_salt

    @cached_property
    def _key_and_salt(self) -> bytes:
        return self._key.public_key().public_bytes_raw() + read_identity(self._certificate).salt

    def verify_by_key(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes, key: bytes) -> bool:
        """See `peerd.driver.Identity.verify_by_key`."""
        if (len(proof), len(key)) != (SIGNATURE_BYTES, KEY_BYTES + SALT_BYTES) or len(statement) > STATEMENT_BYTES_MAX:
            return False
        public_key = Ed25519PublicKey.from_public_bytes(key[:KEY_BYTES])
        is_its_key = derive_node_id(public_key_der(public_key), key[KEY_BYTES:]) == signer
        if not is_its_key or signer in self._denied().ids:
            return False
        return _has_signed(public_key, signed_bytes(self._cluster, purpose, statement), proof)

    def _certified(self, der: bytes) -> _Known | None:
        """Whose certificate it is, if a root that is trusted now has issued it to a node of this cluster."""
        roots = self._roots()
        if roots is not self._known_under:
            self._known.clear()
            self._known_under = roots
        known = self._known.get(der)
        if known is not None:
            self._known.move_to_end(der)
            return known
        identity = _issued_identity(der, roots)
        if identity is None or identity.cluster != self._cluster:
            return None  # not remembered: whoever makes up certificates must not push out those of members
        known = self._known[der] = _Known(identity.node_id, identity.serial, identity.public_key)
        if len(self._known) > CERTIFICATES_KEPT_MAX:
            self._known.popitem(last=False)
        return known


class WithoutKeys:
    """Implements `peerd.driver.Identity` where TLS is off: nobody can prove anything, and everybody is believed."""

    def sign(self, purpose: str, statement: bytes) -> bytes:
        """No proof. Raises as `Statements.sign`, so that a mistake shows without TLS, too."""
        if len(statement) > STATEMENT_BYTES_MAX:
            raise Bug(f"a statement of {len(statement)} bytes, limit {STATEMENT_BYTES_MAX}")
        return b""

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        """Whether it has no proof either."""
        return proof == b""

    def public_key(self) -> bytes:
        """There is none."""
        return b""

    def verify_by_key(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes, key: bytes) -> bool:
        """Whether it has no proof and no key."""
        return proof == key == b""


def _has_signed(public_key: Ed25519PublicKey, signed: bytes, signature: bytes) -> bool:
    try:
        public_key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def signed_bytes(cluster: str, purpose: str, statement: bytes) -> bytes:
    """What the signature is over: nothing else that peerd or TLS signs begins so, and no two statements are alike."""
    parts = (TAG, cluster.encode(), purpose.encode())
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts) + statement


def _issued_identity(der: bytes, roots: Roots) -> PeerIdentity | None:
    try:
        identity = read_identity(der)
    except HandshakeRefused:
        return None
    return identity if roots.issued(x509.load_der_x509_certificate(der)) else None
