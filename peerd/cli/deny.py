"""``peerd deny``: shut a node out of the cluster."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from peerd.cli.files import write_text
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_table, stdout


def deny(
    subject: Annotated[
        str | None,
        typer.Argument(metavar="NODE|SERIAL", help="A node id, or a certificate's serial number (40 digits)."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; every node keeps it.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it in again.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Show the deny list, as this node has it.")] = False,
    ca: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Sign with the CA there. Default: ask the issuer's daemon.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --ca: write the record for `peerd ca publish`.")
    ] = None,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Shut a node out: every node cuts its links and refuses new ones, also after restarts, until --undo."""
    if list_all:
        _show(socket, output)
        return
    if subject is None:
        raise typer.BadParameter("name the node to deny, or give --list", param_hint="NODE|SERIAL")
    subject = _subject(subject)
    if out is not None and ca is None:
        raise typer.BadParameter("goes with --ca", param_hint="--out")
    done = "is let in again" if undo else "is denied"
    if ca is not None:
        text = _record(subject, reason, undo, ca.expanduser().absolute())
        if out is not None:
            write_text(out, text + "\n", 0o644)
            typer.echo(f"{out}: carry it to any node, and there: peerd ca publish {out.name}")
            return
        ask(socket, lambda client: client.publish_record(text))
        typer.echo(f"{subject} {done}")
        return
    made = ask(socket, lambda client: client.deny(subject, reason, is_withdrawn=undo))
    typer.echo(f"{made.subject} {done}; every node that is up knows within seconds, others when they come back")


def _record(subject: str, reason: str, undo: bool, folder: Path) -> str:
    from peerd.identity.authority import ClusterAuthority
    from peerd.identity.ledger import record_text, sign_record
    from peerd.wire.trust import Denial

    authority = ClusterAuthority.load(folder)
    denial = Denial(authority.cluster, int(time.time() * 1000), subject, undo, reason[:256])
    return record_text(sign_record(authority, denial))


def _subject(text: str) -> str:
    from peerd.identity.ledger import parse_subject

    try:
        return parse_subject(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NODE|SERIAL") from error


def _show(socket: str | None, output: Output) -> None:
    found = ask(socket, lambda client: client.denials())
    if output is not Output.TABLE:
        print_data(output, {"denials": found}, found)
    elif found:
        rows = [
            (denial.subject, f"{datetime.fromtimestamp(denial.denied_at, UTC):%Y-%m-%d %H:%M:%S}", denial.reason or "-")
            for denial in found
        ]
        print_table(stdout(), ("denied", "since (UTC)", "reason"), rows)
    else:
        stdout().print("nobody is denied")
