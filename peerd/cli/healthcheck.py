"""``peerd healthcheck``: a probe for container runtimes and load balancers, without a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data
from peerd.errors import ExitCode, PeerdError

if TYPE_CHECKING:
    from peerd.client import Client


def healthcheck(
    socket: SocketOption = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Wait so long for it to become ready.")] = 0.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Exit code 0 when the daemon answers and serves, 1 otherwise."""

    async def check(client: Client) -> tuple[bool, str]:
        if wait > 0:
            await client.wait_ready(wait)
        health = await client.ready()
        return health.status == "ok", "; ".join(f"{check.name}: {check.detail}" for check in health.checks)

    try:
        is_ok, detail = ask(socket, check)
    except PeerdError as error:  # 1 and nothing else: a container runtime reserves the other codes
        is_ok, detail = False, str(error)
    if output is not Output.TABLE:
        print_data(output, {"ok": is_ok, "detail": detail})
    else:
        typer.echo(f"{'ready' if is_ok else 'not ready'}: {detail}", err=not is_ok)
    if not is_ok:
        raise typer.Exit(ExitCode.FAILURE)
