"""The producer of a stream is gone on a simulated ring: a standby goes on with it, and nothing is lost silently."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.sim.simulation import Place
from protocols.dissemination.front.checkers import NoCircles, OneProducer
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.producer.fencing import RANK_S, STOP_SHARE
from protocols.dissemination.producer.role import SETTLE_S, UNASKED_S
from protocols.dissemination.producer.succession import WHOLE_STREAM
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import AFTER_STANDBYS, TAKE_OVER_TERMS
from tests.sim.test_dissemination import CLASSES
from tests.sim.test_dissemination_hand_over import Handing, node_at, role_at

SPEC = StreamSpec(name="news", kind="classes", policy="first_fit", producer_gone="hand-over")
SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 2, 3)))
"""With seed 1 a standby is taken for a member of the tree again and again, by orphans below itself."""
LEASE_S = 30.0
LATEST_S = LEASE_S + 2 * RANK_S + SETTLE_S + 10.0
"""A take-over by one of two standbys is over by then; a record lives a little longer at replicas."""


class TakingOver(Handing):
    """A stream whose producer names standbys."""

    def __init__(self, count: int, seed: int = 0, spec: StreamSpec = SPEC, **settings: Any) -> None:
        super().__init__(count, seed, spec, standby_lease=f"{LEASE_S:.0f}s", **settings)

    def place_of(self, id: str) -> Place:
        [place] = [place for place in self.simulation.nodes if format(place.id, "032x") == id]
        return place

    def standbys(self) -> list[Place]:
        """In the order of the record, once there are as many as there are to be, and they know of it."""
        node = node_at(self.producer)
        self.simulation.run_until(lambda: len(node.record.standbys) == 2, limit_s=60.0)
        self.simulation.run_for(15.0)
        return [self.place_of(each.id) for each in node.record.standbys]

    def run_watched(self, duration_s: float) -> None:
        """Never more than one node that takes items, and no circle."""
        for _ in range(int(duration_s / 0.25)):
            self.simulation.run_for(0.25)
            assert len(self.publishable) <= 1, self.publishable
            assert NoCircles().check(self.simulation) == []

    @property
    def publishable(self) -> list[Place]:
        """Who takes items."""
        places = [place for place in self.producers if node_at(place).is_producer]
        return [place for place in places if node_at(place).is_held() and not node_at(place).is_paused]

    def try_publish(self, at: Place) -> bool:
        try:
            self.judge.publish(at, "news", self.rng.choice(CLASSES))
        except (Unavailable, StreamRefused):
            return False
        return True

    def goes_on_at(self, place: Place) -> None:
        """It is the producer, everybody is below it, and gets what it publishes."""
        assert self.publishable == [place]
        self.producer = place
        before = {id(each): each.received for each in self.judge.watched}
        self.publish(40)
        self.settle(20.0)
        assert not self.judge.offences, self.judge.offences
        self.assert_complete()
        assert OneProducer().check(self.simulation) == []
        assert all(each.received > before[id(each)] for each in self.judge.watched if each.is_live and not each.is_over)
        assert not any(each.why_ended for each in self.judge.watched)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("classes", "first_fit"),
        pytest.param("coherency", "overlap", marks=pytest.mark.long),
        pytest.param("classes", "cost", marks=pytest.mark.long),
        pytest.param("classes", "overlap", marks=pytest.mark.long),
        pytest.param("coherency", "cost", marks=pytest.mark.long),
        pytest.param("coherency", "first_fit", marks=pytest.mark.long),
    ],
)
def test_the_first_standby_goes_on_when_the_producer_is_killed(kind: str, policy: str) -> None:
    streams = TakingOver(12, 1, SPEC.model_copy(update={"kind": kind, "policy": policy}))
    streams.subscribe_all()
    streams.publish(20)
    first, second = streams.standbys()
    assert all(WHOLE_STREAM in node_at(place).member.subscriptions for place in (first, second))
    streams.publish(20)
    streams.simulation.kill(streams.producer)
    streams.run_watched(0.7 * LEASE_S)
    assert streams.producers == [], "it may come back"
    streams.run_watched(LATEST_S - 0.7 * LEASE_S)
    streams.goes_on_at(first)
    assert node_at(first).record.term == TAKE_OVER_TERMS
    streams.simulation.run_for(30.0)
    assert len(node_at(first).record.standbys) == 2, "it has standbys of its own"
    assert node_at(first).record.standbys[0].id != format(first.id, "032x")
    for place in streams.others:
        assert node_at(place).record.producer.peer == first.peer


def test_the_second_standby_goes_on_when_the_first_is_killed_too() -> None:
    streams = TakingOver(12, 2)
    streams.subscribe_all()
    streams.publish(20)
    first, second = streams.standbys()
    streams.simulation.kill(streams.producer)
    streams.run_watched(5.0)
    streams.simulation.kill(first)
    streams.run_watched(LATEST_S)
    streams.goes_on_at(second)
    assert node_at(second).record.term == TAKE_OVER_TERMS + 1


def test_a_standby_that_dies_while_all_is_well_is_replaced_and_the_other_keeps_its_place() -> None:
    streams = TakingOver(10, 3)
    streams.subscribe_all()
    first, second = streams.standbys()
    streams.simulation.kill(first)
    streams.simulation.run_for(2 * UNASKED_S)
    now = [streams.place_of(each.id) for each in node_at(streams.producer).record.standbys]
    assert now[0] is second and len(now) == 2 and first not in now
    streams.publish(20)
    streams.settle(10.0)
    streams.assert_nothing_lost()


def test_a_producer_that_is_restarted_quickly_goes_on_and_nobody_takes_over() -> None:
    streams = TakingOver(10, 4)
    streams.subscribe_all()
    streams.publish(20)
    streams.standbys()
    old = streams.producer
    streams.simulation.kill(old)
    streams.run_watched(5.0)
    streams.simulation.restart(old)
    streams.simulation.run_until(lambda: old.is_live and old.node.is_ready, limit_s=60.0)
    streams.run_watched(2 * LEASE_S)
    streams.goes_on_at(old)
    assert node_at(old).record.term == 0


@pytest.mark.parametrize("durable", [False, True])
def test_a_producer_that_comes_back_late_is_a_member(durable: bool) -> None:
    streams = TakingOver(10, 5, SPEC.model_copy(update={"durable": durable}))
    streams.subscribe_all()
    streams.publish(20)
    first, _ = streams.standbys()
    streams.publish(20)
    old = streams.producer
    streams.simulation.kill(old)
    streams.run_watched(LATEST_S)
    streams.goes_on_at(first)
    streams.simulation.restart(old)
    for _ in range(240):
        if old.is_live:
            assert not streams.try_publish(old), "the ring has not confirmed its record"
        streams.run_watched(0.25)
    assert streams.producers == [first]
    streams.goes_on_at(first)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_producer_that_is_cut_off_stops_before_a_standby_goes_on_and_steps_down_when_the_ring_is_healed(
    seed: int,
) -> None:
    """It is cut off alone: after a while it takes itself for the whole ring, as in every divided ring."""
    streams = TakingOver(12, 20 + seed)
    streams.subscribe_all()
    streams.publish(20)
    first, _ = streams.standbys()
    old = streams.producer
    streams.simulation.partition([old], [place for place in streams.simulation.nodes if place is not old])
    for _ in range(int(LATEST_S / 0.25)):
        streams.simulation.run_for(0.25)
        streams.try_publish(old)
        streams.try_publish(first)
    assert first in streams.producers
    streams.simulation.heal()
    streams.simulation.run_until(lambda: streams.producers == [first], limit_s=300.0)
    streams.settle(60.0)
    streams.goes_on_at(first)


def test_a_producer_whose_record_is_not_renewed_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its renewals get lost; it stops while its record still lives, and goes on when one is confirmed again."""
    streams = TakingOver(8, 6)
    streams.subscribe_all()
    streams.standbys()
    registry: Any = plugin_of(streams.producer).streams.registry
    real = registry._put
    monkeypatch.setattr(registry, "_put", lambda record, on_result: None)
    streams.simulation.run_for((1 - STOP_SHARE) * LEASE_S)
    assert streams.try_publish(streams.producer)
    streams.simulation.run_for(STOP_SHARE * LEASE_S)
    assert not streams.try_publish(streams.producer)
    assert not node_at(streams.producer).is_publishable, "and who waits to publish, waits on"
    monkeypatch.setattr(registry, "_put", real)
    streams.simulation.run_for(LEASE_S)
    streams.goes_on_at(streams.producer)


