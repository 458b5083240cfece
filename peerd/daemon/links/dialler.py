"""Opening connections: resolve, connect, TLS, HELLO, all within one time limit."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from peerd.daemon.links.connection import PendingConnection
from peerd.daemon.links.settings import LinkContext
from peerd.errors import HandshakeRefused, PeerdError, ProtocolError
from peerd.system.sockets import AddressNotAllowed, connected_socket
from peerd.wire.handshake import HandshakeResult


class DialFailed(PeerdError):
    """No connection. ``reason`` is a stable label: refused, unreachable, timeout, tls, auth_rejected, ..."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


async def connect(
    host: str,
    port: int,
    context: LinkContext,
    connection: PendingConnection,
    permits: Callable[[str], bool] | None = None,
) -> HandshakeResult:
    """Bring ``connection`` to the end of its handshake. Raises `DialFailed`; then nothing is left open.

    Of the addresses of a host name only those are dialled that ``permits`` lets pass.
    """
    settings = context.settings
    try:
        async with asyncio.timeout(settings.dial_timeout_s) as limit:
            sock = await connected_socket(host, port, permits)
            loop = asyncio.get_running_loop()
            try:
                await loop.create_connection(lambda: connection, sock=sock, **tls_arguments(context))
            except BaseException:
                connection.closed_by_loop()
                raise
            return await connection.outcome
    except TimeoutError as error:
        if limit.expired():
            connection.refuse("timeout", "the handshake took too long")
            raise DialFailed("timeout", f"no answer within {settings.dial_timeout_s:g} s") from None
        raise DialFailed("unreachable", str(error)) from None  # ETIMEDOUT is a TimeoutError, too
    except (HandshakeRefused, ProtocolError) as error:
        raise DialFailed(error.reason, error.detail) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
        raise failure_of(error) from None
    finally:
        if connection.outcome.done() and not connection.outcome.cancelled():
            connection.outcome.exception()  # retrieved, so that asyncio does not report it as never seen
        else:
            connection.abandon("duplicate_link")


def tls_arguments(context: LinkContext) -> dict[str, Any]:
    """What ``create_connection`` needs for TLS; no server name is sent, the certificate's id is what counts."""
    if context.tls is None:
        return {}
    return {
        "ssl": context.tls.client,
        "server_hostname": "",
        "ssl_handshake_timeout": context.settings.tls_handshake_timeout_s,
        "ssl_shutdown_timeout": context.settings.tls_shutdown_timeout_s,
    }


def failure_of(error: OSError | UnicodeError) -> DialFailed:
    """A network error as a stable reason."""
    match error:
        case ssl.SSLCertVerificationError():
            return DialFailed("bad_certificate", f"the peer's certificate: {error.verify_message}")
        case ssl.SSLError():
            return DialFailed("tls", str(error))
        case AddressNotAllowed():
            return DialFailed("not_allowed", str(error))
        case ConnectionRefusedError():
            return DialFailed("refused", str(error))
        case socket.gaierror() | UnicodeError():
            return DialFailed("name_resolution", str(error))
        case ConnectionResetError() | ConnectionAbortedError():
            return DialFailed("closed_early", "closed during the TLS handshake")
        case _:
            return DialFailed("unreachable", str(error))
