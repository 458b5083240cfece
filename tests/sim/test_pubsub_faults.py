"""The promises of publish/subscribe in whole simulated rings, under the named faults."""

from __future__ import annotations

import pytest

from peerd.ids import closeness
from peerd.sim.churn import Churn, ChurnSettings
from peerd.sim.simulation import Place
from protocols.pubsub.front.checkers import held_pieces, recorded_pieces
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.names import EVERY, SubscriptionKey, Tree, key_of
from protocols.pubsub.tree.cells import WHOLE
from tests.support.long_cases import cases
from tests.support.pubsub_rings import PubSubRing

LEASE_S = 600.0


def holders(world: PubSubRing, place: tuple[Tree, int], count: int) -> list[Place]:
    """The nodes closest to the key of a cell, the root first."""
    key = key_of(*place)
    return sorted(world.simulation.live_nodes(), key=lambda node: closeness(key, node.id))[:count]


def fullest_leaf(world: PubSubRing) -> tuple[Tree, int]:
    """The leaf with most pieces of subscriptions."""
    counts: dict[tuple[Tree, int], int] = {}
    for copies in held_pieces(world.simulation).values():
        for copy in copies:
            name = copy.node.place.tree, copy.node.cell
            counts[name] = counts.get(name, 0) + 1
    return max(sorted(counts), key=lambda name: counts[name])


def grown_ring(count: int, seed: int, subscriptions: int, **settings: object) -> PubSubRing:
    """A ring with so many subscriptions, all in their leaves, and of each leaf all replicas."""
    world = PubSubRing(count, seed, settings)
    world.subscribe(subscriptions)
    world.rest()
    world.run_for(10.0)
    return world


@pytest.mark.parametrize("seed", cases([0], [1, 2]))
def test_root_and_a_replica_that_die_at_once_take_nothing_with_them(seed: int) -> None:
    """F03, again and again: no subscription is lost, and no event whose publisher was told `replicated`."""
    world = grown_ring(24, seed, 60)
    events = []
    for strike in range(5):
        fallen = holders(world, fullest_leaf(world), 2)
        safe = [place for place in world.simulation.live_nodes() if place not in fallen]
        events += world.publish(10, safe, spacing_s=0.05)
        for place in fallen:
            world.simulation.kill(place)
        events += world.publish(5, safe, spacing_s=0.05)
        world.rest(60.0)
        assert world.lost() == [], strike
    world.finish(events, after_s=150.0)
    replicated = [event for event in events if event.outcome == "replicated"]
    assert world.offences(events, ("replicated",)) == []
    assert len(replicated) > len(events) / 2
    gaps = [plugin_of(each.place).subscriptions.get(each.id).gap_s for each in world.judge.watched if each.is_live]
    assert gaps and not any(gaps), "nobody had to install anything again"


@pytest.mark.parametrize("seed", cases([0], [1]))
def test_subscriptions_whose_holders_all_die_are_back_with_their_next_renewal(seed: int) -> None:
    """F04: the leaf is rebuilt by renewals within a third of a lease, and the gap is counted."""
    world = grown_ring(24, seed, 40)
    leaf = fullest_leaf(world)
    fallen = holders(world, leaf, 3)
    before = {key for key, copies in held_pieces(world.simulation).items() if copies[0].node.place == leaf}
    for place in fallen:
        world.simulation.kill(place)
    bereft = [key for key in before if world.simulation.places[key.subscriber] not in fallen]
    assert bereft
    took_s = world.rest(LEASE_S / 3 + 10.0)
    assert took_s <= LEASE_S / 3 + 10.0
    live = [each for each in world.judge.watched if each.is_live]
    gaps = {each.id: plugin_of(each.place).subscriptions.get(each.id).gap_s for each in live}
    assert any(gaps.values())
    assert max(gaps.values()) <= LEASE_S / 3 + took_s, "what several pieces missed at the same time counts once"
    events = world.publish(20)
    world.finish(events)
    assert {event.outcome for event in events} <= {"received", "replicated"}
    assert world.offences(events) == []


