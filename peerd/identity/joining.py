"""The newcomer's side of enrolment: see `peerd.wire.enrolment` for the conversation.

Blocking sockets: it runs once, in a command, before there is a daemon. The secret leaves this machine only inside TLS
with a server whose certificate leads to the root that the token names.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.errors import ConfigError, HandshakeRefused, PeerdError, ProtocolError, Unavailable
from peerd.frozen import Frozen
from peerd.identity.authority import CA_CERT_FILE, CLOCK_SKEW, NODE_CERT_FILE, NODE_KEY_FILE, chain_pem, make_request
from peerd.identity.ledger import known_issuers
from peerd.identity.node_identity import PeerIdentity, private_key_pem, verify_peer_certificate
from peerd.identity.roots import PARSE_ERRORS, Roots, fingerprint, is_cross, is_issued_by, is_root
from peerd.identity.tls import pinned_client_context
from peerd.identity.tokens import JoinToken
from peerd.ids import NodeId
from peerd.limits import FRAME_HEADER_BYTES, PREAUTH_FRAME_BYTES_MAX
from peerd.messages import Message, PeerRef
from peerd.system.durable_files import write_atomically
from peerd.system.sockets import format_address
from peerd.wire.codec import decode, encode
from peerd.wire.enrolment import PREFACE, EnrolmentRequest, JoinGranted, JoinOffer
from peerd.wire.frames import frame_bytes, parse_header
from peerd.wire.handshake import HelloRefused

STEP_TIMEOUT_S: Final = 5.0
"""Time limit for connecting, and again for each answer."""
ADDRESSES_TRIED_MAX: Final = 8

M = TypeVar("M", bound=Message)


class JoinFailed(PeerdError):
    """No certificate, and trying again with the same token will not help. The text says what to do."""


class NotOurCluster(JoinFailed):
    """The root that the token names is not the one that answers: a wrong token, or somebody in between."""


class Pin(Frozen):
    """The server that a newcomer accepts: a node of this cluster under one of these roots.

    ``source``: where the roots come from, such as the token; ``cause``: the harmless reason why they may be outdated.
    """

    cluster: str
    fingerprints: tuple[bytes, ...]
    source: str = "the token"
    cause: str = "an old token"


class GrantedIdentity(Frozen):
    """What a newcomer gets when it is admitted; nothing of it is written to disk yet."""

    key: Ed25519PrivateKey
    chain: tuple[x509.Certificate, ...]
    roots: Roots
    identity: PeerIdentity
    bootstrap: tuple[PeerRef, ...]

    def clock_ahead_s(self, now: float) -> float:
        """About how many seconds this machine's clock, which says ``now`` (Unix time), is ahead of the issuer's."""
        return now - (self.chain[0].not_valid_before_utc + CLOCK_SKEW).timestamp()


def join(host: str, port: int, token: JoinToken) -> GrantedIdentity:
    """Ask the node at this address, or the issuers that it knows, for a certificate.

    Raises `Unavailable` when nobody answers, `JoinFailed` when the answer is no.
    """
    key = Ed25519PrivateKey.generate()
    request = EnrolmentRequest(token.secret, make_request(key).public_bytes(Encoding.DER))
    granted = _ask([(host, port)], Pin(token.cluster, (token.fingerprint,)), request)
    return admitted(key, granted, token.cluster, (token.fingerprint,))


def return_to_cluster(
    seeds: Sequence[tuple[str, int]], key: Ed25519PrivateKey, certificate: x509.Certificate, cluster: str, roots: Roots
) -> GrantedIdentity:
    """Renew a certificate that has ended: no link is made with it any more, so it goes the way of newcomers.

    Raises what `join` raises.
    """
    der = Encoding.DER
    request = EnrolmentRequest(b"", make_request(key).public_bytes(der), certificate.public_bytes(der))
    pinned = tuple(map(fingerprint, roots.trusted))
    slept = "the CA was changed while this node was off (it has to join again, with a token)"
    granted = _ask(seeds, Pin(cluster, pinned, "ca.crt here", slept), request)
    return admitted(key, granted, cluster, pinned)


def admitted(key: Ed25519PrivateKey, granted: JoinGranted, cluster: str, pinned: Sequence[bytes]) -> GrantedIdentity:
    """Check what an issuer sent, as every peer will check it. Raises `JoinFailed`."""
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
    if not any(roots.by_fingerprint(each) for each in pinned):
        raise NotOurCluster("the issuer sent other roots than the one that it was asked for")
    return GrantedIdentity(key, chain, roots, identity, granted.bootstrap)


def arrange(roots: list[x509.Certificate], chain: tuple[x509.Certificate, ...]) -> Roots:
    """Return the roots, sent newest first, with the certificate that links them. Raises ``ValueError``."""
    if not 1 <= len(roots) <= 2 or not all(map(is_root, roots)):
        raise ValueError("expected one or two roots")
    if len(roots) == 1:
        return Roots(roots[0])
    cross = next((each for each in chain[1:] if is_cross(each, roots[0], roots[1])), None)
    if cross is None:
        raise ValueError("nothing leads from the old root to the new one")
    return Roots(roots[0], roots[1], cross)


def write_identity(directory: Path, granted_identity: GrantedIdentity) -> None:
    """Write ``ca.crt``, ``node.crt`` and, last, ``node.key``: without its key an identity does not count as one.

    Raises `ConfigError`.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(directory / CA_CERT_FILE, granted_identity.roots.pem(), 0o644)
        write_atomically(directory / NODE_CERT_FILE, chain_pem(granted_identity.chain), 0o644)
        write_atomically(directory / NODE_KEY_FILE, private_key_pem(granted_identity.key), 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write the identity: {error.strerror}", file=str(directory)) from error


# Inside


def _ask(seeds: Sequence[tuple[str, int]], pin: Pin, request: EnrolmentRequest) -> JoinGranted:
    """Return the grant of the first issuer that agrees. Seeds name further issuers; only its maker knows a token."""
    waiting, seen = list(seeds), set(seeds)
    refusal: JoinFailed | None = None
    failures: list[str] = []
    for _ in range(ADDRESSES_TRIED_MAX):
        if not waiting:
            break
        host, port = waiting.pop(0)
        try:
            answer, issuers = _converse(host, port, pin, request)
        except Unavailable as error:
            failures.append(str(error))
            continue
        if isinstance(answer, JoinGranted):
            return answer
        if answer is not None:
            refusal = refusal or answer
        elif not issuers:
            failures.append(f"{format_address((host, port))} does not issue certificates, and knows of nobody who does")
        others = [(issuer.host, issuer.port) for issuer in issuers if (issuer.host, issuer.port) not in seen]
        waiting, seen = [*others, *waiting], seen.union(others)
    raise refusal or Unavailable("; ".join(failures) or "no address to ask")


def _converse(
    host: str, port: int, pin: Pin, request: EnrolmentRequest
) -> tuple[JoinGranted | JoinFailed | None, Sequence[PeerRef]]:
    """Ask one node. Returns its answer (``None`` if it is no issuer), and whom else to ask. Raises `Unavailable`."""
    where, issuers = format_address((host, port)), list[PeerRef]()
    try:
        with socket.create_connection((host, port), timeout=STEP_TIMEOUT_S) as sock:
            sock.sendall(PREFACE)
            offer = _receive(sock, JoinOffer, where)
            root = _pinned_root(offer, pin, where)
            issuers = known_issuers(offer.issuers, [root, *_successors(root, offer)], pin.cluster, time.time())
            if not offer.is_issuer:
                return None, issuers
            der = root.public_bytes(Encoding.DER)
            with pinned_client_context(der).wrap_socket(sock, server_hostname=None) as tls:
                server = _check_server(tls, pin, issuers)
                issuers = [issuer for issuer in issuers if issuer.id != server]  # not again, at its other address
                tls.sendall(frame_bytes(encode(request)))
                return _receive(tls, JoinGranted, where), issuers
    except ssl.SSLCertVerificationError as error:
        detail = (
            f"{where} could not prove that it belongs to the cluster {pin.cluster!r} ({error.verify_message}): the "
            "clocks differ, or somebody is in between. Nothing secret was sent"
        )
        return NotOurCluster(detail), issuers
    except JoinFailed as error:
        return error, issuers
    except TimeoutError as error:
        raise Unavailable(f"no answer from {where} within {STEP_TIMEOUT_S:g} s") from error
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"cannot reach {where}: {getattr(error, 'strerror', None) or error}") from error


