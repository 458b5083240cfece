"""The HTTP routes that plugins bring, through their fronts."""

from __future__ import annotations

from typing import Any, TypeAlias

import structlog
from fastapi import APIRouter

from peerd.daemon.admin_subject import Subject
from peerd.errors import Unavailable
from peerd.plugins import usable_fronts

Routers: TypeAlias = list[tuple[str, APIRouter]]
"""By the plugin's name."""

_log = structlog.get_logger("peerd.daemon")


def plugin_routers(daemon: Subject) -> tuple[Routers, Routers]:
    """The routers for data clients, and those for operators only, of the plugins that this daemon runs.

    A front that cannot be used is told of in the log; operators must not lose the API over it.
    """
    data: Routers = []
    operators: Routers = []
    fronts = usable_fronts(lambda error: _log.warning("front.unusable", error=str(error)))
    for name, front in fronts.items():
        if name not in daemon.node.plugins:
            continue
        service = LivePlugin(daemon, name)
        for routers, router in ((data, front.router(service)), (operators, front.operator_router(service))):
            if router is not None:
                routers.append((name, router))
    return data, operators


class LivePlugin:
    """Stands for a plugin by name: after a failure the node replaces the instance, and routes must use the new one."""

    def __init__(self, daemon: Subject, name: str) -> None:
        self._daemon = daemon
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if self._name in self._daemon.disabled_plugins:
            raise Unavailable(f"the plugin {self._name} is off after repeated failures; see the daemon's log")
        return getattr(self._daemon.node.plugins[self._name], attribute)
