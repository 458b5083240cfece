"""The cluster's certificate authority: one Ed25519 root, which issues the certificates of nodes directly.

A local cluster makes its own; on a network `peerd ca init` makes it on the operator's machine, and ``ca.key`` need
not be anywhere else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peerd.config import CLUSTER_NAME_PATTERN
from peerd.errors import ConfigError
from peerd.identity.node_identity import (
    ISSUER_SALT_OID,
    SALT_BYTES,
    derive_node_id,
    load_private_key,
    node_uri,
    private_key_pem,
    public_key_der,
    read_identity,
)
from peerd.identity.roots import Roots, fingerprint
from peerd.ids import NodeId, format_id
from peerd.system.durable_files import write_atomically, write_new_file

CA_LIFETIME: Final = timedelta(days=3653)
NODE_LIFETIME: Final = timedelta(days=90)
"""How long a certificate of an offline CA is valid. An issuer's are valid for a day, and renewed after half of it."""
CLOCK_SKEW: Final = timedelta(minutes=5)
"""A new certificate is valid from this long ago on, for peers whose clocks are behind."""

CA_CERT_FILE: Final = "ca.crt"
CA_KEY_FILE: Final = "ca.key"
CA_CHANGE_FILE: Final = "ca.change"
"""The signed notice of the last rotation: what makes the other nodes trust the new root."""
NODE_CERT_FILE: Final = "node.crt"
NODE_KEY_FILE: Final = "node.key"


