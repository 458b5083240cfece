"""HTTP routes of publish/subscribe, below ``/v1/pubsub``; docs/protocols/pubsub.md has examples of each."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection

from peerd.daemon.http.answers import ANSWER_S_MAX, answer_of, http_error
from peerd.daemon.http.asker import Asker, asker_of
from peerd.daemon.http.ingest import LINES_BODY, LineRefused, ingest
from peerd.daemon.http.streaming import Source, Wish, add_feed, json_line, wish
from peerd.front import needs_scope
from peerd.lib.feed import Policy, Position
from peerd.models.admin import PROBLEM_TYPE, STREAM_TYPE
from protocols.pubsub.models import (
    AckWord,
    Declared,
    FilterText,
    GroupName,
    PolicyWord,
    Published,
    ReceivedEvent,
    SchemaEnded,
    SchemaName,
    SchemaSummaries,
    SubscriptionChange,
    SubscriptionRequest,
    SubscriptionView,
    SubscriptionViews,
    TreeView,
)
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

    @routes.delete("/schemas/{name}")
    async def end_schema(request: Request, name: SchemaName) -> SchemaEnded:
        """End a schema that this daemon's node has made. For operators: whoever subscribes or publishes loses it."""
        if not asker_of(request).is_operator:
            raise HTTPException(HTTPStatus.FORBIDDEN, f"operators of this daemon end the schema {name}")
        return await answer_of(lambda done: service.end_schema(name, done))


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
        await _until_publishable(service, schema, event)
        return await answer_of(lambda done: service.publish(schema, event, done, ack))


async def _until_publishable(service: PubSubService, schema: str, event: dict[str, Any]) -> None:
    def ask(done: Callable[[bool | Exception], None]) -> None:
        service.when_publishable(schema, event, done)

    await answer_of(ask)


async def _publish_lines(request: Request, service: PubSubService, schema: str, ack: AckWord | None) -> Response:
    """Publish each line as soon as there is room. The answer waits until every event has its outcome."""
    lines = _Lines()

    async def accept(event: dict[str, Any]) -> None:
        await _until_publishable(service, schema, event)
        try:
            lines.begin(lambda done: service.publish(schema, event, done, ack))
        except NotDone as error:
            raise LineRefused(str(error)) from error

    answer = await ingest(request, dict[str, Any], accept)
    if await lines.finished():
        return answer
    told = json.loads(bytes(answer.body))
    detail = f"{lines.failed} of {lines.begun} events have no certain outcome: {lines.why}"
    status = HTTPStatus.SERVICE_UNAVAILABLE
    fields = {"type": "about:blank", "title": status.phrase, "status": int(status)}
    body = {**told, **fields, "detail": detail, "is_complete": False}
    return JSONResponse(body, status, media_type=PROBLEM_TYPE)


class _Lines:
    """Events of one request that are under way."""

    def __init__(self) -> None:
        self.begun = self.over = self.failed = 0
        self.why = ""
        self._changed = asyncio.Event()

    def begin(self, publish: Callable[[Callable[[Published | Exception], None]], object]) -> None:
        publish(self._done)
        self.begun += 1

    def _done(self, answer: Published | Exception) -> None:
        self.over += 1
        if isinstance(answer, Exception) or answer.outcome == "unknown":
            self.failed += 1
            self.why = str(answer) if isinstance(answer, Exception) else answer.detail
        self._changed.set()

    async def finished(self) -> bool:
        """Wait for all of them; whether each has the outcome that was asked for."""
        while self.over < self.begun:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), ANSWER_S_MAX)
            except TimeoutError:
                self.failed, self.why = self.failed + self.begun - self.over, "they have not ended in time"
                break
        return not self.failed


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


def _charge(service: PubSubService, asker: Asker, filter: object) -> None:
    """Charge a client for a filter before it is read. Raises ``HTTPException``."""
    try:
        service.charge(asker.owner, filter)
    except NotDone as error:
        raise http_error(error) from error


def _check_own(view: SubscriptionView, asker: Asker) -> None:
    """Raise ``HTTPException`` where this client may not read, change and end a subscription."""
    asker.check_own(f"the subscription {view.name or view.id}", view.owner, is_kept=bool(view.name))


def _own(service: PubSubService, id: str, asker: Asker) -> SubscriptionView:
    """Return a subscription of this client's. Raises ``HTTPException``."""
    try:
        view = service.subscription_held(id)
    except NotDone as error:
        raise http_error(error) from error
    _check_own(view, asker)
    return view


