"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from peerd.cli.output import Output

if TYPE_CHECKING:
    from peerd.client import Client

__all__ = ["ListenOption", "Output", "OutputOption", "SocketOption", "WideOption", "ask", "duration_s"]

Result = TypeVar("Result")


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="A table for people; JSON, JSON lines, CSV or YAML for programs.")
]
WideOption = Annotated[
    bool, typer.Option("--wide", help="All columns and whole ids, also where the terminal has no room for them.")
]
SocketOption = Annotated[
    str | None,
    typer.Option(
        "--socket",
        metavar="PATH|URL",
        help="The daemon's admin socket, or http://127.0.0.1:PORT. Default: PEERD_ADMIN__SOCKET, else what the "
        "configuration in its standard place says.",
    ),
]
ListenOption = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Address for peers. Default: 0.0.0.0:7420.")
]


def ask(socket: str | None, call: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
    """One conversation with the daemon that ``--socket`` names. Raises what the client raises."""
    from peerd.cli.locations import admin_address  # here, so that commands that ask nobody start at once
    from peerd.client import run_sync

    return run_sync(call, admin_address(socket))


def duration_s(text: str, option: str) -> float:
    """Seconds of an option such as "1h". Raises ``typer.BadParameter``, which is a usage error."""
    from peerd.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
