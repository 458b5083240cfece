"""What the job has found, besides the tables: the same of either engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Final

from peerd.pipeline.making import TABLES, Row, TablesMade
from peerd.pipeline.sources import PART_SUFFIX

CORRUPT_FILES_MAX: Final = 20
"""The report names at most this many files with corrupt lines."""


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Lines that were read."""

    lines: int
    good: int
    """Those that are events, and may have come twice."""
    newer_schema: int
    """Events written by a newer version: fields that this version does not know are only in the column ``raw``."""
    corrupt_files: list[Row]
    """Rows of (file, corrupt), those with most corrupt lines first, at most `CORRUPT_FILES_MAX`."""

    @property
    def corrupt(self) -> int:
        """Lines that are no events."""
        return self.lines - self.good


@dataclass(frozen=True, slots=True)
class Report(TablesMade):
    """The findings of the job."""

    files: int
    part_files: int
    lines: int
    events: int
    corrupt: int
    corrupt_files: list[Row]
    """See `LineCounts`."""
    duplicates: int
    newer_schema: int
    unknown: list[Row]
    """Those of ``kinds`` that no installed plugin declares."""


RESERVED: Final = frozenset((*TABLES, *(each.name for each in fields(Report))))
"""Names that a plugin's table cannot have: tables are folders side by side, and fields of one report."""


def report_of(
    made: TablesMade, files: Sequence[str], counts: LineCounts, duplicates: int, known: Collection[str]
) -> Report:
    """The report on tables that were made of these files. ``known``: the kinds of events that plugins declare."""
    return Report(
        **{each.name: getattr(made, each.name) for each in fields(made)},
        files=len(files),
        part_files=sum(path.endswith(PART_SUFFIX) for path in files),
        lines=counts.lines,
        events=counts.good - duplicates,
        corrupt=counts.corrupt,
        corrupt_files=counts.corrupt_files,
        duplicates=duplicates,
        newer_schema=counts.newer_schema,
        unknown=[row for row in made.kinds if row["event"] not in known],
    )
