"""A condition that every event meets is not what a subscription is kept by, once it is seen: ``class = 'STOCK'``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.subscribing.samples import SAMPLE_MIN
from protocols.pubsub.subscribing.selectivity import ASK_FEW_S, ASK_MIN_S
from protocols.pubsub.tree.cells import level
from tests.support.pubsub_rings import PubSubRing

SYMBOLS = ["".join(Random(number).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=4)) for number in range(40)]
CLASS, SYMBOL = 1, 2


LONG = (pytest.mark.long, pytest.mark.timeout(7200))
"""Half an hour was not enough on a machine with ten times as much to do as it has processors."""


class Stocks:
    """Events of one class; subscriptions that name it, a symbol, and a range of prices, or all but the class."""

    schema = "trades"

    def __init__(self, names_class: bool) -> None:
        self._names_class = names_class
        self._rng = Random(5)

    def document(self) -> dict[str, Any]:
        attributes = [{"name": "class", "type": "string"}, {"name": "symbol", "type": "string"}]
        return {
            "name": self.schema,
            "attributes": [*attributes, {"name": "price", "type": "int", "low": 0, "high": 10_000}],
        }

    def event(self) -> dict[str, Any]:
        rng = self._rng
        return {"class": "STOCK", "symbol": rng.choice(SYMBOLS), "price": rng.randrange(10_000)}

    def subscription(self) -> str:
        low = self._rng.randrange(8_000)
        text = f"symbol = '{self._rng.choice(SYMBOLS)}' AND price BETWEEN {low} AND {low + 2_000}"
        return f"class = 'STOCK' AND {text}" if self._names_class else text


class StockRing(PubSubRing):
    """A ring with that schema in place of the thesis's."""

    names_class = True

    def _declare(self) -> None:
        self.workload = Stocks(self.names_class)  # type: ignore[assignment]  # it is used as the other one is
        super()._declare()


class BestRing(StockRing):
    """The same, without the condition that every event meets."""

    names_class = False


@dataclass
class Cost:
    """What events have cost."""

    leaves: float
    """Visited by an event."""
    bytes: float
    """Sent for an event by all nodes: probes and deliveries."""
    processor_s: float


def installed(ring: PubSubRing) -> Iterator[tuple[int, int]]:
    """Attribute and level of the leaf of each piece."""
    for place in ring.simulation.live_nodes():
        for node in plugin_of(place).rendezvous.forest.nodes():
            if node.is_leaf:
                yield from ((node.place.tree.attribute, level(node.cell)) for _ in node.kept())


def levels_of(ring: PubSubRing, attribute: int) -> int:
    """How deep the tree of an attribute is."""
    nodes = (node for place in ring.simulation.live_nodes() for node in plugin_of(place).rendezvous.forest.nodes())
    return max(
        (level(node.cell) for node in nodes if node.place.tree.attribute == attribute and node.is_leaf), default=0
    )


def cost_of(ring: PubSubRing, events: int) -> Cost:
    """Publish so many events, and let them arrive."""
    plugins = [plugin_of(place) for place in ring.simulation.live_nodes()]
    sent: list[int] = []
    for plugin in plugins:
        plugin.forwarding._heat = SimpleNamespace(note_sent=sent.append)  # type: ignore[assignment]  # to count what is sent
        plugin.delivering.broker._leaves.note_deliveries = (  # type: ignore[method-assign]  # to count them
            lambda tree, cell, filters, copies, size: sent.append(size)
        )
    before = time.process_time()
    made = ring.publish(events)
    ring.finish(made)
    took = time.process_time() - before
    outcomes = [
        plugin.publishing.outcomes[each.event]
        for each in made
        for plugin in plugins
        if each.event in plugin.publishing.outcomes
    ]
    assert len(outcomes) == events
    assert not ring.offences(made)
    return Cost(sum(outcome.leaves for outcome in outcomes) / events, sum(sent) / events, took)


def settle(ring: PubSubRing, subscriptions: int, events: int) -> None:
    """Subscribe, publish, and give subscriptions the time to move."""
    ring.subscribe(subscriptions, spacing_s=0.1)
    for _ in range(6):
        ring.publish(events, spacing_s=0.1)
        ring.run_for(30.0)
    ring.rest()


def test_subscriptions_that_were_there_long_before_the_first_events_leave_it_too() -> None:
    """No event yet was taken for a node that does not see all of them, so that others were asked, ever less often."""
    ring = StockRing(6, 3, {"balancing": "static"})
    ring.subscribe(12, spacing_s=0.1)
    ring.run_for(900.0)
    ring.finish(ring.publish(2 * SAMPLE_MIN, spacing_s=0.1))
    ring.run_for(ASK_FEW_S + 2 * ASK_MIN_S)
    assert {attribute for attribute, _ in installed(ring)} == {SYMBOL}


@pytest.mark.parametrize(
    ("nodes", "subscriptions", "shrinks_s"), [(16, 120, 150.0), pytest.param(60, 472, 700.0, marks=LONG)]
)
def test_subscriptions_leave_the_attribute_that_all_events_meet(
    nodes: int, subscriptions: int, shrinks_s: float
) -> None:
    """And the tree that they have left shrinks, level after level: each event visits its chain of empty leaves."""
    settings = {"balancing": "static", "merge_share": 0.25, "merge_after": "20s", "update_interval": "10s"}
    best = BestRing(nodes, 3, settings)
    settle(best, subscriptions, 20)
    ring = StockRing(nodes, 3, settings)
    ring.subscribe(subscriptions, spacing_s=0.1)
    worst = cost_of(ring, 20)
    before = list(installed(ring))
    assert {attribute for attribute, _ in before} == {CLASS}
    settle(ring, 0, 20)
    ring.run_for(shrinks_s)
    after = list(installed(ring))
    assert levels_of(ring, CLASS) == 0
    for each in (best, ring):  # publishers learn the leaves that there are now
        each.finish(each.publish(8 * nodes, spacing_s=0.1))
    least, now = cost_of(best, 60), cost_of(ring, 60)
    depths = max(depth for _, depth in before), max(depth for _, depth in after)
    print(f"{nodes} nodes, {subscriptions} subscriptions; best {least}, before {worst}, after {now}; levels {depths}")
    assert sum(attribute == CLASS for attribute, _ in after) <= 0.05 * len(after)
    assert now.bytes <= 1.2 * least.bytes < worst.bytes
