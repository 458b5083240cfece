"""What the demo subscribes to: filters as text, each with the same condition once more as plain Python. Pure.

The conditions are the independent check: they do not know peerd's filter language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

from protocols.pubsub.front.demo.data import Events

BANDS: Final = 24
"""Subscriptions that share all prices among them: many enough for the tree to have more than one leaf."""
PRICE_STEP: Final = 100
"""The domain of prices ends at a multiple of this."""


def schemas_for(trades: Events) -> list[dict[str, Any]]:
    """The schemas of the demo. The domain of prices is not much larger than they are."""
    end = price_end(max(Decimal(trade["price"]) for trade in trades))
    return [
        {
            "name": "stocks",
            "attributes": [
                {"name": "symbol", "type": "string"},
                {"name": "price", "type": "decimal", "low": "0", "high": str(end)},
                {"name": "volume", "type": "int", "low": 0, "high": 10**12},
                {"name": "day", "type": "string"},
            ],
        },
        {
            "name": "servers",
            "attributes": [
                {"name": "host", "type": "string"},
                {"name": "metric", "type": "string"},
                {"name": "value", "type": "float", "low": 0, "high": 1000},
            ],
        },
    ]


def price_end(highest: Decimal) -> int:
    """Where the domain of prices ends."""
    return (int(highest) // PRICE_STEP + 1) * PRICE_STEP


@dataclass(frozen=True, slots=True)
class DemoWish:
    """One subscription. ``node``: whose client it is, from 0 on. ``label``: subscriptions that are shown as one."""

    schema: str
    node: int
    filter: str
    wanted: Callable[[Mapping[str, Any]], bool]
    label: str = ""


def wishes_for(trades: Events, metrics: Events, nodes: int) -> list[DemoWish]:
    """Subscriptions at different nodes, with bounds that some of these events lie within."""
    symbol = Counter(trade["symbol"] for trade in trades).most_common(1)[0][0]
    of_symbol = sorted(Decimal(trade["price"]) for trade in trades if trade["symbol"] == symbol)
    dear, first = of_symbol[len(of_symbol) // 2], symbol[:1]
    volume = sorted(trade["volume"] for trade in trades)[len(trades) // 2]
    busy = sorted(metric["value"] for metric in metrics)[len(metrics) * 9 // 10]
    return [
        DemoWish(
            "stocks",
            1 % nodes,
            f"symbol = '{symbol}' AND price > {dear}",
            lambda event: event["symbol"] == symbol and Decimal(event["price"]) > dear,
        ),
        DemoWish(
            "stocks",
            2 % nodes,
            f"symbol STARTS WITH '{first}' AND NOT volume < {volume}",
            lambda event: event["symbol"].startswith(first) and event["volume"] >= volume,
        ),
        DemoWish(
            "servers",
            3 % nodes,
            f"metric CONTAINS 'cpu' AND value > {busy}",
            lambda event: "cpu" in event["metric"] and event["value"] > busy,
        ),
        *_bands(sorted(Decimal(trade["price"]) for trade in trades)),
    ]


def _bands(prices: Sequence[Decimal]) -> list[DemoWish]:
    """All prices, cut into parts in which about as many of these events lie."""
    cuts = sorted({prices[len(prices) * step // BANDS] for step in range(1, BANDS)})
    ends = [Decimal(0), *cuts, Decimal(price_end(prices[-1]))]
    return [_band(low, high) for low, high in pairwise(ends) if low < high]


def _band(low: Decimal, high: Decimal) -> DemoWish:
    def wanted(event: Mapping[str, Any]) -> bool:
        return low <= Decimal(event["price"]) < high

    return DemoWish("stocks", 0, f"price >= {low} AND price < {high}", wanted, "price in each of {} parts")
