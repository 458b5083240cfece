"""The guarantee between those who provide a value and those who hold it, one transcript each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.lib.leases import at_least, at_most
from protocols.measurement.guarantee import provider as provider_module
from protocols.measurement.guarantee.caching import CacheAnswer, Caching
from protocols.measurement.guarantee.centre import Centre
from protocols.measurement.guarantee.effects import Effect, Moved, ProviderLate, ProviderLost, SendTo
from protocols.measurement.guarantee.interval import Interval, around
from protocols.measurement.guarantee.messages import AGE_UNIT_S, CacheAsk, CacheUpdate, StandingPromises
from protocols.measurement.guarantee.words import Measurement, Terms, Want

OWNER, MIDDLE, LEAF = NodeId(1), NodeId(2), NodeId(3)
CPU = Measurement(OWNER, "cpu")
TERMS = Terms(max_age_s=30.0, update_s=5.0, ask_s=10.0)


class Line:
    """An owner, a cache in the middle, and one below it. What is sent arrives at once, unless it is held back."""

    def __init__(self) -> None:
        self.now = 100.0
        self.boots = {OWNER: 1, MIDDLE: 1, LEAF: 1}
        self.nodes = {node: Caching(node, 1, TERMS) for node in (OWNER, MIDDLE, LEAF)}
        self.sent: list[tuple[NodeId, SendTo]] = []
        self.other: list[Effect] = []
        self.unreachable: set[NodeId] = set()
        self.held_back: list[tuple[NodeId, SendTo]] = []
        self.is_holding = False

    def do(self, node: NodeId, effects: list[Effect]) -> None:
        """Carry out what a node wants done."""
        for effect in effects:
            if isinstance(effect, Moved):
                continue
            if not isinstance(effect, SendTo):
                self.other.append(effect)
                continue
            self.sent.append((node, effect))
            if self.is_holding:
                self.held_back.append((node, effect))
            elif not {node, effect.to} & self.unreachable:
                self.bring(node, effect)

    def bring(self, source: NodeId, send: SendTo) -> None:
        """A message arrives."""
        to = self.nodes[send.to]
        if isinstance(send.message, CacheAsk):
            self.do(send.to, to.asked(source, send.message, self.now))
        else:
            self.do(send.to, to.heard(source, send.message, self.now))

    def sample(self, value: float, took_s: float = 0.0) -> None:
        """The owner has asked its source, which answers now."""
        self.do(OWNER, self.nodes[OWNER].sampled({"cpu": value}, self.now - took_s, self.now))

    def want(self, node: NodeId, half_width: float, provider: NodeId, update_s: float | None = None) -> None:
        self.do(node, self.nodes[node].want([Want(CPU, half_width)], provider, self.now, update_s))

    def pass_time(self, seconds: float) -> None:
        """Each node looks after its own every second."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for node, caching in self.nodes.items():
                if node not in self.unreachable:
                    self.do(node, caching.tick(self.now))

    def minute(self) -> Iterator[None]:
        """The owner samples each second; what was sent in the first 20 is forgotten."""
        for second in range(60):
            self.sample(50.0)
            self.pass_time(1)
            if second == 19:
                self.sent.clear()
            yield

    def restart(self, node: NodeId) -> None:
        self.boots[node] += 1
        self.nodes[node] = Caching(node, self.boots[node], TERMS)

    def read(self, node: NodeId) -> CacheAnswer:
        answer = self.nodes[node].read(CPU, self.now)
        assert answer is not None
        return answer

    def updates(self, to: NodeId) -> list[CacheUpdate]:
        """What was sent to a node since this was asked last."""
        found = [send.message for _, send in self.sent if send.to == to and isinstance(send.message, CacheUpdate)]
        self.sent = [(source, send) for source, send in self.sent if send.to != to]
        return found


@pytest.fixture
def line() -> Line:
    """The owner has a value, and both others hold it."""
    return held_line()


@pytest.fixture
def busy_line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """The same, where both want to hear more often than usual, and the cache in the middle takes one for several."""
    monkeypatch.setattr(provider_module, "SEVERAL", 1)
    return held_line(4.0)


def held_line(update_s: float | None = None) -> Line:
    line = Line()
    line.sample(50.0)
    line.want(MIDDLE, 1.0, OWNER, update_s)
    line.want(LEAF, 3.0, MIDDLE, update_s)
    line.sent.clear()
    return line


