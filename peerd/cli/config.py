"""``peerd config``: check files, and show what is in force."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from peerd.cli.locations import standard_files
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_json, print_table, stdout
from peerd.config import LoadedConfig, check_config, config_json_schema
from peerd.errors import ConfigError, ExitCode
from peerd.plugins import find_events, find_plugins, plugin_models
from peerd.telemetry.schema import json_schema

app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None)

Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="TOML files or folders. Default: the standard ones.")
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting more.")]


@app.command()
def check(files: Files = None, sets: Sets = None, output: OutputOption = Output.TABLE) -> None:
    """Check files together with the environment. Exit code 78 with every problem, 0 when there is none."""
    loaded, problems = _read(files, sets)
    if output is not Output.TABLE:
        found = [_problem(problem) for problem in problems]
        print_data(output, {"ok": loaded is not None, "problems": found}, found)
    for problem in problems if output is Output.TABLE else []:
        typer.echo(f"{problem}", err=True)
    if loaded is None:
        raise typer.Exit(ExitCode.CONFIG)
    if output is Output.TABLE:
        typer.echo(f"ok: {', '.join(map(str, files or standard_files())) or 'the defaults'}")


@app.command()
def show(
    files: Files = None,
    sets: Sets = None,
    running: Annotated[bool, typer.Option("--running", help="Ask the daemon for what it runs with.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out what is at its default.")] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every setting with its value and where that came from."""
    if running:
        settings = ask(socket, lambda client: client.settings())
        rows = [(setting.key, setting.value, setting.origin) for setting in settings]
    else:
        loaded, problems = _read(files, sets)
        for problem in problems:
            typer.echo(f"{problem}", err=True)
        if loaded is None:
            raise typer.Exit(ExitCode.CONFIG)
        rows = list(loaded.rows())
    shown = [row for row in rows if not changed or row[2] != "default"]
    told = [{"key": key, "value": value, "origin": origin} for key, value, origin in shown]
    if print_data(output, {"settings": told}, told):
        return
    print_table(
        stdout(), ("setting", "value", "from"), [(key, json.dumps(value), origin) for key, value, origin in shown]
    )


@app.command()
def schema(
    events: Annotated[bool, typer.Option("--events", help="Of a line of an event log instead.")] = False,
) -> None:
    """Print the JSON Schema of a configuration file, for editors; with what the installed plugins add."""
    plugins = find_plugins()
    print_json(json_schema(find_events(plugins)) if events else config_json_schema(plugin_models(plugins)))


def _read(files: list[Path] | None, sets: list[str] | None) -> tuple[LoadedConfig | None, list[ConfigError]]:
    return check_config(
        files or standard_files(), environment=os.environ, sets=sets or (), plugin_models=plugin_models(find_plugins())
    )


def _problem(problem: ConfigError) -> dict[str, Any]:
    return {"file": problem.file, "key": problem.key, "message": problem.message}
