"""Columns computed from latencies and byte counts: means, quantiles, and the whole distribution for charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from peerd.lab.experiment import Row

STEPS: Final = 40
"""A distribution is kept as its quantiles in so many steps."""
RANKED: Final = 125
"""So many of the most loaded nodes are listed, as in figures 4.6 and 4.8."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies; 0 without any."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def distribution(ordered: Sequence[float], digits: int) -> list[float]:
    """The quantiles from the least to the largest value, in equal steps."""
    return [round(quantile(ordered, step / STEPS), digits) for step in range(STEPS + 1)] if ordered else []


def latency_row(prefix: str, values: Iterable[float], bounds_s: Iterable[float]) -> Row:
    """Mean, quantiles, and the shares within the bounds, of latencies in seconds."""
    ordered = sorted(values)
    row: Row = {
        f"{prefix}_mean_s": round(fmean(ordered), 4) if ordered else None,
        **{f"{prefix}_p{percent}_s": round(quantile(ordered, percent / 100), 4) for percent in (50, 70, 90, 99)},
        f"{prefix}_max_s": round(max(ordered, default=0.0), 4),
        f"{prefix}_s": distribution(ordered, 4),
    }
    for bound in bounds_s:
        within = sum(value <= bound for value in ordered) / max(len(ordered), 1)
        row[f"{prefix}_within_{round(1000 * bound)}ms"] = round(within, 4)
    return row


def bytes_row(prefix: str, of_nodes: Iterable[int], divided_by: int) -> Row:
    """Bytes a node sent for each subscription or event: mean, quantiles, most, and the most loaded nodes."""
    ordered = sorted(count / max(divided_by, 1) for count in of_nodes)
    mean = fmean(ordered) if ordered else 0.0
    return {
        f"{prefix}_bytes_mean": round(mean, 3),
        **{f"{prefix}_bytes_p{percent}": round(quantile(ordered, percent / 100), 3) for percent in (50, 78, 90, 98)},
        f"{prefix}_bytes_max": round(max(ordered, default=0.0), 3),
        f"{prefix}_bytes_peak": round(max(ordered, default=0.0) / mean, 2) if mean else None,
        f"{prefix}_bytes": distribution(ordered, 2),
        f"{prefix}_bytes_ranked": [round(count, 2) for count in reversed(ordered[-RANKED:])],
    }


def difference(before: Mapping[int, int], after: Mapping[int, int]) -> list[int]:
    """What each node sent between two moments; a node that came meanwhile had sent nothing."""
    return [count - before.get(index, 0) for index, count in after.items()]
