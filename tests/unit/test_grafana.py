"""The dashboards in deploy/grafana are made of the fronts' panels, and ask only for what daemons measure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import ProcessCollector

from peerd.api import Metric
from peerd.plugins import load_front
from peerd.telemetry.dashboard import COLUMNS, HEIGHT, WIDTH, dashboard
from tests.support.node_panels import PANELS
from tests.unit.test_telemetry_reference import declared_metrics

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
NODE = "node"
"""The dashboard about what every daemon has; the others are of the fronts that have panels."""
TITLES = {
    "aggregation": "peerd: aggregation",
    NODE: "peerd: ring and process",
    "dissemination": "peerd: streams",
    "measurement": "peerd: measurement queries",
    "pubsub": "peerd: publish/subscribe",
}
SUFFIXES = ("_bucket", "_count", "_sum")
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds to everything."""


def made(name: str) -> str:
    """The dashboard of one protocol as it is in the file."""
    panels = PANELS if name == NODE else load_front(name).panels()
    return json.dumps(dashboard(name, TITLES[name], panels), indent=2) + "\n"


def asked(dashboard: dict[str, Any]) -> Iterator[str]:
    """What it asks of Prometheus."""
    for panel in dashboard["panels"]:
        assert panel["targets"], panel["title"]
        yield from (target["expr"] for target in panel["targets"])


def offences(ask: str, metrics: dict[str, Metric]) -> list[str]:
    """Metrics and labels that do not exist, and counters that are shown as they are instead of their rate."""
    found = []
    labels = set(SCRAPED)
    for before, name in re.findall(r"(rate\(|increase\(|)\b((?:peerd|process)_\w+)", ask):
        suffix = next((each for each in SUFFIXES if name.endswith(each) and name not in metrics), "")
        metric = metrics.get(name.removesuffix(suffix))
        if metric is None or bool(suffix) != (metric.kind == "histogram"):
            found.append(f"{name}: there is no such metric")
            continue
        if (metric.kind != "gauge") != bool(before):
            found.append(f"{name}: a {metric.kind} is shown {'with' if before else 'without'} a rate")
        labels |= {*metric.labels, *(("le",) if suffix == "_bucket" else ())}
    wanted = [label for group in re.findall(r" by \(([^)]*)\)", ask) for label in group.split(", ")]
    wanted += re.findall(r"[{,](\w+)=~?\"", ask)
    return found + [f"{label}: no metric there has this label" for label in wanted if label not in labels]


PROCESS = [
    Metric(f"{each.name}{'_total' if each.type == 'counter' else ''}", each.type, "")
    for each in ProcessCollector(registry=None).collect()
]
METRICS = {metric.name: metric for metric in (*declared_metrics(), *PROCESS)}


@pytest.mark.parametrize("name", sorted(TITLES))
def test_the_file_is_what_the_front_says(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text("utf-8") == made(name), "run: python tests/unit/test_grafana.py"


@pytest.mark.parametrize("name", sorted(TITLES))
def test_every_metric_and_label_exists(name: str) -> None:
    found = [f"{ask}: {offence}" for ask in asked(json.loads(made(name))) for offence in offences(ask, METRICS)]
    assert not found, "\n".join(found)


def test_every_metric_of_the_alerts_exists() -> None:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert "peerd_" in rule["expr"] and not offences(rule["expr"], METRICS), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "action"} and "severity" in rule["labels"], rule["alert"]


def test_what_people_look_for_first_has_a_panel() -> None:
    asks = " ".join(ask for name in TITLES for ask in asked(json.loads(made(name))))
    for metric in ("members_missing", "ring_ready", "aggregation_rounds_total", "dissemination_reader_drops_total"):
        assert f"peerd_{metric}" in asks
    assert "process_resident_memory_bytes" in asks


def test_there_is_a_dashboard_for_every_front_with_panels_and_no_other() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(TITLES)


@pytest.mark.parametrize(
    ("ask", "offence"),
    [
        ("sum(peerd_pubsub_unheard_of)", "no such metric"),
        ("sum (rate(peerd_pubsub_delivery_seconds[1m]))", "no such metric"),
        ("sum (rate(peerd_pubsub_leaves_count[1m]))", "no such metric"),
        ("sum(peerd_pubsub_matched_total)", "a counter is shown without a rate"),
        ("sum (rate(peerd_pubsub_leaves[1m]))", "a gauge is shown with a rate"),
        ("sum by (peer) (rate(peerd_pubsub_dropped_total[1m]))", "peer: no metric there has this label"),
        ('sum (rate(peerd_pubsub_dropped_total{why=~"a"}[1m]))', "why: no metric there has this label"),
    ],
)
def test_the_check_bites(ask: str, offence: str) -> None:
    [found] = offences(ask, METRICS)
    assert offence in found


def test_panels_do_not_cover_each_other() -> None:
    panels = [{"title": str(number), "targets": []} for number in range(5)]
    places = [panel["gridPos"] for panel in dashboard("x", "X", panels)["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == 5
    assert all(place["x"] in range(0, COLUMNS * WIDTH, WIDTH) and place["y"] % HEIGHT == 0 for place in places)


if __name__ == "__main__":
    for protocol in TITLES:
        (FOLDER / f"{protocol}.json").write_text(made(protocol), "utf-8")
