"""The nodes that a root must have heard before it answers: everybody up to the r-th established node."""

from __future__ import annotations

from typing import Any, cast

from peerd.api import LeafSet
from peerd.ids import RING, NodeId
from peerd.messages import PeerRef
from peerd.services.records.config import RecordsConfig
from peerd.services.records.ports import RecordsHost
from peerd.services.records.root import CatchUp
from peerd.services.records.state import RecordState

OWN = 1000


def peer(node_id: int) -> PeerRef:
    return PeerRef(NodeId(node_id % RING), "10.0.0.1", 7420)


def leaf_set(*, is_complete: bool = True) -> LeafSet:
    """Eight a side: 999, 998, ... and 1001, 1002, ..."""
    smaller = tuple(peer(OWN - step) for step in range(1, 9))
    larger = tuple(peer(OWN + step) for step in range(1, 9))
    return LeafSet(smaller, larger, is_complete, False)


class Host:
    """As much of a Host as these tests need."""

    def __init__(self) -> None:
        self.peer = peer(OWN)
        self.id = self.peer.id
        self.is_ready = True
        self.leaves = leaf_set()
        self.told: list[Any] = []
        self.record_upcalls = self

    def leaf_set(self) -> LeafSet:
        return self.leaves

    def changed(self, *what: Any) -> None:
        self.told.append(what)

    def has_plugin(self, namespace: str) -> bool:
        return True

    def settled(self) -> None:
        self.told.append("settled")


def state_and_host() -> tuple[RecordState, Host]:
    host = Host()
    return RecordState(cast(RecordsHost, host), RecordsConfig()), host


def asked_until_done(state: RecordState, established: set[int]) -> list[int]:
    """Compare with whoever is named until nobody is; their distances from this node, in that order."""
    order: list[int] = []
    while sources := state.sources():
        assert len(sources) <= 2 and not state.is_caught_up
        source = sources[0]
        order.append(source.id - OWN)
        state.pulled[source.id] = source.id - OWN in established
    assert state.is_caught_up
    return order


def test_the_nearest_r_on_each_side_when_all_are_established() -> None:
    state, _ = state_and_host()
    assert sorted(asked_until_done(state, set(range(-8, 9)))) == [-3, -2, -1, 1, 2, 3]


def test_newcomers_do_not_count_so_one_looks_further() -> None:
    state, _ = state_and_host()
    asked = asked_until_done(state, {-8, -7, -6, 1, 3, 5, 7})
    assert sorted(asked) == [*range(-8, 0), 1, 2, 3, 4, 5]


def test_where_everybody_is_new_all_that_are_known_are_asked() -> None:
    state, _ = state_and_host()
    assert sorted(asked_until_done(state, set())) == [*range(-8, 0), *range(1, 9)]


def test_a_change_nearby_starts_again_and_one_far_away_does_not() -> None:
    state, host = state_and_host()
    asked_until_done(state, set(range(-8, 9)))
    changed: list[bool] = []
    state.view_changed = lambda: changed.append(True)
    host.leaves = LeafSet(host.leaves.smaller[:7], host.leaves.larger, True, False)
    state.refresh()
    assert state.is_caught_up and changed == [True]
    host.leaves = LeafSet(host.leaves.smaller[1:], host.leaves.larger, True, False)
    state.refresh()
    assert not state.is_caught_up and changed == [True, True]


def test_after_an_arrival_only_the_newcomer_is_asked() -> None:
    """The keys of this node are fewer than before, and it has asked the others about all of them."""
    state, host = state_and_host()
    asked_until_done(state, set(range(-8, 9)))
    newcomer = PeerRef(NodeId(OWN * 2), "10.0.0.2", 7420)
    host.leaves = LeafSet(host.leaves.smaller, (host.leaves.larger[0], newcomer, *host.leaves.larger[1:7]), True, False)
    state.refresh()
    assert [source.id for source in state.sources()] == [newcomer.id]
    state.pulled[newcomer.id] = True
    assert state.is_caught_up
    host.leaves = LeafSet(host.leaves.smaller, host.leaves.larger[1:], True, False)
    state.refresh()
    assert not state.is_caught_up and not state.pulled, "one went: all of them are asked again"


def test_plugins_are_told_once_after_each_change_nearby() -> None:
    state, host = state_and_host()
    state.tell_settled()
    assert host.told == [], "it has compared with nobody"
    asked_until_done(state, set(range(-8, 9)))
    state.tell_settled()
    state.tell_settled()
    assert host.told == ["settled"]
    host.leaves = LeafSet(host.leaves.smaller[:7], host.leaves.larger, True, False)
    state.refresh()
    state.tell_settled()
    assert host.told == ["settled"], "nothing nearby has changed"
    newcomer = PeerRef(NodeId(OWN * 2), "10.0.0.2", 7420)
    host.leaves = LeafSet(host.leaves.smaller, (host.leaves.larger[0], newcomer, *host.leaves.larger[1:7]), True, False)
    state.refresh()
    state.tell_settled()
    assert host.told == ["settled"], "the newcomer may have taken writes"
    state.pulled[newcomer.id] = True
    state.lacks_records = state.lacks_items = True
    state.tell_settled()
    assert host.told == ["settled"], "there is no room here for all of them"
    state.lacks_items = False
    state.tell_settled()
    state.tell_settled()
    assert host.told == ["settled"] * 2
    state.catch_up_again()
    asked_until_done(state, set(range(-8, 9)))
    state.tell_settled()
    assert host.told == ["settled"] * 3


def test_an_established_neighbour_that_says_it_is_empty_is_not_asked() -> None:
    state, _ = state_and_host()
    state.heard_empty(peer(OWN + 2))
    state.heard_empty(peer(OWN + 7))
    assert sorted(asked_until_done(state, set(range(-8, 9)))) == [-3, -2, -1, 1, 3]
    assert OWN + 7 not in state.pulled, "too far away to matter"


def test_a_change_far_away_is_nothing_to_a_store_that_is_empty_and_has_caught_up() -> None:
    state, host = state_and_host()
    asked_until_done(state, set(range(-8, 9)))
    state.is_established = True
    changed: list[bool] = []
    state.view_changed = lambda: changed.append(True)
    host.leaves = LeafSet(host.leaves.smaller[:7], host.leaves.larger, True, False)
    assert state.refresh().leaf_set is host.leaves and not changed


def test_a_node_out_of_the_ring_is_root_of_nothing() -> None:
    state, host = state_and_host()
    asked_until_done(state, set(range(-8, 9)))
    assert state.is_root(NodeId(OWN))
    host.is_ready = False
    assert not state.is_root(NodeId(OWN)) and not state.is_caught_up
    host.is_ready, host.leaves = True, leaf_set(is_complete=False)
    assert not state.is_root(NodeId(OWN))


def answered(*answers: bool | None, is_all: bool = False) -> bool:
    """Whether these answers, closest node first, are enough for three copies."""
    asked = tuple(peer(number) for number in range(len(answers)))
    catch_up = CatchUp(asked, is_all)
    catch_up.answers = {one.id: answer for one, answer in zip(asked, answers, strict=True)}
    return catch_up.is_enough(3)


def test_one_record_is_caught_up_on_when_three_established_nodes_have_answered() -> None:
    assert answered(True, True, True, None, None, None)
    assert answered(False, True, False, True, True, None)
    assert not answered(True, None, True, True, True, True), "the silent one is among those that held it"
    assert not answered(False, False, False, False, True, True), "the third is further away"
    assert answered(False, True, is_all=True) and not answered(False, None, is_all=True)
    assert answered(is_all=True), "alone"
