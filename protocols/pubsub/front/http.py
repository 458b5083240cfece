"""HTTP routes of publish/subscribe, below ``/v1/pubsub``; docs/protocols/pubsub.md has examples of each."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from peerd.daemon.http.answers import ANSWER_S_MAX, answer_of, http_error
from peerd.daemon.http.ingest import LINES_BODY, LineFailed, LineFate, LineRefused, ingest
from peerd.daemon.http.streaming import Source, Wish, add_feed, json_line, wish
from peerd.errors import Unavailable
from peerd.front import needs_scope
from peerd.lib.feed import Policy, Position
from peerd.models.admin import STREAM_TYPE
from protocols.pubsub.models import (
    AckWord,
    Declared,
    FilterText,
    GroupName,
    PolicyWord,
    Published,
    ReceivedEvent,
    SchemaName,
    SchemaSummaries,
    SubscriptionChange,
    SubscriptionRequest,
    SubscriptionView,
    SubscriptionViews,
    TreeView,
)
from protocols.pubsub.outcomes import QueueFull
from protocols.pubsub.service import NotDone

if TYPE_CHECKING:
    from protocols.pubsub.service import PubSubService

JSON_TYPE: Final = "application/json"
CLOUD_EVENT_TYPE: Final = "application/cloudevents+json"
CLOUD_REQUIRED: Final = ("specversion", "id", "source", "type")
CLOUD_BATCH_TYPE: Final = "application/cloudevents-batch+json"
CLOUD_HEADER: Final = "ce-"
EVENT_BYTES_MAX: Final = 64 * 1024


def router(service: PubSubService) -> APIRouter:
    """The routes; ``service`` is the running plugin of the daemon."""
    routes = APIRouter(prefix="/pubsub")
    _add_schemas(routes, service)
    _add_events(routes, service)
    _add_subscriptions(routes, service)
    _add_questions(routes, service)
    return routes


def _add_schemas(routes: APIRouter, service: PubSubService) -> None:
    @routes.get("/schemas")
    async def schemas() -> SchemaSummaries:
        """The schemas that this daemon knows."""
        return SchemaSummaries(schemas=service.schemas_known())

    @routes.get("/schemas/{name}")
    async def schema(name: SchemaName) -> dict[str, Any]:
        """A schema as it was declared, looked up on the ring."""
        return await answer_of(lambda done: service.schema_document(name, done))

    @routes.put("/schemas/{name}")
    async def declare(name: SchemaName, document: dict[str, Any], if_version: int | None = None) -> Declared:
        """Declare a schema, or a version that only adds attributes. ``if_version``: only over that version; 0: new."""
        if document.setdefault("name", name) != name:
            detail = f"the document's name is {document['name']!r:.80}, and the path's {name!r}"
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        return await answer_of(lambda done: service.declare(document, done, if_version))


# Events


def _add_events(routes: APIRouter, service: PubSubService) -> None:
    @routes.post("/{schema}/events", openapi_extra=_event_bodies(), response_model=None)
    async def publish(request: Request, schema: SchemaName, ack: AckWord | None = None) -> Published | Response:
        """Publish an event, a CloudEvent (structured or binary), or many events as JSON lines."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == STREAM_TYPE:
            return await _publish_lines(request, service, schema, ack)
        if kind == CLOUD_BATCH_TYPE:
            detail = "CloudEvents are taken one by one, not in batches; many events at once can be JSON lines"
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        event, context = _event_of(request, kind, await request.body())
        if context:
            event = await _with_context(service, schema, event, context)
        return await _publish_one(service, schema, event, ack)


