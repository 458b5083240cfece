"""Decides who may call a route: FastAPI dependencies that `peerd.daemon.admin.api` puts before every route.

On the operators' listeners everybody who can connect may read; changes are for the local operator, whom the kernel
identifies on the unix socket. On the data clients' listeners a token, if one was sent, must have the route's scope.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import FastAPI, HTTPException, WebSocketException, status
from starlette.requests import HTTPConnection

from peerd.daemon.admin.subject import Subject
from peerd.daemon.http.access_book import AccessToken
from peerd.daemon.http.asker import ASKER_KEY, Asker
from peerd.daemon.http.caller import Caller, caller_of, user_name
from peerd.daemon.http.gate import CHALLENGE, TOKEN_KEY
from peerd.front import SCOPE_KEY, ScopeName, scope_of

ROOT_USER_ID: Final = 0
NAME_KEPT_S: Final = 60.0
"""A user's name is asked for again after so long: who publishes one event a request must not wait for a thread each."""
NAMES_MAX: Final = 256
NOT_OPERATIONS: Final = frozenset({"parameters", "summary", "description", "servers"})
"""Keys of a path in an OpenAPI document that are not methods."""

Dependency = Callable[[HTTPConnection], Awaitable[None]]

_log = structlog.get_logger("peerd.daemon")
_names: dict[int | None, tuple[str | None, float]] = {}
"""The names of callers, and until when they are taken as they are."""


def operators_only(daemon: Subject, refused: Callable[[str], None]) -> Dependency:
    """For the operators' listeners: reads pass, changes are for the local operator, and logged with who it was."""

    async def check(connection: HTTPConnection) -> None:
        settings = daemon.loaded.config.admin  # looked up each time: a reload may have replaced it
        caller = caller_of(connection.scope)
        is_operator = _note_asker(connection, settings.operators)
        if needed_scope(connection) == "read":
            return
        method, path = connection.scope.get("method", "WEBSOCKET"), connection.scope["path"]
        if caller is None or caller.is_tcp:
            refused("not_local")
            raise refusal(
                connection,
                f"{method} {path} is for the local operator, and over TCP nobody knows who asks: use the unix socket "
                f"{settings.socket}",
            )
        if not is_operator:
            refused("not_operator")
            _log.warning("admin.call_refused", method=method, path=path, **await who(caller))
            raise refusal(
                connection,
                f"{method} {path} is for operators: root, the daemon's own user {os.geteuid()}, and those in "
                f"admin.operators; you are user {caller.user_id}",
            )
        if method != "GET":  # the lists that are for operators change nothing
            _log.info("admin.call", method=method, path=path, **await who(caller))

    return check


def never_over_tcp(daemon: Subject, refused: Callable[[str], None]) -> Dependency:
    """For the protocols' routes on the operators' listeners: what they tell is some client's, and over TCP nobody knows
    whose. A question is work, too, and a subscription takes room."""

    async def check(connection: HTTPConnection) -> None:
        caller = caller_of(connection.scope)
        if caller is not None and caller.is_tcp:
            refused("not_local")
            raise refusal(
                connection,
                f"{connection.url.path} is not served by admin.http: use the unix socket "
                f"{daemon.loaded.config.admin.socket}, or a data listener",
            )

    return check


async def who(caller: Caller) -> dict[str, object]:
    """Describe the caller of a unix socket for the log. A name that is not known yet is found out in a thread: it may
    come from a network directory."""
    now, (name, until_s) = time.monotonic(), _names.get(caller.user_id, (None, -math.inf))
    if now >= until_s:
        name = await asyncio.to_thread(user_name, caller.user_id)
        _names[caller.user_id] = name, now + NAME_KEPT_S
        while len(_names) > NAMES_MAX:
            del _names[next(iter(_names))]
    return {"uid": caller.user_id, "user": name, "pid": caller.process_id}


def scope_needed(daemon: Subject, plugin: str, refused: Callable[[str], None]) -> Dependency:
    """For the data clients' listeners: a token that was shown must have the scope of the plugin's route."""

    async def check(connection: HTTPConnection) -> None:
        token = connection.scope.get("state", {}).get(TOKEN_KEY)
        scope = f"{plugin}:{needed_scope(connection)}"
        if not isinstance(token, AccessToken):
            _note_asker(connection, daemon.loaded.config.admin.operators)
            return
        connection.scope["state"][ASKER_KEY] = Asker(f"token {token.name}", may_write=token.allows(f"{plugin}:write"))
        if not token.allows(scope):
            refused("scope_missing")
            challenge = f'{CHALLENGE}, error="insufficient_scope", scope="{scope}"'
            raise refusal(connection, f"the token {token.name} lacks the scope {scope}", challenge)

    return check


def _note_asker(connection: HTTPConnection, operators: tuple[int, ...]) -> bool:
    """Keep whose the request is, by what the kernel says; returns whether it is an operator's."""
    caller = caller_of(connection.scope)
    user_id = None if caller is None else caller.user_id
    if user_id is None:
        return False
    is_operator = user_id in (ROOT_USER_ID, os.geteuid(), *operators)
    connection.scope["state"][ASKER_KEY] = Asker(f"user {user_id}", is_operator, may_write=True)
    return is_operator


def needed_scope(connection: HTTPConnection) -> ScopeName:
    """Return the scope that the route of a request needs. A WebSocket begins as a GET, so it counts as reading."""
    return "read" if connection.scope["type"] == "websocket" else scope_of(connection.scope.get("route"))


def refusal(connection: HTTPConnection, detail: str, challenge: str = "") -> Exception:
    """Return the exception to raise: for 403; for a WebSocket one that becomes 403, because it is not open yet."""
    if connection.scope["type"] == "websocket":
        return WebSocketException(status.WS_1008_POLICY_VIOLATION, detail)
    headers = {"www-authenticate": challenge} if challenge else None
    return HTTPException(HTTPStatus.FORBIDDEN, detail, headers)


def show_scopes(app: FastAPI) -> None:
    """Have the OpenAPI document state what each route needs, also where nobody wrote it down."""
    make_document = app.openapi

    def document() -> dict[str, object]:
        made = make_document()
        for operations in made["paths"].values():
            for method, operation in operations.items():
                if method not in NOT_OPERATIONS:
                    operation.setdefault(SCOPE_KEY, "read" if method in ("get", "head") else "write")
        return made

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation has it
