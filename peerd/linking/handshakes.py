"""Incoming connections whose handshake is not done, by the host that they come from. Pure.

A host is what `peerd.linking.join_limits.host_of` says it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Handshakes(Generic[K]):
    """Each host's connections, oldest first."""

    def __init__(self) -> None:
        self._hosts: dict[K, str] = {}
        self._of_host: dict[str, dict[K, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[K]:
        return iter(self._hosts)

    def add(self, connection: K, host: str) -> None:
        """Add a connection that has just been accepted."""
        self._hosts[connection] = host
        self._of_host.setdefault(host, {})[connection] = None

    def discard(self, connection: K) -> None:
        """Remove a connection whose handshake is done, or that was closed; harmless when it is not there."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return
        connections = self._of_host[host]
        del connections[connection]
        if not connections:
            del self._of_host[host]

    def of_host(self, host: str) -> int:
        """How many unfinished connections come from the host."""
        return len(self._of_host.get(host, ()))

    def busiest_host(self) -> str:
        """Return the host with the most connections, of several the first one. There must be a connection."""
        return max(self._of_host, key=self.of_host)

    def oldest_of(self, host: str) -> K:
        """Return the host's oldest connection. There must be one."""
        return next(iter(self._of_host[host]))
