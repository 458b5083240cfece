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
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peerd.config import CLUSTER_NAME_PATTERN
from peerd.daemon.durable_files import write_new_file
from peerd.daemon.identity import (
    DEFAULT_ROLES,
    ISSUER_SALT_OID,
    KNOWN_ROLES,
    ROLE_PREFIX,
    SALT_BYTES,
    derive_node_id,
    load_certificate,
    load_private_key,
    node_uri,
    private_key_pem,
    public_key_der,
    read_identity,
)
from peerd.errors import ConfigError
from peerd.ids import NodeId, format_id

CA_LIFETIME: Final = timedelta(days=3653)
NODE_LIFETIME: Final = timedelta(days=90)
"""For a CA that is offline; where an issuer is reachable, a day with renewal at half of it."""
CLOCK_SKEW: Final = timedelta(minutes=5)
"""A new certificate is valid from this long ago on, for peers whose clocks are behind."""

CA_CERT_FILE: Final = "ca.crt"
CA_KEY_FILE: Final = "ca.key"
NODE_CERT_FILE: Final = "node.crt"
NODE_KEY_FILE: Final = "node.key"


@dataclass(frozen=True, slots=True)
class ClusterAuthority:
    """The root of one cluster: its certificate and the key that issues. Never sent anywhere."""

    cluster: str
    certificate: x509.Certificate
    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def create(cls, cluster: str) -> ClusterAuthority:
        """Make a new root, valid for ten years. Raises `ConfigError` when ``cluster`` is no cluster name."""
        _require_cluster_name(cluster)
        key = Ed25519PrivateKey.generate()
        now = datetime.now(UTC)
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
                x509.NameAttribute(NameOID.COMMON_NAME, "peerd cluster CA"),
            ]
        )
        subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(subject_key, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject_key), critical=False)
            .sign(key, None)
        )
        return cls(cluster, certificate, key)

    @classmethod
    def load(cls, directory: Path) -> ClusterAuthority:
        """Read what `save` wrote. Raises `ConfigError` naming the file that is missing, damaged or not a match."""
        key = load_private_key(directory / CA_KEY_FILE)
        path = directory / CA_CERT_FILE
        certificate = load_certificate(path)
        if certificate.public_key() != key.public_key():
            raise ConfigError(f"the certificate is not of the key {directory / CA_KEY_FILE}", file=str(path))
        try:
            certificate.verify_directly_issued_by(certificate)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise ConfigError("not a self-signed CA certificate", file=str(path)) from error
        names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        if len(names) != 1:
            raise ConfigError("the CA certificate names no cluster", file=str(path))
        cluster = str(names[0].value)
        _require_cluster_name(cluster)
        return cls(cluster, certificate, key)

    def save(self, directory: Path) -> None:
        """Write ``ca.key`` (0600) and ``ca.crt`` (0644); an existing CA is never overwritten (`ConfigError`)."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_new_file(directory / CA_KEY_FILE, private_key_pem(self._key), 0o600)
            write_new_file(directory / CA_CERT_FILE, self.certificate_pem(), 0o644)
        except FileExistsError as error:
            raise ConfigError("there is a CA here already", file=str(error.filename)) from error
        except OSError as error:
            raise ConfigError(f"cannot write the CA: {error.strerror}", file=str(error.filename)) from error

    def certificate_pem(self) -> bytes:
        """The root that every node trusts, in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        public_key: Ed25519PublicKey,
        lifetime: timedelta = NODE_LIFETIME,
        roles: Iterable[str] = DEFAULT_ROLES,
    ) -> bytes:
        """A node certificate in PEM for ``public_key``, with a fresh salt and so a fresh node id.

        It ends no later than the root. Raises ``ValueError`` for a lifetime that is not positive or an unknown role.
        """
        granted = sorted(set(roles))
        if lifetime <= timedelta(0) or not KNOWN_ROLES.issuperset(granted):
            raise ValueError(f"cannot issue for {lifetime} with roles {granted}")
        salt = secrets.token_bytes(SALT_BYTES)
        node_id = derive_node_id(public_key_der(public_key), salt)
        names = [x509.NameAttribute(NameOID.COMMON_NAME, format_id(node_id))]
        names += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, ROLE_PREFIX + role) for role in granted]
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(names))
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
    authority: ClusterAuthority,
    directory: Path,
    *,
    lifetime: timedelta = NODE_LIFETIME,
    roles: Iterable[str] = DEFAULT_ROLES,
) -> NodeId:
    """Make a node's key and write ``node.key`` (0600), ``node.crt`` and ``ca.crt`` into ``directory``.

    For a cluster whose nodes share the issuer's machine; elsewhere the key is made on the node and only its public
    half travels. Raises `ConfigError` when the files exist or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    certificate_pem = authority.issue(key.public_key(), lifetime, roles)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new_file(directory / NODE_KEY_FILE, private_key_pem(key), 0o600)
        write_new_file(directory / NODE_CERT_FILE, certificate_pem, 0o644)
        write_new_file(directory / CA_CERT_FILE, authority.certificate_pem(), 0o644)
    except FileExistsError as error:
        raise ConfigError("there is a node identity here already", file=str(error.filename)) from error
    except OSError as error:
        raise ConfigError(f"cannot write the identity: {error.strerror}", file=str(error.filename)) from error
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return read_identity(certificate.public_bytes(Encoding.DER)).node_id


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
