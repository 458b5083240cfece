"""Parameters of publish/subscribe: the table ``[protocols.pubsub]``. Table 4.1 of the thesis is among them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from peerd import limits
from peerd.api import PluginConfig
from peerd.quantities import Count, Duration, Interval, Size, between_durations, between_sizes, misfit, setting
from protocols.pubsub.models import AckWord
from protocols.pubsub.tree.cells import LEVEL_LIMIT

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Level = Annotated[int, Field(ge=0, le=LEVEL_LIMIT)]
Lifetime = Annotated[Duration, between_durations("10s", "7d")]
KeptFor = Annotated[Duration, between_durations("1m", "7d")]
Memory = Annotated[Size, between_sizes("64KiB", "64GiB")]
BaseAttribute = Literal["random", "selective"]
DeliveryKind = Literal["direct", "multicast", "auto"]
Balancing = Literal["static", "adaptive"]


class PubSubConfig(PluginConfig):
    """The settings of publish/subscribe: the tree, the probes, what is promised, and what one member may use."""

    # The tree (thesis: node_capacity, section 3.2.2)
    leaf_capacity: Count = setting(
        200,
        "Subscriptions that a leaf holds on this machine before it is split (thesis: node_capacity, 10 to 30). Raise "
        "it on strong machines and where there are few subscriptions: fewer leaves are visited by each event. Lower "
        "it to spread the work over more machines.",
        reloads=True,
    )
    merge_share: Share = setting(
        0.25,
        "Two leaves are merged back when both together hold less than this share of leaf_capacity for merge_after. 0: "
        "never (as in the thesis). Higher shrinks the tree sooner, and splits it again sooner.",
        reloads=True,
    )
    merge_after: Interval = setting("10m", "How long two leaves have to be nearly empty before they are merged.")
    level_max: Level = setting(
        40, "Deepest level of the tree. Leaves there are not split, whatever they hold. The same on all nodes."
    )
    leaf_table_max: Count = setting(
        1024,
        "Leaves that an inner node knows by name (its LeafNodeRoutingTable); above it, entries of one branch are "
        "merged into one. Lower saves memory near the root of the tree, higher saves hops.",
    )
    update_interval: Interval = setting(
        "5m", "Between two reports of a leaf to its ancestors while nothing changes (+-20 %)."
    )

    # Where subscriptions go (sections 3.3 and 3.5)
    base_attribute: BaseAttribute = setting(
        "selective",
        "Which attribute decides where a subscription is kept. random: any of those that it names (the thesis). "
        "selective: the one of whose events the fewest come by, as far as that has been seen; else the one whose range "
        "is the smallest part of its domain.",
        reloads=True,
    )
    widen: Share = setting(
        0.001,
        "Ranges are widened by a random part of the domain, at most this, so that equal subscriptions can be split "
        "apart (the corner points of section 3.3). What is matched stays exact. Raise it when many thousands are "
        "equal.",
    )
    cutoff: Share = setting(
        0.25,
        "Longest range, as a share of the domain, that is kept as one point: the cut-off line y = x + c of section "
        "3.5. Longer ones are kept in several pieces. Lower spares the hot corner of the square, and costs more "
        "pieces. 1: no cut-off. The same on all nodes; a schema may set its own.",
    )
    balancing: Balancing = setting(
        "adaptive",
        "adaptive: a node that sends hot_share times as many bytes for events as its neighbours on the ring do in the "
        "mean, work counted as bytes, has its busiest leaf split, even if it is not full, moved to its other place, or "
        "shared with neighbours; if it publishes much itself, others send its events on. static: only the cut-off line "
        "spreads the load, as in the thesis.",
        reloads=True,
    )
    hot_share: Annotated[float, Field(ge=1.5, le=100.0)] = setting(
        2.0,
        "With balancing = adaptive, how many times the mean a node may send. Lower spreads the load further, at more "
        "leaves that each event has to visit.",
        reloads=True,
    )
    hot_rate: Annotated[Size, between_sizes("1B", "64GiB")] = setting(
        "64KiB",
        "With balancing = adaptive, a node that sends fewer bytes a second for events is never too busy. Lower it "
        "where links are slow.",
        reloads=True,
    )
    hot_look: Interval = setting(
        "1m",
        "With balancing = adaptive, how long a busy node waits from one question to its neighbours, and what it does "
        "because of the answers, to the next. Lower follows the load sooner, and splits leaves because of short "
        "bursts.",
        reloads=True,
    )
    lease: Lifetime = setting(
        "30m",
        "A subscription is kept for so long after its subscriber was last heard, and is renewed three times within. "
        "Lower returns sooner what was lost with all its replicas, at more messages. At most records.ttl_max.",
        at_most="records.ttl_max",
    )
    install_retry: Interval = setting(
        "2s", "First pause before an installation without an answer is tried again elsewhere; it doubles, up to 30s."
    )

    # Where events go (sections 3.4.1 and 3.4.2)
    probe_probability: Share = setting(
        0.5,
        "p: the chance that a cell between probe_level_min and the deepest level is probed itself instead of its "
        "halves (random region probing). Higher means fewer and longer ways, lower more probes that go straight to "
        "leaves.",
    )
    probe_level_min: Level = setting(2, "The highest level (nearest to the root) that is ever probed.")
    probe_level_max: Level = setting(
        10,
        "The deepest level that is probed (thesis: 10) until this node has learnt how deep the tree is; from then on "
        "it follows the tree (the dynamic maximum level that section 4.3.3 asks for).",
    )
    multicast: bool = setting(
        True, "Probes with a common next hop travel as one message (section 3.4.2). Off only to measure what it saves."
    )
    tree_maps: bool = setting(
        True,
        "A publishing node asks the root of a tree once for its leaves, in place of guessing cells for each event "
        "(Program 3.3). Off only to measure what it saves.",
    )
    leaf_cache_max: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        4096,
        "Leaves, with the address of their root, that a publishing node remembers, so that its next events go there in "
        "one hop. 0: none, as in the thesis.",
    )
    leaf_cache_age: Interval = setting("10m", "A remembered leaf that has not answered for so long is forgotten.")
    direct_max: Count = setting(
        64, "Most nodes that one event is sent to directly; what goes further is sent along the overlay's links."
    )
    ack: AckWord = setting(
        "replicated",
        "What a publish waits for unless it says otherwise. received: the root of every leaf has it. replicated: and "
        "event_copies other nodes of each, so that the death of a root loses nothing.",
        reloads=True,
    )
    event_copies: Annotated[int, Field(ge=1, le=limits.LEAF_SET_SIZE // 2)] = setting(
        2, "Nodes besides the leaf's root that hold an event until it is delivered, where the publisher asks for that."
    )
    publish_retry: Interval = setting(
        "1s",
        "Least pause before cells that have not answered are probed again; longer where answers are slow. It doubles.",
    )
    publish_timeout: Interval = setting(
        "30s",
        "How long after an event has set out to a leaf that says nothing its outcome is unknown. What waits for its "
        "turn has no limit.",
    )
    publish_queue: Memory = setting("8MiB", "Events that wait here to be published; above it publishers have to wait.")

    # Delivery (section 3.4.3)
    delivery: DeliveryKind = setting(
        "auto",
        "How matched events reach subscribers. direct: one message each. multicast: one message along the overlay, "
        "split on its way. auto: multicast from multicast_min subscribers on.",
        reloads=True,
    )
    multicast_min: Count = setting(64, "With delivery = auto, how many nodes make a multicast worth its longer way.")
    delivery_window: Annotated[int, Field(ge=1, le=256)] = setting(
        8, "Batches that may be on their way to one subscriber's node without its answer."
    )
    delivery_retry: Interval = setting("1s", "Pause before a delivery without an answer is sent again; it doubles.")
    delivery_keep: Interval = setting(
        "60s", "How long a subscriber's node that does not answer is tried; then its events count as dropped."
    )
    delivery_queue: Memory = setting("1MiB", "Events that wait for one subscriber's node; then the oldest are dropped.")
    deliveries_bytes: Memory = setting("64MiB", "Events that wait for all subscribers' nodes together.")
    held_bytes: Memory = setting("32MiB", "Events that this node holds for other leaves' roots.")
    kept_per_node: Annotated[Size, between_sizes("64KiB", "64MiB")] = setting(
        "64MiB",
        "Most that this node's disk keeps for durable subscriptions of one other node while that one is away, whatever "
        "they state.",
    )
    kept_total: Memory = setting(
        "1GiB", "Most that it keeps for all of them; then the oldest of whom most is kept for are dropped."
    )

    # This node's own subscribers
    feed_items: Count = setting(1000, "Events that are kept for a slow or absent reader of one subscription.")
    feed_bytes: Memory = setting("4MiB", "Bytes of events that are kept for a reader of one subscription.")
    durable_bytes: Annotated[Size, between_sizes("64KiB", "64MiB")] = setting(
        "16MiB",
        "How much is kept for a durable subscription that does not state its keep_bytes: on this node's disk, and at "
        "each leaf while this node is away. The newest, when it is full.",
    )
    durable_total: Memory = setting(
        "1GiB",
        "Disk for all durable subscriptions of this node together: 64 of the default size, or up to 240 that ask for "
        "less. A subscription's bytes are set aside when it begins; where there are not enough, it is refused. Each "
        "event that is kept also takes about 150 bytes of memory.",
    )
    durable_age: KeptFor = setting(
        "24h",
        "How long events are kept for a durable subscription that does not state its keep: here, and at leaves while "
        "this node is away, which also keep the subscription itself for so long.",
    )
    unread_for: Interval = setting(
        "60s", "A subscription that is not durable is ended when nobody has read it for so long."
    )
    dedupe_window: Count = setting(65536, "Events that a subscriber's node remembers, to take each only once.")

    # Memory of what was
    history_bytes: Memory = setting("16MiB", "Events of the last hour that a leaf remembers for `explain` and SINCE.")
    history_age: Annotated[Duration, between_durations("1s", "1d")] = setting("1h", "How long it remembers them.")

    # What one member may use
    subscriptions_per_member: Count = setting(
        1000, "Pieces of subscriptions that one member may have on this node (as a leaf); more is refused: quota."
    )
    subscriptions_local: Count = setting(10_000, "Subscriptions that clients of this node may have together.")
    owner_share: Share = setting(
        0.25,
        "Share of subscriptions_local, and of durable_total, that one access token or user of this machine may have. "
        "Operators are bounded by the whole only.",
    )
    events_per_member: Count = setting(
        5000, "Events a second that this node takes from one publisher; above it the publisher is told to wait."
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.probe_level_min > self.probe_level_max:
            raise misfit("protocols.pubsub.probe_level_max", "expected at least probe_level_min")
        if self.probe_level_max > self.level_max:
            raise misfit("protocols.pubsub.probe_level_max", "expected at most level_max")
        return self
