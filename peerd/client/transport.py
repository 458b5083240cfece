"""How the client's requests travel: here over a unix socket; in `peerd.client.http` over everything else, with httpx.

Nearly every command asks the daemon on its own machine, once, and httpx takes longer to import than that takes. For a
unix socket there are no proxies, redirects, cookies or certificates, so a stream and h11, which does the protocol in
httpx as well, are enough. Each request has a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import h11

CONNECT_TIMEOUT_S: Final = 5.0
CONTINUE_S: Final = 2.0
"""Whether a file is wanted is waited for so long; a daemon that says nothing for so long is sent it."""
READ_BYTES: Final = 64 * 1024
SENT_AT_ONCE_BYTES: Final = 64 * 1024
"""A socket takes a body of this size at once. Of a larger one a daemon that refuses it and closes the connection has a
part by then, and its answer is lost when the rest cannot be sent."""
CUT_OFF: Final = "the connection was closed before the answer was complete"
NO_HTTP: Final = "what answers there does not speak HTTP"

Body = bytes | AsyncIterable[bytes] | None


class TransportFailed(Exception):
    """There is no answer, or its end is missing. ``is_refused``: nobody listens at the address."""

    def __init__(self, text: str, *, is_refused: bool = False) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class UnixTransport:
    """Carries requests over a unix socket."""

    def __init__(self, path: str, headers: Mapping[str, str]) -> None:
        self._path = path
        self._headers = dict(headers)

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, body: Body, headers: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[UnixAnswer, None]:
        """Send a request and wait for the head of its answer, and for each of its parts at most ``silence_s``.

        Leaving the context ends the exchange. Raises `TransportFailed`.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path)
        except (OSError, TimeoutError) as error:
            raise TransportFailed(_text(error), is_refused=isinstance(error, OSError)) from error
        try:
            answer = UnixAnswer(reader, silence_s)
            await answer.ask(writer, method, path, body, {**self._headers, **headers})
            yield answer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def close(self) -> None:
        """Every exchange closes its own connection."""


class UnixAnswer:
    """One request and what comes back: an answer whose body is still to come."""

    def __init__(self, reader: asyncio.StreamReader, silence_s: float) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._reader = reader
        self._silence_s = silence_s
        self._early: object = None
        """What came in the place of the word that the body is wanted."""
        self.status = 0
        self.reason = ""
        self.content_type = ""

    async def ask(
        self, writer: asyncio.StreamWriter, method: str, path: str, body: Body, headers: Mapping[str, str]
    ) -> None:
        """Send the request, and read the head of the answer."""
        length = {} if body is None else {"Content-Length": str(len(body))} if isinstance(body, bytes) else _CHUNKED
        # Nothing of much is sent before the daemon wants it: it may have a reason to refuse it that it knows by now.
        whole = body if isinstance(body, bytes) else None
        is_file = method == "PUT" and length is _CHUNKED
        is_much = is_file or (whole is not None and len(whole) > SENT_AT_ONCE_BYTES)
        expects = {"Expect": "100-continue"} if is_much else {}
        every = {"Host": "localhost", "Connection": "close", "Accept": "*/*", **length, **expects, **headers}
        begin = self._http.send(h11.Request(method=method, target=path, headers=list(every.items()))) or b""
        # A server that answers before it has the whole request closes the connection; its answer tells why.
        with suppress(BrokenPipeError, ConnectionResetError):
            if whole is not None and not is_much:
                # With the head in one write: a second one would fail after such an answer.
                begin += self._http.send(h11.Data(data=whole)) or b""
            writer.write(begin)
            if not is_much or await self._is_wanted():
                if whole is not None and is_much:
                    writer.write(self._http.send(h11.Data(data=whole)) or b"")
                elif body is not None and not isinstance(body, bytes):
                    async for part in body:
                        writer.write(self._http.send(h11.Data(data=part)) or b"")
                        await writer.drain()
                writer.write(self._http.send(h11.EndOfMessage()) or b"")
                await writer.drain()
        answer = self._early if self._early is not None else await self._next()
        while isinstance(answer, h11.InformationalResponse):
            answer = await self._next()
        if not isinstance(answer, h11.Response):
            raise TransportFailed("the connection was closed without an answer")
        self.status = answer.status_code
        self.reason = answer.reason.decode("latin-1")
        self.content_type = dict(answer.headers).get(b"content-type", b"").decode("latin-1")

    async def _is_wanted(self) -> bool:
        """Whether the body is to be sent: so says the daemon, or it says nothing. Else what it says is its answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CONTINUE_S):
                event = await self._next()
            if not isinstance(event, h11.InformationalResponse):
                self._early = event
                return False
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `TransportFailed`."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise TransportFailed(CUT_OFF)

    async def _next(self) -> object:
        """The next of h11's events."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._silence_s):
                    self._http.receive_data(await self._reader.read(READ_BYTES))
        except TimeoutError as error:
            raise TransportFailed(f"no answer within {self._silence_s:g} s") from error
        except h11.RemoteProtocolError as error:
            raise TransportFailed(CUT_OFF if self._http.trailing_data[1] else NO_HTTP) from error
        except OSError as error:
            raise TransportFailed(_text(error)) from error
        return event


_CHUNKED: Final = {"Transfer-Encoding": "chunked"}


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
