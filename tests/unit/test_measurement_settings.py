"""The tables that name sources and smoothed measurements: what they make, and what is said of wrong ones."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from peerd.api import PluginConfig
from peerd.invalid import first_reason
from peerd.quantities import FROM_TEXT, setting
from protocols.measurement.sources.file import FileSource
from protocols.measurement.sources.scraped import ScrapedSource
from protocols.measurement.sources.settings import SMOOTHED_MAX, SOURCES_MAX, Smoothed, Sources


class Config(PluginConfig):
    """What the protocol's own has of these."""

    sources: Sources = setting({}, "Sources.")
    smoothed: Smoothed = setting({}, "Smoothed measurements.")


def read(text: str) -> Config:
    """The configuration that a file says."""
    return Config.model_validate(tomllib.loads(text), context={FROM_TEXT: True})


def test_sources_and_smoothed_measurements() -> None:
    config = read(
        """
        [sources.room]
        kind = "file"
        path = "/run/room"
        period = "1m"
        [sources.web]
        kind = "prometheus"
        url = "http://127.0.0.1:9100/metrics"
        metrics = { load = 'node_load1', errors = 'http_requests_total{code="500"}' }
        [smoothed]
        cpu_mean_5m = { of = "cpu", mean = "5m" }
        cpu_deviation_8h = { of = "cpu", deviation = "8h" }
        """
    )
    room, web = (settings.source(name) for name, settings in config.sources.items())
    assert isinstance(room, FileSource) and (room.name, room.period_s) == ("room", 60.0)
    assert isinstance(web, ScrapedSource) and (web.name, web.period_s) == ("web", 10.0)
    mean, deviation = (settings.smoothing(name) for name, settings in config.smoothed.items())
    assert (mean.name, mean.of) == ("cpu_mean_5m", "cpu")
    assert mean.add(1.0, 0.0) == 1.0 and mean.add(3.0, 299.0) == 2.0 and mean.add(3.0, 301.0) == 3.0
    assert deviation.add(1.0, 0.0) == 0.0 and deviation.add(3.0, 28_000.0) == 1.0


def test_what_is_written_of_a_configuration_is_read_as_the_same() -> None:
    config = read('[sources.a]\nkind = "file"\npath = "x"\n[smoothed]\nb = { of = "a", deviation = "1h" }\n')
    assert Config.model_validate(config.model_dump(), context={FROM_TEXT: True}) == config


FILE: dict[str, Any] = {"kind": "file", "path": "x"}
WEB: dict[str, Any] = {"kind": "prometheus", "url": "http://127.0.0.1/", "metrics": {"load": "node_load1"}}
MEAN: dict[str, Any] = {"of": "cpu", "mean": "5m"}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"Room": FILE}, "sources: 'Room' is no name of a measurement"),
        ({"cpu": FILE}, "sources: cpu is a name that every node has"),
        ({"system": FILE}, "sources: system is a name that every node has"),
        ({f"a{number}": FILE for number in range(SOURCES_MAX + 1)}, "expected at most 32 sources"),
        ({"a": {}}, "sources.a.kind: it has to be there"),
        ({"a": {"kind": "exec"}}, "sources.a.kind: expected 'file' or 'prometheus'"),
        ({"a": {"kind": "file"}}, "sources.a: expected path for kind = file"),
        ({"a": FILE | {"url": "http://127.0.0.1/"}}, "sources.a: expected path for kind = file"),
        ({"a": WEB | {"path": "x"}}, "sources.a: expected path for kind = file"),
        ({"a": FILE | {"period": 10}}, "sources.a.period: expected a duration with its unit"),
        ({"a": FILE | {"period": "10ms"}}, "sources.a.period: expected a duration from 1s to 1h"),
        ({"a": FILE | {"pth": "x"}}, "sources.a.pth: there is no such key"),
        ({"a": WEB | {"metrics": {}}}, "sources.a: expected path for kind = file"),
        ({"a": WEB | {"metrics": {"cpu": "x"}}}, "sources.a: cpu is a name that every node has"),
        ({"a": WEB | {"metrics": {"b": "x{"}}}, "sources.a: expected a metric such as node_load1"),
        ({"a": WEB | {"url": "http://192.0.2.1/"}}, "sources.a: expected a loopback address"),
        ({"a": WEB | {"url": "ftp://127.0.0.1/"}}, "sources.a: expected a URL such as"),
    ],
)
def test_wrong_sources(sources: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as error:
        Config.model_validate({"sources": sources}, context={FROM_TEXT: True})
    assert expected in first_reason(error.value)


def test_another_machine_is_asked_where_the_operator_says_so() -> None:
    remote = WEB | {"url": "http://192.0.2.1/", "allow_remote": True}
    config = Config.model_validate({"sources": {"a": remote}}, context={FROM_TEXT: True})
    assert isinstance(config.sources["a"].source("a"), ScrapedSource)


@pytest.mark.parametrize(
    ("smoothed", "expected"),
    [
        ({"cpu": MEAN}, "smoothed: cpu is a name that every node has"),
        ({"a b": MEAN}, "smoothed: 'a b' is no name"),
        ({"a": {"of": "C P U", "mean": "5m"}}, "smoothed: 'C P U' is no name"),
        ({"a": {"of": "cpu"}}, "smoothed.a: expected mean or deviation"),
        ({"a": MEAN | {"deviation": "5m"}}, "smoothed.a: expected mean or deviation"),
        ({"a": {"of": "cpu", "mean": "31d"}}, "smoothed.a.mean: expected a duration from"),
        ({"a": MEAN, "b": {"of": "a", "mean": "5m"}}, "smoothed: b is derived of a, which is derived itself"),
        ({f"a{number}": MEAN for number in range(SMOOTHED_MAX + 1)}, "expected at most 64 smoothed measurements"),
    ],
)
def test_wrong_smoothed_measurements(smoothed: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as error:
        Config.model_validate({"smoothed": smoothed}, context={FROM_TEXT: True})
    assert expected in first_reason(error.value)
