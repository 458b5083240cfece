"""The bounds on every request's body before a route sees it, and the form of errors.

A request body above its cap, or too slow, is refused while it arrives. A body of JSON lines may be of any length and
take any time where the route takes it line by line (`peerd.daemon.http.ingest`), and only there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from peerd.daemon.http.gate import App, Receive, Scope, Send, refuse
from peerd.daemon.http.paying import FREE_BYTES, MARK_S, NAME_MARK_S, WORK, new_work, pay_for, price_of_text
from peerd.daemon.memory_watch import tell_loop_of_memory
from peerd.errors import Unavailable
from peerd.invalid import told
from peerd.limits import KIB
from peerd.models.admin import PROBLEM_TYPE, STREAM_TYPE, Problem

REQUEST_BODY_BYTES_MAX: Final = 64 * KIB
ROUTE_BODY_BYTES_MAX: Final = 1088 * KIB
"""A route that takes large bodies may raise its bound to this, before it reads: `BodyLimit`."""
BODY_LIMIT_S: Final = 15.0
"""How many seconds a bounded body may take to arrive."""
RETRY_AFTER_S: Final = 1
NOT_READY_TITLE: Final = "Unavailable"
BODY_LIMIT: Final = "peerd.body_limit"
"""Key of the ASGI scope: the request's `BodyLimit`."""


@dataclass(slots=True)
class BodyLimit:
    """How many bytes a request's body may have.

    A route may set another bound before it reads, up to `ROUTE_BODY_BYTES_MAX`. One that bounds its body in another way
    sets ``None``, which also switches `BODY_LIMIT_S` off.
    """

    bytes_max: int | None


class RequestGuard:
    """ASGI middleware: `REQUEST_BODY_BYTES_MAX` and `BODY_LIMIT_S`; who sends a body that is dear to read, waits."""

    def __init__(self, app: App, body_bytes_max: int = REQUEST_BODY_BYTES_MAX) -> None:
        self.app = app
        self.body_bytes_max = body_bytes_max
        self._work = new_work()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[WORK] = self._work
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        # A route that takes a whole file bounds it itself; for any other one what comes is counted below.
        is_file = scope["method"] == "PUT"
        is_lines = (
            is_file or headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == STREAM_TYPE.encode()
        )
        largest = max(self.body_bytes_max, ROUTE_BODY_BYTES_MAX)
        if not length.isdigit() or len(length) > 18 or (not is_lines and int(length) > largest):
            await refuse(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(largest))
            return
        await self._run_bounded(scope, receive, send, 0 if is_lines else int(length))

    async def _run_bounded(self, scope: Scope, receive: Receive, send: Send, announced: int) -> None:
        """``announced``: the length of the body, as its header says."""
        limit, received, is_whole = BodyLimit(self.body_bytes_max), 0, False
        scope[BODY_LIMIT] = limit
        loop = asyncio.get_running_loop()
        due_at = loop.time() + BODY_LIMIT_S

        async def bounded_receive() -> MutableMapping[str, Any]:
            nonlocal received, is_whole, due_at
            if limit.bytes_max is not None and announced > limit.bytes_max:  # no route catches it: it is the answer
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(limit.bytes_max))
            try:
                async with asyncio.timeout_at(None if is_whole or limit.bytes_max is None else due_at):
                    event = await receive()
            except TimeoutError as error:
                detail = f"the request body did not arrive within {BODY_LIMIT_S:g} s"
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail, {"connection": "close"}) from error
            received += len(event.get("body", b""))
            is_whole = not event.get("more_body", False)
            if limit.bytes_max is not None and received > limit.bytes_max:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(limit.bytes_max))
            if limit.bytes_max is not None and received > FREE_BYTES:
                held_at = loop.time()
                mark_s = NAME_MARK_S if limit.bytes_max <= REQUEST_BODY_BYTES_MAX else MARK_S
                await pay_for(scope, price_of_text(event.get("body", b""), mark_s))
                due_at += loop.time() - held_at
            return event

        await self.app(scope, bounded_receive, send)


def _too_large(bytes_max: int) -> str:
    return f"a request body has at most {bytes_max} bytes"


def problem(status: int, detail: str, title: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as a JSON document, in the form of RFC 9457."""
    body = Problem(title=title or HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(body.model_dump(), status, dict(headers or {}), media_type=PROBLEM_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Every error leaves as problem+json; one that nobody expected is a 500 here, and a traceback in the log."""

    @app.exception_handler(AnyHTTPException)
    async def http_error(request: Request, error: AnyHTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        if _is_unread(error):
            came = request.headers.get("content-type", "none")
            detail = f"send the body with the header Content-Type: application/json; it came with {came!r:.80}"
            return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
        found = [told(each, skip=len(each["loc"]) > 1) for each in error.errors()[:8]]
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(found), "Invalid request")

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> JSONResponse:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), NOT_READY_TITLE, headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        tell_loop_of_memory(error)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in the daemon; its log has the traceback")

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it


def _is_unread(error: RequestValidationError) -> bool:
    """Whether the body was not read as JSON at all: FastAPI hands on plain bytes where the content type is another."""
    return any(tuple(each["loc"]) == ("body",) and isinstance(each.get("input"), bytes) for each in error.errors())


def document_problems(app: FastAPI) -> None:
    """Have the OpenAPI document state how errors look: a `Problem` for every status that a route does not describe.

    FastAPI describes its own answer to a request that it cannot understand, which `add_problem_handlers` replaces.
    """
    make_document = app.openapi
    reference = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    answer = {"description": "What went wrong.", "content": {PROBLEM_TYPE: {"schema": reference}}}

    def document() -> dict[str, Any]:
        made = make_document()
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas[Problem.__name__] = Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for operations in made["paths"].values():
            for operation in operations.values():
                responses = operation["responses"]
                if "HTTPValidationError" in str(responses.get("422")):
                    del responses["422"]
                responses.setdefault("default", answer)
        return made

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation has it
