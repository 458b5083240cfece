"""Decisions about connections: both sides keep the same one, failures have stable names, back-off is bounded."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from hypothesis import given, strategies as st

from peerd.daemon.links.dialling import failure_of
from peerd.daemon.links.telemetry import REASONS
from peerd.linking.channel import keeps_old
from peerd.linking.policy import backoff_s
from peerd.linking.settings import LinkSettings
from peerd.system.sockets import format_address

IDS = st.tuples(st.integers(0, 99), st.integers(0, 99)).filter(lambda pair: pair[0] != pair[1])


def keeps(local_id: int, peer_id: int, *, old_dialled: bool, new_dialled: bool, age_s: float = 0.1) -> bool:
    return keeps_old(
        old_dialled=old_dialled,
        new_dialled=new_dialled,
        local_id=local_id,
        peer_id=peer_id,
        age_s=age_s,
        grace_s=5.0,
    )


@given(IDS, st.booleans(), st.booleans(), st.sampled_from([0.1, 60.0]))
def test_both_sides_keep_the_same_connection(ids: tuple[int, int], old_out: bool, new_out: bool, age_s: float) -> None:
    one, two = ids
    here = keeps(one, two, old_dialled=old_out, new_dialled=new_out, age_s=age_s)
    there = keeps(two, one, old_dialled=not old_out, new_dialled=not new_out, age_s=age_s)
    assert here is there


@given(IDS)
def test_whichever_came_first_the_one_of_the_smaller_id_stays(ids: tuple[int, int]) -> None:
    one, two = ids
    assert keeps(one, two, old_dialled=True, new_dialled=False) is (one < two)
    assert keeps(one, two, old_dialled=False, new_dialled=True) is (two < one)


@given(IDS, st.booleans())
def test_who_dials_again_knows_that_the_old_one_is_gone(ids: tuple[int, int], dialled: bool) -> None:
    assert not keeps(*ids, old_dialled=dialled, new_dialled=dialled)
    assert not keeps(*ids, old_dialled=dialled, new_dialled=not dialled, age_s=6.0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "refused"), "refused"),
        (ConnectionResetError(104, "reset"), "closed_early"),
        (ConnectionAbortedError("SSL handshake is taking longer than 5 seconds"), "closed_early"),
        (OSError(errno.EHOSTUNREACH, "no route"), "unreachable"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), "unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "name_resolution"),
        (UnicodeError("label too long"), "name_resolution"),
        (ssl.SSLError(1, "wrong version number"), "tls"),
    ],
)
def test_network_errors_have_stable_names(error: OSError | UnicodeError, reason: str) -> None:
    failure = failure_of(error)
    assert failure.reason == reason
    assert reason in REASONS


@given(st.integers(1, 10_000), st.floats(0.0, 1.0))
def test_back_off_doubles_within_its_bounds(failures: int, drawn: float) -> None:
    settings = LinkSettings()
    pause_s = backoff_s(settings, failures, lambda: drawn)
    longest_s = min(settings.backoff_max_s, settings.backoff_min_s * 2 ** min(failures - 1, 64))
    assert longest_s / 2 <= pause_s <= longest_s


def test_addresses_for_people() -> None:
    assert format_address(("10.0.0.1", 7420)) == "10.0.0.1:7420"
    assert format_address(("::1", 7420, 0, 0)) == "[::1]:7420"
    assert format_address(None) == "unknown"
