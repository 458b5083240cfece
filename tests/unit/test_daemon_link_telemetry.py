"""Strangers decide neither how many label values there are nor how many lines are written."""

from __future__ import annotations

import structlog
from hypothesis import given, strategies as st

from peerd.daemon.links.telemetry import LINK_METRICS, REASONS, LinkTelemetry, label, reason_of
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.telemetry.metrics import PrometheusMetrics
from peerd.telemetry.schema import Event, LinkRefused

PEER = PeerRef(NodeId(1), "127.0.0.1", 7420)


@given(st.text(max_size=40))
def test_labels_come_from_a_fixed_set(reason: str) -> None:
    assert label(reason) in REASONS | {"other"}
    assert label("goodbye:" + reason) == "goodbye"


def test_refusals_are_all_counted_but_not_all_written() -> None:
    metrics = PrometheusMetrics(version="test")
    metrics.declare(LINK_METRICS)
    now = 0.0
    telemetry = LinkTelemetry(metrics, lambda: now)
    events: list[Event] = []
    telemetry.attach(events.append)
    for port in range(500):
        telemetry.refused(None, f"203.0.113.9:{port}", "bad_magic", "x" * 5000)
    assert 0 < len(events) < 50
    now = 60.0
    telemetry.refused(PEER.id, PEER.address, "made up", "detail")
    assert isinstance(events[-1], LinkRefused)
    assert events[-1].peer == f"{1:032x}"
    text = metrics.render().decode()
    assert 'peerd_connections_refused_total{reason="bad_magic"} 500.0' in text
    assert 'peerd_connections_refused_total{reason="other"} 1.0' in text


def test_a_seed_that_is_down_is_told_once_a_minute_for_each_reason() -> None:
    metrics = PrometheusMetrics(version="test")
    metrics.declare(LINK_METRICS)
    now = 0.0
    telemetry = LinkTelemetry(metrics, lambda: now)
    events: list[Event] = []
    telemetry.attach(events.append)
    for second in range(120):
        now = float(second)
        telemetry.refused(None, "192.0.2.7:7420", "refused", "nobody listens")
    telemetry.refused(None, "192.0.2.7:7420", "timeout", "no answer")
    telemetry.refused(None, "192.0.2.8:7420", "refused", "nobody listens")
    assert len(events) == 2 + 2


def test_what_a_limit_closed_is_one_line_in_a_while() -> None:
    metrics = PrometheusMetrics(version="test")
    metrics.declare(LINK_METRICS)
    now = 0.0
    telemetry = LinkTelemetry(metrics, lambda: now)
    with structlog.testing.capture_logs() as said:
        for _ in range(500):
            telemetry.throttled("accept_rate")
        telemetry.throttled("sockets_max")
        now = LinkTelemetry.THROTTLED_INTERVAL_S
        telemetry.throttled("accept_rate")
    assert [(line["limit"], line["connections"]) for line in said] == [
        ("accept_rate", 1),
        ("sockets_max", 1),
        ("accept_rate", 500),
    ]
    assert 'peerd_accepts_throttled_total{reason="accept_rate"} 501.0' in metrics.render().decode()


def test_everything_that_links_tell_fits_its_declaration() -> None:
    metrics = PrometheusMetrics(version="test")
    metrics.declare(LINK_METRICS)
    telemetry = LinkTelemetry(metrics, lambda: 0.0)
    kinds: list[str] = []
    telemetry.attach(lambda event: kinds.append(event.KIND))
    telemetry.link_up(PEER, PEER.address, True, 1)
    telemetry.link_down(PEER, "goodbye:stopping", 1.0)
    telemetry.streams(2)
    telemetry.dialled("ok")
    telemetry.throttled("accept_rate")
    telemetry.dropped(3, "queue_full")
    telemetry.dropped(0, "queue_full")
    telemetry.misbehaved(PEER, ProtocolError("bad_magic", "detail"), banned=False)
    assert kinds == ["link.up", "link.down", "peer.misbehaved"]
    text = metrics.render().decode()
    for metric in LINK_METRICS:
        assert f"# TYPE {metric.name.removesuffix('_total')}" in text
    assert 'peerd_frames_dropped_total{reason="queue_full"} 3.0' in text


def test_an_error_without_a_label_has_one_too() -> None:
    assert reason_of(ProtocolError("flood")) == "flood"
    assert reason_of(PeerMisbehaved("something")) == "misbehaved"
