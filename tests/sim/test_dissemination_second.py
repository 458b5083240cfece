"""What a second parent is worth on a simulated ring: the first try after a parent's death succeeds."""

from __future__ import annotations

from collections import Counter

import pytest

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.sim.simulation import Place
from protocols.dissemination.front.checkers import NoCircles
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.stream_node import StreamNode
from tests.sim.test_dissemination import Streams

EVERYTHING = "a,b,c,d"
SEEDS = (0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long))


def grown(count: int, seed: int) -> Streams:
    """A tree in which everybody wants everything, at rest for long enough to have asked for places."""
    streams = Streams(count, seed)
    for place in streams.others:
        streams.subscribe(place, EVERYTHING)
    streams.publish(5)
    streams.settle(20.0)
    return streams


def node_at(place: Place) -> StreamNode:
    [node] = plugin_of(place).nodes
    return node


def inner(streams: Streams) -> list[Place]:
    """The nodes with several children."""
    return [place for place in streams.others if len(node_at(place).member.down.children) > 1]


def orphans_of(streams: Streams, victim: Place) -> list[StreamNode]:
    nodes = [node_at(place) for place in streams.others if place is not victim]
    return [node for node in nodes if node.parent is not None and node.parent.id == victim.id]


@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_below_the_producers_children_has_a_second_parent_that_keeps_its_place(seed: int) -> None:
    streams = grown(14, seed)
    nodes = {place.id: node_at(place) for place in streams.simulation.nodes}
    lower = [node for node in nodes.values() if (node.depth or 0) > 1]
    assert len(lower) > 5
    for node in lower:
        second = node.member.second
        assert second.peer is not None and second.of is not None
        assert second.of not in (second.peer.id, *nodes[second.peer.id].member.state.path)
        place = nodes[second.peer.id].member.places._kept[node.host.id]
        assert place.parent == second.of
    told = {each.node: each.second_parent for each in streams.tree(streams.others[0]).nodes}
    assert sum(second is not None for second in told.values()) == len(lower)


@pytest.mark.parametrize("seed", SEEDS)
def test_orphans_attach_to_their_second_parents_at_the_first_try_and_lose_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = grown(14, seed)
    victim = streams.rng.choice(inner(streams))
    orphans = orphans_of(streams, victim)
    seconds = [None if node.member.second.peer is None else node.member.second.peer.id for node in orphans]
    assert None not in seconds
    tries: Counter[NodeId] = Counter()
    for node in orphans:
        _count_tries(monkeypatch, node, tries)
    streams.simulation.kill(victim)
    streams.publish(20)
    assert [node.parent.id if node.parent else None for node in orphans] == seconds
    assert tries == {node.host.id: 1 for node in orphans}
    streams.settle()
    streams.assert_complete()
    assert not any(each.lost for each in streams.judge.watched if each.is_live)


def _count_tries(monkeypatch: pytest.MonkeyPatch, node: StreamNode, tries: Counter[NodeId]) -> None:
    move_to = node.member.move_to

    def counted(peer: PeerRef, now: float, instead_of: NodeId | None = None) -> bool:
        tries[node.host.id] += 1
        return move_to(peer, now, instead_of)

    monkeypatch.setattr(node.member, "move_to", counted)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_the_second_parent_dies_at_the_same_time_the_search_finds_another(seed: int) -> None:
    streams = grown(14, seed)
    for victim in inner(streams):
        orphans = orphans_of(streams, victim)
        found = [node.member.second.peer for node in orphans if node.member.second.peer is not None]
        places = [streams.simulation.find(peer.id) for peer in found if peer.id != streams.producer.id]
        if places:
            break
    streams.simulation.kill(places[0])
    streams.simulation.kill(victim)
    streams.publish(30, 0.2)
    streams.settle(20.0)
    streams.assert_complete()
    live = {place.id for place in streams.others} | {streams.producer.id}
    assert all(node.parent is not None and node.parent.id in live for node in orphans if node.host.id in live)
    assert not any(each.lost for each in streams.judge.watched if each.is_live)


@pytest.mark.long  # the same on the pure core: tests/unit/test_dissemination_second.py
@pytest.mark.parametrize("seed", range(3))
def test_two_that_fall_back_onto_each_other_at_once_find_other_parents_and_close_no_circle(seed: int) -> None:
    """The second parent of each is made a child of the other; then the parents of both die at the same instant."""
    streams = grown(20, seed)
    one, other = _apart(streams)
    for node, child in ((one, other), (other, one)):
        node.member.second.peer = next(iter(child.member.down.children.values())).peer
    for node in (one, other):
        assert node.parent is not None
    victims = [streams.simulation.find(node.parent.id) for node in (one, other) if node.parent is not None]
    for victim in victims:
        streams.simulation.kill(victim)
    for step in range(400):
        if step % 20 == 0:
            streams.judge.publish(streams.producer, streams.spec.name, "a")
        streams.simulation.run_for(0.01)
        assert NoCircles().check(streams.simulation) == []
    streams.settle(20.0)
    streams.assert_complete()
    for node in (one, other):
        assert node.parent is not None and node.parent.id not in [victim.id for victim in victims]
    assert not any(each.lost for each in streams.judge.watched if each.is_live)


def _apart(streams: Streams) -> tuple[StreamNode, StreamNode]:
    """Two nodes with children, below different children of the producer."""
    found = [node_at(place) for place in streams.others]
    found = [node for node in found if node.depth == 2 and node.member.down.children]
    one = found[0]
    other = next(node for node in found if node.parent is not None and node.parent != one.parent)
    return one, other
