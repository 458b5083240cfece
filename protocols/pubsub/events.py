"""What publish/subscribe records in the event log. ONLY APPEND, as everywhere in the schema.

``publication`` is the id of a published event as people see it (`protocols.pubsub.names.EventId`); ``subscription`` is
the number of a subscription at its node.
"""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text


class SubscriptionInstalled(Event):
    """At the subscriber: a leaf keeps a piece of a subscription from now on."""

    KIND = "pubsub.subscription_installed"
    subscription: Text
    latency_s: float
    level: int
    hops: int


class SubscriptionEnded(Event):
    """At the subscriber: a subscription is over; ``outcome`` says how: ended, expired or refused."""

    KIND = "pubsub.subscription_ended"
    subscription: Text
    outcome: Text


class EventPublished(Event):
    """At the publisher: a publish has ended; ``outcome`` is received, replicated, failed or unknown."""

    KIND = "pubsub.event_published"
    publication: Text
    outcome: Text
    leaves: int
    matched: int
    duration_s: float
    value_bytes: int


class EventDelivered(Event):
    """At the leaf: a subscriber's node has taken an event (latency by the nodes' clocks)."""

    KIND = "pubsub.event_delivered"
    publication: Text
    subscriber: str
    latency_s: float


class EventsDropped(Event):
    """Events dropped here for one reason since the last such line, a minute ago or more."""

    KIND = "pubsub.events_dropped"
    reason: Text
    dropped: int


class LeafSplit(Event):
    """A leaf of a tree has become an inner node, and its halves are leaves."""

    KIND = "pubsub.leaf_split"
    tree: Text
    cell: Text
    pieces: int
    duration_s: float


class LeavesMerged(Event):
    """An inner node of a tree is a leaf again, in place of its halves."""

    KIND = "pubsub.leaves_merged"
    tree: Text
    cell: Text
    pieces: int
    duration_s: float


class LeafMoved(Event):
    """A leaf is at its alternate place because of its load (``cell`` ends in an ``a``), or at home again."""

    KIND = "pubsub.leaf_moved"
    tree: Text
    cell: Text
    pieces: int
    duration_s: float


class LeafShared(Event):
    """A leaf has one more helper, which does its work for a part of the publishers."""

    KIND = "pubsub.leaf_shared"
    tree: Text
    cell: Text
    pieces: int


class NodeLoad(Event):
    """Every minute, where anything happened: leaves and pieces now, and what happened meanwhile. ``kept``: on disk for
    a node that is away; what comes from there is matched once more."""

    KIND = "pubsub.node_load"
    leaves: int
    pieces: int
    published: int
    matched: int
    delivered: int
    pending: int
    kept: int = 0


EVENTS: Final[tuple[type[Event], ...]] = (
    SubscriptionInstalled,
    SubscriptionEnded,
    EventPublished,
    EventDelivered,
    EventsDropped,
    LeafSplit,
    LeavesMerged,
    LeafMoved,
    LeafShared,
    NodeLoad,
)
