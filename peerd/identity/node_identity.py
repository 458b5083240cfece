"""Who a node is: its Ed25519 key, the id that follows from it, and the check of a peer's certificate.

``NodeId = SHA-256("peerd-id-v1" || SPKI || issuer salt)[:16]``. The issuer picks the 16-byte salt and signs it in
the certificate, so anybody can recompute the id from the certificate, and nobody can try keys until one lands
beside a victim: ids assigned by the certificate authority (Castro et al. 2002, section 3) without a directory to ask.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from peerd.errors import ConfigError, HandshakeRefused, Unavailable
from peerd.frozen import Frozen
from peerd.identity.roots import PARSE_ERRORS, Roots
from peerd.ids import ID_BYTES, NodeId, format_id, id_from_bytes, parse_id
from peerd.system.durable_files import write_new_file

ID_TAG: Final = b"peerd-id-v1"
SALT_BYTES: Final = 16
ISSUER_SALT_OID: Final = x509.ObjectIdentifier("2.25.52403139750606082008573265206887672165")
"""Our private extension: exactly 16 raw salt bytes. The arc is UUID 276c7a44-2950-40b8-bf30-9fcb33016965 under 2.25
(ITU-T X.667), which needs no registration. Not critical: OpenSSL refuses critical extensions that it does not know."""

CERTIFICATE_BYTES_MAX: Final = 8 * 1024
"""A certificate of ours has about 700 bytes; anything much larger is not ours."""

_URI: Final = re.compile(r"peerd://([a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?)/node/([0-9a-f]{32})")
_KEY_FILE_BYTES_MAX: Final = 16 * 1024
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


class PeerIdentity(Frozen):
    """What a verified certificate says about its holder."""

    node_id: NodeId
    cluster: str
    not_after: datetime
    """End of validity, UTC."""
    serial: int
    public_key: Ed25519PublicKey
    salt: bytes
    """The salt that the issuer chose; the id follows from it and the key, so a renewal keeps it."""


def derive_node_id(spki_der: bytes, issuer_salt: bytes) -> NodeId:
    """The id of a public key (DER SubjectPublicKeyInfo) under an issuer's salt (empty without an issuer)."""
    return id_from_bytes(hashlib.sha256(ID_TAG + spki_der + issuer_salt).digest()[:ID_BYTES])


def public_key_der(public_key: Ed25519PublicKey) -> bytes:
    """DER SubjectPublicKeyInfo: what the id is derived from."""
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def format_serial(serial: int) -> str:
    """A certificate's serial number as people and notices name it: 40 hexadecimal digits (RFC 5280, 4.1.2.2)."""
    return f"{serial:040x}"


def node_uri(cluster: str, node_id: NodeId) -> str:
    """The one URI subject alternative name of a node's certificate."""
    return f"peerd://{cluster}/node/{format_id(node_id)}"


def verify_peer_certificate(
    der: bytes,
    *,
    cluster: str,
    expected: NodeId | None,
    denied: frozenset[NodeId],
    denied_serials: frozenset[int] = frozenset(),
) -> PeerIdentity:
    """Check what OpenSSL does not: that this certificate is of a node of our cluster, and of the node that we dialled.

    Call it after the TLS handshake, on the peer's certificate, which OpenSSL has already chained to the cluster CA
    and found within its validity. ``expected`` is the id that was dialled (``None`` on the accepting side).
    Raises `HandshakeRefused` with one of the reasons malformed_certificate, not_leaf, key_usage, key_type, uri_san,
    wrong_cluster, issuer_salt, id_mismatch, denied, wrong_callee.
    """
    identity = read_identity(der)
    if identity.cluster != cluster:
        raise HandshakeRefused("wrong_cluster", f"the peer belongs to {identity.cluster!r}, we to {cluster!r}")
    if identity.node_id in denied:
        raise HandshakeRefused("denied", f"node {format_id(identity.node_id)} is on the deny list")
    if identity.serial in denied_serials:
        raise HandshakeRefused("denied", f"certificate {format_serial(identity.serial)} is on the deny list")
    if expected is not None and identity.node_id != expected:
        raise HandshakeRefused(
            "wrong_callee", f"dialled {format_id(expected)}, but {format_id(identity.node_id)} answered"
        )
    return identity


def read_identity(der: bytes) -> PeerIdentity:
    """Parse a node certificate and check that it is consistent in itself: shape, usage, and the id it claims.

    It does not check who signed it. Raises `HandshakeRefused` (reasons: see `verify_peer_certificate`).
    """
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise HandshakeRefused("malformed_certificate", f"{len(der)} bytes, at most {CERTIFICATE_BYTES_MAX}")
    try:
        certificate = x509.load_der_x509_certificate(der)
        extensions = certificate.extensions
        public_key = certificate.public_key()
        not_after = certificate.not_valid_after_utc
    except PARSE_ERRORS as error:
        raise HandshakeRefused("malformed_certificate", str(error)[:200]) from error
    _require_leaf_usage(extensions)
    if not isinstance(public_key, Ed25519PublicKey):
        raise HandshakeRefused("key_type", "a node's key is Ed25519")
    cluster, claimed = _read_uri(extensions)
    salt = _read_salt(extensions)
    derived = derive_node_id(public_key_der(public_key), salt)
    if derived != claimed:
        raise HandshakeRefused("id_mismatch", f"claims {format_id(claimed)}, key and salt give {format_id(derived)}")
    return PeerIdentity(derived, cluster, not_after, certificate.serial_number, public_key, salt)


