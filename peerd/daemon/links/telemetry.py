"""Events, metrics and log lines about links, with bounded labels and bounded rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from peerd.api import Metric
from peerd.errors import PeerMisbehaved
from peerd.ids import NodeId, format_id
from peerd.lib.admission import TokenBucket
from peerd.limits import EVENT_TEXT_LENGTH_MAX
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event, LinkDown, LinkRefused, LinkUp, PeerMisbehaviour

_REASONS: Final = """
    accept_rate auth_rejected backoff bad_certificate bad_flags bad_magic bad_signature banned certificate
    closed_early cut denied dial_limit disconnect duplicate_identity duplicate_link eof error expired file_descriptors
    flood frame_idle goodbye hello_timeout id_mismatch idle invalid issuer_salt key_type key_usage links_max malformed
    malformed_certificate misbehaved name_resolution no_certificate not_allowed not_leaf oversize peer_down purpose
    queue_full recycled refused replaced reset self silent sockets_max stopping streams_max timeout tls tls_timeout
    transient_links_host_max transient_links_max unexpected_message unreachable uri_san user_timeout version
    write_deadline wrong_callee wrong_cluster
"""
REASONS: Final = frozenset(_REASONS.split())
"""Reasons that become a metric label; what a peer makes up counts as "other"."""

LINK_METRICS: Final = (
    Metric("peerd_streams", "gauge", "Bulk connections that are open."),
    Metric("peerd_links_established_total", "counter", "Control links established.", ("direction",)),
    Metric("peerd_links_closed_total", "counter", "Control links ended, by reason.", ("reason",)),
    Metric("peerd_connections_refused_total", "counter", "Connections that never became a link.", ("reason",)),
    Metric("peerd_accepts_throttled_total", "counter", "Connections closed before TLS, by limit.", ("reason",)),
    Metric("peerd_frames_dropped_total", "counter", "Control frames that were never sent, by reason.", ("reason",)),
    Metric("peerd_peer_misbehaviour_total", "counter", "Violations of the protocol by peers.", ("reason",)),
    Metric("peerd_dials_total", "counter", "Connections that this node tried to open.", ("outcome",)),
)

_log = structlog.get_logger("peerd.daemon")


class MetricSink(Protocol):
    """Takes the metrics, whose names were declared before."""

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None: ...
    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...


class LinkTelemetry:
    """Turns what happens to connections into events, counters and log lines.

    Strangers can cause refusals at will: at most ``REFUSALS_PER_SECOND`` of them are written out, all are counted. A
    ban is always written out: it takes a certificate and many violations.
    """

    REFUSALS_PER_SECOND: Final = 1.0
    REFUSALS_BURST: Final = 10.0
    REPEAT_INTERVAL_S: Final = 60.0
    """The pause between two log lines about the same address and the same reason."""
    TOLD_MAX: Final = 256
    THROTTLED_INTERVAL_S: Final = 10.0
    """The pause between two log lines about connections that one limit closed."""

    def __init__(self, metrics: MetricSink, now: Callable[[], float]) -> None:
        self._metrics = metrics
        self._now = now
        self._emit: Callable[[Event], object] = lambda event: None
        self._refusals = TokenBucket(self.REFUSALS_PER_SECOND, self.REFUSALS_BURST, now())
        self._told: dict[tuple[str, str], float] = {}
        """Address and reason of refusals that were written out, and when: oldest first."""
        self._throttled: dict[str, tuple[int, float]] = {}
        """For each limit, how many connections it closed since it was last logged, and when it may be logged again."""

    def attach(self, emit: Callable[[Event], object]) -> None:
        """Events go to this from now on (the node numbers them)."""
        self._emit = emit

    def link_up(self, peer: PeerRef, address: str, dialled: bool, protocol: int) -> None:
        """A control link passed its handshake."""
        self._metrics.count("peerd_links_established_total", 1.0, {"direction": "out" if dialled else "in"})
        self._emit(LinkUp(peer=format_id(peer.id), address=address, dialled=dialled, protocol=protocol))

    def link_down(self, peer: PeerRef, reason: str, duration_s: float) -> None:
        """A control link ended; ``reason`` may carry the peer's words after a colon."""
        self._metrics.count("peerd_links_closed_total", 1.0, {"reason": label(reason)})
        self._emit(LinkDown(peer=format_id(peer.id), reason=reason, duration_s=duration_s))

    def streams(self, open_streams: int) -> None:
        """How many bulk connections there are now."""
        self._metrics.gauge("peerd_streams", open_streams, {})

    def dialled(self, outcome: str) -> None:
        """A dial ended: "ok" or a reason."""
        self._metrics.count("peerd_dials_total", 1.0, {"outcome": outcome if outcome == "ok" else label(outcome)})

    def throttled(self, reason: str) -> None:
        """A connection was closed because of a limit, before any TLS."""
        self._metrics.count("peerd_accepts_throttled_total", 1.0, {"reason": label(reason)})
        now = self._now()
        closed, due_at = self._throttled.get(reason, (0, now))
        if now >= due_at and self._refusals.take(now):
            _log.warning("links.throttled", limit=reason, connections=closed + 1)
            closed, due_at = -1, now + self.THROTTLED_INTERVAL_S
        self._throttled[reason] = (closed + 1, due_at)

    def dropped(self, frames: int, reason: str) -> None:
        """Control frames were dropped."""
        if frames:
            self._metrics.count("peerd_frames_dropped_total", float(frames), {"reason": label(reason)})

    def refused(self, peer: NodeId | None, address: str, reason: str, detail: str) -> None:
        """A connection ended without a link."""
        self._metrics.count("peerd_connections_refused_total", 1.0, {"reason": label(reason)})
        if not self._is_news(address, reason) or not self._refusals.take(self._now()):
            return
        name = None if peer is None else format_id(peer)
        self._emit(LinkRefused(peer=name, address=address, reason=reason, detail=_short(detail)))
        _log.info("link.refused", peer=name, address=address, reason=reason, detail=_short(detail))

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved, banned: bool) -> None:
        """A peer broke the protocol."""
        reason = reason_of(error)
        self._metrics.count("peerd_peer_misbehaviour_total", 1.0, {"reason": label(reason)})
        if not banned and not self._refusals.take(self._now()):
            return
        name, detail = format_id(peer.id), _short(str(error))
        self._emit(PeerMisbehaviour(peer=name, address=peer.address, reason=reason, detail=detail))
        _log.warning("peer.misbehaved", peer=name, address=peer.address, reason=reason, detail=detail, banned=banned)

    def _is_news(self, address: str, reason: str) -> bool:
        """Whether to log it: a seed that is down is dialled again and again, and one line in a while is enough."""
        now, key = self._now(), (address, reason)
        if now - self._told.get(key, -self.REPEAT_INTERVAL_S) < self.REPEAT_INTERVAL_S:
            return False
        self._told.pop(key, None)
        self._told[key] = now
        if len(self._told) > self.TOLD_MAX:
            del self._told[next(iter(self._told))]
        return True


def reason_of(error: PeerMisbehaved) -> str:
    """The stable label of a misbehaviour."""
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) else "misbehaved"


def label(reason: str) -> str:
    """A reason as a metric label: from a fixed set, whatever a peer says."""
    head = reason.partition(":")[0]
    return head if head in REASONS else "other"


def _short(text: str) -> str:
    return text[:EVENT_TEXT_LENGTH_MAX]
