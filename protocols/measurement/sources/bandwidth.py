"""Bandwidth to this node's neighbours on the ring: now and then one of them is asked for a known amount of bytes.

The overlay's own traffic is too little to tell: it never fills a link. So a probe does, one at a time, of 256 KiB. What
is told is what such a transfer gets, its round trips included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.api import AcceptSwap, Host, Part, RefuseSwap, SwapCallbacks, SwapRequest, Value, on_timer
from peerd.api.bulk import value_size_bytes
from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import PeerRef

PROBE_BYTES: Final = 256 * KIB
PROBE_S: Final = 20.0
"""A probe that takes longer tells nothing."""
PROBE_TAG: Final = b"bandwidth"
ANSWERED_GAP_S: Final = 1.0
"""A node answers no more than one probe in this time, whoever asks."""
_PROBE: Final = "bandwidth"


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
