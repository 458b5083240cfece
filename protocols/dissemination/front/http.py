"""HTTP routes of streams, below ``/v1/streams``; docs/streams.md has examples of each."""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import TypeAdapter
from starlette.requests import HTTPConnection

from peerd.daemon.http.answers import answer_of, refusals
from peerd.daemon.http.asker import Asker, asker_of
from peerd.daemon.http.direct import direct
from peerd.daemon.http.ingest import LINES_BODY, LineRefused, ingest, large_body
from peerd.daemon.http.paying import pay
from peerd.daemon.http.routes import serve
from peerd.daemon.http.streaming import Source, Wish, add_feed, json_line, wish
from peerd.errors import ClientRefusal, Unavailable
from peerd.lib.feed import Feed, FeedItem, Place, Position
from peerd.limits import KIB
from peerd.models.admin import JSON_TYPE, STREAM_TYPE
from protocols.dissemination import models
from protocols.dissemination.front import routes
from protocols.dissemination.front.http_documents import add_documents
from protocols.dissemination.loading import load_kind
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import RememberingKind
from protocols.dissemination.service import StreamRefused

if TYPE_CHECKING:
    from protocols.dissemination.plugin import Dissemination

FORM_TYPE: Final = "application/x-www-form-urlencoded"
"""What curl says of a body when its user says nothing. It is passed over: the stream's kind knows what it takes."""
LINE_BYTES_MAX: Final = 2 * ITEM_BYTES_MAX + 4 * KIB
"""A line with an item, in which characters may be escaped, and what stands beside it."""
ITEM_BODIES: Final[dict[str, Any]] = {
    "requestBody": {"content": {"*/*": {}, **LINES_BODY["requestBody"]["content"]}, "required": True}
}

INTEREST_S: Final = 0.001
INTEREST_BYTE_S: Final = 30e-6
"""Seconds of processor for an interest, and for each of its bytes (`python -m tests.fuzz.dearest`)."""

AfterItem = Annotated[
    str | None,
    Query(
        max_length=models.ITEM_ID_LENGTH_MAX, description="Begin after the item with this id; `start`: all remembered."
    ),
]


def router(service: Dissemination) -> APIRouter:
    """The routes; ``service`` is the running plugin of the daemon."""
    router = APIRouter()
    add_documents(router, service.documents)
    _add_streams(router, service)
    _add_items(router, service)
    _add_subscriptions(router, service)
    _add_questions(router, service)
    return router


def _add_streams(router: APIRouter, service: Dissemination) -> None:
    @serve(router, routes.STREAMS)
    async def streams() -> models.StreamViews:
        """The streams that this daemon takes part in."""
        return models.StreamViews(streams=service.questions.streams())

    @serve(router, routes.CREATE)
    async def create(request: Request, body: models.StreamSpec) -> models.StreamView:
        """Create a stream, whose producer this daemon becomes. The same stream once more is fine."""
        owner = asker_of(request).owner
        return await answer_of(lambda done: service.changes.create(body, done, owner))

    @serve(router, routes.FIND)
    async def find(stream: models.StreamName) -> models.StreamView:
        """A stream by its name, wherever it is produced."""
        return await answer_of(lambda done: service.questions.find(stream, done))

    @serve(router, routes.REMOVE)
    async def remove(request: Request, stream: models.StreamName) -> models.StreamView:
        """End a stream that this daemon produces; for who has created it, and for operators."""
        _check_stream(service, stream, asker_of(request), "to end a stream")
        return await answer_of(lambda done: service.changes.remove(stream, done))

    @serve(router, routes.HAND_OVER)
    async def hand_over(request: Request, stream: models.StreamName, body: models.StreamHandOver) -> models.StreamView:
        """Make another node of the tree the producer; it takes as long as that node needs to have what is remembered.

        For who has created the stream here, and for operators. Nothing is lost; publishers wait a moment meanwhile, and
        are told then where the producer is.
        """
        _check_stream(service, stream, asker_of(request), "to hand a stream over")
        return await answer_of(lambda done: service.changes.hand_over(stream, body.to, done), limit_s=None)


def _check_stream(service: Dissemination, stream: str, asker: Asker, what: str) -> None:
    """Raise ``HTTPException`` (403) for who may not change a stream."""
    asker.check_write(what, "dissemination")
    asker.check_own(f"the stream {stream}", service.produced.owner_of(stream), is_kept=True)


# Items


class _JsonLine:
    """Reads a line that is an item itself: any JSON value, which is passed on as it was written."""

    def validate_json(self, line: bytes, /) -> tuple[bytes, str]:
        try:
            json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise LineRefused(f"the line is not JSON: {error}") from error
        return line.strip(), JSON_TYPE


