"""The daemon's own events as a feed: the newest are held, so that whoever follows them may hang up and come back.

It stands in front of the event log and costs one append an event; lines are made only for a client that reads.
"""

from __future__ import annotations

from typing import Final

from peerd.errors import Bug
from peerd.ids import NodeId, format_id
from peerd.lib.feed import Feed
from peerd.limits import KIB, MIB
from peerd.telemetry.sinks import EventSink, dropped_record, encode_record

EVENTS_HELD_MAX: Final = 1000
EVENTS_HELD_BYTES_MAX: Final = MIB
FOLLOWERS_MAX: Final = 16
RECORD_BYTES_MAX: Final = 64 * KIB
"""A record is counted with at most this size; the schema bounds its texts."""
RECORD_BYTES: Final = 300
"""About the size of a record as JSON without its texts. Computing the exact size would cost more than the record."""

Record = dict[str, object]


class EventFeed:
    """An event sink that hands everything on to another one, and holds the newest records."""

    def __init__(self, sink: EventSink, node: NodeId, boot_epoch: int) -> None:
        epoch = f"{format_id(node)[:8]}.{boot_epoch}"  # tells clients of another node or boot
        self.feed: Feed[Record] = Feed(
            epoch, items_max=EVENTS_HELD_MAX, bytes_max=EVENTS_HELD_BYTES_MAX, readers_max=FOLLOWERS_MAX
        )
        self.sink = sink
        """The sink that gets every record; see `redirect`."""

    def write(self, record: Record) -> None:
        """Take a record. Never blocks, because readers of this feed cannot ask for that policy."""
        self.sink.write(record)
        if self.feed.ended is None:
            texts = sum([len(value) for value in record.values() if type(value) is str])
            self.feed.push(record, min(RECORD_BYTES + texts, RECORD_BYTES_MAX))

    def redirect(self, sink: EventSink) -> EventSink:
        """Give records to ``sink`` from now on; returns the previous sink, for the caller to close."""
        before, self.sink = self.sink, sink
        return before

    def close(self) -> None:
        """Close the sink that gets the records."""
        self.sink.close()


def encode_event(record: Record) -> bytes:
    """Encode as in the event log. As there, a record that JSON cannot express becomes a ``sink.dropped`` one."""
    try:
        return encode_record(record).rstrip(b"\n")
    except Bug:
        return encode_record(dropped_record(record, 1)).rstrip(b"\n")
