"""``peerd deny``: shut a node out of the cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.files import NOT_SAVED, write_text
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_table, stdout
from peerd.errors import PeerdError
from peerd.models.admin import DeniedSubject

if TYPE_CHECKING:
    from peerd.client import Client

NODE_DIGITS: Final = 32
PREFIX_DIGITS_MIN: Final = 4
"""How many digits of a node id are needed at least; the daemon has to know exactly one node that begins with them."""
SUBJECT_HELP: Final = (
    f"A node id, or at least {PREFIX_DIGITS_MIN} digits of one that the daemon knows; or a certificate's serial number "
    "(40 digits)."
)


class UnclearSubject(PeerdError, ValueError):
    """No known id begins with the given digits, or several do."""


def deny(
    subject: Annotated[str | None, typer.Argument(metavar="NODE|SERIAL", help=SUBJECT_HELP)] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; every node keeps it.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it in again.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Show the deny list, as this node has it.")] = False,
    ca: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Sign with the CA there. Default: ask the issuer's daemon.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --ca: write the notice for `peerd ca publish`.")
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
    subject = _subject(subject, socket, undo)
    if out is not None and ca is None:
        raise typer.BadParameter("goes with --ca", param_hint="--out")
    done = "is let in again" if undo else "is denied"
    if ca is not None:
        text = _record(subject, reason, undo, ca.expanduser().absolute())
        if out is not None:
            write_text(out, text + "\n", 0o644)
            typer.echo(f"{out}: carry it to any node, and there: peerd ca publish {out.name}")
            return
        told = ask(socket, lambda client: client.publish_notice(text))
        typer.echo(f"{subject} {done}")
        if not told.is_saved:
            typer.echo(NOT_SAVED.format("daemon"), err=True)
        return
    made = ask(socket, lambda client: client.deny(subject, reason, is_withdrawn=undo))
    typer.echo(f"{made.subject} {done}; every node that is up knows within seconds, others when they come back")
    if not made.is_saved:
        typer.echo(NOT_SAVED.format("issuer"), err=True)


def _record(subject: str, reason: str, undo: bool, folder: Path) -> str:
    from peerd.identity.authority import ClusterAuthority
    from peerd.identity.ledger import notice_text, sign_notice
    from peerd.wire.trust import Denial

    authority = ClusterAuthority.load(folder)
    denial = Denial(authority.cluster, int(time.time() * 1000), subject, undo, reason[:256])
    return notice_text(sign_notice(authority, denial))


def _subject(text: str, socket: str | None, is_withdrawn: bool) -> str:
    """Return the subject in full. It may be given by the first digits of a known node, or of what is denied."""
    from peerd.identity.ledger import parse_subject

    try:
        return parse_subject(text)
    except ValueError as error:
        digits = text.strip().lower()
        if not PREFIX_DIGITS_MIN <= len(digits) < NODE_DIGITS or not set(digits) <= set("0123456789abcdef"):
            what = f"{error}, or at least {PREFIX_DIGITS_MIN} digits of a node id that the daemon knows"
            raise typer.BadParameter(what, param_hint="NODE|SERIAL") from error
    return chosen(digits, ask(socket, denied_subjects if is_withdrawn else known_subjects))


async def known_subjects(client: Client) -> dict[str, str]:
    """Return, for every node that the daemon knows (also missing ones), the subject that denies it, and its address."""
    found = await client.known()
    here = {f"node:{peer.id}": peer.address for peer in found.peers}
    return here | {f"node:{peer.id}": peer.address for peer in found.missing}


async def denied_subjects(client: Client) -> dict[str, str]:
    """Return what is denied, and why. Only these denials can be withdrawn."""
    return {denial.subject: denial.reason for denial in await client.denials()}


def chosen(digits: str, subjects: Mapping[str, str]) -> str:
    """The one subject whose id begins with these digits. Raises `UnclearSubject`, which names all of several."""
    found = sorted(subject for subject in subjects if subject.partition(":")[2].startswith(digits))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnclearSubject(f"nothing that the daemon knows begins with {digits}: give the whole id")
    rows = [f"  {subject.partition(':')[2]}  {subjects[subject]}".rstrip() for subject in found]
    raise UnclearSubject("\n".join([f"{digits} begins {len(found)} ids: give more digits", *rows]))


def _show(socket: str | None, output: Output) -> None:
    found = ask(socket, lambda client: client.denials())
    if print_data(output, {"denials": found}, found, DeniedSubject):
        return
    if found:
        rows = [
            (denial.subject, f"{datetime.fromtimestamp(denial.denied_at, UTC):%Y-%m-%d %H:%M:%S}", denial.reason or "-")
            for denial in found
        ]
        print_table(stdout(), ("denied", "since (UTC)", "reason"), rows)
    else:
        stdout().print("nobody is denied")
