"""`Host.store.log` in the simulator: a commit costs time, a crash takes what it has not reached."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from peerd import limits
from peerd.api import Host, Log, Plugin
from peerd.errors import Bug, Unavailable
from peerd.sim.logs import LOG_SYNC_S
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring


class Keeper(Plugin):
    """Notes what it is told of its log."""

    name: ClassVar[str] = "keeper"

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.durable: list[tuple[float, int]] = []

    def start(self, host: Host) -> None:
        """Open the log."""
        super().start(host)
        self.log: Log = host.store.log("queue")

    def append(self, record: bytes) -> int:
        """With a note when it is durable."""
        return self.log.append(record, lambda number: self.durable.append((self.host.now(), number)))


def keeper(place: Place) -> Keeper:
    plugin = place.node.plugins["keeper"]
    assert isinstance(plugin, Keeper)
    return plugin


def keepers(count: int) -> Simulation:
    return ring(count, seed=3, plugins=lambda index: [Keeper()])


def test_what_several_handlers_append_becomes_durable_together() -> None:
    simulation = keepers(1)
    place = simulation.nodes[0]
    begun = simulation.now
    for number in range(5):
        keeper(place).append(b"%d" % number)
    simulation.run_for(1.0)
    one, two = begun + LOG_SYNC_S, begun + 2 * LOG_SYNC_S
    assert [number for _, number in keeper(place).durable] == [1, 2, 3, 4, 5]
    assert [at for at, _ in keeper(place).durable] == pytest.approx([one, two, two, two, two])


def test_a_crash_takes_the_tail_that_is_not_durable() -> None:
    simulation = keepers(2)
    place = simulation.nodes[1]
    keeper(place).append(b"kept")
    simulation.run_for(LOG_SYNC_S / 2)
    keeper(place).append(b"lost")
    simulation.run_for(LOG_SYNC_S)
    simulation.restart(place, delay_s=1.0)
    simulation.run_for(5.0)
    assert keeper(place).log.read(0, 9) == [(1, b"kept")] and keeper(place).durable == []
    assert keeper(place).append(b"again") == 2
    simulation.run_for(1.0)
    assert [number for _, number in keeper(place).durable] == [2]


def test_a_plugin_that_was_replaced_hears_nothing_of_the_appends_before() -> None:
    simulation = keepers(1)
    place = simulation.nodes[0]
    first = keeper(place)
    first.append(b"x")
    place.node.restart_plugin("keeper")
    simulation.run_for(1.0)
    assert keeper(place) is not first and first.durable == keeper(place).durable == []
    assert keeper(place).log.durable == 1


def test_logs_have_names_and_a_limit() -> None:
    simulation = keepers(1)
    store = keeper(simulation.nodes[0]).host.store
    for number in range(limits.LOGS_PER_PLUGIN_MAX - 1):
        store.log(f"log-{number}").append(b"x")
    with pytest.raises(Unavailable, match="limit"):
        store.log("one-more")
    with pytest.raises(Bug):
        store.log("../queue")
    assert store.log("log-0").next == 2 and store.log("queue").next == 1
