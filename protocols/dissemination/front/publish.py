"""``peerd stream publish``: items from arguments, files, lines, a file that grows, or a folder that fills."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.lines import STDIN, BadLine, object_of, once, typed_value
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_result, printable, seconds, size, stderr
from peerd.errors import ExitCode
from peerd.words import counted
from protocols.dissemination.models import CONTENT_TYPE_LENGTH_MAX

if TYPE_CHECKING:
    from peerd.cli.output import Terminal
    from peerd.client import Client
    from peerd.models.streams import IngestAnswer, IngestError
    from protocols.dissemination.front.sources import Items

ATTRIBUTE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)=(.*)", re.DOTALL)
SHOW_EVERY_S: Final = 0.2
BAR_LENGTH: Final = 30
LINES_TOLD_MAX: Final = 10
"""So many lines that are refused are told one by one; the others are only counted."""


def publish(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Its name; this daemon has to be its producer.")],
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|NAME=VALUE]...",
            help="Files, of which each is an item; or one item: its attributes, or a JSON object. Default, or '-': "
            "lines of JSON on standard input.",
        ),
    ] = None,
    follow: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Each line that is added to this file, as with tail -F.")
    ] = None,
    watch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Each file that comes into this folder, or is replaced there.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="With --follow and --watch: also what is there already.")
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help='Lines are text: each becomes {"line": TEXT}, so that filters can use it.')
    ] = False,
    attach: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Publish a file of any size; NAME=VALUE or --payload say what filters see."),
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --attach: the item itself, such as a JSON object.")
    ] = None,
    type: Annotated[
        str,
        typer.Option(metavar="TYPE", help="What items are, such as application/xml. Default: files by their names."),
    ] = "",
    rate: Annotated[float, typer.Option(min=0.0, metavar="N", help="At most so many a second. 0: no limit.")] = 0.0,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show how far it is.")] = True,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish items in a stream. Exit code 1 when some were refused, 3 when the daemon did not take all.

    With --follow and --watch it goes on until it is interrupted, and waits while the daemon is away. A line or a file
    that cannot be an item is told on standard error and passed over.

    Examples: peerd stream publish news *.xml; peerd stream publish ticks symbol=IBM price=20.5;
    peerd stream publish log --follow /var/log/syslog --text; peerd stream publish news --watch incoming
    """
    given = what or []
    if sum([bool(given), follow is not None, watch is not None]) > 1:
        raise typer.BadParameter("give items as arguments, or --follow, or --watch, and not two of them")
    if everything and follow is None and watch is None:
        raise typer.BadParameter("it needs --follow or --watch", param_hint="--everything")
    _check_type(type)
    if attach is not None or payload is not None:
        attached = _attached(attach, given, payload, [follow, watch])
        _attach(socket, stream, *attached, type, progress, output)
        return
    pairs = [found for each in given if (found := ATTRIBUTE.fullmatch(each))]
    if pairs and len(pairs) == len(given):
        _one(socket, stream, _attributes(pairs), type, output)
        return
    if len(given) == 1 and given[0].lstrip().startswith("{") and not os.path.exists(given[0]):
        _one(socket, stream, object_of(given[0], "the item"), type, output)
        return
    labels = dict(enumerate([each for each in given if each != STDIN], 1))
    items = _items(given, follow, watch, everything, text, type, labels)
    _many(socket, stream, items, rate, labels, progress, output)


def _attached(
    attach: Path | None, given: list[str], payload: str | None, others: list[Path | None]
) -> tuple[Path, Any]:
    """The file and its item. Raises ``typer.BadParameter``."""
    if attach is None:
        raise typer.BadParameter("it needs --attach", param_hint="--payload")
    _check(attach, attach.is_file(), "--attach", "file")
    if not attach.stat().st_size:
        raise typer.BadParameter(f"{attach} is empty", param_hint="--attach")
    if any(each is not None for each in others):
        raise typer.BadParameter("it does not go together with --follow and --watch", param_hint="--attach")
    pairs = [found for each in given if (found := ATTRIBUTE.fullmatch(each))]
    if len(pairs) != len(given) or (pairs and payload is not None):
        raise typer.BadParameter(
            "beside it give the attributes of its item as NAME=VALUE, or --payload", param_hint="--attach"
        )
    return attach, _attributes(pairs) if pairs else payload


def _attributes(pairs: list[re.Match[str]]) -> dict[str, Any]:
    """One item. Raises ``typer.BadParameter``."""
    return once((found[1], typed_value(found[2])) for found in pairs)


def _attach(socket: str | None, stream: str, path: Path, item: Any, type: str, progress: bool, output: Output) -> None:
    from protocols.dissemination.front.client import DisseminationClient

    shown = ByteProgress(path.name, stderr() if progress else None)
    try:
        done = ask(
            socket,
            lambda client: DisseminationClient(client).attach(stream, path, item, type, shown.show),
            waiting="",
        )
    finally:
        shown.clear()
    print_result(output, done, f"{done.stream}  {done.id}  {printable(path.name)}, {size(path.stat().st_size)}")