def test_only_the_producer_before_is_told_who_has_taken_over_and_nobody_else_becomes_a_rival() -> None:
    """A rival is asked whether it produces the stream, and believed: a member must not become one by asking."""
    streams = TakingOver(8, 12)
    streams.subscribe_all()
    first, _ = streams.standbys()
    old, changes = streams.producer, plugin_of(first).changes
    streams.handed_over(first)
    question = HandOver(
        node_at(first).record.key, HandOverStep.ASK, -1 + node_at(first).record.term, StreamPosition(0, 0)
    )
    for predecessor in (node_at(first).predecessor, None):
        node_at(first).predecessor = predecessor
        node_at(first).record = node_at(first).record.model_copy(update={"term": 2})
        answer = changes.succession.on_hand_over(question, streams.others[4].peer)
        assert isinstance(answer, HandOverAnswer) and answer.state == HandOverState.REFUSED
        assert role_at(first).rival is None
    node_at(first).predecessor = old.peer
    changes.succession.on_hand_over(question, old.peer)
    assert role_at(first).rival == old.peer


def test_who_is_named_stands_by_in_that_order_and_nobody_else() -> None:
    streams = TakingOver(10, 7)
    named = tuple(place.peer.address for place in (streams.others[6], streams.others[2]))
    spec = SPEC.model_copy(update={"name": "named", "successors": named})
    told: list[Any] = []
    plugin = plugin_of(streams.producer)
    plugin.changes.remove("news", told.append)
    streams.spec = spec
    streams.judge.create(streams.producer, spec, told.append)
    streams.simulation.run_until(lambda: len(told) == 2, limit_s=30.0)
    streams.subscribe_all()
    streams.simulation.run_for(70.0)
    view = next(each for each in plugin.questions.streams() if each.name == "named")
    assert view.standbys == [format(place.id, "032x") for place in (streams.others[6], streams.others[2])]
    assert streams.tree(streams.others[1]).standbys == view.standbys


