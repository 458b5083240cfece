"""``peerd status``: the daemon in one screen."""

from __future__ import annotations

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import nodes, print_facts, print_json, seconds, stdout


def status(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show what the daemon on this machine is and does."""
    found = ask(socket, lambda client: client.status())
    if output is Output.JSON:
        print_json(found)
        return
    print_facts(
        stdout(),
        [
            ("node", found.id),
            ("address", found.address),
            ("cluster", found.cluster),
            ("state", "ready: in the ring" if found.is_ready else "not ready: joining, or stopping"),
            ("ring", nodes(found.ring_size, found.is_ring_size_exact)),
            ("leaf set", f"{found.leaf_set_members} members"),
            ("links", found.links),
            ("plugins", ", ".join(f"{plugin.name} {plugin.version}" for plugin in found.plugins)),
            ("up", f"{seconds(found.uptime_s)}, process {found.pid}, boot {found.boot_epoch}"),
            ("version", f"{found.version}, profile {found.profile}"),
        ],
    )
