"""Which addresses a node dials when it knows them only from other nodes. Pure: names are looked up elsewhere.

A member can name any address it likes as that of a node. Without a limit it could point the whole ring at a machine
that is no part of it, or at services that listen only on the node's own machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

_CONDITIONAL: Final = frozenset({"loopback", "link_local"})
"""Kinds of addresses that are dialled by nodes which have such an address themselves."""
_NO_MACHINE: Final = "no_machine"
"""The kind of addresses that stand for no one machine: unspecified and multicast."""
HOSTS_REMEMBERED_MAX: Final = 8192
"""Of so many hosts it is remembered what kind they are. Reading an address takes longer than all else before a dial."""


class AllowedHosts:
    """Decides by the operator's ``networks``; where there are none, by the kind of the address.

    Nothing is ever dialled at an address that stands for no one machine (unspecified, multicast). Without ``networks``
    link-local, reserved and loopback addresses are left out as well: the first of them lead to the services of cloud
    providers, the last ones to what listens on this machine only. Link-local and loopback ones are dialled where one of
    ``own`` is of the same kind: the addresses at which this node listens, is reached, and finds its ring.
    """

    def __init__(self, networks: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        self._networks = tuple(ip_network(text) for text in networks)
        self._own_kinds = _CONDITIONAL.intersection(map(_kind, own))

    def permits(self, host: str) -> bool:
        """Whether to dial ``host``. A name may be looked up; ask again about the addresses that it has."""
        kind = _kind(host)
        if kind == _NO_MACHINE:
            return False
        address = _address(host) if self._networks else None
        if address is not None:
            return any(address.version == each.version and address in each for each in self._networks)
        return not kind or kind in self._own_kinds


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return ip_address("127.0.0.1") if host == "localhost" else None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(HOSTS_REMEMBERED_MAX)
def _kind(host: str) -> str:
    """Return the special kind of an address, such as "loopback"; empty for an ordinary one."""
    address = _address(host)
    match address:
        case None:
            return ""
        case _ if address.is_unspecified or address.is_multicast:
            return _NO_MACHINE
        case _ if address.is_loopback:
            return "loopback"
        case _ if address.is_link_local:
            return "link_local"
        case IPv4Address() if address.is_reserved:  # IPv6's reserved addresses include those of NAT64
            return "reserved"
        case _:
            return ""
