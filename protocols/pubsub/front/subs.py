"""``peerd subs``: the subscriptions of this daemon's clients."""

from __future__ import annotations

from typing import Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_result, print_table, stdout
from peerd.quantities import format_duration, format_size
from protocols.pubsub.front.subscribe import filter_of
from protocols.pubsub.models import SubscriptionView

app = typer.Typer(help="List, change and end the subscriptions of this daemon.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, or its name.")]


@app.command("list")
def list_subscriptions(
    covered: Annotated[bool, typer.Option("--covered", help="Only those that another one covers.")] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List them. One that is covered by a wider one of this daemon is not installed: it is matched here."""
    from protocols.pubsub.front.client import PubSubClient

    found = ask(socket, lambda client: PubSubClient(client).subscriptions())
    shown = [each for each in found if each.covered_by is not None or not covered]
    if print_data(output, [each.model_dump(mode="json", by_alias=True) for each in shown]):
        return
    rows = [_row(each) for each in shown]
    columns = ("id", "name", "schema", "state", "delivered", "dropped", "missed", "kept", "filter")
    print_table(stdout(), columns, rows, numbers=("delivered", "dropped", "missed"))


def _row(view: SubscriptionView) -> tuple[str, ...]:
    state = f"covered by {view.covered_by}" if view.covered_by else view.state
    told = f"{view.filter} (group {view.group})" if view.group else view.filter
    counts = (f"{count:,}" for count in (view.delivered, view.dropped, view.missed))
    return view.id, view.name or "-", view.schema_name, state, *counts, _kept(view), told


def _kept(view: SubscriptionView) -> str:
    return f"{format_duration(view.keep_s)}, {format_size(view.keep_bytes)}" if view.keep_s else "-"


@app.command()
def show(id: Id, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show one: what is kept for it, and what it has missed, why, and which node says so."""
    from protocols.pubsub.front.client import PubSubClient

    found = ask(socket, lambda client: PubSubClient(client).subscriptions())
    view = next((each for each in found if id in (each.id, each.name)), None)
    if view is None:
        raise typer.BadParameter(f"there is no subscription {id!r:.80} on this daemon", param_hint="ID")
    _print(view, output)
    if output is not Output.TABLE:
        return
    stdout().print(f"delivered {view.delivered:,}, dropped {view.dropped:,}, missed {view.missed:,}")
    for each in view.missed_because:
        stdout().print(f"  missed {each.count:,}: {each.reason}, says {each.by or 'this daemon'}")
    if view.keep_s:
        stdout().print(f"kept for it: {_kept(view)}")


@app.command()
def change(
    id: Id,
    filter: Annotated[str, typer.Argument(metavar="FILTER")],
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give one another filter: what matches both is neither lost nor doubled."""
    from protocols.pubsub.front.client import PubSubClient

    _print(ask(socket, lambda client: PubSubClient(client).change(id, filter_of(filter))), output)


@app.command()
def end(id: Id, socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """End one."""
    from protocols.pubsub.front.client import PubSubClient

    _print(ask(socket, lambda client: PubSubClient(client).end(id)), output)


def _print(view: SubscriptionView, output: Output) -> None:
    print_result(output, view.model_dump(mode="json", by_alias=True), f"{view.id}  {view.state}  {view.filter}")