def test_a_holder_is_told_only_when_its_bounds_are_broken(line: Line) -> None:
    assert line.read(MIDDLE).claim.interval == Interval(49.0, 51.0)
    line.sample(50.9)
    assert not line.updates(MIDDLE)
    line.sample(51.1)
    (update,) = line.updates(MIDDLE)
    (entry,) = update.entries
    assert entry.claim.interval.holds(51.1)
    assert entry.claim.interval.half_width == pytest.approx(1.0)
    assert entry.replaces == entry.number - 1 and entry.is_continuous
    assert entry.measurement is None and entry.claim.since.epoch == 0, "which the holder knows"
    assert not line.updates(LEAF)
    assert line.read(LEAF).claim.interval == Interval(47.0, 53.0)


def test_the_bounds_of_a_holder_contain_those_of_its_provider_not_its_value_only(line: Line) -> None:
    line.sample(52.9)  # this is inside of the leaf's bounds, but those that the middle has now reach out of them
    middle, leaf = line.read(MIDDLE).claim.interval, line.read(LEAF).claim.interval
    assert middle.high > 53.0
    assert leaf.contains(middle)
    assert len(line.updates(LEAF)) == 1


def test_what_breaks_its_bounds_again_and_again_is_told_now_and_then_and_is_as_old_as_it_is(line: Line) -> None:
    for second in range(1, 11):
        line.now += 1.0
        line.sample(50.0 + 10.0 * second)
        for node, caching in line.nodes.items():
            line.do(node, caching.tick(line.now))
        answer = line.read(LEAF)
        assert answer.age_s <= 3.0, "two seconds, and what clocks may be wrong by"
        since = max(0, second - math.ceil(answer.age_s))
        assert any(answer.claim.interval.holds(50.0 + 10.0 * each) for each in range(since, second + 1))
    told = [update for update in line.updates(LEAF) if update.entries]
    assert len(told) == 5, "at once, and then with each second sample, the first after half of that time"
    assert [update.entries[0].is_continuous for update in told] == [True, False, False, False, False]


def test_what_broke_just_after_others_is_told_by_the_next_tick_after_the_time(line: Line) -> None:
    line.sample(60.0)
    line.sample(70.0)
    assert line.read(LEAF).claim.interval.holds(60.0)
    assert len(line.updates(LEAF)) == 1
    line.pass_time(2)
    assert line.read(LEAF).claim.interval.holds(60.0)
    line.pass_time(1)
    assert line.read(LEAF).claim.interval.holds(70.0)
    assert 3.0 <= line.read(LEAF).age_s < 5.0
    assert len(line.updates(LEAF)) == 1


def test_a_holder_hears_at_least_so_often(line: Line) -> None:
    line.pass_time(4)
    assert not line.updates(MIDDLE)
    line.sample(50.0)
    line.pass_time(2)
    (update,) = line.updates(MIDDLE)
    assert not update.entries
    assert line.read(MIDDLE).age_s < 3.0
    assert line.read(LEAF).age_s < 4.0, "what keeps a cache fresh is passed on at once"


def test_where_few_hear_from_a_cache_nobody_says_more_than_before(line: Line) -> None:
    for _ in line.minute():
        assert line.read(MIDDLE).age_s < 6.1
        assert line.read(LEAF).age_s < 7.3
    assert sum(send.to == OWNER for _, send in line.sent) == 4
    assert len(line.updates(MIDDLE)) == len(line.updates(LEAF)) == 8


def test_a_cache_that_several_hear_from_asks_often_and_passes_on_at_once_what_it_hears(busy_line: Line) -> None:
    line = busy_line
    line.pass_time(1)
    assert not line.updates(MIDDLE)
    line.sample(50.0)
    line.pass_time(1)
    (update,) = line.updates(MIDDLE)
    assert not update.entries
    assert line.read(MIDDLE).age_s < 1.2, "as old as the sample"
    assert not line.updates(LEAF)
    line.pass_time(1)
    (update,) = line.updates(LEAF)
    assert not update.entries
    assert line.read(LEAF).age_s < 3.0, "what keeps a cache fresh is passed on with the next tick"
    for _ in line.minute():
        assert line.read(LEAF).age_s < 5.0
    assert sum(send.to == OWNER for _, send in line.sent) == len(line.updates(MIDDLE)) == 20


