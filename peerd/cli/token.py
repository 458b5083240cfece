"""``peerd token``: let machines join."""

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
    help="Join tokens let machines join the cluster; an issuer makes them. To let programs in, see `peerd access`.",
    no_args_is_help=True,
)


@app.command()
def create(
    ttl: Annotated[str, typer.Option(metavar="TIME", help="How long it can be used, at most 30d.")] = "1h",
    uses: Annotated[int, typer.Option(metavar="N", min=1, help="How many machines it lets in.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there (0600). Default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE when it is there already.")] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a join token: whoever has it can join the cluster. The issuer keeps a hash only; it is shown once."""
    if not force:
        require_free(out)
    made = ask(socket, lambda client: client.create_token(duration_s(ttl, "--ttl"), uses))
    hand_out(made, out, output)
    token = made.token
    until = datetime.fromtimestamp(token.expires_at, UTC)
    print(
        f"token {token.id}: {token.uses_max} use(s) until {until:%Y-%m-%d %H:%M:%S} UTC\n"
        "On the new machine: peerd join HOST:PORT --token-file FILE",
        file=sys.stderr,
    )


@app.command("list")
def list_tokens(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the tokens that the issuer remembers: those that can be used, and for a day those that are over."""
    found = ask(socket, lambda client: client.tokens())
    from peerd.models.admin import Token

    if print_data(output, {"tokens": found}, found, Token):
        return
    now = time.time()
    rows = [
        (
            token.id,
            token.state.replace("_", " "),
            f"{token.uses} of {token.uses_max}",
            seconds(max(0.0, token.expires_at - now)),
        )
        for token in found
    ]
    if rows:
        print_table(stdout(), ("token", "state", "used", "expires in"), rows)
    else:
        stdout().print("no token: make one with `peerd token create`")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id: eight digits, as `peerd token list` shows.")],
    socket: SocketOption = None,
) -> None:
    """End a token. Machines that joined with it stay members: `peerd deny` is for those."""
    ended = ask(socket, lambda client: client.revoke_token(token))
    typer.echo(f"token {ended.id} is revoked; it was used {ended.uses} of {ended.uses_max} times")