@pytest.mark.parametrize("seed", cases([0], [1]))
def test_two_sides_that_each_grew_a_tree_of_their_own_make_one_when_they_meet(seed: int) -> None:
    """F13: a ring cut into halves for ten minutes; both split leaves, and afterwards nothing is lost or missed."""
    world = grown_ring(24, seed, 30, lease="20m")
    nodes = world.simulation.live_nodes()
    sides = nodes[::2], nodes[1::2]
    world.simulation.partition(*sides)
    world.run_for(300.0)
    for side in sides:
        world.subscribe(50, side)
    world.run_for(300.0)
    both = [name for name, owners in world.leaves().items() if len(owners) > 1]
    assert both, "each side has its own root of the same leaf"
    for side in sides:
        assert {owner in side for owners in world.leaves().values() for owner in owners} == {True, False}
        world.finish(world.publish(5, side))
    world.simulation.heal()
    world.rest()
    assert world.lost() == []
    cells = [name for name, owners in world.leaves().items() if len(owners) > 1]
    assert not cells, "no leaf has two roots"
    events = world.publish(30)
    world.finish(events)
    assert {event.outcome for event in events} <= {"received", "replicated"}
    assert world.offences(events) == []


@pytest.mark.parametrize("seed", (0, 1, 11))
def test_a_replica_that_was_away_does_not_bring_back_what_was_ended(seed: int) -> None:
    """It has slept through the end of some subscriptions, and has them still when it wakes up.

    Seed 11 was red once: a root that did not know its leaf yet was taken for one whose leaf had been split, so the end
    of a piece was looked for below, in vain.
    """
    world = grown_ring(16, seed, 40)
    leaf = fullest_leaf(world)
    sleeper = holders(world, leaf, 2)[1]
    in_leaf = {key for key, copies in held_pieces(world.simulation).items() if copies[0].node.place == leaf}
    world.simulation.pause(sleeper)
    ended = [each for each in world.judge.watched if each.place is not sleeper and in_leaf & set(world.keys(each))]
    keys = {key for each in ended for key in world.keys(each)}
    assert ended
    for each in ended:
        world.judge.end(each)
    world.run_for(30.0)
    table = sleeper.node.records.state.table
    assert any(SubscriptionKey.of_item(record.item) in keys for record in table), "the sleeper has not heard of it"
    world.simulation.resume(sleeper)
    world.rest(120.0)
    world.run_for(60.0)
    assert not keys & recorded_pieces(world.simulation)
    assert not keys & held_pieces(world.simulation).keys()


@pytest.mark.parametrize("seed", cases([0], [1]))
def test_nodes_that_join_take_leaves_over_without_a_gap(seed: int) -> None:
    """Events go on while the ring doubles; a new root that has not got all yet would miss some."""
    world = grown_ring(12, seed, 60)
    clients, events = world.simulation.live_nodes(), []
    for _ in range(12):
        world.simulation.add_node()
        events += world.publish(8, clients, spacing_s=0.25)
    world.finish(events)
    newcomers = {place.id for place in world.simulation.live_nodes()} - {place.id for place in clients}
    assert any(owner.id in newcomers for owners in world.leaves().values() for owner in owners)
    assert {event.outcome for event in events} <= {"received", "replicated"}
    assert world.offences(events) == []
    gaps = [plugin_of(each.place).subscriptions.get(each.id).gap_s for each in world.judge.watched]
    assert not any(gaps)


@pytest.mark.long
def test_an_hour_of_churn_loses_no_subscription_and_no_acknowledged_event() -> None:
    """Sessions with a median of an hour, a simulated hour long: precision, recall and order as promised."""
    world = grown_ring(48, 7, 150, lease="30m")
    settings = ChurnSettings(session_median_s=3600.0, population=48)
    churn = Churn(world.simulation, settings)
    churn.start()
    events = []
    for _ in range(60):
        ready = [place for place in world.simulation.live_nodes() if place.node.is_ready]
        world.learn(ready)
        world.subscribe(1)
        events += world.publish(15, spacing_s=4.0)
    churn.stop()
    assert churn.report.departures > 20
    world.rest()
    world.finish(events, after_s=150.0)
    assert world.lost() == []
    assert world.offences(events, ("replicated",)) == []


def test_the_whole_square_is_a_leaf_in_each_tree_at_first() -> None:
    """What the other tests begin from."""
    world = grown_ring(4, 0, 3)
    assert all(cell == WHOLE for _, cell in world.leaves())
    assert Tree(world.workload.schema, EVERY) not in {tree for tree, _ in world.leaves()}
