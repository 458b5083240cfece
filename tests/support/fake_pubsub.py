"""The service of publish/subscribe without a ring: it notes what it is asked, and the test answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from peerd.api import Plugin
from peerd.lib.feed import Feed
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.models import (
    AckWord,
    Declared,
    Published,
    ReceivedEvent,
    SchemaSummary,
    SubscriptionRequest,
    SubscriptionView,
    TreeLeaf,
    TreeView,
)
from protocols.pubsub.names import EventId
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.publishing.outcomes import QueueFull
from protocols.pubsub.service import NotDone
from tests.support.fake_daemon import OWN

DOCUMENT = {
    "name": "stocks",
    "version": 1,
    "attributes": [{"name": "symbol", "type": "string"}, {"name": "type", "type": "string"}],
}
TREE = TreeView.model_validate(
    {
        "schema": "stocks",
        "attribute": "price",
        "is_complete": True,
        "cells": [
            TreeLeaf(bits="", state="inner", owner="aa" * 16, x=("0", "100"), y=("0", "100")),
            TreeLeaf(bits="0", state="leaf", owner="bb" * 16, subs=1, load=10, x=("0", "50"), y=("0", "100")),
            TreeLeaf(bits="1", state="leaf", owner="cc" * 16, subs=7, load=0, x=("50", "100"), y=("0", "100")),
        ],
    }
)


def published(number: int, outcome: Any = "replicated", detail: str = "") -> Published:
    """What became of an event."""
    return Published(event=f"e{number}", outcome=outcome, leaves=1, matched=2, duration_s=0.002, detail=detail)


def received(number: int) -> ReceivedEvent:
    """An event as a subscriber gets it."""
    values = {"symbol": "IBM", "price": str(number)}
    return ReceivedEvent(event=f"e{number}", publisher="aa" * 16, published_at=1.8e9, values=values)


class FakePubSub(Plugin):
    """All parts of `PubSub` that clients use in one. ``refusal`` is raised by whatever is asked."""

    name = PubSub.name
    messages = PubSub.messages
    metrics = PubSub.metrics
    events = PubSub.events
    Config = PubSubConfig

    def __init__(self) -> None:
        super().__init__(PubSubConfig())
        self.schemas = self.entering = self.subscriptions = self.explainer = self.trees = self
        self.calls: list[tuple[str, Any]] = []
        self.refusal: Exception | None = None
        self.rooms = 0
        self.names: list[str] = []
        """What clients call their events."""
        self.outcome: Callable[[int], Published | Exception] = published
        self.feed: Feed[ReceivedEvent] = Feed("fake.1")
        self.view = SubscriptionView(
            id="0a", schema_name="stocks", filter="price > 20", policy="drop_oldest", state="replicated", pieces=1
        )
        self.verdict: dict[str, Any] = {
            "verdict": "did not arrive",
            "summary": "it does not match",
            "lines": ["it does not match", "publisher: replicated"],
        }

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments[0] if len(arguments) == 1 else arguments))
        if self.refusal is not None:
            raise self.refusal

    def declare(
        self,
        document: Mapping[str, Any],
        on_done: Callable[[Declared | Exception], None],
        if_version: int | None = None,
    ) -> None:
        """New, as version 1."""
        self._note("declare", dict(document), if_version)
        on_done(Declared(name=str(document["name"]), version=1, is_new=True))

    def known(self) -> list[SchemaSummary]:
        """One."""
        return [SchemaSummary(name="stocks", version=1, attributes=3, absent="fails")]

    def document(self, name: str, on_done: Callable[[dict[str, Any] | Exception], None]) -> None:
        """Only stocks."""
        on_done(DOCUMENT if name == "stocks" else NotDone("unknown", f"there is no schema {name}"))

    def publish(
        self,
        schema: str,
        event: Mapping[str, Any],
        on_done: Callable[[Published | Exception], None],
        ack: AckWord | None = None,
        once: str = "",
    ) -> EventId:
        """The outcome comes at once."""
        self.names.append(once)
        self._note("publish", dict(event), ack)
        number = len([name for name, _ in self.calls if name == "publish"])
        on_done(self.outcome(number))
        return EventId(OWN.id, 1, number)

    def publish_many(
        self,
        schema: str,
        events: Sequence[Mapping[str, Any]],
        told: Callable[[int, Published | Exception | None], None],
        ack: AckWord | None = None,
    ) -> int:
        """One by one, as long as there is room."""
        for index, event in enumerate(events):
            if schema != "stocks":
                return index
            try:
                self.publish(schema, event, partial(told, index), ack)
            except QueueFull:
                return index
            except NotDone as error:
                told(index, error)
        return len(events)

    def when_publishable(
        self, schema: str, event: Mapping[str, Any], on_done: Callable[[bool | Exception], None]
    ) -> None:
        """At once, for a schema that there is."""
        self.rooms += 1
        on_done(True if schema == "stocks" else NotDone("unknown", f"there is no schema {schema}"))

    def subscribe(
        self,
        request: SubscriptionRequest,
        on_done: Callable[[SubscriptionView | Exception], None],
        owner: str = "",
        *,
        is_bounded: bool = False,
    ) -> SubscriptionView:
        """Always the same subscription."""
        self._note("subscribe", request)
        on_done(self.view)
        return self.view

    def charge(self, owner: str, filter: object) -> None:
        """Nothing costs anything."""

    def continued(self, request: SubscriptionRequest, epoch: str) -> str | None:
        """The one subscription, for who knows its stream."""
        self._note("continued", epoch)
        return self.view.id if epoch == self.feed.epoch else None

    def views(self) -> list[SubscriptionView]:
        """Two: one covers the other."""
        return [self.view, self.view.model_copy(update={"id": "0b", "state": "covered", "covered_by": "0a"})]

    def view_of(self, id: str) -> SubscriptionView:
        """The one subscription."""
        return self.view

    def change(self, id: str, filter: object, on_done: Callable[[SubscriptionView | Exception], None]) -> None:
        """Done."""
        self._note("change", id, filter)
        on_done(self.view.model_copy(update={"filter": str(filter)}))

    def end(self, id: str) -> SubscriptionView:
        """Done."""
        self._note("end", id)
        return self.view.model_copy(update={"state": "ending"})

    def reading(self, id: str) -> tuple[SubscriptionView, Feed[ReceivedEvent]]:
        """The one feed."""
        self._note("reading", id)
        return self.view, self.feed

    def explain(
        self,
        event: str,
        subscriber: str,
        on_done: Callable[[dict[str, Any] | Exception], None],
        *,
        shows_filters: bool = True,
    ) -> None:
        """The verdict that the test has set."""
        self._note("explain", event, subscriber)
        on_done(self.verdict)

    def tree(self, schema: str, attribute: str, on_done: Callable[[TreeView | Exception], None]) -> None:
        """A tree of three cells."""
        self._note("tree", schema, attribute)
        on_done(TREE)
