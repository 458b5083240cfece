"""What decides where measurements are cached: statistics, decisions, reasons. Pure, or nearly so."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.testing.host import FakeHost
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Effect, SendTo
from protocols.measurement.guarantee.interval import Interval, around
from protocols.measurement.guarantee.messages import CacheAsk
from protocols.measurement.guarantee.words import Measurement, Terms, Want
from protocols.measurement.placing import statistics as statistics_module
from protocols.measurement.placing.along import FEW_OWNERS
from protocols.measurement.placing.decider import CacheDecider
from protocols.measurement.placing.deciding import (
    PASSING,
    PAYS_WITHIN_S,
    RELIEF,
    SPLICE_MESSAGES,
    STAYS,
    benefit,
    counted,
    decide,
)
from protocols.measurement.placing.splicing import Splicing
from protocols.measurement.placing.statistics import READERS_MAX, CacheCandidate, SeenCache, Statistics, updates_s
from protocols.measurement.placing.wants import DIRECT_S, HeldWants, Why

OWNER = NodeId(9)
CPU = Measurement(OWNER, "cpu")
RENEWED_S = 100.0


# Statistics


def statistics() -> Statistics:
    """Of a node that was asked for nothing yet."""
    return Statistics(RENEWED_S, lambda: None)


def only(found: list[CacheCandidate]) -> CacheCandidate:
    """The one that there is."""
    [candidate] = found
    return candidate


def test_a_rate_follows_what_was_asked_and_is_forgotten() -> None:
    known = statistics()
    for _ in range(32):
        known.read(Want(CPU, 1.0), 8.0)
    assert only(known.candidates(16.0, 16.0, ())).reads_s == pytest.approx(2.0), "at once"
    for _ in range(4):
        known.read(Want(CPU, 1.0), 8.0)
    assert only(known.candidates(32.0, 16.0, ())).reads_s == pytest.approx((0.75 * 32 + 4) / (0.75 * 16 + 16))
    periods = 0
    while len(known):
        known.candidates(48.0 + 16.0 * periods, 16.0, ())
        periods += 1
    assert periods == 22, "1.0, three quarters of it after each period, until it is less than a thousandth"
    assert known.known(CPU) == (0.0, 0.0)


def test_reads_as_rare_as_decisions_have_a_rate_that_hardly_changes() -> None:
    """Experiment measurement/total: a read in 16 s is none in one period and two in another; caches came and went."""
    known, rates_s = statistics(), []
    for period, count in enumerate([1, 0, 2, 1, 1, 0, 1, 2, 0, 1, 1, 0, 2]):
        for _ in range(count):
            known.read(Want(CPU, 1.0), 8.0)
        rates_s.append(only(known.candidates(16.0 * period, 16.0, ())).reads_s)
    assert all(0.6 / 16 < each < 1.4 / 16 for each in rates_s[4:])


def test_updates_of_values_that_are_read_together_count_beside_the_usual_rate_among_them() -> None:
    known, names = statistics(), [f"m{number}" for number in range(10)]
    for number, name in enumerate(names):
        known.read(
            Want(Measurement(OWNER, name), 1.0), 8.0, 3.0, 20.0 if number == 9 else number % 2 / 8.0, group="one"
        )
    known.read(Want(CPU, 1.0), 8.0, 3.0, 0.25)
    of = {each.want.measurement.name: each.updates_s for each in known.candidates(16.0, 16.0, ())}
    mean = (4 / 8.0 + 20.0) / 10
    assert of["m0"] == pytest.approx(4 / (32 + 4 / mean)) and of["m1"] == pytest.approx((4 + 4) / (32 + 4 / mean))
    assert 18.5 < of["m9"] < 20.0, "one of which many were counted is as it is"
    assert of["cpu"] == pytest.approx(0.25), "who is read alone has nobody to be like"


def test_what_is_cached_is_not_forgotten_before_it_is_cached_no_more() -> None:
    known = statistics()
    known.read(Want(CPU, 1.0), 8.0)
    for period in range(50):
        known.candidates(16.0 * period, 16.0, (CPU,))
    assert len(known) == 1
    known.candidates(0.0, 16.0, ())
    assert not len(known)


def test_widths_and_ages_are_those_of_the_last_period_in_which_anybody_read() -> None:
    known = statistics()
    known.read(Want(CPU, 3.0), 8.0)
    known.read(Want(CPU, 2.0), 10.0)
    first = only(known.candidates(16.0, 16.0, ()))
    assert (first.want, first.update_s) == (Want(CPU, 2.0), 4.0)
    quiet = only(known.candidates(32.0, 16.0, ()))
    assert (quiet.want, quiet.update_s) == (Want(CPU, 2.0), 4.0)
    known.read(Want(CPU, 5.0), 30.0)
    later = only(known.candidates(48.0, 16.0, ()))
    assert (later.want, later.update_s) == (Want(CPU, 5.0), 15.0)


def test_what_a_read_costs_beyond_is_what_somebody_has_paid() -> None:
    known = statistics()
    known.paid(CPU, 9.0, 9.0)
    assert not len(known), "nobody has asked for it here"
    known.read(Want(CPU, 1.0), 8.0)
    assert known.known(CPU) == (0.0, 0.0)
    known.read(Want(CPU, 1.0), 8.0, 3.0, 0.25)
    known.read(Want(CPU, 1.0), 8.0)
    assert known.known(CPU) == (3.0, 0.25), "who knows of no cost says nothing of it"
    candidate = only(known.candidates(16.0, 16.0, ()))
    assert (candidate.cost, candidate.updates_s) == (3.0, 0.25)
    known.paid(CPU, 2.0, 0.5)
    assert known.known(CPU) == (2.0, 0.5)


def test_reads_of_what_is_held_count_no_more_than_the_questions_that_they_save() -> None:
    known = statistics()
    for second in range(160):
        known.read_held(Want(CPU, 1.0 + second % 3), 8.0 + second % 5, float(second), 8.0 + second % 5)
    candidate = only(known.candidates(160.0, 160.0, (CPU,)))
    assert 13 / 160 < candidate.reads_s <= 20 / 160, "one in eight seconds or more, not one a second"
    assert (candidate.want.half_width, candidate.update_s) == (1.0, 4.0), "all of them are served"


def test_where_no_answer_is_kept_each_read_of_what_is_held_would_have_been_a_question() -> None:
    """Experiment measurement/optimum, seed 1: a node that asks each 16 s for what it caches seemed to ask once in ten
    minutes, its `STALE`; it gave up its cache after two, and made it again, all the time."""
    known = statistics()
    for period in range(10):
        known.read_held(Want(CPU, 1.0), 600.0, 16.0 * period, 0.0)
    assert only(known.candidates(160.0, 160.0, (CPU,))).reads_s == pytest.approx(1 / 16)


def test_how_long_a_cache_would_have_been_worth_it_is_counted_until_it_is_not_or_until_it_is_made() -> None:
    known = statistics()
    known.read(Want(CPU, 1.0), 8.0, 3.0)

    def lasting(saved_s: float, cached: Iterable[Measurement] = ()) -> float:
        candidate = only(known.candidates(16.0, 16.0, frozenset(cached)))
        return known.lasting(candidate, 16.0, saved_s).worth_s

    assert [lasting(0.5), lasting(0.1), lasting(0.0), lasting(0.5)] == [16.0, 32.0, 0.0, 16.0]
    assert [lasting(0.5, [CPU]), lasting(0.5)] == [0.0, 16.0]


def test_who_asks_may_begin_before_the_nodes_on_the_way_where_that_costs_less_for_all() -> None:
    """Experiment measurement/optimum, two owners: caches near the root began first, and those who asked then found that
    caches of their own would save too little; together they took 1.55 times as many messages as the optimum. And
    measurement/near-queriers, 30 November 2026: while those were always waited for, many near readers did without a
    cache in common, and took 1.17 times as many messages."""

    def share(readers: int, way: float, own: int = 0, updates_s: float = 0.06) -> float:
        known = statistics()
        for number in range(readers + own):
            known.read(Want(CPU, 1.0), 8.0, 3.0, updates_s)
            if number < readers:
                known.passes(CPU, 8.0, NodeId(100 + number), way)
        return counted(only(known.candidates(16.0, 16.0, ())), 0.01)

    # Each reads once in 16 s: up to here that takes way / 16 messages a second, and a cache of its own takes 0.07.
    assert share(4, 1.0) == PASSING, "0.25 messages a second up to here, 0.21 for three caches more"
    assert share(5, 0.5) == 1.0, "0.16 and 0.28"
    assert share(1, 0.1) == PASSING, "one alone had better cache itself"
    assert share(4, 1.0, updates_s=0.08) == 1.0, "0.25 and 0.27"
    assert share(2, 4.0, own=2) == pytest.approx((1.0 + PASSING) / 2.0)
    assert share(0, 0.0, own=4) == 1.0
    assert share(READERS_MAX + 1, 16.0) == 1.0, "so many are not told apart"


def test_who_reads_no_more_is_no_reader_after_a_few_periods() -> None:
    known, seen = statistics(), []
    for period in range(6):
        known.read(Want(CPU, 1.0), 8.0, 3.0)
        known.passes(CPU, 8.0, NodeId(100), 1.0)
        known.passes(CPU, 0.5, NodeId(102), 1.0)  # wants it younger than caches have it
        if period == 0:
            known.passes(CPU, 8.0, NodeId(101), 1.0)
        seen.append(only(known.candidates(16.0 * (period + 1), 16.0, ())).readers)
    assert seen == [2, 2, 2, 1, 1, 1]


def test_updates_are_counted_while_it_is_cached_and_are_a_hint_before() -> None:
    known = statistics()
    known.read(Want(CPU, 1.0), 8.0, 3.0, 0.25)
    known.updated(Measurement(OWNER, "other"))
    for _ in range(28):
        known.updated(CPU)
    assert only(known.candidates(16.0, 16.0, (CPU,))).updates_s == pytest.approx(1.0), "between the hint and 1.75"
    assert known.updates_s(CPU) == pytest.approx(1.0)


def test_what_was_given_up_for_its_updates_is_not_cached_again_for_an_older_hint() -> None:
    """Experiment measurement/volatility, seed 1: the hint was of a time at which the value was calm, so that caches of
    values that were broken three times a second came and went with each decision."""
    known = statistics()
    known.read(Want(CPU, 1.0), 8.0, 3.0, 0.0)
    for _ in range(28):
        known.updated(CPU)
    risen = only(known.candidates(16.0, 16.0, (CPU,)))
    known.read(Want(CPU, 1.0), 8.0)
    given_up = only(known.candidates(32.0, 16.0, ()))
    assert given_up.updates_s == risen.updates_s == pytest.approx(0.875)
    known.read(Want(CPU, 1.0), 8.0, 3.0, 0.1)
    assert only(known.candidates(48.0, 16.0, ())).updates_s == 0.1, "it is calm again, says who asks"


def test_caches_below_count_until_they_have_not_been_heard_of_twice() -> None:
    known = statistics()
    known.read(Want(CPU, 4.0), 60.0, 3.0, 0.1)
    known.cache_below(NodeId(2), SeenCache(Want(CPU, 2.0), 5.0, 0.5, 10.0))
    known.cache_below(NodeId(3), SeenCache(Want(CPU, 1.0), 9.0, 0.75, 20.0))
    candidate = only(known.candidates(21.0, 16.0, ()))
    assert (candidate.want, candidate.update_s) == (Want(CPU, 1.0), 5.0), "so that it can provide for all"
    assert (candidate.below_s, candidate.updates_s) == (1.25, 0.75)
    known.cache_below(NodeId(3), SeenCache(Want(CPU, 1.5), 9.0, 0.25, 30.0))
    assert only(known.candidates(31.0, 16.0, ())).below_s == 0.75, "it has said it anew"
    alone = only(known.candidates(10.0 + 2 * RENEWED_S + 1.0, 16.0, ()))
    assert (alone.want.half_width, alone.below_s) == (1.5, 0.25)
    for period in range(20):
        known.candidates(500.0 + 16.0 * period, 16.0, ())
    assert not len(known)


def test_statistics_and_the_caches_below_have_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "SEEN_MAX", 3)
    monkeypatch.setattr(statistics_module, "CHILDREN_MAX", 2)
    woken: list[None] = []
    known = Statistics(RENEWED_S, lambda: woken.append(None))
    for number in range(5):
        known.read(Want(Measurement(OWNER, f"m{number}"), 1.0), 8.0)
    assert len(known) == len(woken) == 3
    first = Measurement(OWNER, "m0")
    for holder in (2, 3, 4, 2):
        known.cache_below(NodeId(holder), SeenCache(Want(first, 1.0), 5.0, 1.0, 0.0))
    of = {each.want.measurement: each for each in known.candidates(1.0, 1.0, ())}
    assert of[first].below_s == 2.0


# Deciding


def candidate(
    name: str = "cpu",
    reads_s: float = 1.0,
    cost: float = 2.0,
    updates_s: float = 0.1,
    below_s: float = 0.0,
    *,
    is_cached: bool = False,
    group: str = "",
    worth_s: float = PAYS_WITHIN_S,
) -> CacheCandidate:
    """A measurement that is worth it, unless it is said otherwise."""
    want = Want(Measurement(OWNER, name), 1.0)
    return CacheCandidate(want, 5.0, reads_s, cost, updates_s, below_s, is_cached, group or name, worth_s)


rates = st.floats(0.0, 10.0)
candidates = st.lists(
    st.builds(candidate, st.uuids().map(str), rates, rates, rates, rates, is_cached=st.booleans()), max_size=12
)


@given(candidates, st.integers(0, 6), st.floats(0.1, 20.0), st.floats(0.0, 2.0))
def test_budgets_are_kept_and_nothing_is_cached_that_costs_more_than_it_saves(
    several: list[CacheCandidate], values_max: int, updates_max: float, vouching_s: float
) -> None:
    chosen = decide(several, values_max, updates_max, lambda each: vouching_s)
    assert len(chosen) <= values_max
    assert sum(each.below_s for each in chosen.values()) <= updates_max
    for measurement, each in chosen.items():
        assert measurement == each.want.measurement
        least = 0.0 if each.is_cached else SPLICE_MESSAGES / PAYS_WITHIN_S
        assert benefit(each, vouching_s) > least


@given(candidates, st.integers(0, 6), st.floats(0.1, 20.0))
def test_what_is_left_out_had_no_room_beside_what_is_better(
    several: list[CacheCandidate], values_max: int, updates_max: float
) -> None:
    chosen = decide(several, values_max, updates_max, lambda each: 0.0)

    def utility(each: CacheCandidate) -> float:
        return benefit(each, 0.0) / (each.below_s / updates_max + 1 / values_max) * (STAYS if each.is_cached else 1.0)

    for each in several if values_max else ():
        least = 0.0 if each.is_cached else SPLICE_MESSAGES / PAYS_WITHIN_S
        if each.want.measurement in chosen or benefit(each, 0.0) <= least:
            continue
        better = [other for other in chosen.values() if utility(other) >= utility(each)]
        is_full = len(better) == values_max
        assert is_full or sum(other.below_s for other in better) + each.below_s > updates_max


def test_what_is_cached_counts_for_more_than_what_may_replace_it() -> None:
    here = candidate("here", 1.0, is_cached=True)
    little_better, much_better = candidate("new", 1.1), candidate("new", 1.5)
    assert set(decide([little_better, here], 1, 10.0, lambda each: 0.0)) == {here.want.measurement}
    assert set(decide([much_better, here], 1, 10.0, lambda each: 0.0)) == {much_better.want.measurement}


def of_one_read(*updates_s: float, is_cached: bool = False) -> list[CacheCandidate]:
    """Values that are read together, 0.2 messages a second for each, and are updated so often."""
    return [
        candidate(f"m{number}", 0.1, 2.0, each, is_cached=is_cached, group="one")
        for number, each in enumerate(updates_s)
    ]


def test_a_part_of_what_is_read_together_is_cached_only_where_it_pays_though_the_rest_is_read() -> None:
    """Experiments measurement/cache-size and near-owners: caches too small for a READ cost more than they saved."""
    assert len(decide(of_one_read(*[0.1] * 10), 10, 10.0, lambda each: 0.0)) == 10
    assert not decide(of_one_read(*[0.1] * 10), 5, 10.0, lambda each: 0.0), "half of 0.2 is not more than 0.1"
    assert len(decide(of_one_read(*[0.01] * 10), 5, 10.0, lambda each: 0.0)) == 5


def test_what_is_read_together_is_given_up_together() -> None:
    """Experiment measurement/volatility: where half of the values were given up, the READ went on for these, and the
    updates of the others were paid as well."""
    some = of_one_read(*[0.15] * 7, *[5.0] * 3, is_cached=True)
    assert not decide(some, 10, 10.0, lambda each: 0.0), "0.7 of 0.2 is less than 0.15"
    some = of_one_read(*[0.13] * 7, *[5.0] * 3, is_cached=True)
    assert len(decide(some, 10, 10.0, lambda each: 0.0)) == 7


def test_the_group_that_saves_most_comes_first_and_another_one_takes_what_is_left() -> None:
    better = [candidate(f"b{number}", 1.0, group="b") for number in range(4)]
    worse = [candidate(f"w{number}", 0.9, group="w") for number in range(4)]
    assert (
        len(decide([*worse, *better], 6, 10.0, lambda each: 0.0).keys() & {each.want.measurement for each in better})
        == 4
    )
    assert len(decide([*worse, *better], 6, 10.0, lambda each: 0.0)) == 6


def test_a_cache_that_saves_a_little_stays_and_is_not_made() -> None:
    little = SPLICE_MESSAGES / PAYS_WITHIN_S / 2
    for is_cached in (True, False):
        some = candidate(reads_s=little, cost=1.0, updates_s=0.0, is_cached=is_cached)
        assert bool(decide([some], 10, 10.0, lambda each: 0.0)) is is_cached


@pytest.mark.parametrize(("worth_s", "is_made"), [(0.0, False), (15.0, False), (17.0, True), (1e6, True)])
def test_a_cache_is_made_once_it_would_have_saved_what_that_costs(worth_s: float, is_made: bool) -> None:
    """Experiments measurement/traffic and volatility: all nodes on a way made their caches at once, or by chance."""
    saves = SPLICE_MESSAGES / 16.0
    some = candidate(reads_s=saves, cost=1.0, updates_s=0.0, worth_s=worth_s)
    assert bool(decide([some], 10, 10.0, lambda each: 0.0)) is is_made


def test_updates_for_those_below_are_a_benefit_and_take_of_the_budget() -> None:
    between = candidate("between", 0.0, 0.0, 1.0, 3.0)
    assert benefit(between, 0.5) == pytest.approx(3.0 * RELIEF - 1.5)
    dear = candidate("dear", 3.0, 1.0, 0.0, 6.0)
    cheap = candidate("cheap", 8.0, 1.0, 0.0, 0.0)
    assert list(decide([dear, cheap], 10, 5.0, lambda each: 0.0)) == [cheap.want.measurement]
    assert set(decide([dear, cheap], 10, 6.0, lambda each: 0.0)) == {cheap.want.measurement, dear.want.measurement}


# Rates


@given(
    st.lists(st.floats(-100, 100), max_size=60),
    st.floats(0.0, 50.0),
    st.floats(0.1, 5.0),
)
def test_a_rate_is_that_of_a_holder_of_such_bounds(values: list[float], half_width: float, step_s: float) -> None:
    samples = [(10.0 + step_s * number, value) for number, value in enumerate(values)]
    updates, bounds = 0, None
    for _, value in samples:
        if bounds is None:
            bounds = (value - half_width, value + half_width)
        elif not bounds[0] <= value <= bounds[1]:
            bounds = (value - half_width, value + half_width)
            updates += 1
    expected = updates / (step_s * (len(values) - 1)) if len(values) > 1 else 0.0
    assert updates_s(samples, half_width) == pytest.approx(expected)


def test_a_rate_of_nothing_is_none_and_of_samples_at_one_moment_it_is_finite() -> None:
    assert updates_s([], 1.0) == updates_s([(1.0, 5.0)], 1.0) == 0.0
    assert updates_s([(1.0, 5.0), (1.0, 7.0)], 1.0) == pytest.approx(1000.0)
    assert around(Interval(5.0, 5.0), 5.0, 1.0).holds(6.0)


# Reasons to hold a value


class NoSplicing:
    """Notes what is sought over T."""

    def __init__(self) -> None:
        self.sought: dict[Measurement, tuple[Want, float]] = {}
        self.provided: set[Measurement] = set()

    def seek(self, wants: Iterable[Want], update_s: float) -> None:
        self.sought |= {want.measurement: (want, update_s) for want in wants}

    def forget(self, measurements: Iterable[Measurement]) -> None:
        for measurement in measurements:
            self.sought.pop(measurement, None)

    def provides(self, measurement: Measurement) -> bool:
        return measurement in self.provided


class Reasons:
    """A node's reasons, and what it asks for because of them."""

    def __init__(self, placing: str) -> None:
        self.splicing, self.effects, self.left = NoSplicing(), list[Effect](), list[bool]()
        self.caching = Caching(NodeId(1), 1, Terms())
        config = MeasurementConfig.model_validate({"placing": placing})
        splicing = cast(Splicing, self.splicing)
        self.host = FakeHost(1)
        left = partial(self.left.append, True)
        self.wants = HeldWants(self.host, config, self.caching, splicing, self.effects.extend, left)

    def asked(self) -> list[tuple[float, float]]:
        """Half-widths and intervals of all that owners were asked for, since the last time."""
        effects, self.effects[:] = list(self.effects), []
        asks = [each.message for each in effects if isinstance(each, SendTo) and isinstance(each.message, CacheAsk)]
        return [(want.half_width, ask.update_s) for ask in asks for want in ask.wants]


