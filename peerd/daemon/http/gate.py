"""The checks that every HTTP request passes before the routes: host name, origin, probes, budget, token.

Plain ASGI, without FastAPI: a daemon that is only probed and scraped never loads it. Probes are answered before the
budget is looked at, so that no client keeps a supervisor from hearing that the daemon is well.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from peerd.config import is_loopback
from peerd.daemon.admin.subject import Subject
from peerd.daemon.http.access import RETRY_AFTER_S, USE_KEY
from peerd.daemon.http.access_book import AccessRefused, AccessToken
from peerd.daemon.http.budget import RequestBudget
from peerd.daemon.http.caller import ListenerName, caller_of, host_name
from peerd.errors import PeerdError
from peerd.identity.renewal import RenewalState
from peerd.limits import HTTP_REQUESTS_MAX
from peerd.node.node import Node
from peerd.telemetry.metrics import CONTENT_TYPE

LOOP_LAG_MAX_S: Final = 5.0
"""With a larger loop lag the daemon counts as not serving. A third of it already makes neighbours suspect the node."""
EXPOSITION: Final = "peerd.telemetry.exposition"
"""The module that makes Prometheus' text. The first scrape loads it, in a thread: it takes some 50 ms."""
PROBLEM_TYPE: Final = "application/problem+json"
NO_STORE: Final = {"cache-control": "no-store"}
NO_HEADERS: Final[Mapping[str, str]] = {}
PROBES: Final = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})
TOKEN_KEY: Final = "peerd_access_token"
"""The key in a request's ``state`` under which the `AccessToken` is that came with it."""
CHALLENGE: Final = 'Bearer realm="peerd"'
ORIGIN_SHOWN_MAX: Final = 100

