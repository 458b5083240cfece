"""What a stream counts on a node, its rates, and how the daemon's metrics follow."""

from __future__ import annotations

from dataclasses import fields
from unittest.mock import Mock

import pytest

from peerd.testing.host import FakeHost
from protocols.dissemination.meter import TAU_S, StreamCounts, StreamMeter
from protocols.dissemination.metrics import StreamLedger


def test_counts_are_told_apart_by_their_names() -> None:
    names = [each.name for each in fields(StreamCounts)]
    before = StreamCounts(**{name: number for number, name in enumerate(names)})
    after = StreamCounts(**{name: 100 * (number + 1) for number, name in enumerate(names)})
    since = after.minus(before)
    for number, name in enumerate(names):
        assert getattr(since, name) == 100 * (number + 1) - number
    kept = after.copy()
    after.items_in += 1
    assert kept.items_in == after.items_in - 1


def test_each_count_has_the_rate_of_what_happened_lately() -> None:
    meter = StreamMeter(0.0)
    for second in range(1, 101):
        meter.counts.items_in += 5
        meter.counts.bytes_out += 1000
        meter.tick(float(second))
    assert meter.rates["items_in"] == pytest.approx(5, rel=1e-3)
    assert meter.rates["bytes_out"] == pytest.approx(1000, rel=1e-3)
    assert meter.rates["items_out"] == 0
    meter.tick(100 + TAU_S)
    assert meter.rates["items_in"] == pytest.approx(5 / 2.718, rel=1e-2)


def test_a_delay_by_clocks_that_differ_is_counted_whole_and_not_shown_below_zero() -> None:
    meter = StreamMeter(0.0)
    meter.counts.items_in, meter.counts.spurious, meter.counts.late_ms = 4, 2, -9800
    assert meter.figures()["late_s"] == 0.0
    meter.counts.late_ms += 9800 + 200
    assert meter.figures()["late_s"] == 0.1


def test_a_gauge_is_set_when_it_changes_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(1)
    shown: list[tuple[str, float]] = []
    monkeypatch.setattr(host, "gauge", lambda name, value: shown.append((name, value)))
    ledger = StreamLedger(host)
    ledger.take([])
    assert ("peerd_dissemination_streams", 0) in shown
    shown.clear()
    ledger.take([])
    assert shown == []
    node = Mock(depth=3, gaps=0, meter=StreamMeter(0.0))
    node.seeking.moves = {}
    node.member.down.children = {}
    node.queued_bytes.return_value = 0
    ledger.take([node])
    assert shown == [("peerd_dissemination_streams", 1), ("peerd_dissemination_depth_max", 3)]
    shown.clear()
    ledger.take([])
    assert shown == [("peerd_dissemination_streams", 0), ("peerd_dissemination_depth_max", 0)]


def test_what_a_stream_did_last_is_told_when_this_node_leaves_it() -> None:
    """Also where it leaves, as when it drains, before anybody has looked: the ledger of all nodes would have a hole."""
    host = FakeHost(1)
    ledger = StreamLedger(host)
    node = Mock(depth=0, gaps=0, meter=StreamMeter(0.0))
    node.name, node.seeking.moves, node.member.down.children = "log", {}, {}
    node.queued_bytes.return_value = 0
    node.meter.counts.items_out = 3
    ledger.take([node])
    node.meter.counts.items_out = 10
    ledger.gone(node)
    [told] = [each.columns() for each in host.events]
    assert (told["stream"], told["items_out"]) == ("log", 10)
    assert not ledger._taken and not ledger._reported
