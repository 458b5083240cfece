"""``peerd forget``: a missing node will not come back."""

from __future__ import annotations

from typing import Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, printable, stdout
from peerd.words import ago


def forget(
    node: Annotated[
        str | None,
        typer.Argument(metavar="NODE", help="Id, or at least 4 digits of it, or host:port; see `peerd peers`."),
    ] = None,
    all_missing: Annotated[
        bool, typer.Option("--all-missing", help="Every node that this daemon shows as missing.")
    ] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop expecting a node that went without goodbye; the whole ring does, and answers are complete without it.

    Nothing is forbidden to it: if it comes back, it is expected again. `peerd deny` shuts a node out.

    Examples: peerd forget 3fa92c11; peerd forget 10.0.0.4:7420; peerd forget --all-missing
    """
    if bool(node) == all_missing:
        raise typer.BadParameter("name the node to forget, or give --all-missing", param_hint="NODE")
    found = ask(socket, lambda client: client.forget(node, all_missing=all_missing))
    from peerd.models.admin import ForgottenNode

    if print_data(output, found, found.nodes, ForgottenNode):
        return
    console = stdout()
    for each in found.nodes:
        lost = "not known here; told the ring" if each.lost_s is None else f"lost {ago(each.lost_s)}"
        console.print(printable(f"forgotten: {each.id} ({each.address or 'unknown address'}), {lost}"))
    if not found.nodes:
        console.print("no node is missing")
