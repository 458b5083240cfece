"""Any order of joins, leaves, drains and losses, any order of arrival: no tree breaks its rules, and all ends well."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from peerd.ids import NodeId
from tests.support.group_world import GROUP, SETTLE_S, GroupNode, GroupWorld
from tests.support.groups import Saying

NODES_START = 8
NODES_MAX = 14


class GroupMachine(RuleBasedStateMachine):
    """Nodes that take two children each, at first all members of one tree."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld()
        self.said = 0
        for number in range(NODES_START):
            self._join(self.world.add(_spread(number)))
        self.world.settle(3.0)
        self.world.check_tree()

    def _join(self, node: GroupNode) -> None:
        node.join()
        self.world.collect(node)

    def _pick(self, index: int) -> GroupNode:
        nodes = sorted(self.world.nodes)
        return self.world.nodes[nodes[index % len(nodes)]]

    def staying(self) -> int:
        """Nodes that do not drain: one is always there to take over."""
        return sum(not node.is_draining for node in self.world.nodes.values())

    @precondition(lambda self: len(self.world.nodes) < NODES_MAX)
    @rule(number=st.integers(NODES_START, 60), is_member=st.booleans())
    def add(self, number: int, is_member: bool) -> None:
        """A node comes, perhaps a closer one to the key."""
        if _spread(number) not in self.world.nodes:
            node = self.world.add(_spread(number))
            if is_member:
                self._join(node)

    @rule(index=st.integers(0, NODES_MAX))
    def join(self, index: int) -> None:
        """A node becomes a member, if it is none."""
        self._join(self._pick(index))

    @rule(index=st.integers(0, NODES_MAX))
    def leave(self, index: int) -> None:
        """A node is no member any more."""
        node = self._pick(index)
        node.leave()
        self.world.collect(node)

    @rule(index=st.integers(0, NODES_MAX))
    def rejoin(self, index: int) -> None:
        """A member leaves, and is one again before anybody has heard of it."""
        if self._pick(index).is_member:
            self.leave(index)
            self.join(index)

    @precondition(lambda self: self.staying() > 1)
    @rule(index=st.integers(0, NODES_MAX))
    def drain(self, index: int) -> None:
        """A node hands over, and leaves in the end."""
        node = self._pick(index)
        if not node.is_draining:
            self.world.drain(node)

    @rule(index=st.integers(0, NODES_MAX))
    def restart(self, index: int) -> None:
        """The service of a node fails. Not while it drains: it would forget that, and the node not leave."""
        node = self._pick(index)
        if not node.is_draining:
            self.world.restart(node)

    @precondition(lambda self: self.staying() > 1)
    @rule(index=st.integers(0, NODES_MAX), is_graceful=st.booleans())
    def lose(self, index: int, is_graceful: bool) -> None:
        """Let a node die, or leave in order."""
        node = self._pick(index)
        if is_graceful:
            self.world.stop(node)
        else:
            self.world.crash(node)

    @rule(index=st.integers(0, NODES_MAX))
    def say(self, index: int) -> None:
        """A multicast, at a bad time."""
        self.said += 1
        node = self._pick(index)
        node.groups.multicast(GROUP, Saying(self.said))
        self.world.collect(node)

    @rule(choices=st.lists(st.integers(0, 1000), min_size=1, max_size=12))
    def deliver(self, choices: list[int]) -> None:
        """Some of what is under way arrives."""
        for choice in choices:
            if links := self.world.busy_links():
                self.world.deliver_next(links[choice % len(links)])

    @rule(times=st.integers(1, 5))
    def wait(self, times: int) -> None:
        """Time passes, whatever is under way."""
        for _ in range(times):
            self.world.pass_time()

    @rule()
    def calm(self) -> None:
        """Everything arrives for a few seconds."""
        self.world.settle(8.0)

    @invariant()
    def each_node_is_sound(self) -> None:
        """Node by node."""
        self.world.validate()
        for node in self.world.nodes.values():
            assert max(Counter(node.heard).values(), default=1) == 1, "a multicast was heard twice"

    def teardown(self) -> None:
        """Left alone, there is one tree, and a multicast reaches exactly its members."""
        self.world.settle(SETTLE_S)
        self.world.check_tree()
        self.said += 1
        self._pick(0).groups.multicast(GROUP, Saying(self.said))
        self.world.collect(self._pick(0))
        self.world.settle(12.0)
        for node in self.world.nodes.values():
            assert node.heard.count(self.said) == node.is_member
            assert max(Counter(node.heard).values(), default=1) == 1


def _spread(number: int) -> NodeId:
    """Distinct ids all over the ring."""
    return NodeId((number * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 1) % (1 << 128))


GroupMachine.TestCase.settings = settings(stateful_step_count=40)
TestGroups = GroupMachine.TestCase


@pytest.mark.parametrize("seed", [11, 264, 628, 1153])
def test_orders_of_drains_and_returns_in_which_a_member_heard_something_twice(seed: int) -> None:
    """About one in a hundred did: few enough for Hypothesis to miss them, so these are kept by their seeds."""
    machine, rng = GroupMachine(), Random(seed)
    for _ in range(40):
        index = rng.randrange(NODES_MAX)
        match rng.choice(("say", "say", "deliver", "deliver", "deliver", "deliver", "wait", "rejoin", "drain", "add")):
            case "say":
                machine.say(index=index)
            case "deliver":
                machine.deliver(choices=rng.choices(range(1000), k=rng.randint(1, 12)))
            case "wait":
                machine.wait(times=rng.randint(1, 5))
            case "rejoin":
                machine.rejoin(index=index)
            case "drain" if machine.staying() > 1:
                machine.drain(index=index)
            case "add" if len(machine.world.nodes) < NODES_MAX:
                machine.add(number=rng.randint(NODES_START, 60), is_member=rng.random() < 0.5)
        machine.each_node_is_sound()
    machine.teardown()
