"""Streams in the swarm: some of its seeds, and that its judge and its checkers find what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from peerd.ids import NodeId
from peerd.sim.swarm.swarm import run_seed
from protocols.dissemination.front import simulator
from protocols.dissemination.front.checkers import NoCircles, NoOrphans, StreamBounds
from protocols.dissemination.front.judging import STALE_S, plugin_of
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.named import NamedSubscriptions, SavedNamed
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.subscriptions import StreamSubscription
from protocols.dissemination.tree.effects import Effects
from protocols.dissemination.tree.latest import LatestItems
from protocols.dissemination.tree.links import Uplink
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.subscription import OwnSubscription
from protocols.dissemination.tree.upstream import Upstream
from tests.sim.test_dissemination import Streams
from tests.support.long_cases import cases

PROTOCOLS = ("dissemination",)


@pytest.mark.parametrize(
    ("seed", "nodes"), [(0, None), (4, None), (5, None), (15, None), (18, 8), (84, None), (303, None)]
)
def test_seed(seed: int, nodes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of these were red once. One policy and kind, so that a seed stays the same run when others are installed."""
    monkeypatch.setattr(simulator, "usable_policies", lambda: ["first_fit"])
    monkeypatch.setattr(simulator, "usable_kinds", lambda: ["classes"])
    monkeypatch.setattr(simulator, "is_durable", lambda number: False)
    monkeypatch.setattr(simulator, "TROUBLE_SHARE", 0.0)
    result = run_seed(seed, nodes=nodes, protocols=PROTOCOLS)
    assert result.failure is None


def test_an_order_that_comes_late_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """This seed was red with all policies: a node that had just been above another one ordered it to move."""
    monkeypatch.setattr(simulator, "usable_policies", lambda: ["cost", "first_fit", "overlap"])
    monkeypatch.setattr(simulator, "usable_kinds", lambda: ["classes", "attributes"])
    monkeypatch.setattr(simulator, "is_durable", lambda number: False)
    monkeypatch.setattr(simulator, "TROUBLE_SHARE", 0.0)
    assert run_seed(3037, without=frozenset({"liars"}), protocols=PROTOCOLS).failure is None


@pytest.mark.parametrize("seed", [155, 631, 851])
def test_seed_in_which_the_overlay_was_at_fault(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A death that only non-neighbours found, an absence after a quick restart, and a newcomer that nobody let in."""
    monkeypatch.setattr(simulator, "usable_policies", lambda: ["cost", "first_fit", "overlap"])
    assert run_seed(seed, without=frozenset({"liars"}), protocols=PROTOCOLS).failure is None


@pytest.mark.parametrize("seed", cases((150, 273, 481, 659, 716, 999, 1082), (133, 660)))
def test_seed_in_which_producers_followed_each_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams of one name (133, 273; in 1082 a member of one got below one of the other), a hand-over that was
    broken off (150), one whose record was seen although it was broken off (716), one to a node that had yet to be sent
    the newest values (659), producers that took their stream back from one that had handed it on (660, 999), and one
    that could not take it back before the next one's record had lapsed, unseen (481). The long ones found what a
    shorter run had found, too."""
    monkeypatch.setattr(simulator, "usable_policies", lambda: ["cost", "first_fit", "overlap"])
    assert run_seed(seed, without=frozenset({"liars"}), protocols=PROTOCOLS).failure is None


def test_a_client_tries_again_where_a_slow_link_holds_the_record_of_its_stream_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulator, "usable_policies", lambda: ["cost", "first_fit", "overlap"])
    assert run_seed(1142, without=frozenset({"liars"}), protocols=PROTOCOLS).failure is None


def offences_with(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., Any]) -> list[str]:
    """What the judge says of a calm ring with a bug in it."""
    streams = Streams(12)
    streams.subscribe_all()
    streams.publish(10)
    monkeypatch.setattr(owner, name, wrong)
    streams.publish(40)
    streams.settle()
    watermark = {name: stream.last for name, stream in streams.judge.streams.items()}
    return [*streams.judge.offences, *streams.judge.missing(watermark)]


def test_the_judge_sees_an_item_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = OwnSubscription.give

    def give(self: OwnSubscription, held: ParsedItem) -> None:
        if held.position.sequence % 7:
            right(self, held)

    assert any("silent loss" in told for told in offences_with(monkeypatch, OwnSubscription, "give", give))


def test_the_judge_sees_an_item_that_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def give(self: OwnSubscription, held: ParsedItem) -> None:
        self.deliver(held)
        self.deliver(held)

    assert any("order" in told for told in offences_with(monkeypatch, OwnSubscription, "give", give))


def test_the_judge_sees_what_was_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StreamMember._flow

    def flow(self: StreamMember, held: ParsedItem) -> None:
        for subscription in self.subscriptions.values():
            subscription.give(held)
        right(self, held)

    assert any("precision" in told for told in offences_with(monkeypatch, StreamMember, "_flow", flow))


