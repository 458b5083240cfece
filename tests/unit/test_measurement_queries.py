"""Queries while they are answered: T+, T? and T-, refinement, budgets, aggregates, order."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.ids import NodeId, format_id
from peerd.lib.filter import FilterError, Histogram, matcher
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.querying.answer import BoundedValue, QueryAnswer
from protocols.measurement.querying.explain import explain_cost, explain_plan
from protocols.measurement.querying.running import PAIRS_MAX, REFINE_ROUNDS_MAX
from protocols.measurement.querying.statement import parse_statement
from protocols.measurement.readings import NodeEntry, NoReading, Reading
from tests.support.examples import examples
from tests.support.queried_nodes import QueriedNodes, node, of, rtt, running

WEB, DB = {"role": "web"}, {"role": "db"}


def ids(answer: QueryAnswer, certainty: str | None = None) -> list[int]:
    """The numbers of the nodes in an answer whose first column is the node."""
    return [int(str(row.values[0]), 16) for row in answer.rows if certainty in (None, row.certainty)]


def test_which_of_my_machines_are_idle_and_near_that_site() -> None:
    nodes = [node(1, WEB, ["cpu", rtt(9)]), node(2, WEB, ["cpu", rtt(9)]), node(3, WEB, ["cpu", rtt(9)]), node(9)]
    world = QueriedNodes(
        {(1, "cpu"): 0.2, (2, "cpu"): 0.9, (3, "cpu"): 0.1, (1, rtt(9)): 0.02, (2, rtt(9)): 0.02, (3, rtt(9)): 0.3}
    )
    answer = world.ask(
        "SELECT node, cpu, rtt TO '10.0.0.9' FROM nodes WHERE cpu < 0.5 AND rtt TO '10.0.0.9' < 100ms", nodes
    )
    assert (ids(answer), answer.sure, answer.maybe, answer.ruled_out) == ([1], 1, 0, 3)
    cpu, near = answer.rows[0].values[1:]
    assert isinstance(cpu, BoundedValue) and cpu.low <= 0.2 <= cpu.high and cpu.high - cpu.low <= 0.1000001
    assert isinstance(near, BoundedValue) and near.low <= 0.02 <= near.high
    assert not answer.unmet and not answer.missing and answer.goodness == 1.0


def test_a_round_trip_is_the_same_from_either_end() -> None:
    nodes = [node(1, {}, ["cpu"]), node(9, {}, [rtt(1)])]
    answer = QueriedNodes({(9, rtt(1)): 0.02}).ask(
        f"SELECT node FROM nodes WHERE rtt TO '{format_id(NodeId(9))}' < 1s", nodes
    )
    assert ids(answer) == [1]


def test_nothing_is_read_of_nodes_that_their_tags_rule_out() -> None:
    world = QueriedNodes({(1, "cpu"): 0.2, (2, "cpu"): 0.2})
    world.ask("SELECT node, memory FROM nodes WHERE role = 'web' AND cpu < 0.5", [node(1, WEB), node(2, DB), node(3)])
    assert {int(want.measurement.owner) for want in world.wants} == {1}


def test_a_row_without_the_column_does_not_belong_negated_or_not() -> None:
    nodes = [node(1, WEB), node(2)]
    for condition in ("role = 'db'", "NOT role = 'web'"):
        answer = QueriedNodes({}).ask(f"SELECT node FROM nodes WHERE {condition}", nodes)
        assert (answer.sure, answer.maybe, answer.ruled_out) == (0, 0, 2)


def test_who_measures_of_all_others_lists_the_name_without_a_peer() -> None:
    nodes = [node(1, {}, ["rtt@"]), node(2, {}, ["rtt@"])]
    answer = QueriedNodes({(1, rtt(2)): 0.02}).ask("SELECT node FROM nodes WHERE rtt TO '10.0.0.2:7000' < 1s", nodes)
    assert (ids(answer, "yes"), answer.ruled_out) == ([1], 1), "and of itself it measures nothing"


def test_a_tag_with_the_name_of_a_measurement_can_be_reached() -> None:
    nodes = [node(1, {"cpu": "arm"}), node(2, {"cpu": "amd"})]
    assert ids(QueriedNodes({}).ask("SELECT node FROM nodes WHERE tag.cpu = 'arm'", nodes)) == [1]


def test_first_bounds_are_those_of_within_or_usual_ones() -> None:
    def widths(text: str) -> dict[str, float]:
        return {want.measurement.name: want.half_width for want in running(text, [node(1)]).needs()}

    assert widths("SELECT cpu, memory FROM nodes WITHIN cpu 0.2, 0.3") == {"cpu": 0.2, "memory": 0.3}
    assert widths("SELECT cpu FROM nodes WHERE memory < 0.5") == {"memory": 0.05, "cpu": 0.05}
    assert widths("SELECT COUNT(*) FROM nodes") == {}


def test_with_a_budget_what_is_only_shown_is_read_of_rows_that_are_left() -> None:
    nodes, values = [node(1), node(2)], {(1, "cpu"): 0.1, (2, "cpu"): 0.9, (1, "memory"): 0.5, (2, "memory"): 0.5}
    world = QueriedNodes(values)
    answer = world.ask("SELECT node, memory FROM nodes WHERE cpu < 0.5 BUDGET 6", nodes)
    assert [(int(w.measurement.owner), w.measurement.name) for w in world.wants] == [
        (1, "cpu"),
        (2, "cpu"),
        (1, "memory"),
    ]
    assert answer.messages == 6 and not answer.unmet


def test_a_spent_budget_is_said() -> None:
    nodes = [node(number) for number in (1, 2, 3)]
    world = QueriedNodes({(number, "cpu"): 0.1 for number in (1, 2, 3)})
    answer = world.ask("SELECT node, cpu FROM nodes WHERE cpu < 0.5 REQUIRE 1 BUDGET 5", nodes)
    assert (answer.messages, answer.sure, answer.maybe) == (4, 2, 1)
    assert [(unread.measurement.owner, unread.reason) for unread in answer.missing] == [
        (3, "the budget of 5 messages is spent")
    ]
    assert answer.unmet == {"REQUIRE": "0.667 of the rows are certain; the budget of 5 messages is spent"}


def test_what_is_cached_here_costs_no_budget() -> None:
    query = running("SELECT cpu FROM nodes BUDGET 0", [node(1), node(2)], cached=lambda each, half: each.owner == 2)
    assert [int(want.measurement.owner) for want in query.needs()] == [2]


def test_who_does_not_answer_is_missing_and_its_row_is_a_maybe() -> None:
    answer = QueriedNodes({(1, "cpu"): 0.1}).ask("SELECT node, cpu FROM nodes WHERE cpu < 0.5", [node(1), node(2)])
    assert (ids(answer, "yes"), ids(answer, "maybe")) == ([1], [2])
    assert answer.rows[1].values[1] is None and answer.rows[1].confidence == 0.5
    assert [(unread.measurement.owner, unread.measurement.name, unread.reason) for unread in answer.missing] == [
        (2, "cpu", "it does not answer")
    ]


def test_a_stale_value_makes_no_row_certain() -> None:
    world = QueriedNodes({(1, "cpu"): 0.1, (2, "cpu"): 0.9}, stale=frozenset({(1, "cpu"), (2, "cpu")}))
    answer = world.ask("SELECT node, cpu FROM nodes WHERE cpu < 0.5 STALE 5s", [node(1), node(2)])
    assert (answer.sure, answer.maybe) == (0, 2)
    assert isinstance(shown := answer.rows[0].values[1], BoundedValue) and shown.stale
    assert answer.unmet == {"STALE": "2 of 2 values are older, up to 1.0 s"}


def test_wider_bounds_than_asked_for_are_said_and_not_asked_for_again_and_again() -> None:
    world = QueriedNodes({(1, "cpu"): 0.5}, narrowest=0.15)
    answer = world.ask("SELECT node, cpu FROM nodes WHERE cpu < 0.5 WITHIN 0.1 REQUIRE 1", [node(1)])
    assert answer.unmet == {
        "WITHIN": "1 of 1 values came with wider bounds",
        "REQUIRE": "0.000 of the rows are certain; no more can be told",
    }
    assert len(world.wants) == 1


def test_refinement_halves_bounds_of_those_rows_first_that_probably_belong() -> None:
    nodes = [node(number) for number in (1, 2, 3)]
    query = running("SELECT node FROM nodes WHERE cpu < 0.5 WITHIN 0.1 REQUIRE 0.3", nodes)
    lows = {1: 0.45, 2: 0.31, 3: 0.4}
    assert len(query.needs()) == 3
    query.told(
        Reading(of(number, "cpu"), low, Interval(low, low + 0.2), 0.0, False, NodeId(number), 0, 2)
        for number, low in lows.items()
    )
    assert [round(row.confidence, 6) for row in query.answer().rows] == [0.25, 0.95, 0.5]
    [want] = query.needs()
    assert (want.measurement, round(want.half_width, 6)) == (of(2, "cpu"), 0.05)
    query.told([Reading(want.measurement, 0.4, Interval(0.35, 0.45), 0.0, False, NodeId(2), 0, 2)])
    assert not query.needs()
    assert (round(query.answer().goodness, 6), query.answer().messages, query.answer().rounds) == (0.333333, 8, 2)


def test_a_value_that_could_not_be_refined_is_not_missing() -> None:
    query = running("SELECT node, cpu FROM nodes WHERE cpu < 0.5", [node(1)])
    query.needs()
    query.told([Reading(of(1, "cpu"), 0.5, Interval(0.45, 0.55), 0.0, False, NodeId(1), 0, 2)])
    [want] = query.needs()
    query.told([NoReading(want.measurement, "it does not answer", 2)])
    assert not query.needs()
    assert (query.answer().missing, query.answer().maybe, query.answer().messages) == ((), 1, 4)


def test_confidence_from_history() -> None:
    history = Histogram.of([0.41] * 90 + [0.59] * 10 + [0.0] * 500)
    query = running("SELECT node FROM nodes WHERE cpu < 0.5 WITHIN 0.1", [node(1)], history=lambda measurement: history)
    query.needs()
    query.told([Reading(of(1, "cpu"), 0.5, Interval(0.4, 0.6), 0.0, False, NodeId(1))])
    assert query.answer().rows[0].confidence > 0.75


# --- properties -----------------------------------------------------------------------------------------------------

CONDITIONS = [
    "cpu < 0.5",
    "NOT cpu < 0.5",
    "cpu BETWEEN 0.3 AND 0.6",
    "cpu NOT IN [0.3, 0.6)",
    "cpu < 0.5 AND memory > 0.4",
    "cpu < 0.5 OR NOT (memory > 0.4 AND cpu <> 0.7)",
    "role = 'web' AND (cpu > 0.9 OR memory <= 0.5)",
    "NOT role = 'web' OR cpu = 0.5",
    "cpu IN (0.25, 0.5) OR memory IS NULL",
    "role IS NOT NULL AND cpu >= 0.5",
]
SHARES = st.integers(0, 16).map(lambda value: value / 16)


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[NodeEntry], QueriedNodes]:
    """Some nodes, not all of which measure all, and not all of which answer."""
    nodes, values = [node(90, DB)], {(90, "cpu"): draw(SHARES), (90, "memory"): draw(SHARES)}
    for number in range(1, draw(st.integers(1, 7)) + 1):
        tags = draw(st.sampled_from([WEB, DB, {}]))
        measurements = draw(st.sampled_from([("cpu", "memory"), ("cpu",), ("cpu", "memory")]))
        nodes.append(node(number, tags, measurements))
        for name in measurements:
            if draw(st.integers(0, 9)):
                values[number, name] = draw(SHARES)
    return nodes, QueriedNodes(values, seed=draw(st.integers(0, 99)), narrowest=draw(st.sampled_from([0.0, 0.0, 0.03])))


def true_row(entry: NodeEntry, world: QueriedNodes) -> dict[str, Any]:
    """The node with its true values; those of who does not answer can be anything, and are 0.5 here."""
    measured = {name: world.values.get((int(entry.id), name), 0.5) for name in entry.measurements}
    return {"node": format_id(entry.id), **entry.tags, **measured}


OPTIONS = st.sampled_from(["", "WITHIN 0.1", "WITHIN 0.3 REQUIRE 0.8", "BUDGET 9", "WITHIN 0.2 REQUIRE 1 BUDGET 15"])


@given(rings(), st.sampled_from(CONDITIONS), OPTIONS)
@settings(max_examples=examples(300), deadline=None)
def test_every_row_of_t_plus_belongs_and_none_of_t_minus_does(
    ring: tuple[list[NodeEntry], QueriedNodes], condition: str, options: str
) -> None:
    nodes, world = ring
    statement = parse_statement(f"SELECT node FROM nodes WHERE {condition} {options}")
    query, holds = running(statement.text, nodes), matcher(statement.where)
    belongs = {int(entry.id) for entry in nodes if holds(true_row(entry, world))}
    asked, rounds = 0, 0
    while wants := query.needs():
        asked += 2 * len({want.measurement.owner for want in wants})
        rounds += 1
        assert statement.budget is None or asked <= statement.budget
        query.told(map(world.read, wants))
    answer = query.answer()
    assert rounds == answer.rounds <= REFINE_ROUNDS_MAX + 2
    assert set(ids(answer, "yes")) <= belongs <= set(ids(answer))
    assert (answer.sure, answer.maybe) == (len(ids(answer, "yes")), len(ids(answer, "maybe")))
    assert answer.sure + answer.maybe + answer.ruled_out == len(nodes)
    if not answer.missing and not world.narrowest and statement.budget is None and statement.require is not None:
        touching = any(value in (0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9) for value in world.values.values())
        assert touching or "REQUIRE" not in answer.unmet or answer.rounds > REFINE_ROUNDS_MAX


AGGREGATES = "COUNT(*), SUM(cpu), MEAN(cpu), MIN(cpu), MAX(cpu)"


def exact(function: str, values: list[float]) -> float | None:
    """An aggregate of true values."""
    if function == "COUNT":
        return len(values)
    if not values:
        return None
    return {"SUM": sum(values), "MIN": min(values), "MAX": max(values), "MEAN": sum(values) / len(values)}[function]


@given(rings(), st.sampled_from(["memory < 0.5", "cpu > 0.4 OR memory > 0.4", "cpu >= 0"]), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_aggregates_contain_the_truth(
    ring: tuple[list[NodeEntry], QueriedNodes], condition: str, grouped: bool
) -> None:
    nodes, world = ring
    by = "role, " if grouped else ""
    text = f"SELECT {by}{AGGREGATES} FROM nodes WHERE {condition} {'GROUP BY role' if grouped else ''} WITHIN 0.2"
    world.values = {(number, name): 0.5 for number in range(1, 8) for name in ("cpu", "memory")} | dict(world.values)
    statement = parse_statement(text)
    answer = world.run(running(statement.text, nodes))
    holds = matcher(statement.where)
    true: dict[str | None, list[float]] = {} if grouped else {None: []}
    for event in (true_row(entry, world) for entry in nodes):
        if holds(event):
            true.setdefault(event.get("role") if grouped else None, []).append(event["cpu"])
    found = {(row.values[0] if grouped else None): row for row in answer.rows}
    assert true.keys() <= found.keys()
    for key, row in found.items():
        assert key in true or row.certainty == "maybe"
        for function, value in zip(("COUNT", "SUM", "MEAN", "MIN", "MAX"), row.values[grouped:], strict=True):
            truth = exact(function, true.get(None if key is None else str(key), []))
            if truth is not None:
                assert isinstance(value, BoundedValue), (function, truth)
                assert value.low - 1e-9 <= truth <= value.high + 1e-9, (function, truth, value)
                assert value.low <= value.value <= value.high


def test_aggregates_are_no_wider_than_they_have_to_be() -> None:
    """Two rows of T+ and two of T?, of which one probably belongs."""
    query = running("SELECT COUNT(*), SUM(x), MEAN(x), MIN(x), MAX(x) FROM nodes WHERE cpu < 0.5 WITHIN 1", RING)
    told: dict[str, list[tuple[float, float]]]
    told = {"cpu": [(0.1, 0.2), (0.2, 0.3), (0.4, 0.52), (0.48, 0.6)], "x": [(1, 2), (4, 5), (3, 4), (-9, 8)]}
    query.needs()
    query.told(
        Reading(of(number, name), low, Interval(low, high), 1.0, False, NodeId(number))
        for name, all_bounds in told.items()
        for number, (low, high) in enumerate(all_bounds, start=1)
    )
    [row] = query.answer().rows
    found = [(each.value, each.low, each.high) for each in row.values if isinstance(each, BoundedValue)]
    assert found == [(3, 2, 4), (8, -4, 19), (8 / 3, -4 / 3, 5), (1, -9, 2), (4, 4, 8)]


RING = [node(number, {}, ["cpu", "x"]) for number in (1, 2, 3, 4)]


# --- order ----------------------------------------------------------------------------------------------------------


def tau(order: list[int], exact_order: list[int]) -> float:
    """Kendall's tau: the share of pairs in the right order, less that of pairs in the wrong one."""
    place = {each: index for index, each in enumerate(exact_order)}
    pairs = [(place[a] < place[b]) for a, b in combinations(order, 2)]
    return (2 * sum(pairs) - len(pairs)) / max(1, len(pairs))


