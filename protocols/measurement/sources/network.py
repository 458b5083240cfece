"""Round trips to this node's neighbours on the ring, as the overlay measures them anyway: no probe is sent for them."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import ClassVar, Final

from peerd.api import Host
from protocols.measurement.names import full_name
from protocols.measurement.sources.source import NETWORK, MeasurementSource

RTT_PEERS_MAX: Final = 32
"""Peers whose round trips are measurements: those of the leaf set, the nearest on the ring first."""


class NetworkSource(MeasurementSource):
    """Tells ``rtt@PEER`` in seconds, smoothed by the overlay: what it holds for true at the moment of the reading."""

    is_at_hand: ClassVar[bool] = True

    def __init__(self, host: Host, period_s: float) -> None:
        super().__init__(NETWORK, period_s)
        self._host = host

    def read(self, now: float) -> dict[str, float]:
        """Those that have been measured."""
        leaves = self._host.leaf_set()
        by_place = chain.from_iterable(zip_longest(leaves.smaller, leaves.larger))
        nearest = {peer.id: peer for peer in by_place if peer is not None}
        known = ((peer, self._host.rtt(peer)) for peer in list(nearest.values())[:RTT_PEERS_MAX])
        return {full_name("rtt", peer.id): rtt_s for peer, rtt_s in known if rtt_s is not None}
