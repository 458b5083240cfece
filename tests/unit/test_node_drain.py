"""Leaving in order: plugins hand over one after the other, then the node says goodbye."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from peerd.api import Plugin
from peerd.sim.checkers import RING_CHECKERS
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring

log: list[str] = []

SERVICES = ("records",)
"""Every node has them; they hand over last."""


class First(Plugin):
    """Hands over when the test says so."""

    name: ClassVar[str] = "first"

    def drain(self, done: Callable[[], None]) -> None:
        """Noted."""
        log.append(self.name)
        self.done = done

    def stop(self) -> None:
        """Noted."""
        log.append(f"{self.name} stops")


class Second(First):
    """A plugin that builds on `First`."""

    name: ClassVar[str] = "second"


def grown(count: int, seed: int) -> tuple[Simulation, Place]:
    log.clear()
    simulation = ring(count, seed=seed, plugins=lambda index: (First(), Second()), settle_s=30.0)
    return simulation, simulation.nodes[count // 2]


def waiting(place: Place) -> list[str]:
    """Return the plugins that have yet to hand over."""
    return list(place.node.draining or ())


def plugin(place: Place, name: str) -> First:
    found = place.node.plugins[name]
    assert isinstance(found, First)
    return found


def test_the_last_plugin_hands_over_first_and_the_ring_closes_without_a_suspicion() -> None:
    simulation, place = grown(30, seed=4)
    ended: list[tuple[str, ...]] = []
    place.node.drain(60.0, ended.append)
    assert ended == [] and waiting(place) == ["second", "first", *SERVICES]
    simulation.run_for(1.0)
    assert log == ["second"] and not place.node.is_ready and place.node.overlay.is_ready
    plugin(place, "second").done()
    simulation.run_for(1.0)
    assert log == ["second", "first"] and waiting(place) == ["first", *SERVICES]
    plugin(place, "first").done()
    simulation.run_for(1.0)
    assert ended == [()] and place.node.is_stopped and log[2:] == ["second stops", "first stops"]
    neighbours = [other for other in simulation.nodes if other.node.overlay.state.history.of(place.id)]
    assert neighbours
    for other in neighbours:
        assert {note.verdict for note in other.node.overlay.state.history.of(place.id)} == {"left"}
    simulation.stop(place)
    simulation.run_for(20.0)
    simulation.check(RING_CHECKERS)


def test_time_runs_out() -> None:
    simulation, place = grown(5, seed=5)
    ended: list[tuple[str, ...]] = []
    place.node.drain(30.0, ended.append)
    simulation.run_for(29.0)
    assert ended == [] and not place.node.is_stopped
    simulation.run_for(2.0)
    assert ended == [("second", "first", *SERVICES)] and place.node.is_stopped
    plugin(place, "second").done()  # too late, and harmless
    simulation.run_for(1.0)
    assert len(ended) == 1


def test_a_stop_in_the_middle_ends_it_and_later_ones_are_told_at_once() -> None:
    simulation, place = grown(5, seed=6)
    ended: list[tuple[str, ...]] = []
    place.node.drain(30.0, ended.append)
    simulation.run_for(1.0)
    plugin(place, "second").done()
    simulation.run_for(1.0)
    place.node.stop("in a hurry")
    simulation.run_for(1.0)
    assert ended == [("first", *SERVICES)]
    place.node.drain(30.0, ended.append)
    simulation.run_for(1.0)
    assert ended == [("first", *SERVICES), ()]


def test_a_simulated_stop_takes_at_most_its_time_and_half_of_it_for_handing_over() -> None:
    simulation, place = grown(5, seed=8)
    ended: list[float] = []
    begun = simulation.now
    simulation.stop(place, limit_s=10.0, then=lambda: ended.append(simulation.now - begun))
    simulation.stop(place, limit_s=10.0, then=lambda: ended.append(-1.0))
    simulation.run_for(4.9)
    assert place.is_live and waiting(place)[0] == "second", "it is given time to hand over"
    simulation.run_for(0.2)
    assert place.node.is_stopped and log[-2:] == ["second stops", "first stops"]
    simulation.run_for(5.0)
    assert not place.is_live and len(ended) == 1 and 5.0 <= ended[0] <= 10.0
    simulation.run_for(20.0)
    simulation.check(RING_CHECKERS)


def test_a_simulated_stop_ends_as_soon_as_everything_is_handed_over() -> None:
    simulation, place = grown(5, seed=9)
    ended: list[float] = []
    begun = simulation.now
    simulation.stop(place, limit_s=10.0, then=lambda: ended.append(simulation.now - begun))
    for name in ("second", "first"):
        simulation.run_for(0.5)
        plugin(place, name).done()
    simulation.run_for(2.0)
    assert len(ended) == 1 and ended[0] < 2.0
