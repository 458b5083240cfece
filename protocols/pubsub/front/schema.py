"""``peerd schema``: what published events look like."""

from __future__ import annotations

import json
import sys
import tomllib
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from peerd.cli.files import read_text
from peerd.cli.lines import objects_of
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_result, print_table, stderr, stdout

SAMPLE_EVENTS_MAX: Final = 100_000
"""So many sample events are read; more change little."""

app = typer.Typer(
    help="A schema names the attributes of events, with their types and domains. Subscriptions and events use it.",
    no_args_is_help=True,
)


@app.command()
def declare(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON or TOML; '-' reads JSON from standard input.")],
    if_version: Annotated[
        int | None, typer.Option(metavar="N", help="Only over this version; 0: only if there is none.")
    ] = None,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a schema on the ring, or a version that adds attributes to it. Subscriptions and events go on meanwhile.

    Example: peerd schema declare stocks.toml
    """
    from peerd.client import RequestRefused
    from protocols.pubsub.front.client import PubSubClient

    document = _document(file)
    try:
        made = ask(socket, lambda client: PubSubClient(client).declare(document, if_version))
    except RequestRefused as refused:
        if refused.problem.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        told = refused.problem.model_copy(update={"detail": f"{file}: {refused}"})
        raise RequestRefused(told) from refused
    was_there = "" if made.is_new else " (it was there already)"
    print_result(output, made, f"{made.name} version {made.version}{was_there}")


@app.command("list")
def list_schemas(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the schemas that this daemon knows: those declared, published to or subscribed to here."""
    from protocols.pubsub.front.client import PubSubClient

    found = ask(socket, lambda client: PubSubClient(client).schemas())
    if print_data(output, found):
        return
    if not found:
        stderr().print("this daemon knows none yet; `peerd schema show NAME` looks one up that was declared elsewhere")
        return
    rows = [(each.name, str(each.version), str(each.attributes), each.absent) for each in found]
    print_table(stdout(), ("schema", "version", "attributes", "absent"), rows, numbers=("version", "attributes"))


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="SCHEMA")],
    socket: SocketOption = None,
    output: OutputOption = Output.JSON,
) -> None:
    """Print a schema as it was declared; it is looked up on the ring."""
    from protocols.pubsub.front.client import PubSubClient

    print_data(output, ask(socket, lambda client: PubSubClient(client).schema(name)))


@app.command("delete")
def delete_schema(
    name: Annotated[str, typer.Argument(metavar="SCHEMA")],
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a schema that this node has made: nobody can publish or subscribe with it any more.

    Another node's is ended there. If its machine is gone, or has taken a name that it should not have, deny it (peerd
    deny): what it has made does not count then, and you can declare a schema of that name.
    """
    from protocols.pubsub.front.client import PubSubClient

    ended = ask(socket, lambda client: PubSubClient(client).end_schema(name))
    print_result(output, ended, f"{ended.name} has ended with version {ended.version}")


@app.command()
def infer(
    name: Annotated[str, typer.Option(metavar="SCHEMA", help="The name that it will have.")] = "events",
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON lines; '-': standard input.")] = "-",
) -> None:
    """Propose a schema from sample events, one JSON object a line. Needs no daemon; read it before you declare it.

    Example: peerd schema infer --name stocks < events.jsonl > stocks.json
    """
    from protocols.pubsub.schema.infer import propose

    events = list(islice(objects_of(file), SAMPLE_EVENTS_MAX))
    try:
        proposal = propose(name, events)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for note in proposal.notes:
        stderr().print(f"note: {note}")
    sys.stdout.write(json.dumps(proposal.document.model_dump(mode="json", exclude_defaults=True), indent=2) + "\n")


def _document(file: str) -> dict[str, Any]:
    text = sys.stdin.read() if file == "-" else read_text(Path(file))
    try:
        document = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}") from error
    if not isinstance(document, dict):
        raise typer.BadParameter(f"{file}: a schema is an object")
    return document
