"""Two daemons of one ring, each with the benchmark's plugin, as processes of their own on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.local_peers import local_peers
from bench.processes import Conversation


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
    with local_peers(2, tls=tls, profile=profile) as peers:
        refs = [peer.ask("wait_ring", size=2) for peer in peers]
        second = refs[1]
        yield Pair(peers[0], peers[1], (second["id"], second["host"], second["port"]))