@dataclass(frozen=True, slots=True)
class ClusterAuthority:
    """The root of one cluster: its certificate and the key that issues. Never sent anywhere."""

    cluster: str
    certificate: x509.Certificate
    _key: Ed25519PrivateKey = field(repr=False)
    _roots: Roots | None = None

    @classmethod
    def create(cls, cluster: str) -> ClusterAuthority:
        """Make a new root, valid for ten years. Raises `ConfigError` when ``cluster`` is no cluster name."""
        _require_cluster_name(cluster)
        key = Ed25519PrivateKey.generate()
        subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = _root_builder(cluster, key.public_key(), subject_key, datetime.now(UTC) + CA_LIFETIME)
        return cls(cluster, builder.sign(key, None), key)

    @classmethod
    def load(cls, directory: Path) -> ClusterAuthority:
        """Read what `save` or `replace` wrote. Raises `ConfigError` naming the file that is missing or damaged."""
        key = load_private_key(directory / CA_KEY_FILE)
        path = directory / CA_CERT_FILE
        roots = Roots.load(path)
        if roots.newest.public_key() != key.public_key():
            # A rotation writes the certificates first and the key last: without its key, the new root does not count.
            if roots.previous is None or roots.previous.public_key() != key.public_key():
                raise ConfigError(f"the certificate is not of the key {directory / CA_KEY_FILE}", file=str(path))
            roots = Roots(roots.previous)
        names = roots.newest.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        if len(names) != 1:
            raise ConfigError("the CA certificate names no cluster", file=str(path))
        cluster = str(names[0].value)
        _require_cluster_name(cluster)
        return cls(cluster, roots.newest, key, roots)

    def save(self, directory: Path) -> None:
        """Write ``ca.key`` (0600) and ``ca.crt`` (0644); an existing CA is never overwritten (`ConfigError`)."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_new_file(directory / CA_KEY_FILE, private_key_pem(self._key), 0o600)
            write_new_file(directory / CA_CERT_FILE, self.roots.pem(), 0o644)
        except FileExistsError as error:
            raise ConfigError("there is a CA here already", file=str(error.filename)) from error
        except OSError as error:
            raise ConfigError(f"cannot write the CA: {error.strerror}", file=str(error.filename)) from error

    def replace(self, directory: Path, change: str) -> None:
        """Replace the CA in the directory by this one, a `successor`; the change counts once the key is written, last.

        ``change`` is the text of the notice that tells the nodes; a file keeps it, so that a crash does not lose it.
        Raises `ConfigError` when the disk refuses; the old CA is then still in force.
        """
        try:
            write_atomically(directory / CA_CHANGE_FILE, change.encode() + b"\n", 0o644)
            write_atomically(directory / CA_CERT_FILE, self.roots.pem(), 0o644)
            write_atomically(directory / CA_KEY_FILE, private_key_pem(self._key), 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write the CA: {error.strerror}", file=str(directory)) from error

    @property
    def roots(self) -> Roots:
        """This root and, during an overlap, the one before it."""
        return self._roots or Roots(self.certificate)

    def successor(self, overlap: timedelta) -> ClusterAuthority:
        """A new root, which the peers of this one accept until ``overlap`` from now. Nothing is written."""
        fresh = ClusterAuthority.create(self.cluster)
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        ends = min(datetime.now(UTC) + overlap, self.certificate.not_valid_after_utc)
        cross = _root_builder(self.cluster, fresh._key.public_key(), own, ends).sign(self._key, None)
        return ClusterAuthority(
            self.cluster, fresh.certificate, fresh._key, Roots(fresh.certificate, self.certificate, cross)
        )

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the root's public key, 16 bytes."""
        return fingerprint(self.certificate)

    def sign(self, content: bytes) -> bytes:
        """An Ed25519 signature of the root's key, 64 bytes."""
        return self._key.sign(content)

    def certificate_pem(self) -> bytes:
        """The root that every node trusts, in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self, public_key: Ed25519PublicKey, lifetime: timedelta = NODE_LIFETIME, *, salt: bytes | None = None
    ) -> bytes:
        """A node certificate in PEM for ``public_key``, with a fresh salt and so a fresh node id.

        A renewal gives the ``salt`` of the certificate before it, which this CA chose: the node stays who it is. It
        ends no later than the root. Raises ``ValueError`` for a lifetime that is not positive.
        """
        if lifetime <= timedelta(0):
            raise ValueError(f"cannot issue for {lifetime}")
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        node_id = derive_node_id(public_key_der(public_key), salt)
        name = x509.NameAttribute(NameOID.COMMON_NAME, format_id(node_id))
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([name]))
            .issuer_name(self.certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(min(now + lifetime, self.certificate.not_valid_after_utc))
        )
        for extension, critical in self._node_extensions(public_key, node_id, salt):
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, None).public_bytes(Encoding.PEM)

    def _node_extensions(
        self, public_key: Ed25519PublicKey, node_id: NodeId, salt: bytes
    ) -> list[tuple[x509.ExtensionType, bool]]:
        issuer_key = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        uri = x509.UniformResourceIdentifier(node_uri(self.cluster, node_id))
        return [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(authority=False), True),
            (x509.ExtendedKeyUsage(purposes), False),
            (x509.SubjectAlternativeName([uri]), False),
            (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
            (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), False),
            (x509.UnrecognizedExtension(ISSUER_SALT_OID, salt), False),
        ]


def create_node_files(
    authority: ClusterAuthority, directory: Path, *, lifetime: timedelta = NODE_LIFETIME, is_kept: bool = True
) -> NodeId:
    """Make a node's key and write ``node.key`` (0600), ``node.crt`` and ``ca.crt`` into ``directory``.

    For a cluster whose nodes share the issuer's machine; elsewhere the key is made on the node and only its public
    half travels. What is not kept need not survive a power cut. Raises `ConfigError` when the files exist or cannot be
    written.
    """
    write = partial(write_new_file, is_kept=is_kept)
    key = Ed25519PrivateKey.generate()
    certificate_pem = authority.issue(key.public_key(), lifetime)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(directory / NODE_KEY_FILE, private_key_pem(key), 0o600)
        write(directory / NODE_CERT_FILE, certificate_pem + chain_pem(authority.roots.chain), 0o644)
        write(directory / CA_CERT_FILE, authority.roots.pem(), 0o644)
    except FileExistsError as error:
        raise ConfigError("there is a node identity here already", file=str(error.filename)) from error
    except OSError as error:
        raise ConfigError(f"cannot write the identity: {error.strerror}", file=str(error.filename)) from error
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return read_identity(certificate.public_bytes(Encoding.DER)).node_id


def chain_pem(chain: Iterable[x509.Certificate]) -> bytes:
    """Return the certificates in PEM, one after the other."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)


def read_request(der: bytes) -> Ed25519PublicKey:
    """The key of a PKCS #10 request, once its signature proves possession. Raises ``ValueError`` saying what is wrong.

    Nothing else in a request counts: names and salt are the issuer's.
    """
    try:
        request = x509.load_der_x509_csr(der)
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("not a certificate request") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a node's key is Ed25519")
    if not is_signed:
        raise ValueError("the request is not signed by its own key")
    return key


def make_request(key: Ed25519PrivateKey) -> x509.CertificateSigningRequest:
    """The PKCS #10 request of a node's key; see `read_request`."""
    return x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, None)


def _root_builder(
    cluster: str, key: Ed25519PublicKey, issuer_key: x509.SubjectKeyIdentifier, ends: datetime
) -> x509.CertificateBuilder:
    """Return an unsigned root certificate. The signature may be its own, or during a change the previous root's."""
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, "peerd cluster CA"),
        ]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
    )


def _require_cluster_name(cluster: str) -> None:
    if re.fullmatch(CLUSTER_NAME_PATTERN, cluster) is None:
        raise ConfigError(
            f"not a cluster name: {cluster[:80]!r} (1 to 63 of a-z, 0-9, '-' and '.')", key="node.cluster"
        )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
