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
        """One more."""
        self._hosts[connection] = host
        self._of_host.setdefault(host, {})[connection] = None

    def discard(self, connection: K) -> None:
        """It is done, or was ended; harmless when it is not there."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return
        connections = self._of_host[host]
        del connections[connection]
        if not connections:
            del self._of_host[host]

    def of_host(self, host: str) -> int:
        """How many come from there."""
        return len(self._of_host.get(host, ()))

    def busiest_host(self) -> str:
        """The host with the most of them, of several the one that came first. There must be one."""
        return max(self._of_host, key=self.of_host)

    def oldest_of(self, host: str) -> K:
        """The connection that has had the most time. There must be one."""
        return next(iter(self._of_host[host]))
