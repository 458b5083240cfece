"""Feeds over HTTP: JSON lines, Server-Sent Events and WebSocket, for any router; docs/http-api.md is the users' page.

    def notes(service: Board) -> Source[Note]: ...      # a FastAPI dependency: parameters, checks, the feed
    add_feed(routes, "/notes", notes)                   # GET /notes in two formats, and a WebSocket at the same path

What is not sent yet stays in the feed, whose policy decides what a slow client loses. Besides, there is one batch of
`BATCH_BYTES` on its way, and the bounded buffers of the connection (`peerd.daemon.http.protocol`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response, WebSocket, WebSocketDisconnect
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from peerd.daemon.http.access import TOKEN_ENDS, USE_KEY, TokenUse
from peerd.daemon.http.caller import hang_up, unsent
from peerd.daemon.http.gate import Receive, Scope, Send
from peerd.daemon.http.guard import problem
from peerd.errors import Unavailable
from peerd.lib import feed as feeds
from peerd.lib.feed import Entry, Feed, FeedDropped, FeedEnd, FeedGap, FeedItem, Place, Policy, Position
from peerd.limits import KIB
from peerd.models import streams as stream_models
from peerd.models.admin import STREAM_TYPE

EVENT_STREAM_TYPE: Final = "text/event-stream"
HEARTBEAT_S: Final = 15.0
"""Silence after which a line says that the stream is alive."""
STALL_MAX_S: Final = 60.0
"""A client that takes nothing for so long is cut off; it may come back and resume."""
STALL_BLOCKING_S: Final = 600.0
"""The same for a client for which writers wait (`Policy.BLOCK`). Over TCP it is seen here that a client reads once it
has read some 64 KiB, so a shorter limit would cut off one that reads slowly."""
STALL_LOOK_S: Final = 2.0
"""How often it is looked whether a client has taken something."""
RETRY_MS: Final = 1000
"""How long browsers wait before they open a lost stream again."""
BATCH_BYTES: Final = 32 * KIB
BATCH_ENTRIES_MAX: Final = 256
"""How many items are read in one go before other work of the event loop gets its turn."""
CAUGHT_UP: Final = "caught up"
"""The reason that ends a stream whose client does not want to follow it."""
CLOSE_FINAL: Final = 1000
CLOSE_RESUMABLE: Final = 1001
CLOSE_FORBIDDEN: Final = 1008
CLOSE_TOO_SLOW: Final = 1013
"""Codes with which a WebSocket is closed after its `FeedEnd`."""
CLOSE_REASON_BYTES_MAX: Final = 123
"""RFC 6455, section 5.5: a control frame has 125 bytes, and two are the code."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """The source of a stream: a feed, how an item becomes JSON (one line), and which items this client wants."""

    feed: Feed[T]
    encode: Callable[[T], bytes]
    wants: Callable[[T], bool] | None = None
    policy: Policy = Policy.DROP_OLDEST
    begin: Place = "now"
    """Where the stream starts for a client that does not ask for a place."""


def json_line(item: BaseModel) -> bytes:
    """An item as one line of JSON, without what is as it is by default: an `encode` for items that are models."""
    return item.model_dump_json(exclude_defaults=True).encode()


@dataclass(frozen=True, slots=True)
class Wish:
    """The choices of a stream's client: where to begin, and whether to stay once everything has been sent."""

    place: Place | None
    follow: bool

    def beginning(self, default: Place) -> Place:
        """Where to begin. Who does not want to stay gets what is held in the place of what is yet to come."""
        return self.place or ("start" if default == "now" and not self.follow else default)


def wish(
    after: Annotated[
        str | None,
        Query(max_length=feeds.POSITION_LENGTH_MAX, description="Resume after this id; `start`: all held; `now`."),
    ] = None,
    follow: Annotated[bool, Query(description="Stay for what comes; 0: end once everything has been sent.")] = True,
    last_event_id: Annotated[str | None, Header(max_length=feeds.POSITION_LENGTH_MAX)] = None,
) -> Wish:
    """A FastAPI dependency. A browser that reconnects sends the header, which is newer than the URL's parameter."""
    text = last_event_id or after
    if not text:
        return Wish(None, follow)
    if text == "start":
        return Wish("start", follow)
    if text == "now":
        return Wish("now", follow)
    try:
        return Wish(Position.parse(text), follow)
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"after: {error}") from error


