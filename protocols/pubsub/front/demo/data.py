"""What the demo replays: stock prices and server metrics, of a folder that the user names, or the sample beside this.

A folder has ``stocks/*.csv`` or ``*.csv.xz`` with the columns ``symbol,date,open,high,low,close,volume``, a row a day,
and ``timeseries/*.tar.xz`` (or ``metrics/``) with files ``METRIC_HOST.csv`` of ``timestamp,value``.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final

from peerd.errors import Unavailable

SAMPLE: Final = Path(__file__).parent / "sample"
TICKS_A_DAY: Final = ("open", "high", "low", "close")
METRIC: Final = "cpu_utilization"
"""Of the series only those with this in their name, because all of them are percentages."""
FILE_BYTES_MAX: Final = 256 << 20

Events = list[dict[str, Any]]
Series = tuple[str, list[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class TradeReplay:
    """Events in the order of their time, and what they are, for people."""

    trades: Events
    metrics: Events
    source: str


def load(folder: Path | None, trades_max: int, metrics_max: int) -> TradeReplay:
    """The newest prices and the first metrics of a folder, or of the sample. Raises `Unavailable`."""
    if folder is None:
        trades = _trades(SAMPLE / "stocks.csv", trades_max)
        metrics = list(islice(_metrics(_files(SAMPLE / "metrics")), metrics_max))
        return TradeReplay(trades, metrics, "the synthetic sample that comes with peerd")
    stocks = _first(folder, "stocks/*.csv", "stocks/*.csv.xz")
    series = _first(folder, "timeseries/*.tar.xz", "metrics")
    found = _files(series) if series.is_dir() else _archive(series)
    metrics = list(islice(_metrics(found), metrics_max))
    return TradeReplay(_trades(stocks, trades_max), metrics, f"{stocks.name} and {series.name} of {folder}")


def _first(folder: Path, *patterns: str) -> Path:
    found = next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
    if found is None:
        raise Unavailable(f"{folder} has no {' and no '.join(patterns)}; without --data the demo replays its sample")
    return found


def _text(path: Path) -> str:
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise Unavailable(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return data.decode(errors="replace")


def _trades(path: Path, most: int) -> Events:
    """Each daily bar as four prices: daily bars are not real trades, but their prices were paid on that day."""
    days = sorted(csv.DictReader(io.StringIO(_text(path))), key=lambda day: day["date"])
    events = [
        {"symbol": day["symbol"], "price": str(Decimal(day[tick])), "volume": int(day["volume"]), "day": day["date"]}
        for day in days[-math.ceil(most / len(TICKS_A_DAY)) :]
        for tick in TICKS_A_DAY
    ]
    return events[:most]


def _files(folder: Path) -> list[Series]:
    return [(path.stem, _rows(_text(path))) for path in sorted(folder.glob("*.csv"))]


def _archive(path: Path) -> list[Series]:
    found = []
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            name = Path(member.name)
            if name.suffix == ".csv" and METRIC in name.stem and (file := archive.extractfile(member)) is not None:
                found.append((name.stem, _rows(file.read(FILE_BYTES_MAX).decode(errors="replace"))))
    return found


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _metrics(series: Iterable[Series]) -> Iterator[dict[str, Any]]:
    """The series as one: the first row of each, then the second of each, and so on."""
    named = [(*name.rpartition("_")[::2], rows) for name, rows in series]
    for index in range(max((len(rows) for _, _, rows in named), default=0)):
        for metric, host, rows in named:
            if index < len(rows):
                yield {"host": host, "metric": metric, "value": float(rows[index]["value"])}
