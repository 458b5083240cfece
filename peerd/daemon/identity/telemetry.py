"""Events, metrics and log lines about identity."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Final

import structlog
from cryptography import x509

from peerd.api import Metric
from peerd.daemon.links.telemetry import MetricSink
from peerd.identity.ledger import NODE_SUBJECT
from peerd.identity.node_identity import PeerIdentity, format_serial
from peerd.identity.renewal import RenewalClock
from peerd.ids import format_id
from peerd.lib.admission import TokenBucket
from peerd.limits import EVENT_TEXT_LENGTH_MAX
from peerd.messages import PeerRef, decode_body, message_type
from peerd.telemetry.schema import CertificateInstalled, CertificateIssued, Event, JoinRefused, NoticeLearned
from peerd.wire.trust import Denial, IssuerNotice, RootChange, SignedNotice

IDENTITY_METRICS: Final = (
    Metric("peerd_certificate_expiry_timestamp_seconds", "gauge", "When this node's certificate ends (Unix time)."),
    Metric("peerd_certificate_renewal_failures", "gauge", "Attempts to renew that failed since the last success."),
    Metric("peerd_denied_subjects", "gauge", "Nodes and certificates on the deny list."),
    Metric("peerd_certificates_issued_total", "counter", "Certificates made by this issuer.", ("kind",)),
    Metric("peerd_joins_refused_total", "counter", "Machines that this issuer sent away.", ("reason",)),
)

THROTTLED_LINES_PER_SECOND: Final = 1 / 60
"""How often a newcomer that was refused unread, because of a limit, is logged."""

_log = structlog.get_logger("peerd.daemon")


class IdentityTelemetry:
    """Events, metrics and log lines about identity. No secret is in them: a token is named by its id."""

    def __init__(self, metrics: MetricSink) -> None:
        self._metrics = metrics
        self._emit: Callable[[Event], object] = lambda event: None
        self._told_throttled = TokenBucket(THROTTLED_LINES_PER_SECOND, 1.0, 0.0)

    def attach(self, emit: Callable[[Event], object]) -> None:
        """Events go to this from now on (the node numbers them)."""
        self._emit = emit

    def state(self, clock: RenewalClock, denied: int) -> None:
        """Set the gauges to the present numbers."""
        self._metrics.gauge("peerd_certificate_expiry_timestamp_seconds", clock.expires_at, {})
        self._metrics.gauge("peerd_certificate_renewal_failures", clock.failures, {})
        self._metrics.gauge("peerd_denied_subjects", denied, {})

    # The issuer

    def issued(self, identity: PeerIdentity, kind: str, address: str, token: str | None = None) -> None:
        """A certificate was made; ``kind``: join, renewal or return."""
        self._metrics.count("peerd_certificates_issued_total", 1.0, {"kind": kind})
        peer, serial = format_id(identity.node_id), format_serial(identity.serial)
        expires_at = identity.not_after.timestamp()
        self._emit(CertificateIssued(peer=peer, address=address, serial=serial, expires_at=expires_at, token=token))
        _log.info("identity.issued", kind=kind, node=peer, address=address, token=token)

    def join_refused(self, address: str, reason: str, detail: str) -> None:
        """A machine was refused; ``reason`` is one of our own labels."""
        self._metrics.count("peerd_joins_refused_total", 1.0, {"reason": reason})
        self._emit(JoinRefused(address=address, reason=reason, detail=detail[:EVENT_TEXT_LENGTH_MAX]))
        _log.warning("identity.join_refused", address=address, reason=reason, detail=detail)

    def turned_away(self, address: str, why: str, now: float) -> None:
        """A limit refused a newcomer. Each is counted, only some are logged. ``now``: seconds of the steady clock."""
        self._metrics.count("peerd_joins_refused_total", 1.0, {"reason": "throttled"})
        if self._told_throttled.take(now):
            self._emit(JoinRefused(address=address, reason="throttled", detail=why))
            _log.warning("identity.joins_throttled", address=address, detail=why)

    # The node

    def installed(self, identity: PeerIdentity) -> None:
        """A new certificate is in use."""
        serial = format_serial(identity.serial)
        self._emit(CertificateInstalled(serial=serial, expires_at=identity.not_after.timestamp()))
        _log.info("identity.renewed", serial=serial, expires=identity.not_after.isoformat())

    def not_renewed(self, why: str, clock: RenewalClock, now: float) -> None:
        """A renewal failed; the level of the log line depends on how much time is left."""
        report = _log.error if clock.state(now) in ("error", "expired") else _log.warning
        left_s, pause_s = round(clock.expires_at - now), round(clock.due_at - now)
        report("identity.not_renewed", error=why, expires_in_s=left_s, again_in_s=pause_s)

    def learned(self, signed: SignedNotice, source: PeerRef | None) -> None:
        """A notice is news here; it came from a peer or was made or brought here."""
        kind = message_type(signed.type_id)
        if kind is None:
            return
        subject, detail = in_words(decode_body(kind, signed.body))
        peer = None if source is None else format_id(source.id)
        self._emit(NoticeLearned(subject=subject, detail=detail, peer=peer))
        _log.info("identity.notice_learned", subject=subject, detail=detail, peer=peer)


def in_words(notice: object) -> tuple[str, str]:
    """Return the subject of a notice, and its meaning in words."""
    match notice:
        case Denial(subject=subject, reason=reason, is_withdrawn=is_withdrawn):
            return subject, f"{'no longer denied' if is_withdrawn else 'denied'}: {reason}"
        case IssuerNotice(node=node):
            return f"{NODE_SUBJECT}{format_id(node.id)}", f"issues certificates at {node.address}"
        case RootChange(cross=cross):
            ends = x509.load_der_x509_certificate(cross).not_valid_after_utc
            return "root", f"new root; the old one is trusted until {ends.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case _:
            return "unknown", ""
