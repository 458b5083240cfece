"""The sweep for better places in a stream's tree finds the best ones, asks few nodes, and waits for nobody for ever."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.front.lab.net import STREAM
from protocols.dissemination.policies.overlap import sweeping
from protocols.dissemination.policies.overlap.item_bits import to_bits
from protocols.dissemination.policies.overlap.messages import FreePlace, GetOverhead, OverheadAnswer, Sought
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.policies.overlap.sweeping import SWEEPS_MAX, Mover, Sweeper, Swept
from protocols.dissemination.statistics.received import ItemSet
from tests.unit.test_dissemination_overlap import ABOVE, ME, FakeTree, X, Y, Z
from tests.unit.test_dissemination_statistics import item_set

ITEMS = 400
SETTINGS = OverlapSettings(level_gain=0.001)


def ref(number: int) -> PeerRef:
    return PeerRef(NodeId(number), "127.0.0.1", 1)


class Known:
    """What nodes need, in place of statistics: `Overlaps` as far as a sweep asks it."""

    def __init__(self, me: NodeId, needed: dict[NodeId, set[int]]) -> None:
        self._me = me
        self._needed = needed

    def missing(self, items: ItemSet) -> float:
        return self.missing_at(self._me, items)

    def shared(self, items: ItemSet) -> float:
        return self.missing(items) + 0.01 * (self._me % 5)

    def missing_at(self, child: NodeId, items: ItemSet) -> float:
        return len(set(items.items) - self._needed[child]) / ITEMS


class SweptTree:
    """A random tree, its sweepers, and their messages, which are handed over at once. The granter is 1."""

    def __init__(self, rng: random.Random, nodes: int) -> None:
        self.needed = {NodeId(1): set(range(1, ITEMS + 1))}
        self.trees = {NodeId(1): FakeTree(me=ref(1), parent=None)}
        self.asked = 0
        for number in range(2, nodes + 2):
            parent = self.trees[NodeId(rng.randint(max(1, number - 9), number - 1))]
            tree = self.trees[NodeId(number)] = FakeTree(me=ref(number), parent=parent.me)
            tree.path = (*parent.path, parent.me.id)
            parent.child_refs.append(tree.me)
            self.needed[tree.me.id] = {item for item in self.needed[parent.me.id] if rng.random() < 0.7}
            tree.free = rng.choice((0, 0, 2))
        self.sweepers = {
            id: Sweeper(tree, SETTINGS, cast(Overlaps, Known(id, self.needed))) for id, tree in self.trees.items()
        }

    def sweep(self, movers: Sequence[Mover]) -> Swept:
        found = self.sweepers[NodeId(1)].begin(1, movers)
        while not found:
            ((to, message, sender),) = [
                (to, message, tree.me) for tree in self.trees.values() for to, message in tree.sent
            ][:1]
            self.trees[sender.id].sent.pop(0)
            if isinstance(message, GetOverhead):
                self.asked += 1
                self.sweepers[to.id].asked(sender, message)
            elif isinstance(message, OverheadAnswer):
                found = self.sweepers[to.id].answered(sender, message)
        return found[0]

    def best(self, wanted: set[int], branch: NodeId) -> float:
        """The least that any place counts for, computed from the whole tree."""
        found = []
        for id, tree in self.trees.items():
            way = [*tree.path[1:], id]
            if tree.free and id != 1 and branch not in way:
                costs = [len(wanted - self.needed[each]) / ITEMS for each in way]
                found.append(sum(costs) + 0.01 * (id % 5) + SETTINGS.level_gain * (len(way)))
        return min(found, default=float("inf"))


def mover_of(wanted: set[int], branch: NodeId, limit: float = 60.0) -> Mover:
    items = item_set(wanted, 0, ITEMS)
    return Mover(to_bits(items), items, limit, branch, None)


@given(st.integers(0, 1 << 30), st.integers(3, 60))
def test_a_sweep_finds_the_best_place_of_each_mover(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "WIDTH", 100)
        tree = SweptTree(rng, nodes)
        branch = tree.trees[NodeId(1)].child_refs[0].id
        wanted = [{item for item in range(1, ITEMS + 1) if rng.random() < 0.3} for _ in range(3)]
        found = tree.sweep([mover_of(each, branch) for each in wanted])
    assert tree.asked == found.nodes <= nodes, "one question to a node, however many movers there are"
    for each, places in zip(wanted, found.places, strict=True):
        scores = [tree.sweepers[NodeId(1)].score(place) for place in places]
        assert scores == sorted(scores)
        assert (scores[0] if scores else float("inf")) == pytest.approx(tree.best(each, branch))
        assert all(place.room == 2 for place in places)


def test_a_sweep_does_not_look_where_nothing_can_be_of_use() -> None:
    tree = SweptTree(random.Random(1), 40)
    branch = tree.trees[NodeId(1)].child_refs[0].id
    everything = set(range(1, ITEMS + 1))
    assert tree.sweep([mover_of(everything, branch, limit=0.1)]).nodes == 0
    assert tree.sweep([mover_of(set(), branch)]).nodes > 0


def at_node(free: int = 0) -> tuple[FakeTree, Sweeper]:
    tree = FakeTree()
    tree.child_refs, tree.free = [X, Y], free
    needed = {ME.id: set(range(1, 401)), X.id: set(range(1, 401)), Y.id: set(range(1, 201))}
    return tree, Sweeper(tree, SETTINGS, cast(Overlaps, Known(ME.id, needed)))


def question(number: int, limit: float = 1.0) -> GetOverhead:
    items = to_bits(item_set(set(range(2, 401, 2)), 0, 400))
    return GetOverhead(STREAM, number, 1, (Sought(items, 0.1, limit),))


def test_a_node_answers_when_those_that_it_has_asked_have() -> None:
    tree, sweeper = at_node(free=3)
    sweeper.asked(ABOVE, question(7))
    asked = tree.take(GetOverhead)
    assert [to for to, _ in asked] == [X], "at this node it costs 0.1 and a part, below Y it would cost 0.25 more"
    (told,) = [message for _, message in asked if isinstance(message, GetOverhead)]
    assert told.depth == 2 and told.movers[0].cost == pytest.approx(0.1)
    place = FreePlace(Z, 0.11, 0.01, 1, 2)
    sweeper.answered(Y, OverheadAnswer(STREAM, told.sweep, ((place,),)))  # not asked
    sweeper.answered(X, OverheadAnswer(STREAM, told.sweep + 1, ((place,),)))
    sweeper.answered(X, OverheadAnswer(STREAM, told.sweep, ((place,), ())))  # not that many movers
    assert not tree.take(OverheadAnswer)
    sweeper.answered(X, OverheadAnswer(STREAM, told.sweep, ((place,),), 4))
    ((to, answer),) = tree.take(OverheadAnswer)
    assert to == ABOVE and isinstance(answer, OverheadAnswer) and answer.sweep == 7 and answer.nodes == 5
    assert [each.peer for each in answer.places[0]] == [Z, ME]


def test_a_sweep_is_taken_from_the_parent_alone() -> None:
    tree, sweeper = at_node(free=1)
    sweeper.asked(X, question(1))
    sweeper.asked(Z, question(1))
    tree.parent = None
    sweeper.asked(ABOVE, question(1))
    assert not tree.sent


def test_who_is_silent_or_gone_is_not_waited_for_and_the_parent_hears_in_time() -> None:
    for is_gone in (False, True):
        tree, sweeper = at_node(free=1)
        sweeper.asked(ABOVE, question(7))
        if is_gone:
            sweeper.child_went(X.id)
        else:
            tree.at_s += SETTINGS.answer_timeout - sweeping.LEVEL_S  # so much less than the granter waits
            sweeper.tick()
        ((_, answer),) = tree.take(OverheadAnswer)
        assert isinstance(answer, OverheadAnswer) and [each.peer for each in answer.places[0]] == [ME]


def test_a_parent_that_asks_without_end_is_heard_so_often() -> None:
    tree, sweeper = at_node(free=1)
    for number in range(3 * SWEEPS_MAX):
        sweeper.asked(ABOVE, question(number))
    assert len(tree.take(GetOverhead)) == SWEEPS_MAX
    tree.at_s += 1.0
    for number in range(3 * SWEEPS_MAX):
        sweeper.asked(ABOVE, question(number))
    assert len(tree.take(GetOverhead)) == sweeping.SWEEPS_A_SECOND
    assert len(tree.take(OverheadAnswer)) == sweeping.SWEEPS_A_SECOND, "the oldest, with what there is"
