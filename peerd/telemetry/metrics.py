"""Prometheus metrics of one node, on a registry of their own.

`PrometheusMetrics` implements the metric half of `peerd.driver.Driver`. Names follow Prometheus' rules and are checked
when declared: prefix ``peerd_``, base units, ``_total`` on counters and only there. What the node counts anyway
(control messages by type, the state of the ring) is read at scrape time through callbacks.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric as MetricFamily
from prometheus_client.registry import Collector

from peerd.api import Metric
from peerd.errors import Bug
from peerd.messages import message_type

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SERIES_MAX: Final = 512
"""Most label combinations of one metric; later ones are counted under ``other``, so that labels cannot fill memory."""
OTHER: Final = "other"
SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BYTES_BUCKETS: Final = tuple(float(4**power) for power in range(4, 16))
"""Buckets for sizes, in powers of four from 256 bytes to 1 GiB."""
RATIO_BUCKETS: Final = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 0.999, 1.0)
COUNT_BUCKETS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 256.0, 1024.0)

NAME: Final = re.compile(r"peerd(_[a-z0-9]+)+")
UNITS_NOT_BASE: Final = frozenset(
    {"ms", "us", "ns", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days"}
    | {"kb", "kib", "mb", "mib", "gb", "gib", "kilobytes", "megabytes", "gigabytes", "bits", "percent"}
)

RING_METRICS: Final = (
    Metric("peerd_ring_ready", "gauge", "1 while the leaf set is complete and the node delivers keys."),
    Metric("peerd_ring_estimated_nodes", "gauge", "Nodes in the ring, estimated from the density of the leaf set."),
    Metric("peerd_members_expected", "gauge", "Nodes that the ring should have; estimated where it is large."),
    Metric("peerd_members_missing", "gauge", "Expected members round this node that went without goodbye."),
    Metric("peerd_leaf_set_members", "gauge", "Distinct members of the leaf set."),
    Metric("peerd_links", "gauge", "Control links that are up."),
    Metric("peerd_event_loop_lag_seconds", "gauge", "How late the event loop ran its last timer."),
)
"""The metrics whose values a daemon reads at each scrape; see `PrometheusMetrics.watch`."""

TRAFFIC_METRICS: Final = (
    Metric("peerd_messages_sent_total", "counter", "Control messages sent, by message type.", ("message",)),
    Metric(
        "peerd_messages_sent_bytes_total", "counter", "Bytes of control frames sent, by message type.", ("message",)
    ),
    Metric("peerd_messages_received_total", "counter", "Control messages received, by message type.", ("message",)),
    Metric(
        "peerd_messages_received_bytes_total",
        "counter",
        "Bytes of control frames received, by message type.",
        ("message",),
    ),
)
"""The metrics of traffic, in the order of the columns of ``Node.traffic``."""
BUILD_INFO: Final = Metric(
    "peerd_build_info", "gauge", "1; the labels say what runs.", ("version", "revision", "python")
)

_Child = Counter | Gauge | Histogram


def check_metric(metric: Metric) -> None:
    """Raise `Bug` when a declaration breaks the naming rules."""
    words = metric.name.split("_")
    if metric.kind not in ("counter", "gauge", "histogram"):
        raise Bug(f"{metric.name}: kind {metric.kind!r} is not counter, gauge or histogram")
    if not NAME.fullmatch(metric.name):
        raise Bug(f"{metric.name}: not peerd_ and lower-case words")
    if (words[-1] == "total") != (metric.kind == "counter"):
        raise Bug(f"{metric.name}: a counter ends in _total, and nothing else does")
    if found := UNITS_NOT_BASE.intersection(words):
        raise Bug(f"{metric.name}: {', '.join(sorted(found))}; the base units are seconds, bytes, ratio")
    if not metric.help.strip():
        raise Bug(f"{metric.name}: no help text")
    if any(not re.fullmatch(r"[a-z][a-z0-9_]*", label) or label in ("le", "quantile") for label in metric.labels):
        raise Bug(f"{metric.name}: labels {metric.labels} are not lower-case names")


def buckets(name: str) -> tuple[float, ...]:
    """Histogram buckets for the unit that ends a name."""
    by_unit = {"seconds": SECONDS_BUCKETS, "bytes": BYTES_BUCKETS, "ratio": RATIO_BUCKETS}
    return by_unit.get(name.rpartition("_")[2], COUNT_BUCKETS)


class PrometheusMetrics:
    """Metrics of this process. Not thread-safe against `Node`: call everything, `render` too, on the loop."""

    def __init__(self, *, version: str, revision: str = "unknown") -> None:
        # This is for the whole process. Without it every counter gets a twin `_created`, which doubles a scrape.
        cast(Callable[[], None], disable_created_metrics)()
        self.registry = CollectorRegistry()
        self._declared: dict[str, Metric] = {}
        self._families: dict[str, _Child] = {}
        self._children: dict[tuple[str, tuple[str, ...]], _Child] = {}
        self._series: dict[str, int] = {}
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.declare((BUILD_INFO,))
        self.gauge(
            BUILD_INFO.name, 1.0, {"version": version, "revision": revision, "python": platform.python_version()}
        )

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Register metrics. Once more is harmless (a restarted plugin). Raises `Bug` for another declaration."""
        for metric in metrics:
            if self._is_new(metric):
                self._families[metric.name] = self._create(metric)

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter. Raises `Bug` when it is not declared so, or the amount is negative."""
        child = self._child(name, labels)
        if not isinstance(child, Counter) or amount < 0:
            raise Bug(f"{name}: cannot count {amount} on a {self._declared[name].kind}")
        child.inc(amount)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge. Raises `Bug` when it is not declared so."""
        child = self._child(name, labels)
        if not isinstance(child, Gauge):
            raise Bug(f"{name}: is a {self._declared[name].kind}, not a gauge")
        child.set(value)

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add to a histogram. Raises `Bug` when it is not declared so."""
        child = self._child(name, labels)
        if not isinstance(child, Histogram):
            raise Bug(f"{name}: is a {self._declared[name].kind}, not a histogram")
        child.observe(value)

    def watch(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, float]]) -> None:
        """Register gauges and counters without labels that are read at each scrape: ``read() -> {name: value}``.

        A name that ``read`` leaves out is absent from that scrape.
        """
        for metric in metrics:
            if not self._is_new(metric) or metric.labels or metric.kind == "histogram":
                raise Bug(f"{metric.name}: cannot be watched (declared before, labelled, or a histogram)")
        self.registry.register(_WatchCollector(tuple(metrics), read))

    def watch_traffic(self, read: Callable[[], Mapping[int, Sequence[int]]]) -> None:
        """Register the control traffic by message type, which is read from ``Node.traffic`` at each scrape."""
        for metric in TRAFFIC_METRICS:
            self._is_new(metric)
        self.registry.register(_TrafficCollector(read))

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes (of the type `CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def _is_new(self, metric: Metric) -> bool:
        check_metric(metric)
        known = self._declared.setdefault(metric.name, metric)
        if known is metric:
            return metric.name not in self._families
        if known != metric:
            raise Bug(f"{metric.name} is declared twice, differently")
        return False

    def _create(self, metric: Metric) -> _Child:
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        if metric.kind == "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
        return Histogram(metric.name, metric.help, metric.labels, registry=self.registry, buckets=buckets(metric.name))

    def _child(self, name: str, labels: Mapping[str, str]) -> _Child:
        declared = self._declared.get(name)
        if declared is None:
            raise Bug(f"metric {name} is used but not declared")
        try:
            values = tuple([labels[label] for label in declared.labels])
        except KeyError as error:
            raise Bug(f"{name}: label {error} is missing") from error
        if len(labels) != len(values):
            raise Bug(f"{name}: labels {sorted(labels)}, declared {declared.labels}")
        child = self._children.get((name, values))
        return child if child is not None else self._add_child(name, values)

    def _add_child(self, name: str, values: tuple[str, ...]) -> _Child:
        family = self._families.get(name)
        if family is None:
            raise Bug(f"{name} is read at scrape time and cannot be set")
        if not values:
            return self._children.setdefault((name, values), family)
        if self._series.get(name, 0) >= SERIES_MAX:
            values = (OTHER,) * len(values)
            if (name, values) in self._children:
                return self._children[name, values]
        self._series[name] = self._series.get(name, 0) + 1
        child = self._children[name, values] = family.labels(*values)
        return child


class _WatchCollector(Collector):
    """Makes metric families from what a callback returns, at each scrape."""

    def __init__(self, metrics: tuple[Metric, ...], read: Callable[[], Mapping[str, float]]) -> None:
        self._metrics = metrics
        self._read = read

    def describe(self) -> Iterator[MetricFamily]:
        for metric in self._metrics:
            yield _family(metric)

    def collect(self) -> Iterator[MetricFamily]:
        values = self._read()
        for metric in self._metrics:
            if metric.name in values:
                family = _family(metric)
                family.add_metric([], values[metric.name])
                yield family


class _TrafficCollector(Collector):
    """Four counters for each registered message type, so that their number is bounded."""

    def __init__(self, read: Callable[[], Mapping[int, Sequence[int]]]) -> None:
        self._read = read

    def describe(self) -> Iterator[MetricFamily]:
        for metric in TRAFFIC_METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[MetricFamily]:
        families = [_family(metric) for metric in TRAFFIC_METRICS]
        totals: dict[str, list[int]] = {}
        for type_id, counts in self._read().items():
            kind = message_type(type_id)
            # Type ids that nobody registered are a peer's invention. They share one series, or they could fill memory.
            row = totals.setdefault(kind.__name__ if kind is not None else "unknown", [0] * len(families))
            for column, count in enumerate(counts):
                row[column] += count
        for name, row in sorted(totals.items()):
            for family, count in zip(families, row, strict=True):
                family.add_metric([name], count)
        yield from families


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