_CERTIFICATE_STATES: Final[Mapping[RenewalState, str]] = {
    "ok": "valid",
    "warning": "valid, and its renewal fails",
    "error": "valid for little longer, and its renewal fails",
    "expired": "expired",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ListenerPolicy:
    """What one listener demands of its clients."""

    listener: ListenerName = "admin_socket"
    requests_max: int = HTTP_REQUESTS_MAX
    """Requests and streams under way at a time, probes apart."""
    probes: frozenset[str] = PROBES
    tells_details: bool = True
    """Whether probes say more than that all is well."""
    is_local: bool = True
    """Over TCP: whether the host name must be this machine's. A web page open in a browser here must not reach the
    daemon through a name of its own that it points at 127.0.0.1."""
    origins: frozenset[str] = frozenset()
    """Origins of the web pages that may send requests over TCP; "*" stands for any page."""
    takes_tokens: bool = False
    """Whether tokens are checked. Operators' listeners ignore them."""
    needs_token: bool = False


DEFAULT_POLICY: Final = ListenerPolicy()


class Gate:
    """Answers the probes, and lets everything else that may come in through to ``app``.

    ``refused`` counts refusals by reason, ``before_metrics`` brings gauges up to date.
    """

    def __init__(
        self,
        app: App,
        daemon: Subject,
        policy: ListenerPolicy = DEFAULT_POLICY,
        *,
        refused: Callable[[str], None] = lambda reason: None,
        before_metrics: Callable[[], None] = lambda: None,
    ) -> None:
        self.app = app
        self._daemon = daemon
        self.policy = policy
        """Replaced when the configuration changes."""
        self._refused = refused
        self._before_metrics = before_metrics
        self._running = RequestBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            self._check_source(scope)
            is_get = scope["type"] == "http" and scope["method"] == "GET"
            if is_get and (answer := await self._probe(scope)) is not None:
                await respond(send, *answer)
                return
            token = self._token(scope)
            running = len(self._running)
            if running >= self.policy.requests_max:
                if not self._running.make_room(scope):
                    detail = f"{running} requests are under way here; try again when one has ended"
                    raise Refusal("requests_max", HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "1"})
                self._refused("gave_way")
            with self._running.counted(scope):
                await self._run(scope, receive, send, token)
        except Refusal as refusal:
            self._refused(refusal.reason)
            headers = {**refusal.headers, **self._shown_to_page(scope)}
            await refuse(send, refusal.status, str(refusal), headers, scope=scope)

    def _check_source(self, scope: Scope) -> None:
        """Over TCP, check the host name that the client used, and the web page that it is from. Raises `Refusal`."""
        caller = caller_of(scope)
        if not (caller.is_tcp if caller is not None else scope.get("client")):
            return
        policy = self.policy
        if policy.is_local and not is_local_host(header(scope, b"host")):
            raise Refusal("host", HTTPStatus.MISDIRECTED_REQUEST, "use 127.0.0.1 or localhost as the host name")
        origin = header(scope, b"origin")
        if origin and not policy.origins & {origin, "*"}:
            # The browser would hide the answer from the page, but the request has its effect, and a WebSocket has both.
            detail = (
                f"web pages of {origin[:ORIGIN_SHOWN_MAX]} may not ask here; data.cors_origins lists those that may"
            )
            raise Refusal("origin", HTTPStatus.FORBIDDEN, detail)

    def _shown_to_page(self, scope: Scope) -> Mapping[str, str]:
        """Return headers that let a configured web page read a refusal; middleware adds them to other answers."""
        origin = header(scope, b"origin")
        if not origin or not self.policy.origins & {origin, "*"}:
            return NO_HEADERS
        exposed = "Retry-After, WWW-Authenticate"
        return {"access-control-allow-origin": origin, "access-control-expose-headers": exposed, "vary": "Origin"}

    def _token(self, scope: Scope) -> AccessToken | None:
        """Return the client's token; ``None`` when it sent none and needs none. Raises `Refusal`."""
        policy, authorization = self.policy, header(scope, b"authorization")
        if not policy.takes_tokens or is_preflight(scope):  # a browser asks first, and without the token
            return None
        if not authorization:
            if not policy.needs_token:
                return None
            detail = "show an access token: Authorization: Bearer TOKEN; `peerd access create` makes one"
            raise Refusal("token_missing", HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": CHALLENGE})
        try:
            return self._daemon.access.check(authorization, host_name(scope))
        except AccessRefused as error:
            if error.reason == "too_many_wrong_tokens":
                wait = {"retry-after": str(RETRY_AFTER_S)}
                raise Refusal(error.reason, HTTPStatus.TOO_MANY_REQUESTS, str(error), wait) from error
            challenge = {"www-authenticate": f'{CHALLENGE}, error="invalid_token"'}
            raise Refusal(error.reason, HTTPStatus.UNAUTHORIZED, str(error), challenge) from error

    async def _run(self, scope: Scope, receive: Receive, send: Send, token: AccessToken | None) -> None:
        if token is None:
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})[TOKEN_KEY] = token
        try:
            async with self._daemon.access.while_valid(token) as use:
                scope["state"][USE_KEY] = use
                await self.app(scope, receive, send)
            if use.is_over:  # a stream, which has told its client
                self._refused("token_over")
        except TimeoutError:
            if not use.limit.expired():
                raise
            await self._cut(scope, receive)

    async def _cut(self, scope: Scope, receive: Receive) -> None:
        """Cut the connection: the token ended in the middle of an answer, which cannot be ended in another way."""
        self._refused("token_over")
        if (caller := caller_of(scope)) is not None:
            caller.hang_up()
            while not (await receive())["type"].endswith(".disconnect"):
                pass

    async def _probe(self, scope: Scope) -> tuple[HTTPStatus, bytes, dict[str, str]] | None:
        path = scope["path"] if scope["path"] in self.policy.probes else ""
        match path:
            case "/metrics":
                if EXPOSITION not in sys.modules:
                    await asyncio.to_thread(importlib.import_module, EXPOSITION)
                self._before_metrics()
                return HTTPStatus.OK, self._daemon.metrics.render(), {"content-type": CONTENT_TYPE}
            case "/livez":
                return self._health({"event_loop"})
            case "/readyz":
                return self._health({"event_loop", "running", "ring", "certificate"})
            case "/healthz":
                wanted = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("verbose", ["0"])
                return self._health(None, is_verbose=wanted[-1] not in ("0", "false"))
        return None

    def _health(self, names: set[str] | None, *, is_verbose: bool = True) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        checks = [check for check in health(self._daemon) if names is None or check.name in names]
        is_ok = all(check.ok for check in checks)
        told = [asdict(check) for check in checks] if is_verbose and self.policy.tells_details else []
        body = json.dumps({"status": "ok" if is_ok else "failing", "checks": told}).encode()
        status = HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE
        return status, body, {"content-type": "application/json", **NO_STORE}


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One health check; `peerd.models.admin.Check` is the client's side of it."""

    name: str
    ok: bool
    detail: str


