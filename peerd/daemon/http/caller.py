"""Who is at the other end of an HTTP connection, according to the operating system.

A unix socket tells user and process of whoever connected; a TCP connection tells an address only. The server puts the
`Caller` into each request's scope, below ``state``, where the routes find it through `caller_of`.
"""

from __future__ import annotations

import fcntl
import pwd
import socket
import struct
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from peerd.linking.join_limits import host_of
from peerd.system.sockets import format_address, peer_credentials

ListenerName = Literal["admin_socket", "admin_http", "data_socket", "data_http"]
"""Where daemons listen for HTTP; also the label of their metrics."""

STATE_KEY: Final = "peerd_caller"
_INTEGER: Final = struct.Struct("i")


def _nothing() -> None:
    """Stands for hanging up where there is no connection to end."""


def _no_bytes() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connected, and to which listener."""

    listener: ListenerName
    address: str = ""
    """``host:port`` of a TCP connection."""
    user_id: int | None = None
    """The user who connected to the unix socket; ``None`` over TCP, and where the system does not tell."""
    process_id: int | None = None
    """A hint for the log: another process may have this id by now."""
    hang_up: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    """Ends the connection at once."""
    unsent: Callable[[], int] = field(default=_no_bytes, repr=False, compare=False)
    """How many bytes have been written to the connection and not been taken at its other end, as far as is known."""

    @property
    def is_tcp(self) -> bool:
        """Whether it came over TCP, so that nobody knows which user it is."""
        return self.listener in ("admin_http", "data_http")

    def __str__(self) -> str:
        return self.address or f"user {self.user_id}, process {self.process_id}"


def identify(listener: ListenerName, sock: socket.socket, address: object) -> Caller:
    """The caller of a connection just accepted."""
    if sock.family != socket.AF_UNIX:
        return Caller(listener, format_address(address))
    user_id, process_id = peer_credentials(sock)
    return Caller(listener, user_id=user_id, process_id=process_id)


def user_name(user_id: int | None) -> str | None:
    """The name of a user of this machine, if the number has one. May take a while."""
    try:
        return None if user_id is None else pwd.getpwuid(user_id).pw_name
    except KeyError:
        return None


def caller_of(scope: Mapping[str, Any]) -> Caller | None:
    """The caller of a request; ``None`` when no listener of ours took it in."""
    found = scope.get("state", {}).get(STATE_KEY)
    return found if isinstance(found, Caller) else None


def host_name(scope: Mapping[str, Any]) -> str:
    """Return what counts as one client: a machine over TCP, a user on the unix socket."""
    caller = caller_of(scope)
    if caller is None:
        return "unknown"
    return host_of(caller.address) if caller.is_tcp else f"user {caller.user_id}"


def hang_up(scope: Mapping[str, Any]) -> None:
    """Cut the connection of a request at once; what was not sent is lost. Without a listener (in tests): nothing."""
    caller = caller_of(scope)
    if caller is not None:
        caller.hang_up()


def unsent(scope: Mapping[str, Any]) -> int:
    """How many bytes wait for the client of a request, here and in the kernel. Without a listener (in tests): none."""
    caller = caller_of(scope)
    return 0 if caller is None else caller.unsent()


def queued_in_kernel(sock: socket.socket | None) -> int:
    """How many bytes the kernel holds that the other end has not taken; 0 where the system does not tell."""
    if sock is None:
        return 0
    told = bytearray(_INTEGER.size)
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, told)  # on Linux also of a socket, where it is called SIOCOUTQ
    except (OSError, ValueError):  # it is closed, or this is another system
        return 0
    return int(_INTEGER.unpack(told)[0])