def test_a_value_is_as_old_as_the_question_that_brought_it() -> None:
    line = Line()
    line.sample(50.0)
    line.is_holding = True
    line.want(MIDDLE, 1.0, OWNER)
    line.now += 20.0  # the question is under way
    line.sample(50.0)
    line.is_holding = False
    ((source, ask),) = line.held_back
    line.bring(source, ask)
    assert line.read(MIDDLE).age_s == pytest.approx(20.0)


def test_a_word_that_comes_late_is_dated_by_when_it_was_said(line: Line) -> None:
    line.now += 6.0
    line.sample(50.0)
    line.is_holding = True
    line.do(OWNER, line.nodes[OWNER].tick(line.now))
    line.now += 12.0
    line.is_holding = False
    ((source, word),) = line.held_back
    line.bring(source, word)
    assert line.read(MIDDLE).age_s == pytest.approx(18.0 - at_least(6.0))


def test_who_missed_a_change_does_not_trust_what_it_has_and_asks(line: Line) -> None:
    line.unreachable = {MIDDLE}
    line.sample(60.0)
    line.unreachable = set()
    assert not line.read(MIDDLE).is_stale, "nobody can know yet"
    line.is_holding = True
    line.pass_time(5)
    word = next(each for each in line.held_back if each[1].to == MIDDLE)
    line.bring(*word)
    assert line.read(MIDDLE).is_stale
    line.is_holding = False
    asks = [each for each in line.held_back if isinstance(each[1].message, CacheAsk) and each[0] == MIDDLE]
    line.bring(*asks[-1])
    assert line.read(MIDDLE).claim.interval.holds(60.0)
    assert not line.read(MIDDLE).is_stale


def test_a_cache_that_does_not_keep_a_value_as_young_as_it_is_wanted_is_late() -> None:
    line = held_line(2.0)
    line.unreachable = {MIDDLE}
    line.pass_time(4)
    assert not line.other
    line.pass_time(1)
    assert line.other == [ProviderLate(CPU)]
    line.want(LEAF, 3.0, OWNER, 2.0)  # this is what is done then
    line.pass_time(10)
    assert line.other == [ProviderLate(CPU)] and line.read(LEAF).provider == OWNER


def test_of_a_node_that_is_not_to_be_reached_nothing_is_waited_for_but_what_it_owns(line: Line) -> None:
    assert line.nodes[LEAF].holder.lost(MIDDLE) == [ProviderLost(CPU, MIDDLE)]
    assert line.nodes[MIDDLE].holder.lost(OWNER) == line.nodes[OWNER].holder.lost(LEAF) == []


def test_what_a_silent_provider_gave_is_dropped_with_all_below_it(line: Line) -> None:
    line.unreachable = {OWNER}
    line.pass_time(29)
    assert not line.read(MIDDLE).is_stale
    assert set(line.other) == {ProviderLate(CPU)}, "where it is wanted as young as that, its owner is to be asked"
    line.pass_time(10)
    assert line.read(MIDDLE).is_stale
    assert line.read(LEAF).is_stale
    assert ProviderLost(CPU, OWNER) in line.other
    assert ProviderLost(CPU, MIDDLE) in line.other


def test_a_provider_that_has_it_less_exactly_says_so(line: Line) -> None:
    line.want(LEAF, 0.5, MIDDLE)
    assert line.other == [ProviderLost(CPU, MIDDLE)]
    line.want(LEAF, 0.5, OWNER)
    assert line.read(LEAF).claim.interval.is_within(0.5)


def test_a_holder_that_began_anew_takes_no_answer_to_its_earlier_self(line: Line) -> None:
    line.is_holding = True
    line.now += 5.0
    line.do(OWNER, line.nodes[OWNER].tick(line.now))
    line.restart(MIDDLE)
    line.want(MIDDLE, 1.0, OWNER)
    (old, _) = line.held_back
    line.bring(*old)
    assert line.nodes[MIDDLE].read(CPU, line.now) is None


def test_a_provider_that_began_anew_is_asked_for_everything(line: Line) -> None:
    line.restart(MIDDLE)
    line.want(MIDDLE, 1.0, OWNER)
    line.pass_time(11)
    line.sample(50.0)
    line.pass_time(6)
    assert line.read(LEAF).age_s < 10.0


