"""What a data client's route asks of an access token: to read, or to write.

A GET reads and everything else writes, unless the route says otherwise. It says so in its OpenAPI entry, where clients
see it too: ``@routes.post("/query", openapi_extra={"x-peerd-scope": "read"})``.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

from peerd.errors import Bug

RouteScope = Literal["read", "write"]
SCOPE_KEY: Final = "x-peerd-scope"
READS: Final[dict[str, Any]] = {SCOPE_KEY: "read"}
"""``openapi_extra`` of a route that changes nothing although its method is not GET."""
WRITES: Final[dict[str, Any]] = {SCOPE_KEY: "write"}
"""``openapi_extra`` of a GET that is not for everybody who may read."""
_READING_METHODS: Final = frozenset({"GET", "HEAD"})


def scope_of(route: object) -> RouteScope:
    """Whether a route of FastAPI or Starlette reads or writes; one that does not tell its methods writes."""
    stated = (getattr(route, "openapi_extra", None) or {}).get(SCOPE_KEY)
    if stated is not None:
        if stated not in ("read", "write"):
            raise Bug(f'{SCOPE_KEY} is "read" or "write", not {stated!r}')
        return cast(RouteScope, stated)
    methods = getattr(route, "methods", None)
    return "read" if methods and _READING_METHODS.issuperset(methods) else "write"