def test_the_judge_sees_a_gap_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that hides losses from those below it: what it sends on begins anew after each 20th item."""
    right = Upstream._went_on

    def went_on(self: Upstream, link: Uplink, watermark: Any, now: float) -> Effects:
        effects = right(self, link, watermark, now)
        if watermark.sequence % 20 == 0:
            self._state.watermark = type(watermark)(watermark.epoch, watermark.sequence + 5)
        return effects

    assert offences_with(monkeypatch, Upstream, "_went_on", went_on)


def test_the_judge_sees_a_value_that_is_not_current() -> None:
    streams = Streams(6, spec=StreamSpec(name="news", kind="coherency", policy="first_fit"))
    streams.subscribe_all()
    streams.publish(20)
    streams.settle()
    streams.assert_complete()
    some = next(each for each in streams.judge.watched if each.current)
    name = next(iter(some.current))
    some.current[name] = some.current[name].replace('"value": ', '"value": 10')
    [told] = streams.judge.missing({"news": streams.judge.streams["news"].last})
    assert "coherency" in told


def told_of_loss(streams: Streams) -> list[str]:
    """What the judge says when nodes give up an item in a calm ring, and tell of it."""
    streams.judge.calm_since = {name: stream.last for name, stream in streams.judge.streams.items()}
    streams.publish(10)
    streams.settle()
    return streams.judge.offences


def test_the_judge_sees_a_loss_that_is_told_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    right = OwnSubscription.give

    def give(self: OwnSubscription, held: ParsedItem) -> None:
        if held.position.sequence % 7 == 0:
            self.lose(self.watermark or held.position, held.position)
        right(self, held)

    streams = Streams(8)
    streams.subscribe_all()
    streams.publish(10)
    assert not told_of_loss(streams)
    monkeypatch.setattr(OwnSubscription, "give", give)
    assert any("told in a calm ring" in told for told in told_of_loss(streams))


def test_the_judge_sees_values_that_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(6, spec=StreamSpec(name="news", kind="coherency", policy="first_fit"))
    streams.subscribe_all()
    streams.publish(20)
    streams.settle()
    assert not streams.judge.outdated(2)
    monkeypatch.setattr(StreamSubscription, "_push", lambda self, item, size: None)
    streams.publish(30)
    streams.judge.read()
    assert any("coherency" in told for told in streams.judge.outdated(2))


def values_without_a_producer() -> Streams:
    streams = Streams(8, spec=StreamSpec(name="news", kind="coherency", policy="first_fit"))
    streams.subscribe_all()
    streams.publish(20)
    streams.simulation.kill(streams.producer)
    streams.simulation.run_for(STALE_S + 1.0)
    streams.judge.read()
    return streams


def test_the_judge_sees_values_of_which_nobody_says_that_they_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (right := values_without_a_producer()).judge.unmarked(right.simulation)
    monkeypatch.setattr(LatestItems, "_tell_stale", lambda self, subscription: None)
    wrong = values_without_a_producer()
    told = wrong.judge.unmarked(wrong.simulation)
    assert len(told) == 7 and "stale" in told[0]


def test_the_judge_sees_values_that_stay_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = values_without_a_producer()
    assert len(streams.judge.stale({"news"})) == 7 and not streams.judge.stale({"other"})
    right = LatestItems.freshened

    def freshened(self: LatestItems, now: float, *, is_stale: bool) -> Effects:
        return right(self, now, is_stale=True) if is_stale else []

    with monkeypatch.context() as wrong:
        wrong.setattr(LatestItems, "freshened", freshened)
        streams.simulation.restart(streams.producer)
        streams.settle(40.0)
        assert len(streams.judge.stale({"news"})) == 7
    streams.settle()
    assert not streams.judge.stale({"news"})


def test_the_judge_sees_a_stream_that_ends_by_itself() -> None:
    streams = Streams(6)
    streams.subscribe_all()
    streams.publish(5)
    assert not streams.judge.ended(streams.simulation)
    next(iter(plugin_of(streams.others[2]).clients)).end("nobody said so")
    streams.settle()
    [told] = streams.judge.ended(streams.simulation)
    assert "nobody said so" in told


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_judge_reads_on_where_a_node_was_restarted(is_forgotten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was published while it was away comes, or the judge sees that it does not."""
    streams = Streams(8)
    watched = streams.subscribe_all()
    streams.publish(10)
    streams.settle()
    here = watched[-1]
    place = here.place
    streams.simulation.kill(place)
    streams.publish(20)
    if is_forgotten:

        def begin_now(self: NamedSubscriptions, name: str) -> SavedNamed:
            return self._saved[name].model_copy(update={"after": None})

        monkeypatch.setattr(NamedSubscriptions, "_resumed", begin_now)

    def has_come_back() -> bool:
        streams.judge.read()
        return here.resumed > 0

    streams.simulation.restart(place)
    streams.simulation.run_until(has_come_back, limit_s=60.0)
    streams.publish(20)
    streams.settle()
    watermark = {name: stream.last for name, stream in streams.judge.streams.items()}
    assert bool([*streams.judge.offences, *streams.judge.missing(watermark)]) == is_forgotten


def test_where_somebody_is_hostile_disorder_is_an_offence_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(6)
    streams.subscribe_all()
    streams.publish(5)

    def give(self: OwnSubscription, held: ParsedItem) -> None:
        self.deliver(held)
        self.deliver(held)

    monkeypatch.setattr(OwnSubscription, "give", give)
    streams.publish(5)
    streams.settle()
    assert any("order" in told for told in streams.judge.certain)


def test_a_circle_is_seen() -> None:
    streams = Streams(8)
    streams.subscribe_all()
    assert NoCircles().check(streams.simulation) == []
    one, other = (next(iter(plugin_of(place).nodes)) for place in streams.others[:2])
    for node, above in ((one, other), (other, one)):
        assert node.member.up.parent is not None
        node.member.up.parent.peer = above.host.peer
    assert any("circle" in told for told in NoCircles().check(streams.simulation))
    assert any("does not know its child" in told for told in NoOrphans().check(streams.simulation))


def test_too_many_children_are_seen() -> None:
    streams = Streams(8)
    streams.subscribe_all()
    places: Sequence[Any] = streams.simulation.nodes
    assert not any(StreamBounds().check_node(streams.simulation, place) for place in places)
    children = next(iter(plugin_of(streams.producer).nodes)).member.down.children
    some = next(iter(children.values()))
    children.update({NodeId(number): some for number in range(5)})
    assert StreamBounds().check_node(streams.simulation, streams.producer)
