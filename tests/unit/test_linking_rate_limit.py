"""Token buckets never give more than they promise; scores decay, bans grow."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.lib.admission import TokenBucket
from peerd.linking.rate_limit import BAN_MAX_S, BAN_MIN_S, SCORED_PEERS_MAX, MisbehaviourScores

PEER = NodeId(5)


@given(
    rate=st.floats(0.1, 1000.0),
    burst=st.integers(1, 100),
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 20)), max_size=60),
)
def test_no_more_than_burst_and_rate(rate: float, burst: int, steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now, taken = 0.0, 0
    for pause_s, amount in steps:
        now += pause_s
        if bucket.take(now, amount):
            taken += amount
        assert taken <= burst + rate * now + 1e-6


def test_a_refusal_costs_nothing_and_rest_refills() -> None:
    bucket = TokenBucket(10.0, 5.0, 0.0)
    assert not bucket.take(0.0, 6)
    assert bucket.take(0.0, 5)
    assert not bucket.take(0.05)
    assert bucket.take(0.1)
    assert bucket.take(100.0, 5)
    assert not bucket.take(100.0, 1)


def test_enough_violations_end_in_a_ban_that_ends() -> None:
    scores = MisbehaviourScores()
    assert [scores.add(PEER, "bad_magic", 0.0) for _ in range(10)] == [False] * 9 + [True]
    assert scores.is_banned(PEER, BAN_MIN_S - 1)
    assert not scores.is_banned(PEER, BAN_MIN_S + 1)
    assert not scores.is_banned(NodeId(6), 0.0)


def test_bans_double_up_to_an_hour() -> None:
    scores = MisbehaviourScores()
    lengths = []
    now = 0.0
    for _ in range(9):
        while not scores.add(PEER, "bad_signature", now):
            pass
        start, now = now, now + BAN_MIN_S / 2
        while scores.is_banned(PEER, now):
            now += 1.0
        lengths.append(now - start)
    assert lengths[:3] == [60.0, 120.0, 240.0]
    assert lengths[-1] == BAN_MAX_S


def test_old_violations_are_forgiven() -> None:
    scores = MisbehaviourScores()
    assert not any(scores.add(PEER, "invalid", now=600.0 * number) for number in range(100))


def test_the_table_is_bounded() -> None:
    scores = MisbehaviourScores()
    for number in range(3 * SCORED_PEERS_MAX):
        scores.add(NodeId(number), "flood", 0.0)
    assert len(scores._scores) == SCORED_PEERS_MAX


def test_a_larger_burst_is_there_at_once() -> None:
    bucket = TokenBucket(1.0, 20.0, 0.0)
    assert bucket.take(0.0, 20.0) and not bucket.take(0.0)
    bucket.adjust(1.0, 420.0)
    assert bucket.take(0.0, 400.0) and not bucket.take(0.0)
