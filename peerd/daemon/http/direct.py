"""Routes that are asked many times a second: what FastAPI finds out about their first request holds for the next ones.

    @routes.post("/{topic}/notes", response_model=None)
    @direct
    async def add(request: Request, topic: Topic, urgent: bool = False) -> NoteAdded | Response: ...

To find a route, and to read its parameters, costs FastAPI more than most handlers do. Path and query alone decide about
both, so that both are remembered for each path and query; the checks of who asks are done for every request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute

from peerd.daemon.http.admission import Dependency
from peerd.daemon.http.gate import App, Receive, Scope, Send

CALLS_MAX: Final = 256
"""So many paths with their queries are remembered; then the oldest one is forgotten."""
TARGET_LENGTH_MAX: Final = 512
"""One that is longer is not."""
CALL_KEY: Final = "peerd.direct_call"
"""Key of the ASGI scope: the function of a direct route with the parameters that FastAPI has read."""
JSON_TYPE: Final = "application/json"
_MARK: Final = "is_direct"

Answer = BaseModel | Response
Handler = Callable[..., Awaitable[Response]]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Answer]])


def direct(handler: HandlerT) -> HandlerT:
    """Mark the function of a route: it gets the request, reads the body itself, and has no other dependencies."""

    async def answered(request: Request, **parameters: Any) -> Response:
        answer = await handler(request, **parameters)
        return answer if isinstance(answer, Response) else Response(answer.model_dump_json(), media_type=JSON_TYPE)

    @wraps(handler)
    async def noted(request: Request, **parameters: Any) -> Response:
        request.scope[CALL_KEY] = partial(answered, **parameters)
        return await answered(request, **parameters)

    vars(noted)[_MARK] = True
    return noted  # type: ignore[return-value]  # FastAPI hands over the same parameters, by their names


@dataclass(frozen=True, slots=True)
class _Call:
    route: BaseRoute
    checks: Sequence[Dependency]
    handler: Handler


class DirectRoutes:
    """ASGI, in front of an application's router."""

    def __init__(self, app: FastAPI) -> None:
        self._app: App = app.router.middleware_stack
        self._routes: list[tuple[BaseRoute, Sequence[Dependency]]] = []
        self._calls: dict[tuple[str, str, bytes], _Call] = {}
        app.router.middleware_stack = self

    def add(self, router: APIRouter, checks: Sequence[Dependency]) -> None:
        """Take the direct routes of a router, which ``checks`` guard. One that depends on more stays as it is."""
        for route in router.routes:
            if isinstance(route, APIRoute) and hasattr(route.endpoint, _MARK):
                needs = route.dependant
                if not (needs.dependencies or needs.header_params or needs.cookie_params or needs.body_params):
                    self._routes.append((route, checks))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key = scope["method"], scope["path"], scope["query_string"]
        call = self._calls.get(key)
        if call is None:
            await self._app(scope, receive, send)
            self._remember(key, scope)
            return
        scope["route"] = call.route
        request = Request(scope, receive, send)
        for check in call.checks:
            await check(request)
        response = await call.handler(request)
        await response(scope, receive, send)

    def _remember(self, key: tuple[str, str, bytes], scope: Scope) -> None:
        if (handler := scope.get(CALL_KEY)) is None or len(key[1]) + len(key[2]) > TARGET_LENGTH_MAX:
            return
        for route, checks in self._routes:
            if route is scope["route"]:
                self._calls[key] = _Call(route, checks, handler)
                if len(self._calls) > CALLS_MAX:
                    del self._calls[next(iter(self._calls))]
