"""The loss ledger: what became of every match, counted here and told for `explain`, metrics and the event log.

At a leaf, at any time: matched = delivered + dropped by reason + kept on disk + pending (what comes from disk again is
matched again), where one unit is one event for one
subscriber's node (one more for each further member of a group that gets it in place of a silent one). What a
subscriber's own node drops afterwards, because a reader is slow, and what a publisher gives up is counted beside that.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.api import HistorySize, Host, Metric, Part, on_timer
from peerd.frozen import Frozen
from peerd.ids import NodeId, format_id
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.events import EventDelivered, EventsDropped, NodeLoad
from protocols.pubsub.names import EventId
from protocols.pubsub.tree.rendezvous import Rendezvous

FILTERED: Final = "filtered"
"""The subscriber's own filters want nothing of it: what the leaf keeps for that node is out of date."""
QUEUE_FULL: Final = "queue_full"
"""More waited for one node than ``delivery_queue``."""
MEMORY_FULL: Final = "memory_full"
"""More waited for all nodes together than ``deliveries_bytes``."""
SILENT: Final = "silent"
"""The node did not answer for ``delivery_keep``."""
LEAF_FULL: Final = "leaf_full"
"""This node keeps no more for others on its disk."""
LEAF_REASONS: Final = frozenset({FILTERED, QUEUE_FULL, MEMORY_FULL, SILENT, LEAF_FULL})
"""Reasons for which a leaf drops what it has matched. Any other reason is a subscriber's or a publisher's."""

KEPT: Final = "kept"
"""On this node's disk, for durable subscriptions of a node that is away."""
EVENTS_KEPT: Final = 8192
"""So many events have their outcomes remembered, for `explain`."""
ENTRY_BYTES: Final = 800
"""What one takes with four outcomes, measured."""
OUTCOMES_KEPT: Final = 64
"""So many outcomes of one event are remembered."""
REPORT_S: Final = 60.0

METRICS: Final[tuple[Metric, ...]] = (
    Metric("peerd_pubsub_matched_total", "counter", "Events that matched at leaves here, once a subscriber's node."),
    Metric("peerd_pubsub_delivered_total", "counter", "Of these, those that the subscriber's node has taken."),
    Metric("peerd_pubsub_dropped_total", "counter", "Events that were dropped, by reason.", ("reason",)),
    Metric("peerd_pubsub_kept_total", "counter", "Events written to disk for a subscriber's node that is away."),
    Metric("peerd_pubsub_kept_bytes", "gauge", "Bytes on this node's disk for other nodes that are away."),
    Metric("peerd_pubsub_delivery_seconds", "histogram", "From publication to the subscriber's node."),
    Metric("peerd_pubsub_hold_refused_total", "counter", "Events of others that this node had no room to hold."),
    Metric("peerd_pubsub_replays_given_up_total", "counter", "Subscriptions that did not get all of the past."),
    Metric("peerd_pubsub_pending_deliveries", "gauge", "Matched, and neither delivered nor dropped."),
    Metric("peerd_pubsub_leaves", "gauge", "Leaves of trees that this node is the root of."),
    Metric("peerd_pubsub_leaf_pieces", "gauge", "Pieces of subscriptions in these leaves."),
)


class DeliveryOutcome(Frozen):
    """What became of an event for one node. ``what``: delivered, or the reason why it was dropped."""

    subscriber: NodeId | None
    what: str
    at_s: float


@dataclass(slots=True)
class EventOutcomes:
    """All that is remembered of one event."""

    at_s: float
    is_own: bool = False
    """Published here."""
    pieces: int = 0
    subscribers: int = 0
    outcomes: list[DeliveryOutcome] = field(default_factory=list)


