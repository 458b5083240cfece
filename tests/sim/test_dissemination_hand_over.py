"""A stream is handed over to another node on a simulated ring: nothing is lost, nothing comes twice, in order."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.limits import MIB
from peerd.messages import PeerRef
from peerd.sim.simulation import Place
from protocols.dissemination.front.checkers import NoCircles, StreamBounds
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.names import TERM_SHIFT, StreamPosition
from protocols.dissemination.producer.role import UNASKED_S, Role, RoleStage
from protocols.dissemination.producer.succession import WHOLE_STREAM
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import TAKE_BACK_TERMS
from protocols.dissemination.stream_node import StreamNode
from tests.sim.test_dissemination import CLASSES, SPEC, Streams
from tests.sim.test_dissemination_documents import Documents

Told = list[StreamView | Exception]


class Handing(Streams):
    """The same, with items that are published wherever the producer is by now."""

    def hand_over(self, to: Place) -> Told:
        told: Told = []
        plugin_of(self.producer).changes.hand_over(self.spec.name, to.peer.address, told.append)
        return told

    def publish_while(self, told: Told, limit_s: float = 60.0) -> int:
        """Publish until the answer is there; how often the producer took nothing."""
        refused = 0
        until = self.simulation.now + limit_s
        while not told and self.simulation.now < until:
            try:
                self.judge.publish(self.producer, self.spec.name, self.rng.choice(CLASSES))
            except Unavailable as error:
                assert "handed over" in str(error)
                refused += 1
            except StreamRefused as error:  # it has handed it over; whoever has asked is told a moment later
                assert "publish there" in str(error)
            self.simulation.run_for(0.02)
            assert NoCircles().check(self.simulation) == []
        assert told
        return refused

    def handed_over(self, to: Place) -> None:
        """Hand over under load, and go on there."""
        told = self.hand_over(to)
        self.publish_while(told)
        assert isinstance(told[0], StreamView), told
        assert told[0].producer == format(to.id, "032x")
        self.producer = to

    @property
    def producers(self) -> list[Place]:
        return [place for place in self.simulation.nodes if place.is_live and _is_producer(place)]

    def assert_nothing_lost(self) -> None:
        self.assert_complete()
        assert not any(each.lost for each in self.judge.watched if each.is_live)
        assert not any(each.why_ended for each in self.judge.watched)


def _is_producer(place: Place) -> bool:
    return any(node.is_producer for node in plugin_of(place).nodes)


def node_at(place: Place) -> StreamNode:
    [node] = plugin_of(place).nodes
    return node


def role_at(place: Place) -> Role:
    """What a node is to its one stream."""
    return plugin_of(place).changes.succession.role(node_at(place))


def deafen(old: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old producer does not hear any more what the next one answers, once its record is deleted."""
    side: Any = plugin_of(old).changes.succession
    hear = side._answered

    def answered(role: Role, stage: RoleStage, peer: PeerRef, answer: HandOverAnswer | None) -> None:
        hear(role, stage, peer, None if role.stage is RoleStage.TAKING else answer)

    monkeypatch.setattr(side, "_answered", answered)


def deepest(streams: Streams) -> Place:
    return max(streams.others, key=lambda place: (node_at(place).depth or 0, place.index))


@pytest.mark.parametrize("policy", ["first_fit", "overlap", "cost"])
@pytest.mark.parametrize("kind", ["classes", "coherency"])
def test_a_stream_is_handed_over_under_load_and_nobody_loses_anything(kind: str, policy: str) -> None:
    streams = Handing(12, 1, StreamSpec(name="news", kind=kind, policy=policy))
    streams.subscribe_all()
    streams.publish(20)
    old, new = streams.producer, deepest(streams)
    streams.handed_over(new)
    assert streams.producers == [new]
    streams.publish(40)
    streams.settle(10.0)
    streams.assert_nothing_lost()
    # The old producer wants nothing: it stays below the new one for as long as somebody is below it.
    for node in plugin_of(old).nodes:
        assert node.parent == new.peer and not node.is_producer
    assert node_at(new).epoch == (1 << TERM_SHIFT) + new.boot_epoch
    for place in streams.simulation.nodes:
        for node in plugin_of(place).nodes if place is old else [node_at(place)]:
            assert node.record.producer.peer == new.peer
            assert node.member.state.ancestors[:1] in ((), (new.peer,))
    late = streams.subscribe(old, "a,b,c,d")
    streams.publish(20)
    streams.settle()
    streams.assert_nothing_lost()
    assert late.received


