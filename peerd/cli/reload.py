"""``peerd reload``: have the daemon read its configuration again."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_table, stderr, stdout
from peerd.client import RequestRefused
from peerd.errors import ConfigError, ExitCode
from peerd.models.admin import ReloadAnswer, SettingChange


def reload(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Have the daemon read its configuration again: the same files, environment and flags as at its start.

    What can be applied while it runs is applied; what needs a restart is listed, with exit code 3. A configuration that
    is wrong changes nothing: exit code 78, with the file and the line. `kill -HUP` does the same, and tells the log.

    Examples: peerd reload; peerd config check /etc/peerd/peerd.toml && systemctl reload peerd
    """
    try:
        answer: ReloadAnswer = ask(socket, lambda client: client.reload())
    except RequestRefused as refused:
        if refused.problem.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise ConfigError(f"{refused}; nothing was changed") from refused
        raise
    if not print_data(output, answer, [*answer.applied, *answer.needs_restart]):
        _show(answer)
    if answer.needs_restart:
        raise typer.Exit(ExitCode.PARTIAL)


def _show(answer: ReloadAnswer) -> None:
    if answer.applied:
        stdout().print("applied:")
        _show_changes(answer.applied)
    if answer.needs_restart:
        if answer.conflict:
            stderr().print(f"nothing was applied, because of the values that stay until a restart: {answer.conflict}")
        stdout().print("needs a restart of the daemon, which goes on with the old values:")
        _show_changes(answer.needs_restart)
    elif not answer.applied:
        stdout().print("nothing has changed")


def _show_changes(changes: Sequence[SettingChange]) -> None:
    rows = [(change.key, change.old, change.new, change.origin) for change in changes]
    print_table(stdout(), ("setting", "old", "new", "from"), rows)
