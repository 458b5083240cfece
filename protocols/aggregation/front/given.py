"""``peerd answers``: the answers that this node was given by the nodes that asked."""

from __future__ import annotations

import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerd.cli.events import mark_text
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import RowWriter, printable, stderr, stdout
from peerd.client.streams import End, Item, StreamEntry
from peerd.ids import short_id
from protocols.aggregation.answers import GIVEN, GivenAnswer
from protocols.aggregation.front.commands import print_answer

if TYPE_CHECKING:
    from peerd.client import Client


def answers(
    after: Annotated[
        str, typer.Option(metavar="ID", help="Go on after this id of -o jsonl; 'now': only what comes.")
    ] = "start",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Stay for what comes; else print what is held and end.")
    ] = True,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the answers that this node was given: those of rounds that were asked with --to, anywhere in the ring.

    The daemon holds the newest 64. With -o json and -o jsonl each entry is a line, as the HTTP API has it.

    Examples: peerd answers; peerd answers --after now -o jsonl; peerd answers --no-follow
    """
    writer = RowWriter(output)

    def show(entry: StreamEntry) -> None:
        if output is not Output.TABLE:
            writer.write(_csv_row(entry) if output is Output.CSV else entry)
        elif isinstance(entry, Item):
            show_given(GIVEN.validate_python(entry.data))
        else:
            stderr().print(mark_text(entry, "answer"))

    async def run(client: Client) -> None:
        from protocols.aggregation.front.client import AggregationClient

        stream = AggregationClient(client).answers(after=after, follow=follow)
        async with aclosing(stream) as entries:
            async for entry in entries:
                if not (isinstance(entry, End) and entry.is_final and not follow):
                    show(entry)

    ask(socket, run, waiting="")


def _csv_row(entry: StreamEntry) -> dict[str, Any]:
    """Answers of different queries have different values, so these go into one column, as JSON."""
    row: dict[str, Any] = {"id": entry.id, "type": entry.type, "at": "", "requester": "", "query": "", "value": ""}
    if isinstance(entry, Item):
        given, answer = entry.data, entry.data["answer"]
        row |= {"at": given["at"], "requester": given["requester"]}
        row |= {"query": answer["query"], "value": json.dumps(answer["value"])}
    return row


def show_given(given: GivenAnswer) -> None:
    """Print an answer, and who has asked what."""
    at = datetime.fromtimestamp(given.at, UTC).isoformat(timespec="milliseconds")
    stdout().print(
        f"--- {at} {short_id(given.requester)} ({printable(given.address)}): {printable(given.answer.query)}"
    )
    print_answer(given.answer, stdout())
