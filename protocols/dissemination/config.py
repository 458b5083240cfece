"""Parameters of filtered dissemination: the table ``[protocols.dissemination]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from peerd.api import PluginConfig
from peerd.quantities import Count, Duration, Interval, Size, between_durations, between_sizes, setting
from protocols.dissemination.messages import FAN_OUT_MAX

Memory = Annotated[Size, between_sizes("64KiB", "64GiB")]
Disk = Annotated[Size, between_sizes("0B", "64TiB")]
FanOut = Annotated[int, Field(ge=0, le=FAN_OUT_MAX)]
Lease = Annotated[Duration, between_durations("10s", "1d")]


class DisseminationConfig(PluginConfig):
    """What this node is willing to do for streams, and what it remembers of them."""

    # What this node does for others
    fan_out: FanOut = setting(
        6,
        "Most children that this node sends one stream to. Raise it on machines with a fast uplink: the trees get "
        "flatter, and items arrive sooner. 0: it only receives.",
        reloads=True,
    )
    uplink: Annotated[Size, between_sizes("0B", "64GiB")] = setting(
        "0B",
        "Most bytes a second that this node wants to send to the children of all streams together: above it, it takes "
        "no more children. 0B: no limit but fan_out.",
        reloads=True,
    )
    streams_max: Count = setting(
        64, "Streams that this node takes part in. Each costs a buffer (replay_bytes) and a little work every second."
    )

    # What is remembered
    replay_items: Count = setting(
        10_000,
        "Items of a stream that this node remembers for members that move, come back or join with `--after`. The first "
        "of the three limits that is reached counts. Raise them where losses are reported after failures; lower them "
        "where memory is short.",
    )
    replay_bytes: Memory = setting("16MiB", "Bytes of items that this node remembers of a stream.")
    replay_for: Interval = setting("10m", "How long this node remembers an item.")
    slow_bytes: Memory = setting(
        "1MiB",
        "A child for which more waits in this node's connection gets no more for the moment. What comes meanwhile "
        "waits, as much as this node remembers, and is lost for that child above it, which the child is told. Below "
        "the default, what waits is sent four times a second only.",
        reloads=True,
    )

    # This node's own subscribers
    subscriptions_max: Count = setting(1000, "Subscriptions that clients of this node may have together.")
    feed_items: Count = setting(
        20_000,
        "Items that are kept for a slow or absent reader of one subscription. More than replay_items: who begins at "
        "the start gets all that is remembered at once, and what comes meanwhile.",
    )
    feed_bytes: Memory = setting(
        "40MiB", "Bytes of items that are kept for a reader of one subscription. More than replay_bytes."
    )
    unread_for: Interval = setting(
        "60s", "A subscription without a name is ended when nobody has read it for so long.", reloads=True
    )

    # The stream's record, and what happens without a producer
    lease: Lease = setting(
        "10m",
        "A stream's record is kept in the ring for so long after its producer was last heard, and is renewed three "
        "times within. Lower lets members know sooner that the producer is gone, at more messages. At most "
        "records.ttl_max.",
        at_most="records.ttl_max",
    )
    standby_lease: Lease = setting(
        "60s",
        "The same as lease, for streams that standbys take over when the producer is gone: one that has not come back "
        "within this, or cannot renew its record, is replaced. Lower replaces it sooner, at more messages. The same on "
        "all nodes. At most records.ttl_max.",
        at_most="records.ttl_max",
    )
    producer_gone_after: Interval = setting(
        "5m",
        "Where the stream says that it ends with its producer: how long the producer is to be silent, and its record "
        "gone from the ring, before members end their subscriptions.",
        reloads=True,
    )
    retry: Interval = setting(
        "1s", "First pause of a member that finds no parent before it looks again; it doubles, up to retry_max."
    )
    retry_max: Interval = setting("30s", "Longest pause of a member that finds no parent.")

    # Documents that are attached to items
    document_max_bytes: Disk = setting(
        "4GiB",
        "Largest document that this node takes, from its clients or from others. A larger one is left out here, and "
        "the nodes below get it from elsewhere. At most 16 GiB.",
        reloads=True,
    )
    documents_max_bytes: Disk = setting(
        "8GiB",
        "Bytes of documents that this node keeps in node.state_dir, to read them and for others. Above it the oldest "
        "ones go. At least document_max_bytes, for a document of that size to have room.",
        reloads=True,
    )

    # Questions
    ask_timeout: Interval = setting("2s", "How long one node of the tree may take to answer `peerd stream tree`.")
