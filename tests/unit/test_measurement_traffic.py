"""What is counted of questions and messages, and told once a minute."""

from __future__ import annotations

import pytest

from peerd.ids import NodeId
from peerd.testing.host import FakeHost
from protocols.measurement.bounds import usual_half_width
from protocols.measurement.events import MeasurementTraffic
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement, Terms
from protocols.measurement.messages import NodesQuestion, ReadValues
from protocols.measurement.readings import NoReading, Reading
from protocols.measurement.traffic import REPORT_S, TrafficCounts, relative_width

CPU = Measurement(NodeId(2), "cpu")


def reading(*, is_stale: bool = False) -> Reading:
    """An answer of an owner."""
    return Reading(CPU, 0.5, Interval(0.4, 0.6), 1.0, is_stale, CPU.owner)


def counts() -> tuple[FakeHost, TrafficCounts]:
    """Of a node that has done nothing yet."""
    host = FakeHost(1)
    return host, TrafficCounts(host, Caching(host.id, 1, Terms()))


def told(host: FakeHost) -> MeasurementTraffic:
    """The only event."""
    [event] = host.events
    assert isinstance(event, MeasurementTraffic)
    return event


def test_values_are_counted_by_what_became_of_them() -> None:
    host, traffic = counts()
    traffic.read([reading(), reading(is_stale=True), NoReading(CPU, "no"), reading(), reading()], at_hand=3)
    traffic.read([reading()], at_hand=1)
    traffic.report()
    event = told(host)
    assert (event.reads, event.values, event.cached, event.stale, event.missing) == (2, 6, 2, 1, 1)
    outcomes = {key: count for (name, key), count in host.counted.items() if name == "peerd_measurement_values_total"}
    assert outcomes == {"cached": 2, "fetched": 2, "stale": 1, "missing": 1}
    assert host.counted["peerd_measurement_reads_total", ""] == 2


def test_messages_are_counted_by_kind() -> None:
    host, traffic = counts()
    time_out = CacheUpdate(1, 1, 1, 0)
    for message in (CacheAsk(1, 1, 1.0, 1.0), time_out, time_out, CacheUpdate(1, 1, 1, 0, gone=(CPU,))):
        traffic.sent(message)
    traffic.sent(ReadValues(()))
    traffic.sent(NodesQuestion(0, NodeId(0)))
    traffic.report()
    event = told(host)
    assert (event.asks, event.owner_questions, event.node_questions) == (1, 1, 1)
    assert (event.updates_broken, event.updates_time_out, event.updates_gone) == (0, 2, 1)


def test_what_has_happened_is_told_once_and_nothing_is_told_of_nothing() -> None:
    host, traffic = counts()
    traffic.report()
    assert not host.events and not host.timers
    traffic.sent(ReadValues(()))
    traffic.sent(ReadValues(()))
    assert host.timers == {("traffic", None): REPORT_S}
    traffic.report()
    assert told(host).owner_questions == 2 and not host.timers
    traffic.report()
    assert len(host.events) == 1
    traffic.sent(ReadValues(()))
    assert host.timers


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([], None),
        ([("queue", 5.0)], None),
        ([("cpu", 0.05)], 1.0),
        ([("cpu", 0.05), ("rtt@00", 0.0), ("queue", 5.0)], 0.5),
        ([("memory", VALUE_MAX)], VALUE_MAX / usual_half_width("memory")),
    ],
)
def test_bounds_are_compared_with_the_usual_ones(bounds: list[tuple[str, float]], expected: float | None) -> None:
    assert relative_width(bounds) == (None if expected is None else pytest.approx(expected))
