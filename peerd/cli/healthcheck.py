"""``peerd healthcheck``: a probe for container runtimes and load balancers, without a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data
from peerd.errors import ExitCode, PeerdError

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.models.admin import Health


def healthcheck(
    socket: SocketOption = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Wait so long for it to become ready.")] = 0.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Exit code 0 when the daemon answers and serves, 1 otherwise, with what fails. -o json has every check."""

    async def check(client: Client) -> Health:
        if wait > 0:
            await client.wait_ready(wait)
        return await client.ready()

    try:
        health = ask(socket, check)
        is_ok, checks = health.status == "ok", [each.model_dump() for each in health.checks]
        detail = "; ".join(f"{each.name}: {each.detail}" for each in health.checks if not each.ok)
    except PeerdError as error:  # 1 and nothing else: a container runtime reserves the other codes
        is_ok, checks, detail = False, [], str(error)
    if not print_data(output, {"ok": is_ok, "detail": detail, "checks": checks}):
        typer.echo("ready" if is_ok else f"not ready: {detail}", err=not is_ok)
    if not is_ok:
        raise typer.Exit(ExitCode.FAILURE)