def test_a_value_is_held_as_the_stricter_of_two_reasons_wants_it() -> None:
    reasons = Reasons("owners")
    reasons.wants.hold("watched", [(Want(CPU, 2.0), 4.0)])
    assert reasons.asked() == [(2.0, 4.0)]
    reasons.wants.hold("cached", [(Want(CPU, 3.0), 1.0)])
    assert reasons.asked() == [(2.0, 1.0)], "the narrower bounds, the shorter interval"
    reasons.wants.hold("cached", [(Want(CPU, 1.0), 1.0)])
    assert reasons.asked() == [(1.0, 1.0)]
    reasons.wants.hold("watched", [(Want(CPU, 2.5), 4.0)])
    assert reasons.asked() == [], "nothing has changed"
    assert reasons.wants.cached() == {CPU}
    reasons.wants.let_go("cached", [CPU])
    assert reasons.asked() == [(2.5, 4.0)]
    assert reasons.wants.cached() == set()
    assert CPU in reasons.caching.holder.wanted
    reasons.wants.let_go("watched", [CPU])
    assert not reasons.caching.holder.wanted
    reasons.effects.clear()
    reasons.wants.let_go("watched", [CPU])
    assert not reasons.effects


@pytest.mark.parametrize(
    ("placing", "is_over_tree"), [("owners", False), ("squares", False), ("tree", True), ("auto", True)]
)
def test_where_a_value_is_sought_goes_by_the_placing(placing: str, is_over_tree: bool) -> None:
    whys: tuple[Why, ...] = ("watched", "asked", "cached")
    for why in whys:
        reasons = Reasons(placing)
        several = [Measurement(NodeId(owner), "cpu") for owner in range(10, 11 + FEW_OWNERS)]
        reasons.wants.hold(why, [(Want(each, 2.0), 4.0) for each in several])
        assert bool(reasons.splicing.sought) is is_over_tree
        assert bool(reasons.asked()) is not is_over_tree


