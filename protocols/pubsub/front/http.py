"""HTTP routes of publish/subscribe, below ``/v1/pubsub``; docs/protocols/pubsub.md has examples of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from starlette.requests import HTTPConnection

from peerd.daemon.http.answers import ANSWER_S_MAX, answer_of, refusals
from peerd.daemon.http.asker import Asker, asker_of
from peerd.daemon.http.direct import direct
from peerd.daemon.http.ingest import LINES_BODY, LineFailed, ToldLine, ingest_many, large_body
from peerd.daemon.http.routes import serve
from peerd.daemon.http.streaming import Source, Wish, add_feed, json_line, wish
from peerd.errors import Unavailable
from peerd.lib.feed import Policy, Position
from peerd.models.admin import JSON_TYPE, STREAM_TYPE
from protocols.pubsub import models
from protocols.pubsub.front import routes
from protocols.pubsub.front.batches import BATCH_EVENTS_MAX, publish_batch
from protocols.pubsub.front.cloud_events import (
    BATCH_TYPE,
    HEADER,
    STRUCTURED_TYPE,
    ClientEvent,
    NotAnEvent,
    read_batch,
    read_event,
)
from protocols.pubsub.publishing.outcomes import QueueFull
from protocols.pubsub.service import NotDone

if TYPE_CHECKING:
    from protocols.pubsub.plugin import PubSub

EVENT_BYTES_MAX: Final = 64 * 1024


def router(service: PubSub) -> APIRouter:
    """The routes; ``service`` is the running plugin of the daemon."""
    router = APIRouter()
    _add_schemas(router, service)
    _add_events(router, service)
    _add_subscriptions(router, service)
    _add_questions(router, service)
    return router


def _add_schemas(router: APIRouter, service: PubSub) -> None:
    @serve(router, routes.SCHEMAS)
    async def schemas() -> models.SchemaSummaries:
        """The schemas that this daemon knows."""
        return models.SchemaSummaries(schemas=service.schemas.known())

    @serve(router, routes.SCHEMA)
    async def schema(name: models.SchemaName) -> dict[str, Any]:
        """A schema as it was declared, looked up on the ring."""
        return await answer_of(lambda done: service.schemas.document(name, done))

    @serve(router, routes.DECLARE)
    async def declare(
        name: models.SchemaName, document: dict[str, Any], if_version: int | None = None
    ) -> models.Declared:
        """Declare a schema, or a version that only adds attributes. ``if_version``: only over that version; 0: new."""
        if document.setdefault("name", name) != name:
            detail = f"the document's name is {document['name']!r:.80}, and the path's {name!r}"
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        return await answer_of(lambda done: service.schemas.declare(document, done, if_version))

    @serve(router, routes.END_SCHEMA)
    async def end_schema(request: Request, name: models.SchemaName) -> models.SchemaEnded:
        """End a schema that this daemon's node has made. For operators: whoever subscribes or publishes loses it."""
        if not asker_of(request).is_operator:
            raise HTTPException(HTTPStatus.FORBIDDEN, f"operators of this daemon end the schema {name}")
        return await answer_of(lambda done: service.schemas.end(name, done))


# Events


