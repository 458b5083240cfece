"""Whom a round expects: those in the leaf set, those that are missing, and the absent that two nodes name."""

from __future__ import annotations

from random import Random

import pytest

from peerd.api import LeafSet, MissingMember
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.leafset import HALF, Leaves
from peerd.words import ago
from protocols.aggregation.collector import Basis, Collector, absentees_near
from protocols.aggregation.messages import ABSENTEES_MAX, Absentee


def peer(number: int) -> PeerRef:
    return PeerRef(NodeId(number), "10.0.0.1", number)


def leaf_set(smaller: tuple[int, ...], larger: tuple[int, ...], *, covers: bool = False) -> LeafSet:
    return LeafSet(tuple(map(peer, smaller)), tuple(map(peer, larger)), True, covers)


RING = leaf_set((90, 80, 70), (110, 120, 130))


def missing(*numbers: int, age_s: float = 3.0) -> tuple[MissingMember, ...]:
    return tuple(MissingMember(peer(number), age_s) for number in numbers)


def start(*lost: int, covers: bool = False) -> Collector:
    return Collector.start(peer(100), leaf_set((90,), (110,), covers=covers), 3.0, True, missing(*lost), 50.0)


def test_the_missing_are_expected_and_not_waited_for() -> None:
    found = start(105, covers=True)
    assert found.basis is Basis.LEAF_SET
    assert found.expected_count() == 4
    assert found.is_full(3, [NodeId(90), NodeId(110)])
    assert [each.id for each in found.missing([NodeId(90), NodeId(100), NodeId(110)])] == [105]
    assert found.lost_s(NodeId(105), 60.0) == 13.0
    assert found.lost_s(NodeId(110), 60.0) is None


def test_who_takes_part_is_not_missing() -> None:
    found = start(105)
    found.enrol(peer(105), "")
    assert found.lost_s(NodeId(105), 60.0) is None
    assert not found.is_full(3, [])
    assert found.is_full(4, [])


def test_one_node_alone_cannot_make_up_another() -> None:
    found = start()
    ghosts = [Absentee(peer(1000 + number), 500) for number in range(ABSENTEES_MAX)]
    for _ in range(3):
        found.enrol(peer(110), "", ghosts, 51.0)
    assert found.expected_count() == 3
    found.enrol(peer(90), "", ghosts[:1], 51.0)
    assert found.expected_count() == 4
    assert found.lost_s(NodeId(1000), 51.0) == 0.5


def test_a_named_node_that_takes_part_after_all_counts_once() -> None:
    found = start()
    found.enrol(peer(110), "", [Absentee(peer(115), 500)], 51.0)
    found.enrol(peer(115), "")
    found.enrol(peer(90), "", [Absentee(peer(115), 500)], 51.0)
    assert found.expected_count() == 4
    assert not found.absent


def test_nobody_waits_when_all_that_are_there_decline() -> None:
    found = start(105)
    for number in (90, 100):
        found.enrol(peer(number), "no data")
    assert not found.is_pointless
    found.enrol(peer(110), "no data")
    assert found.is_pointless


def test_a_node_names_the_absent_next_to_it() -> None:
    named = absentees_near(NodeId(100), RING, missing(75, 85, 95, 105, 115, 125))
    assert [each.peer.id for each in named] == [85, 95, 105, 115]
    assert named[0].age_ms == 3000


def test_each_absent_node_is_named_by_two_nodes_on_each_side() -> None:
    ring = list(range(100, 200, 10))
    namers = []
    for place, own in enumerate(ring):
        larger = tuple(ring[(place + step) % len(ring)] for step in range(1, 9))
        smaller = tuple(ring[(place - step) % len(ring)] for step in range(1, 9))
        if absentees_near(NodeId(own), leaf_set(smaller, larger), missing(145)):
            namers.append(own)
    assert namers == [130, 140, 150, 160]


def test_in_a_tiny_ring_everybody_names_everybody() -> None:
    tiny = leaf_set((110,), (110,), covers=True)
    assert len(absentees_near(NodeId(100), tiny, missing(1, 105, 500))) == 3
    assert len(absentees_near(NodeId(100), leaf_set((), (), covers=True), missing(*range(1, 90)))) == ABSENTEES_MAX


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s ago"), (3.2, "3 s ago"), (119, "119 s ago"), (120, "2 min ago"), (7200, "2 h ago")]
)
def test_the_past_for_people(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_in_a_round_that_is_not_exact_a_result_has_at_most_four_times_the_estimated_nodes() -> None:
    found = Collector.start(peer(100), leaf_set((90,), (110,)), 3.0, False)
    found.check_contributors([NodeId(number) for number in range(12)])
    with pytest.raises(ProtocolError, match="invented"):
        found.check_contributors([NodeId(number) for number in range(13)])
    assert found.expected_count() == 3


def test_no_node_of_a_large_ring_estimates_so_little_that_it_refuses_a_full_result() -> None:
    """At twice the estimate, 18 of these 15,000 nodes would refuse what all 1,000 nodes gave them."""
    rng, nodes = Random(3), 1000
    for _ in range(15):
        ring = sorted(NodeId(rng.getrandbits(128)) for _ in range(nodes))
        for place, own in enumerate(ring):
            leaves = Leaves(own)
            for step in (*range(-HALF, 0), *range(1, HALF + 1)):
                leaves.add(peer_at(ring[(place + step) % nodes]))
            leaves.open_gap()
            Collector(own, leaves.estimated_ring_size(), Basis.ESTIMATE).check_count(nodes)


def peer_at(node_id: NodeId) -> PeerRef:
    return PeerRef(node_id, "10.0.0.1", 7420)
