"""Finds a second ring of the same cluster, of which this one never knew, and merges the two.

It happens when two seeds were each told to found a ring, or when a ring began behind a cut. The departed peers of
`membership` cannot help: nobody was lost. So now and then a node dials one of its configured addresses, and has itself
led from there to its own place, as a newcomer would be. In its own ring the way ends among its leaf set; in another,
among strangers who belong into it, and an exchange with them starts the merge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd import limits
from peerd.api import Part, Priority, on_timer
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.overlay.membership import Membership
from peerd.overlay.messages import JoinReply, JoinRequest
from peerd.overlay.state import OverlayState

JITTER: Final = 0.5
REQUEST: Final = JoinRequest()


class Reunion(Part):
    """One walk at a time; it ends by itself when a hop does not answer."""

    def __init__(self, state: OverlayState, membership: Membership) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._addresses: list[tuple[str, int]] = []
        self._walked: set[NodeId] = set()
        """Ids that the walk has been to; only looked up, never iterated over."""

    def start(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Remember whom to ask; with nobody to ask, nothing ever happens."""
        own = self._host.peer
        self._addresses = [address for address in dict.fromkeys(addresses) if address != (own.host, own.port)]
        self._host.cancel_timer("reunion")  # when it is told anew which addresses to ask
        if self._addresses:
            self._arm()

    def _arm(self) -> None:
        interval_s = self.state.config.reunion_interval
        self._host.set_timer("reunion", interval_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    @on_timer("reunion")
    def _look(self, payload: object) -> None:
        """Dial one address whose node is no member."""
        self._arm()
        state = self.state
        members = {(peer.host, peer.port) for peer in state.leaves}
        elsewhere = [address for address in self._addresses if address not in members]
        if elsewhere and state.is_ready and not state.is_leaving:
            host, port = self._host.rng.choice(elsewhere)
            self._host.dial(host, port, self._dialled)

    def _dialled(self, peer: PeerRef | None) -> None:
        if peer is not None and peer.id != self.state.own:
            self._walked = {peer.id}
            self._ask(peer)

    def _ask(self, peer: PeerRef) -> None:
        timeout_s = self.state.timeout_s(peer)
        self._host.request(peer, REQUEST, timeout_s, self._answered, _nothing, Priority.BACKGROUND)

    def _answered(self, reply: Message, source: PeerRef) -> None:
        state = self.state
        if not isinstance(reply, JoinReply) or not reply.is_ready or not state.is_ready:
            return
        hop = reply.next_hop
        if hop is not None and hop.id not in self._walked and len(self._walked) < limits.HOPS_MAX:
            if hop.id in state.leaves or hop.id == state.own:
                return  # it is our ring
            self._walked.add(hop.id)
            self._ask(hop)
            return
        self._membership.consider((source,))
        self._membership.consider((*reply.smaller, *reply.larger), source.id)


def _nothing() -> None:
    """Nobody answered. The next look tries another address."""
