"""When a producer stops, and when a standby may take its place: never both at once. Pure.

The lock is the stream's record. The root of its key lets another node write one when the producer's has lapsed, so no
sooner than a lease after the producer has sent its last renewal, by the root's clock. The producer counts from the same
moment, by its own clock, and stops earlier: so much earlier that clocks may run fast or slow by
`peerd.lib.leases.DRIFT_MAX`.
"""

from __future__ import annotations

from typing import Final

STOP_SHARE: Final = 0.85
"""A producer whose record was not renewed stops after this share of the lease: less than (1 - DRIFT_MAX) / (1 +
DRIFT_MAX), for then it has stopped by the time that the lease is over by any clock."""
RANK_S: Final = 5.0
"""Each standby waits so much longer than the one before it in the record."""


def stops_at(sent_at: float, lease_s: float) -> float:
    """When the producer takes no more items, by its own clock, if this renewal is the last that was confirmed."""
    return sent_at + STOP_SHARE * lease_s


def may_take_over_at(heard_at: float, lapsed_at: float, lease_s: float, rank: int) -> float:
    """When a standby acts, by its own clock. ``rank``: 0 for the first of them.

    ``heard_at``: the producer has asked it last then. ``lapsed_at``: it has found no record in the ring first then. The
    first counts where the record is gone too early, because all that held it died at once.
    """
    return max(heard_at + lease_s, lapsed_at) + rank * RANK_S
