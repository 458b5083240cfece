"""Output for people: lines, tables that fit the terminal, and one line that shows progress.

It is small on purpose. Every command writes through it, and importing a library that draws tables takes longer than
asking the daemon and printing the answer.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TextIO

PIPE_WIDTH: Final = 400
"""Columns where there is no terminal: a program that reads the output must not find folded cells."""
GAP: Final = "  "
FACT_GAP: Final = 3
FOLDED_WIDTH_MIN: Final = 16
"""A column of text is not folded to less than this."""
ID_SHOWN_MIN: Final = 8
"""Digits of an id that are shown where there is no room for 32; more where two rows begin alike."""
BAR_WIDTH: Final = 24
CLEAR_LINE: Final = "\r\x1b[2K"
_ID: Final = re.compile(r"[0-9a-f]{32}")
_STYLES: Final[Mapping[str, str]] = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36",
}  # fmt: skip


class Terminal:
    """One of the standard streams. Made when it is needed, so that it sees redirections."""

    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self.width = width or (shutil.get_terminal_size().columns if self.is_terminal else PIPE_WIDTH)
        self._has_colours = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def encoding(self) -> str:
        """The character encoding of the stream."""
        return self._stream.encoding or "utf-8"

    def print(self, text: object = "", style: str = "") -> None:
        """Print one line or several. Control characters are replaced, since texts may come from other machines."""
        for line in str(text).split("\n"):
            self.write_line(self.styled(printable(line), style))

    def write_line(self, line: str) -> None:
        """Write a line unchanged, colours included."""
        shown = line.encode(self.encoding, "replace").decode(self.encoding)
        self._stream.write(f"{shown}\n")
        self._stream.flush()

    def styled(self, text: str, style: str) -> str:
        """Return the text in a style such as "bold red"; unchanged where there are no colours."""
        if not style or not self._has_colours:
            return text
        codes = ";".join(_STYLES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"

    def status(self, text: str = "") -> Waiting:
        """Return a line that is shown while something takes long."""
        return Waiting(self, text)

    def overwrite(self, text: str) -> None:
        """Put a text in the place of the line that the cursor is on; nothing where there is no terminal."""
        if self.is_terminal:
            self._stream.write(CLEAR_LINE + _cut(printable(text), self.width - 1))
            self._stream.flush()


class Waiting:
    """A line on a terminal that shows progress, and disappears at the end. Prints nothing into a pipe."""

    def __init__(self, terminal: Terminal, text: str = "") -> None:
        self._terminal = terminal
        self._text = text
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self.update(self._text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line until the next `update`, because another one is about to be printed."""
        self._terminal.overwrite("")

    def update(self, text: str, done: float | None = None, total: float = 1.0) -> None:
        """Show a text; with a bar when it is known how much of the ``total`` is ``done``."""
        self._text = text
        bar = ""
        if done is not None:
            filled = round(BAR_WIDTH * min(1.0, max(0.0, done / total if total > 0 else 1.0)))
            bar = f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] "
        self._terminal.overwrite(f"{bar}{text}  {time.monotonic() - self._began:.0f} s")


def stdout() -> Terminal:
    """Standard output, for results."""
    return Terminal(sys.stdout)


def stderr() -> Terminal:
    """Standard error, for progress, warnings and errors."""
    return Terminal(sys.stderr)


