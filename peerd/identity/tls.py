"""TLS contexts between daemons: mutual TLS 1.3 under the cluster CA, and nothing else.

OpenSSL checks the chain, the validity and the purpose; then `peerd.identity.node_identity.verify_peer_certificate`
checks who it is. A client whose certificate is refused learns it only at its first read (TLS 1.3), so a connection
counts as a link only once the application's HELLO was answered.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from peerd.errors import ConfigError, HandshakeRefused
from peerd.limits import TLS_HANDSHAKE_TIMEOUT_S, TLS_SHUTDOWN_TIMEOUT_S

__all__ = [
    "TLS_HANDSHAKE_TIMEOUT_S",
    "TLS_SHUTDOWN_TIMEOUT_S",
    "client_context",
    "enrolment_server_context",
    "peer_certificate",
    "pinned_client_context",
    "reload_certificate",
    "server_context",
]


def server_context(*, ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """The accepting side: every client must present a certificate of the cluster CA.

    Raises `ConfigError` naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no resumption: it would carry a session across a revocation
    return _configure(context, ca_file, cert_file, key_file)


def client_context(*, ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """The dialling side: the server must present a certificate of the cluster CA. Raises `ConfigError`."""
    return _configure(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca_file, cert_file, key_file)


def enrolment_server_context(*, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """For newcomers, who have no certificate: they check this node's, it checks their token. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    reload_certificate(context, cert_file=cert_file, key_file=key_file)
    return context


def pinned_client_context(root_der: bytes) -> ssl.SSLContext:
    """A newcomer's side: the server must present a certificate of exactly this root. Raises ``ssl.SSLError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # deliberate, see `_configure`: the root and the cluster name decide
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=root_der)
    return context


def peer_certificate(connection: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """The peer's certificate in DER, of a finished handshake (asyncio: ``get_extra_info("ssl_object")``).

    Raises `HandshakeRefused` with reason no_certificate.
    """
    der = connection.getpeercert(binary_form=True)
    if not der:
        raise HandshakeRefused("no_certificate", "the peer presented no certificate")
    return der


def reload_certificate(context: ssl.SSLContext, *, cert_file: Path, key_file: Path) -> None:
    """Use a renewed certificate for new handshakes; links that are up keep theirs. Raises `ConfigError`."""
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"cannot use it with the key {key_file}: {error}", file=str(cert_file)) from error


def _configure(context: ssl.SSLContext, ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Deliberate: a node is its id, not a host name, and its address may change. The dialler compares the id in the
    # certificate with the one that it expected (verify_peer_certificate), which says more than a name would.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's default from 3.13 on
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use it as the cluster CA: {error}", file=str(ca_file)) from error
    reload_certificate(context, cert_file=cert_file, key_file=key_file)
    return context


def _no_password() -> str:
    """Answer for an encrypted key. Without it OpenSSL would ask on the terminal and block the daemon."""
    return ""
