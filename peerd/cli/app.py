"""The commands by name, and how one of them is found, imported and run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.main import get_command

from peerd.errors import ConfigError, ExitCode

PROGRAM: Final = "peerd"
RUN: Final = "run"
COMMANDS: Final = {
    "init": "peerd.cli.init:init",
    "join": "peerd.cli.join:join",
    "deny": "peerd.cli.deny:deny",
    "forget": "peerd.cli.forget:forget",
    "status": "peerd.cli.status:status",
    "peers": "peerd.cli.peers:peers",
    "ring": "peerd.cli.ring:ring",
    "route": "peerd.cli.route:route",
    "rtt": "peerd.cli.rtt:rtt",
    "drain": "peerd.cli.drain:drain",
    "analyze": "peerd.cli.analyze:analyze",
    "healthcheck": "peerd.cli.healthcheck:healthcheck",
    "version": "peerd.cli.version:version",
}
GROUPS: Final = {
    "ca": "peerd.cli.ca:app",
    "token": "peerd.cli.token:app",
    "certificate": "peerd.cli.certificate:app",
    "cluster": "peerd.cli.cluster:app",
    "config": "peerd.cli.config:app",
    "sim": "peerd.cli.sim:app",
    "lab": "peerd.cli.lab:app",
    "doctor": "peerd.cli.doctor:app",
}
HELP_WIDTH_MAX: Final = 120
COMPLETION_VARIABLE: Final = "_PEERD_COMPLETE"


def run_command(arguments: Sequence[str]) -> int:
    """Parse and run; returns the exit code. Raises what the command raises."""
    word = next((argument for argument in arguments if not argument.startswith("-")), "")
    wanted = "" if COMPLETION_VARIABLE in os.environ else word
    command = get_command(build_app(wanted))
    try:
        command.main(args=list(arguments), prog_name=PROGRAM)
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        return end.code or ExitCode.OK
    return ExitCode.OK


def build_app(wanted: str = "") -> typer.Typer:
    """The application with the one command ``wanted``, or with all of them when it is not a known one.

    Raises `ConfigError` when an installed plugin cannot be loaded (built-in commands do not look at plugins).
    """
    app = typer.Typer(
        name=PROGRAM,
        help="Peer-to-peer data dissemination and aggregation: one daemon on each machine.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH_MAX},
    )
    app.callback()(_no_options)
    if wanted in COMMANDS:
        app.command(wanted)(_load(COMMANDS[wanted]))
    elif wanted in GROUPS:
        app.add_typer(_load(GROUPS[wanted]), name=wanted)
    elif wanted == RUN:
        _add_run(app)
    elif wanted and (function := plugin_commands().get(wanted)) is not None:
        app.command(wanted)(function)
    else:
        _add_everything(app)
    return app


def _no_options() -> None:
    """Peer-to-peer data dissemination and aggregation: one daemon on each machine."""


def _add_everything(app: typer.Typer) -> None:
    for name, target in COMMANDS.items():
        app.command(name)(_load(target))
        if name == "init":
            _add_run(app)
    for name, target in GROUPS.items():
        app.add_typer(_load(target), name=name)
    for name, function in plugin_commands().items():
        app.command(name)(function)


def _add_run(app: typer.Typer) -> None:
    app.command(
        RUN,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_run)


def _run(context: typer.Context) -> None:
    """Run the daemon in the foreground (`peerd run --help` has its options)."""
    from peerd.cli.run import run

    raise typer.Exit(run(context.args))


def plugin_commands() -> dict[str, Callable[..., Any]]:
    """The commands that installed plugins bring: ``commands() -> {name: function}`` of their class.

    Raises `ConfigError` when two have the same name, or a built-in command's.
    """
    from peerd.daemon.plugins import find_plugins

    found: dict[str, Callable[..., Any]] = {}
    for plugin_name, plugin in find_plugins().items():
        commands: Callable[[], dict[str, Callable[..., Any]]] | None = getattr(plugin, "commands", None)
        for name, function in (commands() if commands is not None else {}).items():
            if name in found or name in COMMANDS or name in GROUPS or name == RUN:
                raise ConfigError(f"the plugin {plugin_name} brings a command {name!r} that exists already")
            found[name] = function
    return found


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
