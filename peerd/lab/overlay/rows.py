"""The columns that the overlay's experiments have in common, and the functions that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from peerd.lab.experiment import Column, Row
from peerd.sim.workload import LOST_AFTER_S, LookupReport

PER_MILLE: Final = 1000.0
DRAIN: Final[Row] = {"name": "drain", "duration_s": LOST_AFTER_S + 1.0}
"""A phase long enough for every lookup to be judged."""

POINT: Final = (
    Column("nodes", "nodes", "nodes that joined at the start"),
    Column("topology", "topology", "how far apart they are"),
    Column("seed", "seed", "what all randomness of the simulation came from"),
)
COST: Final = (
    Column("simulated_s", "simulated s", "virtual seconds of the whole run", 0),
    Column("processor_s", "processor s", "what the run cost the machine; differs from run to run", 0),
)
JUDGED: Final = (
    Column("lookups", "lookups", "whose outcome counts: correct, wrong and lost"),
    Column("wrong", "wrong", "delivered by a node that was not the root at that instant"),
    Column("lost", "lost", "not delivered within 60 s, by a source that ran all the time"),
)
TRAFFIC: Final = (
    Column("maintenance_per_s", "control/s", "control messages sent, a second a node, without hop acknowledgements", 3),
    Column("control_per_s", "with acks", "the same with hop acknowledgements, which only lookups cause", 3),
    Column("bytes_per_s", "bytes/s", "sent, a second a node, with the lookups themselves", 1),
)


def lookups_row(report: LookupReport) -> Row:
    """Return the outcome, delay, hops and traffic of one workload."""
    judged = report.judged
    return {
        "lookups": judged,
        "correct": report.right,
        "wrong": report.wrong,
        "lost": report.lost,
        "orphaned": report.orphaned,
        "duplicates": report.duplicates,
        "correct_per_mille": round(PER_MILLE * report.right_share, 4) if judged else None,
        "wrong_per_mille": round(PER_MILLE * report.wrong_share, 4) if judged else None,
        "lost_per_mille": round(PER_MILLE * report.lost_share, 4) if judged else None,
        **{f"delay_p{percent}_s": round(report.quantile_s(percent / 100), 6) for percent in (50, 95, 99)},
        "stretch": round(report.stretch, 4),
        **hops_row(report.hop_counts),
        **traffic_row(report),
    }


def hops_row(counts: Sequence[int]) -> Row:
    """Return mean, percentiles and distribution of hops; ``counts[h]`` lookups took h hops."""
    total = sum(counts)
    mean = sum(hops * count for hops, count in enumerate(counts)) / total if total else 0.0
    return {
        "mean_hops": round(mean, 4),
        **{f"hops_p{percent}": percentile(counts, percent) for percent in (50, 95, 99)},
        "hops_shares": [round(count / total, 6) for count in counts],
    }


def percentile(counts: Sequence[int], percent: int) -> int:
    """Return a percentile of the hops, from their histogram; 0 without lookups."""
    needed, so_far = sum(counts) * percent, 0
    for hops, count in enumerate(counts):
        so_far += 100 * count
        if so_far >= needed:
            return hops
    return 0


def traffic_row(report: LookupReport) -> Row:
    """Return what nodes sent while a workload ran, for each second and node."""
    return {
        "maintenance_per_s": round(report.maintenance_per_s, 4),
        "control_per_s": round(report.control_per_s, 4),
        "bytes_per_s": round(report.bytes_per_s, 2),
        "sent_per_s": {rate.message: round(rate.sent_per_s, 5) for rate in report.rates},
    }


def with_prefix(prefix: str, row: dict[str, Any], *keys: str) -> Row:
    """Return some columns of a row under longer names."""
    return {f"{prefix}_{key}": row[key] for key in keys}
