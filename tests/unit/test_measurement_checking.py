"""What caches tell: an owner is asked whether one of it is true, and each value has its owner's signature."""

from __future__ import annotations

from msgspec.structs import replace

from peerd.ids import format_id
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.telemetry.schema import Event
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.events import BoundViolated
from protocols.measurement.front.simulator import SimulatedQueries, plugin_of
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Sample, Want
from protocols.measurement.messages import ReadValue
from protocols.measurement.placing.along import DISTRUSTED_S
from protocols.measurement.placing.checking import ANSWER_S, CHECK_S
from protocols.measurement.placing.messages import CheckClaim, ClaimChecked
from protocols.measurement.readings import NoReading, Reading


class Violations(Checker):
    """Keeps what nodes tell of caches that were wrong."""

    def __init__(self) -> None:
        self.found: list[BoundViolated] = []

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> None:
        if isinstance(event, BoundViolated):
            self.found.append(event)


def ring(nodes: int, *, signing: int = 0) -> tuple[Simulation, list[SimulatedQueries], Violations]:
    """``signing``: so many of the nodes sign what they measure, and want that of others; the last ones do not."""
    times = {"max_age": "60s", "update_interval": "5s", "ask_interval": "10s", "placing": "tree"}
    violations = Violations()

    def queries(index: int) -> list[SimulatedQueries]:
        return [SimulatedQueries(index, MeasurementConfig.model_validate(times | {"signed": index < signing}))]

    simulation = Simulation(5, plugins=queries, checkers=[violations])
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
    never = [Sample(since.epoch + 1, since.number), Sample(since.epoch, 10**9)]
    assert [asks(Interval(low, high), each) for each in never] == 2 * [ClaimChecked(True, False)]
    before = Sample(since.epoch - 1, 10**9)  # it is not known any more, but what has been read since then is
    assert [asks(Interval(low, high), before), asks(Interval(value, value), before)] == [
        ClaimChecked(True, True),
        ClaimChecked(True, False),
    ]
    newest = owner.caching.owner.known(Measurement(owner.host.id, name))
    assert newest is not None
    at_once = [asks(Interval(each, each), newest.claim.since) for each in (newest.claim.value, 99.0)]
    assert at_once == [ClaimChecked(True, True), ClaimChecked(True, False)], "the first sample counts at any age"
    another = Sample(newest.claim.since.epoch, newest.claim.since.number - 1)  # one of another measurement
    assert asks(Interval(99.0, 99.0), another) == ClaimChecked(True, False), "nor is it avoided so"
    handler = owner.handlers.messages[CheckClaim]
    claim = BoundClaim(value, value, Interval(low, high), since)
    assert handler(CheckClaim("nothing", claim, 0.0), owner.host.peer) == ClaimChecked(False, False)


def held_from_a_cache(
    simulation: Simulation, plugins: list[SimulatedQueries]
) -> tuple[SimulatedQueries, Measurement, SimulatedQueries]:
    """All hold the same of all; returns one, what it holds from another one than its owner, and that one."""
    everybody = {plugin.host.id: plugin for plugin in plugins}
    for plugin in plugins:
        plugin.watching.hold({"level": 0.4}, everybody, 30.0)
    simulation.run_for(60)
    return next(
        (plugin, measurement, everybody[held.provider])
        for plugin in plugins
        for measurement, held in plugin.caching.holder.held.items()
        if held.provider != measurement.owner
    )


def begin_to_lie(liar: SimulatedQueries, level: Measurement) -> None:
    """It provides another value from now on, with the signature of the true one, if there is any."""
    honest = liar.caching.provider._known

    def lie(measurement: Measurement, now: float) -> Known | None:
        known = honest(measurement, now)
        if measurement != level or known is None:
            return known
        return Known(replace(known.claim, value=99.0, level=99.0, interval=Interval(98.8, 99.2)), now)

    liar.caching.provider._known = lie
    liar._carry_out(liar.caching._changed({level: False}, liar.host.now()))


