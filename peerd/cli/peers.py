"""``peerd peers``: which nodes the daemon knows, and what it concluded about each of them and when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, WideOption, ask
from peerd.cli.output import print_data, print_facts, print_table, seconds, stdout
from peerd.cli.rtt import predicted
from peerd.errors import PeerdError
from peerd.words import ago

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.models.admin import DepartedPeer, HistoryView, MissingPeer, Peer, Peers, VerdictView

LAG_NOTABLE_S: Final = 1.0
"""A node whose timers were this late may itself have been the cause of what it reported of others."""
HEADINGS: Final = ("node", "address", "place", "link", "rtt", "predicted", "state", "score")
OPTIONAL: Final = ("predicted", "score", "link", "rtt", "place")
"""The columns that a narrow terminal leaves out, the least important first."""


class NotListed(PeerdError):
    """The text that a user gave names no node that the daemon knows."""


def peers(
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="This one only: its id, first digits of it, or host:port.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Who suspected the node, or any node, when, and on what evidence.")
    ] = False,
    around: Annotated[
        bool, typer.Option("--around", help="With --history NODE: ask that node's neighbours on the ring, too.")
    ] = False,
    wide: WideOption = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the nodes that the daemon knows (leaf set, routing table), those that are missing, and those it removed.

    The score counts misbehaviour; it decays, and at 100 the peer is banned for a while.

    Examples: peerd peers; peerd peers --history; peerd peers --history 3fa9 --around
    """
    if around and not (history and node is not None):
        raise typer.BadParameter("it goes with --history NODE", param_hint="--around")
    if history and node is None:
        _show_histories(ask(socket, _histories), output, wide)
        return
    if history and node is not None:
        verdicts = ask(socket, lambda client: client.history(node, around=around))
        if not _print_verdicts(output, verdicts, verdicts.verdicts):
            _show_history(verdicts, wide)
        return
    found = ask(socket, lambda client: client.known())
    if node is not None:
        found = _only(found, node)
    missing = {peer.id for peer in found.missing}
    departed = [peer for peer in found.departed if peer.id not in missing]
    from peerd.models.admin import Peer

    if print_data(output, found, _records(found, departed), Peer):
        return
    rows = [*map(_row, found.peers), *map(_missing_row, found.missing), *map(_departed_row, departed)]
    console = stdout()
    if rows:
        print_table(console, HEADINGS, rows, optional=OPTIONAL, is_wide=wide)
    else:
        console.print("no other node is known: this one is alone, or has not joined yet")


def _only(found: Peers, node: str) -> Peers:
    """The nodes that are meant. Raises `NotListed` when there are none."""

    def meant(peer: Peer | MissingPeer | DepartedPeer) -> bool:
        return peer.id.startswith(node.strip().lower()) or peer.address == node

    chosen = found.model_copy(
        update={
            "peers": [peer for peer in found.peers if meant(peer)],
            "missing": [peer for peer in found.missing if meant(peer)],
            "departed": [peer for peer in found.departed if meant(peer)],
        }
    )
    if not (chosen.peers or chosen.missing or chosen.departed):
        raise NotListed(f"no node {node!r} is known here: `peerd peers` lists those that are")
    return chosen


async def _histories(client: Client) -> list[HistoryView]:
    """Return the history of every node that the daemon knows or has known."""
    from peerd.client import RequestRefused

    known = await client.known()
    everybody: tuple[Peer | MissingPeer | DepartedPeer, ...] = (*known.peers, *known.missing, *known.departed)
    ids = dict.fromkeys(peer.id for peer in everybody)
    found = []
    for node_id in ids:
        try:
            found.append(await client.history(node_id))
        except RequestRefused:  # the daemon has forgotten this node since it listed it
            continue
    return found


def _show_histories(found: list[HistoryView], output: Output, is_wide: bool) -> None:
    noted = [(history.id, verdict) for history in found for verdict in history.verdicts]
    noted.sort(key=lambda each: each[1].at)
    rows = [{"id": node_id, **verdict.model_dump()} for node_id, verdict in noted]
    if _print_verdicts(output, {"histories": found}, rows, before=("id",)):
        return
    console = stdout()
    if not noted:
        console.print("nothing was noted: no node that is known here has been suspected")
        return
    print_table(
        console,
        ("time", "node", "verdict", "evidence", "silence", "told by"),
        [
            (
                _time(verdict.at),
                node_id,
                verdict.verdict,
                verdict.evidence,
                seconds(verdict.silence_s),
                _teller(verdict),
            )
            for node_id, verdict in noted
        ],
        optional=("silence", "told by"),
        is_wide=is_wide,
    )


def _print_verdicts(output: Output, document: Any, rows: Sequence[Any], before: Sequence[str] = ()) -> bool:
    from peerd.models.admin import VerdictView

    return print_data(output, document, rows, VerdictView, before)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _teller(verdict: VerdictView) -> str:
    return "-" if verdict.accuser is None else verdict.accuser[:8]