def _pinned_root(offer: JoinOffer, pin: Pin, where: str) -> x509.Certificate:
    if offer.cluster != pin.cluster:
        raise JoinFailed(f"{where} is of the cluster {offer.cluster!r}, {pin.source} is for {pin.cluster!r}")
    found = []
    for certificate in _certificates(offer.roots):
        found.append(fingerprint(certificate))
        if found[-1] in pin.fingerprints and is_root(certificate):
            return certificate
    told = ", ".join(dict.fromkeys(each.hex() for each in found)) or "none"
    wanted = ", ".join(each.hex() for each in pin.fingerprints)
    raise NotOurCluster(
        f"{where} has another CA than {pin.source} names (it: {told}; {pin.source}: {wanted}): {pin.cause}, another "
        "cluster of the same name, or somebody in between. Nothing secret was sent"
    )


def _successors(root: x509.Certificate, offer: JoinOffer) -> list[x509.Certificate]:
    """Roots that the pinned one certifies: the cluster is changing its root, and the token was made before."""
    return [certificate for certificate in _certificates(offer.roots) if is_issued_by(certificate, root)]


def _certificates(ders: Sequence[bytes]) -> list[x509.Certificate]:
    found = []
    for der in ders:
        try:
            certificate = x509.load_der_x509_certificate(der)
            fingerprint(certificate)  # it is parsed lazily
        except PARSE_ERRORS:
            continue
        found.append(certificate)
    return found


