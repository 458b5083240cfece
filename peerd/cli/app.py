"""The commands by name, and how one of them is found, imported and run.

A command is imported when it is the one that was asked for. The list of commands (`peerd --help`, completion) shows the
summaries that stand here, so it imports none.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from peerd.errors import ConfigError, ExitCode
from peerd.front import Command, Front, LazyCommand

PROGRAM: Final = "peerd"
RUN: Final = "run"
RUN_SUMMARY: Final = "Run the daemon in the foreground."
COMMANDS: Final = {
    "init": LazyCommand("Make a node, and a new cluster's certificate authority.", "peerd.cli.init:init"),
    "join": LazyCommand("Join a cluster with a token that its operator made.", "peerd.cli.join:join"),
    "deny": LazyCommand("Shut a node out of the cluster.", "peerd.cli.deny:deny"),
    "forget": LazyCommand("Stop expecting a node that is missing.", "peerd.cli.forget:forget"),
    "status": LazyCommand("Show what the daemon on this machine is and does.", "peerd.cli.status:status"),
    "peers": LazyCommand("List the nodes that the daemon knows, and their history.", "peerd.cli.peers:peers"),
    "ring": LazyCommand("Draw the ring, or check that it is consistent.", "peerd.cli.ring:ring"),
    "route": LazyCommand("Find the node that is responsible for a key.", "peerd.cli.route:route"),
    "rtt": LazyCommand("Measure the round trip between two nodes.", "peerd.cli.rtt:rtt"),
    "events": LazyCommand("Follow what happens in the daemon.", "peerd.cli.events:events"),
    "drain": LazyCommand("Take the daemon out of the ring in good order.", "peerd.cli.drain:drain"),
    "reload": LazyCommand("Have the daemon read its configuration again.", "peerd.cli.reload:reload"),
    "demo": LazyCommand("Five daemons, one killed: try all of peerd, checked.", "peerd.cli.demo:demo"),
    "analyze": LazyCommand("Turn event logs into tables and a report (Spark).", "peerd.cli.analyze:analyze"),
    "report": LazyCommand("Make a page with pictures of analyze's tables.", "peerd.cli.report:report"),
    "healthcheck": LazyCommand("Tell by the exit code whether the daemon serves.", "peerd.cli.healthcheck:healthcheck"),
    "version": LazyCommand("Print the version of this program and its plugins.", "peerd.cli.version:version"),
}
GROUPS: Final = {
    "ca": LazyCommand("Make, show and change the certificate authority.", "peerd.cli.ca:app"),
    "token": LazyCommand("Join tokens: let machines join the cluster.", "peerd.cli.token:app"),
    "access": LazyCommand("Access tokens: let programs use the protocols.", "peerd.cli.access:app"),
    "certificate": LazyCommand("Show, renew or install this node's certificate.", "peerd.cli.certificate:app"),
    "cluster": LazyCommand("Start and stop a cluster of daemons on this machine.", "peerd.cli.cluster:app"),
    "config": LazyCommand("Check and show the configuration.", "peerd.cli.config:app"),
    "logs": LazyCommand("Bring the event logs of machines together.", "peerd.cli.logs:app"),
    "sink": LazyCommand("Collect the event logs of many daemons.", "peerd.cli.sink:app"),
    "sim": LazyCommand("Simulate a cluster: one scenario, or many seeds.", "peerd.cli.sim:app"),
    "lab": LazyCommand("Reproduce the figures of papers in the simulator.", "peerd.cli.lab:app"),
    "doctor": LazyCommand("Have the nodes test whether they reach each other.", "peerd.cli.doctor:app"),
    "filter": LazyCommand("Check, explain, compare and try filters.", "peerd.cli.filter:app"),
}
HELP_WIDTH_MAX: Final = 120
COMPLETION_VARIABLE: Final = "_PEERD_COMPLETE"
COMPLETED_WORDS: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Where the shell's completion puts the words that were typed so far: bash; other shells."""


