"""What the experiments with values within a tolerance are about: servers, links, changing objects, and who wants what.

As section 5.1 of Zhou, Ooi and Tan (2008) has it, where the paper says it. Node 0 is the source.
"""

from __future__ import annotations

import csv
import io
import lzma
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from peerd.errors import ConfigError
from peerd.lab.topologies import SECTION, data_file, measured_or_square, table_of
from peerd.sim.scenario import parse_scenario
from protocols.dissemination.policies.cost.model import Costs

STOCKS: Final = "stocks/padres_stockquotes_100symbols_daily.csv.xz"
INET: Final = "topology/inet-3000.txt"
MEAN_RTT: Final = "40ms"
"""The mean delay between two servers is 20 ms."""
FILTER_S: Final = (0.001, 0.005)
"""The least and the mean time to look whether a child wants a value."""
SEND_S: Final = (0.000125, 0.001)
"""The least and the mean time to send it."""
ADAPT_S: Final = 1e-6
"""What a report, and one possible change, take (t^e and t^d)."""
WINDOW_S: Final = 50.0
ROUND_S: Final = 200.0
RATE: Final = (0.5, 1.0)
"""The least and the mean rate of updates that a server wants of a single object, a second."""
TOLERANCES: Final = (0.01, 0.1)
"""The range of tolerances, of several objects."""
STEP: Final = 0.03
"""The median change of an object from one value to the next, of several objects: some cents, as of quotes that follow
each other within seconds."""
OBJECT_GAP_S: Final = 125.0
"""Between two changes of one of several objects, in the mean."""
CALIBRATION_STEPS: Final = 20_000
GAUSS_MEDIAN: Final = 0.6745
"""The median of the absolute value of a normal variable."""


@dataclass(frozen=True, slots=True)
class Update:
    """A new value of an object at the source."""

    at_s: float
    object: int
    value: float


@dataclass(frozen=True, slots=True)
class CoherencyWorld:
    """All that a run depends on, but the shape of the trees."""

    costs: tuple[Costs, ...]
    delays: tuple[tuple[float, ...], ...]
    tolerances: tuple[Mapping[int, float], ...]
    """For each node, the objects that it wants, and how far its values may be from the true ones."""
    rates: tuple[Mapping[int, float], ...]
    """For each node and object, how many updates a second it would get straight from the source; the source's own
    are the rates of changes."""
    updates: tuple[Update, ...]
    first: tuple[float, ...]
    """The value of each object at the beginning."""

    @property
    def nodes(self) -> range:
        """All nodes, the source being 0."""
        return range(len(self.costs))

    def slowed(self, nodes: Sequence[int], factor: float) -> CoherencyWorld:
        """The same with some nodes that take so many times as long for everything."""
        slow = set(nodes)
        costs = tuple(
            replace(its, filter_s=factor * its.filter_s, send_s=factor * its.send_s) if node in slow else its
            for node, its in enumerate(self.costs)
        )
        return replace(self, costs=costs)


def topology() -> str:
    """The Inet graph of `PEERD_DATA` where there is one, else random points of a square; the mean delay is the same."""
    return measured_or_square("inet-3000", INET, MEAN_RTT)


@lru_cache(maxsize=2)
def delays_of(topology: str, seed: int, count: int) -> tuple[tuple[float, ...], ...]:
    """The one-way delays between all nodes."""
    latency = parse_scenario({SECTION: table_of(topology)}).topology.build(seed)
    return tuple(tuple(latency.latency_s(a, b) if a != b else 0.0 for b in range(count)) for a in range(count))


def costs_of(count: int, load: float, rng: Random) -> tuple[Costs, ...]:
    """Uniformly distributed, with means that grow with the load; the source is as fast as any can be."""
    spent = ADAPT_S / WINDOW_S, ADAPT_S / ROUND_S

    def drawn(least: float, mean: float) -> float:
        return rng.uniform(least, 2 * load * mean - least)

    others = [Costs(drawn(*FILTER_S), drawn(*SEND_S), *spent) for _ in range(count - 1)]
    return (Costs(FILTER_S[0], SEND_S[0], *spent), *others)


# One object: a random walk


@lru_cache(maxsize=1)
def _shares() -> tuple[list[float], list[float]]:
    """Which share of the steps of a random walk leaves a tolerance: shares in ascending order, and tolerances."""
    rng = Random(1)
    steps = [rng.gauss(0.0, 1.0) for _ in range(CALIBRATION_STEPS)]
    tolerances = [number / 20 for number in range(60, -1, -1)]
    return [count_wanted(walk(0.0, steps), tolerance) / len(steps) for tolerance in tolerances], tolerances


def walk(value: float, steps: Sequence[float]) -> Iterator[float]:
    """The values after each step."""
    for step in steps:
        value += step
        yield value


def count_wanted(values: Iterator[float], tolerance: float, last: float = 0.0) -> int:
    """How many updates somebody gets of them straight from the source."""
    count = 0
    for value in values:
        if abs(value - last) > tolerance:
            last = value
            count += 1
    return count


