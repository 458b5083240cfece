"""The HTTP routes that plugins bring, through their fronts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

import structlog
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from peerd.daemon.admin.subject import Subject
from peerd.errors import ConfigError, Unavailable
from peerd.models.admin import API_PREFIX
from peerd.plugins import guarded

Routers: TypeAlias = list[tuple[str, APIRouter]]
"""Routers, each with the name of the plugin that brings it."""

_log = structlog.get_logger("peerd.daemon")


def plugin_routers(daemon: Subject) -> tuple[Routers, Routers]:
    """The routers for data clients, and those for operators only, of the plugins that this daemon runs.

    A front that cannot be used is only reported in the log: operators must not lose the API because of it.
    """
    data: Routers = []
    operators: Routers = []
    for name, front in daemon.fronts().items():
        if name not in daemon.node.plugins:
            continue
        service = LivePlugin(daemon, name)
        try:
            routers = (
                guarded(name, "router", partial(front.router, service)),
                guarded(name, "router for operators", partial(front.operator_router, service)),
            )
        except ConfigError as error:
            _log.warning("front.unusable", plugin=name, error=str(error))
            continue
        for found, router in zip((data, operators), routers, strict=True):
            if router is not None:
                found.append((name, router))
    return data, operators


def add_router(app: FastAPI, name: str, router: APIRouter, *dependencies: Any) -> None:
    """Mount a plugin's routes below ``/v1``; none of them if one is taken, as nobody could reach that one."""
    taken = {endpoint for route in app.routes for endpoint in _endpoints(route)}
    clashes = sorted(
        f"{method} {API_PREFIX}{path}"
        for route in router.routes
        for method, path in _endpoints(route)
        if (method, f"{API_PREFIX}{path}") in taken
    )
    if clashes:
        _log.warning("front.unusable", plugin=name, error=f"these routes are there already: {', '.join(clashes)}")
        return
    app.include_router(router, prefix=API_PREFIX, tags=[name], dependencies=dependencies)


def _endpoints(route: BaseRoute, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Methods and paths of a route. Newer versions of FastAPI keep an included router as one route, with its own."""
    if isinstance(route, APIRoute):
        yield from ((method, prefix + route.path) for method in sorted(route.methods or ()))
    elif isinstance(included := getattr(route, "original_router", None), APIRouter):
        below = prefix + str(getattr(getattr(route, "include_context", None), "prefix", ""))
        for inner in included.routes:
            yield from _endpoints(inner, below)


class LivePlugin:
    """Stands for a plugin by name: after a failure the node replaces the instance, and routes must use the new one."""

    def __init__(self, daemon: Subject, name: str) -> None:
        self._daemon = daemon
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if self._name in self._daemon.disabled_plugins:
            raise Unavailable(f"the plugin {self._name} is off after repeated failures; see the daemon's log")
        return getattr(self._daemon.node.plugins[self._name], attribute)
