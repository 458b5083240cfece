"""Round-trip times of the peers that this node talks to. Pure state.

Jacobson's estimator with RFC 6298's gains, and a margin: on a path without jitter the deviation goes to nothing, and
the first answer that waits a moment anywhere would be late. Every request has its own correlation number, so a sample
is never ambiguous (Karn's problem does not arise).
"""

from __future__ import annotations

from typing import Final

from peerd.ids import NodeId

_GAIN: Final = 1 / 8
_DEVIATION_GAIN: Final = 1 / 4
_DEVIATIONS: Final = 4
MARGIN_SHARE: Final = 0.25
"""The wait for an answer is longer than the smoothed RTT by at least this share of it."""
OPENING_ROUND_TRIPS: Final = 3
"""What has to be waited for where there is no link yet: TCP, TLS and Hello."""
UNMEASURED_FACTOR: Final = 2.0
"""The wait for a peer that was never measured, in round trips as its coordinate predicts them."""
PEERS_MAX: Final = 512


class Proximity:
    """Smoothed RTT and deviation a peer, seconds; the least recently added peer goes when there are too many."""

    __slots__ = ("_estimates", "_initial_s", "_max_s", "_min_s", "_peers_max")

    def __init__(self, min_s: float, max_s: float, initial_s: float, peers_max: int = PEERS_MAX) -> None:
        self._min_s, self._max_s, self._initial_s = min_s, max_s, initial_s
        self._peers_max = peers_max
        self._estimates: dict[NodeId, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._estimates)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._estimates

    def observe(self, node_id: NodeId, rtt_s: float) -> bool:
        """Add one measured round trip; returns whether it is the first one of that peer."""
        known = self._estimates.get(node_id)
        if known is None:
            if len(self._estimates) >= self._peers_max:
                del self._estimates[next(iter(self._estimates))]
            self._estimates[node_id] = (rtt_s, rtt_s / 2)
            return True
        smoothed, deviation = known
        deviation += _DEVIATION_GAIN * (abs(rtt_s - smoothed) - deviation)
        self._estimates[node_id] = (smoothed + _GAIN * (rtt_s - smoothed), deviation)
        return False

    def rtt_s(self, node_id: NodeId) -> float | None:
        """Smoothed RTT; ``None`` when never measured."""
        known = self._estimates.get(node_id)
        return None if known is None else known[0]

    def timeout_s(
        self, node_id: NodeId, attempt: int = 0, *, is_linked: bool = True, predicted_s: float | None = None
    ) -> float:
        """How long to wait for this peer's answer, where there is a link to it or one has to be opened first.

        With no estimate, twice as long for each silent attempt before, and twice the predicted round trip at least.
        """
        known = self._estimates.get(node_id)
        if known is not None:
            smoothed, deviation = known
            wait_s = smoothed + max(_DEVIATIONS * deviation, MARGIN_SHARE * smoothed)
        else:
            wait_s = 0.0 if predicted_s is None else UNMEASURED_FACTOR * predicted_s
        if not is_linked:
            wait_s *= 1 + OPENING_ROUND_TRIPS
        least_s = self._min_s if known is not None else self._initial_s * 2**attempt
        return float(min(self._max_s, max(least_s, wait_s)))

    def forget(self, node_id: NodeId) -> None:
        """Drop what is known of a peer."""
        self._estimates.pop(node_id, None)