ORDERS = st.sampled_from(["cpu", "cpu DESC", "role, cpu DESC"])
LIMITS = st.sampled_from(["", "LIMIT 2", "LIMIT 2 WITHIN 0.2 REQUIRE 1"])


@given(rings(), st.sampled_from(["cpu >= 0", "memory < 0.5", "cpu < 0.6"]), ORDERS, LIMITS)
@settings(max_examples=examples(300), deadline=None)
def test_places_contain_the_true_place(
    ring: tuple[list[NodeEntry], QueriedNodes], condition: str, order: str, limit: str
) -> None:
    nodes, world = ring
    limit = limit if "WITHIN" in limit else f"{limit} WITHIN 0.2"
    statement = parse_statement(f"SELECT node FROM nodes WHERE {condition} ORDER BY {order} {limit}")
    answer = world.run(running(statement.text, nodes))
    number, holds = {entry.id: index for index, entry in enumerate(nodes)}, matcher(statement.where)

    def key(entry: NodeEntry) -> Any:
        row = true_row(entry, world)
        cpu = -row["cpu"] if "DESC" in order else row["cpu"]
        return ((row.get("role") is None, row.get("role") or "") if "role" in order else 0, cpu, number[entry.id])

    belong = [entry for entry in nodes if holds(true_row(entry, world))]
    truth = [int(entry.id) for entry in sorted(belong, key=key)]
    for row, each in zip(answer.rows, ids(answer), strict=True):
        assert row.places is not None
        if each in truth:
            assert row.places[0] <= truth.index(each) + 1 <= row.places[1]
    assert set(ids(answer, "yes")) <= set(truth[: statement.limit])


