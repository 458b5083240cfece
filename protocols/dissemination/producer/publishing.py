"""Publishers that wait until their stream takes more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd.errors import Unavailable
from protocols.dissemination.registry import Find
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.taking_part import StreamNodes

WAITING_MAX: Final = 1000
"""Publishers that wait at once."""

Room = Callable[[bool | Exception], None]


def produced_elsewhere(record: StreamRecord) -> StreamRefused:
    """What a publisher is told that is not at the producer (any more)."""
    producer = record.producer
    return StreamRefused(
        "unknown",
        f"the stream {record.name} is produced by node {producer.id:.8} at {producer.peer.address}: publish there",
    )


def tell_where(
    find: Find, name: str, why: StreamRefused, is_own: Callable[[StreamRecord], bool], on_done: Room
) -> None:
    """A stream is not produced here: say where it is, if the ring knows. Raises `Unavailable`."""

    def found(answer: StreamRecord | Exception) -> None:
        if isinstance(answer, StreamRecord):
            on_done(why if is_own(answer) else produced_elsewhere(answer))
        else:
            on_done(answer if isinstance(answer, StreamRefused) else why)

    find(name, found)


def check_now(node: StreamNode) -> None:
    """Raise `Unavailable` where the producer takes nothing at the moment, such as where there may be a second one."""
    if node.is_paused:
        raise Unavailable(f"the stream {node.name} {node.why_paused}")
    if not node.is_held():
        raise Unavailable(
            f"the record of {node.name} could not be renewed lately, so a standby may go on with the stream: try again"
        )


class Publishers:
    """``why_unavailable`` says why nobody can publish at all at the moment; empty where they can."""

    def __init__(self, nodes: StreamNodes, why_unavailable: Callable[[], str]) -> None:
        self._nodes, self._why_unavailable = nodes, why_unavailable
        self._waiting: list[tuple[StreamNode, Room]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, node: StreamNode, on_done: Room) -> None:
        """Call back when the stream takes more, or will not. Raises `Unavailable`."""
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} publishers are waiting already")
        self._waiting.append((node, on_done))

    def let(self) -> None:
        """Let those publish whose stream takes more by now."""
        waiting, self._waiting = self._waiting, []
        for node, on_done in waiting:
            why = self._why_unavailable()
            if self._nodes.get(node.record.key) is not node:
                on_done(Unavailable(why) if why else StreamRefused("unknown", f"the stream {node.name} is over"))
            elif not node.is_producer:
                on_done(produced_elsewhere(node.record))
            elif node.is_publishable:
                on_done(True)
            else:
                self._waiting.append((node, on_done))
