"""What the gateway asks the daemon, through peerd's own client."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

from pydantic import ValidationError

from peerd.client import Client, RequestRefused
from peerd.client.streams import Item, StreamEntry
from peerd.errors import PeerdError, Unavailable
from peerd.limits import MIB
from protocols.pubsub.front import routes
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.front.mqtt.counts import PREFIX, Counts, check
from protocols.pubsub.front.mqtt.mapping import EventMap, PayloadError
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, PacketOutcome, Reason
from protocols.pubsub.front.mqtt.session import HeldSubscription, Session
from protocols.pubsub.front.mqtt.topics import TopicError, TopicMap, shared
from protocols.pubsub.messages import FILTER_BYTES_MAX
from protocols.pubsub.models import AckWord, EventOutcome, ReceivedEvent, SubscriptionRequest

DURABLE_BYTES: Final = 4 * MIB
"""What a durable subscription keeps for a client that is away, so that the daemon has room for many of them."""
ONE_IS_WRONG: Final = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
"""What the daemon says of a whole request because of one of the messages in it."""
Notice = Callable[[str], None]
"""A function that says something to the operator."""


class RingAccess:
    """Events of one schema. Methods raise `Unavailable` for what may work later."""

    def __init__(
        self, client: Client, schema: str, topics: TopicMap, events: EventMap, notice: Notice, counts: Counts
    ) -> None:
        self._client, self._schema, self._notice = client, schema, notice
        self._topics, self._events = topics, events
        self._pubsub = PubSubClient(client)
        self.counts = counts

    def shown(self, token: str) -> RingAccess:
        """The same for a user whose token the daemon is to be shown."""
        client = Client(self._client.address, token=token)
        return RingAccess(client, self._schema, self._topics, self._events, self._notice, self.counts)

    async def check(self) -> None:
        """Ask the daemon whether it takes this client's requests. Raises `RequestRefused` and `Unavailable`."""
        await self._pubsub.schemas()

    async def close(self) -> None:
        """Close the connections to the daemon."""
        await self._client.close()

    async def publish(
        self, messages: Sequence[ApplicationMessage], sender: str = ""
    ) -> list[PacketOutcome | Unavailable]:
        """Publish messages of one quality of service in one request; what became of each.

        One that can never be published is told to the operator as well.
        """
        found: list[PacketOutcome | Unavailable] = [PacketOutcome()] * len(messages)
        events: dict[int, dict[str, Any]] = {}
        for at, message in enumerate(messages):
            try:
                events[at] = self._events.event_of(message, sender)
            except TopicError as error:
                reason = Reason.PayloadFormatInvalid if isinstance(error, PayloadError) else Reason.TopicNameInvalid
                found[at] = self._refused(reason, message, str(error))
        if not events:
            return found
        try:
            ack: AckWord | None = None if messages[0].qos else "received"
            outcomes = await self._pubsub.publish_batch(self._schema, list(events.values()), ack=ack)
        except RequestRefused as error:
            if error.problem.status in ONE_IS_WRONG and len(events) > 1:  # then nothing of it was published
                return [(await self.publish([message], sender))[0] for message in messages]
            if isinstance(error, Unavailable) or error.problem.status == HTTPStatus.TOO_MANY_REQUESTS:
                outcomes = [EventOutcome(outcome="unknown", detail=str(error)) for _ in events]
            else:
                outcomes = [EventOutcome(outcome="refused", detail=str(error)) for _ in events]
        for at, outcome in zip(events, outcomes, strict=False):
            if outcome.outcome == "unknown":
                found[at] = Unavailable(f"what became of a message is not known: {outcome.detail}")
            elif outcome.outcome == "refused":
                found[at] = self._refused(Reason.PayloadFormatInvalid, messages[at], outcome.detail)
            else:
                self.counts.published += 1
        return found

    def _refused(self, reason: Reason, message: ApplicationMessage, why: str) -> PacketOutcome:
        self.counts.refused += 1
        self._notice(f"a message to {message.topic!r:.80} was refused: {why}")
        return PacketOutcome(reason, why)

    async def open(self, held: HeldSubscription) -> None:
        """Subscribe; from then on everything comes. Raises `TopicError`, and `RequestRefused`."""
        if held.topic_filter.startswith(PREFIX):
            check(held.topic_filter)
            return
        group, topic_filter = shared(held.topic_filter)
        wanted: dict[str, Any] = {
            "schema": self._schema,
            "filter": self._topics.filter_of(topic_filter),
            "name": held.name,
        }
        try:
            retained = held.wants_retained and not group
            wanted |= {"group": group, "retained": retained, "bytes_max": DURABLE_BYTES if held.name else None}
            request = SubscriptionRequest.model_validate(wanted)
        except ValidationError as error:
            raise TopicError(f"the filter is too long: limit {FILTER_BYTES_MAX} bytes") from error
        held.id = (await self._pubsub.install(request)).id

    async def end(self, held: HeldSubscription) -> None:
        """End a subscription, if the daemon can be asked and has it."""
        if not (held.name or held.id):
            return
        try:
            await self._pubsub.end(held.name or held.id)
        except PeerdError as error:
            self._notice(f"a subscription could not be ended: {error}")

    async def messages(
        self, session: Session, held: HeldSubscription
    ) -> AsyncGenerator[tuple[str, ApplicationMessage], None]:
        """The messages of a subscription of a session, with their ids in the stream."""
        if held.topic_filter.startswith(PREFIX):
            async with aclosing(self.counts.messages(session, held.topic_filter)) as numbers:
                async for number in numbers:
                    yield "", number
            return
        async for entry in self._client.follow(routes.HELD.at(held.id), after=held.position):
            if not isinstance(entry, Item):
                self._tell(held, entry)
                continue
            message = self._events.message_of(ReceivedEvent.model_validate(entry.data), session.wish(held), time.time())
            if message is None:
                held.done(entry.id)
            else:
                yield entry.id, message

    def _tell(self, held: HeldSubscription, entry: StreamEntry) -> None:
        if entry.type != "end":
            count = getattr(entry, "count", None)
            number = "some" if count is None else str(count)
            self._notice(f"a client was too slow, or away: {number} messages to {held.topic_filter!r:.80} are missing")
