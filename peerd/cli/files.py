"""Small files that commands read and write for people: tokens, requests, certificates, records."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from peerd.cli.options import Output
from peerd.cli.output import print_data
from peerd.errors import ConfigError, Unavailable
from peerd.models.admin import NewAccess, NewToken

FILE_BYTES_MAX: Final = 64 * 1024
STDIN: Final = Path("-")
NOT_SAVED: Final = "peerd: warning: the {}'s disk refuses it: it is tried again; a restart before that can lose it"


def read_text(path: Path) -> str:
    """Read a small text file; ``-`` is standard input. Raises `ConfigError`."""
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("not a text file", file=str(path)) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"larger than {FILE_BYTES_MAX} bytes", file=str(path))
    return text


def write_text(path: Path, text: str, mode: int) -> None:
    """Replace a file as a whole. Raises `Unavailable`."""
    from peerd.system.durable_files import write_atomically

    try:
        write_atomically(path, text.encode(), mode)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error


def require_free(path: Path | None) -> None:
    """Raises `ConfigError` if the file exists. Called before a secret is made, because it cannot be shown again."""
    if path is not None and os.path.lexists(path):
        raise ConfigError("is there already: --force overwrites it", file=str(path))


def hand_out(made: NewAccess | NewToken, out: Path | None, output: Output) -> None:
    """Write a new secret into its file (0600), else onto standard output. It is never shown again."""
    if out is not None:
        write_text(out, made.text + "\n", 0o600)
    if output is not Output.TABLE:
        print_data(output, {**made.model_dump(), "text": made.text if out is None else None})
    elif out is None:
        print(made.text)
