"""Request bodies of JSON lines, of any length, taken line by line; docs/http-api.md is the users' page.

    @routes.post("/notes", openapi_extra=LINES_BODY)
    async def add(request: Request) -> Response:
        return await ingest(request, NoteBody, accept)

The daemon reads no faster than ``accept`` takes lines: TCP holds the client back. Memory is bounded by one line and one
read, however long the body is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from peerd.daemon.http.guard import BODY_LIMIT, ROUTE_BODY_BYTES_MAX, problem
from peerd.errors import Unavailable
from peerd.invalid import first_reason
from peerd.limits import KIB, MIB
from peerd.models.admin import PROBLEM_TYPE, STREAM_TYPE
from peerd.models.streams import IngestAnswer, IngestError
from peerd.quantities import counted

LINES_BODY: Final[dict[str, Any]] = {"requestBody": {"content": {STREAM_TYPE: {}}, "required": True}}
"""``openapi_extra`` of a route that takes lines: FastAPI does not see what `ingest` reads."""
LINE_BYTES_MAX: Final = 64 * KIB
"""Longest line of a body, without its line break."""
ERRORS_TOLD_MAX: Final = 10
"""Most refused lines that the answer names; further ones are only counted."""
REFUSED_MAX: Final = 1000
"""After so many refused lines the rest of the body is not read."""
IDLE_MAX_S: Final = 60.0
"""A client that sends nothing for so long gets its answer, and what it sent before stays accepted."""
LINGER_BYTES_MAX: Final = 16 * MIB
LINGER_S: Final = 5.0
"""Bounds on how much of a refused body is read all the same: most clients read the answer only after sending it."""
LINES_AT_ONCE: Final = 256
"""Lines taken in one go before other work of the event loop gets its turn."""
DETAIL_LENGTH_MAX: Final = 200

T = TypeVar("T")
Read_co = TypeVar("Read_co", covariant=True)


class LineReader(Protocol[Read_co]):
    """What reads a line; a ``TypeAdapter`` is one. Raises ``ValidationError`` or `LineRefused`."""

    def validate_json(self, line: bytes, /) -> Read_co: ...


class LineRefused(ValueError):
    """``accept`` refuses this line; the text is for the client."""


class _GivenUp(Exception):
    """The rest of the body is not read."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def large_body(request: Request) -> bytes:
    """The whole body, which may be larger than those of other routes: up to `ROUTE_BODY_BYTES_MAX`."""
    request.scope[BODY_LIMIT].bytes_max = ROUTE_BODY_BYTES_MAX
    return await request.body()


