"""What people give on the command line: filters, and files of events."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import typer

STDIN: Final = "-"


class BadLine(typer.BadParameter):
    """A line of a file is no event."""


def filter_of(typed: str) -> Any:
    """Text as it is, or a filter in JSON where it begins like one. Raises ``typer.BadParameter``."""
    if typed.lstrip()[:1] not in ("{", "["):
        return typed
    try:
        return json.loads(typed)
    except ValueError as error:
        raise typer.BadParameter(f"the filter begins like JSON, and is none: {error}") from error


def events_of(file: str) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, or of standard input; blank lines are passed over.

    The file is opened at once. Raises ``typer.BadParameter``; a `BadLine` names the line.
    """
    try:
        opened = nullcontext(sys.stdin) if file == STDIN else Path(file).open(encoding="utf-8")  # noqa: SIM115  # events() closes it
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error

    def events() -> Iterator[dict[str, Any]]:
        with opened as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _event(f"{'standard input' if file == STDIN else file}, line {number}", line)

    return events()


def _event(place: str, line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        why = f"{error.msg}, at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise BadLine(f"{place} is not JSON: {why}") from error
    if not isinstance(event, dict):
        raise BadLine(f"{place} is not a JSON object")
    return event
