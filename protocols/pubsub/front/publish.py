"""``peerd publish``: events from arguments, or as JSON lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.lines import BadLine, object_of, objects_of, pair_of, typed_value
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_result, printable, seconds, stderr, stdout
from peerd.errors import ExitCode
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.models.streams import IngestAnswer, IngestError

ERRORS_SHOWN_MAX: Final = 20
"""So many events, or rows of events, are named on a terminal."""
_OUTCOMES: Final = {
    "refused": "",
    "failed": "not published, may be sent again: ",
    "unknown": "outcome unknown, who sends it again may have it come twice: ",
}


def publish(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA")],
    attributes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="One event: values are JSON, or else text. Or the whole event as one JSON object.",
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Many events: JSON lines. '-': standard input.")
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="TEXT", help="What filters do not look at.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=TEXT", help="A text beside the payload. May be given many times."),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.0, metavar="N", help="At most so many a second. 0: no limit.")] = 0.0,
    ack: Annotated[
        str | None, typer.Option(metavar="received|replicated", help="What to wait for. Default: the configuration's.")
    ] = None,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show how far it is.")] = True,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish one event, or many. Exit code 1 when some were refused, 3 when the outcome of some is unknown.

    Examples: peerd publish stocks symbol=IBM price=20.5; peerd publish stocks '{"symbol": "IBM", "price": 20.5}';
    peerd publish stocks -f events.jsonl --rate 100
    """
    if ack not in (None, "received", "replicated"):
        raise typer.BadParameter(f"{ack!r} is not received or replicated", param_hint="--ack")
    if (file is None) == (not attributes):
        raise typer.BadParameter("give one event as NAME=VALUE or as a JSON object, or many with --file")
    if file is not None:
        if payload is not None or header:
            raise typer.BadParameter("--payload and --header are for one event; in a file, use _payload and _headers")
        _many(socket, schema, file, rate, ack, progress, output)
        return
    event = event_of(attributes or [])
    if payload is not None:
        event["_payload"] = payload
    if header:
        event["_headers"] = [pair_of(each, "not NAME=TEXT", "--header") for each in header]
    _one(socket, schema, event, ack, output)


def event_of(given: list[str]) -> dict[str, Any]:
    """One event, of its attributes or of one JSON object. Raises ``typer.BadParameter``."""
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        return object_of(given[0], "the event")
    pairs = (pair_of(each, "neither NAME=VALUE nor, alone, a JSON object") for each in given)
    return {name: typed_value(value) for name, value in pairs}


def _one(socket: str | None, schema: str, event: dict[str, Any], ack: Any, output: Output) -> None:
    from protocols.pubsub.front.client import PubSubClient

    done = ask(socket, lambda client: PubSubClient(client).publish(schema, event, ack=ack))
    found = f"matched {done.matched} at {counted(done.leaves, 'leaf', 'leaves')}, {seconds(done.duration_s)}"
    print_result(output, done, f"{done.event}  {done.outcome}  {found}{done.detail and '; '}{done.detail}")
    if done.outcome == "unknown":
        raise typer.Exit(ExitCode.PARTIAL)


def _many(socket: str | None, schema: str, file: str, rate: float, ack: Any, progress: bool, output: Output) -> None:
    from protocols.pubsub.front.client import PubSubClient

    terminal, events = stderr(), objects_of(file)

    async def run(client: Client) -> IngestAnswer:
        from peerd.cli.sending import paced
        from peerd.client import IngestRefused
        from peerd.client.streams import one_by_one

        shown = paced(one_by_one(events), rate, "events", terminal if progress else None)
        try:
            return await PubSubClient(client).publish_many(schema, shown, ack=ack)
        except IngestRefused as refused:
            return refused.answer

    begun = time.monotonic()
    try:
        answer = ask(socket, run, waiting="")
    except BadLine as bad:
        raise typer.BadParameter(f"{bad.message}; the events before it may have been published") from bad
    finally:
        terminal.overwrite("")
    if not print_data(output, answer):
        told = f"{counted(answer.accepted, 'event')} in {seconds(time.monotonic() - begun)}, {answer.refused:,} refused"
        stdout().print(f"{told}, {answer.failed:,} without a certain outcome" if answer.failed else told)
        for error in answer.errors[:ERRORS_SHOWN_MAX]:
            terminal.print(f"{_which(error)}: {_OUTCOMES[error.outcome]}{printable(error.detail)}")
        if (more := len(answer.errors) - ERRORS_SHOWN_MAX) > 0:
            terminal.print(f"and {more:,} more, which -o json names")
    if answer.detail:
        terminal.print(printable(answer.detail))
    if answer.refused:
        raise typer.Exit(ExitCode.FAILURE)
    if answer.failed or not answer.is_complete:
        raise typer.Exit(ExitCode.PARTIAL)


def _which(error: IngestError) -> str:
    if error.is_rest:
        return f"event {error.line} and all after it"
    return f"event {error.line}" if error.last is None else f"events {error.line} to {error.last}"
