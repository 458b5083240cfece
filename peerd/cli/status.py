"""``peerd status``: the daemon in one screen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from peerd.cli.members import missing_line
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import nodes, print_data, print_facts, seconds, size, stdout
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.models.admin import Status


def status(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show what the daemon on this machine is and does."""
    found = ask(socket, lambda client: client.status())
    if print_data(output, found):
        return
    print_facts(
        stdout(),
        [
            ("node", found.id),
            ("address", found.address),
            ("cluster", found.cluster),
            ("state", _state(found)),
            ("ring", _ring(found) + _partition(found)),
            ("members", _members(found)),
            ("leaf set", counted(found.leaf_set_members, "member")),
            ("links", found.links),
            ("data clients", ", ".join(found.data_addresses) or "no listener for them (data.socket, data.http)"),
            ("probes", f"a routing-table entry each {seconds(found.probe_period_s)}"),
            ("absences", f"{found.absences} times this process had not been running" if found.absences else "none"),
            ("plugins", ", ".join(f"{plugin.name} {plugin.version}" for plugin in found.plugins)),
            *_certificate(found),
            ("history", _histories(found)),
            ("up", f"{seconds(found.uptime_s)}, process {found.pid}, boot {found.boot_epoch}"),
            ("version", f"{found.version}, profile {found.profile}"),
        ],
    )


def _histories(found: Status) -> str:
    """Say how much memory the past takes, of how much it may, and what takes most of it."""
    if not found.histories:
        return "none"
    held, most = sum(each.bytes for each in found.histories), sum(each.bytes_max for each in found.histories)
    largest = max(found.histories, key=lambda each: each.bytes)
    text = f"{size(held)} of at most {size(most)}"
    return f"{text}; most of it {largest.owner}, {largest.name}: {size(largest.bytes)}" if held else text


def _certificate(found: Status) -> list[tuple[str, object]]:
    if found.certificate_expires_at is None:
        return []
    left_s = found.certificate_expires_at - time.time()
    if left_s <= 0:
        return [("certificate", "expired: docs/identity.md, Recovery")]
    worry = {"warning": ", renewal fails", "error": ", renewal fails: little time is left"}
    return [("certificate", f"expires in {seconds(left_s)}{worry.get(found.certificate_state or '', '')}")]


def _ring(found: Status) -> str:
    """Say how many nodes are in the ring, and how many are expected if some are missing."""
    if found.ring_size == 0:
        return "none: it has left"
    there = nodes(found.ring_size, found.is_ring_size_exact)
    about = "" if found.is_ring_size_exact else "about "
    return f"{there} of {about}{found.expected:,.0f} expected" if found.missing else there


def _members(found: Status) -> str:
    """Say how many members are expected, and which of them are missing."""
    if found.ring_size == 0:
        return "none is expected"
    if not found.missing:
        return "none is missing"
    side = "; this is the smaller side of a partition, or most of the ring is down" if found.is_minority else ""
    return f"{missing_line(found.missing_members, found.missing)}{side}"


def _state(found: Status) -> str:
    if found.outside is not None and found.state in ("joining", "ready", "degraded"):
        return f"not ready: {found.outside}; see node.bootstrap, `peerd deny --list` and `peerd healthcheck`"
    known = {
        "ready": "ready: in the ring",
        "degraded": "degraded: in the ring, but not heard from both sides in time, so it answers for no key",
        "joining": "not ready: joining; if it stays so, see node.bootstrap and `peerd healthcheck`",
        "draining": f"draining: waiting for {', '.join(found.draining)}",
        "drained": "drained: out of the ring until it is started again",
        "stopping": "not ready: stopping",
    }
    return known.get(found.state, "ready: in the ring" if found.is_ready else "not ready: joining, or stopping")


def _partition(found: Status) -> str:
    if not found.partition_suspected:
        return ""
    return f"; PARTITION SUSPECTED: {found.missing} nodes are missing, many of them lost at once"
