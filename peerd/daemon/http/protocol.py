"""One HTTP connection: uvicorn's, with a time limit for unfinished requests, and with the caller in every scope.

The kernel's send buffer is bounded, so that this process notices when a client does not read its stream.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from typing import Any, Final, Protocol, cast

from httptools import HttpParserError

from peerd.daemon.http.caller import STATE_KEY, Caller, queued_in_kernel
from peerd.daemon.http.uvicorn_parts import Config, HttpToolsProtocol, ServerState
from peerd.limits import KIB

REQUEST_HEAD_BYTES_MAX: Final = 16 * KIB
"""A longer request head is refused."""
TOO_MANY: Final = "Too many requests were sent ahead of their answers."
BAD_HEAD: Final = "The request is of another version than 1.0 or 1.1, or has not one host."
HEAD_TOO_LONG: Final = "The head of the request is too long."
PIPELINED_MAX: Final = 64
"""A client that sends more requests ahead of their answers is refused: each of them takes some KiB."""
HEAD_LIMIT_S: Final = 10.0
"""How long a connection may go without a whole request head, however its bytes trickle in."""
SEND_BUFFER_BYTES: Final = 128 * KIB
"""The kernel's send buffer of one connection, which could grow to megabytes. Linux doubles it for its bookkeeping."""


class ConnectionWatcher(Protocol):
    """The listener of a connection, which is told its state: `peerd.daemon.http.listener.HttpListener`."""

    def waits(self, connection: BoundedProtocol) -> None:
        """The connection has no request under way from now on."""

    def works(self, connection: BoundedProtocol) -> None:
        """The connection has a request under way, or has ended."""

    def refused(self, reason: str) -> None:
        """Count a connection or a request that came to nothing."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose unfinished requests cannot hold it for ever, and whose heads have a limit.

    The parser keeps a header, however long, until it is whole, and knows no limit of its own.
    """

    def __init__(
        self, listener: ConnectionWatcher, caller: Caller, *, config: Config, server_state: ServerState
    ) -> None:
        super().__init__(config, server_state, {})
        self._listener = listener
        self._caller = caller
        self._is_over = False
        self._limit: asyncio.TimerHandle | None = None
        self._unparsed_bytes = 0
        """What has come since the parser has last given something away: it keeps a header until that is whole."""
        self._head_bytes = 0
        """What is kept of the headers of a request, also of those behind its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

        def unsent() -> int:
            return transport.get_write_buffer_size() + queued_in_kernel(sock)

        self.app_state = {STATE_KEY: replace(self._caller, hang_up=transport.abort, unsent=unsent)}
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, so stop its time limit."""
        self._is_over = True
        self._note()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A request may have begun, or gone on."""
        self.access_log = self.access_logger.isEnabledFor(logging.INFO)  # else uvicorn makes a line for nobody
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > REQUEST_HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(HEAD_TOO_LONG)
        self._note()

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= PIPELINED_MAX:
            raise HttpParserError(TOO_MANY)
        super().on_message_begin()
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count what is kept from now on."""
        self._head_bytes += len(name) + len(value) + 4  # a colon, a space, and the end of the line
        self._check_head()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: the request begins to be answered."""
        self._unparsed_bytes = 0
        self._head_bytes += len(self.url)
        self._check_head()
        version, hosts = self.parser.get_http_version(), sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (version == "1.1" and not hosts):
            raise HttpParserError(BAD_HEAD)  # the parser takes it, and RFC 9112 does not (sections 2.3 and 3.2)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Part of the body has come."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request has come."""
        self._unparsed_bytes = 0
        super().on_message_complete()

    def _check_head(self) -> None:
        if self._head_bytes > REQUEST_HEAD_BYTES_MAX:
            raise HttpParserError(HEAD_TOO_LONG)  # the parser stops, and `send_400_response` follows

    def on_response_complete(self) -> None:
        """A request is over; the client may not have sent all of it."""
        super().on_response_complete()
        self._note()

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is the WebSocket's."""
        self._is_over = True
        self._note()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse and count what the client sent, as it is not HTTP."""
        self._listener.refused("malformed")
        super().send_400_response(msg)

    @property
    def is_sending(self) -> bool:
        """Whether part of an answer has yet to leave."""
        return self.transport.get_write_buffer_size() > 0

    def give_up(self, reason: str) -> None:
        """End a connection that waits."""
        self._listener.refused(reason)
        self.transport.abort()

    def _note(self) -> None:
        # The connection has had no request yet, has had its answer, or has one under way.
        is_working = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # uvicorn declares it too early
        if self._is_over or is_working:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None
                self._listener.works(self)
        elif self._limit is None:
            self._limit = self.loop.call_later(HEAD_LIMIT_S, self._waited_long)
            self._listener.waits(self)

    def _waited_long(self) -> None:
        if self.is_sending:  # a long answer to a slow reader; it gives way when somebody needs the room
            self._limit = self.loop.call_later(HEAD_LIMIT_S, self._waited_long)
        else:
            self.give_up("head_timeout")


def websocket_protocol(**options: Any) -> asyncio.Protocol:
    """uvicorn's WebSocket connection; its library is loaded by the first one."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class WebSocketConnection(WebSocketsSansIOProtocol):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True  # refused in order; uvicorn would log an error for each

    return cast(asyncio.Protocol, WebSocketConnection(**options))
