"""``peerd drain``: leave the ring in order, after everything has been handed over."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from peerd.cli.follow import How, follow
from peerd.cli.options import Output, OutputOption, SocketOption
from peerd.cli.output import print_data, seconds, stdout
from peerd.errors import ExitCode
from peerd.models.admin import DrainAnswer, DrainProgress
from peerd.quantities import parse_duration

TIMEOUT: Final = "60s"


def drain(
    stop: Annotated[bool, typer.Option("--stop", help="End the process, too; otherwise it stays, drained.")] = False,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="How long handing over may take; then the node leaves as it is.")
    ] = TIMEOUT,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take this daemon out of the ring: its keys and children are handed over, then it says goodbye.

    From the start of it /readyz is 503, and /livez stays 200. The process goes on until it is stopped; start it again
    to have it back in the ring. Exit code 3 when the time was over before everything was handed over.

    Examples: peerd drain && systemctl stop peerd; peerd drain --stop --timeout 5m
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
    shown = _Steps()
    answer = follow(socket, lambda client: client.drain(timeout_s, stop=stop), DrainAnswer, shown.of, "draining")
    if not print_data(output, answer):
        end = "the daemon stops" if stop else "the daemon stays up, out of the ring; stop or restart it when you like"
        stdout().print(f"drained in {seconds(answer.duration_s)}; {end}")
        if answer.unfinished:
            names = ", ".join(answer.unfinished)
            stdout().print(
                f"not handed over within {timeout}: {names}; other nodes repair that from their copies, if any"
            )
    if answer.unfinished:
        raise typer.Exit(ExitCode.PARTIAL)


class _Steps:
    """Counts the plugins that are done; where there is no terminal, a line for each."""

    def __init__(self) -> None:
        self._total = 0
        self._last: list[str] | None = None

    def of(self, line: DrainProgress) -> How:
        """Return how far draining has come."""
        self._total = max(self._total, len(line.waiting_for))
        text = f"waiting for {line.waiting_for[0]}" if line.waiting_for else "leaving the ring"
        if line.waiting_for != self._last and not sys.stderr.isatty():
            typer.echo(f"draining: {text}", err=True)
        self._last = line.waiting_for
        return self._total - len(line.waiting_for), max(1, self._total), text