def test_a_stream_that_is_ended_is_not_taken_over() -> None:
    streams = TakingOver(8, 8)
    streams.subscribe_all()
    streams.standbys()
    told: list[Any] = []
    plugin_of(streams.producer).changes.remove("news", told.append)
    streams.settle(2 * LATEST_S)
    assert streams.producers == []
    assert not any(len(plugin_of(place).nodes) for place in streams.others)


def test_a_producer_that_leaves_in_order_hands_its_stream_to_the_first_standby() -> None:
    streams = TakingOver(10, 9)
    streams.subscribe_all()
    streams.publish(20)
    first, _ = streams.standbys()
    old, done = streams.producer, []
    plugin_of(old).drain(lambda: done.append(True))
    streams.simulation.run_until(lambda: bool(done), limit_s=60.0)
    assert streams.producers == [first]
    streams.goes_on_at(first)
    streams.assert_nothing_lost()


def test_a_producer_that_comes_back_while_the_new_one_cannot_renew_its_record_believes_the_standby_it_has_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found on real daemons: the ring had no record, the old one wrote its own, and published into the void."""
    streams = TakingOver(10, 10)
    streams.subscribe_all()
    first, _ = streams.standbys()
    old = streams.producer
    streams.simulation.kill(old)
    streams.run_watched(LATEST_S)
    assert streams.publishable == [first]
    registry: Any = plugin_of(first).streams.registry
    real = registry._put
    monkeypatch.setattr(registry, "_put", lambda record, on_result: None)
    streams.run_watched(1.5 * LEASE_S)
    assert streams.publishable == []
    streams.simulation.restart(old)
    streams.simulation.run_until(lambda: old.is_live and old.node.is_ready, limit_s=60.0)
    streams.run_watched(15.0)
    assert streams.producers == [first]
    monkeypatch.setattr(registry, "_put", real)
    streams.run_watched(LEASE_S)
    streams.goes_on_at(first)


def test_a_producer_that_comes_back_when_all_that_took_over_are_gone_begins_a_term_that_members_take() -> None:
    streams = TakingOver(10, 11)
    streams.subscribe_all()
    streams.publish(20)
    first, _ = streams.standbys()
    old = streams.producer
    streams.simulation.kill(old)
    streams.simulation.run_until(lambda: first in streams.publishable, limit_s=LATEST_S)
    streams.simulation.kill(first)  # before anybody stands by for it
    streams.run_watched(2 * LATEST_S)
    assert streams.producers == []
    streams.simulation.restart(old)
    streams.simulation.run_until(lambda: old.is_live and old.node.is_ready, limit_s=60.0)
    streams.run_watched(60.0)
    streams.goes_on_at(old)
    assert node_at(old).record.term == AFTER_STANDBYS
