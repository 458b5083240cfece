"""Round trips and bandwidth to this node's neighbours on the ring. Round trips the overlay measures anyway."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, zip_longest
from typing import ClassVar, Final

from peerd.api import Host
from peerd.ids import NodeId
from protocols.measurement.names import full_name
from protocols.measurement.sources.source import NETWORK, MeasurementSource

RTT_PEERS_MAX: Final = 32
"""Peers whose round trips are measurements: those of the leaf set, the nearest on the ring first."""


class NetworkSource(MeasurementSource):
    """Tells ``rtt@PEER`` in seconds, smoothed by the overlay, and ``bandwidth@PEER`` in bytes a second by the last
    probe: what this node holds for true at the moment of the reading."""

    is_at_hand: ClassVar[bool] = True

    def __init__(self, host: Host, period_s: float, bandwidth: Mapping[NodeId, float] = {}) -> None:
        super().__init__(NETWORK, period_s)
        self._host, self._bandwidth = host, bandwidth

    def read(self, now: float) -> dict[str, float]:
        """Those that have been measured."""
        leaves = self._host.leaf_set()
        by_place = chain.from_iterable(zip_longest(leaves.smaller, leaves.larger))
        nearest = {peer.id: peer for peer in by_place if peer is not None}
        known = ((peer, self._host.rtt(peer)) for peer in list(nearest.values())[:RTT_PEERS_MAX])
        rates = {full_name("bandwidth", peer): rate for peer, rate in self._bandwidth.items()}
        return rates | {full_name("rtt", peer.id): rtt_s for peer, rtt_s in known if rtt_s is not None}
