"""Prometheus metrics of one node, on a registry of their own.

`PrometheusMetrics` implements the metric half of `peerd.driver.Driver`. Names follow Prometheus' rules and are checked
when declared: prefix ``peerd_``, base units, ``_total`` on counters and only there. What the node counts anyway
(control messages by type, the state of the ring) is read at scrape time through callbacks.

Here are only the numbers. `peerd.telemetry.exposition` makes Prometheus' text of them. It is loaded at the first
scrape, because the library brings a web server along and takes two MiB.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from peerd.api import Metric
from peerd.errors import Bug
from peerd.messages import message_type
from peerd.telemetry.samples import Distribution, Labels, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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
        self._declared: dict[str, Metric] = {}
        self._numbers: dict[str, dict[Labels, float]] = {}
        """The values of counters and gauges."""
        self._distributions: dict[str, dict[Labels, Distribution]] = {}
        self._watched: list[tuple[Sequence[Metric], Callable[[], Mapping[str, float]]]] = []
        self._traffic: Callable[[], Mapping[int, Sequence[int]]] = dict
        self._told: dict[tuple[str, str], float] = {}
        """What `changed` has returned of each series the last time."""
        self.declare((BUILD_INFO,))
        self.gauge(
            BUILD_INFO.name, 1.0, {"version": version, "revision": revision, "python": platform.python_version()}
        )

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Register metrics. Once more is harmless (a restarted plugin). Raises `Bug` for another declaration."""
        for metric in metrics:
            if not self._is_new(metric):
                continue
            if metric.kind == "histogram":
                self._distributions[metric.name] = {}
                if not metric.labels:
                    self._distributions[metric.name][()] = Distribution(buckets(metric.name))
            else:
                self._numbers[metric.name] = {} if metric.labels else {(): 0.0}

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter. Raises `Bug` when it is not declared so, or the amount is negative."""
        values = self._values(name, labels)
        if self._declared[name].kind != "counter" or amount < 0:
            raise Bug(f"{name}: cannot count {amount} on a {self._declared[name].kind}")
        series = self._numbers[name]
        values = self._bounded(series, values)
        series[values] = series.get(values, 0.0) + amount

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge. Raises `Bug` when it is not declared so."""
        values = self._values(name, labels)
        self._must_be(name, "gauge")
        series = self._numbers[name]
        series[self._bounded(series, values)] = float(value)

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add to a histogram. Raises `Bug` when it is not declared so."""
        values = self._values(name, labels)
        self._must_be(name, "histogram")
        series = self._distributions[name]
        values = self._bounded(series, values)
        if values not in series:
            series[values] = Distribution(buckets(name))
        series[values].add(value)

    def watch(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, float]]) -> None:
        """Register gauges and counters without labels that are read at each scrape: ``read() -> {name: value}``.

        A name that ``read`` leaves out is absent from that scrape.
        """
        for metric in metrics:
            if not self._is_new(metric) or metric.labels or metric.kind == "histogram":
                raise Bug(f"{metric.name}: cannot be watched (declared before, labelled, or a histogram)")
        self._watched.append((tuple(metrics), read))

    def watch_traffic(self, read: Callable[[], Mapping[int, Sequence[int]]]) -> None:
        """Register the control traffic by message type, which is read from ``Node.traffic`` at each scrape."""
        for metric in TRAFFIC_METRICS:
            self._is_new(metric)
        self._traffic = read

    def families(self) -> Iterator[tuple[Metric, list[Sample]]]:
        """Each metric with its values as they are now."""
        yield from self._own_families()
        yield from self._traffic_families()

    def _own_families(self) -> Iterator[tuple[Metric, list[Sample]]]:
        """Those that are counted here, and those that are read at each scrape."""
        for series in (self._numbers, self._distributions):
            for name, values in series.items():
                yield self._declared[name], list(values.items())
        for metrics, read in self._watched:
            now = read()
            for metric in metrics:
                if metric.name in now:
                    yield metric, [((), now[metric.name])]

    def changed(self) -> list[tuple[str, str, float]]:
        """Name, labels and value of each counter and gauge that this has not returned as it is now, and of histograms
        the sum and the count. Control traffic is not among them: it has events of its own."""
        found = []
        for metric, samples in self._own_families():
            for values, sample in samples:
                labels = ",".join(map("=".join, zip(metric.labels, values, strict=True)))
                for name, value in _numbers_of(metric.name, sample):
                    if math.isfinite(value) and self._told.get((name, labels)) != value:
                        self._told[name, labels] = value
                        found.append((name, labels, value))
        return found

    @cached_property
    def registry(self) -> CollectorRegistry:
        """What Prometheus' library asks for the values."""
        from peerd.telemetry.exposition import registry_of

        return registry_of(self.families)

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes (of the type `CONTENT_TYPE`)."""
        from peerd.telemetry.exposition import text_of

        return text_of(self.registry)

    def _traffic_families(self) -> Iterator[tuple[Metric, list[Sample]]]:
        """Four counters for each registered message type, so that their number is bounded."""
        totals: dict[str, list[int]] = {}
        for type_id, counts in self._traffic().items():
            kind = message_type(type_id)
            # Type ids that nobody registered are a peer's invention. They share one series, or they could fill memory.
            row = totals.setdefault(kind.__name__ if kind is not None else "unknown", [0] * len(TRAFFIC_METRICS))
            for column, count in enumerate(counts):
                row[column] += count
        for column, metric in enumerate(TRAFFIC_METRICS):
            yield metric, [((name,), row[column]) for name, row in sorted(totals.items())]

    def _is_new(self, metric: Metric) -> bool:
        check_metric(metric)
        known = self._declared.setdefault(metric.name, metric)
        if known is metric:
            return metric.name not in self._numbers and metric.name not in self._distributions
        if known != metric:
            raise Bug(f"{metric.name} is declared twice, differently")
        return False

    def _values(self, name: str, labels: Mapping[str, str]) -> Labels:
        """The values of the labels in their order. Raises `Bug` for a metric that cannot be set, or other labels."""
        declared = self._declared.get(name)
        if declared is None:
            raise Bug(f"metric {name} is used but not declared")
        try:
            values = tuple([labels[label] for label in declared.labels])
        except KeyError as error:
            raise Bug(f"{name}: label {error} is missing") from error
        if len(labels) != len(values):
            raise Bug(f"{name}: labels {sorted(labels)}, declared {declared.labels}")
        if name not in self._numbers and name not in self._distributions:
            raise Bug(f"{name} is read at scrape time and cannot be set")
        return values

    def _must_be(self, name: str, kind: Literal["gauge", "histogram"]) -> None:
        if self._declared[name].kind != kind:
            raise Bug(f"{name}: is a {self._declared[name].kind}, not a {kind}")

    @staticmethod
    def _bounded(series: Mapping[Labels, object], values: Labels) -> Labels:
        """The labels under which a value is kept: their number is limited, and then all others share one series."""
        return values if values in series or len(series) < SERIES_MAX else (OTHER,) * len(values)


def _numbers_of(name: str, sample: float | Distribution) -> tuple[tuple[str, float], ...]:
    if isinstance(sample, Distribution):
        return (f"{name}_sum", sample.total), (f"{name}_count", float(sum(sample.counts)))
    return ((name, sample),)
