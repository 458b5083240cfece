"""Why a query is not answered, worded for the person who wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from peerd.lib.filter.errors import FilterError

Reason = Literal["bad_data", "execution"]
"""Prometheus' words for what is wrong: the query, or what its evaluation has met."""


class PromqlRefused(FilterError):
    """A query that is not answered. ``str()`` marks the column (0-based) in its text, if that is known."""

    reason: Reason = "bad_data"

    @property
    def line(self) -> str:
        """The message in one line, with its place as Prometheus writes it: line and column, both from 1."""
        if self.text is None or self.column is None:
            return self.message
        before = self.text[: self.column]
        return f"{before.count(chr(10)) + 1}:{self.column - before.rfind(chr(10))}: parse error: {self.message}"


class EvaluationFailed(PromqlRefused):
    """A sound query whose evaluation went wrong, because of the series that it met."""

    reason = "execution"


NOT_HERE: Final[Mapping[str, str]] = {
    "@": "the modifier @",
    ":": "a subquery",
    "[": "a range of anything but a selector (a subquery)",
    "group_left": "group_left (many-to-one matching)",
    "group_right": "group_right (one-to-many matching)",
    "atan2": "the operator atan2",
    **{word: f"the modifier {word}" for word in ("smoothed", "anchored", "fill", "fill_left", "fill_right")},
}
"""What the grammar has no rule for, but Prometheus has: the word at which parsing fails, and how to name it."""
