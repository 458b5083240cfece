"""Matching at a leaf of publish/subscribe, beside a loop over the subscriptions' compiled filters."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from bench.measure import Bench, BenchFailure, at_most, ratios
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.matching.index import LeafIndex
from protocols.pubsub.messages import SubObject
from protocols.pubsub.names import EVERY
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.tree.cells import SIDE, WHOLE

LOOP_SHARE_MAX: Final = 0.05
BYTES_MAX: Final = 1024
"""Memory of each subscription in the index, beyond its text and the `SubObject` that holds it."""
SUBSCRIBERS: Final = 1000
TRACED_MAX: Final = 10_000
"""The memory of more is not measured: tracing every allocation would take minutes."""
CROSSOVER_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SYMBOLS: Final = tuple(f"S{number:03}" for number in range(500))
DOCUMENT: Final = {
    "name": "trades",
    "attributes": [
        {"name": "price", "type": "float", "low": 0, "high": 1000},
        {"name": "volume", "type": "int", "low": 0, "high": 1_000_000},
        {"name": "change", "type": "float", "low": -20, "high": 20},
        {"name": "sym", "type": "string", "low": "A", "high": "Z"},
    ],
}
Find = Callable[[dict[str, Any]], list[int]]


def run(bench: Bench) -> None:
    """Two sizes, distinct filters and equal ones, and from how many subscriptions on the index is faster."""
    schema = EventSchema.read(DOCUMENT)
    events = _events(bench.scale.of(300, 100, 10))
    for count in bench.scale.of((10_000, 50_000), (2_000, 10_000), (100, 200)):
        bench.progress(f"{count:,} subscriptions")
        subs = _subscriptions(_texts(count))
        _sizes(bench, schema, subs, events)
    popular = bench.scale.of(10_000, 2_000, 100)
    bench.progress(f"{popular:,} subscriptions of 100 filters")
    shared = _subscriptions(_texts(100) * (popular // 100))
    index, _, bytes_each = _built(schema, shared)
    times = _measure(bench, {"index": _indexed(index)}, events)
    found = statistics.mean(len(index.match(event, _LEAVES)) for event in events)
    note = f"{popular:,} subscriptions, {found:.0f} match an event"
    bench.row("100 filters: index", "us/event", times["index"], note=note)
    assert bytes_each is not None, "few enough to be traced"
    bench.row("100 filters: memory a subscription", "bytes", [bytes_each], at_most(BYTES_MAX))
    bench.progress("crossover")
    sizes = bench.scale.of(CROSSOVER_SIZES, CROSSOVER_SIZES, (1, 64))
    crossings = [_crossover(schema, events[:50], sizes) for _ in range(bench.runs)]
    bench.row("crossover", "subscriptions", crossings, note="from so many on the index is faster than the loop")


def _sizes(bench: Bench, schema: EventSchema, subs: Sequence[SubObject], events: Sequence[dict[str, Any]]) -> None:
    index, add_us, bytes_each = _built(schema, subs)
    finds = {"index": _indexed(index), "loop": _loop(schema, subs)}
    found = _check(finds, events[:20])
    times = _measure(bench, finds, events)
    name = f"{len(subs):,}"
    bench.row(f"{name}: index", "us/event", times["index"], note=f"{found:.1f} match an event")
    bench.row(f"{name}: loop", "us/event", times["loop"], note="compiled filters one by one")
    bench.row(f"{name}: index / loop", "x", ratios(times["index"], times["loop"]), at_most(LOOP_SHARE_MAX))
    if bytes_each is not None:
        bench.row(f"{name}: memory a subscription", "bytes", [bytes_each], at_most(BYTES_MAX), "beyond its text")
    bench.row(f"{name}: add", "us", [add_us], note="parsing, normal form and building in included")


_LEAVES: Final = ((EVERY, WHOLE),)


def _texts(count: int) -> list[str]:
    """Filters of two and three attributes, each of which some 0.1 to 1 % of the events match."""
    random = Random(1)

    def one() -> str:
        price, volume = random.uniform(0, 900), random.randrange(900_000)
        ranges = f"price BETWEEN {price:.2f} AND {price + 100:.2f} AND volume BETWEEN {volume} AND {volume + 100_000}"
        kind = random.randrange(4)
        if kind == 0:
            return f"{ranges} AND change > {random.uniform(-20, 10):.2f}"
        if kind == 1:
            return f"sym = '{random.choice(SYMBOLS)}' AND price > {price:.2f}"
        if kind == 2:
            return f"sym STARTS WITH '{random.choice(SYMBOLS)[:3]}' AND change < {random.uniform(-20, 0):.2f}"
        return ranges

    return [one() for _ in range(count)]


def _subscriptions(texts: Sequence[str]) -> list[SubObject]:
    """One piece of each subscription, all in one leaf: where they are kept does not matter here."""
    peers = [PeerRef(NodeId(number), "10.0.0.1", 7000) for number in range(1, SUBSCRIBERS + 1)]
    return [
        SubObject(peers[number % SUBSCRIBERS], number, 0, 1, EVERY, 0, SIDE - 1, text)
        for number, text in enumerate(texts)
    ]


def _events(count: int) -> list[dict[str, Any]]:
    random = Random(3)
    return [
        {
            "price": random.uniform(0, 1000),
            "volume": random.randrange(1_000_000),
            "change": random.uniform(-20, 20),
            "sym": random.choice(SYMBOLS),
        }
        for _ in range(count)
    ]


def _built(schema: EventSchema, subs: Sequence[SubObject]) -> tuple[LeafIndex, float, float | None]:
    """The index, microseconds for adding one, and bytes for each, where there are not too many to trace them."""
    _fill(LeafIndex(schema), subs[:100])  # loads the parser, and fills caches that are shared
    began = time.perf_counter()
    index = _fill(LeafIndex(schema), subs)
    add_us = (time.perf_counter() - began) / len(subs) * 1e6
    if len(subs) > TRACED_MAX:
        return index, add_us, None
    gc.collect()
    tracemalloc.start()
    index = _fill(LeafIndex(schema), subs)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return index, add_us, held / len(subs)


def _fill(index: LeafIndex, subs: Sequence[SubObject]) -> LeafIndex:
    for sub in subs:
        index.add(sub.key, (sub.attribute, WHOLE), sub)
    index.settle()
    return index


def _indexed(index: LeafIndex) -> Find:
    return lambda event: [sub.sid for sub in index.match(event, _LEAVES)]


def _loop(schema: EventSchema, subs: Sequence[SubObject]) -> Find:
    compiled = [(sub.sid, schema.matcher(schema.parse_filter(sub.filter))) for sub in subs]
    return lambda event: [sid for sid, matches in compiled if matches(event)]


def _check(finds: dict[str, Find], events: Sequence[dict[str, Any]]) -> float:
    """Return how many match an event on average. Raises `BenchFailure` unless both find the same."""
    total = 0
    for event in events:
        answers = [sorted(find(event)) for find in finds.values()]
        if any(answer != answers[0] for answer in answers):
            raise BenchFailure("the leaf's index and the loop do not find the same subscriptions")
        total += len(answers[0])
    return total / len(events)


def _measure(bench: Bench, finds: dict[str, Find], events: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Microseconds an event, run by run, in turns; a run's figure is the median over the events."""
    times: dict[str, list[float]] = {name: [] for name in finds}
    for _ in range(bench.runs):
        for name, find in finds.items():
            some = events if name != "loop" else events[: max(5, len(events) // 10)]
            times[name].append(_median_us(find, some))
    return times


def _median_us(find: Find, events: Sequence[dict[str, Any]]) -> float:
    return statistics.median(_timed(find, event) for event in events) * 1e6


def _timed(find: Find, event: dict[str, Any]) -> float:
    began = time.perf_counter()
    find(event)
    return time.perf_counter() - began


def _crossover(schema: EventSchema, events: Sequence[dict[str, Any]], sizes: Sequence[int]) -> float:
    """The smallest size tried from which on the index is faster; the largest, if it never is."""
    subs = _subscriptions(_texts(sizes[-1]))
    slower = [0]
    for position, size in enumerate(sizes):
        index = _fill(LeafIndex(schema), subs[:size])
        if _median_us(_indexed(index), events) > _median_us(_loop(schema, subs[:size]), events):
            slower.append(position + 1)
    return float(sizes[min(slower[-1], len(sizes) - 1)])