def _subscribe(
    service: PubSubService, asked: SubscriptionRequest, asker: Asker
) -> Callable[[Callable[[SubscriptionView | Exception], None]], object]:
    """Return what asks the service for a subscription of this client's. Raises ``HTTPException``."""
    if asked.name:
        asker.check_write("a durable subscription", "pubsub")
    _charge(service, asker, asked.filter)
    owner = asker.owner
    if asker.is_operator:  # who may resume anybody's
        owner = next(
            (view.owner for view in service.subscriptions_held() if view.name and view.name == asked.name), owner
        )
    return lambda done: service.subscribe(asked, done, owner, is_bounded=not asker.is_operator)


def _source(service: PubSubService, id: str, asker: Asker) -> Source[ReceivedEvent]:
    try:
        view, feed = service.reading(id)
    except NotDone as error:
        raise http_error(error) from error
    _check_own(view, asker)
    return Source(feed, json_line, policy=Policy(view.policy), begin="start")


def _continued(service: PubSubService, asked: SubscriptionRequest, epoch: str) -> str | None:
    try:
        return service.continued(asked, epoch)
    except NotDone as error:
        raise http_error(error) from error


def _add_subscriptions(routes: APIRouter, service: PubSubService) -> None:
    @routes.get("/subscriptions")
    async def subscriptions(request: Request) -> SubscriptionViews:
        """The client's own subscriptions; for operators those of all clients of this daemon."""
        asker, held = asker_of(request), service.subscriptions_held()
        if not asker.is_operator:
            held = [view for view in held if view.owner and view.owner == asker.owner]
        return SubscriptionViews(subscriptions=held)

    @routes.post("/subscriptions", openapi_extra=needs_scope("read"), status_code=HTTPStatus.CREATED)
    async def subscribe(request: Request, body: SubscriptionRequest) -> SubscriptionView:
        """Subscribe; answers when every event that is published from then on will come.

        One with a name stays, and needs a token with the scope ``pubsub:write``, or a unix socket.
        """
        return await answer_of(_subscribe(service, body, asker_of(request)))

    @routes.patch("/subscriptions/{id}", openapi_extra=needs_scope("read"))
    async def change(request: Request, id: str, body: SubscriptionChange) -> SubscriptionView:
        """Give a subscription another filter, without a gap and without doubles. Needs the scope ``pubsub:write``."""
        asker_of(request).check_write("another filter for a subscription", "pubsub")
        _own(service, id, asker_of(request))
        _charge(service, asker_of(request), body.filter)
        return await answer_of(lambda done: service.change(id, body.filter, done))

    @routes.delete("/subscriptions/{id}", openapi_extra=needs_scope("read"))
    async def end(request: Request, id: str) -> SubscriptionView:
        """End a subscription; one with a name needs the scope ``pubsub:write``."""
        view = _own(service, id, asker_of(request))
        if view.name:
            asker_of(request).check_write("to end a durable subscription", "pubsub")
        try:
            return service.end(id)
        except NotDone as error:
            raise http_error(error) from error

    def held(request: HTTPConnection, id: str) -> Source[ReceivedEvent]:
        """The events of a subscription: those that are held, then what comes."""
        return _source(service, id, asker_of(request))

    add_feed(routes, "/subscriptions/{id}/events", held)

    async def subscribed(
        request: HTTPConnection,
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
            return _source(service, known, asker_of(request))
        made = await answer_of(_subscribe(service, asked, asker_of(request)))
        return _source(service, made.id, asker_of(request))

    add_feed(routes, "/{schema}/events", subscribed)


# Questions


def _add_questions(routes: APIRouter, service: PubSubService) -> None:
    @routes.get("/explain/{event}")
    async def explain(request: Request, event: str, subscriber: str = "") -> dict[str, Any]:
        """Why an event did or did not arrive at a node (its id; default: this one). Filters are for operators."""
        shows = asker_of(request).is_operator
        return await answer_of(lambda done: service.explain(event, subscriber, done, shows_filters=shows))

    @routes.get("/{schema}/tree")
    async def tree(schema: SchemaName, attribute: str = "") -> TreeView:
        """The tree of an attribute; without one, that of the first; ``*``: subscriptions that name no range."""
        return await answer_of(lambda done: service.tree(schema, attribute, done))
