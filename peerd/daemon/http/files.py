"""Files over HTTP, of any size: request bodies that are taken piece by piece, and answers with ranges.

The daemon reads no faster than pieces are taken, and writes no faster than the client reads: memory is bounded by one
piece, however long the file is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from fastapi import HTTPException, Request, Response
from starlette.types import Receive, Scope, Send

from peerd.daemon.http.caller import hang_up
from peerd.daemon.http.guard import BODY_LIMIT
from peerd.daemon.http.ingest import IDLE_MAX_S
from peerd.errors import PeerdError

RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
WRITE_BYTES: Final = 256 * 1024
"""What goes to the client at once."""


async def body_pieces(request: Request, size_of_next: Callable[[], int]) -> AsyncGenerator[bytes, None]:
    """The body in pieces of the sizes that are asked for; 0: nothing more is expected.

    Raises ``HTTPException`` for a body that is shorter (400) or longer (413), or when nothing comes any more (408).
    """
    request.scope[BODY_LIMIT].bytes_max = None
    piece = bytearray()
    wanted = size_of_next()
    async with aclosing(request.stream()) as body:
        while (part := await _next_part(body)) is not None:
            view = memoryview(part)
            while view:
                if not wanted:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is longer than was announced")
                taken = view[: wanted - len(piece)]
                piece += taken
                view = view[len(taken) :]
                if len(piece) == wanted:
                    yield bytes(piece)
                    piece = bytearray()
                    wanted = size_of_next()
    if wanted:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is shorter than was announced")


async def _next_part(body: AsyncGenerator[bytes, None]) -> bytes | None:
    try:
        async with asyncio.timeout(IDLE_MAX_S):
            return await anext(body)
    except StopAsyncIteration:
        return None
    except TimeoutError as error:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"nothing came for {IDLE_MAX_S:g} s") from error


def file_answer(
    request: Request,
    size: int,
    piece_bytes: int,
    read: Callable[[int], Awaitable[bytes]],
    headers: Mapping[str, str],
    media_type: str,
    begin_at: int = 0,
) -> Response:
    """An answer with a file, or the part of it that a ``Range`` header asks for.

    ``read(number)`` gives the piece of that number, and may wait for it; it raises `PeerdError` or ``HTTPException``
    where it cannot, and says so in the event log itself. ``begin_at``: where a client that cannot send headers wants to
    begin. Raises ``HTTPException`` (416) for a range that lies behind the end.
    """
    wanted = request.headers.get("range", "") or (f"bytes={begin_at}-" if begin_at else "")
    begin, end, status = _range(wanted, size)
    told = {**headers, "content-type": media_type, "accept-ranges": "bytes", "content-length": str(end - begin)}
    if status is HTTPStatus.PARTIAL_CONTENT:
        told["content-range"] = f"bytes {begin}-{end - 1}/{size}"
    pieces = [
        (number, max(0, begin - number * piece_bytes), end - number * piece_bytes)
        for number in range(begin // piece_bytes, -(-end // piece_bytes))
    ]
    return FileAnswer(pieces, read, int(status), told)


class FileAnswer(Response):
    """Pieces of a file, each read when the client has taken the one before.

    A piece that fails can only cut the connection off, before the announced length: the status has been sent, and the
    client sees that something is missing.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[int, int, int]],
        read: Callable[[int], Awaitable[bytes]],
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, status)
        self._pieces, self._read = pieces, read
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(scope, send))
            while (await receive())["type"] != "http.disconnect":  # comes after the last byte, too
                pass
            writing.cancel()

    async def _write(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for number, begin, end in self._pieces:
            try:
                piece = memoryview(await self._read(number))[begin:end]
            except (PeerdError, HTTPException):
                hang_up(scope)
                return
            for start in range(0, len(piece), WRITE_BYTES):
                body = bytes(piece[start : start + WRITE_BYTES])
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _range(header: str, size: int) -> tuple[int, int, HTTPStatus]:
    """What to send: from, to (exclusive). A header of several ranges, or of another form, is passed over."""
    found = RANGE.fullmatch(header.strip())
    if found is None or found[0] == "bytes=-":
        return 0, size, HTTPStatus.OK
    if not found[1]:
        begin, end = max(0, size - int(found[2])), size
    else:
        begin, end = int(found[1]), min(size, int(found[2]) + 1) if found[2] else size
    if begin >= end:
        raise HTTPException(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "the range has no byte", {"content-range": f"bytes */{size}"}
        )
    return begin, end, HTTPStatus.PARTIAL_CONTENT
