"""``peerd status``: the daemon in one screen."""

from __future__ import annotations

import time

from peerd.admin_models import Status
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
            *_certificate(found),
            ("up", f"{seconds(found.uptime_s)}, process {found.pid}, boot {found.boot_epoch}"),
            ("version", f"{found.version}, profile {found.profile}"),
        ],
    )


def _certificate(found: Status) -> list[tuple[str, object]]:
    if found.certificate_expires_at is None:
        return []
    left_s = found.certificate_expires_at - time.time()
    if left_s <= 0:
        return [("certificate", "expired: docs/identity.md, Recovery")]
    worry = {"warning": ", renewal fails", "error": ", renewal fails: little time is left"}
    return [("certificate", f"expires in {seconds(left_s)}{worry.get(found.certificate_state or '', '')}")]