def test_a_row_that_may_be_absent_pushes_none_back() -> None:
    world = QueriedNodes({(2, "cpu"): 0.5, (1, "cpu"): 0.6, (1, "memory"): 0.1, (3, "cpu"): 0.9, (3, "memory"): 0.1})
    answer = world.ask(
        "SELECT node FROM nodes WHERE memory < 0.5 ORDER BY cpu LIMIT 1 WITHIN 0", [node(1), node(2), node(3)]
    )
    assert [(row.certainty, row.places) for row in answer.rows] == [("maybe", (1, 1))]
    assert (answer.sure, answer.maybe, answer.ruled_out) == (0, 2, 1)


def test_the_order_comes_nearer_to_the_exact_one_as_bounds_get_narrower() -> None:
    random = Random(26)
    nodes = [node(number) for number in range(1, 61)]
    world = QueriedNodes({(number, "cpu"): random.random() for number in range(1, 61)})
    exact_order = sorted(range(1, 61), key=lambda number: world.values[number, "cpu"])
    found = [
        tau(ids(world.ask(f"SELECT node FROM nodes ORDER BY cpu WITHIN {width}", nodes)), exact_order)
        for width in (1, 0.1, 0.01, 0)
    ]
    assert found == sorted(found) and found[1] > 0.7 and found[2] > 0.95 and found[3] == 1.0


