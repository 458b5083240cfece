"""Filters and events for the section *filter*, always the same ones."""

from __future__ import annotations

from random import Random
from typing import Any, Final

ATTRIBUTES: Final = ("w", "x", "y", "z")
SYMBOLS: Final = tuple(f"S{number:03}" for number in range(500))
VENUES: Final = ("N", "Q", "L", "T", "X", "F", "P", "B")
HOSTS: Final = tuple(f"web{number}.{zone}.example.net" for number in range(100) for zone in ("eu", "us", "ap"))
Ranges = list[list[tuple[float, float]]]
Event = dict[str, Any]


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
