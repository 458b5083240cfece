"""How often strangers may ask an issuer: all together, and each host that was refused before. Pure: times are given.

A host is an IPv4 address or an IPv6 /64, which one machine has to itself. Only refusals count against a host, so that
many machines behind one address can join at once, while one that guesses tokens cannot shut the others out.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from peerd.lib.admission import TokenBucket

REQUESTS_PER_SECOND: Final = 5.0
REQUESTS_BURST: Final = 20
REFUSALS_PER_HOST: Final = 5.0
"""A host may be refused so often at once, and after that once every `REFUSAL_FORGOTTEN_S`."""
REFUSAL_FORGOTTEN_S: Final = 10.0
HOSTS_MAX: Final = 1024
"""Above it the host that was refused longest ago is forgotten."""
IPV6_HOST_PREFIX: Final = 64


class RefusedHosts:
    """How often each host was refused lately; at most `HOSTS_MAX` hosts."""

    def __init__(self) -> None:
        self._refusals: dict[str, tuple[float, float]] = {}

    def must_wait(self, host: str, now: float) -> bool:
        """Whether the host was refused so often that it has to wait before the next attempt."""
        return self._count(host, now) > REFUSALS_PER_HOST - 1

    def refused(self, host: str, now: float) -> None:
        """Another attempt of this host came to nothing."""
        count = self._count(host, now) + 1
        self._refusals.pop(host, None)
        self._refusals[host] = count, now
        if len(self._refusals) > HOSTS_MAX:
            del self._refusals[next(iter(self._refusals))]

    def _count(self, host: str, now: float) -> float:
        count, since = self._refusals.get(host, (0.0, now))
        return max(0.0, count - (now - since) / REFUSAL_FORGOTTEN_S)


class JoinLimits:
    """Ask `admit` before a request is looked at, tell `refused` when the answer was no."""

    def __init__(self, now: float) -> None:
        self._bucket = TokenBucket(REQUESTS_PER_SECOND, REQUESTS_BURST, now)
        self._hosts = RefusedHosts()

    def admit(self, host: str, now: float) -> str:
        """Return why a request is refused now; empty when it may be looked at. A refused one uses up no tokens."""
        if self._hosts.must_wait(host, now):
            return f"too many refused attempts from {host}; try again in {REFUSAL_FORGOTTEN_S:g} s"
        return "" if self._bucket.take(now) else "too many machines join at once; try again in a few seconds"

    def refused(self, host: str, now: float) -> None:
        """Another attempt of this host came to nothing."""
        self._hosts.refused(host, now)


def host_of(address: str) -> str:
    """Return what counts as one host; ``address`` is ``host:port`` or ``[host]:port``, as a connection came from it."""
    host = ip_address(address.rpartition(":")[0].strip("[]").partition("%")[0])
    if not isinstance(host, IPv6Address):
        return str(host)
    if host.ipv4_mapped is not None:
        return str(host.ipv4_mapped)
    return str(IPv6Network((host, IPV6_HOST_PREFIX), strict=False))
