"""``peerd access``: what data clients over TCP may do."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from peerd.cli.files import hand_out, require_free
from peerd.cli.options import Output, OutputOption, SocketOption, ask, duration_s
from peerd.cli.output import print_data, print_table, seconds, stdout

app = typer.Typer(
    help="Access tokens let programs use this daemon's protocols over TCP. To let machines join, see `peerd token`.",
    no_args_is_help=True,
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whom it is for, such as the program's name.")],
    scope: Annotated[
        list[str],
        typer.Option(metavar="SCOPE", help='"PROTOCOL:read", "PROTOCOL:write", or "*" for all; may be repeated.'),
    ],
    ttl: Annotated[str, typer.Option(metavar="TIME", help="How long it can be used, at most 366d.")] = "30d",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there (0600). Default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE when it is there already.")] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make an access token. The daemon keeps a hash only; it is shown once.

    Example: peerd access create dashboard --scope aggregation:read --ttl 30d --out dashboard.token
    """
    if not force:
        require_free(out)
    made = ask(socket, lambda client: client.create_access(name, scope, duration_s(ttl, "--ttl")))
    hand_out(made, out, output)
    token = made.token
    until = datetime.fromtimestamp(token.expires_at, UTC)
    print(
        f"access token {token.name} ({token.id}): {', '.join(token.scopes)} until {until:%Y-%m-%d %H:%M:%S} UTC\n"
        'Clients send it as "Authorization: Bearer TOKEN"; commands take it from PEERD_ACCESS_TOKEN',
        file=sys.stderr,
    )


@app.command("list")
def list_tokens(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the access tokens of this daemon: those that can be used, and for a day those that have expired."""
    found = ask(socket, lambda client: client.access_tokens())
    from peerd.models.admin import AccessEntry

    if print_data(output, {"tokens": found}, found, AccessEntry):
        return
    now = time.time()
    rows = [
        (
            token.name,
            token.id,
            "expired" if token.is_expired else seconds(max(0.0, token.expires_at - now)),
            ", ".join(token.scopes),
        )
        for token in found
    ]
    if rows:
        print_table(stdout(), ("name", "id", "expires in", "scopes"), rows)
    else:
        stdout().print("no access token: make one with `peerd access create NAME --scope SCOPE`")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name or id, as `peerd access list` shows.")],
    socket: SocketOption = None,
) -> None:
    """End an access token, and every request and stream that uses it."""
    ended = ask(socket, lambda client: client.revoke_access(name))
    typer.echo(f"access token {ended.name} ({ended.id}) is revoked")
