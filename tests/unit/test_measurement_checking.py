"""Spot checks: an owner is asked whether what a cache has told is true."""

from __future__ import annotations

from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.telemetry.schema import Event
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.events import BoundViolated
from protocols.measurement.front.simulator import SimulatedQueries, plugin_of
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Sample
from protocols.measurement.placing.checking import ANSWER_S, CHECK_S
from protocols.measurement.placing.messages import CheckClaim, ClaimChecked


class Violations(Checker):
    """Keeps what nodes tell of caches that were wrong."""

    def __init__(self) -> None:
        self.found: list[BoundViolated] = []

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> None:
        if isinstance(event, BoundViolated):
            self.found.append(event)


def ring(nodes: int) -> tuple[Simulation, list[SimulatedQueries], Violations]:
    times = {"max_age": "60s", "update_interval": "5s", "ask_interval": "10s", "placing": "tree"}
    violations = Violations()
    simulation = Simulation(
        5,
        plugins=lambda index: [SimulatedQueries(index, MeasurementConfig.model_validate(times))],
        checkers=[violations],
    )
    simulation.start(nodes)
    simulation.run_until(simulation.is_ready, limit_s=120)
    simulation.run_for(15)
    plugins = [found for place in simulation.nodes if (found := plugin_of(place)) is not None]
    return simulation, plugins, violations


def test_an_owner_says_of_its_own_samples_what_was_true() -> None:
    simulation, (owner, *_), _ = ring(2)
    name = "level"
    first = owner.caching.owner.known(Measurement(owner.host.id, name))
    assert first is not None
    since, value = first.claim.since, first.claim.value
    simulation.run_for(60)

    def asks(interval: Interval, sample: Sample = since, age_s: float = 0.0) -> ClaimChecked:
        claim = BoundClaim(value, value, interval, sample)
        handler = owner.handlers.messages[CheckClaim]
        answer = handler(CheckClaim(name, claim, age_s), owner.host.peer)
        assert isinstance(answer, ClaimChecked)
        return answer

    low, high = min(log := [each[2] for each in owner.log[name]]), max(log)
    assert asks(Interval(low, high)) == ClaimChecked(True, True)
    assert asks(Interval(value, value)) == ClaimChecked(True, False)
    assert asks(Interval(value, value), age_s=60.0) == ClaimChecked(True, True)  # it held up to so long ago
    assert not asks(Interval(low, high), Sample(since.epoch + 1, since.number)).is_known
    assert not asks(Interval(low, high), Sample(since.epoch, 10**9)).is_known


def test_a_cache_that_lies_is_found_and_its_owner_provides_from_then_on() -> None:
    simulation, plugins, violations = ring(24)
    reader, liar = plugins[1], plugins[2]
    reader.watching.hold({"level": 0.4}, [each.host.id for each in plugins], 30.0)
    simulation.run_for(60)
    holder = reader.caching.holder
    owner = plugins[3].host.id
    level = Measurement(owner, "level")
    told = holder.held[level]
    now = reader.host.now()
    known = plugins[3].caching.owner.known(level)
    assert known is not None
    lie = BoundClaim(99.0, 99.0, Interval(98.8, 99.2), known.claim.since, 2)
    held = type(told)(liar.host.id, told.boot, 1, lie, now)
    holder.held[level] = held
    for _ in range(40 * int(CHECK_S)):
        held.basis = reader.host.now()  # the liar vouches for it again and again
        holder.held[level] = held
        simulation.run_for(1.0)
        if violations.found:
            break
    assert [each.name for each in violations.found] == ["level"]
    simulation.run_for(ANSWER_S)
    answer = reader.caching.read(level, reader.host.now())
    assert answer is not None and answer.provider == owner and answer.claim.value != 99.0
