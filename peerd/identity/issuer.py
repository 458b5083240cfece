"""The issuer: a node that holds the CA's key. It redeems tokens, renews certificates, denies, and changes the root."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.errors import ConfigError, HandshakeRefused, PeerdError, Unavailable
from peerd.frozen import Frozen
from peerd.identity.authority import CA_CHANGE_FILE, ClusterAuthority, read_request
from peerd.identity.ledger import notice_text, parse_notice_text, root_change, sign_notice
from peerd.identity.node_identity import PeerIdentity, read_identity
from peerd.identity.tokens import JoinToken, TokenBook, TokenEntry, TokenRefused
from peerd.wire.enrolment import SECRET_BYTES, EnrolmentRequest
from peerd.wire.handshake import HelloRefused
from peerd.wire.trust import SignedNotice

OVERLAP_MIN: Final = timedelta(seconds=10)
OVERLAP_MAX: Final = timedelta(days=90)


class OverlapUnderWay(PeerdError):
    """Two roots are trusted at the moment; a third one has to wait."""


class Issued(Frozen):
    """A certificate that was just made: the chain in DER, leaf first, and what the leaf says."""

    chain: tuple[bytes, ...]
    identity: PeerIdentity


class Issuer:
    """Issues certificates with the CA's key. ``save_book`` makes the given tokens durable, or raises `Unavailable`."""

    def __init__(
        self,
        authority: ClusterAuthority,
        directory: Path,
        lifetime: timedelta,
        return_grace: timedelta,
        book: TokenBook,
        save_book: Callable[[Iterable[TokenEntry]], None],
        wall_time: Callable[[], float],
    ) -> None:
        self.authority = authority
        self.book = book
        self._directory = directory
        self._lifetime = lifetime
        self._return_grace = return_grace
        self._save_book = save_book
        self._wall_time = wall_time

    # Tokens

    def create_token(self, life_s: float, uses: int) -> tuple[JoinToken, TokenEntry]:
        """A new token; only its hash is kept. Raises ``ValueError``, `Unavailable`."""
        token = JoinToken(self.authority.cluster, self.authority.fingerprint, secrets.token_bytes(SECRET_BYTES))
        entry = self.book.create(token.secret, self._wall_time(), life_s, uses)
        try:
            self._save()
        except Unavailable:
            self.book.remove(entry)
            raise
        return token, entry

    def revoke_token(self, identifier: str) -> TokenEntry:
        """Raises ``KeyError`` for an unknown id, `Unavailable`: then it is revoked only until the next restart."""
        entry = self.book.revoke(identifier)
        self._save()
        return entry

    # Certificates

    def enrol(self, request: EnrolmentRequest) -> tuple[Issued, TokenEntry]:
        """Take one use of the token and issue. Raises `TokenRefused`, `Unavailable`.

        The use is durable before the certificate exists: a crash in between loses a use, and never allows one too many.
        """
        try:
            key = read_request(request.request)
        except ValueError as error:
            raise TokenRefused("bad_request", str(error)) from error
        entry = self.book.redeem(request.secret, self._wall_time())
        try:
            self._save()
        except Unavailable:
            self.book.restore(replace(entry, uses=entry.uses - 1))
            raise
        pem = self.authority.issue(key, self._lifetime)
        return self._issued(pem), entry

    def readmit(self, request: EnrolmentRequest) -> PeerIdentity:
        """Check a node that comes back with a certificate that has ended; `renew` may follow. Raises `TokenRefused`.

        The certificate says who it was, and the request proves that it has the key; whether it is denied is for the
        caller to know.
        """
        try:
            key = read_request(request.request)
            certificate = x509.load_der_x509_certificate(request.certificate)
            identity = read_identity(request.certificate)
        except (ValueError, HandshakeRefused) as error:
            raise TokenRefused("bad_request", str(error)) from error
        now = datetime.fromtimestamp(self._wall_time(), UTC)
        is_ours = identity.cluster == self.authority.cluster and self.authority.roots.at(now).issued(certificate)
        if certificate.public_key() != key or not is_ours:
            raise TokenRefused(
                "bad_request", "the certificate is of another key, or of a root that is not trusted here"
            )
        if now - identity.not_after > self._return_grace:
            detail = f"the certificate ended at {identity.not_after:%Y-%m-%d %H:%M} UTC: join again with a token"
            raise TokenRefused("too_late", detail)
        return identity

    def renew(self, identity: PeerIdentity) -> Issued:
        """Issue a certificate with a later end for the same node. The caller has verified that it is ``identity``."""
        pem = self.authority.issue(identity.public_key, self._lifetime, salt=identity.salt)
        return self._issued(pem)

    # The root

    def has_ended(self, now: float) -> bool:
        """Whether the CA's own certificate is over, so that nothing can be issued. ``now``: Unix seconds."""
        return now >= self.authority.certificate.not_valid_after_utc.timestamp()

    def rotate(self, overlap: timedelta) -> SignedNotice:
        """Make the next root and use it from now on; returns the notice that every node needs.

        Raises what `rotate_authority` raises.
        """
        self.authority, signed = rotate_authority(self.authority, self._directory, overlap, self._wall_time())
        return signed

    def last_change(self) -> SignedNotice | None:
        """The notice of the rotation that led to this root, while its overlap lasts: a crash may have kept it back."""
        now = datetime.fromtimestamp(self._wall_time(), UTC)
        if self.authority.roots.at(now).cross is None:
            return None
        try:
            return parse_notice_text((self._directory / CA_CHANGE_FILE).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot be used: {error}", file=str(self._directory / CA_CHANGE_FILE)) from error

    def _save(self) -> None:
        self._save_book(self.book.entries())

    def _issued(self, pem: bytes) -> Issued:
        leaf = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
        now = datetime.fromtimestamp(self._wall_time(), UTC)
        links = (certificate.public_bytes(Encoding.DER) for certificate in self.authority.roots.at(now).chain)
        return Issued((leaf, *links), read_identity(leaf))


def rotate_authority(
    old: ClusterAuthority, directory: Path, overlap: timedelta, now: float
) -> tuple[ClusterAuthority, SignedNotice]:
    """Replace the CA in ``directory`` by the next one. ``now``: Unix seconds.

    Raises `OverlapUnderWay`, ``ValueError`` for an overlap that is too short or too long, and `ConfigError` when it
    cannot be written; then nothing has changed.
    """
    if not OVERLAP_MIN <= overlap <= OVERLAP_MAX:
        raise ValueError(f"an overlap is {OVERLAP_MIN.seconds} s to {OVERLAP_MAX.days} days")
    if (ends := old.roots.at(datetime.fromtimestamp(now, UTC)).overlap_ends) is not None:
        raise OverlapUnderWay(f"the CA was rotated already: both roots are trusted until {ends:%Y-%m-%d %H:%M:%S} UTC")
    new = old.successor(overlap)
    signed = sign_notice(old, root_change(new.roots, new.cluster, now))
    new.replace(directory, notice_text(signed))
    return new, signed


def refusal_of(error: TokenRefused | Unavailable) -> HelloRefused:
    """The answer that tells a newcomer why it was not let in."""
    return HelloRefused(getattr(error, "reason", "unavailable"), str(error)[:500])
