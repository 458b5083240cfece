"""Selectivity against counting, and the way back from a normal form to a filter."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from peerd.lib.filter.errors import FilterTooLarge
from peerd.lib.filter.evaluate import matcher
from peerd.lib.filter.normal import normal_form
from peerd.lib.filter.parse import parse
from peerd.lib.filter.rewrite import node_of
from peerd.lib.filter.selectivity import Histogram, selectivity
from peerd.lib.filter.tree import Node
from peerd.lib.filter.values import View
from tests.support.examples import examples
from tests.support.filters import comparisons, events, naive, nodes, numbers


@settings(max_examples=examples(300))
@given(nodes(), events)
def test_a_normal_form_can_be_written_as_a_filter(node: Node, event: dict[str, Any]) -> None:
    try:
        again = node_of(normal_form(node))
    except FilterTooLarge:
        assume(False)
        raise
    assert (naive(again, event) is True) is (naive(node, event) is True)


def sample() -> list[dict[str, Any]]:
    random = Random(5)
    return [
        {
            "price": random.gauss(100, 20),
            "lots": random.choice([1, 1, 1, 1, 10, 100]),
            "sym": random.choice(["IBM", "IBX", "MSFT", "T"]),
            **({"note": "x"} if random.random() < 0.25 else {}),
        }
        for _ in range(4000)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "price < 100",
        "price BETWEEN 80 AND 120",
        "NOT price > 130 AND lots = 1",
        "lots >= 10",
        "price < 80 OR price > 120",
        "sym = 'IBM'",
        "sym >= 'J'",
        "note IS NOT NULL AND lots = 1",
        "note IS NULL",
        "price > 1000",
        "price < DECIMAL '90.5'",
        "TRUE",
        "FALSE",
    ],
)
def test_the_estimate_is_near_the_truth_where_attributes_are_independent(text: str) -> None:
    events = sample()
    histograms = {
        name: Histogram.of([event.get(name) for event in events], view)
        for name, view in [("price", View.NUMBER), ("lots", View.NUMBER), ("sym", View.TEXT), ("note", View.TEXT)]
    }
    node = parse(text)
    share = sum(map(matcher(node), events)) / len(events)
    assert selectivity(node, histograms) == pytest.approx(share, abs=0.15 if "sym" in text else 0.05)


@settings(max_examples=examples(200))
@given(nodes(comparisons(), leaves=4), st.lists(st.none() | numbers, max_size=20))
def test_an_estimate_is_a_share(node: Node, values: list[Any]) -> None:
    try:
        estimate = selectivity(node, {"a": Histogram.of(values, buckets=5)})
    except FilterTooLarge:
        return
    assert -1e-9 <= estimate <= 1.0
