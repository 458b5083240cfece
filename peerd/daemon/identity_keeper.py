"""Keeps this node's identity alive: renews its certificate, follows the CA, spreads and obeys the deny list.

One object per daemon, in the event loop. What decides is pure and elsewhere (`TrustLedger`, `RenewalClock`, `Issuer`);
here is what they need around them: links, files, the clock. Records travel on links: both sides compare digests when a
link comes up and once in a while, and whoever learns something tells all its other links.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.api import Metric, Priority
from peerd.config import PeerdConfig, TlsFiles
from peerd.daemon.authority import CLOCK_SKEW, ClusterAuthority, chain_pem
from peerd.daemon.durable_files import write_atomically
from peerd.daemon.identity import PeerIdentity, format_serial, load_certificate, load_node_identity
from peerd.daemon.issuer import Issued, Issuer
from peerd.daemon.link import Link
from peerd.daemon.link_settings import TlsContexts
from peerd.daemon.link_telemetry import MetricSink
from peerd.daemon.links import Links
from peerd.daemon.renewal import RenewalClock, RenewalState
from peerd.daemon.roots import Roots, fingerprint, is_issued_by
from peerd.daemon.state_directory import StateDirectory
from peerd.daemon.tls import client_context, enrolment_server_context, server_context
from peerd.daemon.tokens import TOKENS_MAX, TokenBook, TokenRefused
from peerd.daemon.trust import NODE_SUBJECT, RECORDS_MAX, SERIAL_SUBJECT, Record, TrustLedger, batches
from peerd.errors import ConfigError, PeerMisbehaved, Unavailable
from peerd.ids import NodeId, format_id
from peerd.limits import EVENT_TEXT_LENGTH_MAX, KIB
from peerd.messages import PeerRef, decode_body, message_type
from peerd.telemetry.schema import CertificateInstalled, CertificateIssued, Event, JoinRefused, TrustRecorded
from peerd.wire.codec import decode, encode
from peerd.wire.enrolment import (
    OFFERED_PEERS_MAX,
    JoinGranted,
    JoinOffer,
    JoinRequest,
    RenewAnswer,
    RenewRequest,
)
from peerd.wire.frames import Frame
from peerd.wire.trust import Denial, IssuerNotice, RootChange, SignedRecord, TrustRecords, TrustSummary

TICK_S: Final = 1.0
COMPARE_INTERVAL_S: Final = 60.0
"""How often digests are compared with one neighbour, in case that a frame was dropped."""
ANSWER_TIMEOUT_S: Final = 15.0
NOTICE_INTERVAL_S: Final = 86_400.0
"""How often an issuer says that it still is one."""
ROTATION_SPREAD: Final = 0.1
"""Part of an overlap within which the nodes renew under the new root, at random."""
ROTATION_SPREAD_S_MAX: Final = 3600.0
ROOTS_RETRY_S: Final = 60.0
RECORDS_FILE: Final = "trust-records.json"
TOKENS_FILE: Final = "tokens.json"
TOKENS_FILE_BYTES_MAX: Final = TOKENS_MAX * KIB
RECORDS_FILE_BYTES_MAX: Final = RECORDS_MAX * 8 * 1024

IDENTITY_METRICS: Final = (
    Metric("peerd_certificate_expiry_timestamp_seconds", "gauge", "When this node's certificate ends (Unix time)."),
    Metric("peerd_certificate_renewal_failures", "gauge", "Attempts to renew that failed since the last success."),
    Metric("peerd_denied_subjects", "gauge", "Nodes and certificates on the deny list."),
    Metric("peerd_certificates_issued_total", "counter", "Certificates made by this issuer.", ("kind",)),
    Metric("peerd_joins_refused_total", "counter", "Machines that this issuer sent away.", ("reason",)),
)
_JOIN_REASONS: Final = frozenset(
    {"unknown_token", "token_expired", "token_used_up", "token_revoked", "bad_request", "unavailable", "old_issuer"}
)

_log = structlog.get_logger("peerd.daemon")


class IdentityKeeper:
    """Make it before links come in, `start` it in the loop, and `stop` it before the links stop."""

    def __init__(
        self,
        *,
        own: PeerRef,
        cluster: str,
        files: TlsFiles,
        state: StateDirectory,
        links: Links,
        issuer: Issuer | None,
        metrics: MetricSink,
        neighbours: Callable[[], Sequence[PeerRef]],
    ) -> None:
        self.issuer = issuer
        self.emit: Callable[[Event], object] = lambda event: None
        self._own = own
        self._cluster = cluster
        self.files = files
        self._state = state
        self._links = links
        self._metrics = metrics
        self._neighbours = neighbours
        self.wall_time = links.context.wall_time
        self._rng = random.Random()
        self._asked: tuple[NodeId, float] | None = None
        self._noticed_at = float("-inf")
        self._compared_at = self.wall_time()
        self._waiting: list[asyncio.Future[PeerIdentity]] = []
        self.last_failure = ""
        self.identity = self._load_identity()
        self._roots_in_use = Roots.load(files.ca_file)
        self._roots_retry_at = float("-inf")
        self.ledger = TrustLedger(cluster, self._roots_in_use)
        self.clock = RenewalClock(self._rng, *self._validity())
        state.load(RECORDS_FILE, RECORDS_FILE_BYTES_MAX, self._restore)
        self._enrolment_tls = self._make_enrolment_context()
        if issuer is not None and (change := issuer.last_change()) is not None:
            self.accept_record(change)
        self._apply_denials()
        links.on_link_up = self._link_up
        links.on_trust_frame = self._frame_received

    # Life

    async def run(self) -> None:
        """Look at the clock now and then, for ever."""
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """What is due: the end of an overlap, an issuer's notice, a renewal, a comparison with a neighbour."""
        now = self.wall_time()
        if self.ledger.expire(now):
            _log.warning("identity.old_root_dropped", root=fingerprint(self.ledger.roots.newest).hex())
            self._save_records()
        if self.ledger.roots is not self._roots_in_use and now >= self._roots_retry_at:
            self._install_roots()
        if self.issuer is not None and now - self._noticed_at > NOTICE_INTERVAL_S:
            self._announce_issuer(now)
        if self._asked is not None and now - self._asked[1] > ANSWER_TIMEOUT_S:
            self._renewal_failed(f"no answer from {format_id(self._asked[0])} within {ANSWER_TIMEOUT_S:g} s")
        if self._asked is None and self.clock.is_due(now):
            self._renew()
        if now - self._compared_at > COMPARE_INTERVAL_S and (links := self._links.links()):
            self._compared_at = now
            self._link_up(self._rng.choice(links))
        self._metrics.gauge("peerd_certificate_expiry_timestamp_seconds", self.clock.expires_at, {})
        self._metrics.gauge("peerd_certificate_renewal_failures", self.clock.failures, {})
        self._metrics.gauge("peerd_denied_subjects", len(self.ledger.denials()), {})

    def stop(self) -> None:
        """Nobody waits for a renewal any more."""
        for waiting in self._waiting:
            waiting.cancel()

    def is_self(self, subject: str) -> bool:
        """Whether a denial's subject is this very node, or the certificate that it uses."""
        return subject in (
            f"{NODE_SUBJECT}{format_id(self._own.id)}",
            f"{SERIAL_SUBJECT}{format_serial(self.identity.serial)}",
        )

    @property
    def renewal_state(self) -> RenewalState:
        """How worrying the certificate is."""
        return self.clock.state(self.wall_time())

    # For newcomers: `peerd.daemon.enrolment.Desk`

    def offer(self) -> JoinOffer:
        """What a newcomer hears in the clear."""
        roots = tuple(root.public_bytes(Encoding.DER) for root in self.ledger.roots.trusted)
        issuers = self.ledger.issuers(self.wall_time())[:OFFERED_PEERS_MAX]
        return JoinOffer(self._cluster, roots, self.issuer is not None, tuple(issuers))

    def enrolment_context(self) -> ssl.SSLContext | None:
        """TLS for newcomers, where this node issues."""
        return self._enrolment_tls if self.issuer is not None else None

    def enrol(self, request: JoinRequest, address: str) -> JoinGranted:
        """Redeem a token. Raises `TokenRefused`, `Unavailable`."""
        try:
            issued, token = self._current_issuer().enrol(request)
        except (TokenRefused, Unavailable) as error:
            reason = getattr(error, "reason", "unavailable")
            label = reason if reason in _JOIN_REASONS else "other"
            self._metrics.count("peerd_joins_refused_total", 1.0, {"reason": label})
            self.emit(JoinRefused(address=address, reason=reason, detail=str(error)[:EVENT_TEXT_LENGTH_MAX]))
            _log.warning("identity.join_refused", address=address, reason=reason, detail=str(error))
            raise
        self._tell_issued(issued, address, token.id)
        roots = tuple(root.public_bytes(Encoding.DER) for root in self.ledger.roots.trusted)
        return JoinGranted(issued.chain, roots, (self._own, *self._neighbours())[:OFFERED_PEERS_MAX])

    # For operators

    def publish(self, record: Record) -> None:
        """Sign a record with the CA's key and spread it. Raises `Unavailable`."""
        signed = self.ledger.put(self._current_issuer().authority, record, self.wall_time())
        self._learned([signed], None)

    def accept_record(self, signed: SignedRecord) -> bool:
        """Take in a record that an operator carried here; whether it was news. Raises `PeerMisbehaved`."""
        news = self.ledger.merge([signed], self.wall_time())
        self._learned(news, None)
        return bool(news)

    def deny(self, subject: str, reason: str, *, is_withdrawn: bool) -> Denial:
        """Deny a node or a certificate, or let it in again. Raises `Unavailable` where this node is no issuer."""
        version = self.ledger.next_version(f"deny {subject}", self.wall_time())
        denial = Denial(self._cluster, version, subject, is_withdrawn, reason)
        self.publish(denial)
        return denial

    def rotate(self, overlap: timedelta) -> None:
        """The next root; see `Issuer.rotate` for what it raises."""
        self.accept_record(self._current_issuer().rotate(overlap))
        # What the old root signed ends with it, so the new one says it again.
        for denial in self.ledger.denials():
            self.deny(denial.subject, denial.reason, is_withdrawn=False)
        self._announce_issuer(self.wall_time())
        self._renew()

    def renewed(self) -> asyncio.Future[PeerIdentity]:
        """Renew now; resolves with the new identity, or raises `Unavailable`."""
        waiting: asyncio.Future[PeerIdentity] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        if self._asked is None:
            self._renew()
        return waiting

    # Records

    def _restore(self, body: bytes) -> bool:
        self.ledger.restore(body, self.wall_time())
        return True

    def _link_up(self, link: Link) -> None:
        self._links.send(link.peer, encode(TrustSummary(self.ledger.digest())), Priority.URGENT)

    def _frame_received(self, link: Link, frame: Frame) -> None:
        try:
            decoded = decode(frame)
            match decoded.message if decoded is not None else None:
                case TrustSummary(digest=digest):
                    if digest != self.ledger.digest():
                        self._send_records(link.peer, self.ledger.signed())
                case TrustRecords(records=records):
                    self._learned(self.ledger.merge(records, self.wall_time()), link)
                case RenewRequest():
                    self._links.send(link.peer, encode(self._renew_for(link)), Priority.NORMAL)
                case RenewAnswer() as answer:
                    self._renewal_answered(link.peer, answer)
        except PeerMisbehaved as error:
            self._links.misbehaved(link.peer, error)

    def _send_records(self, peer: PeerRef, records: Sequence[SignedRecord]) -> None:
        for batch in batches(records):
            self._links.send(peer, encode(TrustRecords(batch)), Priority.URGENT)

    def _learned(self, news: Sequence[SignedRecord], source: Link | None) -> None:
        """Make it durable, act on it, pass it on."""
        if not news:
            return
        self._save_records()
        for signed in news:
            self._tell_recorded(signed, source)
        if self.ledger.roots is not self._roots_in_use:
            self._install_roots()
        self._apply_denials()
        for link in self._links.links():
            if source is None or link.peer.id != source.peer.id:
                self._send_records(link.peer, news)

    def _save_records(self) -> None:
        try:
            self._state.write(RECORDS_FILE, self.ledger.to_json())
        except Unavailable as error:
            _log.error("identity.records_not_saved", error=str(error))

    def _apply_denials(self) -> None:
        denied, serials = self.ledger.denied_ids(), self.ledger.denied_serials()
        if self._own.id in denied or self.identity.serial in serials:
            _log.error("identity.denied", detail="this node is on the deny list of its cluster: nobody will talk to it")
        self._links.deny(denied - {self._own.id}, serials)

    def _announce_issuer(self, now: float) -> None:
        self._noticed_at = now
        version = self.ledger.next_version(f"issuer {self._own.id:032x}", now)
        try:
            self.publish(IssuerNotice(self._cluster, version, self._own))
        except Unavailable as error:
            _log.error("identity.issuer_not_announced", error=str(error))

    # Certificates

    def _renew(self) -> None:
        """Ask an issuer for the next certificate; an issuer asks itself."""
        now = self.wall_time()
        if self.issuer is not None and self.issuer.authority.certificate == self.ledger.roots.newest:
            try:
                self.install(self.issuer.renew(self.identity).chain)
            except ConfigError as error:
                self._renewal_failed(str(error))
            return
        issuers = [issuer for issuer in self.ledger.issuers(now) if issuer.id != self._own.id]
        if not issuers:
            self._renewal_failed("no issuer is known: see docs/identity.md for a CA that is offline")
            return
        issuer = issuers[self.clock.failures % len(issuers)]
        self._asked = (issuer.id, now)
        self._links.send(issuer, encode(RenewRequest()), Priority.NORMAL)

    def _renew_for(self, link: Link) -> RenewAnswer:
        """Answer a member whose link proves who it is."""
        try:
            issuer = self._current_issuer()
        except Unavailable as error:
            return RenewAnswer((), str(error))
        if link.certificate is None:
            return RenewAnswer((), "the link has no certificate")
        issued = issuer.renew(link.certificate)
        self._tell_issued(issued, link.address, None)
        return RenewAnswer(issued.chain)

    def _renewal_answered(self, peer: PeerRef, answer: RenewAnswer) -> None:
        if self._asked is None or self._asked[0] != peer.id:
            return  # too late, or never asked
        if not answer.chain:
            self._renewal_failed(f"{peer} refused: {answer.refusal}")
            return
        try:
            self.install(answer.chain)
        except ConfigError as error:
            self._renewal_failed(f"{peer} sent what cannot be used: {error}")

    def _renewal_failed(self, why: str) -> None:
        self._asked = None
        self.last_failure = why
        now = self.wall_time()
        pause_s = self.clock.failed(now)
        report = _log.error if self.clock.state(now) in ("error", "expired") else _log.warning
        left_s = round(self.clock.expires_at - now)
        report("identity.not_renewed", error=why, expires_in_s=left_s, again_in_s=round(pause_s))
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_exception(Unavailable(f"not renewed: {why}"))

    def install(self, chain: Sequence[bytes]) -> None:
        """Use a new certificate for new handshakes. Raises `ConfigError` for one that is not ours, or a full disk."""
        self._asked = None
        try:
            certificates = [x509.load_der_x509_certificate(der) for der in chain]
        except ValueError as error:
            raise ConfigError(f"not a certificate: {error}") from error
        leaf = certificates[0]
        if leaf.public_key() != self.identity.public_key or not self.ledger.roots.issued(leaf):
            raise ConfigError("it is of another key, or of a root that is not trusted here")
        previous = self.files.cert_file.read_bytes()
        _write(self.files, chain_pem(certificates))
        try:
            identity = self._load_identity()
            if identity.node_id != self._own.id:
                raise ConfigError("it is of another node", file=str(self.files.cert_file))
        except ConfigError:
            _write(self.files, previous)
            raise
        self.identity = identity
        self.clock.follow(*self._validity())
        self._reload()
        self.last_failure = ""
        serial, expires_at = format_serial(identity.serial), self.clock.expires_at
        self.emit(CertificateInstalled(serial=serial, expires_at=expires_at))
        _log.info("identity.renewed", serial=serial, expires=identity.not_after.isoformat())
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(identity)

    def _install_roots(self) -> None:
        """Trust what the ledger says from the next handshake on; renew under the newest root within a while."""
        roots, now = self.ledger.roots, self.wall_time()
        try:
            write_atomically(self.files.ca_file, roots.pem(), 0o644)
        except OSError as error:
            _log.error("identity.roots_not_saved", file=str(self.files.ca_file), error=error.strerror)
            self._roots_retry_at = now + ROOTS_RETRY_S
            return
        self._roots_in_use = roots
        self._reload()
        if roots.overlap_ends is not None and not is_issued_by(load_certificate(self.files.cert_file), roots.newest):
            overlap_s = roots.overlap_ends.timestamp() - now
            self.clock.hurry(now, min(overlap_s * ROTATION_SPREAD, ROTATION_SPREAD_S_MAX))

    def _reload(self) -> None:
        files = self.files._asdict()
        self._links.context.tls = TlsContexts(server_context(**files), client_context(**files))
        self._enrolment_tls = self._make_enrolment_context()

    def _make_enrolment_context(self) -> ssl.SSLContext:
        return enrolment_server_context(cert_file=self.files.cert_file, key_file=self.files.key_file)

    def _load_identity(self) -> PeerIdentity:
        return load_node_identity(cluster=self._cluster, **self.files._asdict())

    def _validity(self) -> tuple[float, float]:
        certificate = load_certificate(self.files.cert_file)
        issued_at = certificate.not_valid_before_utc + CLOCK_SKEW
        return issued_at.timestamp(), certificate.not_valid_after_utc.timestamp()

    def _current_issuer(self) -> Issuer:
        if self.issuer is None:
            raise Unavailable("this node is no issuer: set issuer.enabled where the CA's key is, and restart that node")
        if self.issuer.authority.certificate != self.ledger.roots.newest:
            raise Unavailable("this issuer has an old key of the CA: copy ca.key and ca.crt from where it was rotated")
        return self.issuer

    # Telling

    def _tell_issued(self, issued: Issued, address: str, token: str | None) -> None:
        identity = issued.identity
        kind, peer, serial = "renewal" if token is None else "join", format_id(identity.node_id), identity.serial
        self._metrics.count("peerd_certificates_issued_total", 1.0, {"kind": kind})
        expires_at = identity.not_after.timestamp()
        self.emit(
            CertificateIssued(
                peer=peer, address=address, serial=format_serial(serial), expires_at=expires_at, token=token
            )
        )
        roles = sorted(identity.roles)
        _log.info("identity.issued", kind=kind, node=peer, address=address, token=token, roles=roles)

    def _tell_recorded(self, signed: SignedRecord, source: Link | None) -> None:
        kind = message_type(signed.type_id)
        if kind is None:
            return
        subject, detail = _in_words(decode_body(kind, signed.body))
        peer = None if source is None else format_id(source.peer.id)
        self.emit(TrustRecorded(subject=subject, detail=detail, peer=peer))
        _log.info("identity.recorded", subject=subject, detail=detail, peer=peer)


