"""Functions of the daemon that answer what tables of routes say (`peerd.models.routes`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Response

from peerd.front import SCOPE_KEY
from peerd.models.routes import HttpRoute

Answer = TypeVar("Answer")


def serve(
    router: APIRouter, route: HttpRoute[Answer], extra: Mapping[str, Any] | None = None, **options: Any
) -> Callable[[Callable[..., Awaitable[Answer | Response]]], object]:
    """Have a function answer a route: with what the table says, as type checkers see, or with a response of its own.

    ``extra``: more of the OpenAPI document, as FastAPI's ``openapi_extra``. ``options`` go to ``router.api_route``.
    """
    told = {**({SCOPE_KEY: route.scope} if route.scope else {}), **(extra or {})}
    return router.api_route(
        route.path, methods=[route.method], status_code=route.status, openapi_extra=told or None, **options
    )
