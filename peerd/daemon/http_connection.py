"""One HTTP connection of the admin API, with what uvicorn does not tell an application: its transport.

A stream that a client does not read must end in this process, not in the kernel's buffers: so the send buffer is
bounded, and a route can cut the connection of a client that takes nothing any more.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from peerd.daemon.admin_front import App, Receive, Scope, Send
from peerd.limits import KIB

SEND_BUFFER_BYTES: Final = 128 * KIB
"""Of the kernel, per connection; Linux doubles it for its own bookkeeping."""
MESSAGE_BYTES_MAX: Final = 16 * KIB
"""Longest WebSocket message from a client: the streams that there are expect none."""
TRANSPORT: Final = "peerd.transport"
"""Key of the ASGI scope."""


class HttpConnection(H11Protocol):
    """uvicorn's protocol; its requests find their transport in the scope."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        bound_send_buffer(transport)
        self.app = with_transport(self.app, transport)


def late_websocket(**options: Any) -> asyncio.Protocol:
    """The protocol of a WebSocket; its library is loaded by the first one, as most daemons never see any."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class WebSocketConnection(WebSocketsSansIOProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.app = with_transport(cast(App, self.app), transport)

    return WebSocketConnection(**options)


WEBSOCKETS: Final = cast("type[asyncio.Protocol]", late_websocket)
"""For ``uvicorn.Config``, which wants a class and only ever calls it."""


def with_transport(app: App, transport: asyncio.BaseTransport) -> App:
    """The application, which finds the transport in each scope."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        scope[TRANSPORT] = transport
        await app(scope, receive, send)

    return run


def bound_send_buffer(transport: asyncio.BaseTransport) -> None:
    """Limit what the kernel holds of what was sent; it grows to megabytes otherwise."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def abort(scope: Scope) -> None:
    """Cut the connection at once; what was not sent is lost. Without a transport (in tests) nothing happens."""
    transport = scope.get(TRANSPORT)
    if transport is not None:
        transport.abort()
