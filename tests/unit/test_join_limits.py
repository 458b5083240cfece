"""The limits on how often strangers may ask an issuer."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.linking import join_limits
from peerd.linking.join_limits import REFUSAL_FORGOTTEN_S, REFUSALS_PER_HOST, REQUESTS_BURST, JoinLimits, host_of


def test_a_host_that_is_refused_again_and_again_waits_and_the_others_do_not() -> None:
    limits = JoinLimits(0.0)
    for _ in range(int(REFUSALS_PER_HOST)):
        assert limits.admit("thief", 0.0) == ""
        limits.refused("thief", 0.0)
    for _ in range(1000):
        assert "refused attempts from thief" in limits.admit("thief", 1.0)
    assert limits.admit("honest", 1.0) == ""  # a thousand knocks took nothing from the common bucket
    assert limits.admit("thief", REFUSAL_FORGOTTEN_S) == ""


def test_many_machines_behind_one_address_join_at_once() -> None:
    limits = JoinLimits(0.0)
    admitted = [limits.admit("nat", 0.0) for _ in range(REQUESTS_BURST + 1)]
    assert admitted[:-1] == [""] * REQUESTS_BURST and "at once" in admitted[-1]


@given(st.lists(st.floats(0.0, 60.0), max_size=200))
def test_refusals_of_a_host_are_bounded_over_any_time(pauses: list[float]) -> None:
    limits, now, refused = JoinLimits(0.0), 0.0, 0
    for pause in pauses:
        now += pause
        if not limits.admit("thief", now):
            limits.refused("thief", now)
            refused += 1
    assert refused <= REFUSALS_PER_HOST + now / REFUSAL_FORGOTTEN_S + 1e-6


def test_the_table_of_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_limits, "HOSTS_MAX", 3)
    limits = JoinLimits(0.0)
    for number in range(10):
        limits.refused(f"host {number}", 0.0)
    assert list(limits._hosts._refusals) == ["host 7", "host 8", "host 9"]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.1:7420", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:7420", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:7420", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:7420", "fe80::/64"),
    ],
)
def test_what_counts_as_one_host(address: str, host: str) -> None:
    assert host_of(address) == host