def _records(found: Peers, departed: Sequence[DepartedPeer]) -> list[dict[str, Any]]:
    """Return the peers, missing and departed nodes as one list, for JSONL and CSV."""
    rows = [peer.model_dump() for peer in found.peers]
    rows += [{**peer.model_dump(), "place": "missing"} for peer in found.missing]
    return rows + [{**peer.model_dump(), "place": "departed"} for peer in departed]


def _row(peer: Peer) -> tuple[object, ...]:
    return (
        peer.id,
        peer.address,
        _PLACES[peer.place],
        "up" if peer.is_linked else "-",
        seconds(peer.rtt_s),
        predicted(peer.predicted_rtt_s, peer.prediction_error),
        "ok" if peer.suspected is None else f"suspected: {peer.suspected}",
        score(peer.misbehaviour),
    )


def _departed_row(peer: DepartedPeer) -> tuple[object, ...]:
    how = "left" if peer.has_left else "silent, removed"
    seen = "" if peer.vouched_by is None else f"; {peer.vouched_by[:8]} still sees it, and passes messages on"
    state = f"{how} {seconds(peer.ago_s)} ago{seen}"
    return peer.id, peer.address, "departed", "-", "-", "-", state, score(peer.misbehaviour)


def _missing_row(peer: MissingPeer) -> tuple[object, ...]:
    return peer.id, peer.address, "missing", "-", "-", "-", f"expected, lost {ago(peer.lost_s)}", "-"


def score(misbehaviour: float) -> str:
    """Write a misbehaviour score for people."""
    return "banned" if misbehaviour >= 100 else f"{misbehaviour:.0f}" if misbehaviour >= 0.5 else "-"


def _show_history(found: HistoryView, is_wide: bool) -> None:
    console = stdout()
    print_facts(console, [("node", found.id), ("address", found.address or "unknown"), ("state", _STATES[found.state])])
    if not found.verdicts:
        console.print("nothing was noted about it: nobody that was asked has suspected it since its own start")
        return
    rows = [
        (
            _time(verdict.at),
            verdict.verdict if times == 1 else f"{verdict.verdict} x{times}",
            verdict.evidence,
            seconds(verdict.silence_s),
            verdict.observer[:8],
            seconds(verdict.lag_s),
            _teller(verdict),
        )
        for verdict, times in folded(found.verdicts)
    ]
    headings = ("time", "verdict", "evidence", "silence", "observer", "its lag", "told by")
    print_table(console, headings, rows, optional=("its lag", "silence", "told by"), is_wide=is_wide)
    for line in conclusions(found):
        console.print(line)


def folded(verdicts: Sequence[VerdictView]) -> list[tuple[VerdictView, int]]:
    """Merge repeated verdicts of one accuser to one observer into the first one, with how often, until it decided."""
    rows: list[tuple[VerdictView, int]] = []
    open_rows: dict[tuple[str, str | None], int] = {}
    for verdict in verdicts:
        key = verdict.observer, verdict.accuser
        if verdict.verdict == "accused" and key in open_rows:
            first, times = rows[open_rows[key]]
            rows[open_rows[key]] = first, times + 1
            continue
        if verdict.verdict == "accused":
            open_rows[key] = len(rows)
        elif verdict.verdict != "suspected":
            open_rows = {other: row for other, row in open_rows.items() if other[0] != verdict.observer}
        rows.append((verdict, 1))
    return rows


def conclusions(found: HistoryView) -> list[str]:
    """Return what an operator may conclude from the history, as sentences."""
    lines = []
    lags: dict[str, float] = {}
    for verdict in found.verdicts:
        if verdict.verdict in ("suspected", "removed", "withheld") and verdict.lag_s >= LAG_NOTABLE_S:
            lags[verdict.observer] = max(verdict.lag_s, lags.get(verdict.observer, 0.0))
    for observer, lag_s in lags.items():
        lines.append(
            f"{observer[:8]} was itself up to {seconds(lag_s)} late when it accused: look at that machine first"
        )
    refuted = sum(verdict.verdict in ("cleared", "back") for verdict in found.verdicts)
    if refuted:
        lines.append(f"refuted {refuted} time{'s' if refuted > 1 else ''}: it was alive after all")
    known = {verdict.observer for verdict in found.verdicts} | {*found.asked}
    accusers = sorted({verdict.accuser for verdict in found.verdicts if verdict.accuser is not None} - known)
    if accusers:
        names = ", ".join(accuser[:8] for accuser in accusers)
        lines.append(f"others accused it: {names}; --around, or `peerd peers --history` there, says why")
    if found.silent:
        lines.append(f"asked in vain: {', '.join(node_id[:8] for node_id in found.silent)}")
    return lines


_PLACES = {
    "smaller": "leaf set, smaller",
    "larger": "leaf set, larger",
    "both": "leaf set, both sides",
    "known": "routing table",
}
_STATES = {
    "member": "in the leaf set",
    "entry": "in the routing table",
    "departed": "removed",
    "unknown": "in no table",
}
