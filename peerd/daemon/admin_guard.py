"""What every request of the admin API passes before a route sees it, and how errors look.

Plain ASGI: a request body above its cap is refused while it arrives, and over TCP the host name must be this machine's
(a web page open in a browser here must not reach the daemon through a name that it points at 127.0.0.1).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from peerd.admin_models import PROBLEM_TYPE, Problem
from peerd.config import is_loopback
from peerd.errors import Unavailable
from peerd.limits import KIB

REQUEST_BODY_BYTES_MAX: Final = 64 * KIB
RETRY_AFTER_S: Final = 1
NOT_READY_TITLE: Final = "Unavailable"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestGuard:
    """ASGI middleware: `REQUEST_BODY_BYTES_MAX`, and only this machine's names as host over TCP."""

    def __init__(self, app: App, body_bytes_max: int = REQUEST_BODY_BYTES_MAX) -> None:
        self.app = app
        self.body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"content-length")}
        if scope.get("client") is not None and not is_local_host(headers.get(b"host", b"").decode("latin-1")):
            await _refuse(send, HTTPStatus.MISDIRECTED_REQUEST, "use 127.0.0.1 or localhost as the host name")
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > self.body_bytes_max:
            await _refuse(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._too_large())
            return
        await self._run_bounded(scope, receive, send)

    async def _run_bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def bounded_receive() -> MutableMapping[str, Any]:
            nonlocal received
            event = await receive()
            received += len(event.get("body", b""))
            if received > self.body_bytes_max:  # whoever reads the body lets this one exception through
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._too_large())
            return event

        await self.app(scope, bounded_receive, send)

    def _too_large(self) -> str:
        return f"a request body has at most {self.body_bytes_max} bytes"


def is_local_host(header: str) -> bool:
    """Whether a Host header names this machine: localhost or a loopback address, with or without a port."""
    if header.startswith("["):
        return is_loopback(header[1:].partition("]")[0])
    return is_loopback(header.partition(":")[0])


def problem(status: int, detail: str, title: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An RFC 9457 answer."""
    body = Problem(title=title or HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(body.model_dump(), status, dict(headers or {}), media_type=PROBLEM_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Every error leaves as problem+json; one that nobody expected is a 500 here, and a traceback in the log."""

    @app.exception_handler(AnyHTTPException)
    async def http_error(request: Request, error: AnyHTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = [f"{'.'.join(map(str, each['loc'][1:])) or 'body'}: {each['msg']}" for each in error.errors()[:8]]
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(found), "Invalid request")

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> JSONResponse:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), NOT_READY_TITLE, headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in the daemon; its log has the traceback")


async def _refuse(send: Send, status: HTTPStatus, detail: str) -> None:
    body = json.dumps(Problem(title=status.phrase, status=status, detail=detail).model_dump()).encode()
    headers = [
        (b"content-type", PROBLEM_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
