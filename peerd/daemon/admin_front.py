"""What stands in front of the admin API's routes: the check of the host name, and the probes.

Plain ASGI, without FastAPI: a daemon that is only probed and scraped never loads it. Over TCP the host name must be
this machine's (a web page open in a browser here must not reach the daemon through a name that it points at 127.0.0.1).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from peerd.config import is_loopback
from peerd.daemon.admin_subject import Subject
from peerd.daemon.renewal import RenewalState
from peerd.node import Node

LOOP_LAG_MAX_S: Final = 5.0
"""An event loop later than this does not serve; a third of it already makes neighbours suspicious."""
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PROBLEM_TYPE: Final = "application/problem+json"
NO_STORE: Final = {"cache-control": "no-store"}

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


class Front:
    """Answers the probes, and lets everything else that may come in through to ``app``."""

    def __init__(self, app: App, daemon: Subject) -> None:
        self.app = app
        self._daemon = daemon

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            if scope.get("client") is not None and not is_local_host(host.decode("latin-1")):
                await refuse(send, HTTPStatus.MISDIRECTED_REQUEST, "use 127.0.0.1 or localhost as the host name")
                return
            if scope["method"] == "GET" and (answer := self._probe(scope)) is not None:
                await respond(send, *answer)
                return
        await self.app(scope, receive, send)

    def _probe(self, scope: Scope) -> tuple[HTTPStatus, bytes, dict[str, str]] | None:
        match scope["path"]:
            case "/metrics":
                return HTTPStatus.OK, self._daemon.metrics.render(), {"content-type": METRICS_TYPE}
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
        told = [asdict(check) for check in checks] if is_verbose else []
        body = json.dumps({"status": "ok" if is_ok else "failing", "checks": told}).encode()
        status = HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE
        return status, body, {"content-type": "application/json", **NO_STORE}


@dataclass(frozen=True, slots=True)
class Check:
    """One health check; `peerd.admin_models.Check` is the client's side of it."""

    name: str
    ok: bool
    detail: str


def health(daemon: Subject) -> list[Check]:
    """Every check. The first decides whether the process lives, the others whether it serves."""
    node, lag_s = daemon.node, daemon.loop_lag_s
    leaf_set = node.overlay.leaf_set()
    disabled = daemon.disabled_plugins
    size = f"leaf set of {len(leaf_set.members())} {'complete' if leaf_set.is_complete else 'not complete yet'}"
    outside = node.overlay.outside_reason()
    plugins = "; ".join(f"{name} is off: {error}" for name, error in sorted(disabled.items())) or "all on"
    checks = [
        Check("event_loop", lag_s <= LOOP_LAG_MAX_S, f"{lag_s:.3f} s late, at most {LOOP_LAG_MAX_S} s"),
        Check("running", not node.is_stopped and node.draining is None, _running(node)),
        Check("ring", node.overlay.is_ready and outside is None, outside or f"{size}; {_members(node)}"),
        Check("plugins", not disabled, plugins),
    ]
    if daemon.identity is not None:
        state = daemon.identity.renewal_state
        checks.append(Check("certificate", state != "expired", _CERTIFICATE_STATES[state]))
    return checks


def _members(node: Node) -> str:
    """Who of those that are expected is there: a node that serves may serve a part of the ring only."""
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


async def refuse(send: Send, status: HTTPStatus, detail: str) -> None:
    """An RFC 9457 answer, after which the connection ends."""
    body = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    await respond(send, status, json.dumps(body).encode(), {"content-type": PROBLEM_TYPE, "connection": "close"})


async def respond(send: Send, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
    """A whole answer."""
    told = {**headers, "content-length": str(len(body))}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": int(status), "headers": raw})
    await send({"type": "http.response.body", "body": body})