def test_a_file_that_is_on_its_way_gets_to_everybody_from_the_producer_before() -> None:
    documents = Documents(4)
    id = documents.publish(32 * MIB)
    old, new = documents.producer, documents.others[-1]
    documents.some_way(id, new, 0.1)
    told: Told = []
    plugin_of(old).changes.hand_over("files", new.peer.address, told.append)
    documents.simulation.run_until(lambda: bool(told), limit_s=30.0)
    assert isinstance(told[0], StreamView) and _is_producer(new)
    assert new not in documents.having(id), "it is still on its way"
    documents.until_all_have(id, 120.0)


def test_there_and_back_again_with_what_was_remembered_before() -> None:
    streams = Handing(8, 2)
    streams.subscribe_all()
    streams.publish(20)
    old, new = streams.producer, deepest(streams)
    streams.handed_over(new)
    streams.publish(20)
    streams.handed_over(old)
    streams.publish(20)
    with_past = streams.subscribe(streams.others[3], "a,b,c,d", "start")
    streams.settle(10.0)
    streams.assert_nothing_lost()
    assert node_at(old).record.term == 2
    assert with_past.received >= 60


def test_a_node_that_is_the_producer_again_and_again_has_one_child_more_than_its_limit_at_most() -> None:
    """Each producer before comes to the new one, which is full."""
    streams = Handing(8, 2, fan_out=2)
    streams.subscribe_all()
    first, *others = [streams.producer, *streams.others]
    for other in others[:4]:
        streams.handed_over(other)
        streams.publish(20)
        streams.handed_over(first)
        streams.publish(20)
        assert len(node_at(first).member.down.children) <= plugin_of(first).config.fan_out + 1
    streams.settle(10.0)
    streams.assert_nothing_lost()


def test_a_durable_stream_is_kept_at_its_new_producer_too() -> None:
    streams = Handing(8, 3, SPEC.model_copy(update={"durable": True}))
    streams.subscribe_all()
    streams.publish(20)
    old, new = streams.producer, deepest(streams)
    streams.handed_over(new)
    streams.publish(20)
    streams.settle()
    streams.simulation.kill(new)
    streams.simulation.run_for(5.0)
    streams.simulation.restart(new)
    streams.simulation.run_until(lambda: new.is_live and new.node.is_ready and bool(streams.producers), limit_s=60.0)
    streams.settle(40.0)
    streams.publish(20)
    streams.settle(10.0)
    assert streams.producers == [new] and not _is_producer(old)
    streams.assert_nothing_lost()


def test_a_node_that_is_to_receive_only_refuses_and_the_stream_stays() -> None:
    streams = Handing(8, 4)
    streams.subscribe_all()
    streams.publish(10)
    new = deepest(streams)
    plugin_of(new).config = plugin_of(new).config.model_copy(update={"fan_out": 0})
    told = streams.hand_over(new)
    streams.publish_while(told)
    assert isinstance(told[0], StreamRefused) and "fan_out" in str(told[0])
    streams.publish(20)
    streams.settle()
    assert streams.producers == [streams.producer]
    streams.assert_nothing_lost()


def test_a_next_producer_with_a_child_above_its_limit_sends_the_old_one_further_down() -> None:
    """A child has come in the place of one that had not gone yet."""
    streams = Handing(10, 13)
    streams.subscribe_all()
    new = max(streams.others, key=lambda place: len(node_at(place).children()))
    node, count = node_at(new), len(node_at(new).children())
    plugin_of(new).config = plugin_of(new).config.model_copy(update={"fan_out": count - 1})
    old = node_at(streams.producer)
    streams.handed_over(new)
    streams.publish(20)
    streams.settle(2.0)
    assert len(node.children()) <= count and old.parent is not None
    node.validate()
    assert StreamBounds().check(streams.simulation) == []
    streams.assert_nothing_lost()


