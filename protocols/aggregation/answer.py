"""The answer of a round: the value, and the whole truth about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from peerd.ids import NodeId, format_id
from protocols.aggregation.collector import Basis, Missing
from protocols.aggregation.functions import GroupedAnswer, Number
from protocols.aggregation.partial import Partial, Report

CONTRIBUTORS_LISTED_MAX = 4096
SHARES_LISTED_MAX: Final = 256
"""Nodes of which an answer says what they read; of more, only the spread over all of them."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the requester's view of a round is; ``stage`` is a short stable word."""

    round_id: str
    stage: str
    enrolled: int
    expected: int
    contributors: int
    level: int | None
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    """How a count differs from node to node."""

    least: int = 0
    median: float = 0
    most: int = 0

    @staticmethod
    def of(counts: Iterable[int]) -> Spread:
        """Of none it is all zero."""
        found = list(counts)
        return Spread(min(found), median(found), max(found)) if found else Spread()


@dataclass(frozen=True, slots=True)
class Shares:
    """What each contributor read. ``listed``: (node, files, records) of the first ones, in id order."""

    listed: tuple[tuple[NodeId, int, int], ...] = ()
    files: Spread = Spread()
    records: Spread = Spread()
    without_files: int = 0
    without_records: int = 0

    @staticmethod
    def of(partial: Partial | None) -> Shares:
        """Of a round without any data it is empty."""
        if partial is None:
            return Shares()
        files, records = [each[0] for each in partial.shares], [each[1] for each in partial.shares]
        rows = zip(partial.contributors[:SHARES_LISTED_MAX], files, records, strict=False)
        return Shares(tuple(rows), Spread.of(files), Spread.of(records), files.count(0), records.count(0))

    def to_json(self) -> dict[str, Any]:
        """Plain data with stable names."""
        listed = [{"node": format_id(node), "files": files, "records": records} for node, files, records in self.listed]
        return {**asdict(self), "listed": listed}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the requester learned. ``value`` is ``None`` for a round without any data (or min, max, mean of nothing)."""

    round_id: str
    query: str
    value: Number | GroupedAnswer | None
    contributors: tuple[NodeId, ...]
    expected: int
    expected_basis: Basis
    missing: tuple[Missing, ...]
    missing_count: int
    report: Report
    duration_s: float
    value_bytes: int
    moved_bytes: int
    computed_by: NodeId | None
    files: str = ""
    """The glob that was asked for."""
    shares: Shares = Shares()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is probably a mistake of the question rather than a property of the data."""
        report = self.report
        tried = report.files_read + report.files_unreadable + report.files_binary + report.files_skipped
        if not self.files or not self.contributors or tried or report.records:
            return ()
        count = len(self.contributors)
        which = "the only node" if count == 1 else f"any of the {count} nodes"
        return (f"no file on {which} in this answer matches {self.files!r}",)

    @property
    def completeness(self) -> float:
        """Contributors of expected, in [0, 1]."""
        return min(1.0, len(self.contributors) / self.expected) if self.expected else 0.0

    @property
    def outcome(self) -> str:
        """ "complete", "partial" or "failed"; a partial answer is never dressed as a full one."""
        if not self.contributors:
            return "failed"
        return "complete" if self.missing_count == 0 and self.completeness >= 1.0 else "partial"

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """Plain data with stable names; groups in order of rank, the ``top`` first ones only."""
        value: Any = self.value
        if isinstance(value, GroupedAnswer):
            shown = list(value.groups.items())
            value = {
                "groups": dict(shown if top is None else shown[:top]),
                "groups_total": value.groups_total,
                "remainder_groups_max": value.remainder_groups_max,
                "remainder": value.remainder,
                "exact": value.exact,
            }
        return {
            "round": self.round_id,
            "query": self.query,
            "outcome": self.outcome,
            "value": value,
            "contributors": len(self.contributors),
            "contributor_ids": [format_id(node) for node in self.contributors[:CONTRIBUTORS_LISTED_MAX]],
            "expected": self.expected,
            "expected_basis": self.expected_basis.value,
            "completeness": self.completeness,
            "missing": [
                {
                    "node": format_id(each.node),
                    "address": each.address,
                    "reason": each.reason,
                    "lost_s": each.lost_s,
                }
                for each in self.missing
            ],
            "missing_count": self.missing_count,
            "report": asdict(self.report),
            "files": self.files,
            "shares": self.shares.to_json(),
            "warnings": list(self.warnings),
            "duration_s": self.duration_s,
            "value_bytes": self.value_bytes,
            "moved_bytes": self.moved_bytes,
            "computed_by": None if self.computed_by is None else format_id(self.computed_by),
        }


def value_of(partial: Partial | None) -> Number | GroupedAnswer | None:
    """The finished value of a partial, every group listed."""
    return None if partial is None else partial.finish()
