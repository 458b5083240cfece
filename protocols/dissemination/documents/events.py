"""What large documents record in the event log. ONLY APPEND. ``document`` is its id, ``stream`` the stream's name."""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text


class DocumentBegun(Event):
    """This node begins to fetch a document. ``kept``: bytes that an earlier try has left."""

    KIND = "dissemination.document_begun"
    stream: Text
    item: Text
    document: Text
    bytes: int
    kept: int


class DocumentFinished(Event):
    """All chunks of a document are here, verified. ``again``: chunks that came in vain: broken off, wrong, or from two
    nodes."""

    KIND = "dissemination.document_finished"
    stream: Text
    document: Text
    bytes: int
    senders: int
    duration_s: float
    again: int = 0


class DocumentStopped(Event):
    """This node leaves a document alone for now: too_large, no_room, busy (too many at once), disk, not_wanted."""

    KIND = "dissemination.document_stopped"
    stream: Text
    document: Text
    reason: Text


class ChunkRefused(Event):
    """A chunk does not fit the manifest: ``sender`` is asked for nothing more of the document."""

    KIND = "dissemination.chunk_refused"
    document: Text
    chunk: int
    sender: str


class DocumentEvicted(Event):
    """A document had to go, because newer ones need the room."""

    KIND = "dissemination.document_evicted"
    stream: Text
    document: Text
    bytes: int


class DocumentNotRead(Event):
    """A reader of a document was cut off at this chunk, which cannot be had or read."""

    KIND = "dissemination.document_not_read"
    stream: Text
    document: Text
    chunk: int
    reason: Text


DOCUMENT_EVENTS: Final[tuple[type[Event], ...]] = (
    DocumentBegun,
    DocumentFinished,
    DocumentStopped,
    ChunkRefused,
    DocumentEvicted,
    DocumentNotRead,
)