def test_of_few_owners_clients_values_come_from_these_until_there_are_more() -> None:
    """In a small ring nobody has to believe a third node, and little could be shared."""
    reasons = Reasons("auto")
    few = [Measurement(NodeId(owner), "cpu") for owner in range(10, 10 + FEW_OWNERS)]
    reasons.wants.hold("asked", [(Want(each, 2.0), 4.0) for each in few])
    assert not reasons.splicing.sought and len(reasons.asked()) == FEW_OWNERS
    reasons.wants.hold("asked", [(Want(CPU, 2.0), 4.0)])
    assert reasons.splicing.sought.keys() == {CPU}
    reasons.host.time_s += DIRECT_S + 1.0
    reasons.wants.look()
    assert reasons.splicing.sought.keys() == {CPU, *few}


def test_what_caches_do_not_keep_young_enough_for_a_client_its_owner_provides_for_a_while() -> None:
    reasons = Reasons("auto")
    reasons.wants.hold("cached", [(Want(CPU, 2.0), 4.0)])
    reasons.wants.late([CPU])
    assert reasons.splicing.sought and not reasons.asked(), "a question is asked when it is too old"
    reasons.wants.hold("watched", [(Want(CPU, 1.0), 1.0)])
    assert reasons.splicing.sought == {CPU: (Want(CPU, 1.0), 1.0)}
    reasons.wants.late([CPU])
    assert not reasons.splicing.sought
    assert reasons.asked() == [(1.0, 1.0)]
    reasons.host.time_s += DIRECT_S
    reasons.wants.look()
    assert not reasons.splicing.sought
    reasons.host.time_s += 1.0
    reasons.wants.look()
    assert reasons.splicing.sought == {CPU: (Want(CPU, 1.0), 1.0)}
    reasons.wants.late([CPU])
    reasons.wants.let_go("watched", [CPU])
    reasons.wants.let_go("cached", [CPU])
    reasons.wants.hold("cached", [(Want(CPU, 2.0), 4.0)])
    assert reasons.splicing.sought, "nothing is remembered of what nobody wants"


