"""``peerd sink``: a collector for the event logs of many daemons."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from peerd.cli.locations import standard_files
from peerd.config import PeerdConfig, is_loopback, load_config, split_address
from peerd.quantities import parse_size

app = typer.Typer(help="Collect the event logs of many daemons in one directory.", no_args_is_help=True)


@app.callback()
def sink() -> None:
    """Collect the event logs of many daemons in one directory."""


@app.command()
def serve(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where event files go; it is made if need be.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where daemons send to: their telemetry.sink is peerd://HOST:PORT.")
    ] = "127.0.0.1:7440",
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Configuration of the node whose certificate is shown. Default: the standard files."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="No TLS, on a loopback address only: any local program may send.")
    ] = False,
    budget: Annotated[
        str, typer.Option(metavar="SIZE", help="Finished files that are kept; the oldest go first.")
    ] = "100GiB",
    rotate_size: Annotated[str, typer.Option(metavar="SIZE", help="Size at which a file is finished.")] = "256MiB",
) -> None:
    """Take events of many daemons until a signal ends it.

    Nothing is acknowledged before it is on the disk, and a restart loses and doubles nothing: daemons keep what was not
    acknowledged, as far as their queues reach, and number their events. `peerd analyze DIR` reads what it writes.
    Daemons of the same cluster prove with their certificates whose events they send.
    """
    host, port = _address(listen)
    if plain and not is_loopback(host):
        raise typer.BadParameter(f"{host} is no loopback address: there events need TLS", param_hint="--plain")
    sizes = [_size(text, name) for text, name in ((budget, "--budget"), (rotate_size, "--rotate-size"))]
    loaded = PeerdConfig() if plain else load_config(config or standard_files(), environment=os.environ).config
    from peerd.client import Client
    from peerd.daemon.collector.server import CollectorTls, collect
    from peerd.daemon.collector.store import CollectorStore
    from peerd.daemon.loops import run
    from peerd.telemetry.event_files import FileLimits
    from peerd.telemetry.logs import configure_logging

    configure_logging(loaded.telemetry.log_level, loaded.telemetry.log_format)
    tls = loaded.tls_files()
    access = None if plain else CollectorTls(tls.ca_file, tls.cert_file, tls.key_file, loaded.node.cluster)
    store = CollectorStore(out, FileLimits(rotate_bytes=sizes[1], budget_bytes=sizes[0]))

    async def denials() -> list[str]:
        """As the daemon of this machine knows them."""
        async with Client(loaded.admin.socket) as client:
            return [each.subject for each in await client.denials()]

    async def main() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await collect(store, access, host, port, stopped, denials)

    run(main())


def _address(text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from error


def _size(text: str, option: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
