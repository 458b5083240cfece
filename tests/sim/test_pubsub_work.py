"""What leaves are asked to read is paid for: a member's costly probes take little, and others' subscriptions go on."""

from __future__ import annotations

import pytest

from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.matching.filter_work import UNPROVEN_BURST_S, UNPROVEN_PER_S, price_s
from protocols.pubsub.matching.index import LeafIndex
from protocols.pubsub.messages import ProbeSub, SubObject
from protocols.pubsub.names import SubscriptionKey, Tree, key_of
from protocols.pubsub.tree import installing
from protocols.pubsub.tree.cells import SIDE, WHOLE
from tests.support.pubsub_rings import PubSubRing

SECONDS, PROBES_PER_S = 4, 250


def test_where_nothing_is_read_at_once_subscribers_bring_their_pieces_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installing, "UNPROVEN_BURST_S", 0.0)
    monkeypatch.setattr(installing, "UNPROVEN_PER_S", 0.0)
    ring = PubSubRing(8, seed=3)
    ring.subscribe(12)
    events = ring.publish(10)
    ring.finish(events)
    ring.rest()
    assert ring.offences(events) == []
    assert sum(watched.established_at is not None for watched in ring.judge.watched) == 12


def test_dear_probes_of_a_member_cost_the_leaves_little_and_others_subscribe_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """250 a second with filters of 250 equalities took a root's whole time."""
    ring = PubSubRing(8, seed=4)
    attacker, *honest = ring.simulation.live_nodes()
    host = plugin_of(attacker).host
    dear = " OR ".join(f"attr1 = {number}" for number in range(250))
    read: dict[str, None] = {}
    add = LeafIndex.add

    def noted(index: LeafIndex, key: SubscriptionKey, cell: tuple[int, int], sub: SubObject) -> None:
        if sub.sid >= 1 << 40:
            read[sub.filter] = None
        add(index, key, cell, sub)

    monkeypatch.setattr(LeafIndex, "add", noted)
    tree, victim = Tree(ring.workload.schema, 1), honest[0].node.peer
    number = 1 << 40
    for _ in range(SECONDS):
        for _ in range(PROBES_PER_S):
            number += 1
            sub = SubObject(victim, number, 0, 1, 1, SIDE // 3, SIDE // 3, f"{dear} OR attr2 = {number}")
            host.route(key_of(tree, WHOLE), ProbeSub(tree.schema, sub, WHOLE, 600, vouched=True))
        ring.run_for(1.0)
        ring.subscribe(1, honest)
    assert sum(map(price_s, read)) <= len(honest) * (UNPROVEN_BURST_S + UNPROVEN_PER_S * ring.simulation.now)
    assert len(read) < SECONDS * PROBES_PER_S / 5
    events = ring.publish(10, honest)
    ring.finish(events)
    assert ring.offences(events) == []
