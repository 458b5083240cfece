"""``peerd rollcall``, and the group ``peerd label show|set``."""

from __future__ import annotations

from typing import Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_table, seconds, stdout
from peerd.errors import ExitCode
from rollcall.front.answers import RollAnswer


def rollcall(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Ask every node who is there, and since when. Exits with 3 when somebody is missing."""
    answer: RollAnswer = ask(socket, lambda client: client.rollcall.call())
    if output is not Output.TABLE:
        print_data(output, answer)
    else:
        rows = [(each.node, each.label, seconds(each.uptime_s)) for each in answer.answers]
        print_table(stdout(), ("node", "label", "up for"), rows)
    if answer.is_complete is False:
        raise typer.Exit(ExitCode.PARTIAL)


label = typer.Typer(help="What this node is called in roll calls.", no_args_is_help=True)


@label.command()
def show(socket: SocketOption = None) -> None:
    """Print the label."""
    stdout().print(ask(socket, lambda client: client.rollcall.label()))


@label.command("set")
def set_(text: Annotated[str, typer.Argument(metavar="TEXT")], socket: SocketOption = None) -> None:
    """Change the label until the daemon is restarted."""
    ask(socket, lambda client: client.rollcall.set_label(text))
