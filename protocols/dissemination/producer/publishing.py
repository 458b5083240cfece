"""What publishers do at the producer: they publish, and wait until their stream takes more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd.errors import Unavailable
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.messages import CONTENT_TYPE_MAX, ITEM_BYTES_MAX
from protocols.dissemination.models import ItemPublished
from protocols.dissemination.names import position_text, stream_key
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import LEAVING, Streams

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


def check_now(node: StreamNode) -> None:
    """Raise `Unavailable` where the producer takes nothing at the moment, such as where there may be a second one."""
    if node.is_paused:
        raise Unavailable(f"the stream {node.name} {node.why_paused}")
    if not node.is_held():
        raise Unavailable(
            f"the record of {node.name} could not be renewed lately, so a standby may go on with the stream: try again"
        )


class Publishers:
    """Methods may raise `StreamRefused` and `Unavailable` at once; ``on_done`` gets the answer, or one of these."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._nodes = streams, streams.nodes
        self._waiting: list[tuple[StreamNode, Room]] = []

    def node_of(self, name: str) -> StreamNode:
        """A stream that this node produces. Raises `StreamRefused` and `Unavailable`."""
        node = self._nodes.get(stream_key(name))
        if node is None:
            self._streams.check_stays()
            self._streams.produced.check_back(stream_key(name))
            raise StreamRefused("unknown", f"this node produces no stream {name:.64}: create it, or ask its producer")
        if not node.is_producer:
            raise produced_elsewhere(node.record)
        return node

    def publish(
        self,
        name: str,
        payload: bytes,
        content_type: str = "",
        published_ms: int | None = None,
        attachment: Attachment | None = None,
    ) -> ItemPublished:
        """The next item of a stream that this node produces. It goes out at once; nobody acknowledges it.

        ``attachment``: a document that is here, which `Documents` has taken.
        """
        node = self.node_of(name)
        check_now(node)
        if len(payload) > ITEM_BYTES_MAX:
            raise StreamRefused("invalid", f"an item of {len(payload)} bytes: {ITEM_BYTES_MAX} is the limit")
        if len(content_type) > CONTENT_TYPE_MAX:
            raise StreamRefused("invalid", "the content type is too long")
        at_ms = round(self._streams.host.wall_time() * 1000) if published_ms is None else published_ms
        try:
            item = node.publish(payload, content_type, max(0, at_ms), attachment)
        except ItemError as error:
            raise StreamRefused("invalid", str(error)) from error
        self._nodes.send_soon(node)
        return ItemPublished(stream=name, id=position_text(item.position), bytes=len(payload))

    def when_kept(self, name: str, on_done: Room) -> None:
        """Wait until all that was published in a durable stream is on disk; ``False``: it cannot be.

        At once ``False`` for a stream that is not durable.
        """
        keeping = self.node_of(name).keeping
        if keeping is None:
            on_done(False)
        else:
            keeping.when_kept(on_done)

    def is_publishable(self, name: str) -> bool:
        """Whether this node produces the stream, and it takes another item now: then there is nothing to wait for."""
        node = self._nodes.get(stream_key(name))
        return node is not None and node.is_producer and node.is_publishable

    def when_publishable(self, name: str, on_done: Room) -> None:
        """Wait until the stream takes another item, by its limits of rate and memory.

        Where it takes one now, ``on_done`` is called at once: items that came together can go out together.
        """
        try:
            node = self.node_of(name)
        except StreamRefused as why:
            self._tell_where(name, why, self._streams.later(on_done))
            return
        if node.is_publishable:
            on_done(True)  # at once, so that items that came together go out together
        else:
            self._wait(node, self._streams.later(on_done))

    def _tell_where(self, name: str, why: StreamRefused, on_done: Room) -> None:
        """A stream is not produced here: say where it is, if the ring knows."""

        def found(answer: StreamRecord | Exception) -> None:
            if isinstance(answer, StreamRecord):
                on_done(why if self._nodes.is_own(answer) else produced_elsewhere(answer))
            else:
                on_done(answer if isinstance(answer, StreamRefused) else why)

        self._streams.find(name, found)

    def __len__(self) -> int:
        return len(self._waiting)

    def _wait(self, node: StreamNode, on_done: Room) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} publishers are waiting already")
        self._waiting.append((node, on_done))

    def let(self) -> None:
        """Let those publish whose stream takes more by now."""
        waiting, self._waiting = self._waiting, []
        for node, on_done in waiting:
            if self._nodes.get(node.record.key) is not node:
                is_leaving, over = self._streams.is_leaving, f"the stream {node.name} is over"
                on_done(Unavailable(LEAVING) if is_leaving else StreamRefused("unknown", over))
            elif not node.is_producer:
                on_done(produced_elsewhere(node.record))
            elif node.is_publishable:
                on_done(True)
            else:
                self._waiting.append((node, on_done))
