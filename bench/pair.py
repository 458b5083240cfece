"""Two daemons of one ring, each with the benchmark's plugin, as processes of their own on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import Children, Conversation, free_ports
from peerd.cluster.layout import Layout


@dataclass(frozen=True, slots=True)
class Pair:
    """Two daemons. ``first`` takes commands, and carries them out with the second one, ``second_peer``."""

    first: Conversation
    second: Conversation
    second_peer: tuple[str, str, int]

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Give a command to the first daemon, and return its answer."""
        return self.first.ask(command, peer=self.second_peer, **arguments)


@contextmanager
def pair(*, tls: bool, profile: bool = False) -> Iterator[Pair]:
    """Start them; leaving ends them. Raises `BenchFailure`."""
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder, Children() as children:
        layout = Layout(Path(folder) / "cluster")
        layout.directory.mkdir()
        tables = {
            "tls": {"mode": "mutual" if tls else "off"},
            "telemetry": {"sink": ""},
            "limits": {"peer_messages_per_second": 1_000_000.0, "peer_messages_burst": 1_000_000},
        }
        layout.create("bench", free_ports(2), settings=lambda index: tables)
        extra = ["--profile"] if profile else []
        peers = [Conversation(children, "bench.peer", [str(layout.config_file(index)), *extra]) for index in range(2)]
        refs = [peer.ask("wait_ring", size=2) for peer in peers]
        second = refs[1]
        yield Pair(peers[0], peers[1], (second["id"], second["host"], second["port"]))
        for peer in peers:
            peer.finish()