class _WrappedLine:
    """Reads a line that has an item's payload and its content type."""

    def __init__(self) -> None:
        self._line_type = TypeAdapter(models.WrappedItem)

    def validate_json(self, line: bytes, /) -> tuple[bytes, str]:
        wrapped = self._line_type.validate_json(line)
        if (wrapped.payload is None) == (wrapped.payload_base64 is None):
            raise LineRefused("give either payload or payload_base64")
        if wrapped.payload is not None:
            return wrapped.payload.encode(), wrapped.content_type
        try:
            return base64.b64decode(wrapped.payload_base64 or "", validate=True), wrapped.content_type
        except binascii.Error as error:
            raise LineRefused(f"payload_base64: {error}") from error


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _add_items(router: APIRouter, service: Dissemination) -> None:
    @serve(router, routes.PUBLISH, ITEM_BODIES, response_model=None)
    @direct
    async def publish(
        request: Request,
        stream: models.StreamName,
        wrapped: Annotated[bool, Query(description="Lines have payload and content_type, and are no items.")] = False,
    ) -> models.ItemPublished | Response:
        """Publish one item, the body as it is; or many, as JSON lines. They go out at once, unacknowledged.

        Of a durable stream they are on disk when this answers, as far as the disk takes them.
        """
        kind = request.headers.get("content-type", "")[: models.CONTENT_TYPE_LENGTH_MAX].strip()
        if kind.partition(";")[0].strip().lower() != STREAM_TYPE:
            return await _publish_one(service, stream, await large_body(request), "" if kind == FORM_TYPE else kind)

        async def accept(item: tuple[bytes, str]) -> None:
            await _until_publishable(service, stream)
            try:
                _publish(service, stream, *item)
            except ClientRefusal as error:
                raise LineRefused(str(error)) from error

        lines = _WrappedLine() if wrapped else _JsonLine()
        answer = await ingest(request, lines, accept, line_bytes_max=LINE_BYTES_MAX)
        with suppress(HTTPException, Unavailable):  # the stream is over: what was taken has gone out
            await _until_kept(service, stream)
        return answer

    async def subscribed(
        request: HTTPConnection,
        stream: models.StreamName,
        place: Annotated[Wish, Depends(wish)],
        interest: models.InterestTextField = "",
        after_item: AfterItem = None,
    ) -> Source[models.ReceivedItem]:
        """Subscribe and follow in one: the items that meet an interest, as long as the client reads.

        Who comes back soon with `after` or `Last-Event-ID` goes on where the connection was lost.
        """
        if isinstance(place.place, Position) and (known := _of_feed(service, stream, place.place.epoch)):
            return _source(service, known)
        owner = asker_of(request).owner
        asked = models.StreamSubscriptionRequest(stream=stream, interest=interest, after=after_item, owner=owner)
        await _pay_for(request, interest)
        view = await _subscribe(service, asked, asker_of(request))
        return _source(service, view.id)

    add_feed(router, routes.SUBSCRIBED.path, subscribed)


async def _publish_one(service: Dissemination, stream: str, body: bytes, kind: str) -> models.ItemPublished:
    if not body:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is empty; an item is the body as it is")
    await _until_publishable(service, stream)
    with refusals():
        published = _publish(service, stream, body, kind)
    return published.model_copy(update={"is_kept": True}) if await _until_kept(service, stream) else published


def _publish(service: Dissemination, stream: str, payload: bytes, kind: str) -> models.ItemPublished:
    if len(payload) > ITEM_BYTES_MAX:
        what = f"an item has at most {ITEM_BYTES_MAX} bytes, this one {len(payload)}"
        raise StreamRefused("invalid", f"{what}; attach what is larger to an item that describes it")
    return service.publishers.publish(stream, payload, kind)


async def _until_kept(service: Dissemination, stream: str) -> bool:
    """Wait for the disk, if the stream is durable; whether what was published is on it."""

    return await answer_of(partial(service.publishers.when_kept, stream))


async def _until_publishable(service: Dissemination, stream: str) -> None:
    if not service.publishers.is_publishable(stream):  # it mostly is: each line of a request comes by here
        await answer_of(partial(service.publishers.when_publishable, stream))


# Subscriptions


async def _pay_for(request: HTTPConnection, interest: str) -> None:
    """Wait until this client may have an interest read, compiled and compared with the others."""
    await pay(request, INTEREST_S + INTEREST_BYTE_S * len(interest))


async def _subscribe(
    service: Dissemination, asked: models.StreamSubscriptionRequest, asker: Asker
) -> models.StreamSubscriptionView:
    return await answer_of(partial(service.subscribing.subscribe, asked, is_bounded=not asker.is_operator))


def _of_feed(service: Dissemination, stream: str, epoch: str) -> str | None:
    """The id of the subscription whose feed has this epoch, which only those know who have read it."""
    views = (view for view in service.subscribing.subscriptions() if view.epoch == epoch and view.stream == stream)
    return next((view.id for view in views), None)


def _named(service: Dissemination, stream: str, id: str, asker: Asker) -> models.StreamSubscriptionView:
    """A client's subscription of this stream, by its id or its name. Raises ``HTTPException`` (403, 404)."""
    with suppress(StreamRefused):
        found, _ = service.subscribing.reading(id)
        if found.stream == stream:
            asker.check_subscription(found)
            return found
    raise HTTPException(HTTPStatus.NOT_FOUND, f"the stream {stream} has no subscription {id:.80} here")


