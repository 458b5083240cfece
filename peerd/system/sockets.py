"""Sockets with the options by which a dead peer is noticed. Keepalive alone does not do while a write is pending."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

KEEPALIVE_IDLE_S: Final = 8
KEEPALIVE_INTERVAL_S: Final = 3
KEEPALIVE_PROBES: Final = 2
USER_TIMEOUT_MS: Final = 14_000
"""Unacknowledged data for this long ends a connection; keepalive does not run while a write is pending."""
BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("3i")
"""Linux's ``struct ucred``: process, user and group id."""


def peer_credentials(sock: socket.socket) -> tuple[int | None, int | None]:
    """The user and the process at the other end of a unix socket, as far as the kernel tells. Raises ``OSError``."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):  # not Linux: then nobody is known
        return None, None
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _ = _CREDENTIALS.unpack(told)
    # -1 means "not known"; process 0 belongs to another process namespace.
    return None if user_id < 0 else user_id, process_id or None


def tune(sock: socket.socket, *, may_be_slow: bool = False) -> None:
    """Switch Nagle's algorithm off and keepalive on, and bound unacknowledged data. Harmless on a closed socket.

    ``may_be_slow``: the other end may leave data waiting for as long as it likes. The kernel also counts the time in
    which a living peer has no room, and would reset the connection of a slow reader.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", KEEPALIVE_PROBES),
            ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
        ):
            is_left_out = may_be_slow and option == "TCP_USER_TIMEOUT"
            if hasattr(socket, option) and not is_left_out:  # Linux has all of these options, other systems only some
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def listening_socket(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket. Raises ``OSError``; port 0 lets the system choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class AddressNotAllowed(OSError):
    """A name stands for addresses that are not to be dialled."""


async def connected_socket(host: str, port: int, permits: Callable[[str], bool] | None = None) -> socket.socket:
    """Connect to the first address of ``host`` that answers. Raises the ``OSError`` of the last one that was tried.

    Addresses that ``permits`` does not let pass are left out.
    """
    loop = asyncio.get_running_loop()
    last_error = OSError(f"no address for {host}")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if permits is not None and not permits(str(address[0])):
            last_error = AddressNotAllowed(f"{host} is {address[0]}, which is not to be dialled")
            continue
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            tune(sock)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            last_error = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last_error


def format_address(address: object) -> str:
    """``host:port`` of a socket address, for logs."""
    match address:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "unknown"
