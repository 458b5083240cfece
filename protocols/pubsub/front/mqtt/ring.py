"""What the gateway asks the daemon, through peerd's own client."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from peerd.client import Client, DaemonBusy, RequestRefused
from peerd.client.streams import Item, StreamEntry
from peerd.errors import PeerdError, Unavailable
from peerd.limits import MIB
from protocols.pubsub.front.client import PATH, PubSubClient
from protocols.pubsub.front.mqtt.mapping import EventMap
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, PacketOutcome, Reason
from protocols.pubsub.front.mqtt.session import HeldSubscription, Session
from protocols.pubsub.front.mqtt.topics import TopicError, TopicMap, shared
from protocols.pubsub.messages import FILTER_BYTES_MAX
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest

DURABLE_BYTES: Final = 4 * MIB
"""What a durable subscription keeps for a client that is away, so that the daemon has room for many of them."""
Notice = Callable[[str], None]
"""A function that says something to the operator."""


class RingAccess:
    """Events of one schema. Methods raise `Unavailable` for what may work later."""

    def __init__(self, client: Client, schema: str, topics: TopicMap, events: EventMap, notice: Notice) -> None:
        self._client, self._schema, self._notice = client, schema, notice
        self._topics, self._events = topics, events
        self._pubsub = PubSubClient(client)

    async def publish(self, message: ApplicationMessage, sender: str = "") -> PacketOutcome:
        """Publish a message. One that can never be published is told: MQTT 3.1.1 cannot tell its sender."""
        try:
            event = self._events.event_of(message, sender)
            answer = await self._pubsub.publish(self._schema, event, ack=None if message.qos else "received")
        except TopicError as error:
            self._notice(f"a message was refused: {error}")
            return PacketOutcome(Reason.TopicNameInvalid, str(error))
        except DaemonBusy:
            raise
        except RequestRefused as error:
            if error.problem.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise Unavailable(str(error)) from error
            self._notice(f"a message to {message.topic!r:.80} was refused: {error}")
            return PacketOutcome(Reason.PayloadFormatInvalid, str(error))
        if answer.outcome == "unknown":
            raise Unavailable(f"what became of a message is not known: {answer.detail}")
        return PacketOutcome()

    async def open(self, held: HeldSubscription) -> None:
        """Subscribe; from then on everything comes. Raises `TopicError`, and `RequestRefused`."""
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
        path = f"{PATH}/subscriptions/{quote(held.id, safe='')}/events"
        async for entry in self._client.follow(path, after=held.position):
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