def test_what_others_hold_from_here_goes_on_until_it_is_decided_that_it_ends() -> None:
    """When a client went away, whoever held the value from here was told at once that it is gone."""
    reasons = Reasons("tree")
    reasons.wants.hold("watched", [(Want(CPU, 1.0), 1.0)])
    reasons.splicing.provided.add(CPU)
    reasons.wants.let_go("watched", [CPU])
    assert reasons.splicing.sought == {CPU: (Want(CPU, 1.0), 1.0)}
    assert reasons.wants.cached() == {CPU} and not reasons.wants.is_needed(CPU)
    assert reasons.left, "the decider hears of it, though nobody has asked for anything"
    reasons.wants.let_go("cached", [CPU])
    assert not reasons.splicing.sought and not reasons.wants.cached()


def test_of_who_has_told_something_wrong_all_is_held_from_its_owners() -> None:
    reasons = Reasons("tree")
    reasons.wants.hold("cached", [(Want(CPU, 2.0), 4.0)])
    reasons.wants.avoid_caches([CPU, Measurement(NodeId(9), "another")], 600.0)
    assert not reasons.splicing.sought
    assert reasons.asked() == [(2.0, 4.0)]


def test_a_cache_stays_as_it_is_held_while_that_is_about_what_is_needed() -> None:
    decider = CacheDecider(FakeHost(1), MeasurementConfig(), Caching(NodeId(1), 1, Terms()))
    decider._cached = {CPU: (Want(CPU, 1.0), 4.0)}

    def terms(half_width: float, update_s: float) -> tuple[float, float]:
        found = CacheCandidate(Want(CPU, half_width), update_s, 1.0, 1.0, 0.0, 0.0, True, CPU)
        want, often_s = decider._terms(found)
        return want.half_width, often_s

    assert terms(1.0, 4.0) == terms(1.9, 7.9) == (1.0, 4.0)
    assert terms(0.9, 4.0) == (0.9, 4.0) and terms(1.0, 3.9) == (1.0, 3.9), "else it does not do"
    assert terms(2.1, 4.0) == (2.1, 4.0) and terms(1.0, 8.1) == (1.0, 8.1), "it costs more than is needed"