def _check_server(tls: ssl.SSLSocket, pin: Pin, issuers: Sequence[PeerRef]) -> NodeId:
    """OpenSSL has checked the chain; that it is an issuer of this cluster is ours to check. Raises `NotOurCluster`."""
    der = tls.getpeercert(binary_form=True) or b""
    try:
        identity = verify_peer_certificate(der, cluster=pin.cluster, expected=None, denied=frozenset())
    except HandshakeRefused as error:
        raise NotOurCluster(f"the issuer's certificate is not a node's of this cluster: {error}") from error
    if identity.node_id not in [issuer.id for issuer in issuers]:
        raise NotOurCluster(
            f"node {identity.node_id:032x} says that it issues certificates, and the CA does not say so: a member that "
            "wants the token for itself, or clocks that differ by days. Nothing secret was sent"
        )
    return identity.node_id


def _receive(sock: socket.socket, kind: type[M], where: str) -> M:
    """Receive one message. Raises `JoinFailed` for a refusal or something that is not an answer, ``OSError``."""
    try:
        header = _exactly(sock, FRAME_HEADER_BYTES)
        type_id, flags, length = parse_header(header, 0, PREAUTH_FRAME_BYTES_MAX)
        decoded = decode((type_id, flags, _exactly(sock, length)))
    except ProtocolError as error:
        raise JoinFailed(
            f"what answers at {where} is no peerd of a version that this one understands: {error}"
        ) from error
    match decoded[0] if decoded is not None else None:
        case kind() as message:
            return message
        case HelloRefused(reason="unavailable", detail=detail):
            raise Unavailable(f"{where} cannot do it now: {detail}")
        case HelloRefused(detail=detail):
            raise JoinFailed(f"{where} refused: {detail}")
    raise JoinFailed(f"{where} sent a message of type {type_id:#06x} in place of an answer")


def _exactly(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = sock.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("it closed the connection: its limits are reached, or it is no peerd")
        received += chunk
    return bytes(received)
