"""Who is at the other end of an HTTP connection, according to the operating system.

A unix socket tells user and process of whoever connected; a TCP connection tells an address only. The server puts the
`Caller` into each request's scope, below ``state``, where the routes find it through `caller_of`.
"""

from __future__ import annotations

import pwd
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from peerd.system.sockets import format_address

ListenerName = Literal["admin_socket", "admin_http", "data_socket", "data_http"]
"""Where daemons listen for HTTP; also the label of their metrics."""

STATE_KEY: Final = "peerd_caller"
_CREDENTIALS: Final = struct.Struct("3i")
"""Linux's ``struct ucred``: process, user and group id."""


def _nothing() -> None:
    """Stands for hanging up where there is no connection to end."""


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
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux: then nobody is known to be the operator
        return Caller(listener)
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _ = _CREDENTIALS.unpack(told)
    # -1 means "not known"; process 0 belongs to another process namespace.
    return Caller(listener, user_id=None if user_id < 0 else user_id, process_id=process_id or None)


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


def hang_up(scope: Mapping[str, Any]) -> None:
    """Cut the connection of a request at once; what was not sent is lost. Without a listener (in tests): nothing."""
    caller = caller_of(scope)
    if caller is not None:
        caller.hang_up()
