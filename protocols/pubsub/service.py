"""What the running plugin offers to its clients: the vocabulary between `protocols.pubsub.plugin` and its front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from peerd.errors import ClientRefusal
from peerd.lib.feed import Feed
from protocols.pubsub.models import (
    AckWord,
    Declared,
    Published,
    ReceivedEvent,
    SchemaEnded,
    SchemaSummary,
    SubscriptionRequest,
    SubscriptionView,
    TreeView,
)
from protocols.pubsub.names import EventId


class NotDone(ClientRefusal):
    """Publish/subscribe has not done what a client asked for."""


class PubSubService(Protocol):
    """Callbacks are called once, later. Every method may raise `NotDone` and `Unavailable` at once.

    ``on_done`` gets the answer, or an exception of these two types.
    """

    def declare(
        self,
        document: Mapping[str, Any],
        on_done: Callable[[Declared | Exception], None],
        if_version: int | None = None,
    ) -> None:
        """Put a schema, or a version of it that extends the last one, on the ring."""

    def schemas_known(self) -> list[SchemaSummary]:
        """The schemas that this node knows now, by name."""

    def schema_document(self, name: str, on_done: Callable[[dict[str, Any] | Exception], None]) -> None:
        """A schema as it was declared; it is looked up on the ring."""

    def end_schema(self, name: str, on_done: Callable[[SchemaEnded | Exception], None]) -> None:
        """End a schema that this node has made: everybody forgets it."""

    def publish(
        self,
        schema: str,
        event: Mapping[str, Any],
        on_done: Callable[[Published | Exception], None],
        ack: AckWord | None = None,
        once: str = "",
    ) -> EventId:
        """Publish one event: its attributes, and members that begin with ``_`` (`protocols.pubsub.models.RESERVED`).

        ``once``: its client's own name for it; what comes under the same name is not published again (`OnceWindow`).
        """

    def publish_many(
        self,
        schema: str,
        events: Sequence[Mapping[str, Any]],
        told: Callable[[int, Published | Exception | None], None],
        ack: AckWord | None = None,
    ) -> int:
        """Publish as many of these as there is room for, the first ones, together; returns how many were taken.

        ``told`` hears once of each of them, by its place among ``events``: nothing but that it was acknowledged, or
        else what has become of it. One whose attributes only a later version of the schema may have is not taken: see
        `when_publishable`.
        """

    def when_publishable(
        self, schema: str, event: Mapping[str, Any], on_done: Callable[[bool | Exception], None]
    ) -> None:
        """Wait until this node knows the schema, in the version that has the event's attributes if there is one, and
        has room for another event: then `publish` takes it at once."""

    def subscribe(
        self,
        request: SubscriptionRequest,
        on_done: Callable[[SubscriptionView | Exception], None],
        owner: str = "",
        *,
        is_bounded: bool = False,
    ) -> SubscriptionView:
        """Subscribe. Events may come from now on; ``on_done`` is called when they surely do (``received``).

        ``is_bounded``: the owner may have ``owner_share`` of what there is room for, and no more.
        """

    def charge(self, owner: str, filter: object) -> None:
        """Charge a client for a filter that it is going to ask for, by its length, before anybody reads it."""

    def continued(self, request: SubscriptionRequest, epoch: str) -> str | None:
        """The id of the subscription without a name whose stream has this epoch, if it is what is asked for now."""

    def subscriptions_held(self) -> list[SubscriptionView]:
        """The subscriptions of this node's clients, oldest first."""

    def subscription_held(self, id: str) -> SubscriptionView:
        """One of them, by its id, or by its name if it is durable."""

    def change(self, id: str, filter: object, on_done: Callable[[SubscriptionView | Exception], None]) -> None:
        """Give a subscription another filter."""

    def end(self, id: str) -> SubscriptionView:
        """End a subscription; nothing comes to its readers from now on."""

    def reading(self, id: str) -> tuple[SubscriptionView, Feed[ReceivedEvent]]:
        """A subscription and its feed."""

    def explain(
        self,
        event: str,
        subscriber: str,
        on_done: Callable[[dict[str, Any] | Exception], None],
        *,
        shows_filters: bool = True,
    ) -> None:
        """Why an event did or did not arrive at a node; ``subscriber``: its id, or empty for this node.

        ``shows_filters``: with the filters of whoever subscribed, and what they say about the event's values.
        """

    def tree(self, schema: str, attribute: str, on_done: Callable[[TreeView | Exception], None]) -> None:
        """The tree of an attribute; ``*``: that of subscriptions that name no range."""