def test_a_value_is_as_old_as_the_question_to_its_source(line: Line) -> None:
    line.sample(70.0, took_s=0.0)
    line.now += 10.0
    line.sample(71.5, took_s=8.0)
    assert line.read(OWNER).age_s == 8.0
    assert line.read(MIDDLE).age_s >= 8.0
    line.sample(99.0, took_s=9.0)
    assert line.read(OWNER).claim.value == 71.5, "that question was asked before the one that was answered first"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_no_value(line: Line, value: float) -> None:
    line.sample(value)
    assert line.nodes[OWNER].read(CPU, line.now) is None
    assert line.read(MIDDLE).is_stale
    assert line.read(LEAF).is_stale
    line.sample(50.0)
    line.pass_time(11)
    assert not line.read(MIDDLE).is_stale
    assert not line.read(LEAF).is_stale


def test_a_source_that_hangs_makes_the_value_stale_though_its_owner_lives(line: Line) -> None:
    line.pass_time(31)
    assert all(line.read(node).is_stale for node in (OWNER, MIDDLE, LEAF))


def test_a_new_provider_comes_before_the_old_one_goes(line: Line) -> None:
    line.unreachable = {OWNER}
    line.want(LEAF, 3.0, OWNER)
    line.pass_time(2)
    assert not line.read(LEAF).is_stale
    assert line.read(LEAF).provider == MIDDLE
    line.unreachable = set()
    line.pass_time(10)
    assert line.read(LEAF).provider == OWNER
    line.sample(50.0)
    line.pass_time(12)
    assert CPU not in line.nodes[MIDDLE].provider.edges[LEAF].guarantees


def test_a_provider_that_is_not_asked_vouches_for_nothing_and_still_tells_what_has_changed(line: Line) -> None:
    edge = line.nodes[OWNER].provider.edges[MIDDLE]
    line.unreachable = {MIDDLE}
    for _ in range(6):
        line.pass_time(5)
        line.sample(50.0)
    line.updates(MIDDLE)
    line.now += 1.0
    line.sample(80.0)
    (update,) = line.updates(MIDDLE)
    assert update.asked == 0
    assert line.now < edge.vouched_at + at_most(TERMS.max_age_s)
    line.bring(OWNER, SendTo(MIDDLE, update))
    assert line.read(MIDDLE).is_stale
    line.pass_time(TERMS.max_age_s * 1.2)
    assert MIDDLE not in line.nodes[OWNER].provider.edges


def test_two_caches_that_provide_for_each_other_grow_old(line: Line) -> None:
    line.want(MIDDLE, 3.0, LEAF)
    line.unreachable = {OWNER}
    line.pass_time(33)
    assert line.read(MIDDLE).is_stale
    assert line.read(LEAF).is_stale
    assert len(line.sent) < 200, "nor do they tell each other of the same change for ever"


def test_who_wants_no_more_is_told_no_more(line: Line) -> None:
    line.do(MIDDLE, line.nodes[MIDDLE].unwant([CPU], line.now))
    assert line.nodes[MIDDLE].read(CPU, line.now) is None
    assert line.read(LEAF).is_stale
    line.updates(MIDDLE)
    line.sample(90.0)
    assert not line.updates(MIDDLE)


def test_a_query_may_want_a_younger_value(line: Line) -> None:
    line.now += 3.0
    answer = line.nodes[MIDDLE].read(CPU, line.now, max_age_s=2.0)
    assert answer is not None
    assert answer.is_stale
    assert not line.read(MIDDLE).is_stale


def test_who_has_too_many_holders_refuses(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "HOLDERS_MAX", 1)
    line.want(LEAF, 3.0, OWNER)
    assert line.other == [ProviderLost(CPU, OWNER)]
    assert line.read(LEAF).provider == MIDDLE


@pytest.mark.parametrize("level", [-1000.0, 9.0, 10.0, 12.5, 1000.0])
def test_new_bounds_contain_what_has_to_be_inside_with_room_on_both_sides(level: float) -> None:
    inner = Interval(9.5, 10.5)
    outer = around(inner, level, 2.0)
    assert outer.contains(inner)
    assert outer.half_width == pytest.approx(2.0)
    assert min(inner.low - outer.low, outer.high - inner.high) >= 0.29