def _add_events(router: APIRouter, service: PubSub) -> None:
    @serve(router, routes.PUBLISH, _event_bodies(), response_model=None)
    @direct
    async def publish(
        request: Request, schema: models.SchemaName, ack: models.AckWord | None = None
    ) -> models.Published | Response:
        """Publish an event, a CloudEvent (structured or binary), an array of either, or many events as JSON lines."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == STREAM_TYPE:
            return await _publish_lines(request, service, schema, ack)
        try:
            if (body := await _body_of(request, kind)).lstrip()[:1] == b"[" or kind == BATCH_TYPE:
                batch = read_batch(kind, body, BATCH_EVENTS_MAX)
                return await publish_batch([partial(_begin_one, service, schema, ack, each) for each in batch])
            event = read_event(kind, request.headers, body)
        except NotAnEvent as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        entered = await _entered(service, schema, event)
        with refusals():
            return await _publish_one(service, schema, entered, ack, event.name)


async def _body_of(request: Request, kind: str) -> bytes:
    """The body of an event or of a batch, each with its bound. Raises ``HTTPException``."""
    is_json = kind in (JSON_TYPE, BATCH_TYPE) and not any(name.startswith(HEADER) for name in request.headers)
    body = await large_body(request) if is_json else await request.body()
    is_batch = is_json and body.lstrip()[:1] == b"["
    if len(body) > EVENT_BYTES_MAX and not is_batch:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an event has at most {EVENT_BYTES_MAX} bytes")
    return body


async def _begin_one(
    service: PubSub, schema: str, ack: models.AckWord | None, event: ClientEvent | NotAnEvent
) -> asyncio.Future[models.Published | Exception]:
    """Publish one event of a batch; otherwise as `_begin`."""
    if isinstance(event, NotAnEvent):
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(event))
    return await _begin(service, schema, await _entered(service, schema, event), ack, event.name)


async def _entered(service: PubSub, schema: str, event: ClientEvent) -> dict[str, Any]:
    """The event with the context of a CloudEvent entered, where it has any."""
    if not event.context:
        return event.event

    def ask(done: Callable[[dict[str, Any] | Exception], None]) -> None:
        service.schemas.document(schema, done)

    document = await answer_of(ask)
    return event.entered({each["name"] for each in document["attributes"]})


async def _publish_one(
    service: PubSub, schema: str, event: dict[str, Any], ack: models.AckWord | None, once: str
) -> models.Published:
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            answer = await _begin(service, schema, event, ack, once)
    except TimeoutError as error:
        raise Unavailable("the ring takes no more events just now; this one was not published, try again") from error
    outcome = await answer
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _begin(
    service: PubSub, schema: str, event: dict[str, Any], ack: models.AckWord | None, once: str = ""
) -> asyncio.Future[models.Published | Exception]:
    """Publish an event as soon as there is room, however long that takes; what is returned is done at its end.

    Raises `NotDone`, `Unavailable` and ``HTTPException``.
    """
    answer: asyncio.Future[models.Published | Exception] = asyncio.get_running_loop().create_future()

    def ask(done: Callable[[bool | Exception], None]) -> None:
        service.entering.when_publishable(schema, event, done)

    while True:
        await answer_of(ask, None)
        try:
            service.entering.publish(schema, event, answer.set_result, ack, once)
        except QueueFull:  # others were told of the same room, and were sooner
            continue
        return answer


async def _publish_lines(request: Request, service: PubSub, schema: str, ack: models.AckWord | None) -> Response:
    """Publish lines as soon as there is room, together, and read no faster. The answer waits until every event has its
    outcome, however long the events before it take."""

    async def accept(events: Sequence[dict[str, Any]], told: ToldLine) -> int:
        def done(index: int, answer: models.Published | Exception | None) -> None:
            told(index, _failure(answer))

        if taken := service.entering.publish_many(schema, events, done, ack):
            return taken
        try:
            answer = await _begin(service, schema, events[0], ack)
        except NotDone as error:
            done(0, error)
        else:
            answer.add_done_callback(lambda answer: done(0, answer.result()))
        return 1

    return await ingest_many(request, dict[str, Any], accept)


def _failure(answer: models.Published | Exception | None) -> LineFailed | None:
    if isinstance(answer, Exception):
        return LineFailed(str(answer), "refused" if isinstance(answer, NotDone) else "failed")
    return LineFailed(answer.detail, "unknown") if answer is not None and answer.outcome == "unknown" else None


def _event_bodies() -> dict[str, Any]:
    content = {JSON_TYPE: {}, STRUCTURED_TYPE: {}, BATCH_TYPE: {}, **LINES_BODY["requestBody"]["content"]}
    return {"requestBody": {"content": content, "required": True}}


# Subscriptions


def _charge(service: PubSub, asker: Asker, filter: object) -> None:
    """Charge a client for a filter before it is read. Raises ``HTTPException``."""
    with refusals():
        service.subscriptions.charge(asker.owner, filter)


def _own(service: PubSub, id: str, asker: Asker) -> models.SubscriptionView:
    """Return a subscription of this client's. Raises ``HTTPException``."""
    with refusals():
        view = service.subscriptions.view_of(id)
    asker.check_subscription(view)
    return view


def _subscribe(
    service: PubSub, asked: models.SubscriptionRequest, asker: Asker
) -> Callable[[Callable[[models.SubscriptionView | Exception], None]], object]:
    """Return what asks the service for a subscription of this client's. Raises ``HTTPException``."""
    if asked.name:
        asker.check_write("a durable subscription", "pubsub")
    _charge(service, asker, asked.filter)
    owner = asker.owner_for(asked.name, service.subscriptions.views())
    return lambda done: service.subscriptions.subscribe(asked, done, owner, is_bounded=not asker.is_operator)


