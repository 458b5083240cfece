"""The routes of the admin API and of the data clients' API: FastAPI, and the models that they check everything with.

Imported when the first request comes that is none of the probes (see `peerd.daemon.admin.server`): nothing else in a
daemon may import it. Everything runs on the loop, between two events of the node, so a route sees a consistent state
and needs no lock. A plugin adds routes below ``/v1`` through its front (`peerd.front`): those for data clients, who
find them on their own listeners, and those for operators. Operators get all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path as PathParameter, Response
from fastapi.middleware.cors import CORSMiddleware

from peerd.api import LookupResult
from peerd.daemon.admin import view as admin_view
from peerd.daemon.admin.access import access_router
from peerd.daemon.admin.events import events_router
from peerd.daemon.admin.identity import identity_router
from peerd.daemon.admin.members import members_router
from peerd.daemon.admin.plugins import add_router, plugin_routers
from peerd.daemon.admin.subject import Subject
from peerd.daemon.admin.survey import survey_router
from peerd.daemon.http.admission import never_over_tcp, operators_only, scope_needed, show_scopes
from peerd.daemon.http.direct import DirectRoutes
from peerd.daemon.http.gate import App, Gate
from peerd.daemon.http.guard import RequestGuard, add_problem_handlers, document_problems
from peerd.daemon.http.routes import serve
from peerd.errors import Bug, ConfigError, Unavailable
from peerd.models import admin as models, routes
from peerd.models.admin import API_PREFIX, ROUTE_KEY_LENGTH_MAX

ROUTE_TIMEOUT_S: Final = 10.0
CORS_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
CORS_REQUEST_HEADERS: Final = ("Authorization", "Content-Type", "Last-Event-ID")
CORS_ANSWER_HEADERS: Final = ("Retry-After", "WWW-Authenticate")

Key = Annotated[str, PathParameter(max_length=ROUTE_KEY_LENGTH_MAX)]
Refused = Callable[[str], None]
"""Counts a refused request under its reason."""


def not_counted(reason: str) -> None:
    """Counts nothing: for applications that no listener serves."""


def admin_app(daemon: Subject) -> App:
    """Gate and routes of the operators' listeners without a server: tests call it directly."""
    return Gate(admin_api(daemon), daemon)


def admin_api(daemon: Subject, refused: Refused = not_counted) -> FastAPI:
    """Every route: the daemon's own, and all of the plugins'."""
    data, operators = plugin_routers(daemon)
    is_operator, is_near = operators_only(daemon, refused), never_over_tcp(daemon, refused)
    app = _new_app(daemon, "peerd admin API", Depends(is_operator))
    app.include_router(_state_router(daemon), prefix=API_PREFIX, tags=["state"])
    _document_probes(app, ("/livez", "/readyz", "/healthz"))
    _document_metrics(app)
    app.include_router(identity_router(daemon), prefix=API_PREFIX, tags=["identity"])
    app.include_router(access_router(daemon, [name for name, _ in data]), prefix=API_PREFIX, tags=["access"])
    app.include_router(survey_router(daemon), prefix=API_PREFIX)
    app.include_router(events_router(daemon), prefix=API_PREFIX)
    app.include_router(members_router(daemon), prefix=API_PREFIX, tags=["members"])
    direct = DirectRoutes(app)
    for name, router in (*data, *operators):
        add_router(app, name, router, Depends(is_near))
        direct.add(router, (is_operator, is_near))
    return app


def data_api(daemon: Subject, refused: Refused = not_counted) -> FastAPI:
    """The application for data clients: the plugins' routes for them, and of the daemon's own only the probes."""
    app = _new_app(daemon, "peerd data API")
    if origins := daemon.loaded.config.data.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=list(CORS_METHODS),
            allow_headers=list(CORS_REQUEST_HEADERS),
            expose_headers=list(CORS_ANSWER_HEADERS),
        )
    _document_probes(app, ("/livez", "/readyz"))
    direct = DirectRoutes(app)
    for name, router in plugin_routers(daemon)[0]:
        has_scope = scope_needed(daemon, name, refused)
        add_router(app, name, router, Depends(has_scope))
        direct.add(router, (has_scope,))
    return app


def _new_app(daemon: Subject, title: str, *dependencies: Any) -> FastAPI:
    app = FastAPI(
        title=title,
        version=daemon.node.settings.version,
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=dependencies,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # looked for anew at each request
    )
    app.add_middleware(RequestGuard)
    add_problem_handlers(app)
    document_problems(app)
    show_scopes(app)
    return app


def _state_router(daemon: Subject) -> APIRouter:
    router = APIRouter()

    @serve(router, routes.STATUS)
    async def status() -> models.Status:
        """The daemon in one object."""
        return admin_view.status(daemon)

    @serve(router, routes.PEERS)
    async def peers() -> models.Peers:
        """Every peer that this node knows, in id order, and those that it has removed."""
        return models.Peers(
            peers=admin_view.peers(daemon), departed=admin_view.departed(daemon), missing=admin_view.missing(daemon)
        )

    @serve(router, routes.RING)
    async def ring() -> models.Ring:
        """The ring as seen from here."""
        return admin_view.ring(daemon)

    @serve(router, routes.ROOT_OF)
    async def route(key: Key) -> models.RouteView:
        """Look up the root of a key: 32 hexadecimal digits are taken as they are, any other text is hashed."""
        node_id, is_hashed = admin_view.parse_key(key)
        node = daemon.node
        if (outside := node.overlay.outside_reason()) is not None:
            raise Unavailable(f"{outside}: ask another node")
        if not node.is_ready:
            raise Unavailable("this node has not joined the ring yet; try again in a moment")
        found: asyncio.Future[LookupResult] = asyncio.get_running_loop().create_future()

        def finished(result: LookupResult) -> None:
            if not found.done():
                found.set_result(result)

        node.hosts[node.overlay.name].lookup(node_id, finished, ROUTE_TIMEOUT_S)
        try:
            result = await asyncio.wait_for(found, ROUTE_TIMEOUT_S + 1)
        except TimeoutError as error:
            raise Unavailable("the daemon stopped during the lookup") from error
        return admin_view.route(daemon, result, is_hashed)

    @serve(router, routes.CONFIG)
    async def config() -> models.EffectiveSettings:
        """Effective values with their origins."""
        return admin_view.settings(daemon)

    @serve(router, routes.RELOAD)
    async def reload() -> models.ReloadAnswer:
        """Read the configuration again and apply what can be applied; 422, and nothing changes, when it is wrong."""
        try:
            return admin_view.reloaded(await daemon.reload())
        except ConfigError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error

    return router


PROBES: Final = {
    "/livez": "Whether the event loop keeps up; a supervisor may restart the daemon when not.",
    "/readyz": "Whether the node serves: joined, leaf set complete, not stopping.",
    "/healthz": "Every check; ``?verbose`` lists them.",
}


async def _answered_in_front() -> Response:
    raise Bug("a probe got past `Gate`")


def _document_probes(app: FastAPI, paths: Sequence[str]) -> None:
    """Add the probes to the OpenAPI document; `Gate`, in front of this application, answers them."""
    for path in paths:
        app.add_api_route(
            path,
            _answered_in_front,
            tags=["health"],
            response_model=models.Health,
            responses={503: {"model": models.Health}},
            description=PROBES[path],
            operation_id=path[1:],
            summary=path[1:].capitalize(),
        )


def _document_metrics(app: FastAPI) -> None:
    app.add_api_route(
        "/metrics",
        _answered_in_front,
        tags=["health"],
        response_class=Response,
        description="Prometheus exposition text.",
        operation_id="metrics",
    )
