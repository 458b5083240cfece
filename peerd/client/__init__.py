"""The Python client of a running daemon: the admin API over its unix socket, or over loopback HTTP.

    async with Client() as client:
        print((await client.status()).ring_size)

It carries requests and streams, and has the operators' calls; what a protocol adds (`peerd.front.Front.client`) is an
attribute under the protocol's name. The command line uses it and nothing else. A daemon that does not answer is
`DaemonUnreachable`, whose text says what to do; a request that the daemon refuses is `RequestRefused`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from peerd.client.problems import problem_of, why_unreachable
from peerd.client.transport import Body, TransportFailed, UnixAnswer, UnixTransport
from peerd.errors import ConfigError, PeerdError, Unavailable
from peerd.invalid import first_reason
from peerd.limits import MIB
from peerd.models import admin as models, routes
from peerd.models.admin import JSON_TYPE, STREAM_TYPE
from peerd.models.routes import HttpRoute
from peerd.places import ADMIN_SOCKET, SOCKET_VARIABLE

if TYPE_CHECKING:
    import httpx

    from peerd.client.http import HttpAnswer, HttpTransport
    from peerd.client.streams import Backoff, StreamEntry
    from peerd.models.streams import IngestAnswer

__all__ = [
    "Client",
    "DaemonBusy",
    "DaemonUnreachable",
    "IngestRefused",
    "RequestRefused",
    "default_socket",
    "run_sync",
]

TOKEN_VARIABLE: Final = "PEERD_ACCESS_TOKEN"
"""An access token for a daemon's data port over TCP; in the environment, since command lines are seen by all."""
ANSWER_TIMEOUT_S: Final = 30.0
PROGRESS_TIMEOUT_S: Final = 90_000.0
"""A stream of progress may be silent for as long as one round of a query may last (a day), and a little more."""
LINE_BYTES_MAX: Final = 256 * MIB
"""The longest line of a stream; answers with very many groups are the longest ones."""
POLL_INTERVAL_S: Final = 0.05

Result = TypeVar("Result")


class DaemonUnreachable(Unavailable):
    """Nobody answers at the admin API's address. The text says where, why, and what to do."""