def printable(text: object) -> str:
    """Return a text without control characters, on which a terminal would act."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def print_table(
    terminal: Terminal,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str = "",
    *,
    optional: Sequence[str] = (),
    numbers: Sequence[str] = (),
    is_wide: bool | None = None,
) -> None:
    """Print a table, at most as wide as the terminal. Numbers, and columns named by ``numbers``, are right-aligned.

    If there is not enough room, ids are shortened to their first digits; then the columns named by ``optional`` are
    left out, in that order; then text is folded at its spaces, never in the middle of a word. ``is_wide`` shows
    everything; it is ``None`` for commands without that option.
    """
    columns = [_Column(heading, cells) for heading, cells in zip(headings, _transposed(headings, rows), strict=True)]
    for column in columns:
        column.is_number = column.is_number or column.heading in numbers
    hidden = [] if is_wide else _fit(columns, terminal.width, optional)
    if title:
        terminal.print(title, "bold")
    lines = zip(*(column.lines() for column in columns), strict=True)
    for number, cells in enumerate(lines):
        for line in range(max(map(len, cells), default=0)):
            parts = [
                column.padded(cell[line] if line < len(cell) else "")
                for column, cell in zip(columns, cells, strict=True)
            ]
            terminal.write_line(terminal.styled(GAP.join(parts).rstrip(), "bold" if number == 0 else ""))
    if hidden:
        remedy = "-o json has everything" if is_wide is None else "--wide shows everything"
        terminal.print(f"(no room for: {', '.join(hidden)}; {remedy})", "dim")


def print_facts(terminal: Terminal, facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; a long value continues on the next line, below its beginning."""
    shown = [(printable(name), printable(value)) for name, value in facts]
    indent = max((width(name) for name, _ in shown), default=0) + FACT_GAP
    for name, value in shown:
        first, *others = _folded(value, max(FOLDED_WIDTH_MIN, terminal.width - indent))
        terminal.write_line(f"{terminal.styled(name, 'bold')}{' ' * (indent - width(name))}{first}".rstrip())
        for line in others:
            terminal.write_line(f"{' ' * indent}{line}")


def width(text: str) -> int:
    """Return how many columns a text takes on a terminal: some characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


# Inside


class _Column:
    """A heading and its cells, as they will be shown."""

    def __init__(self, heading: str, cells: Sequence[object]) -> None:
        self.heading = heading
        known = [cell for cell in cells if cell != "-"]
        self.is_number = bool(known) and all(isinstance(cell, int | float) for cell in known)
        self._cells = [printable(cell) for cell in cells]
        ids = [cell for cell in self._cells if cell != "-"]
        self.is_id = bool(ids) and all(_ID.fullmatch(cell) for cell in ids)
        self._show([[cell] for cell in (heading, *self._cells)])

    def _show(self, cells: list[list[str]]) -> None:
        """Show these lines, the heading's first. The width of the widest is asked for with each cell: keep it."""
        self._shown = cells
        self.width = max(width(line) for cell in cells for line in cell)

    @property
    def can_fold(self) -> bool:
        """Whether there is a space to fold it at."""
        return self.width > FOLDED_WIDTH_MIN and any(" " in cell for cell in self._cells)

    def shorten(self) -> None:
        """Show as many digits of ids as tell them apart."""
        digits = ID_SHOWN_MIN
        different = len(set(self._cells))
        while len({cell[:digits] for cell in self._cells}) < different:
            digits += 1
        self._show([[self.heading], *([cell[:digits]] for cell in self._cells)])

    def fold(self, most: int) -> None:
        """Break lines at spaces so that they are no wider than this, if words allow."""
        self._show([_folded(cell, most) for cell in (self.heading, *self._cells)])

    def lines(self) -> list[list[str]]:
        """The heading's lines, then those of each cell."""
        return self._shown

    def padded(self, text: str) -> str:
        """Return the text, filled with spaces to the width of the column."""
        padding = " " * (self.width - width(text))
        return padding + text if self.is_number else text + padding


def _transposed(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[list[object]]:
    cells = [list(row) for row in rows]
    return [[row[number] for row in cells] for number in range(len(headings))]


def _fit(columns: list[_Column], most: int, optional: Sequence[str]) -> list[str]:
    """Make the columns fit, as `print_table` says; returns the headings of those that were left out, in order."""

    def excess() -> int:
        return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1) - most

    if excess() > 0:
        for column in columns:
            if column.is_id:
                column.shorten()
    hidden = []
    for heading in optional:
        if excess() <= 0:
            break
        for column in [column for column in columns if column.heading == heading]:
            columns.remove(column)
            hidden.append(heading)
    for column in sorted((column for column in columns if column.can_fold), key=lambda column: -column.width):
        if (too_much := excess()) > 0:
            column.fold(max(FOLDED_WIDTH_MIN, column.width - too_much))
    return hidden


def _folded(text: str, most: int) -> list[str]:
    if width(text) <= most:
        return [text]
    return textwrap.wrap(text, most, break_long_words=False, break_on_hyphens=False) or [""]


def _cut(text: str, most: int) -> str:
    while width(text) > most:
        text = text[:-1]
    return text
