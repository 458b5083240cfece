"""The newcomer's side of enrolment: see `peerd.wire.enrolment` for the conversation.

Blocking sockets: it runs once, in a command, before there is a daemon. The secret leaves this machine only inside TLS
with a server whose certificate leads to the root that the token names.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.daemon.authority import CA_CERT_FILE, NODE_CERT_FILE, NODE_KEY_FILE, chain_pem, make_request
from peerd.daemon.durable_files import write_atomically
from peerd.daemon.identity import PeerIdentity, private_key_pem, verify_peer_certificate
from peerd.daemon.roots import Roots, fingerprint, is_cross, is_root
from peerd.daemon.tls import pinned_client_context
from peerd.daemon.tokens import JoinToken
from peerd.errors import ConfigError, HandshakeRefused, PeerdError, ProtocolError, Unavailable
from peerd.limits import FRAME_HEADER_BYTES, PREAUTH_FRAME_BYTES_MAX
from peerd.messages import Message, PeerRef
from peerd.wire.codec import decode, encode
from peerd.wire.enrolment import PREFACE, JoinGranted, JoinOffer, JoinRequest
from peerd.wire.frames import Frame, parse_header
from peerd.wire.handshake import HelloRefused

STEP_TIMEOUT_S: Final = 5.0
"""For connecting, and for each answer."""
ISSUERS_TRIED_MAX: Final = 4

M = TypeVar("M", bound=Message)


class JoinFailed(PeerdError):
    """No certificate, and trying again with the same token will not help. The text says what to do."""


class NotOurCluster(JoinFailed):
    """The root that the token names is not the one that answers: a wrong token, or somebody in between."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a newcomer has in hand once it is admitted; nothing is written yet."""

    key: Ed25519PrivateKey
    chain: tuple[x509.Certificate, ...]
    roots: Roots
    identity: PeerIdentity
    bootstrap: tuple[PeerRef, ...]


def join(host: str, port: int, token: JoinToken) -> Membership:
    """Ask the node at this address, or the issuers that it knows, for a certificate.

    Raises `Unavailable` when nobody answers, `JoinFailed` when the answer is no.
    """
    key = Ed25519PrivateKey.generate()
    request = JoinRequest(token.secret, make_request(key).public_bytes(Encoding.DER))
    offer, granted = _converse(host, port, token, request)
    refused: list[str] = []
    for issuer in offer.issuers[:ISSUERS_TRIED_MAX]:
        if granted is not None:
            break
        try:
            _, granted = _converse(issuer.host, issuer.port, token, request)
        except Unavailable as error:
            refused.append(str(error))
    if granted is None:
        tried = f" ({'; '.join(refused)})" if refused else ", and knows of none"
        raise Unavailable(f"{_at(host, port)} does not issue certificates{tried}; name an issuer as SEED")
    return admitted(key, granted, token.cluster, token.fingerprint)


def admitted(key: Ed25519PrivateKey, granted: JoinGranted, cluster: str, pinned: bytes) -> Membership:
    """Check what an issuer sent as every peer will. Raises `JoinFailed`."""
    try:
        chain = tuple(x509.load_der_x509_certificate(der) for der in granted.chain)
        roots = arrange([x509.load_der_x509_certificate(der) for der in granted.roots], chain)
        identity = verify_peer_certificate(
            granted.chain[0], cluster=cluster, expected=None, denied=frozenset(), denied_serials=frozenset()
        )
    except (ValueError, IndexError, HandshakeRefused) as error:
        raise JoinFailed(f"the issuer sent a certificate that cannot be used: {error}") from error
    if chain[0].public_key() != key.public_key() or not roots.issued(chain[0]):
        raise JoinFailed("the issuer sent a certificate of another key or another root")
    if roots.by_fingerprint(pinned) is None:
        raise NotOurCluster("the issuer sent other roots than the one that the token names")
    return Membership(key, chain, roots, identity, granted.bootstrap)


def arrange(roots: list[x509.Certificate], chain: tuple[x509.Certificate, ...]) -> Roots:
    """The roots as they were sent, newest first, with what leads from one to the next. Raises ``ValueError``."""
    if not 1 <= len(roots) <= 2 or not all(map(is_root, roots)):
        raise ValueError("expected one or two roots")
    if len(roots) == 1:
        return Roots(roots[0])
    cross = next((each for each in chain[1:] if is_cross(each, roots[0], roots[1])), None)
    if cross is None:
        raise ValueError("nothing leads from the old root to the new one")
    return Roots(roots[0], roots[1], cross)


