"""CoDD's policies: how many moves are made at a time, and streams in which items follow each other fast."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from peerd.ids import NodeId
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.policies.overlap.events import ReorganisationDecided
from protocols.dissemination.policies.overlap.item_bits import from_bits, newest, to_bits
from protocols.dissemination.policies.overlap.messages import BITS_BYTES_MAX, WINDOW_MAX, MoveOrder
from protocols.dissemination.ports import ParsedItem
from tests.unit.test_dissemination_overlap import PEERS, FakeTree, X, every, policy_at, reorganise
from tests.unit.test_dissemination_overlap_granting import answer_all, let_batch_end, producer
from tests.unit.test_dissemination_statistics import item_set


def five_requests(is_better_there: bool) -> list[NodeId]:
    """Five movers, the dearest last; at most two moves. Which of them were looked at, in order."""
    tree, policy = producer(top=2, children=5)
    for number, peer in enumerate(PEERS[5:10]):
        policy.received(X, reorganise(peer, every(3), [X], [0.1 + number / 10]))
    let_batch_end(tree, policy)
    answer_all(tree, policy, cost=0.0 if is_better_there else 0.9, room=9)
    ordered = tree.take(MoveOrder)
    assert len(ordered) == (2 if is_better_there else 0)
    movers = {f"{peer.id:032x}": peer.id for peer in PEERS}
    decided = [movers[event.child] for event in tree.events if isinstance(event, ReorganisationDecided)]
    return decided or [peer.id for peer, _ in ordered]


def test_so_many_moves_of_a_batch_are_made_those_with_the_greatest_overhead() -> None:
    assert five_requests(is_better_there=True) == [PEERS[9].id, PEERS[8].id]


def test_requests_without_a_better_place_let_others_be_looked_at_up_to_a_limit() -> None:
    assert five_requests(is_better_there=False) == [peer.id for peer in PEERS[9:5:-1]]


@pytest.mark.parametrize("pace", [100, 1600, 8000])
def test_what_decides_about_a_move_is_still_known_in_a_fast_stream(pace: int) -> None:
    """When an item is settled, its request has waited for the batch, and the search comes by."""
    tree = FakeTree()
    policy = policy_at(tree, [X])
    overlaps = policy.overlaps
    for number in range(1, 6 * pace + 1):
        item = ParsedItem(StreamItem.of(1, number, number, b""), frozenset())
        policy.passed(item, number % 2 == 0, [X.id] if number % 4 == 0 else [])
        if number % (pace // 4) == 0:
            tree.at_s += 0.25
            overlaps.tick(tree.at_s)
        if number == 3 * pace:
            sent = overlaps.received.sent_to(X.id)
            assert sent is not None
            deciding = overlaps.settled(sent, tree.at_s)
    compared = min(400, 2 * pace)
    assert deciding.watermark == 2 * pace and deciding.span == compared
    others = deciding.minus(BitMap64(range(0, 6 * pace, 8)))
    assert overlaps.missing(others) == 0.0 and overlaps.missing(others, X.id) == 0.0, "this node wants them all itself"
    odd = item_set(set(range(deciding.since + 1, deciding.watermark, 2)), deciding.since, deciding.watermark)
    assert overlaps.missing(odd) == pytest.approx(0.5), "not what it would be if nothing were known: every item"
    assert overlaps.received.window <= WINDOW_MAX


def test_what_a_child_has_needed_is_told_whole_as_far_back_as_fits() -> None:
    watermark = 4 * BITS_BYTES_MAX * 8
    told = to_bits(newest(item_set(set(range(0, watermark + 1, 3)), 0, watermark)))
    assert told.every_log2 == 0 and told.watermark == watermark and len(told.bits) == BITS_BYTES_MAX
    assert set(from_bits(told).items) == set(range(0, watermark + 1, 3)) - set(range(told.since + 1))
