"""Where event logs are, and what is known of each of their lines. Nothing of this needs an engine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

from peerd.errors import Unavailable
from peerd.telemetry.schema import COMMON_FIELDS

UNPACKED: Final = 8
"""A compressed file is about so many times as long when it is read."""
PART_SUFFIX: Final = ".part"
FOLDER_HOUR: Final = r"/dt=(\d{4}-\d\d-\d\d)/hr=(\d\d)/"
FOLDER_S: Final = 2 * 3600.0
"""A folder has the events of an hour, and of some more for which its daemon had no time yet."""
RAW: Final = "raw"
"""The column with a whole line, as a VARIANT, where it has more than the other columns can hold: an event of a kind
that is not known here (its plugin is not installed), or of a newer version."""
FILE: Final = "_file"
IS_GOOD: Final = "_is_good"
IS_NEWER: Final = "_is_newer"
OF_LINE: Final = (FILE, IS_GOOD, IS_NEWER)
"""Columns that say something of the line, and are in no table."""
LISTINGS_MAX: Final = 5
NEEDED: Final = tuple(name for name in COMMON_FIELDS if name != "cause")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FolderHours:
    """Hours as folders are named, such as ``2026-11-2713``, the first and the last one whose folders may have events of
    the time that is asked for; empty: there is no such limit."""

    since: str = ""
    until: str = ""

    def may_have(self, path: str) -> bool:
        """Whether the folder of this file may have such events; where it does not name an hour, it may."""
        hour = re.search(FOLDER_HOUR, path)
        return hour is None or (hour[1] + hour[2] >= self.since and (not self.until or hour[1] + hour[2] <= self.until))


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read. ``since_s``, ``until_s``: seconds since 1970 by the nodes' clocks; events of then and before it."""

    paths: Sequence[str]
    has_parts: bool = True
    since_s: float | None = None
    until_s: float | None = None

    @property
    def hours(self) -> FolderHours:
        """Of the folders that are to be read."""
        since = "" if self.since_s is None else _hour(self.since_s - FOLDER_S)
        return FolderHours(since, "" if self.until_s is None else _hour(self.until_s))


def has_scheme(path: str) -> bool:
    """Whether a path names its file system, such as ``hdfs:``."""
    return re.match(r"\w+:", path) is not None


def check_here(paths: Sequence[str]) -> None:
    """Raise `Unavailable` for a path of this machine that is not there, before Spark takes its seconds to start."""
    for path in paths:
        if not re.search(r"[*?\[{]|^\w+:", path) and not Path(path).exists():
            raise missing(path)


def missing(path: str) -> Unavailable:
    """The error for a path at which there is nothing."""
    return Unavailable(f"{path}: there is no such file or folder, or nothing fits the pattern")


def check_apart(folders: Mapping[str, str], files: Iterable[str]) -> None:
    """Raise `Unavailable` where a table would be written over one of these files. ``folders``: of tables, by name."""
    for file in files:
        for name, folder in folders.items():
            if file.startswith(f"{folder}/"):
                raise Unavailable(f"the table {name} would be written over the event file {file}: choose another --out")


class NothingThere(Unavailable):
    """There is no event file."""


def nothing_in(paths: Sequence[str]) -> NothingThere:
    """The error for paths below which there is no event file."""
    return NothingThere(f"no event files (*.ndjson, *.ndjson.gz) in {' '.join(paths)}")


def until_files_stay(
    read: Callable[[], Result], is_gone: Callable[[Exception], bool], progress: Callable[[str], None]
) -> Result:
    """Read, again if a file was there when it was listed, and was not when it was opened: its daemon has finished it
    meanwhile, and given it another name. ``is_gone``: whether this error says so."""
    for _ in range(LISTINGS_MAX - 1):
        try:
            return read()
        except Exception as error:
            if not is_gone(error):
                raise
            progress("a file got another name meanwhile: reading again")
    return read()


def is_small(paths: Sequence[str], bytes_max: int) -> bool:
    """Whether these are files of this machine, of at most so many bytes as they are read. Looks at no more of them."""
    left = bytes_max
    for path in map(Path, paths):
        if not path.exists():
            return False  # a pattern, or elsewhere
        for file in path.rglob("*.ndjson*") if path.is_dir() else (path,):
            with contextlib.suppress(FileNotFoundError):  # its daemon may just have given it another name
                left -= file.stat().st_size * (UNPACKED if file.suffix == ".gz" else 1)
            if left < 0:
                return False
    return True


def plain(uri: str) -> str:
    """A file's address as people write it."""
    return re.sub(r"^file:/+", "/", unquote(uri))


def _hour(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d%H")
