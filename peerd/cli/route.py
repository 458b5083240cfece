"""``peerd route``: who is the root of a key, and the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_facts, print_table, seconds, stdout
from peerd.cli.rtt import predicted
from peerd.errors import ExitCode, PeerdError

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.models.admin import RouteView, Rtt


def route(
    key: Annotated[str, typer.Argument(metavar="KEY", help="32 hexadecimal digits, or any text, which is hashed.")],
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look up the node that is responsible for KEY, and compare the way there with the direct round trip.

    Exit code 1 when nobody answered in time. Example: peerd route 'orders/2024'
    """
    found, direct = ask(socket, lambda client: _ask(client, key))
    total_s = way_s(found)
    if not print_data(output, {**found.model_dump(), "total_rtt_s": total_s, "direct": direct}, found.hops):
        _show(key, found, direct, total_s)
    if found.root is None:
        raise typer.Exit(ExitCode.FAILURE)


async def _ask(client: Client, key: str) -> tuple[RouteView, Rtt | None]:
    found = await client.route(key)
    if found.root is None or not found.hops:
        return found, None
    try:
        return found, await client.rtt(found.root.id)
    except PeerdError:  # it serves only to compare
        return found, None


def way_s(found: RouteView) -> float | None:
    """The sum of the hops' round trips; ``None`` when one was never measured."""
    times = [hop.rtt_s for hop in found.hops]
    return None if any(rtt_s is None for rtt_s in times) else sum(rtt_s for rtt_s in times if rtt_s is not None)


def _show(key: str, found: RouteView, direct: Rtt | None, total_s: float | None) -> None:
    console = stdout()
    root = "nobody answered in time" if found.root is None else f"{found.root.id} at {found.root.address}"
    if found.root is not None and not found.hops:
        root += " (this node)"
    hashed = f" (hash of {key!r})" if found.is_hashed else ""
    facts = [("key", found.key + hashed), ("root", root), ("took", seconds(found.duration_s))]
    if found.hops:
        count = f"{len(found.hops)} hop{'s' if len(found.hops) > 1 else ''}"
        facts.append(("way", f"{count}, {'not measured on every hop' if total_s is None else seconds(total_s)}"))
    if direct is not None:
        expected = predicted(direct.predicted_s, direct.prediction_error)
        stretch = (
            f"; the way is {total_s / direct.measured_s:.1f} times as long" if total_s and direct.measured_s else ""
        )
        facts.append(("direct", f"{seconds(direct.measured_s)} measured, {expected} predicted{stretch}"))
    print_facts(console, facts)
    rows, so_far = [], 0.0
    is_known = True
    for number, hop in enumerate(found.hops, start=1):
        is_known = is_known and hop.rtt_s is not None
        so_far += hop.rtt_s or 0.0
        rows.append((number, hop.id, hop.address, seconds(hop.rtt_s), seconds(so_far) if is_known else "-"))
    if rows:
        print_table(console, ("hop", "node", "address", "rtt", "so far"), rows)
