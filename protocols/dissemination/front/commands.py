"""``peerd stream``: create streams, list, show and end them, and what their policies do."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerd.cli.lines import once, pair_of, typed_value
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import (
    number,
    print_data,
    print_facts,
    print_json,
    print_result,
    print_table,
    printable,
    size,
    stdout,
)
from peerd.errors import ExitCode
from protocols.dissemination.front.publish import publish
from protocols.dissemination.front.subscribe import subscribe
from protocols.dissemination.models import DocumentView, PastMove, PlannedMove, StreamSubscriptionView, StreamView

if TYPE_CHECKING:
    from peerd.client import Client

app = typer.Typer(
    help="A stream has one producer and any number of subscribers, each of which gets the items that it wants.",
    no_args_is_help=True,
)
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Its name.")]
PRODUCER_GONE = ("wait", "end", "hand-over")
NODE_DIGITS = 8
"""So much of a node's id is shown, as elsewhere."""


class StreamDrawing(StrEnum):
    """How the tree is shown."""

    TEXT = "text"
    DOT = "dot"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


app.command()(publish)
app.command()(subscribe)


@app.command()
def create(
    stream: StreamArgument,
    kind: Annotated[
        str,
        typer.Option(metavar="KIND", help="The language of interests: attributes (filters on JSON), xpath (XML), ..."),
    ] = "attributes",
    policy: Annotated[
        str, typer.Option(metavar="POLICY", help="What shapes the tree: overlap, cost, first_fit, ...")
    ] = "overlap",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the policy. Repeatable. Values are JSON."),
    ] = None,
    producer_gone: Annotated[
        str,
        typer.Option(
            metavar="wait|end|hand-over", help="When the producer is gone: wait for it, end, or let a standby go on."
        ),
    ] = "wait",
    successor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE",
            help="Who goes on, with hand-over: an address, or the beginning of an id. Repeatable, in order. Without it "
            "the producer chooses two of its children.",
        ),
    ] = None,
    durable: Annotated[
        bool,
        typer.Option("--durable", help="Items go out once they are on disk, and survive a restart of this daemon."),
    ] = False,
    unsigned: Annotated[
        bool,
        typer.Option("--unsigned", help="Do not sign items: daemons on the way to a subscriber could alter them."),
    ] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a stream, which this daemon publishes from then on. The same stream once more changes nothing.

    Examples: peerd stream create news --kind xpath; peerd stream create ticks --policy cost --set round=30s
    """
    if producer_gone not in PRODUCER_GONE:
        raise typer.BadParameter(f"{producer_gone!r} is not wait, end or hand-over", param_hint="--producer-gone")
    if successor and producer_gone != "hand-over":
        raise typer.BadParameter("it needs --producer-gone hand-over", param_hint="--successor")
    settings = once(map(_setting, setting or ()), "--set")

    def call(client: Client) -> Any:
        return _of(client).create(
            stream,
            kind,
            policy,
            settings,
            producer_gone=producer_gone,
            durable=durable,
            successors=successor or (),
            unsigned=unsigned,
        )

    view = ask(socket, call, "putting the stream's record on the ring")
    print_result(output, view, f"{view.name}  {view.kind}  shaped by {view.policy}; this daemon publishes it")


def _setting(text: str) -> tuple[str, Any]:
    name, value = pair_of(text, "not NAME=VALUE", "--set")
    return name, typed_value(value)


@app.command()
def remove(stream: StreamArgument, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """End a stream that this daemon publishes. Its subscribers are told that it is over."""
    view = ask(socket, lambda client: _of(client).remove(stream))
    print_result(output, view, f"{view.name}  ended")


@app.command()
def hand_over(
    stream: StreamArgument,
    to: Annotated[
        str,
        typer.Option(metavar="NODE", help="A node of the stream's tree: its address, or the beginning of its id."),
    ],
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make another node the producer of a stream that this daemon publishes. Subscribers lose nothing.

    Example: peerd stream hand-over news --to 192.0.2.7:7420
    """
    view = ask(socket, lambda client: _of(client).hand_over(stream, to), "bringing the stream to its next producer")
    print_result(output, view, f"{view.name}  is published by {view.producer} from now on")


