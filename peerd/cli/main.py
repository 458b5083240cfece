"""The entry point ``peerd``: from the command line to an exit code.

A daemon's process must stay small, so ``peerd run`` is told apart before typer and rich are imported; each other
command imports what it needs when it is the one that was asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from peerd.errors import Bug, ConfigError, ExitCode, PeerdError, Unavailable

INTERRUPTED: Final = 130
"""The exit code after an interruption: 128 + SIGINT, as in shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code. Errors are one clear line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["run"]:
            from peerd.cli.run import run

            return run(given[1:])
        from peerd.cli.app import run_command

        return run_command(given)
    except Bug:
        raise  # our own mistake: the traceback is the report
    except PeerdError as error:
        print(f"peerd: error: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def exit_code(error: PeerdError) -> int:
    """Return the exit code for an error that ends a command; scripts branch on it."""
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, Unavailable):
        return ExitCode.UNAVAILABLE
    # A value that cannot be used (a query, a refused request) is the caller's mistake.
    return ExitCode.USAGE if isinstance(error, ValueError) else ExitCode.FAILURE
