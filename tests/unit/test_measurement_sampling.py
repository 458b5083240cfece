"""What a node does with its sources: in their periods, whatever they answer, and whether they answer at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from peerd.api import Host, Plugin
from peerd.errors import ClientRefusal
from peerd.ids import NodeId
from peerd.testing.host import FakeHost, FakeWork, peer
from peerd.testing.simulation import ring
from protocols.measurement.events import EVENTS, SourceBack, SourceFailed
from protocols.measurement.names import full_name
from protocols.measurement.sources.network import RTT_PEERS_MAX, NetworkSource
from protocols.measurement.sources.sampling import (
    METRICS,
    PUSHED_S,
    READING_S_MAX,
    REFUSED,
    STAGGER_S_MAX,
    TTL_S_MAX,
    TURN_S,
    Sampling,
)
from protocols.measurement.sources.smoothing import Smoothing
from protocols.measurement.sources.source import NAMES_MAX, MeasurementSource, gather

PERIOD_S = 20.0


class Told:
    """A taker that notes what it is told."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.calls: list[tuple[Any, ...]] = []

    def sampled(self, values: Mapping[str, float], asked_at: float) -> None:
        """Values."""
        self.values |= values
        self.calls += [(name, value, asked_at) for name, value in values.items()]

    def failed(self, names: Sequence[str]) -> None:
        """None any more."""
        for name in names:
            self.values.pop(name, None)
            self.calls.append((name, "failed"))

    def take(self) -> list[tuple[Any, ...]]:
        """What was told since the last call."""
        calls, self.calls = self.calls, []
        return calls


