"""What the running plugin offers to its clients about large documents: the words between the plugin and its front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peerd.api import Value
from protocols.dissemination.models import DocumentView, ItemPublished


class ArrivingDocument(Protocol):
    """A document that a client is sending. Its pieces come one after the other."""

    @property
    def piece_bytes(self) -> int:
        """The size of the next piece."""

    def add(self, piece: Value, on_done: Callable[[bool | Exception], None]) -> None:
        """Take the next piece. ``on_done``, with ``True``: the one after it may come."""

    def publish(self) -> ItemPublished:
        """All is here: publish the item that it is attached to. Raises `StreamRefused`, `Unavailable`."""

    def drop(self) -> None:
        """Nothing comes of it. Harmless when it was published."""


class DocumentService(Protocol):
    """Every method may raise `StreamRefused` and `Unavailable` at once; callbacks are called once, later."""

    def draft(
        self, stream: str, size: int, name: str, content_type: str, payload: bytes | None = None, payload_type: str = ""
    ) -> ArrivingDocument:
        """Begin to take a document for a stream that this node produces.

        ``payload``: the item that it is attached to; without, that is a description of the document, in the language of
        the stream's kind. An item that would be refused in the end is refused now, before the document comes.
        """

    def documents(self) -> list[DocumentView]:
        """The documents that are here, wholly or in part, oldest first."""

    def document(self, id: str) -> DocumentView:
        """One of them."""

    def read(self, id: str, chunk: int, on_done: Callable[[Value | Exception], None]) -> None:
        """A chunk of a document; where it is still to come, ``on_done`` is called when it has come."""
