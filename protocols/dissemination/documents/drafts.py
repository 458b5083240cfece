"""Documents that clients of this node publish, and read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from peerd.api import Host, Value, value_size_bytes
from peerd.errors import Unavailable
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.events import DocumentNotRead
from protocols.dissemination.documents.exchange import DocumentExchange
from protocols.dissemination.documents.manifest import (
    DOCUMENT_BYTES_MAX,
    DOCUMENT_ID_BYTES,
    FILE_NAME_MAX,
    Attachment,
    chunk_bytes_for,
    chunks_of,
    digest,
)
from protocols.dissemination.documents.store import DRAFT_PREFIX, KeptDocument
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.loading import load_kind
from protocols.dissemination.messages import CONTENT_TYPE_MAX, ITEM_BYTES_MAX, StreamItem
from protocols.dissemination.models import DocumentView, ItemPublished
from protocols.dissemination.producer.publishing import Publishers
from protocols.dissemination.service import StreamRefused

DRAFTS_MAX: Final = 16
"""Documents that clients send to this node at the same time."""


class DocumentDraft:
    """A document that a client is sending. Its pieces come one after the other."""

    def __init__(
        self,
        owner: Documents,
        host: Host,
        stream: str,
        size: int,
        name: str,
        content_type: str,
        item: tuple[bytes, str],
        number: int,
    ) -> None:
        self._owner, self._host, self._item = owner, host, item
        self._stream, self.size, self._name, self._content_type = stream, size, name, content_type
        self.file = f"{DRAFT_PREFIX}{number}"
        self._chunk_bytes = chunk_bytes_for(size)
        self._digests = b""
        self._taken = 0
        self._is_busy = False
        self.is_over = False

    @property
    def piece_bytes(self) -> int:
        """The size of the next piece."""
        return min(self._chunk_bytes, self.size - self._taken)

    def add(self, piece: Value, on_done: Callable[[bool | Exception], None]) -> None:
        """Take the next piece. ``on_done``, with ``True``: the one after it may come."""
        size = value_size_bytes(piece)
        if self.is_over or self._is_busy or not size or size != self.piece_bytes:
            raise StreamRefused("invalid", f"a piece of {size} bytes, expected {self.piece_bytes}")
        self._is_busy = True

        def failed(why: BaseException) -> None:
            self.drop()
            on_done(why if isinstance(why, Unavailable) else Unavailable(str(why)))

        def written() -> None:
            self._taken += size
            self._is_busy = False
            on_done(True)

        def known(found: bytes) -> None:
            if self.is_over:
                on_done(Unavailable("the document was given up"))
                return
            self._digests += found
            self._owner.exchange.store.files.write(self.file, self._taken, piece, written, failed)

        self._host.offload(digest, piece, done=known, failed=failed)

    def publish(self) -> ItemPublished:
        """All is here: publish the item that it is attached to. Raises `StreamRefused`, `Unavailable`."""
        if self.is_over or self._taken < self.size:
            raise StreamRefused("invalid", f"{self._taken} of {self.size} bytes have come")
        attachment = Attachment(self._name, self.size, self._chunk_bytes, self._digests, self._content_type)
        try:
            published = self._owner.publishers.publish(self._stream, *self._item, attachment=attachment)
        except (StreamRefused, Unavailable):
            self.drop()
            raise
        self._owner.keep(self, attachment, published)
        return published

    def drop(self) -> None:
        """Nothing comes of it. Harmless when it was published."""
        if not self.is_over:
            self._owner.ended(self)
            self._owner.exchange.store.files.delete(self.file)


class Documents:
    """Methods may raise `StreamRefused` and `Unavailable` at once; ``on_done`` is called once, later."""

    def __init__(
        self,
        host: Host,
        config: Callable[[], DisseminationConfig],
        exchange: DocumentExchange,
        publishers: Publishers,
    ) -> None:
        self._host, self._config, self.exchange, self.publishers = host, config, exchange, publishers
        self._drafts: list[DocumentDraft] = []
        self._number = 0

    def draft(
        self, stream: str, size: int, name: str, content_type: str, payload: bytes | None = None, payload_type: str = ""
    ) -> DocumentDraft:
        """Begin to take a document for a stream that this node produces.

        ``payload``: the item that it is attached to; without, that is a description of the document, in the language of
        the stream's kind. An item that would be refused in the end is refused now, before the document comes.
        """
        kind = self.publishers.node_of(stream).record.kind  # it has to be one that is produced here
        largest = min(DOCUMENT_BYTES_MAX, self._config().document_max_bytes)
        if not 0 < size <= largest:
            raise StreamRefused("invalid", f"a document of {size} bytes: it has to have 1 to {largest}")
        if not name or len(name) > FILE_NAME_MAX or len(content_type) > CONTENT_TYPE_MAX:
            raise StreamRefused("invalid", f"a document needs a name of 1 to {FILE_NAME_MAX} characters")
        if payload is None:
            item = description(kind, Attachment(name, size, chunk_bytes_for(size), b"", content_type))
        else:
            item = payload, payload_type
        check_item(kind, *item)
        if len(self._drafts) >= DRAFTS_MAX:
            raise Unavailable(f"{DRAFTS_MAX} documents are being published already")
        if not self.exchange.make_room(size):
            raise StreamRefused("quota", f"{self._config().documents_max_bytes} bytes of documents is the limit here")
        self._number += 1
        made = DocumentDraft(self, self._host, stream, size, name, content_type, item, self._number)
        self._drafts.append(made)
        self.exchange.store.drafted_bytes += size
        return made

    def ended(self, draft: DocumentDraft) -> None:
        """It was published or given up."""
        draft.is_over = True
        self._drafts.remove(draft)
        self.exchange.store.drafted_bytes -= draft.size

    def keep(self, draft: DocumentDraft, attachment: Attachment, published: ItemPublished) -> None:
        """A published document goes into the store. Whoever asks for it is served after the file has its name."""
        store = self.exchange.store
        self.ended(draft)
        known = store.get(attachment.id)
        if known is not None and known.is_complete:
            store.files.delete(draft.file)
            return
        kept = store.add(attachment, published.stream, published.id, is_complete=True)
        store.files.rename(draft.file, kept.file, lambda: None, lambda why: store.remove(kept))

    # What clients ask

    def documents(self) -> list[DocumentView]:
        """The documents that are here, wholly or in part, oldest first."""
        return [self._view(kept) for kept in self.exchange.store]

    def document(self, id: str) -> DocumentView:
        """One of them."""
        return self._view(self._find(id))

    def read(self, id: str, chunk: int, on_done: Callable[[Value | Exception], None]) -> None:
        """A chunk of a document; where it is still to come, ``on_done`` is called when it has come."""
        kept = self._find(id)
        if not 0 <= chunk < kept.attachment.count:
            raise StreamRefused("invalid", f"the document has {kept.attachment.count} chunks")

        def read(piece: Value | Exception) -> None:
            if isinstance(piece, Exception):
                self._not_read(kept, chunk, piece)
            on_done(piece)

        try:
            self.exchange.read(kept, chunk, read)
        except Unavailable as why:
            self._not_read(kept, chunk, why)
            raise

    def _not_read(self, kept: KeptDocument, chunk: int, why: Exception) -> None:
        document = kept.id.hex()
        self._host.emit(DocumentNotRead(stream=kept.stream, document=document, chunk=chunk, reason=str(why)))

    def _find(self, id: str) -> KeptDocument:
        try:
            name = bytes.fromhex(id) if len(id) == 2 * DOCUMENT_ID_BYTES else b""
        except ValueError:
            name = b""
        found = self.exchange.store.get(name)
        if found is None:
            raise StreamRefused("unknown", f"there is no document {id:.40} here")
        return found

    def _view(self, kept: KeptDocument) -> DocumentView:
        active, attachment = self.exchange.active(kept.id), kept.attachment
        have = 0 if active is None else active.download.have
        here = sum(attachment.size_of(chunk) for chunk in chunks_of(have))
        return DocumentView(
            id=kept.id.hex(),
            stream=kept.stream,
            item=kept.item,
            name=attachment.name,
            size=attachment.size,
            content_type=attachment.content_type,
            chunk_bytes=attachment.chunk_bytes,
            state="complete" if kept.is_complete else "partial" if active is None else "arriving",
            here_bytes=attachment.size if kept.is_complete else here,
            neighbours=0 if active is None else len(active.download.neighbours),
        )


_XML_TYPE: Final = re.compile(r"\s*(?:(?:application|text)/xml|[^;]*\+xml)\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def description(kind: str, attachment: Attachment) -> tuple[bytes, str]:
    """The item that a document is attached to, where its publisher has given none: so filters can look at it.

    Raises `StreamRefused` for XML in a stream of XML: its publisher may think that queries look into it.
    """
    if kind == "xpath":
        if _XML_TYPE.fullmatch(attachment.content_type):
            raise StreamRefused(
                "invalid",
                "XPath queries look at an item, and not into the XML attached to it: publish XML of at most "
                f"{ITEM_BYTES_MAX} bytes as an item, and to a larger file give an item in XML that describes it",
            )
        from xml.sax.saxutils import quoteattr  # late: it loads a client of HTTP, 1.5 MiB

        values = (quoteattr(_printable(each)) for each in (attachment.name, attachment.content_type))
        text = '<document name={} type={} size="{}"/>'.format(*values, attachment.size)
        return text.encode(), "application/xml"
    found = {"name": attachment.name, "type": attachment.content_type, "size": attachment.size}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(), "application/json"


def check_item(kind: str, payload: bytes, content_type: str) -> None:
    """Raises `StreamRefused` for an item that cannot be published in a stream of this kind."""
    if len(payload) > ITEM_BYTES_MAX or len(content_type) > CONTENT_TYPE_MAX:
        raise StreamRefused("invalid", f"an item has at most {ITEM_BYTES_MAX} bytes")
    try:
        load_kind(kind).content(StreamItem.of(0, 0, 0, payload, content_type))
    except ItemError as error:
        raise StreamRefused("invalid", str(error)) from error


def _printable(text: str) -> str:
    """XML has no control characters at all, not even escaped ones."""
    return "".join(each if each.isprintable() else "?" for each in text)
