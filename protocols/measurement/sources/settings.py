"""The tables of the configuration that say what a node measures beside its own system."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, model_validator

from peerd.quantities import ConfigSection, Duration, between_durations, setting
from protocols.measurement.names import split_name
from protocols.measurement.sources.file import FileSource
from protocols.measurement.sources.scraped import ScrapedSource, check_url, parse_selector
from protocols.measurement.sources.smoothing import Smoothing
from protocols.measurement.sources.source import MACHINE, NETWORK, PUSHED, RESERVED, SMOOTHED, MeasurementSource

SOURCES_MAX: Final = 32
SCRAPED_MAX: Final = 64
"""Measurements of one Prometheus endpoint."""
SMOOTHED_MAX: Final = 64

T = TypeVar("T")
Period = Annotated[Duration, between_durations("1s", "1h")]
Window = Annotated[Duration, between_durations("0s", "30d")]


def _check_keys(table: dict[str, T], what: str, most: int, taken: Collection[str]) -> dict[str, T]:
    """Raise ``ValueError`` for too many keys, and for one that is no name of a measurement, or is taken."""
    if len(table) > most:
        raise ValueError(f"expected at most {most} {what}")
    for key in table:
        split_name(key)
        if key.partition("@")[0] in taken:
            raise ValueError(f"{key} is a name that every node has already; give it another one")
    return table


class SourceSettings(ConfigSection):
    """One source that the operator has named."""

    kind: Literal["file", "prometheus"] = setting(..., "A text file, or a program with metrics for Prometheus.")
    period: Period = setting("10s", "How often it is read: well below the age at which a value is stale.")
    path: str = setting(
        "",
        "Of kind file: where the file is. Its first line is a number, which becomes the measurement with the source's "
        "name, or each line is a name and a number. Replace it by renaming, so that it is never half there.",
    )
    url: str = setting("", "Of kind prometheus: where its metrics are, such as http://127.0.0.1:9100/metrics.")
    metrics: dict[str, str] = setting(
        {},
        "Of kind prometheus: what becomes a measurement, by the measurement's name: a metric, with labels if wanted, "
        'such as http_requests_total{code="500"}. Where it means several series, their sum.',
    )
    allow_remote: bool = setting(False, "Of kind prometheus: url may be on another machine, which is then believed.")

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        is_file = self.kind == "file"
        if bool(self.path) != is_file or bool(self.url) == is_file or bool(self.metrics) == is_file:
            raise ValueError("expected path for kind = file, url and metrics for kind = prometheus, and no others")
        _check_keys(self.metrics, "metrics", SCRAPED_MAX, RESERVED)
        self.source("checked")
        return self

    def source(self, name: str) -> MeasurementSource:
        """Make it. Raises ``ValueError`` for a wrong URL, and a wrong selector."""
        if self.kind == "file":
            return FileSource(name, self.period, self.path)
        selectors = {each: parse_selector(selector) for each, selector in self.metrics.items()}
        url = check_url(self.url, is_remote_allowed=self.allow_remote)
        return ScrapedSource(name, self.period, url, selectors)


class SmoothedSettings(ConfigSection):
    """One measurement that is derived of another."""

    of: str = setting(..., "The measurement that it is derived of; not one that is derived itself.")
    mean: Window = setting("0s", "It is the mean of the samples of so long. 0s: it is not.")
    deviation: Window = setting("0s", "It is the standard deviation of the samples of so long. 0s: it is not.")

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if bool(self.mean) == bool(self.deviation):
            raise ValueError("expected mean or deviation, one of them")
        return self

    def smoothing(self, name: str) -> Smoothing:
        """Make it."""
        return Smoothing(name, self.of, self.mean or self.deviation, is_deviation=not self.mean)


def _check_smoothed(table: dict[str, SmoothedSettings]) -> dict[str, SmoothedSettings]:
    for name, each in _check_keys(table, "smoothed measurements", SMOOTHED_MAX, RESERVED).items():
        split_name(each.of)
        if each.of in table:
            raise ValueError(f"{name} is derived of {each.of}, which is derived itself")
    return table


_NOT_SOURCES: Final = {*RESERVED, MACHINE, NETWORK, PUSHED, SMOOTHED}
Sources = Annotated[
    dict[str, SourceSettings], AfterValidator(lambda table: _check_keys(table, "sources", SOURCES_MAX, _NOT_SOURCES))
]
"""``[protocols.measurement.sources.NAME]``."""
Smoothed = Annotated[dict[str, SmoothedSettings], AfterValidator(_check_smoothed)]
"""``[protocols.measurement.smoothed]``."""
