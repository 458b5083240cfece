"""Messages about large documents: type ids 0x0340 to 0x034F. ONLY APPEND: they are the protocol itself.

All come on their sender's own link. The chunks themselves travel in swaps.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.limits import KIB
from peerd.messages import Message, PeerRef, message
from protocols.dissemination.documents.manifest import CHUNKS_MAX, DocumentId

OTHERS_MAX: Final = 8
"""Nodes that one message names for others to ask, too."""

Bitmap = Annotated[bytes, Meta(max_length=CHUNKS_MAX // 8)]
Chunk = Annotated[int, Meta(ge=0, lt=CHUNKS_MAX)]


@message(0x0340, bytes_max=256)
class DocumentMeet(Message):
    """I take part in this document, and have these chunks; tell me yours, and what comes. `DocumentMet` comes back."""

    document: DocumentId
    have: Bitmap


@message(0x0341, bytes_max=4 * KIB)
class DocumentMet(Message):
    """I have these chunks. ``others``: more nodes that take part. ``is_full``: I will not tell you what comes."""

    document: DocumentId
    have: Bitmap
    others: Annotated[tuple[PeerRef, ...], Meta(max_length=OTHERS_MAX)] = ()
    is_full: bool = False


@message(0x0342, bytes_max=64)
class DocumentHave(Message):
    """I have this chunk now, verified; or (not ``is_here``) I have asked for it, so ask for others yourself."""

    document: DocumentId
    chunk: Chunk
    is_here: bool = True


@message(0x0343, bytes_max=64)
class DocumentAsk(Message):
    """Send me this chunk. It comes in a swap that you begin; or `DocumentNot`."""

    document: DocumentId
    chunk: Chunk


@message(0x0344, bytes_max=64)
class DocumentNot(Message):
    """I do not send you this chunk; ``is_all``: nor any other, because I do not have the document (any more)."""

    document: DocumentId
    chunk: Chunk = 0
    is_all: bool = False


MESSAGES: Final = (DocumentMeet, DocumentMet, DocumentHave, DocumentAsk, DocumentNot)
