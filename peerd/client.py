"""The Python client of a running daemon: the admin API over its unix socket, or over loopback HTTP.

    async with Client() as client:
        print((await client.status()).ring_size)
        async for line in client.aggregate("count by status", files="logs/*.ndjson"):
            print(line)

The command line uses it and nothing else. A daemon that does not answer is `DaemonUnreachable`, whose text says what
to do; a request that the daemon refuses is `RequestRefused`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

import httpx
from pydantic import TypeAdapter, ValidationError

from peerd.admin_models import (
    API_PREFIX,
    PROBLEM_TYPE,
    AdminModel,
    AggregateAnswer,
    AggregateFailed,
    AggregateLine,
    AggregateProgress,
    Certificate,
    CertificateRequest,
    DenialRequest,
    Denials,
    DeniedSubject,
    DrainAnswer,
    DrainLine,
    DrainProgress,
    ForgetRequest,
    Forgotten,
    GroupedValue,
    Health,
    History,
    NewToken,
    Peer,
    Peers,
    Problem,
    ReachAnswer,
    ReachLine,
    ReachProgress,
    RecordAnswer,
    RecordRequest,
    Ring,
    RingCheck,
    RingLine,
    RotationRequest,
    Route,
    Rtt,
    Setting,
    Settings,
    Status,
    Token,
    TokenRequest,
    Tokens,
    WalkProgress,
)
from peerd.config import AdminConfig
from peerd.errors import PeerdError, Unavailable
from peerd.limits import MIB

__all__ = [
    "AggregateAnswer",
    "AggregateProgress",
    "Client",
    "DaemonBusy",
    "DaemonUnreachable",
    "GroupedValue",
    "Health",
    "Peer",
    "Problem",
    "RequestRefused",
    "Ring",
    "Route",
    "Setting",
    "Status",
    "default_socket",
    "run_sync",
]

SOCKET_VARIABLE: Final = "PEERD_ADMIN__SOCKET"
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
PROGRESS_TIMEOUT_S: Final = 90_000.0
"""A stream may be silent as long as its round may last (a day), and a little more."""
LINE_BYTES_MAX: Final = 256 * MIB
"""Longest line of a stream: an answer of very many groups."""
POLL_INTERVAL_S: Final = 0.05

Model = TypeVar("Model", bound=AdminModel)
Result = TypeVar("Result")

_ring_lines: Final[TypeAdapter[WalkProgress | RingCheck]] = TypeAdapter(RingLine)
_reach_lines: Final[TypeAdapter[ReachProgress | ReachAnswer]] = TypeAdapter(ReachLine)
_drain_lines: Final[TypeAdapter[DrainProgress | DrainAnswer]] = TypeAdapter(DrainLine)
_lines: Final[TypeAdapter[AggregateProgress | AggregateAnswer | AggregateFailed]] = TypeAdapter(AggregateLine)


class DaemonUnreachable(Unavailable):
    """Nobody answers at the admin API's address. The text says where, why, and what to do."""


