"""Groups under churn: nodes and members come and go while others speak; left alone, every group is one tree again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from peerd.services.groups.config import GroupsConfig
from peerd.sim.simulation import Place, Simulation
from tests.support.groups import Chatter, chat_ring, chatter, is_settled

GROUPS = ("a", "b", "c")
LIVE_MIN, LIVE_MAX = 10, 50
STEPS = 100
SETTLE_LIMIT_S = 180.0


class Churn:
    """Random comings and goings in one simulation."""

    def __init__(self, seed: int) -> None:
        config = GroupsConfig(children_max=2 + seed % 2)
        self.simulation: Simulation = chat_ring(30, seed, services={"groups": config}, check_every=25)
        self.rng = self.simulation.rng
        self.members: dict[str, list[Place]] = {group: [] for group in GROUPS}
        self.said = 0

    def ready(self) -> list[Place]:
        """Return the nodes that are in the ring."""
        return [place for place in self.simulation.live_nodes() if place.node.is_ready]

    def step(self) -> None:
        """Let one thing happen that the seed draws."""
        actions = [self.lose, self.lose, self.grow, self.grow, self.join, self.join, self.join, self.leave, self.say]
        self.rng.choice(actions)()
        self.simulation.run_for(self.rng.uniform(0.0, 1.0))

    def lose(self) -> None:
        """A node crashes, loses its power, or leaves."""
        ready = self.ready()
        if len(ready) > LIVE_MIN:
            ways: list[Callable[[Place], None]] = [
                self.simulation.kill,
                self.simulation.silence,
                self.simulation.stop,
            ]
            self.rng.choice(ways)(self.rng.choice(ready))

    def grow(self) -> None:
        """Start a node."""
        if len(self.simulation.live_nodes()) < LIVE_MAX:
            self.simulation.start(1)

    def join(self) -> None:
        """Make a node a member of the group."""
        group, place = self.rng.choice(GROUPS), self.rng.choice(self.ready())
        if place not in self.members[group]:
            self.members[group].append(place)
            chatter(place).join(group)

    def leave(self) -> None:
        """A member is none any more."""
        members = self.members[self.rng.choice(GROUPS)]
        if members:
            place = members.pop(self.rng.randrange(len(members)))
            if place.is_live:
                group = next(name for name in GROUPS if self.members[name] is members)
                place.node.hosts[Chatter.name].groups.leave(group)

    def say(self) -> None:
        """Send a multicast from a node."""
        self.said += 1
        chatter(self.rng.choice(self.ready())).say(self.rng.choice(GROUPS), self.said)


@pytest.mark.parametrize("seed", [100, 137])
def test_left_alone_every_group_is_one_tree(seed: int) -> None:
    churn = Churn(seed)
    for _ in range(STEPS):
        churn.step()
    simulation = churn.simulation
    simulation.run_until(
        lambda: simulation.is_ready() and is_settled(simulation, churn.members), limit_s=SETTLE_LIMIT_S
    )
    for group in GROUPS:
        chatter(churn.rng.choice(churn.ready())).say(group, 1_000_000)
    simulation.run_for(5)
    for place in simulation.live_nodes():
        for group in GROUPS:
            heard = Counter(chatter(place).heard.get(group, ()))
            assert max(heard.values(), default=1) == 1, f"{place} has heard something twice"
            assert chatter(place).numbers(group).count(1_000_000) == (place in churn.members[group])


@pytest.mark.parametrize("seed", [11, 12, 17])
def test_who_leaves_and_is_back_or_whose_service_fails_hears_nothing_twice(seed: int) -> None:
    simulation = chat_ring(16, seed, services={"groups": GroupsConfig(children_max=2)}, check_every=50)
    members = simulation.live_nodes()
    for place in members:
        chatter(place).join("a")
    simulation.run_until(lambda: is_settled(simulation, {"a": members}), limit_s=30)
    for number in range(300):
        chatter(simulation.rng.choice(members)).say("a", number)
        place = simulation.rng.choice(members)
        if number % 3 == 0:
            place.node.hosts[Chatter.name].groups.leave("a")
            chatter(place).join("a")
        elif number % 10 == 0:
            place.node.restart_plugin("groups")
        simulation.run_for(simulation.rng.choice([0.0, 0.01, 0.1]))
    simulation.run_for(30)
    for place in members:
        assert max(Counter(chatter(place).heard["a"]).values()) == 1, f"{place} has heard something twice"