class PeerdGroup(TyperGroup):
    """All commands. What is wrong with an option's value is said in our words, not in those of the library."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # the class of contexts is typer's own
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from peerd.invalid import reason

            if isinstance(error.__cause__, ValidationError):
                error.message = reason(error.__cause__.errors(include_url=False)[0])
            raise


def run_command(arguments: Sequence[str]) -> int:
    """Parse and run; returns the exit code. Raises what the command raises."""
    if (broken := next(filter(_is_broken, arguments), None)) is not None:
        from peerd.cli.terminal import printable

        shown = os.fsencode(broken).decode(errors="backslashreplace")
        print(f"{PROGRAM}: error: the argument {printable(shown)} is not UTF-8", file=sys.stderr)
        return ExitCode.USAGE
    gc.disable()  # what is imported stays, and looking through it is a tenth of what a short command takes
    try:
        command = get_command(build_app(_first_word(arguments), is_listing=True))
    finally:
        gc.enable()
    try:
        command.main(args=list(arguments), prog_name=PROGRAM)
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        return end.code or ExitCode.OK
    return ExitCode.OK


def _is_broken(argument: str) -> bool:
    """Whether an argument is no text, and no file either: those may be named with any bytes."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return not os.path.lexists(argument)
    return False


def _first_word(arguments: Sequence[str]) -> str:
    """The command that is asked for, or whose rest is being completed."""
    words = arguments
    if COMPLETION_VARIABLE in os.environ:
        typed = next((os.environ[name] for name in COMPLETED_WORDS if name in os.environ), "")
        words = typed.split()[1:]
    return next((word for word in words if not word.startswith("-")), "")


def build_app(wanted: str = "", *, is_listing: bool = False) -> typer.Typer:
    """The application with the one command ``wanted``, or with all of them when it is not a known one.

    Built-in commands do not look at plugins. ``is_listing``: when it is all of them, they are there by name and summary
    only, which is enough for the help and for completion; otherwise each is imported.
    """
    app = typer.Typer(
        name=PROGRAM,
        cls=PeerdGroup,
        help="Peer-to-peer data dissemination and aggregation: one daemon on each machine.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH_MAX},
    )
    app.callback()(_root)
    if wanted in COMMANDS or wanted in GROUPS:
        _add(app, wanted, (COMMANDS | GROUPS)[wanted]())
    elif wanted == RUN:
        _add_run(app)
    else:
        others = plugin_commands()
        if wanted in others:
            _add(app, wanted, others[wanted]())
        else:
            _add_everything(app, others, is_listing)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from peerd.cli.version import one_line

        typer.echo(one_line())
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Peer-to-peer data dissemination and aggregation: one daemon on each machine."""


def _add_everything(app: typer.Typer, others: Mapping[str, Callable[[], Command]], is_listing: bool) -> None:
    every: dict[str, Callable[[], Command]] = {**COMMANDS, **others, **GROUPS}
    for name, load in every.items():
        summary = load.summary if isinstance(load, LazyCommand) else ""
        if is_listing and summary:
            app.command(name, help=summary)(_listed)
        else:
            try:
                _add(app, name, load(), summary)
            except ConfigError as error:
                print(f"peerd: warning: {error}", file=sys.stderr)
        if name == "init":
            _add_run(app)


def _listed() -> None:
    """Stands for a command where only its name and summary are needed; it is never run."""


def _add_run(app: typer.Typer) -> None:
    app.command(
        RUN,
        help=RUN_SUMMARY,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_run)


def _run(context: typer.Context) -> None:
    """Run the daemon in the foreground."""
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
            loaded = partial(guarded, front.name, f"command {name!r}", load)
            yield name, LazyCommand(load.summary, loaded) if isinstance(load, LazyCommand) else loaded

    return gather(usable_fronts(), "command", commands, (*COMMANDS, *GROUPS, RUN), warn=warn_on_stderr)


def _add(app: typer.Typer, name: str, command: Command, summary: str = "") -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, short_help=summary or None)
    else:
        app.command(name, short_help=summary or None)(command)
