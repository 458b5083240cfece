"""What is never merged, whoever sends it; and whose result the requester takes (A25, invariant 23)."""

from __future__ import annotations

import pytest

from peerd.api import LeafSet, SizedBlob
from peerd.errors import ProtocolError
from peerd.ids import ID_BITS, NodeId, format_id
from peerd.messages import PeerRef
from protocols.aggregation import partial, participant
from protocols.aggregation.collector import Candidate, Collector
from protocols.aggregation.exchange import (
    MOVED_BYTES_MAX,
    Aggregate,
    decode_value,
    extract_own,
    is_givers_fault,
    merge_received,
    open_own,
)
from protocols.aggregation.messages import NodeState
from protocols.aggregation.partial import Extraction, ExtractionReport
from protocols.aggregation.prefix import IdLevels
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.registry import function_named
from tests.support.aggregation import Round, aggregation_of, aggregation_ring, check_answer, total

QUERY = parse_query("sum(value)")
OWN, SIBLING, COUSIN, STRANGER = (NodeId(int(prefix, 2) << (ID_BITS - 3)) for prefix in ("000", "001", "010", "100"))


def own_of(node: NodeId, value: int = 1, padding_bytes: int = 0) -> Aggregate:
    def extractor(query: Query, own: NodeId) -> Extraction:
        return Extraction(function_named("sum").lift(value), ExtractionReport(records=1, records_selected=1))

    return open_own(QUERY, node, padding_bytes, extract_own(extractor, QUERY, node))


def test_a_merge_holds_both_and_leaves_them_as_they_were() -> None:
    own, theirs = own_of(OWN, 5), own_of(SIBLING, 7)
    merged = merge_received(IdLevels(OWN), 2, own, theirs.value)
    assert merged.partial.finish() == 12
    assert merged.partial.contributors == (OWN, SIBLING)
    assert merged.moved_bytes == len(own.encoded) + len(theirs.encoded)
    assert (own.partial.finish(), theirs.partial.finish()) == (5, 7)


def test_a_worker_is_believed_no_more_than_a_stranger() -> None:
    """It has run a stranger's query."""
    with pytest.raises(ProtocolError) as caught:
        open_own(QUERY, OWN, 0, bytes(own_of(SIBLING).encoded)[8:])
    assert caught.value.reason == "foreign_contributor"
    for data in (b"", b"\xc1", bytes(own_of(OWN).encoded)[8:-1], bytes(own_of(OWN).encoded)[8:] + b"\0"):
        with pytest.raises(ProtocolError) as caught:
            open_own(QUERY, OWN, 0, data)
        assert caught.value.reason == "aggregation_partial"


def test_a_common_contributor_is_never_merged() -> None:
    with pytest.raises(ProtocolError) as caught:
        merge_received(IdLevels(OWN), 2, own_of(OWN), own_of(OWN).value)
    assert caught.value.reason == "common_contributor"
    pair = merge_received(IdLevels(OWN), 2, own_of(OWN), own_of(SIBLING).value)
    with pytest.raises(ProtocolError) as caught:
        merge_received(IdLevels(OWN), 2, pair, own_of(SIBLING).value)
    assert caught.value.reason == "common_contributor"


@pytest.mark.parametrize("forged", [COUSIN, STRANGER], ids=format_id)
def test_a_contributor_of_another_level_is_never_merged(forged: NodeId) -> None:
    """It would be counted again when its own level comes."""
    with pytest.raises(ProtocolError) as caught:
        merge_received(IdLevels(OWN), 2, own_of(OWN), own_of(forged).value)
    assert caught.value.reason == "foreign_contributor"