def add_feed(
    routes: APIRouter, path: str, source: Callable[..., Source[Any] | Awaitable[Source[Any]]], **options: Any
) -> None:
    """Offer a feed at ``path``: GET (JSON lines or Server-Sent Events, as the client accepts) and WebSocket.

    ``source`` is a FastAPI dependency for both; its docstring describes the route. ``options`` go to ``routes.get``.
    """

    async def stream(request: Request, opened: Source[Any], wanted: Wish) -> Response:
        return feed_response(request, opened, wanted)

    async def socket(websocket: WebSocket, opened: Source[Any], wanted: Wish) -> None:
        await serve_websocket(websocket, opened, wanted)

    for endpoint in (stream, socket):  # as objects: FastAPI could not look up what only this function knows
        endpoint.__annotations__ |= {
            "opened": Annotated[Source, Depends(source)],
            "wanted": Annotated[Wish, Depends(wish)],
        }
    responses = {200: {"content": {STREAM_TYPE: {}, EVENT_STREAM_TYPE: {}}, "description": "Lines as they come."}}
    named = {"response_class": Response, "responses": responses, "name": source.__name__, **options}
    named.setdefault("description", source.__doc__ or "")
    routes.add_api_route(path, stream, methods=["GET"], **named)
    routes.add_api_websocket_route(path, socket, name=f"{source.__name__}_websocket")


# --- the two formats ------------------------------------------------------------------------------------------------


class JsonLines:
    """One JSON object a line; also the messages of a WebSocket."""

    content_type: Final = STREAM_TYPE
    opening: Final = b""

    def item(self, position: Position, data: bytes) -> bytes:
        """See `peerd.models.streams.Item`."""
        return b'{"type":"item","id":"%s","data":%s}\n' % (str(position).encode(), data)

    def mark(self, mark: stream_models.StreamLine) -> bytes:
        """A line that is no item: a gap, dropped items, a heartbeat or the end."""
        return mark.model_dump_json().encode() + b"\n"


class ServerSentEvents:
    """Items are unnamed events, marks are events named by their type, heartbeats are comments that move the id."""

    content_type: Final = EVENT_STREAM_TYPE
    opening: Final = b"retry: %d\n\n" % RETRY_MS

    def item(self, position: Position, data: bytes) -> bytes:
        """JSON has no line break of its own, so that ``data`` is one line."""
        return b"id: %s\ndata: %s\n\n" % (str(position).encode(), data)

    def mark(self, mark: stream_models.StreamLine) -> bytes:
        """A line that is no item: a gap, dropped items, a heartbeat or the end."""
        if isinstance(mark, stream_models.StreamHeartbeat):
            return f": heartbeat\nid: {mark.id}\n\n".encode()
        return f"event: {mark.type}\nid: {mark.id}\ndata: {mark.model_dump_json()}\n\n".encode()


Format = JsonLines | ServerSentEvents