class ByteProgress:
    """Shows on a terminal how much of a file has gone, or come."""

    def __init__(self, name: str, terminal: Terminal | None) -> None:
        self._name, self._terminal = name, terminal
        self._begun = self._shown = time.monotonic()

    def show(self, done: int, whole: int) -> None:
        """So many bytes of so many."""
        now = time.monotonic()
        if self._terminal is None or not self._terminal.is_terminal or now - self._shown < SHOW_EVERY_S:
            return
        self._shown = now
        filled = BAR_LENGTH * done // max(1, whole)
        bar = "#" * filled + "-" * (BAR_LENGTH - filled)
        rate = size(round(done / max(0.001, now - self._begun)))
        self._terminal.overwrite(f"{printable(self._name)} [{bar}] {100 * done // max(1, whole)} %, {rate}/s")

    def clear(self) -> None:
        """Take it away."""
        if self._terminal is not None:
            self._terminal.overwrite("")


def _items(
    given: list[str],
    follow: Path | None,
    watch: Path | None,
    everything: bool,
    text: bool,
    type: str,
    labels: dict[int, str],
) -> Items:
    """The source that was asked for. Raises ``typer.BadParameter`` for one that cannot be read.

    ``labels``: what items are called, by their numbers.
    """
    from protocols.dissemination.front import sources

    read = sources.line_reader(text, type)
    if follow is not None:
        _check(follow, follow.is_file(), "--follow", "file")
        return sources.of_growing_file(follow, read, everything, _not_published)
    if watch is not None:
        _check(watch, watch.is_dir(), "--watch", "folder")
        return sources.of_folder(watch, type, everything, _not_published, labels)
    if given in ([], [STDIN]):
        if not given and sys.stdin.isatty():
            raise typer.BadParameter("give files, or one item as NAME=VALUE; '-' takes lines from the terminal")
        return sources.of_stdin(read)
    if STDIN in given:
        raise typer.BadParameter("standard input ('-') does not go together with files")
    paths = [Path(each) for each in given]
    sources.checked_files(paths)
    return sources.of_files(paths, type)


def _not_published(why: str) -> None:
    stderr().overwrite("")
    stderr().print(f"not published: {printable(why)}")


def _check_type(type: str) -> None:
    if len(type) > CONTENT_TYPE_LENGTH_MAX or not (type.isascii() and type.isprintable()):
        raise typer.BadParameter(f"{type!r:.60} is no content type, such as application/xml", param_hint="--type")


def _check(path: Path, is_there: bool, option: str, what: str) -> None:
    if not is_there:
        raise typer.BadParameter(f"{path} is no {what}", param_hint=option)


def _one(socket: str | None, stream: str, item: Any, type: str, output: Output) -> None:
    from protocols.dissemination.front.client import DisseminationClient, is_lines

    if is_lines(type):
        raise typer.BadParameter(f"{type} is a type of many items, each a line, and this is one", param_hint="--type")
    done = ask(socket, lambda client: DisseminationClient(client).publish(stream, item, type))
    print_result(output, done, f"{done.stream}  {done.id}  {size(done.bytes)}")


def _many(
    socket: str | None, stream: str, items: Items, rate: float, labels: dict[int, str], progress: bool, output: Output
) -> None:
    from peerd.cli.sending import paced
    from peerd.client import RequestRefused
    from protocols.dissemination.front.client import DisseminationClient

    told = _Telling(labels, stderr())

    async def run(client: Client) -> IngestAnswer:
        shown = paced(items, rate, "items", stderr() if progress else None)
        return await DisseminationClient(client).publish_many(stream, shown, told.of, on_refused=told.refuse)

    begun = time.monotonic()
    try:
        answer = ask(socket, run, waiting="")
    except BadLine as bad:
        raise typer.BadParameter(f"{bad.message}; published before it: {counted(told.accepted, 'item')}") from bad
    except (KeyboardInterrupt, RequestRefused):
        stderr().overwrite("")
        stderr().print(f"{counted(told.accepted, 'item')} published, {told.refused:,} refused")
        raise
    finally:
        stderr().overwrite("")
    took = seconds(time.monotonic() - begun)
    print_result(output, answer, f"{counted(answer.accepted, 'item')} in {took}, {answer.refused:,} refused")
    if not answer.is_complete:
        stderr().print(printable(answer.detail))
        raise typer.Exit(ExitCode.PARTIAL)
    if answer.refused:
        raise typer.Exit(ExitCode.FAILURE)


class _Telling:
    """Tells each refusal once, as soon as it is known: files by their names, and of lines the first ones."""

    def __init__(self, labels: dict[int, str], terminal: Terminal) -> None:
        self._labels = labels
        self._terminal = terminal
        self._lines_told = 0
        self.accepted = self.refused = 0

    def refuse(self, error: IngestError) -> None:
        """The daemon does not take an item."""
        label = self._labels.get(error.line)
        self._lines_told += label is None
        if label is not None or self._lines_told <= LINES_TOLD_MAX:
            self._terminal.overwrite("")
            self._terminal.print(f"{printable(label or f'item {error.line}')}: {printable(error.detail)}")

    def of(self, total: IngestAnswer) -> None:
        """What became of all items so far."""
        self.accepted, self.refused = total.accepted, total.refused
        while self._labels and (oldest := next(iter(self._labels))) <= self.accepted + self.refused:
            del self._labels[oldest]