def _source(service: Dissemination, id: str, after_item: str | None = None) -> Source[models.ReceivedItem]:
    with refusals():
        view, feed = service.subscribing.reading(id)
    return Source(feed, json_line, begin=_place_after(feed, after_item, is_ordered=_is_ordered(view)))


def _is_ordered(view: models.StreamSubscriptionView) -> bool:
    """Whether its items come in the order of their ids: not where what comes last is an object's value."""
    return not isinstance(load_kind(view.kind), RememberingKind)  # the node has it loaded: it matches items with it


def _told(view: models.StreamSubscriptionView) -> models.StreamSubscriptionView:
    return view.model_copy(update={"is_ordered": _is_ordered(view)})


def _place_after(feed: Feed[models.ReceivedItem], item: str | None, *, is_ordered: bool) -> Place:
    """Where a reader begins that has had everything up to this item. Raises ``HTTPException`` for what is no id.

    If items that came later may have been let go, that is before the first one that is held, so that the reader is
    told of a gap. Where the stream was created anew, an id that is not held behind the mark of that is of the stream
    before, and the place is in front of the mark. Where items do not come in order, the same one may have come more
    than once, and the place is behind the first time: what the reader may have had already comes again, and nothing
    that it lacks is passed over.
    """
    if item is None or item == "start":
        return "start"
    try:
        had = models.item_order(item)
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"after_item: {error}") from error
    number, before_anew = 0, None
    reader = feed.reader("start")
    try:
        while isinstance(entry := reader.take(), FeedItem):
            if is_ordered and entry.value.reason == models.CREATED_ANEW:
                before_anew = number
            if is_ordered and _order_of(entry.value) > had:
                break
            if is_ordered:
                number = entry.number
                before_anew = None if entry.value.id == item else before_anew
            elif entry.value.id == item and entry.value.type not in ("stale", "fresh"):  # those name the item before
                number = entry.number
                break
    finally:
        reader.close()
    return Position(feed.epoch, number if before_anew is None else before_anew)


def _order_of(item: models.ReceivedItem) -> StreamPosition:
    try:
        return models.item_order(item.id)
    except ValueError:  # a mark that belongs to no item
        return START


def _add_subscriptions(router: APIRouter, service: Dissemination) -> None:
    @serve(router, routes.SUBSCRIPTIONS)
    async def subscriptions(request: Request, stream: models.StreamName) -> models.StreamSubscriptionViews:
        """The client's own subscriptions to a stream; for operators those of all clients of this daemon."""
        held = (_told(view) for view in service.subscribing.subscriptions() if view.stream == stream)
        return models.StreamSubscriptionViews(subscriptions=asker_of(request).own(held))

    @serve(router, routes.SUBSCRIBE)
    async def subscribe(
        request: Request, stream: models.StreamName, body: models.StreamWish
    ) -> models.StreamSubscriptionView:
        """Subscribe; answers when this daemon is in the stream's tree, and every matching item comes from then on.

        One with a name stays, and needs a token with the scope ``dissemination:write``, or a unix socket.
        """
        asker = asker_of(request)
        if body.name:
            asker.check_write("a subscription with a name", "dissemination")
        owner = asker.owner_for(body.name, service.subscribing.subscriptions())
        asked = models.StreamSubscriptionRequest(stream=stream, owner=owner, **body.model_dump())
        await _pay_for(request, body.interest)
        return _told(await _subscribe(service, asked, asker))

    @serve(router, routes.UNSUBSCRIBE)
    async def unsubscribe(request: Request, stream: models.StreamName, id: str) -> models.StreamSubscriptionView:
        """End a subscription; one with a name needs the scope ``dissemination:write``."""
        found = _named(service, stream, id, asker_of(request))
        if found.name:
            asker_of(request).check_write("to end a subscription with a name", "dissemination")
        with refusals():
            return _told(service.subscribing.unsubscribe(found.id))

    def held(
        request: HTTPConnection, stream: models.StreamName, id: str, after_item: AfterItem = None
    ) -> Source[models.ReceivedItem]:
        """The items of a subscription: those that are held (after `after_item`, if that is given), then what comes."""
        return _source(service, _named(service, stream, id, asker_of(request)).id, after_item)

    add_feed(router, routes.HELD.path, held)


# Questions


def _add_questions(router: APIRouter, service: Dissemination) -> None:
    @serve(router, routes.TREE)
    async def tree(stream: models.StreamName) -> models.StreamTreeView:
        """The tree of a stream, asked of its nodes; `missing` has those that did not answer in time."""
        return await answer_of(lambda done: service.questions.tree(stream, done))

    @serve(router, routes.PLAN)
    async def plan(stream: models.StreamName) -> models.StreamPlanView:
        """What the stream's policy would change next, and what it expects of that."""
        return await answer_of(lambda done: service.questions.plan(stream, done))

    @serve(router, routes.HISTORY)
    async def history(stream: models.StreamName) -> models.StreamHistoryView:
        """What the stream's policy has changed: what it expected, and what came of it."""
        return await answer_of(lambda done: service.questions.history(stream, done))
