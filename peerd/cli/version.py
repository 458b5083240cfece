"""``peerd version``: what is installed here. Asks no daemon."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import typer

from peerd.cli.options import Output, OutputOption
from peerd.entry_points import installed


def version(output: OutputOption = Output.TABLE) -> None:
    """Print the version of this program (`peerd status` has the daemon's)."""
    facts = {
        "peerd": metadata.version("peerd"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}".lower(),
    }
    plugins = installed()
    if output is Output.JSON:
        typer.echo(json.dumps({**facts, "plugins": plugins}, indent=2))
        return
    typer.echo(f"peerd {facts['peerd']} (Python {facts['python']}, {facts['platform']})")
    typer.echo(f"plugins: {', '.join(plugins) or 'none'}")
