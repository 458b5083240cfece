"""``peerd events``: what happens in a daemon, while it happens."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import RowWriter, printable
from peerd.client.streams import Dropped, End, Gap, Item, StreamEntry
from peerd.telemetry.schema import COMMON_FIELDS
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.client import Client

KIND_WIDTH: Final = 24


def events(
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only these, such as 'overlay.*'. Repeatable.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Go on after this id of -o jsonl; 'start': all that the daemon holds. Default: now."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option(help="Stay for what comes; else print what is held and end.")] = True,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow the events of this daemon: joins, repairs, restarts, rounds, everything in docs/telemetry.md.

    It needs no event log. A daemon that is restarted is waited for; events that were missed are counted in the output.
    With -o json and -o jsonl each entry is a line, as the HTTP API has it.

    Examples: peerd events; peerd events --kind 'overlay.*' -o jsonl; peerd events --after start --no-follow
    """
    place = after if follow else (after or "start")
    writer = RowWriter(output)

    async def run(client: Client) -> None:
        async with aclosing(client.events(kind or (), after=place, follow=follow)) as entries:
            async for entry in entries:
                if not (isinstance(entry, End) and entry.is_final and not follow):
                    _print(entry, output, writer)

    ask(socket, run, waiting="")


def _print(entry: StreamEntry, output: Output, writer: RowWriter) -> None:
    if output is Output.TABLE:
        sys.stdout.write(f"{_text(entry)}\n")
        sys.stdout.flush()
    else:
        writer.write(_csv_row(entry) if output is Output.CSV else entry)


def _csv_row(entry: StreamEntry) -> dict[str, Any]:
    """Each kind of event has fields of its own, so they go into one column, as JSON."""
    row: dict[str, Any] = {"id": entry.id, "type": entry.type, "at": "", "event": "", "fields": ""}
    if isinstance(entry, Item) and isinstance(entry.data, dict):
        fields = {name: value for name, value in entry.data.items() if name not in COMMON_FIELDS}
        row |= {"at": entry.data["ts"], "event": entry.data["event"], "fields": json.dumps(fields)}
    elif isinstance(entry, Gap | Dropped):
        row["fields"] = json.dumps({"count": entry.count})
    return row


def _text(entry: StreamEntry) -> str:
    if isinstance(entry, Item):
        return _event(entry.data) if isinstance(entry.data, dict) else str(printable(entry.data))
    return mark_text(entry, "event")


def mark_text(mark: Gap | Dropped | End, what: str) -> str:
    """What people are told in the place of items that are missing; ``what`` is one of them."""
    match mark:
        case Gap(count=count):
            if count is None:
                return f"-- the daemon or its stream began anew; some {what}s may be missing here"
            return f"-- missing here: {counted(count, what)}, no longer held"
        case Dropped(count=count):
            return f"-- missing here: {counted(count, what)}, which came faster than was read"
        case End(reason=reason):
            return f"-- the stream ended: {printable(reason)}; waiting for the daemon"


def _event(record: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(float(record["ts"])).strftime("%H:%M:%S.%f")[:-3]
    fields = " ".join(f"{name}={value}" for name, value in record.items() if name not in COMMON_FIELDS)
    return f"{at}  {printable(record['event'])!s:<{KIND_WIDTH}} {printable(fields)}".rstrip()
