"""Bandwidth probes: one neighbour after the other, and few answers."""

from __future__ import annotations

from peerd.api import AcceptSwap, RefuseSwap, SwapRequest
from peerd.api.bulk import value_size_bytes
from peerd.sim.simulation import Simulation
from peerd.testing.host import FakeHost, peer
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.front.simulator import SimulatedSource
from protocols.measurement.plugin import MeasurementQueries
from protocols.measurement.sources.network import ANSWERED_GAP_S, PROBE_BYTES, PROBE_TAG, NetworkSource


def test_each_neighbour_is_probed_in_its_turn_and_its_bandwidth_told() -> None:
    config = MeasurementConfig.model_validate({"bandwidth_interval": "10s"})
    simulation = Simulation(
        3, plugins=lambda index: [MeasurementQueries(config, [SimulatedSource(index)])], check_every=50
    )
    simulation.start(4)
    simulation.run_until(simulation.is_ready, limit_s=120)
    simulation.run_for(120)
    for place in simulation.nodes:
        plugin = place.node.plugins["measurement"]
        assert isinstance(plugin, MeasurementQueries)
        others = {other.id for other in simulation.nodes if other is not place}
        assert plugin.bandwidth.found.keys() == others
        assert all(rate > PROBE_BYTES / 20.0 for rate in plugin.bandwidth.found.values())
        told = NetworkSource(plugin.host, 1.0, plugin.bandwidth.found).read(0.0)
        assert {f"bandwidth@{other:032x}" for other in others} <= told.keys()


def test_a_node_answers_one_probe_in_a_second_and_nothing_else() -> None:
    host = FakeHost(1, plugin := MeasurementQueries(MeasurementConfig(), []))

    def asks(tag: bytes, is_fetch: bool = True) -> AcceptSwap | RefuseSwap:
        return plugin.swap_requested(SwapRequest(peer(2), tag, 0, is_fetch))

    assert asks(b"other") == asks(PROBE_TAG, is_fetch=False) == RefuseSwap("not_supported")
    accepted = asks(PROBE_TAG)
    assert isinstance(accepted, AcceptSwap) and value_size_bytes(accepted.value) == PROBE_BYTES
    assert asks(PROBE_TAG) == RefuseSwap("busy")
    host.time_s += ANSWERED_GAP_S
    assert isinstance(asks(PROBE_TAG), AcceptSwap)


def test_without_an_interval_nobody_is_probed() -> None:
    host = FakeHost(1, MeasurementQueries(MeasurementConfig(), []))
    assert not any("bandwidth" in str(timer) for timer in host.timers)