def test_nobody_who_is_not_in_the_tree_and_not_two_at_once() -> None:
    streams = Handing(8, 5)
    streams.subscribe(streams.others[0], "a")
    told: Told = []
    plugin_of(streams.producer).changes.hand_over("news", "192.0.2.1:7", told.append)
    streams.simulation.run_until(lambda: bool(told), limit_s=10.0)
    assert isinstance(told[0], StreamRefused) and "subscribe there first" in str(told[0])
    first = streams.hand_over(streams.others[0])
    streams.simulation.run_for(0.001)
    streams.publish_while(first)
    assert isinstance(first[0], StreamView)
    with pytest.raises(StreamRefused, match="publish there"):
        plugin_of(streams.producer).changes.hand_over("news", "x", told.append)


def test_a_stream_that_is_ended_while_its_tree_is_asked_for_is_not_handed_over() -> None:
    streams = Handing(8, 12)
    streams.subscribe_all()
    told, ended = streams.hand_over(streams.others[0]), Told()
    plugin_of(streams.producer).changes.remove("news", ended.append)
    streams.simulation.run_until(lambda: bool(told) and bool(ended), limit_s=30.0)
    assert isinstance(told[0], StreamRefused) and "produces no stream" in str(told[0])
    assert isinstance(ended[0], StreamView)
    streams.settle(30.0)
    assert streams.producers == []


def test_where_the_next_producer_dies_before_it_has_the_record_the_stream_stays() -> None:
    streams = Handing(10, 6, lease="30s")
    streams.subscribe_all()
    streams.publish(10)
    new = deepest(streams)
    told = streams.hand_over(new)
    role = role_at(streams.producer)
    streams.simulation.run_until(lambda: role.stage is RoleStage.DELETING, limit_s=30.0)
    streams.simulation.kill(new)
    streams.simulation.run_until(lambda: bool(told), limit_s=60.0)
    assert isinstance(told[0], Unavailable) and "stays here" in str(told[0])
    streams.publish(20)
    streams.settle(20.0)
    assert streams.producers == [streams.producer]
    streams.assert_nothing_lost()


def test_where_nobody_hears_that_the_record_is_stored_the_store_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next producer has the record, and its machine stops: the old one hears of it, and waits for its lease."""
    streams = Handing(10, 7, lease="30s")
    streams.subscribe_all()
    streams.publish(10)
    old, new = streams.producer, deepest(streams)
    deafen(old, monkeypatch)
    told = streams.hand_over(new)
    streams.simulation.run_until(lambda: new in streams.producers, limit_s=30.0)
    streams.producer = new
    streams.publish(5)
    streams.producer = old
    streams.simulation.kill(new)
    streams.simulation.run_until(lambda: bool(told), limit_s=90.0)
    assert isinstance(told[0], Unavailable) and "has not said" in str(told[0])
    streams.simulation.run_until(lambda: node_at(old).is_publishable, limit_s=120.0)
    assert streams.producers == [old] and node_at(old).record.term == TAKE_BACK_TERMS
    streams.publish(20)
    streams.settle(40.0)
    streams.assert_complete()
    live = [each for each in streams.judge.watched if each.is_live]
    assert all(each.watermark is not None and each.watermark >= StreamPosition(2 << TERM_SHIFT, 0) for each in live)


@pytest.mark.parametrize("is_heard_of", [False, True])
def test_of_two_producers_in_a_divided_ring_the_one_of_the_smaller_term_steps_down(
    is_heard_of: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring is divided when the new producer has its record, before the old one hears of it.

    Where the part of the old one has no copy, that goes on in its term, which is the smaller one. Else it waits for the
    copy to lapse, and begins a later term.
    """
    streams = Handing(10, 10, lease="30s")
    streams.subscribe_all()
    streams.publish(10)
    old, new = streams.producer, deepest(streams)
    told = streams.hand_over(new)
    deafen(old, monkeypatch)
    streams.simulation.run_until(lambda: new in streams.producers, limit_s=30.0)
    assert not told and _is_producer(old)
    part = [place for place in streams.simulation.nodes if place is not new][:5] if is_heard_of else [old]
    streams.simulation.partition(part, [place for place in streams.simulation.nodes if place not in part])
    streams.simulation.run_until(lambda: bool(told) and node_at(old).is_publishable, limit_s=300.0)
    assert isinstance(told[0], Unavailable)
    assert len(streams.producers) == 2
    assert node_at(old).record.term == (TAKE_BACK_TERMS if is_heard_of else 0)
    for _ in range(10):
        streams.judge.publish(old, "news", "a")
        streams.simulation.run_for(0.5)
    streams.simulation.heal()
    last = old if is_heard_of else new
    streams.simulation.run_until(lambda: streams.producers == [last], limit_s=300.0)
    streams.settle(60.0)
    before = [each.received for each in streams.judge.watched]
    for _ in range(10):
        streams.judge.publish(last, "news", "a")
        streams.simulation.run_for(0.1)
    streams.settle(20.0)
    gained = [each.received - had for each, had in zip(streams.judge.watched, before, strict=True)]
    assert gained == [10 * each.matches("a") for each in streams.judge.watched]
    assert streams.judge.certain == []


