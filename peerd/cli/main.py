"""The entry point ``peerd``: from the command line to an exit code.

A daemon's process must stay small, so ``peerd run`` is told apart before typer and rich are imported; each other
command imports what it needs when it is the one that was asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from peerd.errors import Bug, ConfigError, ExitCode, PeerdError, Unavailable
from peerd.places import SOCKET_VARIABLE

INTERRUPTED: Final = 130
"""The exit code after an interruption: 128 + SIGINT, as in shells."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why what is written to a file may not arrive there. None of it is a mistake of ours."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code. Errors are one clear line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["run"]:
            from peerd.cli.run import run

            return run(given[1:])
        from peerd.cli.app import run_command

        code = run_command(given)
        sys.stdout.flush()
        return code
    except Bug:
        raise  # our own mistake: the traceback is the report
    except PeerdError as error:
        print(f"peerd: error: {error}{_whom_else_to_ask(error)}", file=sys.stderr)
        return exit_code(error)
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        _forget_output()
        print(f"peerd: error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _whom_else_to_ask(error: PeerdError) -> str:
    """The end of an error that says that no daemon answers: a local cluster that runs here, if there is one."""
    if not isinstance(error, Unavailable):
        return ""
    from peerd.client import DaemonUnreachable

    if not isinstance(error, DaemonUnreachable):
        return ""
    from peerd.cli.locations import local_cluster_sockets

    sockets = local_cluster_sockets()
    return f"; a local cluster runs here: export {SOCKET_VARIABLE}={shlex.quote(str(sockets[0]))}" if sockets else ""


def _forget_output() -> None:
    """Send what is still buffered to nowhere: Python would try it once more at the end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # a standard output that is no file has no descriptor
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def exit_code(error: PeerdError) -> int:
    """Return the exit code for an error that ends a command; scripts branch on it."""
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, Unavailable):
        return ExitCode.UNAVAILABLE
    # A value that cannot be used (a query, a refused request) is the caller's mistake.
    return ExitCode.USAGE if isinstance(error, ValueError) else ExitCode.FAILURE