def tolerance_for(share: float) -> float:
    """The tolerance with which this share of the steps of a random walk is wanted."""
    shares, tolerances = _shares()
    at = bisect_left(shares, share)
    if at == 0 or at == len(shares):
        return tolerances[min(at, len(shares) - 1)]
    part = (share - shares[at - 1]) / (shares[at] - shares[at - 1])
    return tolerances[at - 1] + part * (tolerances[at] - tolerances[at - 1])


def single_object(topology: str, seed: int, servers: int, seconds: float, load: float, rate: float) -> CoherencyWorld:
    """One object (section 5.3). ``rate``: how many times as often it changes, and everybody wants it."""
    rng = Random(f"single {seed}")
    costs = costs_of(servers + 1, load, rng)
    rng = Random(f"single values {seed}")
    least, mean = RATE
    wanted = [rate * rng.uniform(least, 2 * mean - least) for _ in range(servers)]
    most = max(wanted)
    tolerances = ({}, *({0: tolerance_for(each / most)} for each in wanted))
    rates = ({0: most}, *({0: each} for each in wanted))
    updates, at_s, value = [], 0.0, 0.0
    while (at_s := at_s + rng.expovariate(most)) < seconds:
        value += rng.gauss(0.0, 1.0)
        updates.append(Update(at_s, 0, value))
    return CoherencyWorld(costs, delays_of(topology, seed, servers + 1), tolerances, rates, tuple(updates), (0.0,))


# Several objects: stock traces


def read_stocks(path: Path) -> dict[str, list[float]]:
    """Prices by symbol: of each day the first, the highest, the lowest and the last. Raises `ConfigError`."""
    found: dict[str, list[float]] = {}
    try:
        text = lzma.decompress(path.read_bytes()).decode()
        for row in csv.DictReader(io.StringIO(text)):
            prices = found.setdefault(row["symbol"], [])
            prices += [float(row[name]) for name in ("open", "high", "low", "close")]
    except (OSError, lzma.LZMAError, ValueError, KeyError) as error:
        raise ConfigError(f"no stock prices: {error}", file=str(path)) from None
    return found


@lru_cache(maxsize=1)
def stock_traces() -> tuple[tuple[float, ...], ...]:
    """The traces of `PEERD_DATA`, without repeated values, scaled to a median change of `STEP`; none without it."""
    path = data_file(STOCKS)
    if path is None:
        return ()
    made = []
    for _, prices in sorted(read_stocks(path).items()):
        changing = [value for last, value in zip([None, *prices], prices, strict=False) if value != last]
        steps = [abs(b - a) for a, b in pairwise(changing)]
        if len(steps) >= 100:
            unit = STEP / median(steps)
            made.append(tuple(round(value * unit, 6) for value in changing))
    return tuple(made)


def object_values(number: int, count: int, rng: Random) -> list[float]:
    """So many values of an object in a row: from a random place of a trace, or a random walk where there are none."""
    traces = stock_traces()
    if not traces:
        return list(walk(100.0, [rng.gauss(0.0, STEP / GAUSS_MEDIAN) for _ in range(count)]))
    trace = traces[number % len(traces)]
    start = rng.randrange(len(trace))
    return [trace[(start + step) % len(trace)] for step in range(count)]


def several_objects(
    topology: str, seed: int, servers: int, seconds: float, load: float, objects: int, interest: float
) -> CoherencyWorld:
    """Several objects (section 5.4), each of which a server wants with the probability ``interest``."""
    rng = Random(f"several {seed}")
    costs = costs_of(servers + 1, load, rng)
    series: list[list[Update]] = []
    first: list[float] = []
    for object in range(objects):
        drawn = Random(f"object {object} {seed}")
        times, at_s = [], 0.0
        while (at_s := at_s + drawn.expovariate(1 / OBJECT_GAP_S)) < seconds:
            times.append(at_s)
        start, *values = object_values(object, len(times) + 1, drawn)
        first.append(start)
        series.append([Update(at_s, object, value) for at_s, value in zip(times, values, strict=True)])
    tolerances: list[dict[int, float]] = [{}]
    for node in range(1, servers + 1):
        drawn = Random(f"wants {node} {seed}")
        wanted = [object for object in range(objects) if drawn.random() < interest]
        tolerances.append({object: drawn.uniform(*TOLERANCES) for object in wanted})
    rates: list[dict[int, float]] = [{object: len(series[object]) / seconds for object in range(objects)}]
    for wants in tolerances[1:]:
        counts = {
            object: count_wanted((each.value for each in series[object]), tolerance, first[object])
            for object, tolerance in wants.items()
        }
        rates.append({object: count / seconds for object, count in counts.items()})
    updates = sorted((each for some in series for each in some), key=lambda each: (each.at_s, each.object))
    delays = delays_of(topology, seed, servers + 1)
    return CoherencyWorld(costs, delays, tuple(tolerances), tuple(rates), tuple(updates), tuple(first))