class RequestRefused(PeerdError):
    """The daemon answered with an error; ``problem`` has what it said."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


class DaemonBusy(RequestRefused, Unavailable):
    """The daemon cannot do it now (not joined yet, too many requests, stopping); trying again may help."""


def default_socket(environment: Mapping[str, str] = os.environ) -> str:
    """Where the admin socket is when nobody says: ``PEERD_ADMIN__SOCKET``, else the default of the configuration."""
    return environment.get(SOCKET_VARIABLE) or AdminConfig().socket


class Client:
    """One connection pool to one daemon. Use it as an asynchronous context manager.

    ``address``: path of the unix socket, or ``http://127.0.0.1:7421``; default `default_socket`.
    """

    def __init__(self, address: str | Path | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = str(address) if address is not None else default_socket()
        is_url = self.address.startswith(("http://", "https://"))
        if transport is None and not is_url:
            transport = httpx.AsyncHTTPTransport(uds=self.address, verify=_no_tls())
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url=self.address if is_url else "http://localhost",
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            verify=_no_tls(),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def status(self) -> Status:
        """The daemon in one object. Raises `DaemonUnreachable`, like every call here."""
        return await self._get(f"{API_PREFIX}/status", Status)

    async def peers(self) -> list[Peer]:
        """Every peer that the daemon knows, in id order."""
        return (await self._get(f"{API_PREFIX}/peers", Peers)).peers

    async def ring(self) -> Ring:
        """The ring as the daemon sees it."""
        return await self._get(f"{API_PREFIX}/ring", Ring)

    async def route(self, key: str) -> Route:
        """The root of a key (32 hexadecimal digits, or any text, which is hashed) and the hops to it."""
        return await self._get(f"{API_PREFIX}/route/{quote(key, safe='')}", Route)

    async def settings(self) -> list[Setting]:
        """The daemon's effective configuration with origins."""
        return (await self._get(f"{API_PREFIX}/config", Settings)).settings

    async def ready(self) -> Health:
        """The daemon's readiness; a daemon that is not ready is an answer, not an error."""
        return await self._health("/readyz")

    async def health(self) -> Health:
        """Every health check."""
        return await self._health("/healthz?verbose=1")

    async def known(self) -> Peers:
        """Every peer that the daemon knows, and those that it has removed."""
        return await self._get(f"{API_PREFIX}/peers", Peers)

    async def history(self, node: str, *, around: bool = False) -> History:
        """What the daemon thought of a peer, oldest first; ``node``: an id, a unique prefix of one, or host:port.

        ``around``: and what the neighbours of that peer thought.
        Raises `RequestRefused` when it knows no such peer, or several.
        """
        return await self._get(f"{API_PREFIX}/peers/{quote(node, safe='')}/history?around={int(around)}", History)

    async def rtt(self, target: str, source: str | None = None) -> Rtt:
        """Predicted and measured round trip between two nodes; ``source``: the daemon itself, when not given."""
        wanted = {"target": target} | ({} if source is None else {"source": source})
        return await self._get(f"{API_PREFIX}/rtt?{urlencode(wanted)}", Rtt)

    async def check_ring(self) -> AsyncGenerator[WalkProgress | RingCheck, None]:
        """Ask every node of the ring; yields progress, then exactly one `RingCheck`. Leaving early ends the walk."""
        async with aclosing(self._answers(f"{API_PREFIX}/ring/check", {}, _ring_lines)) as lines:
            async for line in lines:
                yield line

    async def reach(self, targets: int | None = None) -> AsyncGenerator[ReachProgress | ReachAnswer, None]:
        """Have every node ping others; yields progress, then exactly one `ReachAnswer`."""
        body = {} if targets is None else {"targets": targets}
        async with aclosing(self._answers(f"{API_PREFIX}/reach", body, _reach_lines)) as lines:
            async for line in lines:
                yield line

    async def drain(self, timeout_s: float, *, stop: bool = False) -> AsyncGenerator[DrainProgress | DrainAnswer, None]:
        """Have the daemon hand over and leave the ring; yields progress, then one `DrainAnswer`."""
        body = {"timeout_s": timeout_s, "stop": stop}
        async with aclosing(self._answers(f"{API_PREFIX}/drain", body, _drain_lines)) as lines:
            async for line in lines:
                yield line

    async def metrics(self) -> str:
        """The Prometheus text."""
        response = await self._request("/metrics")
        await self._raise_for_problem(response)
        return response.text

    async def wait_ready(self, timeout_s: float) -> Status:
        """Poll until the daemon is ready. Raises `DaemonUnreachable` or `Unavailable` when it is not in time."""
        due_at = time.monotonic() + timeout_s
        while True:
            try:
                health = await self.ready()
                if health.status == "ok":
                    return await self.status()
                reason: PeerdError = Unavailable(_failing(health, timeout_s))
            except (DaemonUnreachable, DaemonBusy) as error:
                reason = error
            if time.monotonic() + POLL_INTERVAL_S > due_at:
                raise reason
            await asyncio.sleep(POLL_INTERVAL_S)

    # Identity

    async def certificate(self) -> Certificate:
        """The node's certificate, and what it knows of the cluster's CA."""
        return await self._get(f"{API_PREFIX}/certificate", Certificate)

    async def renew_certificate(self) -> Certificate:
        """Renew it now. Raises `DaemonBusy` when no issuer does it."""
        return await self._call("POST", f"{API_PREFIX}/certificate/renewal", Certificate)

    async def install_certificate(self, pem: str) -> Certificate:
        """Use a certificate that an offline CA renewed."""
        body = CertificateRequest(pem=pem)
        return await self._call("POST", f"{API_PREFIX}/certificate", Certificate, body)

    async def tokens(self) -> list[Token]:
        """The join tokens of an issuer, oldest first. Raises `RequestRefused` where the daemon is none."""
        return (await self._call("GET", f"{API_PREFIX}/tokens", Tokens)).tokens

    async def create_token(self, life_s: float, uses: int = 1, roles: Sequence[str] = ()) -> NewToken:
        """Make a join token; its text is told this once. No roles: those of an ordinary member."""
        body = TokenRequest(life_s=life_s, uses=uses, roles=list(roles))
        return await self._call("POST", f"{API_PREFIX}/tokens", NewToken, body)

    async def revoke_token(self, identifier: str) -> Token:
        """End a join token."""
        return await self._call("DELETE", f"{API_PREFIX}/tokens/{quote(identifier, safe='')}", Token)

    async def denials(self) -> list[DeniedSubject]:
        """The deny list."""
        return (await self._get(f"{API_PREFIX}/denials", Denials)).denials

    async def deny(self, subject: str, reason: str = "", *, is_withdrawn: bool = False) -> DeniedSubject:
        """Deny a node id or a certificate's serial number everywhere, or (withdrawn) let it in again."""
        body = DenialRequest(subject=subject, reason=reason, is_withdrawn=is_withdrawn)
        return await self._call("POST", f"{API_PREFIX}/denials", DeniedSubject, body)

    async def forget(self, node: str | None = None, *, all_missing: bool = False) -> Forgotten:
        """Have the ring stop expecting a missing node (id, at least 8 digits of it, or host:port), or all of them.

        Raises `RequestRefused` when it is not missing, or not known, or several are meant.
        """
        body = ForgetRequest(node=node, all_missing=all_missing)
        return await self._call("POST", f"{API_PREFIX}/members/forgotten", Forgotten, body)

    async def rotate_ca(self, overlap_s: float) -> Certificate:
        """Change the cluster's root; both roots are trusted for the overlap."""
        body = RotationRequest(overlap_s=overlap_s)
        return await self._call("POST", f"{API_PREFIX}/ca/rotation", Certificate, body)

    async def publish_record(self, record: str) -> bool:
        """Spread a record that an offline CA signed; whether it was news to the daemon."""
        body = RecordRequest(record=record)
        return (await self._call("POST", f"{API_PREFIX}/records", RecordAnswer, body)).is_new

    async def aggregate(
        self,
        query: str | Mapping[str, Any],
        *,
        files: str = "**/*",
        format: str | None = None,
        pattern: str | None = None,
        groups_max: int | None = None,
        deadline: str | float | None = None,
        top: int | None = None,
    ) -> AsyncGenerator[AggregateProgress | AggregateAnswer, None]:
        """Run a round; yields progress, then exactly one `AggregateAnswer`. Leaving early ends the round.

        ``query``: text ("count by status where method = GET") or its parts as a mapping; ``deadline``: "30s", or
        seconds.
        Raises `RequestRefused` for a query that cannot be run, `DaemonBusy`, `DaemonUnreachable`.
        """
        wanted = {"files": files, "format": format, "pattern": pattern, "groups_max": groups_max}
        body = {"query": query, **wanted, "deadline": deadline, "top": top}
        given = {key: value for key, value in body.items() if value is not None}
        is_answered = False
        async with aclosing(self._stream(f"{API_PREFIX}/aggregate", given)) as lines:
            async for line in lines:
                try:
                    parsed = _lines.validate_json(line)
                except ValidationError as error:
                    raise self._not_ours(error) from error
                if isinstance(parsed, AggregateFailed):
                    raise Unavailable(parsed.detail)
                is_answered = isinstance(parsed, AggregateAnswer)
                yield parsed
        if not is_answered:
            raise DaemonUnreachable("the daemon stopped before the answer came; see its log, then ask again")

    # Inside

    async def _answers(
        self, path: str, body: Mapping[str, Any], line_type: TypeAdapter[Result]
    ) -> AsyncGenerator[Result, None]:
        """The lines of a stream that ends with an answer."""
        is_answered = False
        async with aclosing(self._stream(path, body)) as lines:
            async for line in lines:
                try:
                    parsed = line_type.validate_json(line)
                except ValidationError as error:
                    raise self._not_ours(error) from error
                is_answered = getattr(parsed, "type", "") == "answer"
                yield parsed
        if not is_answered:
            raise DaemonUnreachable(
                "the daemon stopped, or gave up, before it could answer; see its log, then ask again"
            )

    async def _get(self, path: str, model: type[Model]) -> Model:
        return await self._call("GET", path, model)

    async def _call(self, method: str, path: str, model: type[Model], body: AdminModel | None = None) -> Model:
        content = None if body is None else body.model_dump(mode="json")
        response = await self._request(path, method, content)
        await self._raise_for_problem(response)
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise self._not_ours(error) from error

    async def _health(self, path: str) -> Health:
        response = await self._request(path)
        try:
            return Health.model_validate_json(response.content)
        except ValidationError:
            await self._raise_for_problem(response)
            raise

    async def _request(self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            return await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=PROGRESS_TIMEOUT_S)
        try:
            async with self._http.stream("POST", path, json=body, timeout=timeout) as response:
                if response.status_code >= 400:
                    await response.aread()
                    await self._raise_for_problem(response)
                rest = bytearray()
                async for chunk in response.aiter_bytes():
                    first, *others = chunk.split(b"\n")
                    rest += first
                    for following in others:
                        yield bytes(rest)
                        rest = bytearray(following)
                    if len(rest) > LINE_BYTES_MAX:
                        raise Unavailable(f"the daemon sent a line of more than {LINE_BYTES_MAX} bytes")
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _raise_for_problem(self, response: httpx.Response) -> None:
        if response.status_code < 400:
            return
        if response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
            problem = Problem.model_validate_json(response.content)
        else:
            detail = response.text[:200].strip() or response.reason_phrase
            problem = Problem(title=response.reason_phrase, status=response.status_code, detail=detail)
        raise (DaemonBusy if response.status_code == 503 else RequestRefused)(problem)

    def _unreachable(self, error: httpx.TransportError) -> DaemonUnreachable:
        return DaemonUnreachable(f"no daemon answers at {self.address} ({_why(self.address, error)})")

    def _not_ours(self, error: ValidationError) -> RequestRefused:
        first = error.errors(include_url=False)[0]
        detail = f"what answers at {self.address} is no peerd of a version that this one understands: {first['msg']}"
        return RequestRefused(Problem(title="Unexpected answer", status=502, detail=detail))


