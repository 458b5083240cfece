"""When nodes were up, by the table ``nodes``: one row for each incarnation, with its first and last event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.front import Row

SILENT_S: Final = 120.0
"""A node that said nothing for so long at the end of the log is gone: it would have told of its traffic each minute."""
UP: Final = "up"
SILENT: Final = "silent"


def times_of(rows: Sequence[Row]) -> tuple[float, float]:
    """When the log begins and ends."""
    return min(row["first_ts"] for row in rows), max(row["last_ts"] for row in rows)


def ends_of(rows: Sequence[Row]) -> list[str]:
    """How each incarnation has ended: for the reason that it told, `SILENT`, or not: `UP` at the end of the log.

    Where at least half of those who were there at last have told that they stop, the ring was stopped, and who did not
    tell was gone before.
    """
    _, end = times_of(rows)
    at_last = [row["stopped"] is not None for row in rows if row["last_ts"] >= end - SILENT_S]
    is_over = 2 * sum(at_last) >= len(at_last)
    return [_end(row, SILENT if is_over or row["last_ts"] < end - SILENT_S else UP) for row in rows]


def _end(row: Row, untold: str) -> str:
    return untold if row["stopped"] is None else str(row["stopped"])


def bar(row: Row, begin: float, end: float, width: int) -> str:
    """A life as ``..####....``, so many characters for the whole log."""
    scale = width / max(end - begin, 1e-9)
    first = min(width - 1, int((row["first_ts"] - begin) * scale))
    last = max(first + 1, round((row["last_ts"] - begin) * scale))
    return f"{'.' * first}{'#' * (last - first)}{'.' * (width - last)}"