def make_issuer(config: PeerdConfig, state: StateDirectory) -> Issuer | None:
    """The issuer that the configuration asks for. Raises `ConfigError` when its CA cannot be used."""
    if not config.issuer.enabled:
        return None
    directory = config.ca_dir()
    authority = ClusterAuthority.load(directory)
    if authority.cluster != config.node.cluster:
        detail = f"this CA is of the cluster {authority.cluster!r}, the node of {config.node.cluster!r}"
        raise ConfigError(detail, file=str(directory), key="issuer.ca_dir")
    book = state.load(TOKENS_FILE, TOKENS_FILE_BYTES_MAX, TokenBook.parse) or TokenBook()
    lifetime = timedelta(seconds=config.issuer.lifetime)
    return Issuer(authority, directory, lifetime, book, lambda body: state.write(TOKENS_FILE, body), time.time)


def _write(files: TlsFiles, pem: bytes) -> None:
    try:
        write_atomically(files.cert_file, pem, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write the certificate: {error.strerror}", file=str(files.cert_file)) from error


def _in_words(record: object) -> tuple[str, str]:
    match record:
        case Denial(subject=subject, reason=reason, is_withdrawn=is_withdrawn):
            return subject, f"{'no longer denied' if is_withdrawn else 'denied'}: {reason}"
        case IssuerNotice(node=node):
            return f"{NODE_SUBJECT}{format_id(node.id)}", f"issues certificates at {node.address}"
        case RootChange(cross=cross):
            ends = x509.load_der_x509_certificate(cross).not_valid_after_utc
            return "root", f"new root; the old one is trusted until {ends.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case _:
            return "unknown", ""
