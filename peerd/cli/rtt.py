"""``peerd rtt``: round trips, as network coordinates predict them and as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_facts, print_table, seconds, stdout
from peerd.errors import ExitCode

if TYPE_CHECKING:
    from peerd.models.admin import Rtt

UNSETTLED_ERROR: Final = 1.0
_NODE: Final = "Full id, unique first digits of one, or host:port."


def rtt(
    first: Annotated[str | None, typer.Argument(metavar="[A]", help=_NODE)] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help=f"{_NODE} A then pings B.")] = None,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the round trip between nodes A and B; with A alone, from this node to A; with none, to each known node.

    The prediction comes with the relative error that the coordinates state. Exit code 1 when A does not reach B, 3 when
    A did not answer.

    Examples: peerd rtt; peerd rtt 3fa9; peerd rtt 3fa9 10.0.0.7:7420
    """
    if first is None:
        _show_known(ask(socket, lambda client: client.rtt_known()), output)
        return
    source, target = (None, first) if second is None else (first, second)
    found = ask(socket, lambda client: client.rtt(target, source))
    if not print_data(output, found):
        _show(found)
    if found.reason is not None:
        raise typer.Exit(ExitCode.PARTIAL)
    if not found.is_reached:
        raise typer.Exit(ExitCode.FAILURE)


def predicted(value_s: float | None, error: float | None) -> str:
    """ "4.2 ms +- 11 %"; a young node's coordinate says little yet."""
    if value_s is None:
        return "-"
    if error is None:
        return seconds(value_s)
    return f"{seconds(value_s)} +- {100 * error:.0f} %{', not settled' if error >= UNSETTLED_ERROR else ''}"


def _show(found: Rtt) -> None:
    if found.reason is not None:
        measured = f"not measured: {found.source.id[:8]} {found.reason}"
    elif not found.is_reached:
        measured = f"{found.target.id[:8]} did not answer {found.source.id[:8]}; see `peerd doctor reach`"
    elif found.measured_s is None:
        measured = "it answers, but the round trip could not be timed"
    else:
        measured = seconds(found.measured_s)
    print_facts(
        stdout(),
        [
            ("from", f"{found.source.id} at {found.source.address}"),
            ("to", f"{found.target.id} at {found.target.address}"),
            ("predicted", predicted(found.predicted_s, found.prediction_error)),
            ("measured", measured),
        ],
    )


def _show_known(found: list[Rtt], output: Output) -> None:
    timed = sorted(found, key=lambda each: (each.measured_s is None, each.measured_s or 0.0, each.target.id))
    if output is not Output.TABLE:
        told = [
            {
                "id": each.target.id,
                "address": each.target.address,
                "is_reached": each.is_reached,
                "rtt_s": each.measured_s,
                "predicted_rtt_s": each.predicted_s,
                "prediction_error": each.prediction_error,
            }
            for each in timed
        ]
        print_data(output, {"peers": told}, told)
        return
    console = stdout()
    if not timed:
        console.print("no other node is known: this one is alone, or has not joined yet")
        return
    rows = [
        (
            each.target.id,
            each.target.address,
            seconds(each.measured_s) if each.is_reached else "no answer",
            predicted(each.predicted_s, each.prediction_error),
        )
        for each in timed
    ]
    print_table(console, ("node", "address", "measured", "predicted"), rows)
