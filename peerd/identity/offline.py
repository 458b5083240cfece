"""Certificates by file, for a CA that is on no network: requests out, certificates back.

A request file is a PKCS #10 request in PEM. A node that has a certificate puts it behind the request, which proves that
this CA once chose the salt, so that the node keeps its id. The answer is the certificate, then the roots.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.errors import ConfigError, HandshakeRefused
from peerd.identity.authority import (
    NODE_CERT_FILE,
    NODE_KEY_FILE,
    ClusterAuthority,
    chain_pem,
    make_request,
    read_request,
)
from peerd.identity.joining import GrantedIdentity, JoinFailed, admitted
from peerd.identity.node_identity import PeerIdentity, load_or_create_private_key, read_identity
from peerd.identity.roots import fingerprint, is_root
from peerd.wire.enrolment import JoinGranted


def write_request(directory: Path) -> str:
    """The request of the node in ``directory``, whose key is made when there is none. Raises `ConfigError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make it: {error.strerror}", file=str(directory)) from error
    key = load_or_create_private_key(directory / NODE_KEY_FILE)
    pem = make_request(key).public_bytes(Encoding.PEM)
    try:
        return (pem + (directory / NODE_CERT_FILE).read_bytes()).decode()
    except FileNotFoundError:
        return pem.decode()


def sign_request(directory: Path, request: Path, lifetime: timedelta) -> tuple[str, PeerIdentity]:
    """Return the answer to a request file, in PEM, and its content. Raises `ConfigError` naming the wrong file."""
    authority = ClusterAuthority.load(directory)
    try:
        content = request.read_bytes()
        key = read_request(x509.load_pem_x509_csr(content).public_bytes(Encoding.DER))
    except OSError as error:
        raise ConfigError(f"cannot read the request: {error.strerror}", file=str(request)) from error
    except ValueError as error:
        raise ConfigError(f"not a certificate request: {error}", file=str(request)) from error
    salt = None
    if b"BEGIN CERTIFICATE-----" in content:
        try:
            old = x509.load_pem_x509_certificates(content)[0]
            identity = read_identity(old.public_bytes(Encoding.DER))
        except (ValueError, HandshakeRefused) as error:
            raise ConfigError(f"the certificate behind the request: {error}", file=str(request)) from error
        if old.public_key() != key or not authority.roots.issued(old):
            raise ConfigError("the certificate behind the request is of another key or another CA", file=str(request))
        salt = identity.salt
    pem = authority.issue(key, lifetime, salt=salt)
    answer = pem + chain_pem(authority.roots.chain) + chain_pem(authority.roots.trusted)
    leaf = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    return answer.decode(), read_identity(leaf)


def read_answer(text: str, file: str) -> JoinGranted:
    """Read what `sign_request` answered, as if an issuer had sent it. Raises `ConfigError`."""
    try:
        certificates = x509.load_pem_x509_certificates(text.encode())
    except ValueError as error:
        raise ConfigError("not a PEM certificate", file=file) from error
    roots = [certificate for certificate in certificates if is_root(certificate)]
    chain = [certificate for certificate in certificates if certificate not in roots]
    if not roots or not chain:
        raise ConfigError("expected what `peerd ca sign` wrote: a certificate and its roots", file=file)
    der = Encoding.DER
    return JoinGranted(
        tuple(each.public_bytes(der) for each in chain), tuple(each.public_bytes(der) for each in roots), ()
    )


def accept_answer(key: Ed25519PrivateKey, granted: JoinGranted, file: str) -> GrantedIdentity:
    """Check the answer against our key; its roots are believed, as the operator brought them. Raises `ConfigError`."""
    try:
        cluster = read_identity(granted.chain[0]).cluster
        pinned = fingerprint(x509.load_der_x509_certificate(granted.roots[0]))
        return admitted(key, granted, cluster, (pinned,))
    except (JoinFailed, HandshakeRefused) as error:
        raise ConfigError(str(error), file=file) from error
