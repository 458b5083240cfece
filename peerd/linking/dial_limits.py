"""How often a node dials addresses that it has never reached: they may be inventions. Pure: times are given.

The tokens that a dial takes are given back when it reaches the node that it was for, so that honest news is never held
up, however much of it comes at once. Only dials that are under way or have failed count.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

from peerd.ids import NodeId
from peerd.lib.admission import Admission
from peerd.linking.allowed_hosts import AllowedHosts
from peerd.messages import PeerRef

DIALS_PER_ADDRESS_BURST: Final = 8.0
DIALS_PER_ADDRESS_PER_SECOND: Final = 0.2
"""Dials to one host and port, whichever node ids are said to be there."""
DIALS_PER_HOST_BURST: Final = 128.0
DIALS_PER_HOST_PER_SECOND: Final = 4.0
"""Dials to all ports of one host: many nodes may live behind one address."""
DIALS_PER_INFORMANT_BURST: Final = 128.0
DIALS_PER_INFORMANT_PER_SECOND: Final = 4.0
"""Dials because of what one peer said. It is not less, as a newcomer hears of all its neighbours from one peer."""
WRONG_CERTIFICATE_PAUSE_S: Final = 120.0
"""For so long a node id is not dialled again at an address where another node answered."""
WRONG_CERTIFICATES_MAX: Final = 1024
BUCKETS_MAX: Final = 1024
"""How many addresses, hosts and informants are remembered (each); above it the least recently charged is forgotten."""
WRONG_CERTIFICATE: Final = frozenset({"wrong_callee", "bad_certificate", "wrong_cluster"})
MET: Final = frozenset({"duplicate_link", "duplicate_identity", "links_max", "streams_max", "stopping", "banned"})
"""Refusals that only the node itself can give, after its certificate was seen."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Attempt:
    """A dial that was permitted. ``is_charged``: the address was not proven, so the dial counts until it succeeds."""

    peer: PeerRef
    informant: NodeId | None
    is_charged: bool

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that are dialled."""
        return self.peer.host, self.peer.port


def _each(rate: float, burst: float) -> Admission[K]:
    return Admission(rate, burst, keys_max=BUCKETS_MAX)


class DialLimits:
    """Ask `begin` before each dial, and tell `reached` or `failed` how it ended."""

    def __init__(self, allowed: AllowedHosts) -> None:
        self.allowed = allowed
        self._wrong: dict[PeerRef, float] = {}
        self._addresses: Admission[tuple[str, int]] = _each(DIALS_PER_ADDRESS_PER_SECOND, DIALS_PER_ADDRESS_BURST)
        self._hosts: Admission[str] = _each(DIALS_PER_HOST_PER_SECOND, DIALS_PER_HOST_BURST)
        self._informants: Admission[NodeId] = _each(DIALS_PER_INFORMANT_PER_SECOND, DIALS_PER_INFORMANT_BURST)

    def begin(self, peer: PeerRef, informant: NodeId | None, now: float, *, is_proven: bool) -> Attempt | str:
        """Permit a dial, or say why not. ``is_proven``: this node has reached this id at this address before."""
        if not self.allowed.permits(peer.host):
            return "not_allowed"
        if self._wrong and now < self._wrong.get(peer, now):
            return "wrong_callee"
        attempt = Attempt(peer, informant, is_charged=not is_proven)
        if is_proven:
            return attempt
        address = attempt.address
        is_within = (
            self._addresses.has(address, now)
            and self._hosts.has(peer.host, now)
            and (informant is None or self._informants.has(informant, now))
        )
        if not is_within:
            return "dial_limit"
        self._addresses.take(address, now)
        self._hosts.take(peer.host, now)
        if informant is not None:
            self._informants.take(informant, now)
        return attempt

    def reached(self, attempt: Attempt, now: float) -> None:
        """The node answered where it was said to be, so give back what the dial was charged."""
        self._wrong.pop(attempt.peer, None)
        if attempt.is_charged:
            self._addresses.give_back(attempt.address, now)
            self._hosts.give_back(attempt.peer.host, now)
            if attempt.informant is not None:
                self._informants.give_back(attempt.informant, now)

    def failed(self, attempt: Attempt, reason: str, now: float) -> None:
        """The dial failed. If another node answered there, the id is not dialled at this address for a while."""
        if reason in MET:
            self.reached(attempt, now)
        elif reason in WRONG_CERTIFICATE:
            self._wrong.pop(attempt.peer, None)
            self._wrong[attempt.peer] = now + WRONG_CERTIFICATE_PAUSE_S
            if len(self._wrong) > WRONG_CERTIFICATES_MAX:
                del self._wrong[next(iter(self._wrong))]