def _source(service: PubSub, id: str, asker: Asker) -> Source[models.ReceivedEvent]:
    with refusals():
        view, feed = service.subscriptions.reading(id)
    asker.check_subscription(view)
    return Source(feed, json_line, policy=Policy(view.policy), begin="start")


def _continued(service: PubSub, asked: models.SubscriptionRequest, epoch: str) -> str | None:
    with refusals():
        return service.subscriptions.continued(asked, epoch)


def _add_subscriptions(router: APIRouter, service: PubSub) -> None:
    @serve(router, routes.SUBSCRIPTIONS)
    async def subscriptions(request: Request) -> models.SubscriptionViews:
        """The client's own subscriptions; for operators those of all clients of this daemon."""
        return models.SubscriptionViews(subscriptions=asker_of(request).own(service.subscriptions.views()))

    @serve(router, routes.SUBSCRIBE)
    async def subscribe(request: Request, body: models.SubscriptionRequest) -> models.SubscriptionView:
        """Subscribe; answers when every event that is published from then on will come.

        One with a name stays, and needs a token with the scope ``pubsub:write``, or a unix socket.
        """
        return await answer_of(_subscribe(service, body, asker_of(request)))

    @serve(router, routes.CHANGE)
    async def change(request: Request, id: str, body: models.SubscriptionChange) -> models.SubscriptionView:
        """Give a subscription another filter, without a gap and without doubles. Needs the scope ``pubsub:write``."""
        asker_of(request).check_write("another filter for a subscription", "pubsub")
        _own(service, id, asker_of(request))
        _charge(service, asker_of(request), body.filter)
        return await answer_of(lambda done: service.subscriptions.change(id, body.filter, done))

    @serve(router, routes.END)
    async def end(request: Request, id: str) -> models.SubscriptionView:
        """End a subscription; one with a name needs the scope ``pubsub:write``."""
        view = _own(service, id, asker_of(request))
        if view.name:
            asker_of(request).check_write("to end a durable subscription", "pubsub")
        with refusals():
            return service.subscriptions.end(id)

    def held(request: HTTPConnection, id: str) -> Source[models.ReceivedEvent]:
        """The events of a subscription: those that are held, then what comes."""
        return _source(service, id, asker_of(request))

    add_feed(router, routes.HELD.path, held)

    async def subscribed(
        request: HTTPConnection,
        schema: models.SchemaName,
        place: Annotated[Wish, Depends(wish)],
        filter: models.FilterText = "TRUE",
        group: models.GroupName = "",
        policy: models.PolicyWord = "drop_oldest",
        since_s: Annotated[float, Query(ge=0.0, le=86_400.0)] = 0.0,
        retained: bool = False,
    ) -> Source[models.ReceivedEvent]:
        """Subscribe and follow in one: the events of a schema that match a filter, as long as the client reads.

        Who comes back with `after` or `Last-Event-ID` within a minute goes on where the connection was lost.
        """
        options = {"group": group, "policy": policy, "since_s": since_s, "retained": retained}
        asked = models.SubscriptionRequest.model_validate({"schema": schema, "filter": filter, **options})
        if isinstance(place.place, Position) and (known := _continued(service, asked, place.place.epoch)):
            return _source(service, known, asker_of(request))
        made = await answer_of(_subscribe(service, asked, asker_of(request)))
        return _source(service, made.id, asker_of(request))

    add_feed(router, routes.SUBSCRIBED.path, subscribed)


# Questions


def _add_questions(router: APIRouter, service: PubSub) -> None:
    @serve(router, routes.EXPLAIN)
    async def explain(request: Request, event: str, subscriber: str = "") -> dict[str, Any]:
        """Why an event did or did not arrive at a node (its id; default: this one). Filters are for operators."""
        shows = asker_of(request).is_operator
        return await answer_of(lambda done: service.explainer.explain(event, subscriber, done, shows_filters=shows))

    @serve(router, routes.TREE)
    async def tree(schema: models.SchemaName, attribute: str = "") -> models.TreeView:
        """The tree of an attribute; without one, that of the first; ``*``: subscriptions that name no range."""
        return await answer_of(lambda done: service.trees.tree(schema, attribute, done))
