"""``peerd route``: who is the root of a key, and the way there."""

from __future__ import annotations

from typing import Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_facts, print_json, print_table, seconds, stdout
from peerd.errors import ExitCode


def route(
    key: Annotated[str, typer.Argument(metavar="KEY", help="32 hexadecimal digits, or any text, which is hashed.")],
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look up the node that is responsible for KEY. Exit code 1 when nobody answered in time."""
    found = ask(socket, lambda client: client.route(key))
    if output is Output.JSON:
        print_json(found)
    else:
        console = stdout()
        root = "nobody answered in time" if found.root is None else f"{found.root.id} at {found.root.address}"
        hashed = f" (hash of {key!r})" if found.is_hashed else ""
        took = seconds(found.duration_s)
        print_facts(console, [("key", found.key + hashed), ("root", root), ("took", took)])
        if found.hops:
            rows = [(number, hop.id, hop.address, seconds(hop.rtt_s)) for number, hop in enumerate(found.hops, start=1)]
            print_table(console, ("hop", "node", "address", "rtt"), rows)
    if found.root is None:
        raise typer.Exit(ExitCode.FAILURE)
