"""Event logs of three nodes that have a round of aggregation, whose every number was worked out by hand."""

from __future__ import annotations

from pathlib import Path

from peerd.telemetry.event_files import EventFiles
from peerd.telemetry.schema import (
    SCHEMA_VERSION,
    Event,
    MetricSnapshot,
    NodeReady,
    NodeStarted,
    SwapFinished,
    TrafficSnapshot,
)
from protocols.aggregation.events import LevelFinished, RoundFinished, RoundStarted

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
ROUND, LOST_ROUND = ("1" * 32, "2" * 32)


class Log:
    """Numbers and stamps the events of one node, as `Node.emit` does."""

    def __init__(self, node: str, boot: int = 1) -> None:
        self.node = node
        self.boot = boot
        self.last_id = 0
        self.records: list[dict[str, object]] = []

    def add(self, mono_s: float, event: Event) -> None:
        self.last_id += 1
        self.records.append(self.stamp(mono_s, event, self.last_id))

    def stamp(self, mono_s: float, event: Event, number: int) -> dict[str, object]:
        return {
            "schema_version": SCHEMA_VERSION,
            "ts": 1000.0 + mono_s,
            "mono_s": mono_s,
            "node": self.node,
            "boot": self.boot,
            "id": number,
            "cause": None,
            "event": event.KIND,
            **event.columns(),
        }

    def write(self, directory: Path) -> None:
        files = EventFiles(directory, self.node, boot=self.boot)
        for record in self.records:
            files.write(record)
        files.close()


def swap(
    peer: str,
    level: int,
    sent: int,
    received: int,
    *,
    initiated: bool = True,
    outcome: str = "done",
    round_id: str = ROUND,
) -> SwapFinished:
    return SwapFinished(
        tag=f"53{round_id}{level:02x}",
        peer=peer,
        plugin="aggregation",
        outcome=outcome,
        initiated=initiated,
        sent_bytes=sent,
        received_bytes=received,
        opened_s=0.0,
        duration_s=0.25,
    )


def level(number: int, outcome: str, peer: str | None, duration_s: float = 1.0, round_id: str = ROUND) -> LevelFinished:
    return LevelFinished(
        round=round_id,
        level=number,
        outcome=outcome,
        peer=peer,
        contributors=2,
        value_bytes=50,
        duration_s=duration_s,
    )


def traffic(message: str, sent: int, received: int) -> TrafficSnapshot:
    return TrafficSnapshot(
        message=message, sent=sent, received=received, sent_bytes=sent * 20, received_bytes=received * 20
    )


def requester_log() -> Log:
    """Node a asks: swaps with b at level 1, then with c at level 0; has the answer after 2.5 s."""
    log = Log(A)
    log.add(0.0, NodeStarted(address="127.0.0.1:1", version="0", profile="local"))
    log.add(1.0, RoundStarted(round=ROUND, requester=A, query="count(*)"))
    log.add(1.5, swap(B, 1, 100, 110))
    log.add(1.5, level(1, "swapped", B))
    log.add(1.6, traffic("Invite", 1, 1))
    log.add(2.0, swap(C, 0, 7, 0, outcome="stalled"))
    log.add(3.0, swap(C, 0, 200, 90))
    log.add(3.0, level(0, "swapped", C, duration_s=1.5))
    finished = RoundFinished(
        round=ROUND,
        requester=A,
        query="count(*)",
        contributors=3,
        expected=4.0,
        missing=1,
        completeness=0.75,
        duration_s=2.5,
        value_bytes=64,
        outcome="partial",
    )
    log.add(3.5, finished)
    log.add(4.0, traffic("Invite", 3, 2))
    log.add(4.0, traffic("Query", 5, 0))
    log.add(4.0, MetricSnapshot(metric="peerd_links", labels="", value=2.0))
    log.add(4.0, MetricSnapshot(metric="peerd_dials_total", labels="outcome=connected", value=3.0))
    return log


def helper_log() -> Log:
    """Node b swaps with a; a swap at a level that it had left belongs to none."""
    log = Log(B)
    log.add(11.0, RoundStarted(round=ROUND, requester=A, query="count(*)"))
    log.add(11.5, swap(A, 1, 110, 100, initiated=False))
    log.add(11.5, level(1, "swapped", A))
    log.add(13.0, level(0, "timed_out", None))
    log.add(99.0, swap(A, 0, 1000, 1000, initiated=False))
    log.add(100.0, traffic("Invite", 1, 3))
    return log


def killed_log() -> Log:
    """Node c swaps with a and learns of a round whose requester never says more; then it dies."""
    log = Log(C, boot=7)
    log.add(1.0, RoundStarted(round=ROUND, requester=A, query="count(*)"))
    log.add(2.0, swap(A, 0, 90, 200, initiated=False))
    log.add(2.0, level(0, "swapped", A))
    log.add(3.0, RoundStarted(round=LOST_ROUND, requester=B, query="sum(x)"))
    log.add(3.5, NodeReady(duration_s=1.0, ring_size=3.0))
    return log
