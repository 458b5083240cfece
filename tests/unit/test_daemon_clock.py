"""The daemon's clock."""

from __future__ import annotations

import time

import pytest

from peerd.daemon.links.settings import monotonic_s


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has the clock")
def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that slept longer than its lease would take items that nobody gets: a standby has the stream."""
    awake_ns = {time.CLOCK_BOOTTIME: 100_000_000_000, time.CLOCK_MONOTONIC: 40_000_000_000}
    monkeypatch.setattr(time, "clock_gettime_ns", awake_ns.__getitem__)
    monkeypatch.setattr(time, "monotonic_ns", lambda: awake_ns[time.CLOCK_MONOTONIC])
    assert monotonic_s() == 100.0
