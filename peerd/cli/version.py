"""``peerd version``: what is installed here. Asks no daemon."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from peerd.cli.options import Output, OutputOption
from peerd.cli.output import print_data
from peerd.entry_points import installed


def one_line() -> str:
    """Return one line with the version of the program and of Python, and the system."""
    system = f"{platform.system()} {platform.machine()}".lower()
    return f"peerd {metadata.version('peerd')} (Python {platform.python_version()}, {system})"


def version(output: OutputOption = Output.TABLE) -> None:
    """Print the version of this program (`peerd status` has the daemon's)."""
    facts = {
        "peerd": metadata.version("peerd"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}".lower(),
    }
    plugins = installed()
    if print_data(output, {**facts, "plugins": plugins}):
        return
    typer.echo(one_line())
    typer.echo(f"plugins: {', '.join(plugins) or 'none'}")
