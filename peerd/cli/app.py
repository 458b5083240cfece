"""The commands by name, and how one of them is found, imported and run."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import typer
from typer.main import get_command

from peerd.errors import ConfigError, ExitCode
from peerd.front import Command, Front

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
    "events": "peerd.cli.events:events",
    "drain": "peerd.cli.drain:drain",
    "reload": "peerd.cli.reload:reload",
    "analyze": "peerd.cli.analyze:analyze",
    "healthcheck": "peerd.cli.healthcheck:healthcheck",
    "version": "peerd.cli.version:version",
}
GROUPS: Final = {
    "ca": "peerd.cli.ca:app",
    "token": "peerd.cli.token:app",
    "access": "peerd.cli.access:app",
    "certificate": "peerd.cli.certificate:app",
    "cluster": "peerd.cli.cluster:app",
    "config": "peerd.cli.config:app",
    "sim": "peerd.cli.sim:app",
    "lab": "peerd.cli.lab:app",
    "doctor": "peerd.cli.doctor:app",
    "filter": "peerd.cli.filter:app",
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

    Built-in commands do not look at plugins.
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
    else:
        others = plugin_commands()
        if wanted in others:
            _add_plugin_command(app, wanted, others[wanted]())
        else:
            _add_everything(app, others)
    return app


def _no_options() -> None:
    """Peer-to-peer data dissemination and aggregation: one daemon on each machine."""


def _add_everything(app: typer.Typer, others: Mapping[str, Callable[[], Command]]) -> None:
    for name, target in COMMANDS.items():
        app.command(name)(_load(target))
        if name == "init":
            _add_run(app)
    for name, target in GROUPS.items():
        app.add_typer(_load(target), name=name)
    for name, load in others.items():
        try:
            _add_plugin_command(app, name, load())
        except ConfigError as error:
            print(f"peerd: warning: {error}", file=sys.stderr)


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


def plugin_commands() -> dict[str, Callable[[], Command]]:
    """The commands of installed plugins by name, each with what imports it.

    A plugin that cannot be loaded, or whose command has a name that is taken, is told of on standard error, and costs
    only its own commands.
    """
    from peerd.plugins import gather, guarded, usable_fronts, warn_on_stderr

    def commands(front: Front) -> Iterator[tuple[str, Callable[[], Command]]]:
        for name, load in front.commands().items():
            yield name, partial(guarded, front.name, f"command {name!r}", load)

    return gather(usable_fronts(), "command", commands, (*COMMANDS, *GROUPS, RUN), warn=warn_on_stderr)


def _add_plugin_command(app: typer.Typer, name: str, command: Command) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