async def _publish_one(service: PubSubService, schema: str, event: dict[str, Any], ack: AckWord | None) -> Published:
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            answer = await _begin(service, schema, event, ack)
    except TimeoutError as error:
        raise Unavailable("the ring takes no more events just now; this one was not published, try again") from error
    except NotDone as error:
        raise http_error(error) from error
    outcome = await answer
    if isinstance(outcome, NotDone):
        raise http_error(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _begin(
    service: PubSubService, schema: str, event: dict[str, Any], ack: AckWord | None
) -> asyncio.Future[Published | Exception]:
    """Publish an event as soon as there is room, however long that takes; what is returned is done at its end.

    Raises `NotDone`, `Unavailable` and ``HTTPException``.
    """
    answer: asyncio.Future[Published | Exception] = asyncio.get_running_loop().create_future()

    def ask(done: Callable[[bool | Exception], None]) -> None:
        service.when_publishable(schema, event, done)

    while True:
        await answer_of(ask, None)
        try:
            service.publish(schema, event, answer.set_result, ack)
        except QueueFull:  # others were told of the same room, and were sooner
            continue
        return answer


async def _publish_lines(request: Request, service: PubSubService, schema: str, ack: AckWord | None) -> Response:
    """Publish each line as soon as there is room, and read no faster. The answer waits until every event has its
    outcome, however long the events before it take."""

    async def accept(event: dict[str, Any]) -> LineFate:
        fate: LineFate = asyncio.get_running_loop().create_future()
        try:
            answer = await _begin(service, schema, event, ack)
        except NotDone as error:
            raise LineRefused(str(error)) from error
        answer.add_done_callback(lambda done: fate.set_result(_failure(done.result())))
        return fate

    return await ingest(request, dict[str, Any], accept)


def _failure(answer: Published | Exception) -> LineFailed | None:
    if isinstance(answer, Exception):
        return LineFailed(str(answer), "refused" if isinstance(answer, NotDone) else "failed")
    return LineFailed(answer.detail, "unknown") if answer.outcome == "unknown" else None


def _event_bodies() -> dict[str, Any]:
    content = {"application/json": {}, CLOUD_EVENT_TYPE: {}, **LINES_BODY["requestBody"]["content"]}
    return {"requestBody": {"content": content, "required": True}}


def _event_of(request: Request, kind: str, body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The event that a request carries, and the context attributes if it is a CloudEvent. Raises ``HTTPException``."""
    if len(body) > EVENT_BYTES_MAX:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an event has at most {EVENT_BYTES_MAX} bytes")
    context = {
        name[len(CLOUD_HEADER) :]: value for name, value in request.headers.items() if name.startswith(CLOUD_HEADER)
    }
    if not context and kind != CLOUD_EVENT_TYPE:
        return _object(body), {}
    event, context = (_of_binary(kind, body), context) if context else _of_structured(_object(body))
    _check_context(context)
    return event, context


def _check_context(context: dict[str, Any]) -> None:
    """Raise ``HTTPException`` for what is no CloudEvent: a plain event sent with the wrong content type, say."""
    missing = [name for name in CLOUD_REQUIRED if not isinstance(context.get(name), str) or not context[name]]
    if missing:
        detail = f"a CloudEvent has {', '.join(CLOUD_REQUIRED)}, which are text; there is no {', '.join(missing)}"
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
    if not context["specversion"].startswith("1."):
        detail = f"CloudEvents of version 1.0 are taken, not {context['specversion']!r:.20}"
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


async def _with_context(
    service: PubSubService, schema: str, event: dict[str, Any], context: dict[str, Any]
) -> dict[str, Any]:
    """Add the context of a CloudEvent: as attributes where the schema has them, else (its ``id``, say) as headers."""

    def ask(done: Callable[[dict[str, Any] | Exception], None]) -> None:
        service.schema_document(schema, done)

    document = await answer_of(ask)
    named = {each["name"] for each in document["attributes"]}
    attributes = {name: value for name, value in context.items() if name in named}
    headers = [
        [CLOUD_HEADER + name, _as_text(value)]
        for name, value in context.items()
        if name not in named and value is not None
    ]
    return attributes | ({"_headers": headers} if headers else {}) | event


def _as_text(value: Any) -> str:
    """A context attribute as the HTTP binding of CloudEvents writes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _object(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"the body is not JSON: {error}"[:200]) from error
    if not isinstance(event, dict):
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "an event is a JSON object")
    return event


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON; leave the attribute out instead")


def _of_structured(cloud: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A CloudEvent in structured mode: the members of ``data`` are attributes, the rest is its context."""
    data = cloud.pop("data", None)
    encoded = cloud.pop("data_base64", None)
    content_type = cloud.pop("datacontenttype", "")
    if isinstance(data, dict):
        return data, cloud
    if encoded is not None:
        return {"_payload_base64": encoded, "_content_type": content_type}, cloud
    if data is not None:
        text = data if isinstance(data, str) else json.dumps(data)
        return {"_payload": text, "_content_type": content_type}, cloud
    return {}, cloud


def _of_binary(kind: str, body: bytes) -> dict[str, Any]:
    """The data of a CloudEvent in binary mode: a JSON object gives attributes, anything else is the payload."""
    if kind == JSON_TYPE and body.lstrip()[:1] == b"{":
        return _object(body)
    return {"_payload_base64": base64.b64encode(body).decode(), "_content_type": kind} if body else {}


# Subscriptions


def _source(service: PubSubService, id: str) -> Source[ReceivedEvent]:
    try:
        view, feed = service.reading(id)
    except NotDone as error:
        raise http_error(error) from error
    return Source(feed, json_line, policy=Policy(view.policy), begin="start")


def _continued(service: PubSubService, asked: SubscriptionRequest, epoch: str) -> str | None:
    try:
        return service.continued(asked, epoch)
    except NotDone as error:
        raise http_error(error) from error


def _add_subscriptions(routes: APIRouter, service: PubSubService) -> None:
    @routes.get("/subscriptions")
    async def subscriptions() -> SubscriptionViews:
        """The subscriptions of this daemon's clients."""
        return SubscriptionViews(subscriptions=service.subscriptions_held())

    @routes.post("/subscriptions", openapi_extra=needs_scope("read"), status_code=HTTPStatus.CREATED)
    async def subscribe(body: SubscriptionRequest) -> SubscriptionView:
        """Subscribe; answers when every event that is published from then on will come."""
        return await answer_of(lambda done: service.subscribe(body, done))

    @routes.patch("/subscriptions/{id}", openapi_extra=needs_scope("read"))
    async def change(id: str, body: SubscriptionChange) -> SubscriptionView:
        """Give a subscription another filter, without a gap and without doubles."""
        return await answer_of(lambda done: service.change(id, body.filter, done))

    @routes.delete("/subscriptions/{id}", openapi_extra=needs_scope("read"))
    async def end(id: str) -> SubscriptionView:
        """End a subscription."""
        try:
            return service.end(id)
        except NotDone as error:
            raise http_error(error) from error

    def held(id: str) -> Source[ReceivedEvent]:
        """The events of a subscription: those that are held, then what comes."""
        return _source(service, id)

    add_feed(routes, "/subscriptions/{id}/events", held)

    async def subscribed(
        schema: SchemaName,
        place: Annotated[Wish, Depends(wish)],
        filter: FilterText = "TRUE",
        group: GroupName = "",
        policy: PolicyWord = "drop_oldest",
        since_s: Annotated[float, Query(ge=0.0, le=86_400.0)] = 0.0,
        retained: bool = False,
    ) -> Source[ReceivedEvent]:
        """Subscribe and follow in one: the events of a schema that match a filter, as long as the client reads.

        Who comes back with `after` or `Last-Event-ID` within a minute goes on where the connection was lost.
        """
        options = {"group": group, "policy": policy, "since_s": since_s, "retained": retained}
        asked = SubscriptionRequest.model_validate({"schema": schema, "filter": filter, **options})
        if isinstance(place.place, Position) and (known := _continued(service, asked, place.place.epoch)):
            return _source(service, known)

        def ask(done: Callable[[SubscriptionView | Exception], None]) -> None:
            service.subscribe(asked, done)

        return _source(service, (await answer_of(ask)).id)

    add_feed(routes, "/{schema}/events", subscribed)


# Questions


def _add_questions(routes: APIRouter, service: PubSubService) -> None:
    @routes.get("/explain/{event}")
    async def explain(event: str, subscriber: str = "") -> dict[str, Any]:
        """Why an event did or did not arrive at a node (its id; default: this one)."""
        return await answer_of(lambda done: service.explain(event, subscriber, done))

    @routes.get("/{schema}/tree")
    async def tree(schema: SchemaName, attribute: str = "") -> TreeView:
        """The tree of an attribute; without one, that of the first; ``*``: subscriptions that name no range."""
        return await answer_of(lambda done: service.tree(schema, attribute, done))