def negotiated(accept: str) -> Format:
    """The format for an Accept header. Raises ``HTTPException`` (406) when there is none."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")} - {""}
    if EVENT_STREAM_TYPE in kinds:
        return ServerSentEvents()
    if not kinds or kinds & {STREAM_TYPE, "application/*", "*/*"}:
        return JsonLines()
    raise HTTPException(HTTPStatus.NOT_ACCEPTABLE, f"this stream comes as {STREAM_TYPE} or as {EVENT_STREAM_TYPE}")


# --- from a feed to bytes -------------------------------------------------------------------------------------------


class Outlet(Generic[T]):
    """Reads a feed for one client, at the client's pace. Raises `Unavailable` when there are too many readers."""

    def __init__(self, source: Source[T], wanted: Wish, shape: Format, scope: Scope) -> None:
        self._source = source
        self._follow = wanted.follow
        self._shape = shape
        self._scope = scope
        self._woken = asyncio.Event()
        self._stall_s = STALL_BLOCKING_S if source.policy is Policy.BLOCK else STALL_MAX_S
        self._taken_at: float | None = None
        """When the client last took something of what is being sent; ``None`` while nothing is."""
        self._unsent: int | None = None
        self._look: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._reader = source.feed.reader(wanted.beginning(source.begin), source.policy, self._woken.set)
        self._over_because = ""
        self.end: FeedEnd | None = None
        """The last line of the stream, once it was sent."""
        use = scope.get("state", {}).get(USE_KEY)
        self._use = use if isinstance(use, TokenUse) else None
        if self._use is not None:
            self._use.on_end = self._token_over

    def close(self) -> None:
        """Free the feed of this reader."""
        self._reader.close()
        for timer in (self._look, self._heartbeat):
            if timer is not None:
                timer.cancel()
        if self._use is not None:
            self._use.on_end = None

    def _token_over(self, reason: str) -> None:
        """The token has ended: what waits for this client is dropped, and it only gets the reason."""
        self._over_because = reason
        self._woken.set()

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        """Lines as they come, and a heartbeat at the beginning and after each silence of `HEARTBEAT_S`."""
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while self.end is None:
            self._woken.clear()
            if self._over_because:
                yield [self._render(FeedEnd(self._position().number, self._over_because, is_final=False))]
                return
            batch, is_all = self._batch()
            if not batch and is_all and not self._follow:
                batch.append(self._render(FeedEnd(self._position().number, CAUGHT_UP, is_final=True)))
            elif not batch and is_all and loop.time() >= due_at:
                batch.append(self._shape.mark(stream_models.StreamHeartbeat(id=str(self._position()))))
            if batch:
                yield batch
                due_at = loop.time() + HEARTBEAT_S
            elif is_all:
                await self._wait(due_at)
            else:
                await asyncio.sleep(0)

    async def send(self, sending: Awaitable[None]) -> None:
        """Wait for a batch to be sent; a client that takes nothing of it for long is cut off.

        One that has been too slow for its policy meanwhile still gets what is on its way, and then the reason.
        """
        self._taken_at, self._unsent = asyncio.get_running_loop().time(), None
        if self._look is None:  # it stays from one batch to the next ones
            self._look_in(min(STALL_LOOK_S, self._stall_s))
        try:
            await sending
        finally:
            self._taken_at = None

    def _look_in(self, delay_s: float) -> None:
        self._look = asyncio.get_running_loop().call_later(delay_s, self._looked)

    def _looked(self) -> None:
        self._look = None
        if self._taken_at is None:
            return
        left, now = unsent(self._scope), asyncio.get_running_loop().time()
        if self._unsent is None or left < self._unsent:
            self._taken_at = now
        self._unsent = left
        if (rest_s := self._taken_at + self._stall_s - now) <= 0.0:
            hang_up(self._scope)  # which ends the sending, too
        else:
            self._look_in(min(STALL_LOOK_S, rest_s))

    async def _wait(self, due_at: float) -> None:
        """Wait for an entry, or for the time of a heartbeat; its timer stays while entries come."""
        if self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().call_at(due_at, self._tick)
        await self._woken.wait()

    def _tick(self) -> None:
        self._heartbeat = None
        self._woken.set()

    def _position(self) -> Position:
        position = self._reader.position
        return self._source.feed.position if position is None else position

    def _batch(self) -> tuple[list[bytes], bool]:
        """Return lines of about `BATCH_BYTES` in all, and whether that is all there is for now."""
        lines: list[bytes] = []
        size_bytes = 0
        for _ in range(BATCH_ENTRIES_MAX):
            entry = self._reader.take()
            if entry is None:
                return lines, True
            wants = self._source.wants
            if isinstance(entry, FeedItem) and wants is not None and not wants(entry.value):
                continue
            lines.append(self._render(entry))
            size_bytes += len(lines[-1])
            if size_bytes >= BATCH_BYTES or self.end is not None:
                break
        return lines, False

    def _render(self, entry: Entry[T]) -> bytes:
        position = Position(self._source.feed.epoch, entry.number)
        if isinstance(entry, FeedItem):
            return self._shape.item(position, self._source.encode(entry.value))
        if isinstance(entry, FeedEnd):
            self.end = entry
        return self._shape.mark(_mark(str(position), entry))


def _mark(position: str, entry: FeedGap | FeedDropped | FeedEnd) -> stream_models.StreamLine:
    match entry:
        case FeedGap():
            lost = {"first": entry.first, "last": entry.last, "count": entry.count}
            return stream_models.Gap(id=position, reason=entry.reason, **lost)
        case FeedDropped():
            why = {} if entry.loss is None else {"reason": entry.loss.reason, "by": entry.loss.by}
            lost = {"first": entry.first, "last": entry.last, "count": entry.count}
            return stream_models.Dropped(id=position, **lost, **why)
        case FeedEnd():
            return stream_models.End(id=position, reason=entry.reason, is_final=entry.is_final)


