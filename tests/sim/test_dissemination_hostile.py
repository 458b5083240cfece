"""One member of a stream misbehaves: what others are promised holds all the same."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from peerd.api import Plugin
from peerd.sim.hostile.member import Party, behaviours_of
from peerd.sim.simulation import Simulation
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.checkers import NoCircles, NoOrphans, StreamBounds
from protocols.dissemination.front.hostile import (
    KINDS,
    LEAVES,
    PARENTS,
    AltersManifests,
    FalseItems,
    LeavesOut,
    RunsAhead,
    StreamBehaviour,
    TakesFromElsewhere,
)
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, plugin_of
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.plugin import Dissemination
from tests.support.branch import branched
from tests.support.liars import misbehave

COUNT, LIAR = 14, 3
CLASSES = "abcd"
POLICIES = ("overlap", "cost", "first_fit")
REPAIRED_S = 60.0
"""Longer than honest nodes take to see that a parent has misled them."""


def has_begun(watched: WatchedStream) -> bool:
    return watched.reader is not None or watched.is_over


class World:
    """A ring with one stream and one liar. ``is_leaf``: the liar takes no children; else it has as many as it likes."""

    def __init__(self, policy: str, *, is_leaf: bool) -> None:
        self.liar_fan_out = 0 if is_leaf else 6
        self.simulation = Simulation(21, plugins=self._plugins)
        self.party = Party(self.simulation, {LIAR: []})
        self.simulation.misbehaviour_is_failure = True
        self.simulation.start(COUNT, spacing_s=0.2)
        self.simulation.run_for(COUNT * 0.2)
        self.simulation.run_until(self.simulation.is_ready, 60.0)
        self.rng, self.judge = Random(4), StreamJudge()
        self.producer, self.liar = self.simulation.nodes[0], self.simulation.nodes[LIAR]
        told: list[StreamView | Exception] = []
        self.judge.create(self.producer, StreamSpec(name="s", kind="classes", policy=policy), told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30.0)
        self.watched: list[WatchedStream] = []
        for index in (LIAR, *(at for at in range(1, COUNT) if at != LIAR)):
            self.subscribe(index, "" if index == LIAR else ",".join(sorted(self.rng.sample(CLASSES, 2))))
        self.judge.watched.remove(self.watched.pop(0))  # what the liar gets is its own affair

    def _plugins(self, index: int) -> list[Plugin]:
        fan_out = self.liar_fan_out if index == LIAR else 2
        return [Dissemination(DisseminationConfig.model_validate({"fan_out": fan_out}))]

    def subscribe(self, index: int, wants: str) -> None:
        watched = self.judge.subscribe(self.simulation.nodes[index], "s", wants)
        self.simulation.run_until(partial(has_begun, watched), limit_s=30.0)
        assert not watched.why_not, watched.why_not
        self.watched.append(watched)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.judge.publish(self.producer, "s", self.rng.choice(CLASSES))
            self.simulation.run_for(0.3)
            self.judge.read()
            for checker in (NoCircles(), StreamBounds()):
                assert not checker.check(self.simulation)

    def settle(self, duration_s: float) -> None:
        self.simulation.run_for(duration_s)
        self.judge.read()

    def missing(self) -> list[str]:
        return self.judge.missing({"s": self.judge.streams["s"].last})

    def has_struck(self) -> bool:
        [behaviour] = behaviours_of(self.liar)
        assert isinstance(behaviour, StreamBehaviour)
        return behaviour.said > 0

    def children_of_liar(self) -> int:
        return sum(len(node.member.down.children) for node in plugin_of(self.liar).nodes)


Worlds = dict[tuple[str, bool], World]
"""By policy, and whether the liar is a leaf."""


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    """Rings in which nobody has misbehaved yet. For branches: they stay as they are."""
    return {(policy, is_leaf): World(policy, is_leaf=is_leaf) for policy in POLICIES for is_leaf in (False, True)}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.name)
@branched
def test_a_liar_without_children_costs_nobody_anything(
    worlds: Worlds, kind: type[StreamBehaviour], policy: str
) -> None:
    world = worlds[policy, True]
    world.publish(5)
    misbehave(world.party, LIAR, kind)
    world.publish(60)
    world.settle(15.0)
    assert not world.judge.offences
    assert not world.missing()
    assert sum(each.lost for each in world.watched) == 0


@pytest.mark.parametrize("kind", PARENTS, ids=lambda kind: kind.name)
@branched
def test_what_a_parent_says_does_no_harm_any_more_once_it_is_gone(worlds: Worlds, kind: type[StreamBehaviour]) -> None:
    world = worlds["first_fit", False]
    world.publish(5)
    assert world.children_of_liar()
    misbehave(world.party, LIAR, kind)
    world.publish(40)
    assert world.has_struck()
    world.simulation.kill(world.liar)
    world.settle(REPAIRED_S)
    assert not NoOrphans().check(world.simulation)
    begun = {id(each): each.received for each in world.watched}
    world.publish(30)
    world.settle(5.0)
    published = world.judge.streams["s"].classes[-30:]
    for each in world.watched:
        assert each.received - begun[id(each)] == sum(map(each.matches, published)), f"at {each.place}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@branched
def test_everybody_is_served_while_it_goes_on(worlds: Worlds, kind: type[StreamBehaviour]) -> None:
    """New subscriptions begin, and those that the liar is not above get all."""
    world = worlds["overlap", False]
    misbehave(world.party, LIAR, kind)
    world.publish(10)
    for index in (5, 9):
        world.subscribe(index, "a,b,c,d")
    world.publish(10)


def lied_to(world: World, victims: list[WatchedStream]) -> set[str]:
    """Why the liar is named, by those that were its children."""
    found: set[str] = set()
    for each in victims:
        for node in plugin_of(each.place).nodes:
            found.update(why for liar, why in node.seeking.liars.items() if liar == world.liar.id)
            assert set(node.seeking.liars) <= {world.liar.id}, "nobody else is named"
    return {why.partition(" at ")[0] for why in found}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [FalseItems, AltersManifests, TakesFromElsewhere], ids=lambda kind: kind.name)
@branched
def test_what_an_inner_node_forges_reaches_nobody(worlds: Worlds, kind: type[StreamBehaviour], policy: str) -> None:
    """Nor does anybody lose anything by it: who notices has another parent, and gets it there."""
    world = worlds[policy, False]
    world.publish(5)
    children = world.children_of_liar()
    misbehave(world.party, LIAR, kind)
    world.publish(40)
    world.settle(15.0)
    if children:
        assert world.has_struck() and lied_to(world, world.watched) == {"forged"}
    assert children or policy != "first_fit"
    assert not world.judge.offences
    assert not world.missing()
    for each in world.watched:
        for node in plugin_of(each.place).nodes:
            assert node.parent is None or node.parent.id not in node.seeking.liars


@pytest.mark.parametrize("kind", [LeavesOut, RunsAhead], ids=lambda kind: kind.name)
@branched
def test_who_wants_everything_notices_what_is_left_out(worlds: Worlds, kind: type[StreamBehaviour]) -> None:
    world = worlds["first_fit", False]
    for index in range(1, COUNT):
        if index != LIAR:
            world.subscribe(index, "")
    everything = [each for each in world.watched if not each.wants]
    world.settle(10.0)
    world.publish(5)
    assert world.children_of_liar()
    misbehave(world.party, LIAR, kind)
    world.publish(40)
    world.settle(15.0)
    assert lied_to(world, everything) == {"withheld"}
    assert not world.missing() and not world.judge.offences


@branched
def test_who_was_told_that_the_stream_is_far_ahead_loses_nothing_by_it(worlds: Worlds) -> None:
    """It wants a part, so it sees that only when its parent goes back; and takes nothing for old that comes after."""
    world = worlds["first_fit", False]
    world.publish(5)
    assert world.children_of_liar()
    misbehave(world.party, LIAR, RunsAhead)
    world.publish(40)
    world.settle(15.0)
    assert "out_of_order" in lied_to(world, world.watched)
    assert not world.missing() and not world.judge.offences
    assert sum(each.lost for each in world.watched) == 0