@app.command("list")
def list_streams(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the streams that this daemon publishes, receives or passes on."""
    views = ask(socket, lambda client: _of(client).streams())
    if print_data(output, views, row_type=StreamView):
        return
    columns = (
        "stream",
        "kind",
        "policy",
        "role",
        "position",
        "parent",
        "depth",
        "children",
        "subscriptions",
        "standbys",
    )
    print_table(stdout(), columns, [_row(view) for view in views], numbers=("depth", "children", "subscriptions"))


def _row(view: StreamView) -> tuple[str, ...]:
    counts = (_count(view.depth), str(view.children), str(view.subscriptions))
    standbys = ", ".join(id[:NODE_DIGITS] for id in view.standbys) or "-"
    return view.name, view.kind, view.policy, view.role, view.position or "-", view.parent or "-", *counts, standbys


def _when_gone(view: StreamView) -> str:
    if view.producer_gone != "hand-over":
        return {"end": "the stream ends"}.get(view.producer_gone, "members wait for the producer")
    return f"goes on at {', '.join(view.standbys)}" if view.standbys else "nobody stands by yet"


def _durable(view: StreamView) -> str:
    if not view.durable:
        return "no: a restart of the producer loses what it remembers"
    return "yes, but the disk refuses: see the log" if view.is_kept is False else "yes"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


@app.command()
def show(stream: StreamArgument, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a stream, wherever it is published, and the subscriptions to it that this daemon's clients have."""

    async def call(client: Client) -> tuple[StreamView, list[StreamSubscriptionView]]:
        streams = _of(client)
        return await streams.stream(stream), await streams.subscriptions(stream)

    view, held = ask(socket, call, "looking the stream up on the ring")
    if print_data(output, {**view.model_dump(), "own_subscriptions": held}):
        return
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in view.settings.items())
    facts = {
        "stream": view.name,
        "kind": view.kind,
        "policy": f"{view.policy} ({settings or 'as it is by default'})",
        "producer": view.producer + (f" (term {view.term})" if view.term else ""),
        "this daemon": view.role,
        "position": view.position or "-",
        "parent": view.parent or "-",
        "depth": _count(view.depth),
        "children": str(view.children),
        "durable": _durable(view),
        "signed": "no: nodes on the way could alter items" if view.unsigned else "yes, by the producer",
        **({"lied to by": "; ".join(f"{node:.8} ({why})" for node, why in view.liars.items())} if view.liars else {}),
        "producer gone": _when_gone(view),
    }
    print_facts(stdout(), list(facts.items()))
    if held:
        rows = [
            (
                each.id,
                each.name or "-",
                each.state,
                *(f"{count:,}" for count in (each.received, each.missed_gaps, each.dropped)),
                each.interest or "*",
            )
            for each in held
        ]
        stdout().print()
        counts = ("received", "gaps", "dropped")
        print_table(stdout(), ("id", "name", "state", *counts, "interest"), rows, numbers=counts)


@app.command()
def unsubscribe(
    stream: StreamArgument,
    id: Annotated[str, typer.Argument(metavar="ID", help="The subscription's id, or its name.")],
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a subscription that has a name, and so does not end with its reader."""
    view = ask(socket, lambda client: _of(client).unsubscribe(stream, id))
    print_result(output, view, f"{view.id}  {view.state}  {view.interest or '*'}")


@app.command()
def documents(stream: StreamArgument, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the documents of a stream that this daemon has, wholly or in part."""
    views = ask(socket, lambda client: _of(client).documents(stream))
    if print_data(output, views, row_type=DocumentView):
        return
    rows = [
        (
            view.id,
            view.item,
            printable(view.name),
            size(view.size),
            view.state,
            f"{100 * view.here_bytes // view.size} %",
        )
        for view in views
    ]
    print_table(stdout(), ("id", "item", "name", "size", "state", "here"), rows, numbers=("size", "here"))


@app.command()
def tree(
    stream: StreamArgument,
    output: Annotated[
        StreamDrawing, typer.Option("-o", "--output", help="Text; a graph for dot or mermaid; a picture; JSON.")
    ] = StreamDrawing.TEXT,
    wide: Annotated[bool, typer.Option("--wide", help="All of each node's interests and figures.")] = False,
    socket: SocketOption = None,
) -> None:
    """Draw the tree of a stream: who gets it from whom, how much passes, and the spurious share of each node.

    Spurious is what a node receives only to pass it on. Exit code 3 when some nodes did not answer.

    Examples: peerd stream tree news; peerd stream tree news -o svg > t.svg; peerd stream tree news -o dot | dot -Tpng
    """
    from protocols.dissemination.front.tree_drawing import as_dot, as_mermaid, as_svg, as_text

    view = ask(socket, lambda client: _of(client).tree(stream), "asking the nodes of the tree")
    match output:
        case StreamDrawing.JSON:
            print_json(view)
        case StreamDrawing.TEXT:
            stdout().print(as_text(view, is_wide=wide))
        case StreamDrawing.DOT:
            stdout().print(as_dot(view))
        case StreamDrawing.MERMAID:
            stdout().print(as_mermaid(view))
        case StreamDrawing.SVG:
            stdout().print(as_svg(view))
    if view.missing:
        raise typer.Exit(ExitCode.PARTIAL)


@app.command()
def plan(stream: StreamArgument, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show what the stream's policy would change next in its tree, and what it expects to gain."""
    view = ask(socket, lambda client: _of(client).plan(stream), "asking the producer")
    if print_data(output, view, view.moves, PlannedMove):
        return
    if not view.moves:
        stdout().print(f"{view.policy} would change nothing now")
        return
    rows = [(each.what, *_places(each), f"{number(round(each.gain, 4))} {each.unit}") for each in view.moves]
    print_table(stdout(), ("change", "node", "from", "to", "expected gain"), rows)


@app.command()
def history(stream: StreamArgument, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show what the stream's policy has changed in its tree: the gain that it expected beside what came of it."""
    view = ask(socket, lambda client: _of(client).history(stream), "asking the producer")
    if print_data(output, view, view.moves, PastMove):
        return
    if not view.moves:
        stdout().print(f"{view.policy} has changed nothing lately")
        return
    rows = [
        (
            datetime.fromtimestamp(each.at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S"),
            each.what,
            *_places(each),
            number(round(each.predicted, 4)),
            "-" if each.measured is None else number(round(each.measured, 4)),
            each.unit,
        )
        for each in view.moves
    ]
    columns = ("at", "change", "node", "from", "to", "predicted", "measured", "unit")
    print_table(stdout(), columns, rows, numbers=("predicted", "measured"))


def _places(move: PlannedMove | PastMove) -> tuple[str, str, str]:
    return move.node, move.from_parent or "-", move.to_parent or "-"


def _of(client: Client) -> Any:
    from protocols.dissemination.front.client import DisseminationClient

    return DisseminationClient(client)
