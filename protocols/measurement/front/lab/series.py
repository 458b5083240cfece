"""Values that measurements take, and how often they leave their bounds (sections 7.3 and 7.4.4)."""

from __future__ import annotations

import csv
import importlib
import io
import tarfile
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from statistics import pstdev
from typing import Any, Final

from peerd.lab.topologies import data_file
from protocols.measurement.guarantee.centre import Centre
from protocols.measurement.guarantee.interval import Interval, around

NAB: Final = "timeseries/numenta_nab_real.tar.xz"
PLANETLAB: Final = "latency/planetlab_rtt_ms_18x490x490.npz"
CPU: Final = "cpu_utilization"
"""In the names of the processor series of the Numenta Anomaly Benchmark."""
PAIRS: Final = 2000
"""So many pairs of PlanetLab's hosts are looked at."""


class HeldBounds:
    """Bounds that one holder would have, straight from the owner, and how often they were broken."""

    def __init__(self, value: float, half_width: float) -> None:
        self._centre, self._half_width = Centre(value), half_width
        self._interval = around(Interval(value, value), value, half_width)
        self.broken = 0

    def add(self, value: float) -> None:
        """The next value of the owner."""
        self._centre.add(value)
        if not self._interval.holds(value):
            self._interval = around(Interval(value, value), self._centre.place, self._half_width)
            self.broken += 1


def broken_share(values: Sequence[float], half_width: float) -> float:
    """Which share of the steps from one value to the next breaks such bounds."""
    bounds = HeldBounds(values[0], half_width)
    for value in values[1:]:
        bounds.add(value)
    return bounds.broken / max(1, len(values) - 1)


class RandomWalk:
    """A measurement of section 7.3: steps from a normal distribution, whose deviation may change."""

    def __init__(self, rng: Random, half_width: float) -> None:
        self._rng = rng
        self.value = 0.0
        self.bounds = HeldBounds(self.value, half_width)

    def step(self, sigma: float) -> float:
        """The next value."""
        self.value += self._rng.gauss(0.0, sigma)
        self.bounds.add(self.value)
        return self.value


# Real series


@lru_cache(maxsize=1)
def cpu_series() -> tuple[tuple[float, ...], ...]:
    """The processor series of `NAB`, in standard deviations; none without the file."""
    path = data_file(NAB)
    if path is None:
        return ()
    with tarfile.open(path) as archive:
        names = sorted(name for name in archive.getnames() if CPU in name and name.endswith(".csv"))
        return tuple(_scaled(_values(archive.extractfile(name))) for name in names)


def _values(file: Any) -> list[float]:
    return [float(row["value"]) for row in csv.DictReader(io.TextIOWrapper(file, "utf-8"))]


def _scaled(values: Iterable[float]) -> tuple[float, ...]:
    found = list(values)
    unit = pstdev(found) or 1.0
    return tuple(value / unit for value in found)


def shifted(series: Sequence[Sequence[float]], rng: Random, nodes: int, steps: int) -> list[list[float]]:
    """Series for so many nodes, the same ones again and again, each from a time of its own on."""
    found = []
    for node in range(nodes):
        values = series[node % len(series)]
        first = rng.randrange(len(values))
        found.append([values[(first + step) % len(values)] for step in range(steps)])
    return found


@lru_cache(maxsize=1)
def planetlab_series(seed: int) -> tuple[tuple[float, ...], ...]:
    """Round trips of some pairs in all slices of `PLANETLAB`, in milliseconds; none without the file."""
    path = data_file(PLANETLAB)
    if path is None:
        return ()
    slices = importlib.import_module("numpy").load(path)["rtt"]
    hosts, rng = range(slices.shape[1]), Random(seed)
    pairs = [rng.sample(hosts, 2) for _ in range(PAIRS)]
    return tuple(tuple(float(each[one, other]) for each in slices) for one, other in pairs)