class RequestRefused(PeerdError):
    """The daemon answered with an error; ``problem`` has what it said."""

    def __init__(self, problem: models.Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


class IngestRefused(RequestRefused):
    """Some lines were not accepted; ``answer`` says how many were, and which were not."""

    def __init__(self, problem: models.Problem, answer: IngestAnswer) -> None:
        super().__init__(problem)
        self.answer = answer


class DaemonBusy(RequestRefused, Unavailable):
    """The daemon cannot do it now (not joined yet, too many requests, stopping); trying again may help."""


def default_socket(environment: Mapping[str, str] = os.environ) -> str:
    """The admin socket when none is named: ``PEERD_SOCKET``, else the default of the configuration."""
    return environment.get(SOCKET_VARIABLE) or ADMIN_SOCKET


class Client:
    """One connection pool to one daemon. Use it as an asynchronous context manager.

    ``address``: path of the unix socket, or ``http://127.0.0.1:7421``; default `default_socket`. ``token``: an access
    token of `peerd access create`, for a daemon's data port; default ``PEERD_ACCESS_TOKEN`` for a URL, else none.
    """

    def __init__(
        self,
        address: str | Path | None = None,
        *,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = str(address) if address is not None else default_socket()
        is_url = self.address.startswith(("http://", "https://"))
        if token is None and is_url:
            token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._transport: UnixTransport | HttpTransport = UnixTransport(self.address, headers)
        if is_url or transport is not None:
            from peerd.client.http import HttpTransport

            self._transport = HttpTransport(self.address if is_url else "http://localhost", headers, transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def status(self) -> models.Status:
        """The daemon in one object. Raises `DaemonUnreachable`, like every call here."""
        return await self.call(routes.STATUS)

    async def peers(self) -> list[models.Peer]:
        """Every peer that the daemon knows, in id order."""
        return (await self.call(routes.PEERS)).peers

    async def ring(self) -> models.Ring:
        """The ring as the daemon sees it."""
        return await self.call(routes.RING)

    async def route(self, key: str) -> models.RouteView:
        """The root of a key (32 hexadecimal digits, or any text, which is hashed) and the hops to it."""
        return await self.call(routes.ROOT_OF, key)

    async def settings(self) -> list[models.Setting]:
        """The daemon's effective configuration with origins."""
        return (await self.call(routes.CONFIG)).settings

    async def reload(self) -> models.ReloadAnswer:
        """Have the daemon read its configuration again. Raises `RequestRefused` (422) when that is wrong."""
        return await self.call(routes.RELOAD)

    async def ready(self) -> models.Health:
        """The daemon's readiness; a daemon that is not ready is an answer, not an error."""
        return await self._health("/readyz")

    async def health(self) -> models.Health:
        """Every health check."""
        return await self._health("/healthz?verbose=1")

    async def known(self) -> models.Peers:
        """Every peer that the daemon knows, and those that it has removed."""
        return await self.call(routes.PEERS)

    async def history(self, node: str, *, around: bool = False) -> models.HistoryView:
        """What the daemon concluded about a peer, oldest first; ``node``: an id, a unique prefix of one, or host:port.

        ``around``: include what the neighbours of that peer concluded.
        Raises `RequestRefused` when it knows no such peer, or several.
        """
        return await self.call(routes.HISTORY, node, around=int(around))

    async def rtt(self, target: str, source: str | None = None) -> models.Rtt:
        """Predicted and measured round trip between two nodes. ``source`` is the daemon itself when not given."""
        return await self.call(routes.RTT, target=target, source=source)

    async def rtt_known(self) -> list[models.Rtt]:
        """Predicted and measured round trips from the daemon to every node that it knows."""
        return (await self.call(routes.RTT_KNOWN)).rtts

    def check_ring(self) -> AsyncGenerator[models.WalkProgressView | models.RingCheck, None]:
        """Ask every node of the ring; yields progress, then exactly one `RingCheck`. Leaving early ends the walk."""
        return self.answers(routes.CHECK_RING, {})

    def reach(self, targets: int | None = None) -> AsyncGenerator[models.ReachProgressView | models.ReachAnswer, None]:
        """Have every node ping others; yields progress, then exactly one `ReachAnswer`."""
        return self.answers(routes.REACH, {} if targets is None else {"targets": targets})

    def drain(
        self, timeout_s: float, *, stop: bool = False
    ) -> AsyncGenerator[models.DrainProgress | models.DrainAnswer, None]:
        """Have the daemon hand over and leave the ring; yields progress, then one `DrainAnswer`."""
        return self.answers(routes.DRAIN, {"timeout_s": timeout_s, "stop": stop})

    async def metrics(self) -> str:
        """The Prometheus text."""
        answer = await self._request("/metrics")
        answer.raise_for_problem()
        return answer.content.decode()

    def events(
        self,
        kind: str | Sequence[str] = (),
        *,
        after: str | None = None,
        follow: bool = True,
        backoff: Backoff | None = None,
    ) -> AsyncGenerator[StreamEntry, None]:
        """The daemon's events as they happen; see `follow`. ``kind``: only events of these kinds, such as "overlay.*".

        ``follow=False``: only the events that it holds now, then an `End`.
        """
        kinds = [kind] if isinstance(kind, str) else list(kind)
        wanted = {"kind": kinds, "follow": int(follow)}
        return self.follow(routes.EVENTS.at(), wanted, after=after, backoff=backoff)

    def follow(
        self,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
        backoff: Backoff | None = None,
    ) -> AsyncGenerator[StreamEntry, None]:
        """Follow any stream that can be resumed; reconnects by itself when the connection or the daemon goes away.

        ``after``: the id of the last entry that was seen, "start" for all that the daemon holds, "now" for what
        follows; default: as the stream has it. Yields `Item`, `Gap`, `Dropped` and `End` of `peerd.client.streams`.
        Raises `DaemonUnreachable` or `DaemonBusy` when there is no first connection, `RequestRefused`.
        """

        from peerd.client.streams import SILENCE_MAX_S, follow  # here: most conversations are one question

        async def connect(place: str | None) -> AsyncGenerator[bytes, None]:
            given = dict(parameters or {}) | ({} if place is None else {"after": place})
            address = f"{path}?{urlencode(given, doseq=True)}"
            async with aclosing(self.stream(address, None, "GET", SILENCE_MAX_S)) as lines:
                async for line in lines:
                    yield line

        return self._checked(follow(connect, after, backoff))

    async def send_lines(self, path: str, items: AsyncIterable[Any] | Iterable[Any]) -> IngestAnswer:
        """Send JSON lines to a route that takes them one by one, as fast as it takes them; any number of them.

        Raises `IngestRefused` when some were not accepted, `DaemonUnreachable`.
        """
        from peerd.client.streams import json_lines
        from peerd.models.streams import IngestAnswer

        async with self._exchange("POST", path, json_lines(items), STREAM_TYPE, PROGRESS_TIMEOUT_S) as exchange:
            answer = await self._whole(exchange, "POST", path)
        try:
            taken = IngestAnswer.model_validate_json(answer.content)
        except ValidationError as error:
            answer.raise_for_problem()
            raise self._not_ours(error) from error
        if answer.status >= 400:
            raise IngestRefused(models.Problem.model_validate_json(answer.content), taken)
        return taken

    async def wait_ready(self, timeout_s: float) -> models.Status:
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

    async def certificate(self) -> models.Certificate:
        """The node's certificate, and what it knows of the cluster's CA."""
        return await self.call(routes.CERTIFICATE)

    async def renew_certificate(self) -> models.Certificate:
        """Renew the certificate now. Raises `DaemonBusy` when no issuer does it."""
        return await self.call(routes.RENEW)

    async def install_certificate(self, pem: str) -> models.Certificate:
        """Use a certificate that an offline CA renewed."""
        return await self.call(routes.INSTALL, body=models.CertificateRequest(pem=pem))

    async def tokens(self) -> list[models.Token]:
        """The join tokens of an issuer, oldest first. Raises `RequestRefused` when the daemon is not an issuer."""
        return (await self.call(routes.TOKENS)).tokens

    async def create_token(self, life_s: float, uses: int = 1) -> models.NewToken:
        """Make a join token; its text is shown only once."""
        return await self.call(routes.CREATE_TOKEN, body=models.TokenRequest(life_s=life_s, uses=uses))

    async def revoke_token(self, identifier: str) -> models.Token:
        """End a join token."""
        return await self.call(routes.REVOKE_TOKEN, identifier)

    async def access_tokens(self) -> list[models.AccessEntry]:
        """The access tokens of the daemon's data clients, oldest first."""
        return (await self.call(routes.ACCESS)).tokens

    async def create_access(self, name: str, scopes: Sequence[str], life_s: float) -> models.NewAccess:
        """Make an access token; its text is shown only once. Scopes: "<protocol>:read", "<protocol>:write", "*"."""
        body = models.AccessRequest(name=name, scopes=list(scopes), life_s=life_s)
        return await self.call(routes.CREATE_ACCESS, body=body)

    async def revoke_access(self, name: str) -> models.AccessEntry:
        """End an access token by its name or id, and every request that uses it."""
        return await self.call(routes.REVOKE_ACCESS, name)

    async def denials(self) -> list[models.DeniedSubject]:
        """The deny list."""
        return (await self.call(routes.DENIALS)).denials

    async def deny(self, subject: str, reason: str = "", *, is_withdrawn: bool = False) -> models.NewDenial:
        """Deny a node id or a certificate's serial number everywhere, or (``is_withdrawn``) admit it again."""
        body = models.DenialRequest(subject=subject, reason=reason, is_withdrawn=is_withdrawn)
        return await self.call(routes.DENY, body=body)

    async def forget(self, node: str | None = None, *, all_missing: bool = False) -> models.Forgotten:
        """Have the ring stop expecting a missing node (id, at least 8 digits of it, or host:port), or all of them.

        Raises `RequestRefused` when it is not missing, or not known, or several are meant.
        """
        return await self.call(routes.FORGET, body=models.ForgetRequest(node=node, all_missing=all_missing))

    async def rotate_ca(self, overlap_s: float) -> models.Certificate:
        """Change the cluster's root; both roots are trusted for the overlap."""
        return await self.call(routes.ROTATE, body=models.RotationRequest(overlap_s=overlap_s))

    async def publish_notice(self, notice: str) -> models.NoticeAnswer:
        """Spread a notice that an offline CA signed. Returns whether it was new to the daemon, and is on its disk."""
        return await self.call(routes.PUBLISH_NOTICE, body=models.NoticeBody(notice=notice))

    # Protocols

    def __getattr__(self, name: str) -> Any:
        """The methods that an installed protocol brings, by its name: ``client.NAME.method(...)``.

        Type checkers see what it is when the protocol's class is used directly, on this client.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        from peerd.plugins import guarded, load_front

        try:
            methods = guarded(name, "client", partial(load_front(name).client, self))
        except ConfigError as error:
            raise AttributeError(f"the client has no {name!r}: {error}") from error
        if methods is None:
            raise AttributeError(f"the protocol {name} adds nothing to the client")
        setattr(self, name, methods)
        return methods

    # For protocols

    async def answers(self, route: HttpRoute[Result], body: Mapping[str, Any]) -> AsyncGenerator[Result, None]:
        """Call a route, and yield the lines of the stream that comes back; the last one has the type "answer".

        Raises `DaemonUnreachable` when the stream ends before, and what `call` raises.
        """
        is_answered = False
        async with aclosing(self.stream(route.at(), body)) as lines:
            async for line in lines:
                try:
                    parsed = route.read(line)
                except ValidationError as error:
                    raise self._not_ours(error) from error
                is_answered = getattr(parsed, "type", "") == "answer"
                yield parsed
        if not is_answered:
            why = "the daemon stopped, or gave up, before it could answer; see its log, then ask again"
            raise DaemonUnreachable(why)

    async def call(
        self,
        route: HttpRoute[Result],
        /,
        *names: str,
        body: BaseModel | Body = None,
        kind: str = JSON_TYPE,
        silence_s: float = ANSWER_TIMEOUT_S,
        tells_all: bool = False,
        **query: object,
    ) -> Result:
        """Call a route, with the names in its path and a query (`HttpRoute.at`), and return its answer.

        ``kind``: the content type of the body. ``silence_s``: how long the answer may take. ``tells_all``: a refusal
        that is an answer, too, is returned.
        Raises `RequestRefused` for what the daemon refuses, `DaemonBusy`, `DaemonUnreachable`.
        """
        method, path = route.method, route.at(*names, **query)
        content = body.model_dump_json().encode() if isinstance(body, BaseModel) else body
        async with self._exchange(method, path, content, kind, silence_s) as exchange:
            answer = await self._whole(exchange, method, path)
        if not tells_all:
            answer.raise_for_problem()
        try:
            return route.read(answer.content)
        except ValidationError as error:
            answer.raise_for_problem()
            raise self._not_ours(error) from error

    async def stream(
        self, path: str, body: Mapping[str, Any] | None, method: str = "POST", silence_s: float = PROGRESS_TIMEOUT_S
    ) -> AsyncGenerator[bytes, None]:
        """The lines of the answer as they come, without their ends. Raises what `call` raises."""
        content = None if body is None else json.dumps(body).encode()
        async with aclosing(self.fetch(path, content, method, silence_s, is_stream=True)) as chunks:
            rest = bytearray()
            async for chunk in chunks:
                first, *others = chunk.split(b"\n")
                rest += first
                for following in others:
                    yield bytes(rest)
                    rest = bytearray(following)
                if len(rest) > LINE_BYTES_MAX:
                    raise Unavailable(f"the daemon sent a line of more than {LINE_BYTES_MAX} bytes")

    async def fetch(
        self,
        path: str,
        body: Body = None,
        method: str = "GET",
        silence_s: float = PROGRESS_TIMEOUT_S,
        *,
        is_stream: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer as they come. Raises what `call` raises."""
        async with self._exchange(method, path, body, JSON_TYPE, silence_s) as exchange:
            if exchange.status >= 400:
                (await self._whole(exchange, method, path)).raise_for_problem()
            if is_stream and method == "GET" and not exchange.content_type.startswith(STREAM_TYPE):
                raise self._strange("it sent no stream")  # else `follow` would come back to it for ever
            async for chunk in exchange.chunks():
                yield chunk

    # Inside

    async def _checked(self, entries: AsyncGenerator[StreamEntry, None]) -> AsyncGenerator[StreamEntry, None]:
        async with aclosing(entries):
            try:
                async for entry in entries:
                    yield entry
            except ValidationError as error:
                raise self._not_ours(error) from error

    async def _health(self, path: str) -> models.Health:
        answer = await self._request(path)
        try:
            return models.Health.model_validate_json(answer.content)
        except ValidationError:
            answer.raise_for_problem()
            raise

    async def _request(self, path: str) -> _Answer:
        async with self._exchange("GET", path, None, JSON_TYPE, ANSWER_TIMEOUT_S) as exchange:
            return await self._whole(exchange, "GET", path)

    async def _whole(self, exchange: UnixAnswer | HttpAnswer, method: str, path: str) -> _Answer:
        content = b"".join([chunk async for chunk in exchange.chunks()])
        has_none = f"the daemon at {self.address} has no {method} {path.partition('?')[0]}"
        return _Answer(exchange.status, exchange.reason, exchange.content_type, content, has_none)

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: Body, kind: str, silence_s: float
    ) -> AsyncGenerator[UnixAnswer | HttpAnswer, None]:
        headers = {} if body is None else {"Content-Type": kind}
        try:
            async with self._transport.exchange(method, path, body, headers, silence_s) as exchange:
                yield exchange
        except TransportFailed as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: TransportFailed) -> DaemonUnreachable:
        return DaemonUnreachable(f"no daemon answers at {self.address} ({why_unreachable(self.address, error)})")

    def _not_ours(self, error: ValidationError) -> RequestRefused:
        return self._strange(first_reason(error))

    def _strange(self, why: str) -> RequestRefused:
        detail = f"what answers at {self.address} is no peerd of a version that this one understands: {why}"
        return RequestRefused(models.Problem(title="Unexpected answer", status=502, detail=detail))


def run_sync(call: Callable[[Client], Coroutine[Any, Any, Result]], address: str | Path | None = None) -> Result:
    """Call the daemon from synchronous code: ``run_sync(lambda client: client.status())``."""

    async def run() -> Result:
        async with Client(address) as client:
            return await call(client)

    return asyncio.run(run())


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer with its whole body."""

    status: int
    reason: str
    content_type: str
    content: bytes
    has_none: str
    """What to say when the daemon has no such route."""

    def raise_for_problem(self) -> None:
        """Raises `RequestRefused` for what the daemon refuses, `DaemonBusy` when it may do it later."""
        if self.status < 400:
            return
        problem = problem_of(self.status, self.reason, self.content_type, self.content, self.has_none)
        raise (DaemonBusy if self.status == 503 else RequestRefused)(problem)


def _failing(health: models.Health, timeout_s: float) -> str:
    failing = [f"{check.name}: {check.detail}" for check in health.checks if not check.ok]
    return f"the daemon is up but not ready after {timeout_s:g} s ({'; '.join(failing)})"
