"""CoDD's default experiment (section 5.1) at a small size: whole trees under its policies, in one process."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import cache

import pytest

from protocols.dissemination.front.lab.net import DisseminationNet
from protocols.dissemination.front.lab.workloads import ClassWorkload
from protocols.dissemination.policies.overlap.events import ReorganisationDecided, ReorganisationMeasured
from protocols.dissemination.policies.overlap.messages import AddRequest, GetOverhead, MoveOrder
from protocols.dissemination.tree import allowance
from tests.support.dissemination_net import check, depth, kill, leave

MEMBERS, ITEMS, JOIN_ITEMS = 60, 2000, 200


def make(seed: int, members: int = MEMBERS, **settings: object) -> DisseminationNet:
    """20 classes, of which each item is wanted by 4; a fifth of them changes every 200 items; fan-out 6."""
    rng = random.Random(seed)
    return DisseminationNet(members, ClassWorkload(members, rng), rng, settings)


@cache
def experiment(seed: int, reorganise: bool) -> DisseminationNet:
    """Members join while the first items are published; nothing is counted before all are there."""
    net = make(seed, reorganise=reorganise)
    joined = 0
    for at in range(ITEMS):
        while joined < MEMBERS and joined <= at * MEMBERS / JOIN_ITEMS:
            joined += 1
            net.join(joined)
        if at == JOIN_ITEMS:
            net.reset_counts()
        net.publish()
    for _ in range(5):
        net.tick()
    return net


@pytest.mark.parametrize("reorganise", [False, True])
def test_nobody_loses_anything_or_gets_it_twice_while_the_tree_changes(reorganise: bool) -> None:
    net = experiment(1, reorganise)
    check(net)
    moved = [event for event in net.events if isinstance(event, ReorganisationDecided) and event.outcome == "moved"]
    assert bool(moved) is reorganise


@pytest.mark.parametrize("seed", [1, 2])
def test_reorganisation_saves_a_good_part_of_what_is_had_in_vain(seed: int) -> None:
    without, with_it = experiment(seed, False), experiment(seed, True)
    assert with_it.vain_share() < 0.8 * without.vain_share()
    assert with_it.spurious_share() < 0.9 * without.spurious_share()
    assert with_it.spurious_share(inner_only=True) < 0.6 * without.spurious_share(inner_only=True)


@pytest.mark.parametrize("reorganise", [False, True])
def test_the_tree_stays_low(reorganise: bool) -> None:
    net = experiment(1, reorganise)
    assert depth(net) <= 1.5 * math.log(MEMBERS, 6) + 1
    assert net.depth_max() <= 4 * math.log(MEMBERS, 6)


def test_what_is_looked_through_for_a_child_is_not_limited_where_its_wants_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise inner nodes of a large tree, with interests that none covers, are sent away when something moves."""
    monkeypatch.setattr(allowance, "BURST_MAX", 1000)
    net = make(1, members=20)
    for number in range(1, 21):
        net.join(number)
        net.publish()
    for _ in range(200):
        net.publish()
    for _ in range(5):
        net.tick()
    assert all(node.live_from is not None for node in net.members())
    check(net)


def test_joining_costs_a_message_for_each_level() -> None:
    """At most h x s requests for a newcomer, where h is the depth and s the number of seeds (section 3.1.2)."""
    net = experiment(1, False)
    assert net.sent[AddRequest] <= MEMBERS * (net.depth_max() + 1)


def test_moves_are_predicted_and_measured() -> None:
    net = experiment(1, True)
    decided = Counter(event.outcome for event in net.events if isinstance(event, ReorganisationDecided))
    measured = [event for event in net.events if isinstance(event, ReorganisationMeasured)]
    assert decided["moved"] <= net.sent[MoveOrder]
    assert net.sent[GetOverhead] < MEMBERS / 3 * sum(decided.values()), "searches do not ask the whole tree"
    assert measured and sum(event.measured for event in measured) > 0, "in the mean, moves save something"
    history = net.nodes[net.peers[0].id].policy.history()
    assert history and all(past.predicted > -0.2 for past in history)


def test_in_a_steady_stream_the_tree_comes_to_rest() -> None:
    rng = random.Random(3)
    net = DisseminationNet(MEMBERS, ClassWorkload(MEMBERS, rng, change_every=0), rng, {})
    for number in range(1, MEMBERS + 1):
        net.join(number)
    for _ in range(500):
        net.publish()
    before = net.vain_share()
    for _ in range(1000):
        net.publish()
    begun = net.sent[MoveOrder]
    net.reset_counts()
    for _ in range(500):
        net.publish()
    assert net.vain_share() < 0.7 * before
    assert net.sent[MoveOrder] - begun <= MEMBERS / 10
    check(net)


@pytest.mark.parametrize("seed", range(4))
def test_members_that_leave_and_die_take_nothing_from_the_others(seed: int) -> None:
    net = make(seed, members=30)
    for number in range(1, 31):
        net.join(number)
    rng = random.Random(seed)
    alive = list(range(1, 31))
    for at in range(800):
        net.publish()
        if at % 40 == 20 and len(alive) > 10:
            number = alive.pop(rng.randrange(len(alive)))
            if rng.random() < 0.5:
                leave(net, number)
            else:
                kill(net, number)
    for _ in range(10):
        net.tick()
    assert len(net.members()) == len(alive)
    check(net)
