"""Request bodies of JSON lines, of any length, taken line by line; docs/http-api.md is the users' page.

    @routes.post("/notes", openapi_extra=LINES_BODY)
    async def add(request: Request) -> Response:
        return await ingest(request, NoteBody, accept)

The daemon reads no faster than ``accept`` takes lines: TCP holds the client back. Memory is bounded by one line and one
read, however long the body is. What becomes of a line may show later: the answer waits for it, and names each line that
was not surely taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from peerd.daemon.http.guard import BODY_LIMIT, ROUTE_BODY_BYTES_MAX, problem
from peerd.daemon.http.paying import FREE_BYTES, Turns, pay, price_of_text
from peerd.errors import Unavailable
from peerd.invalid import first_reason
from peerd.limits import KIB, MIB
from peerd.models.admin import PROBLEM_TYPE, STREAM_TYPE
from peerd.models.streams import IngestAnswer, IngestError
from peerd.words import counted

LINES_BODY: Final[dict[str, Any]] = {"requestBody": {"content": {STREAM_TYPE: {}}, "required": True}}
"""``openapi_extra`` of a route that takes lines: FastAPI does not see what `ingest` reads."""
LINE_BYTES_MAX: Final = 64 * KIB
"""Longest line of a body, without its line break."""
REFUSED_MAX: Final = 1000
"""After so many lines that were refused or have failed the rest of the body is not read."""
IDLE_MAX_S: Final = 60.0
"""A client that sends nothing for so long gets its answer, and what it sent before stays accepted."""
LINGER_BYTES_MAX: Final = 16 * MIB
LINGER_S: Final = 5.0
"""Bounds on how much of a refused body is read all the same: most clients read the answer only after sending it."""
CHUNK_BYTES_MAX: Final = 64 * KIB
"""So much of a body is cut into lines at a time."""
LINES_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 32 * KIB
"""Lines taken in one go; then other work of the event loop may have its turn."""
DETAIL_LENGTH_MAX: Final = 200

T = TypeVar("T")
Read_co = TypeVar("Read_co", covariant=True)


class LineReader(Protocol[Read_co]):
    """What reads a line; a ``TypeAdapter`` is one. Raises ``ValidationError`` or `LineRefused`."""

    def validate_json(self, line: bytes, /) -> Read_co: ...


class LineRefused(ValueError):
    """``accept`` refuses this line; the text is for the client."""


@dataclass(frozen=True, slots=True)
class LineFailed:
    """A line that was taken has come to nothing, or nobody knows: ``outcome`` is that of an `IngestError`."""

    detail: str
    outcome: Literal["refused", "failed", "unknown"] = "failed"


LineFate: TypeAlias = "asyncio.Future[LineFailed | None]"
"""What ``accept`` may return: done when it is known what has become of the line; ``None``: what it was sent for."""
ToldLine: TypeAlias = Callable[[int, LineFailed | None], None]
"""Told once of each line, by its place among those that were given, what has become of it, now or later."""
AcceptMany: TypeAlias = Callable[[Sequence[T], ToldLine], Awaitable[int]]
"""Takes lines, and returns how many of them: the first one at least."""


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
    accept: Callable[[T], Awaitable[LineFate | None]],
    *,
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Response:
    """Read each line as ``line_type`` and hand it to ``accept``, which may wait, raise `LineRefused`, or raise
    `Unavailable` or ``HTTPException`` to give up. It may return a `LineFate`, which has to be done at some time. Blank
    lines are skipped, and counted as lines.

    Answers 200 with an `IngestAnswer` when every line was accepted; else a problem with the same fields: 503 where
    lines have failed and for `Unavailable`, 422 when lines were refused, 413 for a line that is too long, 408 for a
    client that stopped sending, the status of an ``HTTPException``, 415 for another content type. ``HTTPException`` at
    the first line is raised.
    """

    async def accept_first(lines: Sequence[T], told: ToldLine) -> int:
        try:
            fate = await accept(lines[0])
        except LineRefused as error:
            told(0, LineFailed(str(error), "refused"))
        else:
            if fate is None:
                told(0, None)
            else:
                fate.add_done_callback(lambda fate: told(0, fate.result()))
        return 1

    return await ingest_many(request, line_type, accept_first, line_bytes_max=line_bytes_max)


async def ingest_many(
    request: Request,
    line_type: type[T] | LineReader[T],
    accept: AcceptMany[T],
    *,
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Response:
    """As `ingest`, for who takes many lines together, up to `LINES_AT_ONCE` of what has come at once."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != STREAM_TYPE:
        return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send JSON lines as {STREAM_TYPE}")
    request.scope[BODY_LIMIT].bytes_max = None
    taking = _Taking(_reader_of(line_type), accept, partial(pay, request))
    async with aclosing(request.stream()) as body:
        try:
            try:
                async with aclosing(_lines(body, line_bytes_max)) as lines:
                    async for some in lines:
                        await taking.take(some)
            except (_GivenUp, Unavailable, HTTPException) as error:
                is_read = await _read_out(body)
                if isinstance(error, HTTPException) and not taking.has_begun:
                    raise  # as any other route answers
                await taking.settled()
                answer = taking.answer(*_given_up(error))
                if not is_read:
                    answer.headers["connection"] = "close"
                return answer
        except ClientDisconnect:
            return Response()  # nobody reads it
    await taking.settled()
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

    def __init__(
        self,
        line_reader: LineReader[Any],
        accept: AcceptMany[Any],
        pay: Callable[[float], Awaitable[None]],
    ) -> None:
        self._line_reader = line_reader
        self._accept = accept
        self._pay = pay
        self._turns = Turns()
        self._next = 1
        """The first line that nothing has become of yet."""
        self._accepted = self._refused = self._failed = self._open = 0
        self._errors: list[IngestError] = []
        self._changed = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether something has become of a line already, which the client has to be told."""
        return bool(self._accepted or self._refused or self._failed or self._open)

    async def take(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Take lines, each with its number. Raises `_GivenUp` after too many refusals, and what ``accept`` raises."""
        begun = 0
        while begun < len(lines):
            self._next = lines[begun][0]
            if (bad := self._failed + self._refused) >= REFUSED_MAX:
                why = f"{bad} lines were not surely taken; the rest was not taken"
                raise _GivenUp(HTTPStatus.SERVICE_UNAVAILABLE, why)
            some = _portion(lines[begun : begun + min(LINES_AT_ONCE, REFUSED_MAX - bad)])
            if len(first := some[0][1]) > FREE_BYTES:
                await self._pay(price_of_text(first))
            await self._take_some(some)
            begun += len(some)

    async def _take_some(self, lines: Iterable[tuple[int, bytes]]) -> None:
        values: list[Any] = []
        numbers: list[int] = []
        for number, line in lines:
            await self._turns.next()
            try:
                values.append(self._line_reader.validate_json(line))
                numbers.append(number)
            except (ValidationError, LineRefused) as error:
                await self._hand_over(values, numbers)
                values, numbers = [], []
                why = first_reason(error) if isinstance(error, ValidationError) else str(error)
                self._over(number, LineFailed(why, "refused"))
                self._check_refused(number)
        await self._hand_over(values, numbers)

    async def _hand_over(self, values: Sequence[Any], numbers: Sequence[int]) -> None:
        while values:
            self._next, refused = numbers[0], self._refused
            await self._turns.next()

            def told(index: int, failed: LineFailed | None, numbers: Sequence[int] = numbers) -> None:
                self._open -= 1
                self._over(numbers[index], failed)

            taken = await self._accept(values, told)
            self._open += taken
            if self._refused > refused:
                self._check_refused(numbers[taken - 1])
            values, numbers = values[taken:], numbers[taken:]

    def _check_refused(self, number: int) -> None:
        """Raise `_GivenUp` if this line is one refused line too many."""
        self._next = number + 1
        if self._refused >= REFUSED_MAX:
            why = f"{counted(self._refused, 'line')} refused; the rest was not read"
            raise _GivenUp(HTTPStatus.UNPROCESSABLE_ENTITY, why)

    async def settled(self) -> None:
        """Wait until it is known of every line what has become of it."""
        while self._open:
            self._changed.clear()
            await self._changed.wait()

    def answer(self, status: HTTPStatus = HTTPStatus.OK, detail: str = "") -> Response:
        """The answer that says what became of the lines of the body."""
        is_complete = status is HTTPStatus.OK
        if not is_complete:
            self._errors.append(IngestError(line=self._next, detail=detail, outcome="failed", is_rest=True))
        elif self._failed:
            status, detail = HTTPStatus.SERVICE_UNAVAILABLE, self._what_failed()
        elif self._refused and is_complete:
            status, detail = HTTPStatus.UNPROCESSABLE_ENTITY, f"{counted(self._refused, 'line')} refused"
        told = IngestAnswer(
            accepted=self._accepted,
            refused=self._refused,
            errors=_in_rows(self._errors),
            is_complete=is_complete,
            detail=detail,
            failed=self._failed,
        )
        shown = told.model_dump() | {"errors": [error.model_dump(exclude_defaults=True) for error in told.errors]}
        if not self._failed:
            del shown["failed"]
        if status is HTTPStatus.OK:
            return JSONResponse(shown)
        fields = {"type": "about:blank", "title": status.phrase, "status": int(status)}
        return JSONResponse({**fields, **shown}, status, media_type=PROBLEM_TYPE)

    def _what_failed(self) -> str:
        of, why = self._failed + self._accepted, next(each.detail for each in self._errors if each.outcome != "refused")
        return f"{self._failed} of {of} lines have no certain outcome, or have failed: {why}"

    def _over(self, number: int, failed: LineFailed | None) -> None:
        if failed is None:
            self._accepted += 1
        else:
            self._refused += failed.outcome == "refused"
            self._failed += failed.outcome != "refused"
            detail = failed.detail[:DETAIL_LENGTH_MAX]
            self._errors.append(IngestError(line=number, detail=detail, outcome=failed.outcome))
        self._changed.set()


