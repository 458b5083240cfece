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
from protocols.dissemination.front.hostile import KINDS, LEAVES, PARENTS, StreamBehaviour
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, plugin_of
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.plugin import Dissemination

COUNT, LIAR = 14, 3
CLASSES = "abcd"
POLICIES = ("overlap", "cost", "first_fit")
REPAIRED_S = 60.0
"""Longer than honest nodes take to see that a parent has misled them."""


def has_begun(watched: WatchedStream) -> bool:
    return watched.reader is not None or watched.is_over


class World:
    """A ring with one stream and one liar. ``is_leaf``: the liar takes no children; else it has as many as it likes."""

    def __init__(self, kind: type[StreamBehaviour], policy: str, *, is_leaf: bool) -> None:
        self.liar_fan_out = 0 if is_leaf else 6
        self.simulation = Simulation(21, plugins=self._plugins)
        self.party = Party(self.simulation, {LIAR: [kind]})
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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.name)
def test_a_liar_without_children_costs_nobody_anything(kind: type[StreamBehaviour], policy: str) -> None:
    world = World(kind, policy, is_leaf=True)
    world.publish(5)
    world.party.begin()
    world.publish(60)
    world.settle(15.0)
    assert not world.judge.offences
    assert not world.missing()
    assert sum(each.lost for each in world.watched) == 0


@pytest.mark.parametrize("kind", PARENTS, ids=lambda kind: kind.name)
def test_what_a_parent_says_does_no_harm_any_more_once_it_is_gone(kind: type[StreamBehaviour]) -> None:
    world = World(kind, "first_fit", is_leaf=False)
    world.publish(5)
    assert world.children_of_liar()
    world.party.begin()
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
def test_everybody_is_served_while_it_goes_on(kind: type[StreamBehaviour]) -> None:
    """New subscriptions begin, and those that the liar is not above get all."""
    world = World(kind, "overlap", is_leaf=False)
    world.party.begin()
    world.publish(10)
    for index in (5, 9):
        world.subscribe(index, "a,b,c,d")
    world.publish(10)
