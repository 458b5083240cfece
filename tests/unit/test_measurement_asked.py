"""What clients ask for so often that it is held for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

import pytest

from peerd.ids import NodeId
from peerd.testing.host import FakeHost
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.placing import wants as wants_module
from protocols.measurement.placing.statistics import Statistics
from protocols.measurement.placing.wants import LEAST_S, LOOSER_S, OFTEN, UPDATES, AskedOften, HeldWants

CPU, LOAD = (Measurement(NodeId(9), name) for name in ("cpu", "load1"))


class Wants:
    """Notes what is held: half-widths, and the age that is wanted."""

    def __init__(self) -> None:
        self.held: dict[Measurement, tuple[float, float]] = {}
        self.calls = 0

    def hold(self, why: str, wants: Iterable[tuple[Want, float]]) -> None:
        assert why == "asked"
        self.held |= {want.measurement: (want.half_width, update_s * UPDATES) for want, update_s in wants}
        self.calls += 1

    def let_go(self, why: str, measurements: Collection[Measurement]) -> None:
        assert why == "asked"
        for measurement in measurements:
            del self.held[measurement]


class Node:
    """A node and its clients."""

    def __init__(self) -> None:
        self.host, self.wants = FakeHost(1), Wants()
        self.statistics = Statistics(1.0, lambda: None)
        self.often = AskedOften(self.host, 5.0, cast(HeldWants, self.wants), self.statistics)

    def ask(self, *measurements: Measurement, half_width: float = 1.0, stale_s: float = 5.0, times: int = 1) -> None:
        """A client asks each second."""
        for _ in range(times):
            self.often.note([Want(each, half_width) for each in measurements], stale_s)
            self.host.time_s += 1.0

    def look(self) -> None:
        self.host.cancel_timer("asked")  # it goes off
        self.often._look(None)


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_is_asked_for_often_is_held_all_of_it_at_once_until_nobody_asks(node: Node) -> None:
    node.ask(CPU, LOAD, times=OFTEN - 1)
    assert not node.wants.held and not node.often.is_held(CPU)
    node.ask(CPU, LOAD)
    assert node.wants.held == {CPU: (1.0, 5.0), LOAD: (1.0, 5.0)} and node.often.is_held(CPU)
    assert node.wants.calls == 1
    node.ask(CPU, LOAD, times=20)
    assert node.wants.calls == 1, "it is"
    node.host.time_s += LEAST_S
    node.ask(LOAD)
    node.look()
    assert node.wants.held.keys() == {LOAD} and not node.often.is_held(CPU)
    node.host.time_s += LEAST_S + 1.0
    node.look()
    assert not node.wants.held and not node.often._asked


def test_what_is_asked_for_about_as_often_as_it_grows_old_is_not(node: Node) -> None:
    for _ in range(20):
        node.ask(CPU, stale_s=2.0)
        node.host.time_s += 1.0
    assert not node.wants.held


@pytest.mark.parametrize("stale_s", [0.5, 13.0])
def test_what_may_be_old_or_must_be_new_is_asked_for_each_time(node: Node, stale_s: float) -> None:
    node.ask(CPU, stale_s=stale_s, times=10)
    assert not node.often._asked


def test_pairs_are_known_to_their_owner_only(node: Node) -> None:
    node.ask(Measurement(NodeId(9), "rtt@"), times=10)
    assert not node.often._asked


def test_it_is_held_as_exact_and_young_as_the_strictest_client_wants_it_and_looser_when_that_has_gone(
    node: Node,
) -> None:
    node.ask(CPU, times=OFTEN)
    node.ask(CPU, half_width=0.5)
    assert node.wants.held[CPU] == (0.5, 5.0)
    node.ask(CPU, half_width=2.0, stale_s=3.0)
    assert node.wants.held[CPU] == (0.5, 3.0)
    node.ask(CPU, times=int(LOOSER_S))
    assert node.wants.held[CPU] == (0.5, 3.0), "in the time that is over it was asked for so"
    node.ask(CPU, times=int(LOOSER_S) + 1)
    assert node.wants.held[CPU] == (1.0, 5.0)


def test_what_changes_all_the_time_is_asked_for_each_time(node: Node) -> None:
    node.statistics.read(Want(CPU, 1.0), 5.0)
    node.statistics.paid(CPU, 2.0, 0.6)
    node.ask(CPU, times=10)
    assert not node.wants.held
    node.statistics.paid(CPU, 2.0, 0.4)
    node.ask(CPU)
    assert node.wants.held


def test_of_too_many_values_the_first_ones_are_counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wants_module, "OFTEN_MAX", 1)
    node.ask(CPU, LOAD, times=10)
    assert node.wants.held.keys() == {CPU}