def _extension(extensions: x509.Extensions, kind: type[_Extension], reason: str) -> _Extension:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound as error:
        raise HandshakeRefused(reason, f"the certificate has no {kind.__name__} extension") from error


def _require_leaf_usage(extensions: x509.Extensions) -> None:
    if _extension(extensions, x509.BasicConstraints, "not_leaf").ca:
        raise HandshakeRefused("not_leaf", "a CA certificate is not a node's")
    usage = _extension(extensions, x509.KeyUsage, "key_usage")
    if not usage.digital_signature or usage.key_cert_sign or usage.crl_sign:
        raise HandshakeRefused("key_usage", "a node's key signs handshakes, and never certificates")
    purposes = set(_extension(extensions, x509.ExtendedKeyUsage, "key_usage"))
    if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH} <= purposes:
        raise HandshakeRefused("key_usage", "a node is client and server: both extended usages are needed")


def _read_uri(extensions: x509.Extensions) -> tuple[str, NodeId]:
    names = list(_extension(extensions, x509.SubjectAlternativeName, "uri_san"))
    # Exactly one name, as SPIFFE demands: with two of them, two readers could pick different ones.
    if len(names) != 1 or not isinstance(names[0], x509.UniformResourceIdentifier):
        raise HandshakeRefused("uri_san", f"exactly one URI name is needed, found {len(names)} names")
    match = _URI.fullmatch(names[0].value)
    if match is None:
        raise HandshakeRefused("uri_san", f"not peerd://<cluster>/node/<id>: {names[0].value[:120]!r}")
    return match[1], parse_id(match[2])


def _read_salt(extensions: x509.Extensions) -> bytes:
    try:
        value = extensions.get_extension_for_oid(ISSUER_SALT_OID).value
    except x509.ExtensionNotFound as error:
        raise HandshakeRefused("issuer_salt", "the certificate has no issuer salt") from error
    if not isinstance(value, x509.UnrecognizedExtension) or len(value.value) != SALT_BYTES:
        raise HandshakeRefused("issuer_salt", f"an issuer salt has {SALT_BYTES} bytes")
    return value.value


def private_key_pem(private_key: Ed25519PrivateKey) -> bytes:
    """Unencrypted PKCS #8 PEM."""
    return private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a PEM key. Raises `ConfigError` when it is missing, damaged, not Ed25519, or open to other users.

    A damaged key is never replaced by a new one: the node would come back as somebody else.
    """
    try:
        with path.open("rb") as file:
            _require_private(path, os.fstat(file.fileno()))
            content = file.read(_KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read the private key: {error.strerror}", file=str(path)) from error
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            "damaged private key: restore it from a backup, or remove it and join again as a new node", file=str(path)
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("expected an Ed25519 private key", file=str(path))
    return key


def _require_private(path: Path, status: os.stat_result) -> None:
    """Check the key file by PostgreSQL's rule: it is ours with 0600, or root's with at most 0640 (mounted secrets)."""
    ours = status.st_uid == os.geteuid()
    if not ours and status.st_uid != 0:
        raise ConfigError("the private key belongs to another user", file=str(path))
    forbidden = stat.S_IRWXG | stat.S_IRWXO if ours else stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
    if status.st_mode & forbidden:
        raise ConfigError(
            f"the private key is open to other users (mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 it, and "
            "consider it stolen if others use this machine",
            file=str(path),
        )


def load_or_create_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the node's key, or make one (0600) when there is none yet.

    Raises `ConfigError` as `load_private_key`, and `Unavailable` for a full disk: that may pass, so it is tried again.
    """
    if not path.exists():
        try:
            write_new_file(path, private_key_pem(Ed25519PrivateKey.generate()), 0o600)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable(f"cannot write {path}: {error.strerror}") from error
            raise ConfigError(f"cannot create the private key: {error.strerror}", file=str(path)) from error
    return load_private_key(path)


def id_without_tls(state_dir: Path) -> NodeId:
    """The id of a node that runs without TLS: that of its key alone, as stable, but nothing proves it.

    Raises as `load_or_create_private_key`.
    """
    key = load_or_create_private_key(state_dir / "node.key")
    return derive_node_id(public_key_der(key.public_key()), b"")


def load_node_identity(*, cluster: str, ca_file: Path, cert_file: Path, key_file: Path) -> PeerIdentity:
    """Our own identity, checked as a peer will check it, so that a bad file fails at start and not at a handshake.

    Raises `ConfigError` naming the file: damaged, key and certificate of different pairs, another CA, another cluster.
    """
    public_key = load_private_key(key_file).public_key()
    certificate = load_certificate(cert_file)
    roots = Roots.load(ca_file)
    if certificate.public_key() != public_key:
        raise ConfigError(f"the certificate is not of the key {key_file}", file=str(cert_file))
    if not roots.issued(certificate):
        raise ConfigError(f"the certificate is not signed by {ca_file}", file=str(cert_file))
    try:
        return verify_peer_certificate(
            certificate.public_bytes(Encoding.DER), cluster=cluster, expected=None, denied=frozenset()
        )
    except HandshakeRefused as error:
        raise ConfigError(f"not a node certificate of this cluster: {error}", file=str(cert_file)) from error


def load_certificate(path: Path) -> x509.Certificate:
    """Read the first certificate of a PEM file. Raises `ConfigError`."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the certificate: {error.strerror}", file=str(path)) from error
    except ValueError as error:
        raise ConfigError("not a PEM certificate", file=str(path)) from error