def health(daemon: Subject) -> list[HealthCheck]:
    """Every check. The first decides whether the process lives, the others whether it serves."""
    node, lag_s = daemon.node, daemon.loop_lag_s
    leaf_set = node.overlay.leaf_set()
    disabled = daemon.disabled_plugins
    size = f"leaf set of {len(leaf_set.members())} {'complete' if leaf_set.is_complete else 'not complete yet'}"
    outside = node.overlay.outside_reason()
    plugins = "; ".join(f"{name} is off: {error}" for name, error in sorted(disabled.items())) or "all on"
    checks = [
        HealthCheck("event_loop", lag_s <= LOOP_LAG_MAX_S, f"{lag_s:.3f} s late, at most {LOOP_LAG_MAX_S} s"),
        HealthCheck("running", not node.is_stopped and node.draining is None, _running(node)),
        HealthCheck("ring", node.overlay.is_ready and outside is None, outside or f"{size}; {_members(node)}"),
        HealthCheck("plugins", not disabled, plugins),
    ]
    if daemon.identity is not None:
        state = daemon.identity.renewal_state
        checks.append(HealthCheck("certificate", state != "expired", _CERTIFICATE_STATES[state]))
    return checks


def _members(node: Node) -> str:
    """Say how many expected members are there: a node that serves may be in only a part of the ring."""
    overlay = node.overlay
    lost = len(overlay.missing_members())
    if not lost:
        return "no member is missing"
    expected = len(overlay.expected_members())
    where = "" if overlay.leaf_set().covers_ring else " round this node"
    text = f"{expected - lost} of {expected} expected members{where}, {lost} missing"
    if overlay.is_minority:
        text += ": this side is the smaller part of a partition, or most of the ring is down"
    return text


def _running(node: Node) -> str:
    if node.draining is None:
        return "stopping" if node.is_stopped else "running"
    if node.is_stopped:
        return "drained: out of the ring until it is started again"
    return f"draining: waiting for {', '.join(node.draining) or 'the neighbours to hear of it'}"


def is_local_host(header: str) -> bool:
    """Whether a Host header names this machine: localhost or a loopback address, with or without a port."""
    if header.startswith("["):
        return is_loopback(header[1:].partition("]")[0])
    return is_loopback(header.partition(":")[0])


class Refusal(PeerdError):
    """A request that is not admitted; ``reason`` is the metric's label."""

    def __init__(self, reason: str, status: HTTPStatus, detail: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        super().__init__(detail)
        self.reason = reason
        self.status = status
        self.headers = headers


def header(scope: Scope, name: bytes) -> str:
    """The first header of that name, or nothing."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a web page may do, before the page does it."""
    is_options = scope["type"] == "http" and scope["method"] == "OPTIONS"
    return is_options and bool(header(scope, b"origin") and header(scope, b"access-control-request-method"))


async def refuse(
    send: Send,
    status: HTTPStatus,
    detail: str,
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    scope: Scope | None = None,
) -> None:
    """An RFC 9457 answer, after which the connection ends; to a WebSocket, instead of opening it."""
    body = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    told = {"content-type": PROBLEM_TYPE, "connection": "close", **headers}
    is_websocket = scope is not None and scope["type"] == "websocket"
    await respond(send, status, json.dumps(body).encode(), told, "websocket.http" if is_websocket else "http")


async def respond(send: Send, status: HTTPStatus, body: bytes, headers: Mapping[str, str], event: str = "http") -> None:
    """Send a whole answer: status, headers and body."""
    told = {**headers, "content-length": str(len(body))}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
    await send({"type": f"{event}.response.start", "status": int(status), "headers": raw})
    await send({"type": f"{event}.response.body", "body": body})