def _portion(lines: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
    """As many of these as are read in one go: one that is paid for begins another."""
    size = 0
    for count, (_, line) in enumerate(lines):
        size += len(line)
        if count and (size > BYTES_AT_ONCE or len(line) > FREE_BYTES):
            return lines[:count]
    return lines


def _in_rows(errors: Iterable[IngestError]) -> list[IngestError]:
    """What has happened to the lines, in their order; failed ones in a row with the same reason are told together."""
    rows: list[IngestError] = []
    for error in sorted(errors, key=lambda error: (error.line, error.is_rest)):
        before = rows[-1] if rows else None
        if before is not None and _goes_on(before, error):
            rows[-1] = before.model_copy(update={"last": error.line})
        else:
            rows.append(error)
    return rows


def _goes_on(before: IngestError, error: IngestError) -> bool:
    is_next = error.line == (before.last or before.line) + 1 and not error.is_rest
    return is_next and error.outcome != "refused" and (error.outcome, error.detail) == (before.outcome, before.detail)


async def _lines(
    body: AsyncGenerator[bytes, None], line_bytes_max: int
) -> AsyncGenerator[list[tuple[int, bytes]], None]:
    """(number, line) of each line that is not blank, those together that have come together."""
    rest, number = bytearray(), 0
    async with aclosing(_chunks(body)) as chunks:
        async for chunk in chunks:
            *whole, last = chunk.split(b"\n")
            found: list[tuple[int, bytes]] = []
            for line in whole:
                number += 1
                if rest:
                    line = bytes(rest) + line
                    rest.clear()
                if len(line) > line_bytes_max:
                    yield found
                    _check_length(number, line, line_bytes_max)
                if line.strip():
                    found.append((number, line))
            yield found
            rest += last
            _check_length(number + 1, rest, line_bytes_max)
    if rest.strip():
        yield [(number + 1, bytes(rest))]


def _check_length(number: int, line: bytes | bytearray, line_bytes_max: int) -> None:
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
        for begin in range(0, len(chunk), CHUNK_BYTES_MAX):  # between them others have their turn
            yield chunk[begin : begin + CHUNK_BYTES_MAX]


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
