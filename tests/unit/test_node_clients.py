"""Clients of a plugin are let go when its instance is over: `Host.when_over` ends the feeds that they read."""

from __future__ import annotations

from typing import ClassVar

import pytest

from peerd.api import Host, Plugin
from peerd.lib.feed import Feed, FeedEnd, FeedGap, FeedItem, Position
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring


class Counting(Plugin):
    """A plugin that has a feed."""

    name: ClassVar[str] = "counting"

    def start(self, host: Host) -> None:
        super().start(host)
        self.feed: Feed[int] = Feed(host.new_epoch())
        host.when_over(self.feed.end)


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return ring(6, seed=3, plugins=lambda index: (Counting(),), settle_s=20.0)


def counting(place: Place) -> Counting:
    found = place.node.plugins["counting"]
    assert isinstance(found, Counting)
    return found


def test_a_restarted_plugin_ends_its_feeds_and_begins_new_ones(simulation: Simulation) -> None:
    place = simulation.nodes[1]
    old = counting(place).feed
    old.push(1)
    reader = old.reader("start")
    place.node.restart_plugin("counting")
    seen = [reader.take(), reader.take(), reader.take()]
    assert seen == [FeedItem(1, 1), FeedEnd(1, "plugin restarted", is_final=False), None]
    new = counting(place).feed
    assert new is not old and new.ended is None and new.epoch != old.epoch
    gap = new.reader(old.position).take()
    assert isinstance(gap, FeedGap) and gap.reason == "restarted"


def test_a_node_that_drains_ends_them_when_it_leaves(simulation: Simulation) -> None:
    place = simulation.nodes[2]
    feed = counting(place).feed
    place.node.drain(10.0, lambda unfinished: None)
    assert feed.ended is None, "it still hands over"
    simulation.run_for(10.0)
    assert feed.ended == FeedEnd(0, "node stopping: drained", is_final=False)


def test_clients_may_be_let_go_before_the_node_stops(simulation: Simulation) -> None:
    """A daemon closes its HTTP server first, and streams shall end in order before that."""
    place = simulation.nodes[3]
    feed = counting(place).feed
    place.node.let_clients_go("daemon stopping")
    place.node.stop("stopped")
    assert feed.ended == FeedEnd(0, "daemon stopping", is_final=False)


def test_epochs_differ_between_nodes(simulation: Simulation) -> None:
    epochs = [counting(place).feed.epoch for place in simulation.nodes]
    assert len(set(epochs)) == len(epochs)
    assert Position.parse(str(Position(epochs[0], 1))).epoch == epochs[0]
