"""The errors that a filter can have, worded for the person who wrote it."""

from __future__ import annotations

from peerd.errors import PeerdError


class FilterError(PeerdError, ValueError):
    """A filter that cannot be used. ``str()`` marks the column (0-based) in the filter's text, if that is known."""

    def __init__(self, message: str, *, text: str | None = None, column: int | None = None) -> None:
        self.message = message
        self.text = text
        self.column = column
        super().__init__(message if text is None or column is None else f"{message}\n{_pointed(text, column)}")


class FilterTooLarge(FilterError):
    """A filter that exceeds a limit; ``limit`` is the limit's name in `peerd.lib.filter.limits`."""

    def __init__(self, limit: str, message: str, *, text: str | None = None, column: int | None = None) -> None:
        self.limit = limit
        super().__init__(f"{message} ({limit})", text=text, column=column)


_WIDTH = 100


def _pointed(text: str, column: int) -> str:
    """The line of the text that holds the column, with a caret below it; of a long line, the part around it."""
    start = text.rfind("\n", 0, column) + 1
    end = text.find("\n", column)
    line = text[start:] if end < 0 else text[start:end]
    column -= start
    if len(line) > _WIDTH:
        cut = max(0, column - _WIDTH // 2)
        line, column = line[cut : cut + _WIDTH], column - cut
    shown = "".join(character if character.isprintable() else " " for character in line)
    return f"  {shown}\n  {' ' * column}^"
