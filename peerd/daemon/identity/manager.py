"""Keeps this node's identity alive: renews its certificate, follows the CA, and serves those that ask an issuer.

One object per daemon, in the event loop. What decides is pure and elsewhere (`TrustLedger`, `RenewalClock`, `Issuer`);
here is what they need around them: links, files, the clock.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec.structs import replace

from peerd.api import Priority
from peerd.config import PeerdConfig, TlsFiles
from peerd.daemon.identity.ledger_exchange import TrustExchange
from peerd.daemon.identity.telemetry import IdentityTelemetry
from peerd.daemon.links.link import TcpLink
from peerd.daemon.links.links import Links
from peerd.daemon.links.settings import TlsContexts
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import JOIN_TOKENS, NOTICES
from peerd.errors import ConfigError, HandshakeRefused, PeerdError, PeerMisbehaved, Unavailable
from peerd.identity.authority import CLOCK_SKEW, ClusterAuthority, chain_pem
from peerd.identity.issuer import Issued, Issuer
from peerd.identity.joining import GrantedIdentity, return_to_cluster
from peerd.identity.ledger import NODE_SUBJECT, SERIAL_SUBJECT, Notice, TrustLedger, key_of_notice
from peerd.identity.node_identity import (
    PeerIdentity,
    format_serial,
    load_certificate,
    load_node_identity,
    load_private_key,
    verify_peer_certificate,
)
from peerd.identity.renewal import RenewalClock, RenewalState
from peerd.identity.roots import Roots, fingerprint, is_issued_by
from peerd.identity.statements import Denied, Statements
from peerd.identity.tls import client_context, enrolment_server_context, server_context
from peerd.identity.tokens import TokenBook, TokenEntry, TokenRefused
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from peerd.system.durable_files import write_atomically
from peerd.wire.codec import decode, encode
from peerd.wire.enrolment import OFFERED_PEERS_MAX, EnrolmentRequest, JoinGranted, JoinOffer, RenewAnswer, RenewRequest
from peerd.wire.frames import Frame
from peerd.wire.trust import Denial, IssuerNotice, SignedNotice, TrustNotices, TrustSummary

TICK_S: Final = 1.0
COMPARE_INTERVAL_S: Final = 60.0
"""How often notices are compared with one neighbour, in case a frame was dropped."""
ANSWER_TIMEOUT_S: Final = 15.0
DENIALS_PER_TICK: Final = 256
"""How many denials are signed again in one go after a rotation; they take about 50 ms."""
NOTICE_INTERVAL_S: Final = 86_400.0
"""How often an issuer says that it still is one."""
ROTATION_SPREAD: Final = 0.1
"""Part of an overlap within which the nodes renew under the new root, at random."""
ROTATION_SPREAD_S_MAX: Final = 3600.0
ROOTS_RETRY_S: Final = 60.0

_OLD_ISSUER: Final = "this issuer's key is not of the newest root: copy the CA's files from where it was rotated"
Offload = Callable[
    [Callable[..., Any], tuple[Any, ...], Callable[[Any], None], Callable[[BaseException], None]], object
]
"""`peerd.daemon.offload.OffloadPool.submit`."""

_log = structlog.get_logger("peerd.daemon")


class IdentityManager:
    """Make it before links come in, `run` it in the loop, and `stop` it before the links stop.

    ``offload``: runs what blocks. ``seeds``: addresses to ask when the certificate has ended. ``neighbours``: nodes
    that newcomers may join through.
    """

    def __init__(
        self,
        *,
        own: PeerRef,
        cluster: str,
        files: TlsFiles,
        state: StateDirectory,
        links: Links,
        issuer: Issuer | None,
        telemetry: IdentityTelemetry,
        offload: Offload,
        seeds: Sequence[tuple[str, int]] = (),
        neighbours: Callable[[], Sequence[PeerRef]] = tuple,
    ) -> None:
        self.issuer = issuer
        self.files = files
        self.telemetry = telemetry
        self.wall_time = links.context.wall_time
        self._steady_s = links.context.now  # pauses use the steady clock, since an operator may set the other one
        self.last_failure = ""
        self._own = own
        self._cluster = cluster
        self._links = links
        self._offload = offload
        self.seeds = seeds
        """The addresses to ask when the certificate has ended; replaced when the operator names others."""
        self._neighbours = neighbours
        self._rng = random.Random()
        self._asked: tuple[NodeId, float] | None = None
        self._is_returning = False
        self._noticed_at = float("-inf")
        self._compared_at = self._steady_s()
        self._waiting: list[asyncio.Future[PeerIdentity]] = []
        self.identity = self._load_identity()
        self.clock = RenewalClock(self._rng, *self._validity())
        self._roots_in_use = Roots.load(files.ca_file)
        self._hurry_to_newest_root()
        self._roots_retry_at = float("-inf")
        self.ledger = TrustLedger(cluster, self._roots_in_use)
        self.statements = self._make_statements()
        """Signs what this node says through others, and checks what others say so."""
        self._enrolment_tls = self._make_enrolment_context()
        self._exchange = TrustExchange(self.ledger, own.id, state.table(NOTICES), links, telemetry, self._follow_roots)
        if issuer is not None and (change := issuer.last_change()) is not None:
            self.accept_notice(change)
        if issuer is not None and issuer.authority.certificate != self.ledger.roots.newest:
            _log.error("identity.issuer_is_old", detail=_OLD_ISSUER)
        links.on_link_up = self._exchange.compare
        links.on_trust_frame = self._frame_received

    # Life

    async def run(self) -> None:
        """Call `tick` every second, until the task is cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Do what is due: end an overlap, send an issuer's notice, renew, compare notices with a neighbour."""
        now, steady_s = self.wall_time(), self._steady_s()
        self._drop_old_root(now)
        self._exchange.save_again()
        self._follow_roots()
        if self.issuer is not None:
            self._sign_denials_again()
            if steady_s - self._noticed_at > NOTICE_INTERVAL_S:
                self._announce_issuer(now)
        if self._asked is not None and steady_s - self._asked[1] > ANSWER_TIMEOUT_S:
            self._renewal_failed(f"no answer from {format_id(self._asked[0])} within {ANSWER_TIMEOUT_S:g} s")
        if self.clock.is_due(now):
            self._renew()
        if steady_s - self._compared_at > COMPARE_INTERVAL_S and (links := self._links.links()):
            self._compared_at = steady_s
            self._exchange.compare(self._rng.choice(links))
        self.telemetry.state(self.clock, len(self.ledger.denials()))

    def stop(self) -> None:
        """Cancel the futures of those that wait for a renewal."""
        for waiting in self._waiting:
            waiting.cancel()

    def is_self(self, subject: str) -> bool:
        """Whether a denial's subject is this very node, or the certificate that it uses."""
        serial = format_serial(self.identity.serial)
        return subject in (f"{NODE_SUBJECT}{format_id(self._own.id)}", f"{SERIAL_SUBJECT}{serial}")

    @property
    def are_notices_saved(self) -> bool:
        """Whether all notices are on disk; while it is full they are not, and a restart would lose some."""
        return self._exchange.is_saved

    def watch_denials(self, on_denied: Callable[[frozenset[NodeId]], None]) -> None:
        """Call ``on_denied`` with the ids of all denied nodes, now and whenever they change."""
        self._exchange.on_denied = on_denied
        on_denied(self.ledger.denied_ids())

    @property
    def renewal_state(self) -> RenewalState:
        """How close the certificate is to its end: see `RenewalState`."""
        return self.clock.state(self.wall_time())

    # For newcomers: `peerd.daemon.identity.enrolment.Desk`

    def offer(self) -> JoinOffer:
        """Return what a newcomer is told before there is TLS; nothing of it is secret."""
        roots = self.ledger.roots
        ders = tuple(each.public_bytes(Encoding.DER) for each in (*roots.trusted, *roots.chain))
        notices = self.ledger.issuer_notices(self.wall_time())[:OFFERED_PEERS_MAX]
        return JoinOffer(self._cluster, ders, self.issuer is not None, tuple(notices))

    def enrolment_context(self) -> ssl.SSLContext | None:
        """The TLS settings for newcomers; ``None`` when this node does not issue certificates."""
        return self._enrolment_tls if self.issuer is not None else None

    def enrol(self, request: EnrolmentRequest, address: str) -> JoinGranted:
        """Admit a machine with a token, or one that was a member. Raises `TokenRefused`, `Unavailable`."""
        try:
            issued = self._admit(self._current_issuer(), request, address)
        except (TokenRefused, Unavailable) as error:
            self.telemetry.join_refused(address, getattr(error, "reason", "unavailable"), str(error))
            raise
        return JoinGranted(issued.chain, self._root_ders(), (self._own, *self._neighbours())[:OFFERED_PEERS_MAX])

    def turned_away(self, address: str, why: str) -> None:
        """Note that a newcomer was refused because of a limit."""
        self.telemetry.turned_away(address, why, self._links.context.now())

    def _admit(self, issuer: Issuer, request: EnrolmentRequest, address: str) -> Issued:
        if not request.certificate:
            issued, token = issuer.enrol(request)
            self.telemetry.issued(issued.identity, "join", address, token.id)
            return issued
        identity = issuer.readmit(request)
        if self._is_denied(identity):
            raise TokenRefused("denied", f"node {format_id(identity.node_id)} is on the deny list")
        issued = issuer.renew(identity)
        self.telemetry.issued(issued.identity, "return", address)
        return issued

    # For operators

    def publish(self, notice: Notice) -> None:
        """Sign a notice with the CA's key and spread it. Raises `Unavailable`."""
        self._exchange.learned([self.ledger.put(self._current_issuer().authority, notice, self.wall_time())])

    def accept_notice(self, signed: SignedNotice) -> bool:
        """Take in a notice that an operator brought. Returns whether it was new. Raises `PeerMisbehaved`."""
        news = self.ledger.merge([signed], self.wall_time())
        self._exchange.learned(news)
        return bool(news)

    def deny(self, subject: str, reason: str, *, is_withdrawn: bool) -> Denial:
        """Deny a node or a certificate, or let it in again. Raises `Unavailable` where this node is no issuer."""
        version = self.ledger.next_version(f"deny {subject}", self.wall_time())
        denial = Denial(self._cluster, version, subject, is_withdrawn, reason)
        self.publish(denial)
        return denial

    def rotate(self, overlap: timedelta) -> None:
        """Change to the next root; raises what `rotate_authority` raises."""
        self.accept_notice(self._current_issuer().rotate(overlap))
        self._sign_denials_again()
        self._announce_issuer(self.wall_time())
        self._renew()

    def renewed(self) -> asyncio.Future[PeerIdentity]:
        """Renew now; resolves with the new identity, or raises `Unavailable`."""
        waiting: asyncio.Future[PeerIdentity] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._renew()
        return waiting

    def install(self, chain: Sequence[bytes]) -> None:
        """Use a new certificate for new handshakes. Raises `ConfigError` for one that is not ours, or a full disk."""
        self._asked = None
        try:
            certificates = [x509.load_der_x509_certificate(der) for der in chain]
            identity = verify_peer_certificate(
                chain[0], cluster=self._cluster, expected=self._own.id, denied=frozenset()
            )
        except (ValueError, IndexError, HandshakeRefused) as error:
            raise ConfigError(f"it is not this node's: {error}") from error
        if identity.public_key != self.identity.public_key or not self.ledger.roots.issued(certificates[0]):
            raise ConfigError("it is of another key, or of a root that is not trusted here")
        if identity.not_after.timestamp() <= self.wall_time():
            raise ConfigError(f"it ended at {identity.not_after:%Y-%m-%d %H:%M:%S} UTC")
        self.statements.use(chain[0])
        _write(self.files, chain_pem(certificates))
        self.identity = identity
        self.clock.follow(*self._validity())
        self._reload()
        self.last_failure = ""
        self.telemetry.installed(identity)
        self._resolve(lambda waiting: waiting.set_result(identity))

    # Links

    def _frame_received(self, link: TcpLink, frame: Frame) -> None:
        try:
            decoded = decode(frame)
            match decoded[0] if decoded is not None else None:
                case TrustSummary() as summary:
                    if link.trust_requests.take(self._links.context.now()):
                        self._exchange.summary_received(link, summary)
                case TrustNotices(notices=notices):
                    self._exchange.notices_received(link, notices)
                case RenewRequest():
                    self._links.send(link.peer, encode(self._renew_for(link)), Priority.NORMAL)
                case RenewAnswer() as answer:
                    self._renewal_answered(link.peer, answer)
        except PeerMisbehaved as error:
            self._links.misbehaved(link.peer, error)

    def _renew_for(self, link: TcpLink) -> RenewAnswer:
        """Answer a member whose link proves who it is."""
        try:
            issuer = self._current_issuer()
        except Unavailable as error:
            return RenewAnswer((), str(error))
        if link.certificate is None or self._is_denied(link.certificate):
            return RenewAnswer((), "not for this link")
        if not link.trust_requests.take(self._links.context.now()):
            return RenewAnswer((), "too often; try again in a few seconds")
        issued = issuer.renew(link.certificate)
        self.telemetry.issued(issued.identity, "renewal", link.address)
        return RenewAnswer(issued.chain)

    def _is_denied(self, identity: PeerIdentity) -> bool:
        context = self._links.context
        return identity.node_id in context.denied or identity.serial in context.denied_serials

    # Renewal

    def _renew(self) -> None:
        """Ask an issuer for the next certificate; an issuer asks itself. Does nothing while an answer is awaited."""
        if self._asked is not None or self._is_returning:
            return
        now = self.wall_time()
        issuers = [issuer for issuer in self.ledger.issuers(now) if issuer.id != self._own.id]
        if self.issuer is not None and self.issuer.authority.certificate == self.ledger.roots.newest:
            try:
                self.install(self._current_issuer().renew(self.identity).chain)
            except (ConfigError, Unavailable) as error:
                self._renewal_failed(str(error))
        elif self.clock.state(now) == "expired":
            seeds = [(issuer.host, issuer.port) for issuer in issuers] + list(self.seeds)
            self._come_back(seeds)
        elif issuers:
            issuer = issuers[self.clock.failures % len(issuers)]
            self._asked = (issuer.id, self._steady_s())
            self._links.send(issuer, encode(RenewRequest()), Priority.NORMAL)
        else:
            self._renewal_failed("no issuer is known: see docs/identity.md for a CA that is offline")

    def _come_back(self, seeds: Sequence[tuple[str, int]]) -> None:
        """The certificate has ended, so nobody makes a link with this node: go the way of newcomers."""
        try:
            key, leaf = load_private_key(self.files.key_file), load_certificate(self.files.cert_file)
        except ConfigError as error:
            self._renewal_failed(str(error))
            return
        self._is_returning = True
        arguments = (seeds, key, leaf, self._cluster, self.ledger.roots)
        self._offload(return_to_cluster, arguments, self._returned, self._return_failed)

    def _returned(self, granted_identity: GrantedIdentity) -> None:
        self._is_returning = False
        if self.ledger.roots != granted_identity.roots:
            self.ledger.roots = granted_identity.roots
            self._follow_roots()
        try:
            self.install([each.public_bytes(Encoding.DER) for each in granted_identity.chain])
        except ConfigError as error:
            self._renewal_failed(str(error))

    def _return_failed(self, error: BaseException) -> None:
        self._is_returning = False
        self._renewal_failed(
            str(error) or type(error).__name__
        )  # also wait here: a bug must not repeat itself every second
        if not isinstance(error, PeerdError):
            raise error

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
        self.clock.failed(now)
        self.telemetry.not_renewed(why, self.clock, now)
        self._resolve(lambda waiting: waiting.set_exception(Unavailable(f"not renewed: {why}")))

    def _resolve(self, tell: Callable[[asyncio.Future[PeerIdentity]], None]) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                tell(each)

    # Roots

    def _follow_roots(self) -> None:
        """Trust the ledger's roots from the next handshake on, and plan to renew under the newest one."""
        roots = self.ledger.roots
        if roots is self._roots_in_use or self._steady_s() < self._roots_retry_at:
            return
        try:
            write_atomically(self.files.ca_file, roots.pem(), 0o644)
            self._reload()
        except (OSError, ConfigError) as error:
            _log.error("identity.roots_not_saved", file=str(self.files.ca_file), error=str(error))
            self._roots_retry_at = self._steady_s() + ROOTS_RETRY_S
            return
        self._roots_in_use = roots
        self._hurry_to_newest_root()

    def _hurry_to_newest_root(self) -> None:
        """Renew soon if the certificate is of the old root: it ends with the overlap, whatever end it states."""
        roots, now = self._roots_in_use, self.wall_time()
        if roots.overlap_ends is not None and not self._has_newest_root(roots):
            overlap_s = max(0.0, roots.overlap_ends.timestamp() - now)
            self.clock.hurry(now, min(overlap_s * ROTATION_SPREAD, ROTATION_SPREAD_S_MAX))

    def _drop_old_root(self, now: float) -> None:
        before = len(self.ledger.denials())
        if self.ledger.expire(now):
            lost = before - len(self.ledger.denials())
            _log.warning(
                "identity.old_root_dropped", root=fingerprint(self.ledger.roots.newest).hex(), denials_lost=lost
            )
            self._exchange.save()

    def _sign_denials_again(self) -> None:
        """Sign the old root's denials again, as they end with it. Some come late, from issuers that had not heard."""
        stale = self.ledger.stale_denials()[:DENIALS_PER_TICK]
        if not stale or self.issuer is None or self.issuer.authority.certificate != self.ledger.roots.newest:
            return
        now = self.wall_time()
        again = [replace(denial, version=self.ledger.next_version(key_of_notice(denial), now)) for denial in stale]
        self._exchange.learned([self.ledger.put(self.issuer.authority, denial, now) for denial in again])

    def _has_newest_root(self, roots: Roots) -> bool:
        try:
            return is_issued_by(load_certificate(self.files.cert_file), roots.newest)
        except ConfigError:
            return False  # the file is gone: renewing brings it back

    def _root_ders(self) -> tuple[bytes, ...]:
        return tuple(root.public_bytes(Encoding.DER) for root in self.ledger.roots.trusted)

    def _announce_issuer(self, now: float) -> None:
        self._noticed_at = self._steady_s()
        version = self.ledger.next_version(f"issuer {self._own.id:032x}", now)
        try:
            self.publish(IssuerNotice(self._cluster, version, self._own))
        except Unavailable as error:
            _log.error("identity.issuer_not_announced", error=str(error))

    def _current_issuer(self) -> Issuer:
        if self.issuer is None:
            raise Unavailable("this node is no issuer: set issuer.enabled where the CA's key is, and restart that node")
        if self.issuer.authority.certificate != self.ledger.roots.newest:
            raise Unavailable(
                "this issuer's key is not of the newest root: copy the CA's files from where it was rotated"
            )
        if self.issuer.has_ended(self.wall_time()):
            raise Unavailable("the CA's certificate has ended: make a new CA, and join every node again")
        return self.issuer

    # Files

    def _reload(self) -> None:
        files = self.files._asdict()
        self._links.context.tls = TlsContexts(server_context(**files), client_context(**files))
        self._enrolment_tls = self._make_enrolment_context()

    def _make_enrolment_context(self) -> ssl.SSLContext:
        return enrolment_server_context(cert_file=self.files.cert_file, key_file=self.files.key_file)

    def _load_identity(self) -> PeerIdentity:
        return load_node_identity(cluster=self._cluster, **self.files._asdict())

    def _make_statements(self) -> Statements:
        context, ledger = self._links.context, self.ledger
        return Statements(
            self._cluster,
            load_private_key(self.files.key_file),
            load_certificate(self.files.cert_file).public_bytes(Encoding.DER),
            roots=lambda: ledger.roots,
            denied=lambda: Denied(context.denied, context.denied_serials),
        )

    def _validity(self) -> tuple[float, float]:
        certificate = load_certificate(self.files.cert_file)
        issued_at = certificate.not_valid_before_utc + CLOCK_SKEW
        return issued_at.timestamp(), certificate.not_valid_after_utc.timestamp()


def make_issuer(config: PeerdConfig, state: StateDirectory) -> Issuer | None:
    """The issuer that the configuration asks for. Raises `ConfigError` when its CA cannot be used."""
    if not config.issuer.enabled:
        return None
    directory = config.ca_dir()
    authority = ClusterAuthority.load(directory)
    if authority.cluster != config.node.cluster:
        detail = f"this CA is of the cluster {authority.cluster!r}, the node of {config.node.cluster!r}"
        raise ConfigError(detail, file=str(directory), key="issuer.ca_dir")
    table = state.table(JOIN_TOKENS)
    return Issuer(
        authority,
        directory,
        timedelta(seconds=config.issuer.lifetime),
        timedelta(seconds=config.issuer.return_grace),
        TokenBook(table.load(TokenEntry.from_row)),
        lambda tokens: table.replace(token.row() for token in tokens),
        time.time,
    )


def _write(files: TlsFiles, pem: bytes) -> None:
    try:
        write_atomically(files.cert_file, pem, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write the certificate: {error.strerror}", file=str(files.cert_file)) from error
