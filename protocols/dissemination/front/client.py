"""Streams in the Python client: ``client.dissemination``."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import PydanticCustomError

from peerd.client import Client, RequestRefused
from peerd.client.patience import read_on
from peerd.client.streams import Item, StreamEntry, json_bytes, one_by_one
from peerd.models.admin import STREAM_TYPE, Problem
from peerd.models.streams import IngestAnswer, IngestError
from protocols.dissemination import models
from protocols.dissemination.front import routes
from protocols.dissemination.front.document_files import Progress, pieces_of, write_document
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.names import StreamPosition

if TYPE_CHECKING:
    from peerd.client.streams import Backoff

DOCUMENT_SILENCE_S: Final = 3600.0
"""A chunk may be long in coming: whoever has it may be away."""
HAND_OVER_S: Final = 150.0
"""The next producer may have to be sent all that the stream remembers."""
ESCAPED_BYTES_MAX: Final = 6
"""So many bytes a character has at most in a line of JSON, as ``\\u0000``."""


class DisseminationClient:
    """Streams and subscriptions to them, asked of the daemon that ``client`` talks to.

    Every method raises `RequestRefused` for what the daemon refuses, `DaemonBusy` and `DaemonUnreachable`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    # Streams

    async def create(
        self,
        name: str,
        kind: str = "attributes",
        policy: str = "overlap",
        settings: Mapping[str, Any] | None = None,
        *,
        producer_gone: Literal["end", "wait", "hand-over"] = "wait",
        durable: bool = False,
        successors: Sequence[str] = (),
        unsigned: bool = False,
    ) -> models.StreamView:
        """Create a stream; the daemon becomes its producer. ``durable``: items are on its disk before they go out.

        ``successors``: who goes on with it when the producer is gone, where it is created with ``hand-over``.
        ``unsigned``: the producer does not sign items.
        """
        spec = models.StreamSpec.model_construct(  # without a check: the daemon says what is wrong with it, in words
            name=name,
            kind=kind,
            policy=policy,
            settings=dict(settings or {}),
            producer_gone=producer_gone,
            durable=durable,
            successors=tuple(successors),
            unsigned=unsigned,
        )
        return await self._client.call(routes.CREATE, body=spec)

    async def remove(self, name: str) -> models.StreamView:
        """End a stream that the daemon produces."""
        return await self._client.call(routes.REMOVE, _stream(name))

    async def hand_over(self, name: str, to: str) -> models.StreamView:
        """Make another node of the tree the producer, by its address or the beginning of its id; nothing is lost."""
        body = models.StreamHandOver.model_construct(to=to)
        return await self._client.call(routes.HAND_OVER, _stream(name), body=body, silence_s=HAND_OVER_S)

    async def streams(self) -> list[models.StreamView]:
        """The streams that the daemon takes part in."""
        return (await self._client.call(routes.STREAMS)).streams

    async def stream(self, name: str) -> models.StreamView:
        """A stream by its name, looked up on the ring."""
        return await self._client.call(routes.FIND, _stream(name))

    # Items

    async def publish(self, name: str, item: bytes | str | Any, content_type: str = "") -> models.ItemPublished:
        """Publish one item: bytes and text as they are, anything else as JSON."""
        payload, kind = payload_of(item, content_type)
        if is_lines(kind):  # the daemon would take each line, and the answer would be another one
            raise _refused(f"{kind} is a type of many items, each a line: publish them with publish_many")
        return await self._client.call(routes.PUBLISH, _stream(name), body=payload, kind=kind)

    async def publish_many(
        self,
        name: str,
        items: AsyncIterable[models.WrappedItem] | Iterable[models.WrappedItem],
        on_progress: Callable[[IngestAnswer], None] = lambda answer: None,
        backoff: Backoff | None = None,
        on_refused: Callable[[IngestError], None] = lambda error: None,
    ) -> IngestAnswer:
        """Publish any number of items, as fast as the stream takes them and as slowly as they come.

        Refused items are counted, and the first of them are named by their number, in the answer; ``on_progress`` is
        told the same from time to time, and ``on_refused`` of each one that the daemon names. While the daemon is away
        the items wait; what was under way when it went may then be published twice.
        """
        from peerd.client.batches import send_in_batches

        lines = (_short(item).model_dump(exclude_none=True) async for item in one_by_one(items))
        path = routes.PUBLISH.at(_stream(name), wrapped=1)
        return await send_in_batches(self._client, path, lines, on_progress, backoff, on_refused)

    # Documents

    async def attach(
        self,
        name: str,
        path: str | Path,
        item: bytes | str | Any = None,
        content_type: str = "",
        progress: Progress = lambda done, size: None,
    ) -> models.ItemPublished:
        """Publish an item with a file of any size. Without an ``item`` it is a description of the file."""
        file = Path(path)
        size = file.stat().st_size
        text = payload_type = None
        if item is not None:
            payload, payload_type = payload_of(item)
            text = payload.decode()
        kind = content_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        file_name = file.name.encode(errors="replace").decode()  # it may be of any bytes, and the document's is a text
        names = _stream(name), _name(file_name)
        async with aclosing(pieces_of(file, size, progress)) as pieces:
            return await self._client.call(
                routes.ATTACH, *names, body=pieces, kind=kind, size=size, payload_type=payload_type, payload=text
            )

    async def documents(self, name: str) -> list[models.DocumentView]:
        """The documents of a stream that the daemon has, wholly or in part."""
        return (await self._client.call(routes.DOCUMENTS, _stream(name))).documents

    async def read_document(self, name: str, id: str, begin: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes of a document from ``begin`` on; waits for those that are still to come."""
        names = _stream(name), _name(id)
        if begin < (await self._client.call(routes.DOCUMENT_STATE, *names)).size:
            path = routes.DOCUMENT.at(*names, begin=begin)
            async with aclosing(self._client.fetch(path, silence_s=DOCUMENT_SILENCE_S)) as pieces:
                async for piece in pieces:
                    yield piece

    async def save_document(
        self,
        name: str,
        document: models.AttachedDocument,
        path: str | Path,
        progress: Progress = lambda done, size: None,
    ) -> str:
        """Write a document to a file, which appears when it is whole; returns its SHA-256. Goes on after a break."""
        return await write_document(partial(self.read_document, name, document.id), document, Path(path), progress)

    # Subscriptions

    async def subscribe(
        self,
        stream: str,
        interest: str = "",
        *,
        name: str = "",
        after: str | None = None,
        backoff: Backoff | None = None,
        on_subscribed: Callable[[models.StreamSubscriptionView], None] = lambda view: None,
    ) -> AsyncGenerator[models.ReceivedItem | StreamEntry, None]:
        """Receive the items that meet an interest; reconnects by itself, and nothing comes twice.

        Where items are the current values of objects, the last one that comes of each counts, whatever its id, and the
        same value may come again.

        Yields a `ReceivedItem` for each, marks of the stream as well (their ``type`` says which), and what
        `peerd.client.Client.follow` yields where the daemon has let items go. ``after``: the id of the last item that
        was seen, or ``start``. With a ``name`` the subscription goes on without readers; without one it ends when this
        generator is closed. Where a restarted daemon knows nothing of it, it is made anew behind the last item.
        """
        wish = models.StreamWish.model_construct(
            interest=interest, after=after, name=name
        )  # the daemon says what is wrong
        view = await self.install(stream, wish)
        on_subscribed(view)
        place, had = after if name else None, None

        async def anew() -> None:
            nonlocal view, place
            place = after if view.is_ordered else None  # a new one begins with all values, in an order of its own
            view = await self.install(stream, wish.model_copy(update={"after": after}))

        end = None if name else lambda: self.unsubscribe(stream, view.id)
        entries = read_on(lambda: self.read(stream, view.id, after=place, backoff=backoff), anew, end, backoff)
        async with aclosing(entries):
            async for entry in entries:
                if isinstance(entry, models.ReceivedItem):
                    if view.is_ordered and _is_known(entry, had):
                        continue  # a daemon that was restarted knows no more what was read
                    after, had = _behind(entry, after, had)
                yield entry

    async def install(self, stream: str, wish: models.StreamWish) -> models.StreamSubscriptionView:
        """Subscribe without reading yet: every item from then on will come to `read`."""
        return await self._client.call(routes.SUBSCRIBE, _stream(stream), body=wish)

    async def read(
        self, stream: str, id: str, *, after: str | None = None, backoff: Backoff | None = None
    ) -> AsyncGenerator[models.ReceivedItem | StreamEntry, None]:
        """Follow a subscription that exists, by its id or name. ``after``: the id of the last item that was seen."""
        path = routes.HELD.at(*_subscription(stream, id))
        wanted = {} if after is None else {"after_item": after}
        async with aclosing(self._client.follow(path, wanted, backoff=backoff)) as entries:
            async for entry in entries:
                yield models.ReceivedItem.model_validate(entry.data) if isinstance(entry, Item) else entry

    async def subscriptions(self, stream: str) -> list[models.StreamSubscriptionView]:
        """The subscriptions to a stream that the daemon's clients have."""
        return (await self._client.call(routes.SUBSCRIPTIONS, _stream(stream))).subscriptions

    async def unsubscribe(self, stream: str, id: str) -> models.StreamSubscriptionView:
        """End a subscription, by its id or its name."""
        return await self._client.call(routes.UNSUBSCRIBE, *_subscription(stream, id))

    # Questions

    async def tree(self, name: str) -> models.StreamTreeView:
        """The tree of a stream, asked of its nodes."""
        return await self._client.call(routes.TREE, _stream(name))

    async def plan(self, name: str) -> models.StreamPlanView:
        """What the stream's policy would change next."""
        return await self._client.call(routes.PLAN, _stream(name))

    async def history(self, name: str) -> models.StreamHistoryView:
        """What the stream's policy has changed: what it expected, and what came of it."""
        return await self._client.call(routes.HISTORY, _stream(name))


def wrapped(payload: bytes, content_type: str = "") -> models.WrappedItem:
    """One of many items, as a line."""
    try:
        return models.WrappedItem(payload=payload.decode(), content_type=content_type)
    except UnicodeDecodeError:
        return models.WrappedItem(payload_base64=base64.b64encode(payload).decode(), content_type=content_type)


def _short(item: models.WrappedItem) -> models.WrappedItem:
    """The same item in base64 where escapes would make its line longer than the daemon takes: control characters have
    six bytes each then."""
    text = item.payload
    if text is None or ESCAPED_BYTES_MAX * len(text) <= ITEM_BYTES_MAX:
        return item
    try:
        payload, escaped = text.encode(), json_bytes(text)
    except UnicodeEncodeError:  # half a character: the daemon refuses this item, and says so
        return item
    if len(escaped) <= 2 * len(payload):
        return item
    return item.model_copy(update={"payload": None, "payload_base64": base64.b64encode(payload).decode()})


def payload_of(item: Any, content_type: str = "") -> tuple[bytes, str]:
    """An item's bytes and content type: bytes and text as they are, anything else as JSON."""
    if isinstance(item, bytes):
        return item, content_type or "application/octet-stream"
    if isinstance(item, str):
        return item.encode(), content_type or "text/plain"
    text = json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(), content_type or "application/json"


def is_lines(content_type: str) -> bool:
    """Whether a body of this type is many items, of which each is a line."""
    return content_type.partition(";")[0].strip().lower() == STREAM_TYPE


def _is_known(item: models.ReceivedItem, had: StreamPosition | None) -> bool:
    """Whether this reader has had the item, in a stream whose items come in order."""
    return item.type == "item" and had is not None and models.item_order(item.id) <= had


def _behind(
    item: models.ReceivedItem, after: str | None, had: StreamPosition | None
) -> tuple[str | None, StreamPosition | None]:
    """How far a reader has come with this entry."""
    try:
        return item.id, models.item_order(item.id)
    except ValueError:  # a mark that belongs to no item
        return after, had


def _name(text: str, checked: Callable[[str], str] = str) -> str:
    """A name in the path of a request. Raises `RequestRefused` for what cannot be one: the path would be another one.

    Two dots alone would even be gone from it together with what stands before them, and ending a subscription of that
    name would end the stream.
    """
    try:
        name = checked(text)
    except PydanticCustomError as error:
        raise _refused(error.message()) from error
    if name in ("", ".", ".."):
        raise _refused(f"{name!r} is no name or id that can be asked for")
    return name


def _stream(name: str) -> str:
    return _name(name, models.stream_name)


def _subscription(stream: str, id: str) -> tuple[str, str]:
    return _name(stream, models.stream_name), _name(id, models.subscription_name)


def _refused(why: str) -> RequestRefused:
    """What the daemon would refuse, or not understand."""
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return RequestRefused(Problem(title=status.phrase, status=status, detail=why))
