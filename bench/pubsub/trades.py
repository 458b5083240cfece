"""Trades of stocks, and what subscribers want of them: the same for every system.

The trades are the rows of ``stocks/`` in the folder that ``PEERD_DATA`` names (100 symbols, daily bars of 1984 to
2004) in an order drawn at random, or made up where there is no such folder. Each interest is about as selective as the
next: some 1 % of the trades.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.rivals.work import Wants

DATA: Final = "PEERD_DATA"
FILES: Final = "stocks/*.csv.xz"
SYMBOLS: Final = tuple(f"{first}{second}CO" for first in "ABCDEFGHIJ" for second in "ABCDEFGHIJ")
SCHEMA: Final = "trades"
DOCUMENT: Final[dict[str, Any]] = {
    "name": SCHEMA,
    "attributes": [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": "float", "low": 0, "high": 1000},
        {"name": "volume", "type": "int", "low": 0, "high": 1_000_000_000},
    ],
}
SELECTIVITY: Final = 0.01
SENT: Final = "sent"
"""Member of a trade at brokers that says when it was published, monotonic nanoseconds: the clock of the machine."""
SAMPLE: Final = 20_000
"""Trades from which the ranges of interests are drawn."""

Trade = dict[str, Any]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Interest:
    """What one subscriber wants: trades of a symbol, or in a range of prices, volumes, or both; ``None``: any."""

    symbol: str | None = None
    price: Range | None = None
    volume: Range | None = None

    def text(self) -> str:
        """In the filter language."""
        parts = [] if self.symbol is None else [f"symbol = '{self.symbol}'"]
        ranges = (("price", self.price), ("volume", self.volume))
        parts += [f"{name} BETWEEN {wanted[0]!r} AND {wanted[1]!r}" for name, wanted in ranges if wanted is not None]
        return " AND ".join(parts)

    def function(self) -> Callable[[Trade], bool]:
        """As a user of a broker writes it in a program, with no more comparisons than are needed."""
        if self.symbol is not None:
            symbol = self.symbol
            return lambda trade: trade["symbol"] == symbol
        if self.volume is None:
            assert self.price is not None
            low, high = self.price
            return lambda trade: low <= trade["price"] <= high
        assert self.price is not None
        (low, high), (least, most) = self.price, self.volume
        return lambda trade: low <= trade["price"] <= high and least <= trade["volume"] <= most


@dataclass(frozen=True, slots=True)
class TradeWork:
    """What is published, and who wants what. ``is_real``: the trades are recorded ones."""

    trades: Sequence[Trade]
    interests: Sequence[Interest]
    is_real: bool

    def due(self, subscribers: int, first: int, count: int) -> list[int]:
        """How many of these trades each of the first so many subscribers has to get."""
        published = [self.trade(number) for number in range(first, first + count)]
        wants = [interest.function() for interest in self.interests[:subscribers]]
        return [sum(map(want, published)) for want in wants]

    def trade(self, number: int) -> Trade:
        """One of them; they begin again where there are no more."""
        return self.trades[number % len(self.trades)]

    def payload(self, number: int) -> bytes:
        """See `bench.rivals.work.Work.payload`."""
        return json.dumps({**self.trade(number), SENT: time.monotonic_ns()}, separators=(",", ":")).encode()

    def wants(self, subscriber: int) -> Wants:
        """See `bench.rivals.work.Work.wants`."""
        is_wanted = self.interests[subscriber].function()

        def compare(payload: bytes) -> int | None:
            trade = json.loads(payload)
            return int(trade[SENT]) if is_wanted(trade) else None

        return compare

    def to_json(self) -> dict[str, Any]:
        """For `work_of`."""
        interests = [[each.symbol, each.price, each.volume] for each in self.interests]
        return {"trades": list(self.trades), "interests": interests, "is_real": self.is_real}


def work_of(fields: dict[str, Any]) -> TradeWork:
    """What `TradeWork.to_json` made, also after a way through JSON."""
    interests = [
        Interest(symbol, price and (price[0], price[1]), volume and (volume[0], volume[1]))
        for symbol, price, volume in fields["interests"]
    ]
    return TradeWork(fields["trades"], interests, fields["is_real"])


def draw(trades: int, subscribers: int) -> TradeWork:
    """So many trades and interests: the same in every run."""
    rng = Random(11)
    sample, is_real = _recorded(rng), True
    if not sample:
        sample, is_real = _made_up(rng), False
    prices, volumes = (sorted(trade[name] for trade in sample) for name in ("price", "volume"))
    interests = [_interest(rng, sample, prices, volumes) for _ in range(subscribers)]
    return TradeWork([dict(rng.choice(sample)) for _ in range(trades)], interests, is_real)


def _recorded(rng: Random) -> list[Trade]:
    folder = os.environ.get(DATA, "")
    rows: list[dict[str, str]] = []
    for file in sorted(Path(folder).glob(FILES)) if folder else ():
        rows += csv.DictReader(io.StringIO(lzma.decompress(file.read_bytes()).decode()))
    chosen = rng.sample(rows, min(SAMPLE, len(rows)))
    return [{"symbol": row["symbol"], "price": float(row["close"]), "volume": int(row["volume"])} for row in chosen]


def _made_up(rng: Random) -> list[Trade]:
    """Prices and volumes spread over as many orders of magnitude as those of the recorded trades."""

    def one() -> Trade:
        price, volume = min(999.0, rng.lognormvariate(1.9, 1.3)), int(min(9e8, rng.lognormvariate(11.0, 3.0)))
        return {"symbol": rng.choice(SYMBOLS), "price": round(price, 2), "volume": volume}

    return [one() for _ in range(SAMPLE)]


def _interest(rng: Random, sample: Sequence[Trade], prices: Sequence[float], volumes: Sequence[float]) -> Interest:
    kind = rng.randrange(3)
    if kind == 0:
        return Interest(symbol=rng.choice(sample)["symbol"])
    if kind == 1:
        return Interest(price=_range(rng, prices, SELECTIVITY))
    share = SELECTIVITY**0.5
    return Interest(price=_range(rng, prices, share), volume=_range(rng, volumes, share))


def _range(rng: Random, values: Sequence[float], share: float) -> Range:
    """A range that holds this share of sorted values; somewhat more where many are equal."""
    length = round(share * len(values))
    start = rng.randrange(len(values) - length)
    return values[start], values[start + length]
