"""Dials to addresses that only other nodes say: where they may go, and how many of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from peerd.api import Priority
from peerd.ids import NodeId
from peerd.linking.allowed_hosts import AllowedHosts
from peerd.linking.dial_limits import (
    BUCKETS_MAX,
    DIALS_PER_ADDRESS_BURST,
    DIALS_PER_ADDRESS_PER_SECOND,
    DIALS_PER_HOST_BURST,
    DIALS_PER_INFORMANT_BURST,
    DIALS_PER_INFORMANT_PER_SECOND,
    WRONG_CERTIFICATE_PAUSE_S,
    WRONG_CERTIFICATES_MAX,
    Attempt,
    DialLimits,
)
from peerd.messages import PeerRef
from tests.unit.test_linking_policy import FRAME, SETTINGS, fail, made, peer, up

LIAR = NodeId(666)
ANYWHERE = AllowedHosts(own=["127.0.0.1"])


def at(node_id: int, host: str = "192.0.2.7", port: int = 80) -> PeerRef:
    return PeerRef(NodeId(node_id), host, port)


def begin(limits: DialLimits, peer: PeerRef, now: float = 0.0, informant: NodeId | None = LIAR) -> Attempt | str:
    return limits.begin(peer, informant, now, is_proven=False)


def permitted(answers: list[Attempt | str]) -> int:
    return sum(isinstance(answer, Attempt) for answer in answers)


@pytest.mark.parametrize(
    ("host", "is_permitted"),
    [
        ("192.0.2.7", True),
        ("10.1.2.3", True),
        ("2001:db8::7", True),
        ("some.name", True),
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("255.255.255.255", False),
        ("169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("localhost", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.1.2.3", True),
    ],
)
def test_without_networks_the_kind_of_the_address_decides(host: str, is_permitted: bool) -> None:
    assert AllowedHosts(own=["10.0.0.1", "seed.example", "0.0.0.0"]).permits(host) == is_permitted


def test_loopback_and_link_local_addresses_are_for_nodes_that_have_such_an_address() -> None:
    assert AllowedHosts(own=["127.0.0.1"]).permits("::1")
    assert not AllowedHosts(own=["127.0.0.1"]).permits("169.254.169.254")
    assert AllowedHosts(own=["localhost"]).permits("127.0.0.1")
    assert AllowedHosts(own=["fe80::7%eth0"]).permits("fe80::1%eth0")
    assert not AllowedHosts(own=["0.0.0.0"]).permits("0.0.0.0")


def test_the_operators_networks_decide_alone() -> None:
    allowed = AllowedHosts(["10.0.0.0/8", "fd00::/8", "127.0.0.1", "0.0.0.0/32"], own=["192.0.2.7"])
    hosts = ("10.9.8.7", "::ffff:10.9.8.7", "fd00::1", "127.0.0.1", "name", "192.0.2.7", "127.0.0.2", "::1", "0.0.0.0")
    assert [host for host in hosts if allowed.permits(host)] == list(hosts[:5])


@given(st.lists(st.tuples(st.integers(1, 1 << 64), st.floats(0.0, 2.0)), max_size=200))
def test_an_address_is_dialled_seldom_whatever_ids_are_invented_for_it(claims: list[tuple[int, float]]) -> None:
    limits, now, dialled = DialLimits(ANYWHERE), 0.0, 0
    for number, (node_id, pause_s) in enumerate(claims):
        now += pause_s
        dialled += isinstance(begin(limits, at(node_id), now, NodeId(number)), Attempt)
        assert dialled <= DIALS_PER_ADDRESS_BURST + DIALS_PER_ADDRESS_PER_SECOND * now + 1e-6


def test_a_host_and_an_informant_have_their_limits_too() -> None:
    limits = DialLimits(ANYWHERE)
    to_ports = [begin(limits, at(port, port=port), informant=NodeId(port)) for port in range(1, 1000)]
    assert permitted(to_ports) == DIALS_PER_HOST_BURST
    limits = DialLimits(ANYWHERE)
    to_hosts = [begin(limits, at(host, f"10.0.{host // 250}.{host % 250 + 1}")) for host in range(1000)]
    assert permitted(to_hosts) == DIALS_PER_INFORMANT_BURST
    assert isinstance(begin(limits, at(1, "10.9.9.9"), informant=NodeId(2)), Attempt), "another one is believed"
    assert isinstance(begin(limits, at(1, "10.9.9.8"), 1.0), Attempt), "and this one again after a while"


def test_what_reaches_its_node_costs_nothing() -> None:
    limits = DialLimits(ANYWHERE)
    for node_id in range(1, 2000):
        attempt = begin(limits, at(node_id))
        assert isinstance(attempt, Attempt)
        if node_id % 2:
            limits.reached(attempt, 0.0)
        else:
            limits.failed(attempt, "links_max", 0.0)
    assert [len(each._buckets) for each in (limits._addresses, limits._hosts, limits._informants)] == [0, 0, 0]


@pytest.mark.parametrize("reason", ["wrong_callee", "bad_certificate"])
def test_an_id_is_not_looked_for_again_where_somebody_else_answered(reason: str) -> None:
    limits = DialLimits(ANYWHERE)
    attempt = begin(limits, at(1))
    assert isinstance(attempt, Attempt)
    limits.failed(attempt, reason, 0.0)
    last = WRONG_CERTIFICATE_PAUSE_S - 0.1
    assert limits.begin(at(1), None, last, is_proven=True) == "wrong_callee"
    assert isinstance(begin(limits, at(1, port=81), last), Attempt), "elsewhere it may be"
    assert isinstance(begin(limits, at(2), last), Attempt), "and another one may be there"
    assert isinstance(begin(limits, at(1), WRONG_CERTIFICATE_PAUSE_S), Attempt)


def test_what_is_remembered_is_bounded() -> None:
    limits = DialLimits(ANYWHERE)
    for number in range(1, 3000):
        attempt = begin(limits, at(number, f"10.0.{number // 250}.{number % 250}"), informant=NodeId(number))
        assert isinstance(attempt, Attempt)
        limits.failed(attempt, "wrong_callee", 0.0)
    assert len(limits._wrong) == WRONG_CERTIFICATES_MAX
    assert [len(each._buckets) for each in (limits._addresses, limits._hosts, limits._informants)] == [BUCKETS_MAX] * 3


# In the link policy


def test_the_policy_dials_an_address_of_many_invented_ids_a_few_times() -> None:
    policy, host = made()
    policy.informant = LIAR
    for node_id in range(100, 300):
        policy.send(at(node_id), FRAME, Priority.NORMAL)
        if len(host.dials) < DIALS_PER_ADDRESS_BURST:
            fail(policy, host)
    host.settle()
    assert len(host.dials) == DIALS_PER_ADDRESS_BURST
    assert host.refusals == ["dial_limit"] * (200 - int(DIALS_PER_ADDRESS_BURST))
    assert len(host.downs) == 200 - 1, "each is told of, but the one whose dial is under way"


def test_the_policy_charges_the_peer_whose_frame_is_handled() -> None:
    policy, host = made()
    for number in range(1000):
        policy.informant = LIAR
        policy.send(at(1000 + number, f"10.1.{number // 250}.{number % 250 + 1}"), FRAME, Priority.NORMAL)
        policy.informant = None
    assert len(host.dials) == DIALS_PER_INFORMANT_BURST
    policy.send(at(7, "10.2.0.1"), FRAME, Priority.NORMAL)
    assert len(host.dials) == DIALS_PER_INFORMANT_BURST + 1, "what nobody in particular said is dialled"
    host.time += 1.0
    for number in range(100):
        policy.informant = LIAR
        policy.send(at(5000 + number, f"10.3.0.{number + 1}"), FRAME, Priority.NORMAL)
    assert len(host.dials) == DIALS_PER_INFORMANT_BURST + 1 + DIALS_PER_INFORMANT_PER_SECOND


def test_an_address_that_was_reached_is_dialled_as_often_as_its_links_break() -> None:
    policy, host = made()
    for _ in range(50):
        policy.send(peer(10), FRAME, Priority.NORMAL)
        link = up(policy, host, 10)
        host.time += 10.0
        link.lose("idle")
    assert host.refusals == [] and len(host.dials) == 51, "the last frame brings it back"


def test_a_peer_that_was_never_reached_where_it_says_to_be_is_not_proven_by_its_own_link() -> None:
    policy, host = made()
    for _ in range(50):
        up(policy, host, 10, dialled=False).lose("reset")
        if host.dials and policy.channels[NodeId(10)].dial is host.dials[-1]:
            fail(policy, host)
        host.settle()
    assert len(host.dials) <= DIALS_PER_ADDRESS_BURST


def test_streams_and_links_share_the_limits() -> None:
    policy, host = made()
    answers = [policy.begin_stream(at(node_id)) for node_id in range(1, 20)]
    assert permitted(answers) == DIALS_PER_ADDRESS_BURST
    policy.send(at(99), FRAME, Priority.NORMAL)
    host.settle()
    assert host.dials == [] and host.downs == [(NodeId(99), "dial_limit")]
    for answer in answers:
        if isinstance(answer, Attempt):
            policy.stream_opened(answer)
    policy.send(at(99), FRAME, Priority.NORMAL)
    assert len(host.dials) == 1


def test_nothing_is_dialled_at_an_address_that_is_not_allowed() -> None:
    policy, host = made()
    policy.send(at(7, "169.254.169.254"), FRAME, Priority.NORMAL)
    host.settle()
    assert (host.dials, host.downs) == ([], [(NodeId(7), "not_allowed")])
    assert policy.begin_stream(at(7, "0.0.0.0")) == "not_allowed"


def test_other_networks_hold_from_the_reload_on() -> None:
    policy, host = made()
    policy.reconfigure(replace(SETTINGS, allowed_hosts=AllowedHosts(["10.0.0.0/8"])))
    policy.send(at(7), FRAME, Priority.NORMAL)
    policy.send(at(8, "10.0.0.8"), FRAME, Priority.NORMAL)
    host.settle()
    assert host.downs == [(NodeId(7), "not_allowed")] and len(host.dials) == 1
