"""The matching index, beside two ways to match without it: a loop over compiled filters, and a numpy scan."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from bench.measure import Bench, BenchFailure, at_most, ratios
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.evaluate import matcher
from peerd.lib.filter.index import FilterIndex
from peerd.lib.filter.normal import normal_form
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Node

SCAN_SHARE_MAX: Final = 0.2
LOOP_SHARE_MAX: Final = 0.05
SUBSCRIPTION_BYTES_MAX: Final = 1024
REFUSAL_MS_MAX: Final = 10.0
SHARES: Final = {"narrow ranges": 0.1, "wide ranges": 0.2}
"""How much of each attribute a range holds. The wider, the more filters have to be listed for each event."""
ATTRIBUTES: Final = ("w", "x", "y", "z")
SYMBOLS: Final = tuple(f"S{number:03}" for number in range(500))
VENUES: Final = ("N", "Q", "L", "T", "X", "F", "P", "B")
HOSTS: Final = tuple(f"web{number}.{zone}.example.net" for number in range(100) for zone in ("eu", "us", "ap"))
Ranges = list[list[tuple[float, float]]]
Event = dict[str, Any]
Find = Callable[[Event], list[int]]


def ranges(count: int, share: float, seed: int = 1) -> Ranges:
    """Return for each filter a range of each attribute that covers from half to one and a half of ``share`` of it."""
    random = Random(seed)

    def one() -> tuple[float, float]:
        width = random.uniform(0.5 * share, 1.5 * share)
        low = random.uniform(0, 1 - width)
        return low, low + width

    return [[one() for _ in ATTRIBUTES] for _ in range(count)]


def range_text(filter_: list[tuple[float, float]]) -> str:
    """The text of a conjunction of ranges."""
    return " AND ".join(
        f"{name} BETWEEN {low!r} AND {high!r}" for name, (low, high) in zip(ATTRIBUTES, filter_, strict=True)
    )


def range_events(count: int, seed: int = 2) -> list[Event]:
    """Return events: random points in the same space."""
    random = Random(seed)
    return [{name: random.random() for name in ATTRIBUTES} for _ in range(count)]


def selectors(count: int, seed: int = 3) -> list[str]:
    """Filters as people write them: equality, lists, ranges, patterns, alternatives, negation; every text differs."""
    random = Random(seed)

    def one(number: int) -> str:
        symbol, other = random.choice(SYMBOLS), random.choice(SYMBOLS)
        price, size = random.uniform(1, 500), random.randrange(100, 10_000)
        return random.choice(
            (
                f"sym = '{symbol}' AND price > {price:.2f}",
                f"sym IN ('{symbol}', '{other}') AND size >= {size}",
                f"price BETWEEN {price:.2f} AND {price * 1.1:.2f} AND venue = '{random.choice(VENUES)}'",
                f"sym LIKE '{symbol[:3]}%' AND size > {size} AND venue <> '{random.choice(VENUES)}'",
                f"(sym = '{symbol}' OR sym = '{other}') AND NOT halted AND price < {price:.2f}",
                f"host STARTS WITH 'web{random.randrange(100)}.' AND level >= {random.randrange(3, 8)}",
                f"host ENDS WITH '.{random.choice(('eu', 'us', 'ap'))}.example.net' AND latency > {price:.1f}",
                f"message LIKE '%error {number % 97}%' AND level > {random.randrange(3, 7)}",
                f"message MATCHES '.*code=[{number % 5}-9]{number % 89}.*' AND sym = '{symbol}'",
                f"ip IN CIDR '10.{random.randrange(256)}.0.0/16' AND level > {random.randrange(2, 6)}",
                f"user = 'u{random.randrange(5000)}' AND (latency > {price:.1f} OR level >= 7)",
                f"at >= TIMESTAMP '2024-01-{random.randrange(1, 28):02}T00:00:00Z' AND sym = '{symbol}'",
            )
        )

    return [one(number) for number in range(count)]


def selector_events(count: int, seed: int = 4) -> list[Event]:
    """Return events with the attributes that the selectors read."""
    random = Random(seed)
    return [
        {
            "sym": random.choice(SYMBOLS),
            "price": round(random.uniform(1, 500), 2),
            "size": random.randrange(100, 10_000),
            "venue": random.choice(VENUES),
            "halted": random.random() < 0.1,
            "host": random.choice(HOSTS),
            "level": random.randrange(8),
            "latency": round(random.expovariate(1 / 80), 1),
            "message": f"error {random.randrange(97)} code={random.randrange(10)}{random.randrange(100)} in worker",
            "ip": f"10.{random.randrange(256)}.{random.randrange(256)}.7",
            "user": f"u{random.randrange(5000)}",
            "at": f"2024-01-{random.randrange(1, 29):02}T12:00:00Z",
        }
        for _ in range(count)
    ]


def run(bench: Bench) -> None:
    """Ranges, selectors, memory, bombs."""
    count = bench.scale.of(10_000, 2_000, 100)
    for name, share in SHARES.items():
        _ranges(bench, count, name, share)
    _selectors(bench, count)
    _bombs(bench)


def _ranges(bench: Bench, count: int, name: str, share: float) -> None:
    bench.progress(f"{count:,} conjunctions of {len(ATTRIBUTES)} {name}")
    made = ranges(count, share)
    nodes = [parse(range_text(filter_)) for filter_ in made]
    index, bytes_each = _built(nodes)
    events = range_events(bench.scale.of(400, 100, 10))
    finds: dict[str, Find] = {"index": index.match, "scan": _scan(made), "loop": _loop(nodes)}
    found = _check(finds, events[:20])
    times = _measure(bench, finds, events)
    note = f"{count:,} filters, {found:.1f} match an event"
    bench.row(f"{name}: index", "us/event", times["index"], note=note)
    bench.row(f"{name}: numpy scan", "us/event", times["scan"], note="both ends of all ranges compared, whole arrays")
    bench.row(f"{name}: loop", "us/event", times["loop"], note="compiled filters one by one")
    bench.row(f"{name}: index / numpy scan", "x", ratios(times["index"], times["scan"]), at_most(SCAN_SHARE_MAX))
    bench.row(f"{name}: memory a filter", "bytes", [bytes_each], at_most(SUBSCRIPTION_BYTES_MAX), "beyond its text")


def _selectors(bench: Bench, count: int) -> None:
    bench.progress(f"{count:,} selectors")
    nodes = [parse(text) for text in selectors(count)]
    index, bytes_each = _built(nodes)
    events = selector_events(bench.scale.of(400, 100, 10))
    finds: dict[str, Find] = {"index": index.match, "loop": _loop(nodes)}
    found = _check(finds, events[:20])
    times = _measure(bench, finds, events)
    bench.row("selectors: index", "us/event", times["index"], note=f"{count:,} filters, {found:.1f} match an event")
    bench.row("selectors: loop", "us/event", times["loop"], note="compiled filters one by one")
    bench.row("selectors: index / loop", "x", ratios(times["index"], times["loop"]), at_most(LOOP_SHARE_MAX))
    bench.row("selectors: memory a filter", "bytes", [bytes_each], at_most(SUBSCRIPTION_BYTES_MAX), "beyond its text")
    changes = min(200, count)
    bench.row("selectors: add", "us", [_changes(index, nodes[:changes])], note="amortised, while the index is in use")


def _built(nodes: Sequence[Node]) -> tuple[FilterIndex[int], float]:
    """The index, and how many bytes a filter takes in it (numbers from 0 are the keys)."""
    for node in nodes:  # fills the caches, such as compiled patterns, which are shared and do not count for the index
        normal_form(node)
    gc.collect()
    tracemalloc.start()
    index = FilterIndex(enumerate(nodes))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return index, held / len(nodes)


def _changes(index: FilterIndex[int], nodes: Sequence[Node]) -> float:
    """Microseconds for adding one filter, building the new ones in included."""
    first = len(index)
    began = time.perf_counter()
    for number, node in enumerate(nodes, first):
        index.add(number, node)
    index.settle()
    return (time.perf_counter() - began) / len(nodes) * 1e6


def _loop(nodes: Sequence[Node]) -> Find:
    compiled = list(enumerate(map(matcher, nodes)))
    return lambda event: [key for key, matches in compiled if matches(event)]


def _scan(made: Ranges) -> Find:
    import numpy

    lows = [numpy.array([filter_[axis][0] for filter_ in made]) for axis in range(len(ATTRIBUTES))]
    highs = [numpy.array([filter_[axis][1] for filter_ in made]) for axis in range(len(ATTRIBUTES))]
    columns = list(zip(ATTRIBUTES, lows, highs, strict=True))

    def find(event: Event) -> list[int]:
        matching: Any = True
        for name, low, high in columns:
            value = event[name]
            matching = matching & (low <= value) & (value <= high)
        found: list[int] = numpy.flatnonzero(matching).tolist()
        return found

    return find


def _check(finds: dict[str, Find], events: Sequence[Event]) -> float:
    """Return how many filters match an event on average. Raises `BenchFailure` unless all ways find the same."""
    total = 0
    for event in events:
        answers = [sorted(find(event)) for find in finds.values()]
        if any(answer != answers[0] for answer in answers):
            raise BenchFailure(f"{', '.join(finds)} do not find the same filters")
        total += len(answers[0])
    return total / len(events)


def _measure(bench: Bench, finds: dict[str, Find], events: Sequence[Event]) -> dict[str, list[float]]:
    """Microseconds an event, run by run, all ways in turn. A run's figure is the median over the events."""
    times: dict[str, list[float]] = {name: [] for name in finds}
    for _ in range(bench.runs):
        for name, find in finds.items():
            some = events if name != "loop" else events[: max(5, len(events) // 10)]
            times[name].append(statistics.median(_timed(find, event) for event in some) * 1e6)
    return times


def _timed(find: Find, event: Event) -> float:
    began = time.perf_counter()
    find(event)
    return time.perf_counter() - began


# --- bombs ----------------------------------------------------------------------------------------------------------

BOMBS: Final[dict[str, str]] = {
    "1 MB of text": "a = '" + "x" * 1_000_000 + "'",
    "nested 3,000 deep": "(" * 3000 + "a = 1" + ")" * 3000,
    "2,000 NOTs": "NOT " * 2000 + "a = 1",
    "10,000 ORs": " OR ".join(f"a = {number}" for number in range(10_000)),
    "300 ORs": " OR ".join(f"a={number}" for number in range(300)),
    "IN list of 400": f"a IN ({', '.join(map(str, range(400)))})",
    "normal form of 2^20": " AND ".join(f"(a{number} = 1 OR b{number} = 1)" for number in range(20)),
    "normal form of 40 x 40": " AND ".join(
        ["(" + " OR ".join(f"(a = {number} AND b = {number})" for number in range(40)) + ")"] * 2
    ),
    "regex of 600 characters": f"a MATCHES '{'ab' * 300}'",
    "regex ((x{100}){100}){100}": "a MATCHES '((x{100}){100}){100}'",
    r"regex (?:\pL{100}){5}": r"a MATCHES '(?:\pL{100}){5}'",
    "LIKE with 100 %": f"a LIKE '{'%a' * 100}%'",
}


def _bombs(bench: Bench) -> None:
    """Measure the slowest refusal of a bomb: a filter made to cost as much as possible."""
    bench.progress("bombs")
    _refusal_ms("a ~ 1")  # loads the parser, which only the first filter of a process does
    slowest: list[float] = []
    names: list[str] = []
    for _ in range(bench.runs):
        taken = {name: _refusal_ms(text) for name, text in BOMBS.items()}
        names.append(max(taken, key=lambda name: taken[name]))
        slowest.append(taken[names[-1]])
    bench.row("bombs: slowest refusal", "ms", slowest, at_most(REFUSAL_MS_MAX), f"of {len(BOMBS)}: {names[-1]}")


def _refusal_ms(text: str) -> float:
    """Return the processor time, ms, until a bomb is refused."""
    began = time.process_time()
    try:
        normal_form(parse(text))
    except FilterError:
        return (time.process_time() - began) * 1e3
    raise BenchFailure(f"a bomb was accepted: {text[:60]}")