class Given(MeasurementSource):
    """A source that answers what the test has it answer."""

    def __init__(self, name: str = "app", answer: object = None) -> None:
        super().__init__(name, PERIOD_S)
        self.answer = answer

    def read(self, now: float) -> Mapping[str, float]:
        """The answer, whatever it is; an exception is raised."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # that it may be anything is what is tested


class Blocking(Given):
    """The same of a source that may block."""

    may_block: ClassVar[bool] = True


class Measuring(Plugin):
    """Has nothing but sources."""

    name: ClassVar[str] = "measuring"
    metrics = METRICS
    events = EVENTS

    def __init__(
        self, sources: Callable[[Host], Sequence[MeasurementSource]], smoothings: Sequence[Smoothing] = ()
    ) -> None:
        super().__init__()
        self._sources, self._smoothings = sources, smoothings
        self.told = Told()

    def start(self, host: Host) -> None:
        super().start(host)
        self.sampling = Sampling(host, self._sources(host), self.told, self._smoothings)
        self.add_parts(self.sampling)
        self.sampling.begin()


class SlowHost(FakeHost):
    """While ``is_slow``, what is given to workers waits in ``held`` until the test runs it."""

    is_slow = False

    def __init__(self, plugin: Plugin) -> None:
        self.held: list[Callable[[], None]] = []
        super().__init__(1, plugin)

    def offload(self, *arguments: Any, **options: Any) -> FakeWork:
        """As the base; the work may have to wait."""
        work = super().offload(*arguments, **options)
        if self.is_slow:
            self.held.append(self.later.pop())
        return work


def node(*sources: MeasurementSource, smoothings: Sequence[Smoothing] = ()) -> tuple[SlowHost, Told]:
    """A node that has read each of its sources once."""
    plugin = Measuring(lambda host: sources, smoothings)
    host = SlowHost(plugin)
    for source in sources:
        host.fire("measure", source.name)
    return host, plugin.told


def sampling(host: FakeHost) -> Sampling:
    """The part under test."""
    assert isinstance(host.plugin, Measuring)
    return host.plugin.sampling


def refused(host: FakeHost) -> dict[str, int]:
    """What was counted, by reason."""
    return {reason: count for (name, reason), count in host.counted.items() if name == REFUSED and count}


def test_a_source_is_read_in_its_period_and_told_with_the_time_of_asking() -> None:
    source = Given(answer={"a": 1, "b": 2.5})
    host, told = node(source)
    first = host.time_s
    assert told.take() == [("a", 1.0, first), ("b", 2.5, first)]
    source.answer = {"a": 3.0, "b": 2.5}
    host.fire("measure", "app")
    assert host.time_s == first + PERIOD_S
    assert told.take() == [("a", 3.0, host.time_s), ("b", 2.5, host.time_s)]
    assert "measure_late" not in {name for name, _ in host.timers}
    assert not refused(host) and not sampling(host).problems()


def test_sources_are_not_all_read_at_once_and_none_waits_for_its_period() -> None:
    host = FakeHost(1, Measuring(lambda host: [Given("one"), Given("two")]))
    first, second = host.timers["measure", "one"], host.timers["measure", "two"]
    assert 0 < first <= STAGGER_S_MAX and 0 < second <= STAGGER_S_MAX and first != second


def test_the_time_of_a_slow_reading_is_that_of_its_beginning_and_no_other_is_begun_before_its_end() -> None:
    host, told = node(Given(answer={"a": 1.0}))
    told.take()
    host.is_slow = True
    host.fire("measure", "app")
    asked_at = host.time_s
    host.time_s += READING_S_MAX - 1
    [work] = host.held
    work()
    assert told.take() == [("a", 1.0, asked_at)]
    host.fire("measure", "app")
    host.fire("measure", "app")
    host.fire("measure", "app")
    assert len(host.held) == 2, "a second reading was begun before the first had ended"


def test_a_reading_that_takes_too_long_has_failed_and_what_it_brings_is_thrown_away() -> None:
    host, told = node(Given(answer={"a": 1.0, "b": 2.0}))
    told.take()
    host.is_slow = True
    host.fire("measure", "app")
    host.fire("measure_late", "app")
    assert told.take() == [("a", "failed"), ("b", "failed")]
    assert refused(host) == {"late": 1} and sampling(host).problems() == {"app": "no answer in 10 s"}
    host.fire("measure", "app")
    host.held.pop()()
    assert told.take() == [] and not host.held
    host.is_slow = False
    host.fire("measure", "app")
    assert told.take() == [("a", 1.0, host.time_s), ("b", 2.0, host.time_s)]
    assert not sampling(host).problems()


def test_it_is_recorded_when_a_source_begins_to_fail_and_when_it_works_again() -> None:
    source = Given(answer=OSError("no such thing"))
    host, told = node(source)
    failed_at = host.time_s
    assert host.events == [SourceFailed(source="app", reason="OSError: no such thing")]
    host.fire("measure", "app")
    source.answer = {"a": 1.0, "A b": 1.0}
    assert len(host.events) == 1, "it goes on failing"
    host.fire("measure", "app")
    assert host.events[1:] == [SourceBack(source="app", duration_s=host.time_s - failed_at)]
    assert sampling(host).problems() == {"app": "bad_name: 1"}, "what is refused in part is no failure"
    host.is_slow = True
    host.fire("measure", "app")
    host.fire("measure_late", "app")
    assert host.events[2:] == [SourceFailed(source="app", reason=f"no answer in {READING_S_MAX:g} s")]
    host.held.pop()()
    assert len(host.events) == 3, "it has answered too late"
    host.is_slow = False
    host.fire("measure", "app")
    assert isinstance(host.events[3], SourceBack) and told.values == {"a": 1.0}


def test_of_sources_that_may_block_one_is_read_at_a_time_and_others_go_on() -> None:
    one, two, quick = Blocking("one", {"a": 1.0}), Blocking("two", {"b": 2.0}), Given("quick", {"c": 3.0})
    host, told = node(one, two, quick)
    told.take()
    host.is_slow = True
    host.fire("measure", "one")
    [blocked] = host.held
    host.fire("measure", "two")
    assert host.held == [blocked] and sampling(host).problems() == {"two": "waits for one"}
    host.fire("measure", "quick")
    assert len(host.held) == 2, "a source that cannot block has to wait"
    host.is_slow = False
    host.fire("measure_late", "one")
    assert told.take() == [("a", "failed")]
    host.fire("measure", "two")
    assert host.timers["measure", "two"] == host.time_s + TURN_S
    assert told.take() == [], "the worker of the first one is still not free"
    blocked()
    host.fire("measure", "two")
    assert told.calls[-1] == ("b", 2.0, host.time_s)


def test_a_name_that_a_source_does_not_tell_any_more_has_failed() -> None:
    source = Given(answer={"a": 1.0, "b": 2.0})
    host, told = node(source)
    told.take()
    source.answer = {"b": 2.0}
    host.fire("measure", "app")
    assert told.take() == [("a", "failed"), ("b", 2.0, host.time_s)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"a": float("nan")}, "not_finite"),
        ({"a": float("inf")}, "not_finite"),
        ({"a": 10**400}, "not_finite"),
        ({"a": "1"}, "no_number"),
        ({"a": True}, "no_number"),
        ({"a": None}, "no_number"),
        ({"A b": 1.0}, "bad_name"),
        ({"": 1.0}, "bad_name"),
        ({7: 1.0}, "bad_name"),
        ({"rtt@12": 1.0}, "bad_name"),
        ({"cpu": 1.0}, "taken"),
        ({full_name("rtt", NodeId(7)): 1.0}, "taken"),
        ({f"n{number}": 1.0 for number in range(NAMES_MAX + 1)}, "too_many"),
        (None, "failed"),
        (7, "failed"),
        ([("a", 1.0)], "failed"),
        (OSError("no such thing"), "failed"),
        (KeyError("x"), "failed"),
    ],
)
def test_what_is_no_measurement_is_refused_by_reason_and_raises_nothing(answer: object, reason: str) -> None:
    source = Given(answer={"a": 1.0, "good": 1.0})
    host, told = node(source)
    told.take()
    source.answer = {**answer, "good": 2.0} if isinstance(answer, dict) and reason != "too_many" else answer
    host.fire("measure", "app")
    assert refused(host) == {reason: 1}
    assert "app" in sampling(host).problems()
    assert ("a", "failed") in told.calls, "a value that is refused is none"
    if reason in ("failed", "too_many"):
        assert ("good", "failed") in told.calls
    else:
        assert told.calls[-1] == ("good", 2.0, host.time_s)


def test_the_names_of_a_source_are_bounded() -> None:
    reading = gather(Given(answer={f"n{number}": 1.0 for number in range(NAMES_MAX + 5)}), 0.0)
    assert len(reading.values) == NAMES_MAX and reading.refused == {"too_many": 5}


def test_a_name_belongs_to_the_first_source_that_tells_it_until_that_one_ends() -> None:
    one, two = Given("one", {"a": 1.0}), Given("two", {"a": 2.0})
    host, told = node(one, two)
    assert told.values == {"a": 1.0} and refused(host) == {"taken": 1}
    one.answer = {}
    host.fire("measure", "one")
    assert told.values == {}
    host.fire("measure", "two")
    assert told.values == {"a": 2.0}


def test_the_names_of_the_system_are_for_the_source_of_that_name() -> None:
    host, told = node(Given("system", {"cpu": 0.5}))
    assert told.values == {"cpu": 0.5} and not refused(host)


# What applications put


def test_what_an_application_puts_counts_at_once_and_until_its_time_is_over() -> None:
    host, told = node()
    sampling(host).put("queue", 7, ttl_s=12.0)
    assert told.take() == [("queue", 7.0, 0.0)]
    host.fire("measure", "pushed")
    host.fire("measure", "pushed")
    assert told.take()[-1] == ("queue", 7.0, host.time_s), "while it holds, it is said again"
    sampling(host).put("queue", 8, ttl_s=PUSHED_S)
    assert told.take() == [("queue", 8.0, host.time_s)]
    host.fire("measure", "pushed")
    assert told.take() == [("queue", "failed")]
    host.fire("measure", "pushed")
    assert told.take() == []


@pytest.mark.parametrize(
    ("name", "value", "ttl_s", "kind"),
    [
        ("cpu", 1.0, 10.0, "conflict"),
        (full_name("rtt", NodeId(9)), 1.0, 10.0, "conflict"),
        ("a", 1.0, 10.0, "conflict"),
        ("mean_a", 1.0, 10.0, "conflict"),
        ("No Name", 1.0, 10.0, "invalid"),
        ("b", float("nan"), 10.0, "invalid"),
        ("b", 1.0, 0.0, "invalid"),
        ("b", 1.0, float("nan"), "invalid"),
        ("b", 1.0, TTL_S_MAX + 1, "invalid"),
    ],
)
def test_what_an_application_may_not_put(name: str, value: float, ttl_s: float, kind: str) -> None:
    host, told = node(Given(answer={"a": 1.0}), smoothings=[Smoothing("mean_a", "a", 60.0)])
    told.take()
    with pytest.raises(ClientRefusal) as refusal:
        sampling(host).put(name, value, ttl_s)
    assert refusal.value.kind == kind
    host.fire("measure", "pushed")
    assert told.take() == []


def test_the_names_that_applications_put_are_bounded_and_those_that_are_over_make_room() -> None:
    host, _ = node()
    for number in range(NAMES_MAX):
        sampling(host).put(f"n{number}", 1.0, 10.0)
    with pytest.raises(ClientRefusal) as refusal:
        sampling(host).put("one_more", 1.0, 10.0)
    assert refusal.value.kind == "quota"
    sampling(host).put("n0", 2.0, 10.0)
    host.time_s += 10.0
    sampling(host).put("one_more", 1.0, 10.0)


# Derived measurements


def test_what_is_derived_follows_its_samples_and_fails_with_them() -> None:
    source = Given(answer={"a": 1.0})
    host, told = node(
        source, smoothings=[Smoothing("mean_a", "a", 3600.0), Smoothing("spread_a", "a", 3600.0, is_deviation=True)]
    )
    source.answer = {"a": 3.0}
    host.fire("measure", "app")
    assert told.take()[-3:] == [("a", 3.0, host.time_s), ("mean_a", 2.0, host.time_s), ("spread_a", 1.0, host.time_s)]
    source.answer = {}
    host.fire("measure", "app")
    assert told.take() == [("a", "failed"), ("mean_a", "failed"), ("spread_a", "failed")]


def test_what_is_derived_of_values_that_are_too_large_fails_alone() -> None:
    source = Given(answer={"a": 1.7e308})
    host, told = node(source, smoothings=[Smoothing("spread_a", "a", 60.0, is_deviation=True)])
    source.answer = {"a": -1.7e308}
    host.fire("measure", "app")
    assert told.values == {"a": -1.7e308}


# Neighbours


def test_round_trips_are_those_that_the_overlay_has_measured_of_the_nearest_peers() -> None:
    plugin = Measuring(lambda host: [NetworkSource(host, PERIOD_S)])
    host = FakeHost(1, plugin)
    host.neighbours = tuple(peer(number) for number in range(2, 2 + RTT_PEERS_MAX + 3))
    host.rtts = {each.id: each.id / 1000 for each in host.neighbours if each.id != 3}
    host.fire("measure", "network")
    assert len(plugin.told.values) == RTT_PEERS_MAX - 1, "those of the nearest, without the one that is not measured"
    assert plugin.told.values[full_name("rtt", NodeId(2))] == 0.002
    assert host.sent == [] and host.requests == [], "it must not cost a message"
    host.neighbours = host.neighbours[1:]
    host.fire("measure", "network")
    assert full_name("rtt", NodeId(2)) not in plugin.told.values


# In the simulator


class Steps(MeasurementSource):
    """A seeded step function of time, which takes a while to be read and sometimes has nothing."""

    cost_s = 0.25

    def read(self, now: float) -> Mapping[str, float]:
        """The value of the step."""
        step = int(now)
        if step % 7 == 3:
            raise OSError("it fails now")
        return {"cpu": hash_of(step)}


def hash_of(step: int) -> float:
    """A number that looks random, and is the same in each run."""
    return (step * 2654435761 % 2**32) / 2**32


def test_a_simulated_source_is_read_at_virtual_times_and_each_run_is_the_same() -> None:
    def run() -> list[tuple[Any, ...]]:
        plugins = [Measuring(lambda host: [Steps("system", 1.0)]) for _ in range(2)]
        remaining = iter(plugins)
        simulation = ring(2, seed=3, plugins=lambda index: [next(remaining)])
        simulation.run_for(30.0)
        return [call for plugin in plugins for call in plugin.told.calls]

    calls = run()
    assert calls == run()
    values = [(name, *rest) for name, *rest in calls if rest[0] != "failed"]
    assert len(values) > 40 and ("cpu", "failed") in calls
    assert all(value == hash_of(int(asked_at)) for _, value, asked_at in values)