def test_an_old_producer_that_comes_back_goes_on_below_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies at the moment when the other one has the record, and so never hears that it has."""
    streams = Handing(10, 8)
    streams.subscribe_all()
    streams.publish(10)
    old, new = streams.producer, deepest(streams)
    streams.hand_over(new)
    deafen(old, monkeypatch)
    streams.simulation.run_until(lambda: new in streams.producers, limit_s=30.0)
    assert _is_producer(old)
    streams.simulation.kill(old)
    streams.producer = new
    streams.publish(40, 0.2)
    streams.settle(20.0)
    streams.simulation.restart(old)
    streams.simulation.run_until(lambda: old.is_live and old.node.is_ready, limit_s=60.0)
    assert _is_producer(old), "it has heard of nothing"
    streams.simulation.run_until(lambda: not _is_producer(old), limit_s=60.0)
    streams.publish(20)
    streams.settle(20.0)
    assert streams.producers == [new]
    streams.assert_nothing_lost()


def test_a_next_producer_that_is_not_asked_any_more_wants_the_whole_stream_no_more() -> None:
    streams = Handing(8, 9)
    streams.subscribe_all()
    new = deepest(streams)
    streams.hand_over(new)
    streams.simulation.run_until(lambda: WHOLE_STREAM in node_at(new).member.subscriptions, limit_s=10.0)
    plugin_of(streams.producer).changes.succession._roles.clear()
    streams.simulation.run_for(2 * UNASKED_S)
    assert WHOLE_STREAM not in node_at(new).member.subscriptions
    assert role_at(new).stage is RoleStage.MEMBER


def test_who_claims_a_stream_without_a_record_is_not_believed_and_costs_one_lookup_in_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Handing(6, 11)
    streams.subscribe_all()
    producer, claimant = streams.producer, streams.others[0]
    side: Any = plugin_of(producer).changes.succession
    finds: list[float] = []
    real = side._registry.find

    def counted(*arguments: Any) -> None:
        finds.append(streams.simulation.now)
        real(*arguments)

    monkeypatch.setattr(side._registry, "find", counted)
    for _ in range(40):
        message = HandOver(node_at(producer).record.key, HandOverStep.ASK, 7, StreamPosition(0, 0))
        answer = side.on_hand_over(message, claimant.peer)
        assert isinstance(answer, HandOverAnswer) and answer.state == HandOverState.PREPARING
        streams.simulation.run_for(0.1)
    assert len(finds) == 2
    assert streams.producers == [producer]
    for step in HandOverStep:
        message = HandOver(node_at(claimant).record.key, step, 0, StreamPosition(0, 0))
        plugin_of(claimant).changes.succession.on_hand_over(
            message, streams.others[1].peer
        )  # which is not its producer
    assert WHOLE_STREAM not in node_at(claimant).member.subscriptions
