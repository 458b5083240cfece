"""Files of JSON lines that people give on the command line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

STDIN: Final = "-"


class BadLine(typer.BadParameter):
    """A line of a file is no JSON object."""


def typed_value(text: str) -> Any:
    """What stands behind ``NAME=``: JSON where it is some, else the text itself.

    Raises ``typer.BadParameter`` for numbers that JSON does not have, since it is not clear what is meant by them.
    """
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def pair_of(text: str, why_not: str, option: str | None = None) -> tuple[str, str]:
    """The name and the text of NAME=TEXT. Raises ``typer.BadParameter``, which says that it is ``why_not``."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is {why_not}", param_hint=option)
    return name, value


def once(pairs: Iterable[tuple[str, Any]], option: str | None = None) -> dict[str, Any]:
    """What was given as NAME=VALUE. Raises ``typer.BadParameter`` for a name that comes twice: one would be dropped."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = value
    return found


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise typer.BadParameter(f"{text} is not a number that JSON has; as text it is written '\"{text}\"'")


def objects_of(file: str) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, or of standard input; blank lines are passed over.

    The file is opened at once. Raises ``typer.BadParameter``; a `BadLine` names the line.
    """
    try:
        opened = nullcontext(sys.stdin) if file == STDIN else Path(file).open(encoding="utf-8")  # noqa: SIM115  # objects() closes it
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error

    def objects() -> Iterator[dict[str, Any]]:
        with opened as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield object_of(line, f"{'standard input' if file == STDIN else file}, line {number}")

    return objects()


def object_of(line: str, place: str) -> dict[str, Any]:
    """The JSON object of one line. Raises `BadLine`, which names the ``place``."""
    try:
        found = json.loads(line)
    except ValueError as error:
        why = f"{error.msg}, at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise BadLine(f"{place} is not JSON: {why}") from error
    if not isinstance(found, dict):
        raise BadLine(f"{place} is not a JSON object")
    return found
