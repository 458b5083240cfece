"""What a node tells of measurements and of nodes, to whoever asks. Plain values."""

from __future__ import annotations

from collections.abc import Mapping

from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.placing.squares import Spot


class Reading(Frozen):
    """A measurement: its value was in ``interval`` up to a moment that is at most ``age_s`` ago.

    ``value``: what it was when the interval was chosen, for people. ``is_stale``: it is older than was asked for.
    ``provider``: who told, which is the owner or a cache. ``hops``: nodes since the owner. ``messages``: what this
    answer has cost.
    """

    measurement: Measurement
    value: float
    interval: Interval
    age_s: float
    is_stale: bool
    provider: NodeId
    hops: int = 0
    messages: int = 0


class NoReading(Frozen):
    """A measurement of which nothing is known, and why, for people. ``messages``: what it has cost to find out."""

    measurement: Measurement
    reason: str
    messages: int = 0


class OwnReading(Frozen):
    """What this node measures: its value and age, if it has any, and the source that tells it."""

    name: str
    source: str
    value: float | None = None
    age_s: float | None = None


class NodeEntry(Frozen):
    """A node of the ring, as it has described itself: its tags, and what it measures."""

    id: NodeId
    address: str
    tags: Mapping[str, str]
    measurements: tuple[str, ...] = ()
    """Names, in order; with ``@`` behind it, one that it has with each of several other nodes."""
    pairs: Mapping[str, tuple[NodeId, ...]] = {}
    """These nodes, as of some minutes ago."""
    spot: Spot | None = None
    """Where it is in the latency space, as of some minutes ago."""