def run_sync(call: Callable[[Client], Coroutine[Any, Any, Result]], address: str | Path | None = None) -> Result:
    """Run one conversation with the daemon from synchronous code: ``run_sync(lambda client: client.status())``."""

    async def run() -> Result:
        async with Client(address) as client:
            return await call(client)

    return asyncio.run(run())


def _no_tls() -> ssl.SSLContext:
    """An empty context: loopback and unix sockets need no TLS, and loading the system's CAs takes 20 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _failing(health: Health, timeout_s: float) -> str:
    failing = "; ".join(f"{check.name}: {check.detail}" for check in health.checks if not check.ok)
    return f"the daemon is up but not ready after {timeout_s:g} s ({failing})"


def _why(address: str, error: httpx.TransportError) -> str:
    """The cause and the remedy, in one phrase."""
    start = "start one with `peerd run`, or name its socket with --socket or PEERD_ADMIN__SOCKET"
    if address.startswith("http"):
        return f"{str(error) or type(error).__name__}; {start}"
    try:
        Path(address).lstat()
    except FileNotFoundError:
        return f"there is no such socket; {start}"
    except PermissionError:
        return "you may not look there; join the socket's group, or become its owner"
    if not os.access(address, os.R_OK | os.W_OK):
        return "you may not open that socket; join its group, or become its owner"
    if isinstance(error, httpx.ConnectError):
        return f"nobody listens on that socket, so the daemon has died or is starting; {start}"
    return f"{type(error).__name__} {error}".strip()
