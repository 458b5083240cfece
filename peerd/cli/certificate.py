"""``peerd certificate``: this node's certificate."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peerd.cli.files import read_text
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_facts, seconds, stdout

if TYPE_CHECKING:
    from peerd.models.admin import Certificate

app = typer.Typer(help="This node's certificate: show, renew, install.", no_args_is_help=True)


@app.command()
def show(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the certificate in use, when it is renewed, and the roots and issuers that the node knows."""
    found = ask(socket, lambda client: client.certificate())
    if not print_data(output, found):
        _print(found)


@app.command()
def renew(socket: SocketOption = None) -> None:
    """Renew it now, and not at half of its life."""
    _print(ask(socket, lambda client: client.renew_certificate()))


@app.command()
def install(
    file: Annotated[Path, typer.Argument(metavar="CERT", help="What `peerd ca sign` wrote for this node.")],
    socket: SocketOption = None,
) -> None:
    """Give the running daemon a certificate that an offline CA renewed; no restart is needed."""
    text = read_text(file)
    _print(ask(socket, lambda client: client.install_certificate(text)))


def _print(found: Certificate) -> None:
    now = time.time()
    facts: list[tuple[str, object]] = [
        ("node", found.id),
        ("cluster", found.cluster),
        ("serial", found.serial),
        ("expires", f"{_utc(found.expires_at)} (in {seconds(max(0.0, found.expires_at - now))}): {found.state}"),
        ("renews", f"in {seconds(max(0.0, found.renews_at - now))}"),
        ("issued by", f"root {found.issued_by}"),
        ("issuers", ", ".join(found.issuers) or "none is known"),
    ]
    facts += [("trusted root", f"{root.fingerprint} until {_utc(root.trusted_until)}") for root in found.roots]
    if found.last_failure:
        facts.append(("last failure", found.last_failure))
    print_facts(stdout(), facts)


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
