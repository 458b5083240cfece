"""Round trips and bandwidth to this node's neighbours on the ring. Round trips the overlay measures anyway.

Its own traffic is too little to tell the bandwidth: it never fills a link. So now and then a neighbour is asked for a
known amount of bytes, one at a time, 256 KiB. What is told is what such a transfer gets, its round trips included.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, zip_longest
from typing import ClassVar, Final

from peerd.api import AcceptSwap, Host, Part, RefuseSwap, SwapCallbacks, SwapRequest, Value, on_timer
from peerd.api.bulk import value_size_bytes
from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import PeerRef
from protocols.measurement.names import full_name
from protocols.measurement.sources.source import NETWORK, MeasurementSource

RTT_PEERS_MAX: Final = 32
"""Peers whose round trips are measurements: those of the leaf set, the nearest on the ring first."""
PROBE_BYTES: Final = 256 * KIB
PROBE_S: Final = 20.0
"""A probe that takes longer tells nothing."""
PROBE_TAG: Final = b"bandwidth"
ANSWERED_GAP_S: Final = 1.0
"""A node answers no more than one probe in this time, whoever asks."""
_PROBE: Final = "bandwidth"


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


def _ignored(what: object) -> None:
    """Nothing depends on how it ends."""


class BandwidthProbes(Part):
    """``interval_s``: between two probes of this node; 0: it probes nobody, and answers others all the same."""

    def __init__(self, host: Host, interval_s: float) -> None:
        self._host, self._interval_s = host, interval_s
        self._found: dict[NodeId, float] = {}
        self._turn = 0
        self._answered_at = float("-inf")

    def begin(self) -> None:
        """Probe from now on."""
        if self._interval_s:
            self._host.set_timer(_PROBE, self._host.rng.uniform(0.0, self._interval_s))

    @property
    def found(self) -> Mapping[NodeId, float]:
        """Bytes a second from these peers to this node, by the last probe of each."""
        return self._found

    @on_timer(_PROBE)
    def _due(self, payload: None) -> None:
        self._host.set_timer(_PROBE, self._interval_s * self._host.rng.uniform(0.8, 1.2))
        peers = sorted(self._host.leaf_set().members(), key=lambda peer: peer.id)
        for gone in self._found.keys() - {peer.id for peer in peers}:
            del self._found[gone]
        if not peers:
            return
        self._turn += 1
        self._probe(peers[self._turn % len(peers)])

    def _probe(self, peer: PeerRef) -> None:
        began = self._host.now()

        def received(value: Value) -> None:
            elapsed_s = self._host.now() - began
            if value_size_bytes(value) == PROBE_BYTES and elapsed_s > 0.0:
                self._found[peer.id] = PROBE_BYTES / elapsed_s

        self._host.fetch(peer, PROBE_TAG, SwapCallbacks(received, _ignored), PROBE_S)

    def requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Another node probes."""
        now = self._host.now()
        if request.tag != PROBE_TAG or not request.is_fetch:
            return RefuseSwap("not_supported")
        if now - self._answered_at < ANSWERED_GAP_S:
            return RefuseSwap("busy")
        self._answered_at = now
        return AcceptSwap(bytes(PROBE_BYTES), SwapCallbacks(_ignored, _ignored), PROBE_S)