def test_top_k_says_who_is_surely_in() -> None:
    nodes = [node(number) for number in (1, 2, 3, 4)]
    world = QueriedNodes({(1, "cpu"): 0.9, (2, "cpu"): 0.5, (3, "cpu"): 0.5, (4, "cpu"): 0.1}, narrowest=0.05)
    answer = world.ask("SELECT node, cpu FROM nodes ORDER BY cpu DESC LIMIT 2 WITHIN 0.05", nodes)
    assert [(row.certainty, row.places) for row in answer.rows] == [("yes", (1, 1)), ("maybe", (2, 3))]
    assert (answer.sure, answer.maybe, answer.ruled_out) == (1, 2, 1)


def test_top_k_refines_those_at_its_edge_only() -> None:
    nodes = [node(number) for number in (1, 2, 3, 4)]
    world = QueriedNodes({(1, "cpu"): 0.9, (2, "cpu"): 0.52, (3, "cpu"): 0.48, (4, "cpu"): 0.1})
    answer = world.ask("SELECT node, cpu FROM nodes ORDER BY cpu DESC LIMIT 2 WITHIN 0.1 REQUIRE 1", nodes)
    assert ids(answer, "yes") == [1, 2] and answer.goodness == 1.0
    assert {int(want.measurement.owner) for want in world.wants if want.half_width < 0.1} == {2, 3}


