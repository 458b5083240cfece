"""The roots that a node trusts: one, or two while the cluster's CA changes.

During a change the new root's key is certified twice: by itself, and by the root before it until the overlap ends (the
"new with old" certificate of RFC 4210, section 4.4). It travels behind each leaf of the new root, so that a peer that
has not heard of the change still finds its way to the root that it trusts. Both roots have the same name on purpose:
a certificate whose issuer is its subject does not count towards a path length, which is 0 for our roots.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from peerd.errors import ConfigError
from peerd.frozen import Frozen
from peerd.wire.trust import FINGERPRINT_BYTES

ROOTS_FILE_BYTES_MAX: Final = 64 * 1024
PARSE_ERRORS: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Everything that cryptography raises for bytes that are not a certificate; it parses lazily, part by part."""


def fingerprint(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the certificate's public key, 16 bytes. Tokens and notices name a root by it.

    Raises one of `PARSE_ERRORS` when its bytes are no key, which `is_root` finds out before.
    """
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()[:FINGERPRINT_BYTES]


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether names match and the signature verifies."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*PARSE_ERRORS, InvalidSignature):
        return False
    return True


def is_root(certificate: x509.Certificate) -> bool:
    """Whether it is a self-signed CA certificate with a key of the type that we use."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (*PARSE_ERRORS, x509.ExtensionNotFound):
        return False
    return _our_key(certificate) is not None and constraints.ca and is_issued_by(certificate, certificate)


def _our_key(certificate: x509.Certificate) -> Ed25519PublicKey | None:
    """The certificate's key; ``None`` for one of another type, and for bytes that are no key at all."""
    try:
        key = certificate.public_key()
    except PARSE_ERRORS:
        return None
    return key if isinstance(key, Ed25519PublicKey) else None


class Roots(Frozen):
    """The newest root and, during an overlap, the one before it. ``cross``: the newest, certified by the previous."""

    newest: x509.Certificate
    previous: x509.Certificate | None = None
    cross: x509.Certificate | None = None

    @classmethod
    def load(cls, path: Path) -> Roots:
        """Read a PEM file of one or two roots, newest first, and the certificate between them. Raises `ConfigError`."""
        try:
            with path.open("rb") as file:
                found = x509.load_pem_x509_certificates(file.read(ROOTS_FILE_BYTES_MAX))
        except OSError as error:
            raise ConfigError(f"cannot read the certificate: {error.strerror}", file=str(path)) from error
        except PARSE_ERRORS as error:
            raise ConfigError("not a PEM certificate", file=str(path)) from error
        roots = [certificate for certificate in found if is_root(certificate)]
        crosses = [certificate for certificate in found if certificate not in roots]
        if not roots:
            raise ConfigError("not a self-signed CA certificate", file=str(path))
        if len(roots) > 2 or len(crosses) > len(roots) - 1:
            raise ConfigError("expected one root, or two and the certificate between them", file=str(path))
        previous = roots[1] if len(roots) == 2 else None
        cross = crosses[0] if crosses else None
        if cross is not None and (previous is None or not is_cross(cross, roots[0], previous)):
            raise ConfigError("the certificate between the two roots does not belong to them", file=str(path))
        return cls(roots[0], previous, cross)

    def pem(self) -> bytes:
        """The file's content that `load` reads."""
        return b"".join(each.public_bytes(Encoding.PEM) for each in (self.newest, self.cross, self.previous) if each)

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """Every root that is trusted, newest first."""
        return (self.newest,) if self.previous is None else (self.newest, self.previous)

    @property
    def chain(self) -> tuple[x509.Certificate, ...]:
        """The certificates to send behind a node's own, so that peers which know only the older root can check it."""
        return () if self.cross is None else (self.cross,)

    @property
    def overlap_ends(self) -> datetime | None:
        """When the previous root is no longer trusted, UTC; ``None`` without an overlap."""
        return None if self.cross is None else self.cross.not_valid_after_utc

    def at(self, now: datetime) -> Roots:
        """Return these roots as of ``now``: without the previous one if the overlap has ended."""
        return Roots(self.newest) if self.overlap_ends is not None and now >= self.overlap_ends else self

    def by_fingerprint(self, wanted: bytes) -> x509.Certificate | None:
        """Return the trusted root with that fingerprint, or ``None``."""
        return next((root for root in self.trusted if fingerprint(root) == wanted), None)

    def issued(self, certificate: x509.Certificate) -> bool:
        """Whether one of the roots signed the certificate."""
        return any(is_issued_by(certificate, root) for root in self.trusted)


def is_cross(cross: x509.Certificate, root: x509.Certificate, previous: x509.Certificate) -> bool:
    """Whether ``cross`` certifies the key of ``root`` on behalf of ``previous``."""
    key = _our_key(cross)
    return key is not None and key == _our_key(root) and is_issued_by(cross, previous)
