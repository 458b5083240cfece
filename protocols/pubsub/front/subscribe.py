"""``peerd subscribe``: the events whose content matches a filter, as they come."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask, duration_s
from peerd.cli.output import RowWriter, printable, stderr
from peerd.words import counted

LOSS_WORDS: Final = {
    "queue_full": "too many waited for this daemon",
    "memory_full": "too many waited at their leaf",
    "silent": "this daemon did not answer",
    "keep_bytes": "more came than is kept for this subscription (--keep-bytes)",
    "keep_time": "this daemon was away for longer than events are kept (--keep)",
    "leaf_full": "their leaf keeps no more for others",
    "no_schema": "this daemon could not look their schema up",
    "damaged": "the disk has lost them",
    "slow_reader": "they were not read in time",
    "slow": "they were not read before newer ones took their room",
}
"""Why events were lost, by the reasons of marks."""

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.client.streams import StreamEntry
    from protocols.pubsub.models import ReceivedEvent, SubscriptionView


def subscribe(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA")],
    filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Text, or one of its JSON forms. Default: every event.")
    ] = "TRUE",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Durable: events are kept under this name while nobody reads.")
    ] = "",
    group: Annotated[
        str, typer.Option(metavar="NAME", help="Share: each event goes to one of the group with the same filter.")
    ] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Also events of the last so long, such as 10m.")] = "0s",
    retained: Annotated[
        bool, typer.Option("--retained", help="Also the last value of each key (published with _retain).")
    ] = False,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Resume a durable one after this id.")] = None,
    policy: Annotated[
        str, typer.Option(metavar="block|drop_oldest|disconnect", help="When reading is slow.")
    ] = "drop_oldest",
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Durable: how long events are kept for it, such as 24h (durable_age).")
    ] = "",
    keep_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Durable: how much is kept for it, such as 64MiB (durable_bytes).")
    ] = "",
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="End after so many events. 0: never.")] = 0,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Receive events that match a filter, from anywhere in the ring, until interrupted.

    A subscription without a name ends with this command.

    Examples: peerd subscribe stocks "price > 20 AND symbol = 'IBM'"; peerd subscribe stocks -o jsonl --name audit
    """
    from protocols.pubsub.models import ReceivedEvent

    if policy not in ("block", "drop_oldest", "disconnect"):
        raise typer.BadParameter(f"{policy!r} is not block, drop_oldest or disconnect", param_hint="--policy")
    if after is not None:
        _check_place(name, after)
    kept = _kept(name, keep, keep_bytes)
    writer, wanted, since_s = RowWriter(output), filter_of(filter), duration_s(since, "--since")

    async def run(client: Client) -> None:
        from protocols.pubsub.front.client import PubSubClient

        options: dict[str, Any] = {
            "name": name,
            "group": group,
            "policy": policy,
            "since_s": since_s,
            "after": after,
            "retained": retained,
            **kept,
            "on_subscribed": _warn,
        }
        seen = 0
        async with aclosing(PubSubClient(client).subscribe(schema, wanted, **options)) as entries:
            async for entry in entries:
                if not isinstance(entry, ReceivedEvent):
                    _tell(entry)
                    continue
                _print(entry, output, writer)
                seen += 1
                if seen == count:
                    return

    ask(socket, run, waiting="")


def filter_of(typed: str) -> Any:
    """Text as it is, or a filter in JSON where it begins like one. Raises ``typer.BadParameter``."""
    if typed.lstrip()[:1] not in ("{", "["):
        return typed
    try:
        return json.loads(typed)
    except ValueError as error:
        raise typer.BadParameter(f"the filter begins like JSON, and is none: {error}") from error


def _kept(name: str, keep: str, keep_bytes: str) -> dict[str, int | None]:
    """What a durable subscription states. Raises ``typer.BadParameter``."""
    if (keep or keep_bytes) and not name:
        raise typer.BadParameter("only a durable subscription is kept: name it with --name", param_hint="--keep")
    keep_s = round(duration_s(keep, "--keep")) if keep else None
    return {"keep_s": keep_s, "keep_bytes": _size(keep_bytes) if keep_bytes else None}


def _size(text: str) -> int:
    """Raises ``typer.BadParameter``, which is a usage error."""
    from peerd.quantities import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--keep-bytes") from error


def _warn(view: SubscriptionView) -> None:
    """Say on standard error what is odd about a subscription."""
    if view.detail:
        stderr().print(f"note: {printable(view.detail)}")


def _check_place(name: str, after: str) -> None:
    """Before anything is subscribed: a durable subscription would stay. Raises ``typer.BadParameter``."""
    from peerd.lib.feed import Position

    if not name:
        raise typer.BadParameter("it resumes a durable subscription: say which with --name", param_hint="--after")
    if after not in ("start", "now"):
        try:
            Position.parse(after)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--after") from error


def _print(event: ReceivedEvent, output: Output, writer: RowWriter) -> None:
    if output is not Output.TABLE:
        writer.write(event)
        return
    at = datetime.fromtimestamp(event.published_at).strftime("%H:%M:%S.%f")[:-3]
    values = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in event.values.items())
    rest = f"  {event.payload}" if event.payload and not event.is_base64 else ""
    sys.stdout.write(f"{at}  {printable(values)}{printable(rest)}\n")
    sys.stdout.flush()


def _tell(entry: StreamEntry) -> None:
    """Say on standard error that events are missing, or that the stream is interrupted."""
    count = getattr(entry, "count", None)
    if getattr(entry, "reason", "") == "past":
        by = printable(getattr(entry, "by", ""))
        stderr().print(f"-- events of the past may be missing: their leaf does not remember so much (says {by})")
    elif entry.type == "end":
        stderr().print(f"-- interrupted: {printable(getattr(entry, 'reason', ''))}")
    elif (why := LOSS_WORDS.get(getattr(entry, "reason", ""))) is not None:
        by = printable(getattr(entry, "by", "")) or "this daemon"
        stderr().print(f"-- {count} events are missing here: {why} (says {by})")
    elif count is None:
        stderr().print("-- the daemon was restarted: events may be missing here")
    else:
        stderr().print(f"-- missing here: {counted(count, 'event')}")
