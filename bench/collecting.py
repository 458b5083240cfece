"""One node fetches the counters of all others, and adds them up with its own: what is done without a tree."""

from __future__ import annotations

from collections.abc import Sequence

from bench.machines import READY_S
from bench.measure import BenchFailure
from bench.processes import Conversation


def collect_s(peers: Sequence[Conversation], size_bytes: int, runs: int, deadline_s: float) -> list[float]:
    """How long the first of these takes, seconds, each of some times: counters of so many bytes a node, in memory.
    Raises `BenchFailure`."""
    for index, peer in enumerate(peers):
        peer.ask("hold_counters", size_bytes=size_bytes, index=index)
    found = [peer.ask("wait_ring", READY_S, size=2) for peer in peers]  # of large rings a node knows the size roughly
    others = [(each["id"], each["host"], each["port"]) for each in found[1:]]
    answers = [peers[0].ask("collect", deadline_s, peers=others) for _ in range(runs)]
    if partial := [each["contributors"] for each in answers if each["contributors"] != len(peers)]:
        raise BenchFailure(f"one node fetched the data of {partial[0]} of {len(peers)}")
    return [float(each["duration_s"]) for each in answers]
