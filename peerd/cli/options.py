"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from peerd.cli.output import Output, stderr
from peerd.errors import ConfigError

if TYPE_CHECKING:
    from peerd.client import Client

__all__ = ["ListenOption", "Output", "OutputOption", "SocketOption", "WideOption", "ask", "duration_s"]

Result = TypeVar("Result")

PATIENCE_S: Final = 1.0


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
        help="The daemon's admin socket, or http://127.0.0.1:PORT. Default: PEERD_SOCKET, else what the configuration "
        "in its standard place says.",
    ),
]
ListenOption = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Address for peers. Default: 0.0.0.0:7420.")
]


def ask(
    socket: str | None, call: Callable[[Client], Coroutine[Any, Any, Result]], waiting: str = "waiting for the daemon"
) -> Result:
    """Call the daemon that ``--socket`` names. Raises what the client raises.

    After `PATIENCE_S` a terminal shows what the command is ``waiting`` for, unless that is empty.
    """
    import asyncio  # here, like the rest, so that commands that ask nobody start at once

    from peerd.cli.locations import admin_address
    from peerd.client import run_sync

    terminal = stderr()

    async def patiently(client: Client) -> Result:
        if not waiting:
            return await call(client)
        notice = asyncio.get_running_loop().call_later(PATIENCE_S, terminal.overwrite, waiting)
        try:
            return await call(client)
        finally:
            notice.cancel()
            terminal.overwrite("")

    return run_sync(patiently, admin_address(socket))


def duration_s(text: str, option: str) -> float:
    """Seconds of an option such as "1h". Raises ``typer.BadParameter``, which is a usage error."""
    from peerd.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def seed_range(text: str, most: int) -> range:
    """The seeds of an option such as "0:50". Raises `ConfigError`, also for more than ``most``."""
    first, _, last = text.partition(":")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit() and int(first) < int(last)):
        raise ConfigError(f"expected A:B with A < B, not {text!r}", key="--seeds")
    if int(last) - int(first) > most or int(last) >= 1 << 63:
        raise ConfigError(f"at most {most} seeds, below 2**63", key="--seeds")
    return range(int(first), int(last))