@pytest.mark.parametrize("value", [b"", b"1234567", bytes(8), bytes(8) + b"\xc1"])
def test_what_is_no_value(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_value(QUERY, value)


def test_what_others_claim_to_have_moved_spoils_no_value() -> None:
    most = MOVED_BYTES_MAX.to_bytes(8, "big") + bytes(own_of(SIBLING).encoded)[8:]
    merged = merge_received(IdLevels(OWN), 2, own_of(OWN), most)
    assert merged.moved_bytes == MOVED_BYTES_MAX
    assert decode_value(QUERY, merged.value)[1] == MOVED_BYTES_MAX
    with pytest.raises(ProtocolError, match="bytes moved"):
        merge_received(IdLevels(OWN), 2, own_of(OWN), b"\xff" * 8 + bytes(own_of(SIBLING).encoded)[8:])


def test_a_value_that_together_with_ours_is_too_large_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = own_of(SIBLING, 2**100)
    monkeypatch.setattr(partial, "PARTIAL_BYTES_MAX", len(theirs.encoded))
    with pytest.raises(ProtocolError) as caught:
        merge_received(IdLevels(OWN), 2, own_of(OWN), theirs.value)
    assert not is_givers_fault(caught.value)
    with pytest.raises(ProtocolError) as caught:
        merge_received(IdLevels(OWN), 2, own_of(OWN), bytes(9))
    assert is_givers_fault(caught.value)


def test_padding_counts_as_moved() -> None:
    own, theirs = own_of(OWN, padding_bytes=1000), own_of(SIBLING, padding_bytes=1000)
    assert isinstance(theirs.value, SizedBlob)
    merged = merge_received(IdLevels(OWN), 2, own, theirs.value)
    assert merged.moved_bytes == len(own.encoded) + len(theirs.encoded) + 2000


def collector() -> tuple[Collector, list[PeerRef]]:
    peers = [PeerRef(node, "127.0.0.1", 1 + number) for number, node in enumerate((OWN, SIBLING, COUSIN, STRANGER))]
    leaf_set = LeafSet(tuple(peers[1:]), tuple(peers[1:]), True, True)
    return Collector.start(peers[0], leaf_set, 4.0, True), peers


def test_the_fullest_result_is_taken_and_the_next_one_when_it_cannot_be_had() -> None:
    found, peers = collector()
    for peer, contributors in zip(peers[1:], (2, 4, 3), strict=True):
        found.offered(Candidate(peer, contributors, 10))
    assert found.best() is None, "more contributors than have enrolled"
    for peer in peers:
        found.enrol(peer, "")
    for expected in (peers[2], peers[3], peers[1]):
        best = found.best()
        assert best is not None
        assert best.peer == expected
        found.could_not_fetch(expected, "peer_down")
        found.offered(Candidate(expected, 9, 10))  # it stays out, whatever it says now
    assert found.best() is None


def test_the_dead_and_those_who_declined_are_not_waited_for() -> None:
    found, peers = collector()
    alive = [peer.id for peer in peers]
    assert not found.is_full(3, alive)
    assert found.is_full(3, alive[:3]), "the fourth is known to be dead"
    found.enrol(peers[3], "no data")
    assert found.is_full(3, alive), "the fourth has declined"
    assert found.reason(peers[3].id, None, "") == "no data"
    assert found.reason(peers[2].id, None, "") == "unreachable"
    assert "still extracting" in found.reason(peers[2].id, NodeState.EXTRACTING, "")


def test_a_small_result_comes_along_with_its_offer() -> None:
    simulation = aggregation_ring(9, seed=21)
    aggregation_of(simulation, 0).data.extractor = None
    round_ = Round(simulation)
    check_answer(simulation, round_.answer())
    stages = [each.stage for each in round_.progress]
    assert "result_ready" in stages
    assert "fetching" not in stages


def test_the_winner_dies_before_its_result_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participant, "CARRIED_BYTES_MAX", 0)  # as of a large result
    simulation = aggregation_ring(9, seed=21)
    aggregation_of(simulation, 0).data.extractor = None  # the requester has no tree of its own to fall back on
    round_ = Round(simulation)
    simulation.run_until(lambda: any(each.stage == "result_ready" for each in round_.progress), limit_s=30)
    requester = round_.plugin.requesting.requesters[round_.round_id]
    best = requester.collector.best()
    assert best is not None
    simulation.kill(next(place for place in simulation.nodes if place.id == best.peer.id))
    answer = round_.answer()
    check_answer(simulation, answer)
    assert answer.value == total(simulation, answer.contributor_ids)
    assert answer.computed_by != best.peer.id
    assert answer.contributors >= 6
