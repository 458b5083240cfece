"""HTTP routes of large documents, below ``/v1/streams``; docs/streams.md has examples of each."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request, Response

from peerd.daemon.http.answers import answer_of, refusals
from peerd.daemon.http.files import body_pieces, file_answer
from peerd.daemon.http.routes import serve
from protocols.dissemination import models
from protocols.dissemination.front import routes

if TYPE_CHECKING:
    from protocols.dissemination.documents.drafts import DocumentDraft, Documents

FILE_BODY: Final[dict[str, Any]] = {"requestBody": {"content": {"*/*": {}}, "required": True}}
BINARY_TYPE: Final = "application/octet-stream"
NOTHING_COMES: Final = "the document is here in part only, and nothing more comes: subscribe to its stream"
PAYLOAD_LENGTH_MAX: Final = 8192
"""A payload travels in the request's address, which has a limit of its own."""


def add_documents(router: APIRouter, service: Documents) -> None:
    """The routes; ``service`` is that of the running plugin."""

    @serve(router, routes.ATTACH, FILE_BODY)
    async def publish(
        request: Request,
        stream: models.StreamName,
        name: str,
        size: Annotated[int | None, Query(ge=1, description="Bytes, where there is no Content-Length.")] = None,
        payload: Annotated[
            str | None,
            Query(max_length=PAYLOAD_LENGTH_MAX, description="The item that the file belongs to. Default: name, size."),
        ] = None,
        payload_type: Annotated[str, Query(max_length=models.CONTENT_TYPE_LENGTH_MAX)] = "",
    ) -> models.ItemPublished:
        """Publish an item with a file, the body as it is. It is published when the whole file is here."""
        kind = request.headers.get("content-type", "")[: models.CONTENT_TYPE_LENGTH_MAX].strip() or BINARY_TYPE
        length = size if size is not None else int(request.headers.get("content-length", "0"))
        if not length:
            raise HTTPException(HTTPStatus.LENGTH_REQUIRED, "say how long the file is: Content-Length, or ?size=")
        with refusals():
            item = None if payload is None else payload.encode()
            draft = service.draft(stream, length, name, kind, item, payload_type)
            try:
                await _take(request, draft)
                return draft.publish()
            finally:
                draft.drop()

    @serve(router, routes.DOCUMENTS)
    async def documents(stream: models.StreamName) -> models.DocumentViews:
        """The documents of a stream that this daemon has, wholly or in part, oldest first."""
        return models.DocumentViews(documents=[view for view in service.documents() if view.stream == stream])

    @serve(router, routes.DOCUMENT_STATE)
    async def state(stream: models.StreamName, id: str) -> models.DocumentView:
        """What a document is, and how much of it is here."""
        with refusals():
            return service.document(id)

    @serve(router, routes.DOCUMENT, response_class=Response)
    async def read(
        request: Request,
        stream: models.StreamName,
        id: str,
        begin: Annotated[int, Query(ge=0, description="The first byte, instead of a Range header.")] = 0,
    ) -> Response:
        """A document, or a `Range` of it; what is still to come is waited for."""
        with refusals():
            view = service.document(id)
        if view.state == "partial":
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, NOTHING_COMES)

        async def piece(number: int) -> bytes:
            return bytes(await answer_of(partial(service.read, id, number), limit_s=None))

        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(view.name, safe='')}",
            "etag": f'"{view.id}"',
            "x-content-type-options": "nosniff",
        }
        return file_answer(request, view.size, view.chunk_bytes, piece, headers, BINARY_TYPE, begin)


async def _take(request: Request, draft: DocumentDraft) -> None:
    async with aclosing(body_pieces(request, lambda: draft.piece_bytes)) as pieces:
        async for piece in pieces:
            await answer_of(partial(draft.add, piece))