async def ingest(
    request: Request,
    line_type: type[T] | LineReader[T],
    accept: Callable[[T], Awaitable[None]],
    *,
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Response:
    """Read each line as ``line_type`` and hand it to ``accept``, which may wait, raise `LineRefused`, or raise
    `Unavailable` or ``HTTPException`` to give up. Blank lines are skipped, and counted as lines.

    Answers 200 with an `IngestAnswer` when every line was accepted; else a problem with the same fields: 422 when
    lines were refused, 413 for a line that is too long, 408 for a client that stopped sending, 503 for `Unavailable`,
    the status of an ``HTTPException``, 415 for another content type. ``HTTPException`` at the first line is raised.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != STREAM_TYPE:
        return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send JSON lines as {STREAM_TYPE}")
    request.scope[BODY_LIMIT].bytes_max = None
    taking = _Taking(_reader_of(line_type), accept)
    async with aclosing(request.stream()) as body:
        try:
            try:
                async with aclosing(_lines(body, line_bytes_max)) as lines:
                    async for number, line in lines:
                        await taking.take(number, line)
            except (_GivenUp, Unavailable, HTTPException) as error:
                is_read = await _read_out(body)
                if isinstance(error, HTTPException) and not taking.has_begun:
                    raise  # as any other route answers
                answer = taking.answer(*_given_up(error))
                if not is_read:
                    answer.headers["connection"] = "close"
                return answer
        except ClientDisconnect:
            return Response()  # nobody reads it
    return taking.answer()


def _given_up(error: _GivenUp | Unavailable | HTTPException) -> tuple[HTTPStatus, str]:
    """The status and the text of the answer."""
    if isinstance(error, HTTPException):
        return HTTPStatus(error.status_code), error.detail
    return getattr(error, "status", HTTPStatus.SERVICE_UNAVAILABLE), str(error)


def _reader_of(line_type: Any) -> LineReader[Any]:
    return line_type if hasattr(line_type, "validate_json") else TypeAdapter(line_type)


class _Taking:
    """Counts what becomes of the lines."""

    def __init__(self, line_reader: LineReader[Any], accept: Callable[[Any], Awaitable[None]]) -> None:
        self._line_reader = line_reader
        self._accept = accept
        self._accepted = 0
        self._refused = 0
        self._errors: list[IngestError] = []

    @property
    def has_begun(self) -> bool:
        """Whether something has become of a line already, which the client has to be told."""
        return bool(self._accepted or self._refused)

    async def take(self, number: int, line: bytes) -> None:
        """Raises `_GivenUp` after too many refusals, and what ``accept`` raises."""
        try:
            await self._accept(self._line_reader.validate_json(line))
            self._accepted += 1
        except ValidationError as error:
            self._refuse(number, first_reason(error))
        except LineRefused as error:
            self._refuse(number, str(error))
        if number % LINES_AT_ONCE == 0:
            await asyncio.sleep(0)

    def answer(self, status: HTTPStatus = HTTPStatus.OK, detail: str = "") -> Response:
        """The answer that says what became of the lines of the body."""
        told = IngestAnswer(
            accepted=self._accepted,
            refused=self._refused,
            errors=self._errors,
            is_complete=status is HTTPStatus.OK,
            detail=detail,
        )
        if status is HTTPStatus.OK and not self._refused:
            return JSONResponse(told.model_dump())
        if status is HTTPStatus.OK:
            status, detail = HTTPStatus.UNPROCESSABLE_ENTITY, f"{counted(self._refused, 'line')} refused"
        fields = {"type": "about:blank", "title": status.phrase, "status": int(status)}
        body = {**fields, **told.model_dump(), "detail": detail}
        return JSONResponse(body, status, media_type=PROBLEM_TYPE)

    def _refuse(self, number: int, detail: str) -> None:
        self._refused += 1
        if len(self._errors) < ERRORS_TOLD_MAX:
            self._errors.append(IngestError(line=number, detail=detail[:DETAIL_LENGTH_MAX]))
        if self._refused >= REFUSED_MAX:
            raise _GivenUp(HTTPStatus.UNPROCESSABLE_ENTITY, f"{REFUSED_MAX} lines refused; the rest was not read")


async def _lines(body: AsyncGenerator[bytes, None], line_bytes_max: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """(number, line) of each line that is not blank."""
    rest, number = bytearray(), 0
    async with aclosing(_chunks(body)) as chunks:
        async for chunk in chunks:
            *whole, last = chunk.split(b"\n")
            for line in whole:
                number += 1
                rest += line
                _check_length(number, rest, line_bytes_max)
                if rest.strip():
                    yield number, bytes(rest)
                rest.clear()
            rest += last
            _check_length(number + 1, rest, line_bytes_max)
    if rest.strip():
        yield number + 1, bytes(rest)


def _check_length(number: int, line: bytearray, line_bytes_max: int) -> None:
    if len(line) > line_bytes_max:
        detail = f"line {number} has more than {line_bytes_max} bytes; the rest was not read"
        raise _GivenUp(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)


async def _chunks(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    while True:
        try:
            async with asyncio.timeout(IDLE_MAX_S):
                chunk = await anext(body)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise _GivenUp(HTTPStatus.REQUEST_TIMEOUT, f"nothing came for {IDLE_MAX_S:g} s") from error
        yield chunk


async def _read_out(body: AsyncGenerator[bytes, None]) -> bool:
    """Throw away the rest of the body. Returns whether its end came within the two bounds."""
    left = LINGER_BYTES_MAX
    try:
        async with asyncio.timeout(LINGER_S):
            async for chunk in body:
                left -= len(chunk)
                if left < 0:
                    return False
    except TimeoutError:
        return False
    return True
