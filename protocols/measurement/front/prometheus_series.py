"""What Prometheus sees of a ring: which measurements a selector means, under which labels, and their samples.

A measurement ``cpu`` is the metric of that name, and its bounds are ``cpu_low`` and ``cpu_high``: under its own name
they would be summed up with it. Labels say ``node`` (its id), ``instance`` (its address), ``peer`` (the other node of a
pair), and the node's tags.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, Protocol

from peerd.ids import NodeId, format_id
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.names import full_name, split_name
from protocols.measurement.promql.evaluate import LOOKBACK_S, SERIES_MAX
from protocols.measurement.promql.refusals import EvaluationFailed
from protocols.measurement.promql.tree import NAME, Matcher, Selector, Series
from protocols.measurement.readings import NodeEntry, NoReading, Reading

NOW_S: Final = 5.0
"""A query up to so long before now is one of now: it reads, instead of looking at what is remembered."""
WARNINGS_MAX: Final = 10
"""Most nodes without an answer that are named. Grafana shows each warning on the panel."""
STALE_SHOWN_MAX: Final = 3
"""Most values that are named as older than asked."""
NODE_S: Final = 70e-6
STEP_S: Final = 160e-9
"""Seconds of processor to look for series, for each node; and for each step of the expressions that match its labels,
which are some 64 characters long (the dearest expression takes 1 ms for each label)."""
BOUNDS: Final = ("", "_low", "_high")
"""What follows a measurement's name in its metrics: the value's, and those of the ends of its interval."""


class PrometheusData(Protocol):
    """Where the numbers come from; times are those of the wall clock."""

    async def nodes(self) -> list[NodeEntry]:
        """All nodes that are known, with their tags and what they measure."""

    async def read(self, measurements: list[Measurement]) -> list[Reading | NoReading]:
        """What each is now."""

    def past(self, measurement: Measurement, start: float, end: float) -> list[tuple[float, float]]:
        """What this node remembers of it, ascending; it may be nothing."""


class FoundMetric(NamedTuple):
    """A series that there is."""

    measurement: Measurement
    bound: str
    """One of `BOUNDS`."""
    labels: Mapping[str, str]


def node_labels(node: NodeEntry) -> dict[str, str]:
    """The labels of all series of a node. A tag whose name is taken or reserved begins with ``tag_``."""
    labels = {"node": format_id(node.id), "instance": node.address}
    for tag, value in sorted(node.tags.items()):
        name = re.sub(r"[^a-zA-Z0-9_]", "_", tag)
        while not name or name[0].isdigit() or name.startswith("__") or name in (*labels, "peer"):
            name = f"tag_{name}"
        labels[name] = value
    return labels


def price_of_finding(nodes: Sequence[NodeEntry], wanted: Iterable[Selector]) -> float:
    """Seconds of processor that `find_metrics` takes, at most."""
    return len(nodes) * sum(NODE_S + STEP_S * sum(each.steps for each in selector.matchers) for selector in wanted)


def find_metrics(nodes: Iterable[NodeEntry], wanted: Sequence[Selector] = ()) -> list[FoundMetric]:
    """The series that any of the selectors means; without selectors all."""
    found: dict[tuple[Measurement, str], FoundMetric] = {}
    accepts = cache(Matcher.accepts)
    for node in nodes:
        labels = node_labels(node)
        for selector in wanted or (Selector(()),):
            for metric in _of_node(node, labels, selector, accepts):
                found[metric.measurement, metric.bound] = metric
    return list(found.values())


def at_most(found: list[FoundMetric]) -> list[FoundMetric]:
    """The same. Raises `PromqlRefused` if these are more series than an answer may have."""
    if len(found) > SERIES_MAX:
        raise EvaluationFailed(f"{len(found)} series match, {SERIES_MAX} are the most: name more labels")
    return found


def _of_node(
    node: NodeEntry, labels: Mapping[str, str], selector: Selector, accepts: Callable[[Matcher, str], bool]
) -> Iterator[FoundMetric]:
    own = [matcher for matcher in selector.matchers if matcher.name in (NAME, "peer")]
    if not all(matcher in own or accepts(matcher, labels.get(matcher.name, "")) for matcher in selector.matchers):
        return
    taken = set(node.measurements)
    for full in node.measurements:
        name, peer = split_name(full)
        for bound in BOUNDS:
            told = {NAME: name + bound, **({} if peer is None else {"peer": format_id(peer)})}
            is_taken = bound and full_name(name + bound, peer) in taken
            if not is_taken and all(accepts(matcher, told.get(matcher.name, "")) for matcher in own):
                yield FoundMetric(Measurement(node.id, full), bound, {**told, **labels})


async def read_series(
    data: PrometheusData, nodes: Sequence[NodeEntry], wanted: Sequence[Selector], start: float, end: float, now: float
) -> tuple[dict[Selector, list[Series]], list[str]]:
    """The samples that a query from ``start`` to ``end`` needs (the same moment for an instant query), and warnings.

    What is about now is read; what was before comes from this node's memory.
    """
    metrics = {selector: at_most(await asyncio.to_thread(find_metrics, nodes, [selector])) for selector in wanted}
    of_now = [selector for selector in wanted if end - selector.offset_s >= now - NOW_S]
    asked = list(dict.fromkeys(metric.measurement for selector in of_now for metric in metrics[selector]))
    readings = {reading.measurement: reading for reading in (await data.read(asked) if asked else [])}
    series: dict[Selector, list[Series]] = {selector: [] for selector in wanted}
    for selector in wanted:
        first, last = start - selector.offset_s - (selector.range_s or LOOKBACK_S), end - selector.offset_s
        needs_past = selector not in of_now or selector.range_s > 0 or start < end
        at = min(now, last)
        for measurement, bound, labels in metrics[selector]:
            samples = data.past(measurement, first, last) if needs_past and not bound else []
            reading = readings.get(measurement)
            if selector in of_now and isinstance(reading, Reading):
                interval = reading.interval
                value = {"": reading.value, "_low": interval.low, "_high": interval.high}[bound]
                samples = [*(sample for sample in samples if sample[0] < at), (at, value)]
            if samples:
                series[selector].append(Series(labels, samples))
    return series, _warnings(list(readings.values()), {node.id: node.address for node in nodes})


def _warnings(readings: Sequence[Reading | NoReading], addresses: Mapping[NodeId, str]) -> list[str]:
    """Which nodes gave no answer, and which values are older than they should be; not too many of each."""
    silent, stale = dict[str, None](), list[str]()
    for each in readings:
        owner = each.measurement.owner
        if isinstance(each, NoReading):
            silent[f"node {format_id(owner)} ({addresses.get(owner, '?')}): {each.reason}"] = None
        elif each.is_stale:
            stale.append(f"{each.measurement.name} of {addresses.get(owner, '?')} ({each.age_s:.0f} s)")
    warnings = list(silent)[:WARNINGS_MAX]
    if len(silent) > WARNINGS_MAX:
        warnings.append(f"{len(silent) - WARNINGS_MAX} more gave no answer")
    if stale:
        shown = ", ".join(stale[:STALE_SHOWN_MAX]) + (", ..." if len(stale) > STALE_SHOWN_MAX else "")
        count = f"{len(stale)} values are" if len(stale) > 1 else "1 value is"
        warnings.append(f"{count} older than asked: {shown}")
    return warnings