def updates(values: list[float], centre: Centre | None, half_width: float) -> int:
    """How often bounds are moved: around a centre that is chosen, or around the last value."""
    bounds, count = Interval(values[0], values[0]), 0
    for value in values:
        if centre is not None:
            centre.add(value)
        if not bounds.holds(value):
            place = value if centre is None else centre.place
            bounds, count = around(Interval(value, value), place, half_width), count + 1
    return count


def test_the_centre_is_where_fewer_updates_are() -> None:
    rng = Random(3)
    noise = [rng.gauss(0.0, 1.0) for _ in range(4000)]
    walk = [0.0]
    for step in noise:
        walk.append(walk[-1] + 0.1 * step + 0.02)
    assert updates(noise, Centre(0.0), 1.5) < 0.6 * updates(noise, None, 1.5)
    assert updates(walk, Centre(0.0), 1.5) <= 1.1 * updates(walk, None, 1.5)


def test_what_is_not_wanted_any_more_ends_though_bounds_have_broken_meanwhile() -> None:
    """A promise that was made anew while the word that it is not wanted was under way was kept by its provider."""
    owner, holder = Caching(NodeId(1), 1, Terms()), Caching(NodeId(2), 1, Terms())
    cpu = Measurement(NodeId(1), "cpu")
    owner.sampled({"cpu": 0.0}, 10.0, 10.0)
    [asked] = holder.want([Want(cpu, 1.0)], NodeId(1), 10.0)
    assert isinstance(asked, SendTo) and isinstance(asked.message, CacheAsk)
    [told] = owner.asked(NodeId(2), asked.message, 10.0)
    assert isinstance(told, SendTo) and isinstance(told.message, CacheUpdate)
    holder.heard(NodeId(1), told.message, 10.0)
    [stop] = [each for each in holder.unwant([cpu], 11.0) if isinstance(each, SendTo)]
    [late] = [each for each in owner.sampled({"cpu": 50.0}, 11.0, 11.0) if isinstance(each, SendTo)]
    assert isinstance(stop.message, CacheAsk) and isinstance(late.message, CacheUpdate)
    owner.asked(NodeId(2), stop.message, 11.0)
    assert not owner.provider.edges[NodeId(2)].guarantees
    assert not [each for each in owner.sampled({"cpu": 0.0}, 12.0, 12.0) if isinstance(each, SendTo)]
    holder.tick(12.0)
    holder.heard(NodeId(1), late.message, 12.0)
    [again] = [each for each in holder.tick(12.5) if isinstance(each, SendTo)]  # should the first have been lost
    assert isinstance(again.message, CacheAsk) and again.message.drops == (late.message.entries[0].number,)


def test_who_has_missed_a_promise_asks_for_all_that_it_wants() -> None:
    """What replaces a promise does not say again what it is about."""
    line = Line()
    line.sample(50.0)
    line.want(MIDDLE, 1.0, OWNER)
    line.unreachable = {MIDDLE}
    line.sample(60.0)  # this word is lost
    line.unreachable = set()
    line.now += 2.0
    line.sent.clear()
    line.sample(70.0)
    [update] = line.updates(MIDDLE)
    assert update.entries[0].measurement is None and not update.newest
    assert line.read(MIDDLE).claim.interval.holds(50.0)
    assert line.read(MIDDLE).age_s >= 2.0, "it is not renewed by that"
    line.pass_time(1)
    assert line.read(MIDDLE).claim.interval.holds(70.0)
    assert len(line.nodes[OWNER].provider.edges[MIDDLE].guarantees) == 1


@pytest.mark.parametrize(
    ("steps", "ages"), [((1, 2), (0,)), ((), (0,)), ((0,), (0,)), ((3, 0), (0, 0))], ids=["short", "none", "0", "twice"]
)
def test_promises_without_an_age_or_a_number_of_their_own_are_refused(
    steps: tuple[int, ...], ages: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="a number of its own, and an age"):
        StandingPromises(steps, ages)


@given(st.dictionaries(st.integers(1, 1 << 63), st.floats(0.0, 1e6)))
def test_ages_are_told_no_younger_and_hardly_older_than_they_are(ages: dict[int, float]) -> None:
    told = StandingPromises.of(ages).ages_s()
    assert told.keys() == ages.keys()
    assert all(0.0 <= told[number] - age_s <= AGE_UNIT_S for number, age_s in ages.items())
    assert StandingPromises.of({1: 1e300}).ages_s()[1] >= 1e7
