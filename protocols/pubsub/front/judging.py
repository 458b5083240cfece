"""What must hold of publish/subscribe, judged from outside: by what clients asked for and what they got.

Precision (invariant 14): what a subscription gets, its filter matches, by the reference matcher. Once: no event twice.
Recall (15): what was published, and acknowledged, while a subscription was established comes to it; that is asked of
the events that are named. What is judged from inside the nodes is in `protocols.pubsub.front.checkers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from peerd.lib.feed import FeedDropped, FeedGap, FeedItem, Reader
from peerd.lib.filter import matcher, parse
from peerd.lib.filter.evaluate import Matcher
from peerd.sim.simulation import Place
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest, SubscriptionView
from protocols.pubsub.names import EventId
from protocols.pubsub.plugin import PubSub


def plugin_of(place: Place) -> PubSub:
    """The plugin of a simulated node. Raises ``KeyError`` when the node runs without it."""
    plugin = place.node.plugins[PubSub.name]
    assert isinstance(plugin, PubSub)
    return plugin


@dataclass
class Watched:
    """A subscription on a simulated node, and what came to it."""

    place: Place
    boot: int
    schema: str
    filter: str
    matches: Matcher
    reader: Reader[ReceivedEvent]
    id: str
    state: str = "installing"
    established_at: float | None = None
    seen: dict[EventId, None] = field(default_factory=dict)
    dropped: int = 0
    """How many events its reader was told to be missing."""

    @property
    def is_live(self) -> bool:
        """Whether its node still runs since it subscribed."""
        return self.place.is_live and self.place.boot_epoch == self.boot


@dataclass
class PublishedEvent:
    """An event that a client published."""

    event: EventId
    schema: str
    values: Mapping[str, Any]
    begun_at: float
    outcome: str = "pending"


class Judge:
    """Subscribes, publishes and compares."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.watched: list[Watched] = []
        self.events: dict[EventId, PublishedEvent] = {}
        self.offences: list[str] = []

    def subscribe(self, place: Place, schema: str, filter: str, **options: Any) -> Watched:
        """Subscribe on a node. Raises what the plugin raises."""
        plugin = plugin_of(place)
        made: list[Watched] = []
        at_once: list[SubscriptionView] = []

        def done(answer: SubscriptionView | Exception) -> None:
            if isinstance(answer, SubscriptionView):
                at_once.append(answer)
                for each in made:
                    each.state, each.established_at = answer.state, self._now()

        asked = SubscriptionRequest.model_validate({"schema": schema, "filter": filter, "policy": "block", **options})
        view = plugin.subscriptions.subscribe(asked, done)
        _, feed = plugin.subscriptions.reading(view.id)
        reader = feed.reader("start")
        node = parse(filter)
        watched = Watched(place, place.boot_epoch, schema, filter, matcher(node), reader, view.id)
        if at_once:
            watched.state, watched.established_at = at_once[0].state, self._now()
        made.append(watched)
        self.watched.append(watched)
        return watched

    def end(self, watched: Watched) -> None:
        """End a subscription whose node lives."""
        self._read(watched)
        plugin_of(watched.place).subscriptions.end(watched.id)
        self.watched.remove(watched)

    def publish(self, place: Place, schema: str, values: Mapping[str, Any], ack: Any = None) -> PublishedEvent:
        """Publish on a node. Raises what the plugin raises."""
        found: list[PublishedEvent] = []

        def done(answer: Any) -> None:
            if found:
                found[0].outcome = "unknown" if isinstance(answer, Exception) else answer.outcome

        event = plugin_of(place).entering.publish(schema, values, done, ack)
        published = PublishedEvent(event, schema, dict(values), self._now())
        found.append(published)
        self.events[event] = published
        return published

    def read(self) -> None:
        """Take what has come to every subscription, and compare it."""
        for watched in self.watched:
            if watched.is_live:
                self._read(watched)

    def _read(self, watched: Watched) -> None:
        while (entry := watched.reader.take()) is not None:
            if isinstance(entry, FeedItem):
                self._took(watched, entry.value)
            elif isinstance(entry, FeedDropped):
                # Its reader blocks, so nothing is let go here: only what leaves have dropped is missing.
                watched.dropped += entry.count
                if watched.dropped > plugin_of(watched.place).subscriptions.get(watched.id).missed.total():
                    self.offences.append(f"subscription {watched.id} lost events although its reader blocks")
            elif isinstance(entry, FeedGap):
                self.offences.append(f"subscription {watched.id} has a gap although its reader blocks")

    def _took(self, watched: Watched, received: ReceivedEvent) -> None:
        event = EventId.parse(received.event)
        published = self.events.get(event)
        if published is None:
            self.offences.append(f"subscription {watched.id} got {event}, which nobody published")
            return
        if dict(received.values) != dict(published.values):
            self.offences.append(f"{event} arrived with other values than it was published with")
        if not watched.matches(published.values):
            self.offences.append(f"precision: {event} came to {watched.filter!r}, which it does not match")
        if event in watched.seen:
            self.offences.append(f"once: {event} came twice to subscription {watched.id}")
        watched.seen[event] = None

    def missing(self, owed: list[PublishedEvent], outcomes: tuple[str, ...] = ("received", "replicated")) -> list[str]:
        """Which of these events did not come to a subscription that was established before they were published."""
        found = []
        for watched in self.watched:
            if not watched.is_live or watched.established_at is None:
                continue
            for event in owed:
                is_due = event.outcome in outcomes and event.begun_at > watched.established_at
                is_missing = is_due and event.schema == watched.schema and event.event not in watched.seen
                if is_missing and watched.matches(event.values):
                    found.append(f"recall: {event.event} did not come to {watched.filter!r} of {watched.place}")
        return found