# --- over HTTP ------------------------------------------------------------------------------------------------------


def feed_response(request: HTTPConnection, source: Source[Any], wanted: Wish) -> Response:
    """The answer to a GET. A browser that comes back to a stream that is over for good gets 204, which it obeys."""
    shape = negotiated(request.headers.get("accept", ""))
    ended = source.feed.ended
    is_over = ended is not None and ended.is_final and wanted.place == source.feed.position
    if is_over and isinstance(shape, ServerSentEvents):
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return FeedResponse(source, wanted, shape)


class FeedResponse(Response):
    """A stream, until the feed ends or the client hangs up, which frees everything at once."""

    def __init__(self, source: Source[Any], wanted: Wish, shape: Format) -> None:
        super().__init__(media_type=shape.content_type)
        self._source, self._wanted, self._shape = source, wanted, shape
        headers = {"content-type": shape.content_type, "cache-control": "no-store", "x-accel-buffering": "no"}
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(self._source, self._wanted, self._shape, scope)
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(outlet, send))
                while (await receive())["type"] != "http.disconnect":
                    pass
                writing.cancel()
        finally:
            outlet.close()

    async def _write(self, outlet: Outlet[Any], send: Send) -> None:
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": self.raw_headers})
        if self._shape.opening:
            await send({"type": "http.response.body", "body": self._shape.opening, "more_body": True})
        async with aclosing(outlet.batches()) as batches:
            async for batch in batches:
                event = {"type": "http.response.body", "body": b"".join(batch), "more_body": True}
                await outlet.send(send(event))
        await outlet.send(send({"type": "http.response.body", "body": b"", "more_body": False}))


# --- over WebSocket -------------------------------------------------------------------------------------------------


async def serve_websocket(websocket: WebSocket, source: Source[Any], wanted: Wish) -> None:
    """The same lines, one a message. What the client sends is ignored; when it hangs up, everything is freed."""
    try:
        outlet = Outlet(source, wanted, JsonLines(), websocket.scope)
    except Unavailable as error:
        await websocket.send_denial_response(problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))
        return
    try:
        await websocket.accept()
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(_write_messages(websocket, outlet))
            while (await websocket.receive())["type"] != "websocket.disconnect":
                pass
            writing.cancel()
    finally:
        outlet.close()


async def _write_messages(websocket: WebSocket, outlet: Outlet[Any]) -> None:
    with suppress(WebSocketDisconnect):  # the other task, which waits for the client, notices it as well
        async with aclosing(outlet.batches()) as batches:
            async for batch in batches:
                for line in batch:
                    await outlet.send(websocket.send_text(line.decode().rstrip("\n")))
        if outlet.end is not None:
            reason = outlet.end.reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
            await websocket.close(_close_code(outlet.end), reason)


def _close_code(end: FeedEnd) -> int:
    if end.is_final:
        return CLOSE_FINAL
    if end.reason in TOKEN_ENDS:
        return CLOSE_FORBIDDEN
    return CLOSE_TOO_SLOW if end.reason == feeds.TOO_SLOW else CLOSE_RESUMABLE


class Reports(Generic[T]):
    """A reader of a feed in this process, without marks: for reports that are each complete in themselves."""

    def __init__(self, feed: Feed[T]) -> None:
        self._woken = asyncio.Event()
        self._reader = feed.reader("start", on_ready=self._woken.set)

    async def items(self, limit_s: float) -> AsyncGenerator[T, None]:
        """Each report that is still held, until the feed ends. Raises ``TimeoutError`` after ``limit_s``."""
        due_at = asyncio.get_running_loop().time() + limit_s
        try:
            while not self._reader.is_over:
                self._woken.clear()
                while (entry := self._reader.take()) is not None:
                    if isinstance(entry, FeedItem):
                        yield entry.value
                if not self._reader.is_over:
                    async with asyncio.timeout_at(due_at):
                        await self._woken.wait()
        finally:
            self._reader.close()


def json_bytes(value: object) -> bytes:
    """Compact JSON, for `Source.encode`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
