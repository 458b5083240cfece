"""Publish/subscribe in the Python client: ``client.pubsub``."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from peerd.client import Client
from peerd.client.patience import read_on
from peerd.client.streams import StreamEntry
from protocols.pubsub import models
from protocols.pubsub.front import routes

if TYPE_CHECKING:
    from peerd.client.streams import Backoff
    from peerd.models.streams import IngestAnswer

PUBLISH_S_MAX: Final = 600.0
"""Where the ring is slow an event waits for its turn. The daemon says what has become of it, whenever that is."""


class PubSubClient:
    """Schemas, events and subscriptions, asked of the daemon that ``client`` talks to.

    Every method raises `RequestRefused` for what the daemon refuses, `DaemonBusy` and `DaemonUnreachable`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def declare(self, document: Mapping[str, Any], if_version: int | None = None) -> models.Declared:
        """Declare a schema, or a version of it that only adds attributes."""
        name, body = str(document.get("name", "")), models.Whatever(**document)
        return await self._client.call(routes.DECLARE, name, body=body, if_version=if_version)

    async def schemas(self) -> list[models.SchemaSummary]:
        """The schemas that the daemon knows."""
        return (await self._client.call(routes.SCHEMAS)).schemas

    async def schema(self, name: str) -> dict[str, Any]:
        """A schema as it was declared, looked up on the ring."""
        return await self._client.call(routes.SCHEMA, name)

    async def end_schema(self, name: str) -> models.SchemaEnded:
        """End a schema that the daemon's node has made; for its operators."""
        return await self._client.call(routes.END_SCHEMA, name)

    async def publish(
        self, schema: str, event: Mapping[str, Any], *, ack: models.AckWord | None = None
    ) -> models.Published:
        """Publish an event; waits for its outcome. ``_payload`` and ``_content_type`` are no attributes."""
        body = models.Whatever(**event)
        return await self._client.call(routes.PUBLISH, schema, body=body, silence_s=PUBLISH_S_MAX, ack=ack)

    async def publish_batch(
        self, schema: str, events: Sequence[Mapping[str, Any]], *, ack: models.AckWord | None = None
    ) -> list[models.EventOutcome]:
        """Publish some events in one request; returns what became of each of them. Nothing is raised for one alone."""
        body = json.dumps(list(events)).encode()
        told = await self._client.call(
            routes.PUBLISH_BATCH, schema, body=body, silence_s=PUBLISH_S_MAX, tells_all=True, ack=ack
        )
        return told.outcomes

    async def publish_many(
        self,
        schema: str,
        events: AsyncIterable[Mapping[str, Any]] | Iterable[Mapping[str, Any]],
        *,
        ack: models.AckWord | None = None,
    ) -> IngestAnswer:
        """Publish any number of events, as fast as the ring takes them.

        Raises `IngestRefused` where some were refused, or have no certain outcome: ``answer.errors`` names each of
        these, and whether it may be sent again.
        """
        return await self._client.send_lines(routes.PUBLISH.at(schema, ack=ack), events)

    async def subscribe(
        self,
        schema: str,
        filter: str | Mapping[str, Any] | list[Any] = "TRUE",
        *,
        name: str = "",
        group: str = "",
        policy: models.PolicyWord = "drop_oldest",
        since_s: float = 0.0,
        retained: bool = False,
        keep_s: int | None = None,
        keep_bytes: int | None = None,
        after: str | None = None,
        backoff: Backoff | None = None,
        on_subscribed: Callable[[models.SubscriptionView], None] = lambda view: None,
    ) -> AsyncGenerator[models.ReceivedEvent | StreamEntry, None]:
        """Receive matching events; reconnects by itself. ``on_subscribed`` is told when they come, from now on.

        Yields a `ReceivedEvent` for each, and what `peerd.client.Client.follow` yields where events are missing. With a
        ``name`` the subscription is durable: it goes on without readers, ``keep_s`` and ``keep_bytes`` say for how long
        and how much is kept for it (also while the daemon is away), and ``after`` resumes. Without one it ends
        when this generator is closed. A daemon that was restarted knows nothing of one without a name: it is made anew,
        and a `Gap` says that events may be missing.
        """
        wanted = {"schema": schema, "filter": filter, "name": name, "group": group, "policy": policy}
        kept = {name: value for name, value in (("keep_s", keep_s), ("keep_bytes", keep_bytes)) if value is not None}
        # The daemon says what is wrong with it, in words.
        asked = models.Whatever(**wanted, **kept, since_s=since_s, retained=retained)
        view = await self.install(asked)
        on_subscribed(view)

        async def anew() -> None:
            nonlocal view, after
            after = f"{view.id}-0"  # a place in no stream that there is: it begins with a gap
            view = await self.install(models.Whatever(**wanted))

        subscribe_anew, end = (None, None) if name else (anew, lambda: self.end(view.id))
        entries = read_on(lambda: self.read(view.id, after=after, backoff=backoff), subscribe_anew, end, backoff)
        async with aclosing(entries):
            async for entry in entries:
                yield entry

    async def install(self, asked: models.SubscriptionRequest | models.Whatever) -> models.SubscriptionView:
        """Subscribe without reading yet: every event that is published from then on will come to `read`."""
        return await self._client.call(routes.SUBSCRIBE, body=asked)

    async def read(
        self, id: str, *, after: str | None = None, backoff: Backoff | None = None
    ) -> AsyncGenerator[models.ReceivedEvent | StreamEntry, None]:
        """Follow a subscription that exists."""
        from peerd.client.streams import Item

        async with aclosing(self._client.follow(routes.HELD.at(id), after=after, backoff=backoff)) as entries:
            async for entry in entries:
                yield models.ReceivedEvent.model_validate(entry.data) if isinstance(entry, Item) else entry

    async def subscriptions(self) -> list[models.SubscriptionView]:
        """The subscriptions of the daemon's clients."""
        return (await self._client.call(routes.SUBSCRIPTIONS)).subscriptions

    async def change(self, id: str, filter: str | Mapping[str, Any] | list[Any]) -> models.SubscriptionView:
        """Give a subscription another filter, without a gap and without doubles."""
        return await self._client.call(routes.CHANGE, id, body=models.Whatever(filter=filter))

    async def end(self, id: str) -> models.SubscriptionView:
        """End a subscription."""
        return await self._client.call(routes.END, id)

    async def explain(self, event: str, subscriber: str = "") -> dict[str, Any]:
        """Why an event did or did not arrive at a node (its id; default: the daemon's)."""
        return await self._client.call(routes.EXPLAIN, event, subscriber=subscriber)

    async def tree(self, schema: str, attribute: str = "") -> models.TreeView:
        """The tree of an attribute, as the roots of its cells tell."""
        return await self._client.call(routes.TREE, schema, attribute=attribute)
