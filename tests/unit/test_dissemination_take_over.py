"""When a producer stops and when a standby may go on, and what a record says of standbys; on the pure parts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId, format_id
from peerd.lib.leases import DRIFT_MAX
from peerd.messages import PeerRef
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.producer.fencing import RANK_S, STOP_SHARE, may_take_over_at, stops_at
from protocols.dissemination.stream import (
    STANDBYS_MAX,
    TAKE_OVER_TERMS,
    SeedRef,
    StreamRecord,
    decode_record,
)

PEERS = tuple(PeerRef(NodeId(number << 120), f"10.0.0.{number}", 7420) for number in range(1, 7))
SPEC = StreamSpec(
    name="news", kind="classes", policy="first_fit", producer_gone="hand-over", successors=("10.0.0.3:7420",)
)
RECORD = StreamRecord.of(SPEC, PEERS[0]).model_copy(update={"standbys": tuple(map(SeedRef.of, PEERS[1:3]))})
RATES = st.floats(1 - DRIFT_MAX, 1 + DRIFT_MAX)


@given(
    st.floats(10.0, 86_400.0), st.floats(0.0, 60.0), st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.integers(0, 3),
    RATES, RATES, RATES,
)  # fmt: skip
def test_a_producer_has_stopped_before_any_standby_may_act_however_clocks_drift_within_the_margin(
    lease_s: float,
    way_s: float,
    producer_clock: float,
    standby_clock: float,
    rank: int,
    producer_rate: float,
    root_rate: float,
    standby_rate: float,
) -> None:
    """In true time, from the moment at which the last confirmed renewal was sent. ``way_s``: until the root has it."""
    stopped = (stops_at(producer_clock, lease_s) - producer_clock) / producer_rate
    lapsed = way_s + lease_s / root_rate
    seen_at = standby_clock + lapsed * standby_rate
    acts = (may_take_over_at(standby_clock, seen_at, lease_s, rank) - standby_clock) / standby_rate
    assert stopped < lapsed <= acts + 1e-6


@given(st.floats(10.0, 86_400.0), RATES, RATES)
def test_where_the_record_is_lost_early_a_standby_that_has_heard_the_producer_waits_for_as_long(
    lease_s: float, producer_rate: float, standby_rate: float
) -> None:
    """All that held the record died with the producer; the last renewal was sent before it asked the standby."""
    acts = may_take_over_at(0.0, 0.0, lease_s, 0) / standby_rate
    assert stops_at(0.0, lease_s) / producer_rate < acts


def test_the_margin_is_what_is_left_of_the_lease() -> None:
    assert STOP_SHARE / (1 - DRIFT_MAX) < 1 / (1 + DRIFT_MAX)
    assert [may_take_over_at(0.0, 3.0, 60.0, rank) for rank in range(3)] == [60.0, 60.0 + RANK_S, 60.0 + 2 * RANK_S]
    assert may_take_over_at(0.0, 70.0, 60.0, 1) == 70.0 + RANK_S


def test_two_standbys_never_have_one_term_and_both_are_later_than_any_planned_hand_over() -> None:
    planned = (RECORD.handed_to(PEERS[4]), RECORD.taken_back())
    taken = [RECORD.taken_over(PEERS[rank + 1], rank) for rank in range(STANDBYS_MAX)]
    assert [each.term for each in taken] == [TAKE_OVER_TERMS + rank for rank in range(STANDBYS_MAX)]
    assert all(each.term > other.term for each in taken for other in planned)
    again = RECORD
    for _ in range(5):  # while a producer asks on, the stream may have been handed on, each time in order
        again = again.handed_to(PEERS[4])
    assert again.term < RECORD.taken_back().term
    assert all(each.succeeds(RECORD) and not each.standbys and each.successors == SPEC.successors for each in taken)


def test_the_record_names_the_standbys_in_their_order_and_says_the_same_without_them() -> None:
    found = decode_record(RECORD.encode(), RECORD.key, PEERS[0].id)
    assert found == RECORD and found.has_standbys
    assert [found.rank_of(peer.id) for peer in PEERS[:4]] == [None, 0, 1, None]
    assert found.says_the_same(RECORD.model_copy(update={"standbys": ()}))


def test_a_record_that_was_written_before_there_were_standbys_is_read_and_has_none() -> None:
    old = {key: value for key, value in json.loads(RECORD.encode()).items() if key not in ("standbys", "successors")}
    found = decode_record(json.dumps({**old, "producer_gone": "wait"}).encode(), RECORD.key, PEERS[0].id)
    assert not found.has_standbys and found.standbys == () == found.successors


def test_successors_of_a_stream_that_nobody_takes_over_are_refused() -> None:
    with pytest.raises(ValueError, match="hand-over"):
        StreamRecord.of(SPEC.model_copy(update={"producer_gone": "wait"}), PEERS[0])


@pytest.mark.parametrize("count", [STANDBYS_MAX, STANDBYS_MAX + 1])
def test_so_many_may_be_named_and_no_more(count: int) -> None:
    spec = SPEC.model_copy(update={"successors": tuple(format_id(peer.id) for peer in PEERS[:count])})
    if count <= STANDBYS_MAX:
        assert StreamRecord.of(spec, PEERS[0]).successors == spec.successors
    else:
        with pytest.raises(ValueError, match="successors"):
            StreamRecord.of(spec, PEERS[0])
