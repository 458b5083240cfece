"""The routes of the admin API: FastAPI, and the models that it checks requests and answers with.

Imported when the first request comes that is none of the probes (see `peerd.daemon.admin`): nothing else in a daemon
may import it. Everything runs on the loop, between two events of the node, so a route sees a consistent state and needs
no lock. A plugin adds routes below ``/v1`` through a static method ``router(service) -> APIRouter``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import FastAPI, Path as PathParameter, Response

from peerd.admin_models import API_PREFIX, ROUTE_KEY_LENGTH_MAX, Health, Peers, Ring, Route, Settings, Status
from peerd.api import LookupResult
from peerd.daemon import admin_view
from peerd.daemon.admin_front import App, Front
from peerd.daemon.admin_guard import RequestGuard, add_problem_handlers
from peerd.daemon.admin_identity import identity_router
from peerd.daemon.admin_members import members_router
from peerd.daemon.admin_subject import Subject
from peerd.daemon.admin_survey import survey_router
from peerd.errors import Bug, Unavailable

ROUTE_TIMEOUT_S: Final = 10.0

Key = Annotated[str, PathParameter(max_length=ROUTE_KEY_LENGTH_MAX)]


def admin_app(daemon: Subject) -> App:
    """Front and routes without a server: tests call it directly."""
    return Front(api(daemon), daemon)


def api(daemon: Subject) -> FastAPI:
    """Every route."""
    app = FastAPI(
        title="peerd admin API",
        version=daemon.node.settings.version,
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(RequestGuard)
    add_problem_handlers(app)
    _add_state_routes(app, daemon)
    _document_probes(app)
    app.include_router(identity_router(daemon), prefix=API_PREFIX, tags=["identity"])
    app.include_router(survey_router(daemon), prefix=API_PREFIX)
    app.include_router(members_router(daemon), prefix=API_PREFIX, tags=["members"])
    for name, plugin in sorted(daemon.node.plugins.items()):
        router = getattr(plugin, "router", None)
        if router is not None:
            app.include_router(router(LivePlugin(daemon, name)), prefix=API_PREFIX, tags=[name])
    return app


class LivePlugin:
    """Stands for a plugin by name: after a failure the node replaces the instance, and routes must use the new one."""

    def __init__(self, daemon: Subject, name: str) -> None:
        self._daemon = daemon
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if self._name in self._daemon.disabled_plugins:
            raise Unavailable(f"the plugin {self._name} is off after repeated failures; see the daemon's log")
        return getattr(self._daemon.node.plugins[self._name], attribute)


def _add_state_routes(app: FastAPI, daemon: Subject) -> None:
    @app.get(f"{API_PREFIX}/status", tags=["state"])
    async def status() -> Status:
        """The daemon in one object."""
        return admin_view.status(daemon)

    @app.get(f"{API_PREFIX}/peers", tags=["state"])
    async def peers() -> Peers:
        """Every peer that this node knows, in id order, and those that it has removed."""
        return Peers(
            peers=admin_view.peers(daemon), departed=admin_view.departed(daemon), missing=admin_view.missing(daemon)
        )

    @app.get(f"{API_PREFIX}/ring", tags=["state"])
    async def ring() -> Ring:
        """The ring as seen from here."""
        return admin_view.ring(daemon)

    @app.get(f"{API_PREFIX}/route/{{key:path}}", tags=["state"])
    async def route(key: Key) -> Route:
        """Look up the root of a key: 32 hexadecimal digits are taken as they are, any other text is hashed."""
        node_id, is_hashed = admin_view.parse_key(key)
        node = daemon.node
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

    @app.get(f"{API_PREFIX}/config", tags=["state"])
    async def config() -> Settings:
        """Effective values with their origins."""
        return admin_view.settings(daemon)


def _document_probes(app: FastAPI) -> None:
    """In the OpenAPI document; `Front`, in front of this application, answers them."""

    async def answered_in_front() -> Response:
        raise Bug("a probe got past `Front`")

    for path, what in (
        ("/livez", "Whether the event loop keeps up; a supervisor may restart the daemon when not."),
        ("/readyz", "Whether the node serves: joined, leaf set complete, not stopping."),
        ("/healthz", "Every check; ``?verbose`` lists them."),
    ):
        app.add_api_route(
            path,
            answered_in_front,
            tags=["health"],
            response_model=Health,
            responses={503: {"model": Health}},
            description=what,
            operation_id=path[1:],
        )
    app.add_api_route(
        "/metrics",
        answered_in_front,
        tags=["health"],
        response_class=Response,
        description="Prometheus exposition text.",
        operation_id="metrics",
    )
