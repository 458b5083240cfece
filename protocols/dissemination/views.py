"""What users see of a stream: of one that this node takes part in, and of one that it knows by its record only."""

from __future__ import annotations

from collections.abc import Sequence

from peerd.api import HistorySize
from peerd.ids import format_id
from protocols.dissemination.models import StreamView
from protocols.dissemination.names import position_text
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.subscriptions import StreamSubscription
from protocols.dissemination.tree.replay import ENTRY_BYTES


def view_of(record: StreamRecord, node: StreamNode | None = None, subscriptions: int = 0) -> StreamView:
    """A stream. ``node``: this node's part in it, with so many subscriptions of clients here."""
    view = StreamView(
        name=record.name,
        kind=record.kind,
        policy=record.policy,
        settings=dict(record.settings),
        producer=record.producer.id,
        role="none",
        position=None,
        parent=None,
        depth=None,
        children=0,
        subscriptions=subscriptions,
        durable=record.durable,
        term=record.term,
        producer_gone=record.producer_gone,
        unsigned=record.unsigned,
        standbys=[each.id for each in record.standbys],
    )
    if node is None:
        return view
    own = {
        "role": "producer" if node.is_producer else "subscriber",
        "position": position_text(node.member.state.watermark),
        "parent": None if node.parent is None else format_id(node.parent.id),
        "depth": node.depth,
        "children": len(node.member.down.children),
        "liars": {format_id(id): what for id, what in node.seeking.liars.items()},
        "is_kept": None if node.keeping is None else node.keeping.is_kept,
    }
    return view.model_copy(update=own)


def histories(clients: Sequence[StreamSubscription], nodes: Sequence[StreamNode]) -> tuple[HistorySize, ...]:
    """What a node remembers of items: for readers of its subscriptions, and for members of the trees."""
    feeds = [each.feed for each in clients]
    buffers = [node.member.state.buffer for node in nodes]
    held = sum(map(len, feeds)), sum(feed.held_bytes for feed in feeds)
    kept = sum(map(len, buffers)), sum(buffer.bytes + len(buffer) * ENTRY_BYTES for buffer in buffers)
    most = sum(buffer.limits.bytes + buffer.limits.items * ENTRY_BYTES for buffer in buffers)
    return (
        HistorySize("items for readers", *held, sum(feed.bytes_max for feed in feeds)),
        HistorySize("items of the past", *kept, most),
    )
