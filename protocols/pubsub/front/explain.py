"""``peerd explain``: why an event did or did not arrive."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, stdout
from peerd.errors import ExitCode


def explain(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="Its id, as `peerd publish` prints it.")],
    subscriber: Annotated[
        str, typer.Argument(metavar="[NODE]", help="The subscriber's node id, or 8 digits of it. Default: this one.")
    ] = "",
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell why an event did or did not arrive at a node: its way, each leaf, each condition, each drop.

    Works for an hour back, as far as the nodes' memory reaches. Exit code 0: it arrived; 1: it did not; 3: unknown.
    """
    from protocols.pubsub.front.client import PubSubClient

    report = ask(socket, lambda client: PubSubClient(client).explain(event, subscriber))
    if not print_data(output, report):
        for line in report_lines(report):
            stdout().print(line)
    verdict = report.get("verdict", "unknown")
    if verdict != "arrived":
        raise typer.Exit(ExitCode.PARTIAL if verdict == "unknown" else ExitCode.FAILURE)


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for people: the verdict, and what led to it."""
    return [str(report.get("verdict", "unknown")), *(f"  {line}" for line in report.get("lines", ()))]
