"""``peerd peers``: whom the daemon knows."""

from __future__ import annotations

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_json, print_table, seconds, stdout


def peers(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the nodes that the daemon knows: its leaf set, and its routing table."""
    found = ask(socket, lambda client: client.peers())
    if output is Output.JSON:
        print_json({"peers": [peer.model_dump(mode="json") for peer in found]})
        return
    rows = [
        (peer.id, peer.address, _PLACES[peer.place], "up" if peer.is_linked else "-", seconds(peer.rtt_s))
        for peer in found
    ]
    console = stdout()
    if rows:
        print_table(console, ("node", "address", "place", "link", "rtt"), rows)
    else:
        console.print("no other node is known: this one is alone, or has not joined yet")


_PLACES = {
    "smaller": "leaf set, smaller",
    "larger": "leaf set, larger",
    "both": "leaf set, both sides",
    "known": "routing table",
}