def test_any_so_many_rows_are_enough() -> None:
    nodes = [node(number) for number in (1, 2, 3)]
    world = QueriedNodes({(1, "cpu"): 0.1, (2, "cpu"): 0.5, (3, "cpu"): 0.2})
    answer = world.ask("SELECT node FROM nodes WHERE cpu < 0.5 LIMIT 2", nodes)
    assert ids(answer, "yes") == [1, 3] and len(answer.rows) == 2 and answer.rounds == 1


def test_within_without_a_name_is_about_the_sum_that_is_shown() -> None:
    nodes = [node(number, WEB if number < 6 else DB) for number in range(1, 11)]
    world = QueriedNodes({(number, "cpu"): 0.1 * number for number in range(1, 11)})
    answer = world.ask("SELECT SUM(cpu) FROM nodes WHERE role = 'web' WITHIN 0.5", nodes)
    assert {want.half_width for want in world.wants} == {0.1}, "a fifth for each of five nodes"
    [value] = answer.rows[0].values
    assert isinstance(value, BoundedValue) and value.low <= 1.5 <= value.high <= value.low + 1.0000001
    assert not answer.unmet
    for text, width in (("SUM(cpu) FROM nodes WITHIN cpu 0.5", 0.5), ("MEAN(cpu) FROM nodes WITHIN 0.5", 0.5)):
        world.wants.clear()
        world.ask(f"SELECT {text}", nodes)
        assert {want.half_width for want in world.wants} == {width}


