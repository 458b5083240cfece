"""``peerd stream subscribe``: the items of a stream that meet an interest, as they come."""

from __future__ import annotations

import base64
import mimetypes
import os
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import RowWriter, printable, stderr
from peerd.errors import ExitCode, PeerdError
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.client.streams import StreamEntry
    from protocols.dissemination.front.client import DisseminationClient
    from protocols.dissemination.models import ReceivedItem, StreamSubscriptionView

ENDS: Final = {
    "application/xml": ".xml",
    "text/xml": ".xml",
    "application/json": ".json",
    "text/plain": ".txt",
    "application/octet-stream": ".bin",
}


def subscribe(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Its name.")],
    interest: Annotated[
        str,
        typer.Argument(
            metavar="[INTEREST]",
            help="Which items, in the language of the stream's kind: a filter, an XPath, ... Default: all.",
        ),
    ] = "",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Durable: items are kept under this name while nobody reads.")
    ] = "",
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Resume after this item; 'start': all that is remembered. Default: from now."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write each item, and its document if it has one, into files in this folder."),
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="End after so many items. 0: never.")] = 0,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Receive the items that meet an interest, from wherever they are published, until interrupted.

    Items are printed as they are, a line break after each; with -o as rows that also have their ids. What is lost is
    told on standard error, and the exit code is then 3. A subscription without a name ends with this command.

    Examples: peerd stream subscribe ticks "price > 20"; peerd stream subscribe news '//item[topic]' --into news
    """
    from protocols.dissemination.models import ReceivedItem

    if after is not None and after != "start":
        _check_id(after)
    reader = _Reader(_into(into) if into is not None else _Printer(output))

    async def run(client: Client) -> None:
        from protocols.dissemination.front.client import DisseminationClient

        entries = DisseminationClient(client).subscribe(
            stream, interest, name=name, after=after, on_subscribed=reader.begin
        )
        async with aclosing(entries):
            async for entry in entries:
                if isinstance(entry, ReceivedItem):
                    if into is not None and entry.document is not None:
                        await _save(DisseminationClient(client), entry, into)
                    reader.take(entry)
                else:
                    reader.tell(entry)
                if count and reader.items == count:
                    return

    ask(socket, run, waiting="")
    if reader.lost:
        raise typer.Exit(ExitCode.PARTIAL)


async def _save(streams: DisseminationClient, item: ReceivedItem, folder: Path) -> None:
    """Write the document of an item beside the item, when all of it has come."""
    from protocols.dissemination.front.document_files import safe_name
    from protocols.dissemination.front.publish import ByteProgress

    document = item.document
    assert document is not None
    shown = ByteProgress(document.name, stderr())
    path = folder / f"{item.stream}-{item.id}-{safe_name(document.name)}"
    try:
        await streams.save_document(item.stream, document, path, shown.show)
    finally:
        shown.clear()


def _check_id(after: str) -> None:
    """Before anything is subscribed. Raises ``typer.BadParameter``."""
    from protocols.dissemination.models import item_order

    try:
        item_order(after)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from error


class _Reader:
    """Counts items, hands them to what writes them, and tells on standard error what is missing."""

    def __init__(self, writer: _Printer | _Files) -> None:
        self._writer = writer
        self.items = self.lost = 0

    def begin(self, view: StreamSubscriptionView) -> None:
        """The subscription has been made."""
        if view.note:
            stderr().print(f"-- {printable(view.note)}")

    def take(self, item: ReceivedItem) -> None:
        """An item, or a mark of the stream."""
        self._writer.write(item)
        if item.type == "item":
            self.items += 1
        elif item.type == "lost":
            self._gap(f"after {item.since or 'the beginning'} up to {item.id}: {item.reason or 'lost'}")
        elif item.type == "stale":
            stderr().print(f"STALE since {item.since or item.id}: {printable(item.reason or 'no news of its source')}")
        elif item.type == "fresh":
            stderr().print(f"FRESH from {item.id} on: {printable(item.reason or 'its source is heard again')}")
        else:
            why = "" if item.reason in ("", "ended") else f": {printable(item.reason)}"
            stderr().print(f"-- the stream has ended{why}")

    def tell(self, entry: StreamEntry) -> None:
        """A mark of the daemon's feed."""
        if entry.type == "end":
            if not getattr(entry, "is_final", False):
                stderr().print(f"-- interrupted: {printable(getattr(entry, 'reason', ''))}")
            return
        missing = getattr(entry, "count", None)
        self._gap("the daemon was restarted" if missing is None else f"{counted(missing, 'item')} not read in time")

    def _gap(self, why: str) -> None:
        self.lost += 1
        stderr().print(f"GAP {printable(why)}")


class _Printer:
    """Items on standard output: as they are, or as rows for programs, with the marks among them."""

    def __init__(self, output: Output) -> None:
        self._rows = None if output is Output.TABLE else RowWriter(output, _columns())

    def write(self, item: ReceivedItem) -> None:
        """One of either kind."""
        if self._rows is not None:
            self._rows.write(item)
        elif item.type == "item":
            _print(payload_of(item))


def _columns() -> list[str]:
    """Of CSV, fixed beforehand: the first item may have no document, and the next one has."""
    from protocols.dissemination.models import AttachedDocument, ReceivedItem

    columns = [name for name in ReceivedItem.model_fields if name != "document"]
    return [*columns, *(f"document.{name}" for name in AttachedDocument.model_fields)]


def _print(payload: bytes) -> None:
    """The payload and a line break; on a terminal without control characters, since it comes from elsewhere."""
    if sys.stdout.isatty():
        text = "\n".join(printable(line) for line in payload.decode(errors="replace").removesuffix("\n").split("\n"))
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(payload if payload.endswith(b"\n") else payload + b"\n")
    sys.stdout.buffer.flush()


def payload_of(item: ReceivedItem) -> bytes:
    """An item's bytes."""
    if item.payload_base64 is not None:
        return base64.b64decode(item.payload_base64)
    return (item.payload or "").encode()


def _into(folder: Path) -> _Files:
    """Raises ``typer.BadParameter`` for a folder that cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"cannot make {folder}: {error.strerror}", param_hint="--into") from error
    return _Files(folder)


class _Files:
    """Each item in a file of its own, which appears under its name when it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, item: ReceivedItem) -> None:
        """Marks make no file."""
        if item.type != "item":
            return
        path = self._folder / f"{item.stream}-{item.id}{_ending(item)}"
        unfinished = path.with_name(f".{path.name}.part")
        try:
            unfinished.write_bytes(payload_of(item))
            os.replace(unfinished, path)
        except OSError as error:  # the disk is full, say: what was written before stays, and the rest is not hidden
            unfinished.unlink(missing_ok=True)
            raise PeerdError(f"cannot write {path}: {error.strerror}; nothing from {item.id} on is there") from error


def _ending(item: ReceivedItem) -> str:
    kind = item.content_type.partition(";")[0].strip().lower()
    known = ENDS.get(kind) or (mimetypes.guess_extension(kind) if kind else None)
    return known or (".bin" if item.payload is None else ".txt")
