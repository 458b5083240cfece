"""The second parent: asked for a place while nothing is wrong, and taken at once when the parent dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import Reserve, Reserved, TreeHeartbeat, Unreserve
from protocols.dissemination.tree.owner import PLACES_MAX
from protocols.dissemination.tree.search import MoveEnd, ParentSearch
from protocols.dissemination.tree.second import AGAIN_MAX_S, AGAIN_S, HELD_S
from tests.support.member_owner import hook
from tests.unit.test_dissemination_tree import STREAM, Net

FAN_OUT = 2


class Tree(Net):
    """Orphans look for a parent as nodes do: the second one first, then those above the one that is gone."""

    def __init__(self, above: dict[int, int], rng: random.Random, fan_out: int = FAN_OUT) -> None:
        super().__init__(len(above) + 1, rng)
        self.sent: Counter[type[Message]] = Counter()
        self.tried: dict[int, list[int]] = {}
        for number in range(len(self.peers)):
            self._equip(number, fan_out)
        for number, parent in above.items():
            self.subscribe(number, "a")
            assert self.move(number, parent)
            self.run()

    def _equip(self, number: int, fan_out: int) -> None:
        member = self.members[self.peers[number].id]
        children = member.down.children
        tried = self.tried.setdefault(number, [])

        def move_to(peer: PeerRef) -> bool:
            tried.append(peer.id)
            return member.move_to(peer, self.now, member.up.died)

        search = ParentSearch(move_to, self.rng.random)
        send = member.owner.send

        def counted(to: PeerRef, message: Message) -> None:
            self.sent[type(message)] += 1
            send(to, message)

        def orphaned() -> None:
            second = [] if member.second.peer is None else [member.second.peer]
            search.begin([*second, *member.state.ancestors[-2::-1], self.peers[0]], lambda is_found: None)

        hook(
            member.owner,
            send=counted,
            room_after=lambda gone: fan_out + (gone in children) - len(children),
            admit=lambda peer, wants, instead_of: len(children) < fan_out + (instead_of in children),
            orphaned=orphaned,
            ended=lambda peer, end, why, others: _ended(search, peer, end, others),
        )

    def second(self, number: int) -> int | None:
        peer = self.members[self.peers[number].id].second.peer
        return None if peer is None else peer.id - 1

    def seconds(self, *numbers: int) -> list[int | None]:
        return [self.second(number) for number in numbers]


def _ended(search: ParentSearch, peer: PeerRef, end: MoveEnd, others: Sequence[PeerRef]) -> None:
    search.ended(peer, end, others)


BINARY = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}


def test_the_producers_children_need_no_second_parent_and_others_ask_the_grandparent_first() -> None:
    tree = Tree({1: 0, 2: 1}, random.Random(0))
    tree.settle(8.0)
    assert tree.seconds(1, 2) == [None, 0]
    assert (tree.sent[Reserve], tree.sent[Reserved]) == (1, 1)


def test_of_two_siblings_one_gets_the_place_of_their_parent_and_the_other_one_elsewhere() -> None:
    tree = Tree(BINARY, random.Random(1))
    tree.settle(10.0)
    assert sorted(number for number in tree.seconds(3, 4) if number is not None) in ([0, 5], [0, 6], [0, 2])
    assert {tree.second(3), tree.second(4)} & {0}
    assert {tree.second(5), tree.second(6)} & {0}, "the same place serves both, for two different deaths"


def test_nothing_more_is_sent_at_rest() -> None:
    tree = Tree(BINARY, random.Random(2))
    tree.settle(10.0)
    assert None not in tree.seconds(3, 4, 5, 6)
    tree.sent.clear()
    tree.settle(120.0)
    assert set(tree.sent) == {TreeHeartbeat}


@pytest.mark.parametrize("seed", range(10))
def test_at_a_parents_death_its_children_go_to_their_second_parents_and_lose_nothing(seed: int) -> None:
    tree = Tree(BINARY, random.Random(seed))
    tree.settle(10.0)
    for _ in range(5):
        tree.publish("a")
    tree.run(seed)
    seconds = {number: tree.second(number) for number in (3, 4)}
    tree.kill(1)
    tree.publish("a")
    tree.run()
    for number, second in seconds.items():
        assert second is not None
        assert tree.tried[number] == [second + 1], "the first try succeeds"
        assert tree.parents()[tree.peers[number].id] == second + 1
        assert tree.delivered(number) == tree.expected("a")
    tree.check_shape()
    tree.settle(10.0)
    needs = [number for number in (3, 4) if tree.second(number) is None and seconds[number] != 0]
    assert not needs, "they have looked for another one by now"


def test_where_the_second_parent_is_dead_too_the_search_goes_on_above() -> None:
    tree = Tree(BINARY, random.Random(4))
    tree.settle(10.0)
    number = next(each for each in (3, 4) if tree.second(each) != 0)
    second = tree.second(number)
    assert second is not None
    del tree.members[tree.peers[second].id]  # nobody has noticed
    tree.publish("a")
    tree.kill(1)
    tree.settle(10.0)
    assert tree.tried[number][0] == second + 1 and len(tree.tried[number]) > 1
    assert tree.delivered(number) == tree.expected("a")


def test_a_second_parent_that_is_out_of_reach_is_replaced() -> None:
    tree = Tree(BINARY, random.Random(5))
    tree.settle(HELD_S + 10.0)
    number = next(each for each in (3, 4) if tree.second(each) in (5, 6))
    second = tree.second(number)
    assert second is not None
    tree.kill(second)
    assert tree.second(number) is None
    tree.settle(10.0)
    assert tree.second(number) not in (None, second)


def test_a_place_is_taken_back_when_newcomers_have_filled_it() -> None:
    tree = Tree({1: 0, 2: 1, 3: 1}, random.Random(6), fan_out=3)
    tree.settle(10.0)
    assert tree.seconds(2, 3) == [0, 0]
    root = tree.members[tree.peers[0].id]
    hook(root.owner, room_after=lambda gone: 1)  # as if two more had come
    tree.settle(0.5)
    assert tree.seconds(2, 3).count(None) == 1
    assert len(root.places._kept) == 1
    hook(root.owner, room_after=lambda gone: 2)
    tree.settle(4 * AGAIN_S)
    assert tree.seconds(2, 3) == [0, 0]


def test_who_has_moved_below_the_same_parent_takes_its_promise_back() -> None:
    tree = Tree(BINARY, random.Random(7), fan_out=3)
    member = tree.members[tree.peers[3].id]
    tree.settle(10.0)
    member._do(member.second.leave())
    member.second.of, member.second.peer = tree.peers[1].id, tree.peers[5]
    other = tree.members[tree.peers[5].id]
    other._do(other.places.asked(tree.peers[3], Reserve(STREAM, tree.peers[1].id)))
    tree.run()
    assert tree.move(5, 4)
    tree.settle(1.0)
    assert not other.places._kept
    assert tree.second(3) != 5


def test_who_has_another_parent_gives_its_place_free() -> None:
    tree = Tree({1: 0, 2: 1, 3: 0}, random.Random(8), fan_out=3)
    tree.settle(10.0)
    assert len(tree.members[tree.peers[0].id].places._kept) == 1
    assert tree.move(2, 0)
    tree.settle(10.0)
    assert tree.second(2) is None
    assert not len(tree.members[tree.peers[0].id].places._kept)
    assert tree.move(2, 3)
    tree.settle(10.0)
    assert tree.second(2) == 0
    tree.members[tree.peers[2].id].leave(tree.now)
    tree.run()
    assert tree.sent[Unreserve] == 1
    assert not len(tree.members[tree.peers[0].id].places._kept)


def test_where_nobody_has_room_the_pauses_grow() -> None:
    tree = Tree({1: 0, 2: 1}, random.Random(9))
    hook(tree.members[tree.peers[0].id].owner, room_after=lambda gone: 0)
    tree.settle(AGAIN_MAX_S)
    assert tree.second(2) is None
    assert 5 <= tree.sent[Reserve] <= 8


def test_promises_are_limited() -> None:
    tree = Tree({1: 0}, random.Random(10))
    member = tree.members[tree.peers[1].id]
    places = member.places
    hook(member.owner, room_after=lambda gone: PLACES_MAX)
    for number in range(2 * PLACES_MAX):
        other = NodeId(100 + number)
        places.asked(PeerRef(other, "127.0.0.1", 1), Reserve(STREAM, NodeId(1000 + number)))
    assert len(places._kept) == PLACES_MAX


@pytest.mark.parametrize("seed", range(40))
def test_two_that_fall_back_onto_each_other_at_the_same_instant_do_not_close_a_circle(seed: int) -> None:
    """3 has its second parent below 4, and 4 below 3; the parents of both die at once."""
    tree = Tree({1: 0, 2: 0, 3: 1, 4: 2, 5: 3, 6: 4}, random.Random(seed), fan_out=3)
    tree.settle(8.0)
    for number, second in ((3, 6), (4, 5)):
        tree.members[tree.peers[number].id].second.peer = tree.peers[second]
    tree.publish("a")
    tree.kill(1)
    tree.kill(2)
    for _ in range(40):
        tree.publish("a")
        for _ in range(seed % 5 + 1):
            tree.step()
            tree.check_shape()
    tree.settle(10.0)
    tree.check_shape()
    assert tree.tried[3][0] == 7 and tree.tried[4][0] == 6
    assert len(tree.parents()) == 4
    for number in (3, 4, 5, 6):
        assert tree.delivered(number) == tree.expected("a")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.integers(6, 10), st.integers(2, 3))
def test_whatever_dies_at_once_no_circle_is_closed_and_nothing_is_lost(seed: int, count: int, fan_out: int) -> None:
    rng = random.Random(seed)
    tree = Tree({number: (number - 1) // fan_out for number in range(1, count)}, rng, fan_out)
    tree.settle(10.0)
    alive = list(range(1, count))
    for _ in range(2):
        for victim in rng.sample(alive, min(len(alive) - 1, rng.randint(1, 3))):
            alive.remove(victim)
            tree.kill(victim)
            tree.run(rng.randint(0, 3))
        for _ in range(20):
            tree.publish("a")
            tree.run(rng.randint(0, 6))
            tree.check_shape()
            if rng.random() < 0.3:
                tree.tick()
        for _ in range(24):
            tree.tick()
            tree.run()
            tree.check_shape()
            for number in alive:  # as a node does whose search has found nobody
                if tree.members[tree.peers[number].id].up.is_orphan:
                    tree.move(number, 0)
    for number in alive:
        member = tree.members[tree.peers[number].id]
        if member.up.parent is not None:
            assert tree.delivered(number) == tree.expected("a")
