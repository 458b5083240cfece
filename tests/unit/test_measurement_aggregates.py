"""Aggregates inside the tree T: what partial ones mean, how bounds are split, and what a subtree tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import fsum, inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.ids import NodeId
from peerd.lib.filter.errors import FilterError
from peerd.lib.leases import Asks
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer, through_the_wire
from protocols.measurement.aggregates import subtree
from protocols.measurement.aggregates.budget import child_half_widths
from protocols.measurement.aggregates.messages import AggregateAsk, AggregateSpec, AggregateWord
from protocols.measurement.aggregates.own import OwnPart
from protocols.measurement.aggregates.partial import (
    COUNT_MAX,
    FUNCTIONS,
    NOTHING,
    PartialAggregate,
    merged,
    of_one,
    shown,
)
from protocols.measurement.aggregates.statements import tree_plan
from protocols.measurement.aggregates.subtree import HeldPartial, SubtreeAggregate, TellNode
from protocols.measurement.aggregates.tree import AggregateTree
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.words import BoundClaim, Known, Sample, Terms
from protocols.measurement.querying.statement import parse_statement
from tests.support.aggregate_world import AggregateWorld, spec_of
from tests.support.queried_nodes import node
from tests.support.sums import Parents, cost_of_sum, fan, ratios, star, walks

VALUES = st.integers(-1000, 1000).map(float)
CERTAINTIES = st.sampled_from([True, False, None])
TRUE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "SUM": fsum,
    "MEAN": fsum,
    "COUNT": len,
    "MIN": min,
    "MAX": max,
}
STAR = [None, *[0] * 11]
TWO_LEVELS = [None, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


@st.composite
def partials(draw: st.DrawFn) -> PartialAggregate:
    counted = draw(st.integers(0, 5))
    low, width = draw(VALUES), draw(st.integers(0, 50))
    interval = Interval(low, low + width) if counted and draw(st.booleans()) else None
    return PartialAggregate(interval, counted, counted + draw(st.integers(0, 3)), draw(VALUES))


# Partial aggregates


@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.tuples(VALUES, CERTAINTIES, st.booleans(), VALUES), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_the_true_aggregate_is_inside_whatever_a_condition_that_nobody_can_tell_is(
    function: str, nodes: list[tuple[float, bool | None, bool, float]], groups: int
) -> None:
    """``nodes``: values, whether their condition holds, what it is in truth where nobody can tell, and since when."""
    certain = [(value, each if function != "MEAN" else True, truth, at) for value, each, truth, at in nodes]
    parts = [of_one(function, value, each, at) for value, each, _, at in certain]
    whole = merged(function, [merged(function, parts[first::groups]) for first in range(groups)])
    counted = [(each, part) for each, part in zip(certain, parts, strict=True) if part.counted]
    belong = [value for (value, each, truth, _), _ in counted if (truth if each is None else each)]
    assert (whole.counted, whole.expected) == (len(counted), len(nodes))
    assert whole.basis == min(at for _, _, _, at in certain)
    if whole.interval is None:
        assert not belong
    elif belong or function not in ("MIN", "MAX"):
        assert whole.interval.holds(TRUE[function](belong))


@given(st.sampled_from(FUNCTIONS), partials(), partials(), partials())
def test_it_does_not_matter_in_which_order_parts_are_merged(
    function: str, one: PartialAggregate, two: PartialAggregate, three: PartialAggregate
) -> None:
    assert merged(function, [one, two]) == merged(function, [two, one])
    assert merged(function, [merged(function, [one, two]), three]) == merged(function, [one, two, three])
    assert merged(function, [one, NOTHING]) == merged(function, [one])
    assert merged(function, [one, two]).basis == min(one.basis, two.basis), "a merge is as old as its oldest part"


def test_sums_that_nobody_can_have_stay_numbers() -> None:
    huge = PartialAggregate(Interval(VALUE_MAX, VALUE_MAX), 1, 1, 0.0)
    assert merged("SUM", [huge] * 500).interval == Interval(VALUE_MAX, VALUE_MAX)


def test_more_nodes_than_a_word_can_count_are_told_as_that() -> None:
    many = PartialAggregate(Interval(0, 0), COUNT_MAX, COUNT_MAX, 0.0)
    told = merged("SUM", [many, many, PartialAggregate(None, 0, 1, 0.0)])
    assert (told.counted, told.expected) == (COUNT_MAX, COUNT_MAX), "else who passes it on would be to blame"


def test_no_bounds_that_are_asked_for_are_wider_than_may_be_said() -> None:
    for counts in ({1: COUNT_MAX, 2: 1}, {1: COUNT_MAX}):
        assert all(0.0 <= each <= VALUE_MAX for each in child_half_widths("SUM", VALUE_MAX, counts).values())
    root = SubtreeAggregate(AggregateSpec(FUNCTIONS.index("MEAN"), "level", "", VALUE_MAX, 12.0), 1, count(1), 0.0)
    root.own = PartialAggregate(Interval(1, 1), 1, 1, 20.0)
    root.children[NodeId(2)] = HeldPartial(partial=PartialAggregate(Interval(1, 1), COUNT_MAX, COUNT_MAX, 20.0))
    told = root.asked(NodeId(9), AggregateAsk(1, 1, root.spec, VALUE_MAX), 20.0, is_root=True)
    for _, message in (*told, *root.spread([NodeId(2)], 20.0)):
        assert through_the_wire(message) == message
    assert len(told) == 1


def test_a_word_with_a_value_of_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match="no node"):
        AggregateWord(bytes(8), 1, 1, 1, 1, 0.0, 0, 5, 0.0, Interval(1, 2))


def test_a_mean_is_a_sum_until_it_is_shown() -> None:
    assert shown("MEAN", PartialAggregate(Interval(10, 14), 4, 5, 0.0)) == Interval(2.5, 3.5)
    assert shown("SUM", PartialAggregate(Interval(10, 14), 4, 5, 0.0)) == Interval(10, 14)
    assert shown("MEAN", NOTHING) is None


@given(st.dictionaries(st.integers(), st.integers(1, 50), max_size=6), st.floats(0, 1e6))
def test_the_bounds_of_children_leave_room_for_a_filter_on_their_sum(counts: dict[int, int], half_width: float) -> None:
    widths = child_half_widths("SUM", half_width, counts)
    assert widths.keys() == counts.keys()
    assert sum(widths.values()) <= half_width * 0.91
    assert child_half_widths("MAX", half_width, counts) == dict.fromkeys(counts, half_width)


# What one node adds


def own(where: str, values: Mapping[str, float | None], name: str = "cpu", function: str = "SUM") -> PartialAggregate:
    """What a node with the tag role = web adds; of ``None`` its source does not answer."""

    def known(each: str) -> Known | None:
        value = values[each]
        return None if value is None else Known(BoundClaim(value, value, Interval(value, value), Sample(1, 1)), 5.0)

    part = OwnPart(AggregateSpec(FUNCTIONS.index(function), name, where, 0.0, 5.0))
    return part.of({"role": "web", "cpu": "a tag"}, dict.fromkeys(values), known, 7.0)


def test_a_node_adds_its_value_where_its_condition_holds() -> None:
    both = {"cpu": 0.5, "memory": 0.9}
    assert own("role = 'web'", both) == PartialAggregate(Interval(0.5, 0.5), 1, 1, 5.0)
    assert own("role = 'db'", both) == NOTHING, "it is not of the region"
    assert own("memory > 0.5", both).interval == Interval(0.5, 0.5)
    assert own("memory < 0.5", both) == PartialAggregate(Interval(0, 0), 1, 1, 5.0), "it is known to add nothing"
    assert own("tag.cpu = 'a tag'", both).interval == Interval(0.5, 0.5)
    assert own("", {"memory": 0.9}) == NOTHING, "it does not measure that"


def test_of_what_a_node_does_not_know_it_says_so() -> None:
    unknown = {"cpu": 0.5, "memory": None}
    assert own("memory > 0.5", unknown) == PartialAggregate(Interval(0, 0.5), 1, 1, 5.0)
    assert own("memory > 0.5", unknown, function="MAX") == PartialAggregate(None, 0, 1, 5.0)
    assert own("memory > 0.5", unknown, "", "COUNT").interval == Interval(0, 1)
    assert own("role = 'web'", {"cpu": None}) == PartialAggregate(None, 0, 1, 7.0), "expected, and not counted"


def test_what_is_no_condition_is_refused() -> None:
    with pytest.raises(FilterError):
        own("role = = 'web'", {"cpu": 1.0})


# A subtree


def leaf(half_width: float = 1.0, function: str = "SUM") -> SubtreeAggregate:
    """A node without children that has been up for long, and measures 10."""
    found = SubtreeAggregate(spec_of(function, half_width), 1, count(1), -100.0)
    found.own = of_one(function, 10.0, True, 0.0)
    return found


def ask(number: int = 1, boot: int = 1, half_width: float = 1.0) -> AggregateAsk:
    return AggregateAsk(boot, number, spec_of("SUM", half_width), half_width)


def words(told: list[TellNode]) -> list[tuple[int, AggregateWord]]:
    return [(int(each.to), each.message) for each in told if isinstance(each.message, AggregateWord)]


def sample(of: SubtreeAggregate, value: float, now: float) -> list[tuple[int, AggregateWord]]:
    return words(of.sampled(of_one("SUM", value, True, now), now))


def test_a_node_tells_at_once_and_then_when_its_bounds_are_broken() -> None:
    one = leaf()
    [(to, word)] = words(one.asked(NodeId(7), ask(), 0.0, is_root=False))
    assert (to, word.counted, word.expected, word.asked) == (7, 1, 1, 1)
    assert word.interval == Interval(9.0, 11.0)
    assert not sample(one, 10.9, 0.5)
    [(_, word)] = sample(one, 11.5, 1.0)
    assert word.interval is not None and word.interval.holds(11.5)
    assert word.since_s == 1.0 and word.age_s == 0.0


def test_without_news_it_says_so_that_it_is_there() -> None:
    one = leaf()
    one.asked(NodeId(7), ask(), 0.0, is_root=False)
    said = [now / 10 for now in range(1, 60) if sample(one, 10.0, now / 10)]
    assert said == pytest.approx([1.5, 3.0, 4.5], abs=0.11), "four times while it is not too old"


def test_who_is_not_the_parent_any_more_keeps_it_silent_for_as_long_as_it_may_be_counted_there() -> None:
    one = leaf()
    assert words(one.asked(NodeId(7), ask(), 0.0, is_root=False))
    assert not words(one.asked(NodeId(8), ask(), 1.0, is_root=False))
    assert not words(one.tick([], 6.6))
    assert [to for to, _ in words(one.tick([], 6.7))] == [8]
    assert not words(one.asked(NodeId(9), ask(), 7.0, is_root=True)), "nor does it answer as the root"


def test_who_has_not_told_another_meanwhile_may_go_back_at_once() -> None:
    one = leaf()
    one.asked(NodeId(7), ask(), 0.0, is_root=False)
    one.asked(NodeId(8), ask(), 1.0, is_root=False)
    assert [to for to, _ in words(one.asked(NodeId(7), ask(2), 2.0, is_root=False))] == [7]


def test_a_node_that_has_just_started_waits() -> None:
    new = SubtreeAggregate(spec_of(), 1, count(1), 0.0)
    new.own = of_one("SUM", 10.0, True, 0.0)
    assert not words(new.asked(NodeId(7), ask(), 1.0, is_root=False))


def test_a_question_goes_round_a_circle_once() -> None:
    one = leaf()
    one.asked(NodeId(7), ask(), 0.0, is_root=False)
    assert [int(each.to) for each in one.spread([NodeId(2), NodeId(3)], 0.0)] == [2, 3]
    assert not one.spread([NodeId(2), NodeId(3)], 0.1)
    assert one.spread([NodeId(2), NodeId(3)], 2.0)


def test_who_is_not_asked_any_more_forgets() -> None:
    one = leaf()
    one.asked(NodeId(7), ask(), 0.0, is_root=False)
    assert words(one.tick([], 9.0))
    one.tick([], 10.0)
    assert not one.askers
    assert not one.is_over(15.0), "it may still be counted by what it has told"
    assert one.is_over(16.0)


def test_a_word_that_answers_no_question_counts_for_nothing() -> None:
    root = leaf()
    root.asked(NodeId(9), ask(), 0.0, is_root=True)
    [asked] = [each.message for each in root.spread([NodeId(2)], 0.0)]
    assert isinstance(asked, AggregateAsk)
    fine: dict[str, Any] = {"asker_boot": 1, "asked": asked.number, "since_s": 0.0}
    for wrong in ({"asker_boot": 2}, {"asked": 99}):
        word = AggregateWord(key=root.key, boot=1, number=5, counted=9, expected=9, age_s=0.0, **fine | wrong)
        assert not root.heard(NodeId(2), word, 0.1)
    assert not root.heard(NodeId(3), AggregateWord(root.key, 1, 5, 1, asked.number, 0.0, 9, 9, 0.0), 0.1)
    assert root.known(0.1).counted == 1
    future = AggregateWord(root.key, 1, 5, 1, asked.number, 1e9, 9, 9, 0.0, Interval(1, 1))
    root.heard(NodeId(2), future, 0.1)
    assert root.known(0.1).counted == 10
    assert root.known(6.0).counted == 0, "no word is said later than it is heard"
    with pytest.raises(ValueError, match="cannot be counted"):
        AggregateWord(root.key, 1, 6, 1, 1, 0.0, 10, 9, 0.0)


# A tree of them, and whatever may happen


@pytest.mark.parametrize("stale_s", [5.0, 12.0])
def test_in_a_calm_tree_all_are_counted_in_time_with_four_words_each(stale_s: float) -> None:
    world = AggregateWorld(TWO_LEVELS, spec_of("MAX", 1e18, stale_s), 7)
    assert not world.run(3 * stale_s)
    world.looks = world.complete = 0
    before = sum(world.words.values())
    assert not world.run(10 * stale_s)
    assert world.complete == world.looks
    assert (sum(world.words.values()) - before) / 12 / 10 == pytest.approx(4.0, abs=0.3)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_nobody_is_counted_twice_or_with_a_value_that_is_too_old_whatever_happens(seed: int) -> None:
    rng = Random(seed)
    parents = [None, *[rng.randrange(max(0, each - 4), each) for each in range(1, 12)]]
    exact = rng.random() < 0.7
    spec = spec_of("SUM" if exact else rng.choice(("SUM", "MIN", "MAX")), 0.0 if exact else 1e6, 6.0)
    assert not AggregateWorld(parents, spec, seed, rng.choice((0.02, 0.05, 0.1))).run(60.0)


@pytest.mark.parametrize("mistake", ["parent", "start", "merge", "order"])
def test_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "parent":  # it tells its new parent at once
        monkeypatch.setattr(SubtreeAggregate, "_may_be_counted", lambda self, now: False)
    elif mistake == "start":
        init = SubtreeAggregate.__init__
        monkeypatch.setattr(
            SubtreeAggregate,
            "__init__",
            lambda self, spec, boot, numbers, at: init(self, spec, boot, numbers, -1e9),
        )
    elif mistake == "merge":  # as young as its youngest part
        real = merged
        monkeypatch.setattr(
            subtree,
            "merged",
            lambda function, parts: PartialAggregate(
                (of := real(function, parts)).interval,
                of.counted,
                of.expected,
                max((each.basis for each in parts if each.basis < inf), default=inf),
            ),
        )
    else:  # a word is dated when it comes
        monkeypatch.setattr(Asks, "said_at", lambda self, number, since_s: 1e9)
    found = []
    for seed in range(40):
        found = AggregateWorld(TWO_LEVELS, spec_of(), seed, 0.05).run(60.0)
        if found:
            break
    assert found


# Statements


def plan(text: str, nodes: int = 9) -> Any:
    found = tree_plan(parse_statement(text), [node(each, {"role": "web"}) for each in range(nodes)])
    return found and (found.spec.word, found.spec.name, found.spec.where, found.spec.half_width, found.expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SUM(cpu) FROM nodes WHERE role = 'web' WITHIN 0.5", ("SUM", "cpu", "role = 'web'", 0.5, 9)),
        ("SUM(cpu) FROM nodes WITHIN cpu 0.5", ("SUM", "cpu", "", 4.0, 9)),
        ("MEAN(cpu) FROM nodes", ("MEAN", "cpu", "", 0.05, 9)),
        ("MAX(cpu) FROM nodes WHERE memory > 0.5", ("MAX", "cpu", "memory > 0.5", 0.05, 9)),
        ("COUNT(*) FROM nodes WHERE cpu > 0.9 AND role = 'web'", ("COUNT", "", "cpu > 0.9 AND role = 'web'", 0.0, 9)),
        ("SUM(cpu) FROM nodes WHERE role = 'db'", ("SUM", "cpu", "role = 'db'", 0.05, 0)),
    ],
)
def test_one_aggregate_of_a_region_is_asked_of_the_tree(text: str, expected: object) -> None:
    assert plan(f"WATCH SELECT {text} STALE 10s") == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT cpu FROM nodes",
        "SELECT SUM(cpu), MAX(cpu) FROM nodes",
        "SELECT SUM(cpu) FROM nodes GROUP BY role",
        "SELECT COUNT(*) FROM nodes",
        "SELECT COUNT(*) FROM nodes WHERE role = 'web'",
        "SELECT MEAN(cpu) FROM nodes WHERE memory > 0.5",
        "SELECT SUM(cpu) FROM nodes STALE 4s",
        "SELECT SUM(cpu) FROM nodes BUDGET 10",
        "SELECT SUM(cpu) FROM nodes REQUIRE 0.5",
        "SELECT MAX(a.cpu) FROM nodes a JOIN nodes b ON a.cpu < 0.5",
    ],
)
def test_of_anything_else_values_are_read(text: str) -> None:
    assert plan(text) is None


# What a filter on a sum saves


@pytest.mark.parametrize(("parents", "passed_on"), [(star(60, 30, 4), 1.4), (fan(60, 4), 1.4)], ids=["star", "deep"])
def test_filters_on_sums_take_fewer_words_than_filters_on_parts(parents: Parents, passed_on: float) -> None:
    saved = ratios(cost_of_sum(parents, walks(60, 400, 1), 120.0))
    assert saved["fewer than parts passed on"] > passed_on
    assert saved["fewer at who asks"] > 20.0
    assert saved["fewer than parts told directly"] < 1.0, "it is who asks that is spared, and not the ring"


# Who asks


class Place:
    """Where a node is in T: below that one, or at the root."""

    def __init__(self, parent: PeerRef | None) -> None:
        self._parent = parent

    def parent(self) -> PeerRef | None:
        """The node above."""
        return self._parent

    def children(self) -> Mapping[NodeId, PeerRef]:
        """None."""
        return {}


@pytest.mark.parametrize(
    ("parent", "is_from_parent", "is_told"),
    [(7, True, True), (None, False, True), (None, True, False), (7, False, False), (8, True, False), (8, False, False)],
)
def test_only_the_parent_is_told_or_by_the_root_who_wants_to_know(
    parent: int | None, is_from_parent: bool, is_told: bool
) -> None:
    """Swarm seed 2126: a node that took itself for the root told its former parent, and was counted twice."""
    host, caching = FakeHost(1), Caching(NodeId(1), 1, Terms())
    place = Place(None if parent is None else peer(parent))
    tree = AggregateTree(host, place, NodeId(0), caching, {"walk": None}, dict, host.send)
    host.time_s = 100.0  # long after it has started
    caching.sampled({"walk": 3.0}, 100.0, 100.0)
    tree._on_ask(AggregateAsk(1, 1, spec_of("SUM"), 1.0, is_from_parent), peer(7))
    assert [(to.id, type(word)) for to, word in host.sent] == ([(peer(7).id, AggregateWord)] if is_told else [])
