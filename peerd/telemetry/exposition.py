"""The text that Prometheus scrapes, made by Prometheus' library of the numbers of `peerd.telemetry.metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric as MetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from peerd.api import Metric
from peerd.telemetry.samples import Distribution, Sample

Families: TypeAlias = Callable[[], Iterable[tuple[Metric, list[Sample]]]]
INFINITE: Final = float("inf")

_bound_text: Callable[[float], str] = floatToGoString
"""An upper bound as Prometheus writes it."""


def registry_of(families: Families) -> CollectorRegistry:
    """Return a registry of what a node counts, of the process, and of Python's garbage collector."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Numbers(families))
    return registry


def text_of(registry: CollectorRegistry) -> bytes:
    """Return all metrics of a registry as text."""
    return generate_latest(registry)


class _Numbers(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[MetricFamily]:
        for metric, samples in self._families():
            yield _family(metric, samples)


def _family(metric: Metric, samples: list[Sample]) -> MetricFamily:
    if metric.kind == "histogram":
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            assert isinstance(value, Distribution)
            family.add_metric(labels, _buckets(value), value.total)
        return family
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        assert not isinstance(value, Distribution)
        plain.add_metric(labels, value)
    return plain


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Prometheus' buckets: each has the observations of all below it, too."""
    bounds = (*distribution.bounds, INFINITE)
    return [(_bound_text(bound), count) for bound, count in zip(bounds, accumulate(distribution.counts), strict=True)]
