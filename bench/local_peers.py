"""Daemons of one ring, each with the benchmark's plugin, as processes of their own on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.processes import Children, Conversation, free_ports
from peerd.cluster.layout import Layout


@contextmanager
def local_peers(count: int, *, tls: bool, profile: bool = False) -> Iterator[Sequence[Conversation]]:
    """Start them, to be told what to do; leaving ends them. Raises `BenchFailure`."""
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder, Children() as children:
        layout = Layout(Path(folder) / "cluster")
        layout.directory.mkdir()
        tables = {
            "tls": {"mode": "mutual" if tls else "off"},
            "telemetry": {"sink": ""},
            "limits": {"peer_messages_per_second": 1_000_000.0, "peer_messages_burst": 1_000_000},
        }
        layout.create("bench", free_ports(count), settings=lambda index: tables)
        extra = ["--profile"] if profile else []
        files = [str(layout.config_file(index)) for index in range(count)]
        peers = [Conversation(children, "bench.peer", [file, *extra]) for file in files]
        yield peers
        for peer in peers:
            peer.finish()