def test_groups_can_be_sorted_by_an_aggregate() -> None:
    nodes = [node(1, WEB), node(2, DB), node(3, DB)]
    world = QueriedNodes({(1, "cpu"): 0.1, (2, "cpu"): 0.9, (3, "cpu"): 0.8})
    answer = world.ask("SELECT role, MEAN(cpu) FROM nodes GROUP BY role ORDER BY MEAN(cpu) DESC LIMIT 1", nodes)
    assert [(row.values[0], row.certainty) for row in answer.rows] == [("db", "yes")]


# --- joins ----------------------------------------------------------------------------------------------------------


def test_the_model_query_reads_pairs_only_of_nodes_that_are_left() -> None:
    nodes = [node(number, {}, ["cpu", *(rtt(other) for other in (1, 2, 3) if other != number)]) for number in (1, 2, 3)]
    cpu = {(1, "cpu"): 0.2, (2, "cpu"): 0.7, (3, "cpu"): 0.95}
    world = QueriedNodes(cpu | {(a, rtt(b)): 0.03 for a in (1, 2, 3) for b in (1, 2, 3) if a != b})
    answer = world.ask(
        "select r1.node, r2.node from region r1, region r2 where latency(r1.node, r2.node) < 100ms "
        "and cpu_load(r1.node) < 0.5 and cpu_load(r2.node) < 0.8",
        nodes,
    )
    assert [tuple(int(str(each), 16) for each in row.values) for row in answer.rows] == [(1, 2)]
    assert [want.measurement for want in world.wants if "@" in want.measurement.name] == [of(1, rtt(2))]
    assert (answer.sure, answer.maybe, answer.ruled_out) == (1, 0, 8)


def test_too_many_pairs_are_refused() -> None:
    nodes = [node(number) for number in range(1, 111)]
    query = running("SELECT a.node, b.node FROM nodes a, nodes b WHERE a.cpu < 1", nodes)
    query.told(map(QueriedNodes({(number, "cpu"): 0.1 for number in range(1, 111)}).read, query.needs()))
    with pytest.raises(FilterError, match=f"more than {PAIRS_MAX} pairs"):
        query.needs()


# --- EXPLAIN --------------------------------------------------------------------------------------------------------


def test_explain() -> None:
    def cached(measurement: object, half_width: float) -> bool:
        return measurement == of(1, "cpu") and half_width >= 0.05

    nodes = [node(1, WEB), node(2, WEB), node(3, DB)]
    statement = parse_statement("EXPLAIN ANALYZE SELECT node FROM nodes WHERE role = 'web' AND cpu < 0.5 BUDGET 100")
    query = running(statement.text, nodes, cached=cached)
    assert explain_plan(query) == (
        "nodes     2 of 3 are read",
        "read      cpu of 2, bounds +-0.05; 1 are cached here",
        "messages  at most 2 at first; with bounds half as wide at most 4",
        "refine    until 1 of rows are certain, at most 8 rounds",
        "budget    100 messages",
    )
    answer = QueriedNodes({(1, "cpu"): 0.1, (2, "cpu"): 0.1}).run(query)
    assert explain_cost(answer, query) == (
        "cost      4 messages in 1 rounds, about 286 bytes",
        "caches    0 of 2 values came from caches",
        "rows      T+ 2, T? 0, T- 1; 1.000 certain",
        "missing   0 values",
    )
