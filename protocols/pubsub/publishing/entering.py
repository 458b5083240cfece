"""Clients' events on their way into the plugin: read by their schema, and published, one or many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from peerd.api import Host
from peerd.errors import Unavailable
from protocols.pubsub.models import AckWord, Published
from protocols.pubsub.names import EventId
from protocols.pubsub.publishing.event import draft_from_json
from protocols.pubsub.publishing.once import OnceWindow
from protocols.pubsub.publishing.outcomes import ACKNOWLEDGED, OnResult, PublishResult, PublishStatus
from protocols.pubsub.publishing.publisher import Publishing
from protocols.pubsub.schema.book import SchemaBook
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.service import NotDone


class Entering:
    """Takes the events of clients. What a method may raise, `NotDone` and `Unavailable`, its callback may get later."""

    def __init__(self, host: Host, schemas: SchemaBook, publishing: Publishing) -> None:
        self._host, self._schemas, self._publishing, self.once = host, schemas, publishing, OnceWindow()

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
        begin = partial(self._publish, schema, event, ack)
        return self.once.publish(f"{schema}\0{once}", self._host.now(), on_done, begin) if once else begin(on_done)

    def _publish(
        self,
        schema: str,
        event: Mapping[str, Any],
        ack: AckWord | None,
        on_done: Callable[[Published | Exception], None],
    ) -> EventId:
        known = self._schemas.get(schema)
        if known is None:
            self._schemas.fetch(schema, lambda found, why: None)
            raise Unavailable(f"the schema {schema!r:.80} is being looked up; try again in a moment")
        found = self._enqueue(known, event, ack, lambda outcome: on_done(_published(outcome)))
        self._publishing.set_out()
        return found

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
        known = self._schemas.get(schema)

        def done(index: int, outcome: PublishResult) -> None:
            told(index, None if outcome.status in ACKNOWLEDGED else _published(outcome))

        taken = 0
        for index, event in enumerate(events):
            if known is None or not self._publishing.may_publish():
                break
            try:
                self._enqueue(known, event, ack, partial(done, index))
            except NotDone as error:
                if not known.has_all(event):
                    break
                told(index, error)
            taken += 1
        self._publishing.set_out()
        return taken

    def _enqueue(
        self, schema: EventSchema, event: Mapping[str, Any], ack: AckWord | None, on_result: OnResult
    ) -> EventId:
        try:
            return self._publishing.enqueue(schema, draft_from_json(schema, event), ack, on_result)
        except ValueError as error:
            raise NotDone("invalid", str(error)) from error

    def when_publishable(
        self, schema: str, event: Mapping[str, Any], on_done: Callable[[bool | Exception], None]
    ) -> None:
        """Wait until this node knows the schema, in the version that has the event's attributes if there is one, and
        has room for another event: then `publish` takes it at once."""

        def found(known: EventSchema | None, why: str) -> None:
            if known is None:
                on_done(NotDone("unknown", why))
            elif self._publishing.may_publish():
                on_done(True)
            else:
                try:
                    self._publishing.when_room(lambda: on_done(True))
                except Unavailable as error:
                    on_done(error)

        known = self._schemas.get(schema)
        if known is None or known.has_all(event):
            self._schemas.fetch(schema, found)
        else:
            self._schemas.refresh(schema, found)


def _published(outcome: PublishResult) -> Published | Exception:
    if outcome.status is PublishStatus.FAILED:
        return NotDone("invalid", outcome.reason) if outcome.tries else Unavailable(outcome.reason)
    return Published(
        event=str(outcome.event),
        outcome=outcome.status.value,
        leaves=outcome.leaves,
        matched=outcome.matched,
        duration_s=round(outcome.duration_s, 6),
        detail=outcome.reason,
    )
