"""``peerd logs``: event files of machines and of local clusters, brought together for `peerd analyze`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Final, NamedTuple

import typer

from peerd.cli.main import INTERRUPTED
from peerd.cli.output import size, stderr
from peerd.errors import ExitCode, Unavailable
from peerd.places import clusters_folder
from peerd.words import counted

EVENT_FILE: Final = re.compile(r"[^/]*\.ndjson(\.gz|\.part)?")
FILE_BYTES_MAX: Final = 16 * 1024**3
"""An event file is not longer, so what is, is left where it is."""
SAID_BYTES_MAX: Final = 2000
"""What ssh and tar say of what went wrong is shown up to this length."""
SSH: Final = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "--")
"""It asks nothing: who collects from many hosts does not want to be asked by each."""
HOST: Final = re.compile(r"(?P<host>[^:/\s-][^:/\s]*):(?P<folder>/.*)")

app = typer.Typer(help="Bring the event logs of machines together.", no_args_is_help=True)


class Gathered(NamedTuple):
    """What came from one place: files that were not here yet, those that were, and the bytes of the former."""

    files: int
    known: int
    bytes: int


@app.callback()
def logs() -> None:
    """Bring the event logs of machines together."""


@app.command()
def collect(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="HOST:/DIR, over ssh (with tar there); the name of a local cluster; or a folder, with a / in it.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where each source gets a folder of its own.")],
) -> None:
    """Copy event files from hosts, local clusters and folders into one, each into a folder of its name.

    Once more, and it takes what is new: a finished file does not change, so one that is here is not written again. A
    source that fails does not stop the others; exit code 3 when one failed, 69 when all did. Then: `peerd analyze DIR`.
    """
    errors = stderr()
    failed = 0
    for number, source in enumerate(sources, 1):
        with errors.status(f"{number}/{len(sources)} {source}") as status:
            try:
                found = _gather(source, out, status.update)
            except KeyboardInterrupt:
                errors.print(f"peerd logs collect: interrupted at {source}; what is whole stays")
                raise typer.Exit(INTERRUPTED) from None
            except (Unavailable, OSError, tarfile.TarError) as error:
                failed += 1
                errors.print(f"{source}: {error}", "red")
                continue
        errors.print(f"{source}: {counted(found.files, 'new file')}, {size(found.bytes)}; {found.known} were here")
    if failed:
        raise typer.Exit(ExitCode.UNAVAILABLE if failed == len(sources) else ExitCode.PARTIAL)


def _gather(source: str, out: Path, progress: Callable[[str], None]) -> Gathered:
    remote = HOST.fullmatch(source)
    folder = out / re.sub(r"[^\w.-]+", "_", source).strip("_.")
    if remote is not None:
        return _keep(_streamed(remote["host"], remote["folder"]), folder, lambda name: progress(f"{source} {name}"))
    here = Path(source) if "/" in source else clusters_folder() / source / "events"
    if not here.is_dir():
        raise Unavailable(f"there is no folder {here}")
    return _keep(_walked(here), folder, lambda name: progress(f"{source} {name}"))


Found = tuple[PurePosixPath, int, Callable[[], IO[bytes] | None]]
"""A file at a place: its path below the folder there, its size, and what opens it."""


def _keep(found: Iterator[Found], folder: Path, progress: Callable[[str], None]) -> Gathered:
    """Copy event files that are not here yet, or have grown; each appears when it is whole."""
    files = known = total = 0
    for path, length, opened in found:
        # The names are another machine's: nothing is written outside of the folder.
        if path.is_absolute() or ".." in path.parts or not EVENT_FILE.fullmatch(path.name) or length > FILE_BYTES_MAX:
            continue
        target = folder / path
        if target.is_file() and target.stat().st_size == length:
            known += 1
            continue
        progress(path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = target.with_name(target.name + ".tmp")
        source = opened()
        if source is None:
            continue
        with source, begun.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        begun.replace(target)
        if target.suffix != ".part":  # it was being written when it was last taken
            target.with_name(target.name.removesuffix(".gz") + ".part").unlink(missing_ok=True)
        files, total = files + 1, total + length
    return Gathered(files, known, total)


def _walked(folder: Path) -> Iterator[Found]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield PurePosixPath(path.relative_to(folder)), path.stat().st_size, partial(_opened, path)


def _opened(path: Path) -> IO[bytes] | None:
    try:
        return path.open("rb")
    except FileNotFoundError:  # it has been finished, or was the oldest, meanwhile
        return None


def _streamed(host: str, folder: str) -> Iterator[Found]:
    """The files of a folder at a host, as tar sends them. Raises `Unavailable` with what ssh or tar says."""
    command = [*SSH, host, f"tar -C {shlex.quote(folder)} -cf - ."]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        assert process.stdout is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    if member.isreg():
                        yield PurePosixPath(member.name), member.size, partial(archive.extractfile, member)
            process.stdout.read()
        except tarfile.ReadError as error:
            raise Unavailable(_said(said) or str(error)) from error
        except GeneratorExit:
            process.kill()
            raise
        # 1: a file was changed while it was read, as the one that is being written is all the time.
        if process.wait() not in (0, 1):
            raise Unavailable(_said(said) or f"ssh ended with {process.returncode}")


def _said(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read(SAID_BYTES_MAX).decode(errors="replace").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip())
