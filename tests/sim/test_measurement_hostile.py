"""One member of a simulated ring lies about measurements: what is told of the others' values is right all the same."""

from __future__ import annotations

import pytest

from peerd.sim.hostile.member import Behaviour, Party
from peerd.sim.simulation import Simulation
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.front.hostile import BEHAVIOURS, LIE, InventsNodes
from protocols.measurement.front.simulator import NAMES, WITHIN, GuaranteeHolds, SimulatedQueries, plugin_of
from protocols.measurement.guarantee.provider import HOLDERS_MAX
from protocols.measurement.readings import NoReading, Reading

COUNT, LIAR = 8, 3
STALE_S = 8.0


@pytest.fixture(params=BEHAVIOURS.values(), ids=list(BEHAVIOURS))
def kind(request: pytest.FixtureRequest) -> type[Behaviour]:
    """Every way to misbehave."""
    found: type[Behaviour] = request.param
    return found


@pytest.mark.parametrize("placing", ["owners", "tree"])
def test_of_honest_owners_nothing_wrong_is_told(kind: type[Behaviour], placing: str) -> None:
    oracle = GuaranteeHolds()
    times = {"update_interval": "2s", "ask_interval": "3s", "decide_interval": "3s"}
    config = MeasurementConfig.model_validate(times | {"placing": placing})
    simulation = Simulation(
        5, plugins=lambda index: [SimulatedQueries(index, config)], checkers=[oracle], check_every=20
    )
    party = Party(simulation, {LIAR: [kind]})
    simulation.start(COUNT, spacing_s=0.2)
    simulation.run_for(COUNT * 0.2)
    simulation.run_until(simulation.is_ready, 60.0)
    simulation.run_for(5.0)
    party.begin()
    plugins = {place.id: plugin for place in simulation.honest_nodes() if (plugin := plugin_of(place))}
    for plugin in plugins.values():
        plugin.watching.watch(WITHIN, lambda entry: True, STALE_S)
    told: list[Reading | NoReading] = []
    for _ in range(10):
        for plugin in plugins.values():
            take = lambda answers: told.extend(answers) if isinstance(answers, list) else None  # noqa: E731  it is short
            plugin.asking.read(NAMES, lambda entry: entry.id in plugins, WITHIN, STALE_S, take)
        simulation.run_for(5.0)
    assert oracle.judged > 500
    fresh = [each for each in told if isinstance(each, Reading) and not each.is_stale]
    assert all(each.value != LIE for each in fresh)
    assert len(fresh) > 0.6 * len(told) if kind is InventsNodes else len(fresh) == len(told)
    for plugin in plugins.values():
        assert len(plugin.caching.provider.edges) <= HOLDERS_MAX
        plugin.caching.provider.validate(plugin.host.now())
        names = {name for entry in plugin.directory.known() for name in entry.measurements}
        assert names <= set(NAMES)
    assert {about.id for _, _, about, _ in simulation.misbehaviours} <= {simulation.nodes[LIAR].id}
