"""The client's requests over httpx: to a URL, or to an application in the same process."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx

from peerd.client.transport import CONNECT_TIMEOUT_S, CUT_OFF, Body, TransportFailed


class HttpTransport:
    """A pool of connections to one address."""

    def __init__(self, base_url: str, headers: Mapping[str, str], transport: httpx.AsyncBaseTransport | None) -> None:
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url=base_url,
            headers=dict(headers),
            verify=ssl.create_default_context() if base_url.startswith("https://") else _no_tls(),
            trust_env=False,
        )

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, body: Body, headers: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[HttpAnswer, None]:
        """As `peerd.client.transport.UnixTransport.exchange`."""
        timeout = httpx.Timeout(silence_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with self._http.stream(
                method, path, content=body, headers=dict(headers), timeout=timeout
            ) as response:
                yield HttpAnswer(response)
        except httpx.TransportError as error:
            raise _failed(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class HttpAnswer:
    """httpx's response, as `peerd.client.transport.UnixAnswer` has it."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.reason = response.reason_phrase
        self.content_type = response.headers.get("content-type", "")

    async def chunks(self) -> AsyncIterator[bytes]:
        """As `UnixAnswer.chunks`."""
        async for chunk in self._response.aiter_bytes():
            yield chunk


def _failed(error: httpx.TransportError) -> TransportFailed:
    text = CUT_OFF if isinstance(error, httpx.RemoteProtocolError) else str(error) or type(error).__name__
    return TransportFailed(text, is_refused=isinstance(error, httpx.ConnectError))


def _no_tls() -> ssl.SSLContext:
    """An empty context: loopback needs no TLS, and loading the system's CAs takes 20 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