class LedgerBook(Part):
    """Counts what became of every match: published = delivered + filtered + dropped by reason + unknown."""

    def __init__(self, host: Host, config: PubSubConfig, leaves: Rendezvous) -> None:
        self._host, self._leaves = host, leaves
        self._age_s = config.history_age
        self.published_count = 0
        self.matched_count = 0
        self.delivered_count = self.kept_count = 0
        self.drops: Counter[str] = Counter()
        self._events: OrderedDict[EventId, EventOutcomes] = OrderedDict()
        self._untold: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to report every minute."""
        self._host.set_timer("pubsub_report", REPORT_S * (1 + self._host.rng.random()))

    @property
    def pending_count(self) -> int:
        """What was matched and is neither delivered nor dropped."""
        return (
            self.matched_count
            - self.delivered_count
            - self.kept_count
            - sum(self.drops[reason] for reason in LEAF_REASONS)
        )

    # What happens

    def published(self, event: EventId) -> None:
        """A client of this node published an event."""
        self.published_count += 1
        self._entry(event).is_own = True

    def matched(self, event: EventId, pieces: int, subscribers: int) -> None:
        """An event matched so many pieces at this leaf, of so many nodes."""
        self.matched_count += subscribers
        if subscribers:
            self._host.count("peerd_pubsub_matched_total", subscribers)
        entry = self._entry(event)
        entry.pieces += pieces
        entry.subscribers += subscribers

    def delivered(self, events: Sequence[tuple[EventId, float]], subscriber: NodeId) -> None:
        """The subscriber's node has taken these events, each so many seconds after it was published."""
        self.delivered_count += len(events)
        self._host.count("peerd_pubsub_delivered_total", len(events))
        outcome, name = DeliveryOutcome(subscriber, "delivered", self._host.now()), format_id(subscriber)
        for event, latency_s in events:
            self._host.observe("peerd_pubsub_delivery_seconds", max(0.0, latency_s))
            self._note(event, outcome)
            self._host.emit(EventDelivered(publication=str(event), subscriber=name, latency_s=latency_s))

    def dropped(self, event: EventId, subscriber: NodeId | None, reason: str) -> None:
        """It will not get there, for this reason."""
        self.drops[reason] += 1
        self._untold[reason] += 1
        self._host.count("peerd_pubsub_dropped_total", reason=reason)
        self._note(event, DeliveryOutcome(subscriber, reason, self._host.now()))

    def kept(self, event: EventId, subscriber: NodeId) -> None:
        """It is on this node's disk until the subscriber's node is back; then it is matched once more."""
        self.kept_count += 1
        self._host.count("peerd_pubsub_kept_total")
        self._note(event, DeliveryOutcome(subscriber, KEPT, self._host.now()))

    def lost_from_disk(self, reason: str, count: int) -> None:
        """So many events that were on disk will not be delivered."""
        self._untold[reason] += count
        self._host.count("peerd_pubsub_dropped_total", count, reason=reason)

    # What is known

    def history(self) -> HistorySize:
        """What is remembered for `explain`."""
        count = len(self._events)
        return HistorySize("outcomes for explain", count, count * ENTRY_BYTES, EVENTS_KEPT * ENTRY_BYTES)

    def outcomes(self, event: EventId) -> EventOutcomes | None:
        """What is remembered of an event."""
        self._forget_old(self._host.now())
        return self._events.get(event)

    def _note(self, event: EventId, outcome: DeliveryOutcome) -> None:
        entry = self._entry(event)
        if len(entry.outcomes) < OUTCOMES_KEPT:
            entry.outcomes.append(outcome)

    def _entry(self, event: EventId) -> EventOutcomes:
        entry = self._events.get(event)
        if entry is None:
            now = self._host.now()
            entry = self._events[event] = EventOutcomes(now)
            self._forget_old(now)
        return entry

    def _forget_old(self, now: float) -> None:
        oldest_at = now - self._age_s
        while self._events:
            if len(self._events) <= EVENTS_KEPT and next(iter(self._events.values())).at_s >= oldest_at:
                return
            self._events.popitem(last=False)

    @on_timer("pubsub_report")
    def _report(self, payload: object) -> None:
        self._host.set_timer("pubsub_report", REPORT_S)
        self.report()

    def report(self) -> None:
        """Tell the event log what has happened since the last time."""
        for reason, count in sorted(self._untold.items()):
            self._host.emit(EventsDropped(reason=reason, dropped=count))
        self._untold.clear()
        self._host.gauge("peerd_pubsub_pending_deliveries", self.pending_count)
        now = Counter(
            matched=self.matched_count,
            delivered=self.delivered_count,
            published=self.published_count,
            kept=self.kept_count,
        )
        since = {name: now[name] - self._told[name] for name in ("published", "matched", "delivered", "kept")}
        self._told = now
        own = [node for node in self._leaves.forest.nodes() if node.is_leaf]
        leaves, pieces = len(own), sum(len(node.pieces) for node in own)
        self._host.gauge("peerd_pubsub_leaves", leaves)
        self._host.gauge("peerd_pubsub_leaf_pieces", pieces)
        if leaves or any(since.values()):
            self._host.emit(NodeLoad(leaves=leaves, pieces=pieces, pending=self.pending_count, **since))