def write_membership(directory: Path, membership: Membership) -> None:
    """Write ``ca.crt``, ``node.crt`` and, last, ``node.key``: without its key an identity does not count as one.

    Raises `ConfigError`.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(directory / CA_CERT_FILE, membership.roots.pem(), 0o644)
        write_atomically(directory / NODE_CERT_FILE, chain_pem(membership.chain), 0o644)
        write_atomically(directory / NODE_KEY_FILE, private_key_pem(membership.key), 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write the identity: {error.strerror}", file=str(directory)) from error


# Inside


def _converse(host: str, port: int, token: JoinToken, request: JoinRequest) -> tuple[JoinOffer, JoinGranted | None]:
    """One conversation; no grant from a node that is no issuer."""
    where = _at(host, port)
    try:
        with socket.create_connection((host, port), timeout=STEP_TIMEOUT_S) as sock:
            sock.sendall(PREFACE)
            offer = _receive(sock, JoinOffer, where)
            root = _pinned_root(offer, token, where)
            if not offer.is_issuer:
                return offer, None
            with pinned_client_context(root).wrap_socket(sock, server_hostname=None) as tls:
                _check_server(tls, token)
                tls.sendall(encode(request).to_bytes())
                return offer, _receive(tls, JoinGranted, where)
    except ssl.SSLCertVerificationError as error:
        raise NotOurCluster(
            f"{where} could not prove that it belongs to the cluster {token.cluster!r} ({error.verify_message}): the "
            "clocks differ, or somebody is in between. The token was not sent"
        ) from error
    except TimeoutError as error:
        raise Unavailable(f"no answer from {where} within {STEP_TIMEOUT_S:g} s") from error
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"cannot reach {where}: {error}") from error


def _pinned_root(offer: JoinOffer, token: JoinToken, where: str) -> bytes:
    if offer.cluster != token.cluster:
        raise JoinFailed(f"{where} is of the cluster {offer.cluster!r}, the token is for {token.cluster!r}")
    found = []
    for der in offer.roots:
        try:
            root = x509.load_der_x509_certificate(der)
            found.append(fingerprint(root))
        except ValueError:
            continue
        if found[-1] == token.fingerprint:
            return der
    told = ", ".join(each.hex() for each in found) or "none"
    raise NotOurCluster(
        f"{where} has another CA than the token names (it: {told}; token: {token.fingerprint.hex()}): an old token, "
        "another cluster of the same name, or somebody in between. The token was not sent"
    )


def _check_server(tls: ssl.SSLSocket, token: JoinToken) -> None:
    """OpenSSL has checked the chain; that it is a node of this cluster is ours to check. Raises `NotOurCluster`."""
    try:
        verify_peer_certificate(
            tls.getpeercert(binary_form=True) or b"", cluster=token.cluster, expected=None, denied=frozenset()
        )
    except HandshakeRefused as error:
        raise NotOurCluster(f"the issuer's certificate is not a node's of this cluster: {error}") from error


def _receive(sock: socket.socket, kind: type[M], where: str) -> M:
    """One message. Raises `JoinFailed` for a refusal or what is no answer, ``OSError``."""
    try:
        header = _exactly(sock, FRAME_HEADER_BYTES)
        type_id, flags, length = parse_header(header, 0, PREAUTH_FRAME_BYTES_MAX)
        decoded = decode(Frame(type_id, flags, _exactly(sock, length)))
    except ProtocolError as error:
        raise JoinFailed(
            f"what answers at {where} is no peerd of a version that this one understands: {error}"
        ) from error
    match decoded.message if decoded is not None else None:
        case kind() as message:
            return message
        case HelloRefused(reason="unavailable", detail=detail):
            raise Unavailable(f"{where} cannot do it now: {detail}")
        case HelloRefused(detail=detail):
            raise JoinFailed(f"{where} refused: {detail}. Make another token with `peerd token create`")
    raise JoinFailed(f"{where} sent a message of type {type_id:#06x} in place of an answer")


def _exactly(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = sock.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("it closed the connection: its limits are reached, or it is no peerd")
        received += chunk
    return bytes(received)


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def expires_in_words(identity: PeerIdentity) -> str:
    """When a certificate ends, for people."""
    return f"{identity.not_after.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def is_expired(identity: PeerIdentity) -> bool:
    """Whether a certificate's time is over."""
    return identity.not_after <= datetime.now(UTC)
