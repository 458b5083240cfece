"""Prometheus metrics: names, types, limits, the exposition text."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from peerd.api import Metric
from peerd.errors import Bug
from peerd.telemetry import metrics as module
from peerd.telemetry.metrics import RING_METRICS, TRAFFIC_METRICS, PrometheusMetrics, buckets, check_metric

ROUNDS = Metric("peerd_aggregation_rounds_total", "counter", "Rounds.", ("outcome",))
OPEN = Metric("peerd_aggregation_open_rounds", "gauge", "Open rounds.")
DURATION = Metric("peerd_aggregation_round_duration_seconds", "histogram", "Duration of rounds.")


@pytest.fixture
def metrics() -> PrometheusMetrics:
    made = PrometheusMetrics(version="1.2.3", revision="abc")
    made.declare((ROUNDS, OPEN, DURATION))
    return made


def samples(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_values_arrive_in_the_text(metrics: PrometheusMetrics) -> None:
    metrics.count(ROUNDS.name, 1.0, {"outcome": "done"})
    metrics.count(ROUNDS.name, 2.0, {"outcome": "done"})
    metrics.gauge(OPEN.name, 4.0, {})
    metrics.observe(DURATION.name, 0.2, {})
    found = samples(metrics)
    assert found[ROUNDS.name, (("outcome", "done"),)] == 3.0
    assert found[OPEN.name, ()] == 4.0
    assert found[DURATION.name + "_count", ()] == 1.0
    assert found[DURATION.name + "_bucket", (("le", "0.25"),)] == 1.0
    assert found[DURATION.name + "_bucket", (("le", "0.1"),)] == 0.0


def test_build_process_and_gc(metrics: PrometheusMetrics) -> None:
    found = samples(metrics)
    labels = next(dict(labels) for name, labels in found if name == "peerd_build_info")
    assert (labels["version"], labels["revision"]) == ("1.2.3", "abc")
    present = {name for name, _ in found}
    assert {"process_resident_memory_bytes", "process_open_fds", "python_gc_collections_total"} <= present
    assert not any(name.endswith("_created") for name in present)


def test_two_nodes_in_one_process_do_not_meet(metrics: PrometheusMetrics) -> None:
    other = PrometheusMetrics(version="1.2.3")
    other.declare((OPEN,))
    metrics.gauge(OPEN.name, 1.0, {})
    assert samples(other)[OPEN.name, ()] == 0.0


def test_declaring_again_keeps_the_value(metrics: PrometheusMetrics) -> None:
    metrics.gauge(OPEN.name, 4.0, {})
    metrics.declare((Metric("peerd_aggregation_open_rounds", "gauge", "Open rounds."),))
    assert samples(metrics)[OPEN.name, ()] == 4.0
    with pytest.raises(Bug, match="declared twice, differently"):
        metrics.declare((Metric("peerd_aggregation_open_rounds", "gauge", "Something else."),))


@pytest.mark.parametrize(
    ("metric", "offence"),
    [
        (Metric("aggregation_rounds_total", "counter", "x"), "not peerd_"),
        (Metric("peerd_Rounds_total", "counter", "x"), "not peerd_"),
        (Metric("peerd_rounds", "counter", "x"), "ends in _total"),
        (Metric("peerd_rounds_total", "gauge", "x"), "ends in _total"),
        (Metric("peerd_delay_ms", "gauge", "x"), "base units"),
        (Metric("peerd_loss_percent", "gauge", "x"), "base units"),
        (Metric("peerd_sent_kib_total", "counter", "x"), "base units"),
        (Metric("peerd_delay_seconds", "summary", "x"), "kind 'summary'"),
        (Metric("peerd_delay_seconds", "gauge", " "), "no help"),
        (Metric("peerd_delay_seconds", "gauge", "x", ("Peer",)), "labels"),
        (Metric("peerd_delay_seconds", "histogram", "x", ("le",)), "labels"),
    ],
)
def test_bad_declarations(metric: Metric, offence: str) -> None:
    with pytest.raises(Bug, match=offence):
        check_metric(metric)


def test_wrong_use_is_a_bug(metrics: PrometheusMetrics) -> None:
    with pytest.raises(Bug, match="not declared"):
        metrics.count("peerd_unknown_total", 1.0, {})
    with pytest.raises(Bug, match="cannot count"):
        metrics.count(OPEN.name, 1.0, {})
    with pytest.raises(Bug, match="cannot count -1"):
        metrics.count(ROUNDS.name, -1.0, {"outcome": "done"})
    with pytest.raises(Bug, match="not a gauge"):
        metrics.gauge(DURATION.name, 1.0, {})
    with pytest.raises(Bug, match="not a histogram"):
        metrics.observe(OPEN.name, 1.0, {})
    with pytest.raises(Bug, match="missing"):
        metrics.count(ROUNDS.name, 1.0, {})
    with pytest.raises(Bug, match="labels"):
        metrics.count(ROUNDS.name, 1.0, {"outcome": "done", "peer": "x"})


def test_label_values_are_bounded(metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    for number in range(10):
        metrics.count(ROUNDS.name, 1.0, {"outcome": f"hostile {number}"})
    metrics.count(ROUNDS.name, 1.0, {"outcome": "hostile 0"})
    found = {labels: value for (name, labels), value in samples(metrics).items() if name == ROUNDS.name}
    assert len(found) == 4
    assert found[(("outcome", "hostile 0"),)] == 2.0
    assert found[(("outcome", "other"),)] == 7.0


def test_traffic_is_read_at_scrape_time(metrics: PrometheusMetrics) -> None:
    traffic: dict[int, list[int]] = {}
    metrics.watch_traffic(lambda: traffic)
    traffic[0xFFFE] = [1, 10, 2, 30]
    traffic[0xFFFF] = [1, 10, 2, 30]
    found = samples(metrics)
    values = [found[metric.name, (("message", "unknown"),)] for metric in TRAFFIC_METRICS]
    assert values == [2.0, 20.0, 4.0, 60.0]


def test_watched_values_are_read_at_scrape_time(metrics: PrometheusMetrics) -> None:
    values: dict[str, float] = {}
    metrics.watch(RING_METRICS, lambda: values)
    assert ("peerd_links", ()) not in samples(metrics)
    values["peerd_links"] = 5.0
    assert samples(metrics)["peerd_links", ()] == 5.0
    with pytest.raises(Bug, match="read at scrape time"):
        metrics.gauge("peerd_links", 1.0, {})
    with pytest.raises(Bug, match="cannot be watched"):
        metrics.watch((OPEN,), lambda: values)


def test_only_what_has_changed_is_told_again(metrics: PrometheusMetrics) -> None:
    metrics.declare(
        (
            Metric("peerd_tries_total", "counter", "Tries.", ("why", "way")),
            Metric("peerd_waiting", "gauge", "Waiting."),
            Metric("peerd_wait_seconds", "histogram", "Wait."),
        )
    )
    metrics.changed()
    metrics.count("peerd_tries_total", 2.0, {"way": "in", "why": "busy"})
    metrics.observe("peerd_wait_seconds", 0.5, {})
    metrics.gauge("peerd_waiting", float("nan"), {})
    assert metrics.changed() == [
        ("peerd_tries_total", "why=busy,way=in", 2.0),
        ("peerd_wait_seconds_sum", "", 0.5),
        ("peerd_wait_seconds_count", "", 1.0),
    ]
    metrics.gauge("peerd_waiting", 0.0, {})
    assert metrics.changed() == [], "no number, and then what it was"
    metrics.gauge("peerd_waiting", 3.0, {})
    assert metrics.changed() == [("peerd_waiting", "", 3.0)]


def test_our_own_metrics_follow_the_rules() -> None:
    for metric in (*RING_METRICS, *TRAFFIC_METRICS):
        check_metric(metric)


def test_buckets_by_unit() -> None:
    assert buckets("peerd_swap_bytes")[0] == 256.0
    assert buckets("peerd_x_ratio")[-1] == 1.0
    assert buckets("peerd_lookup_hops") == module.COUNT_BUCKETS
    for unit in ("seconds", "bytes", "ratio", "hops"):
        found = buckets(f"peerd_x_{unit}")
        assert list(found) == sorted(set(found))
