"""Printing for people (rich tables) and for programs (JSON)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 400
"""Columns where there is no terminal: whoever reads a pipe wants no folded cells."""


def stdout() -> Console:
    """Where results go. Made when needed, so that it sees redirections."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def stderr() -> Console:
    """Where progress, warnings and errors go."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PIPE_WIDTH)


def print_json(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document on standard output."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    json.dump(plain, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def printable(text: object) -> Text:
    """Text from elsewhere: no markup, no control characters that a terminal would act on."""
    return Text("".join(character if character.isprintable() else "?" for character in str(text)))


def print_table(console: Console, headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table; numbers to the right. Cells are `printable`, or rich Text as it is."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [list(row) for row in rows]
    for column, heading in enumerate(headings):
        is_number = bool(cells) and all(isinstance(row[column], int | float) for row in cells)
        justify: Literal["left", "right"] = "right" if is_number else "left"
        # The first column names the row, so it is the last to be folded.
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=column == 0, header_style="bold")
    for row in cells:
        table.add_row(*(cell if isinstance(cell, Text) else printable(cell) for cell in row))
    console.print(table)


def print_facts(console: Console, facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value if isinstance(value, Text) else printable(value))
    console.print(table)


def nodes(count: float, is_exact: bool) -> str:
    """The size of a ring: "1 node", "about 120 nodes"."""
    shown = f"{count:.0f}"
    return f"{'' if is_exact else 'about '}{shown} node{'' if shown == '1' else 's'}"


def seconds(value: float | None) -> str:
    """A duration for people: three significant digits, in the unit that suits."""
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(value: float) -> str:
    """Bytes for people, in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float | int) -> str:
    """Whole numbers whole (whatever their type), others as they are."""
    return f"{value:,}" if isinstance(value, int) else f"{int(value):,}" if value.is_integer() else f"{value:,}"