def test_a_cache_that_lies_is_found_and_its_owner_provides_from_then_on() -> None:
    simulation, plugins, violations = ring(16)
    reader, level, liar = held_from_a_cache(simulation, plugins)
    begin_to_lie(liar, level)
    simulation.run_for(1.0)
    told = reader.caching.read(level, reader.host.now())
    assert told is not None and told.claim.value == 99.0
    for _ in range(40 * int(CHECK_S)):
        simulation.run_for(1.0)
        told = reader.caching.read(level, reader.host.now())
        if told is None or told.claim.value != 99.0:
            break
    assert {each.name for each in violations.found} == {"level"}
    simulation.run_for(ANSWER_S)
    told = reader.caching.read(level, reader.host.now())
    assert told is not None and told.provider == level.owner and told.claim.value != 99.0


def test_a_node_on_the_way_that_answers_falsely_is_found_and_not_believed_any_more() -> None:
    simulation, plugins, violations = ring(24)
    of = {plugin.host.id: plugin for plugin in plugins}
    reader = next(plugin for plugin in plugins if (parent := plugin.tree.parent()) and of[parent.id].tree.children())
    parent = reader.tree.parent()
    assert parent is not None
    liar = of[parent.id]
    owner = next(plugin for plugin in plugins if plugin not in (reader, liar) and plugin.tree.parent() != reader)
    level, honest, lies = Measurement(owner.host.id, "level"), liar.along._here, 0

    def lie(want: Want, max_age_s: float) -> ReadValue | None:
        nonlocal lies
        known = owner.caching.owner.known(level)
        if want.measurement != level or known is None:
            return honest(want, max_age_s)
        lies += 1
        return ReadValue(level, BoundClaim(99.0, 99.0, Interval(98.8, 99.2), known.claim.since, 2), 0.0)

    liar.along._here = lie  # type: ignore[method-assign]  # it lies
    told: list[Reading | NoReading] = []

    def read() -> Reading:
        reader.readings._kept.clear()
        reader.readings.read([Want(level, 0.25)], 30.0, told.extend)
        simulation.run_for(ANSWER_S + 1.0)
        answer = told.pop()
        assert isinstance(answer, Reading) and not answer.is_stale
        return answer

    simulation.run_for(3 * ANSWER_S)
    first = read()
    assert (first.value, first.provider) == (99.0, liar.host.id), "so it goes the first time"
    simulation.run_for(3 * ANSWER_S)
    before = lies
    then = read()
    assert lies == before + 1 and then.provider == owner.host.id and then.value != 99.0
    assert {each.cache for each in violations.found} == {format_id(liar.host.id)}
    simulation.run_for(DISTRUSTED_S)
    assert read().provider == liar.host.id, "perhaps it was a mistake"


def test_what_an_owner_has_not_signed_nobody_is_told_and_who_says_it_is_believed_no_more() -> None:
    simulation, plugins, violations = ring(16, signing=16)
    reader, level, liar = held_from_a_cache(simulation, plugins)
    begin_to_lie(liar, level)
    holders = [plugin for plugin in plugins if plugin not in (liar,) and plugin.host.id != level.owner]
    for _ in range(300):
        simulation.run_for(0.2)
        told = [plugin.caching.read(level, plugin.host.now()) for plugin in holders]
        assert all(each is None or each.claim.value != 99.0 for each in told)
    now = reader.caching.read(level, reader.host.now())
    assert now is not None and not now.is_stale and now.provider == level.owner
    assert {(each.name, each.cache) for each in violations.found} == {("level", format_id(liar.host.id))}
    theirs = [held for held in reader.caching.holder.held.values() if held.provider == liar.host.id]
    assert not [held for held in theirs if held.claim.hops > 1], "nothing that others own is held from it"


def test_where_not_all_sign_values_of_those_that_do_not_are_had_from_themselves() -> None:
    simulation, plugins, violations = ring(16, signing=13)
    everybody = {plugin.host.id: index for index, plugin in enumerate(plugins)}
    for plugin in plugins:
        plugin.watching.hold({"level": 0.4}, everybody, 30.0)
    simulation.run_for(60)
    from_caches = 0
    for plugin in plugins[:13]:
        held = plugin.caching.holder.held
        assert len(held) == 15 and all(value.vouched for value in held.values())
        for measurement, value in held.items():
            is_from_cache = value.provider != measurement.owner
            from_caches += is_from_cache
            assert not is_from_cache or (everybody[measurement.owner] < 13 and value.claim.signature)
    assert from_caches > 50
    assert not violations.found
