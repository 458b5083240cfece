"""How long a node waits at a level: the paper's time-out (section 4.3), or the part of it that levels lately needed.

A dead partner costs every node above it that time-out, which is made for a ring that nobody knows yet. From the rounds
before, a node knows how long its levels take. So it is of values that ride along, which take as long as the latencies
say. How long a large one takes depends on the links of those whom chance pairs, of which a node sees a few in a round.
"""

from __future__ import annotations

from typing import Final

from peerd.frozen import Frozen

LEAST_SHARE: Final = 0.25
MARGIN: Final = 4.0
"""A level may take so many times as long as those before."""
FADING: Final = 0.9
"""Each level that ends with a swap counts for so much of the one before it. A round has log2(nodes) of them."""
OPENING_RTTS: Final = 4
"""From agreeing to a swap to its offer: half a round trip for the agreement, three for the connection (TCP, TLS and the
handshake of the two nodes), half for the offer."""
PATIENCE: Final = 2.0
"""A partner gets this many times as long as all that takes by the measured round trip, which varies."""

HURRY_S: Final = 0.1
HURRY_RTTS: Final = 2.0
"""So long, and so many round trips, invited nodes have for themselves; then as many more are invited, and all are asked
whether they live. The pause doubles each time, up to `TreeSettings.invite_interval_s`."""
PAIRING_RTTS: Final = 4.0
"""So long, and at least `HURRY_S`, counterparts have to begin their swap; then the others are invited."""
SPARE_PAUSES: Final = 4
"""So many times as long a node waits that is to have no counterpart. Others have its data, and only somebody whose
counterpart has failed needs it: to invite those who are about to swap would part them from theirs."""
LEVEL_RTTS: Final = 4.0
"""A level lasts at least until an invited node has been asked again and has answered."""


class TreeSettings(Frozen):
    """Pace of a tree; see `protocols.aggregation.config` for what each means to an operator."""

    timeout_base_s: float = 2.0
    timeout_per_node_s: float = 0.05
    timeout_max_s: float = 30.0
    invite_interval_s: float = 0.5
    reserve_s: float = 5.0
    invites_max: int = 8
    random_invites: int = 2


def patience_s(least_s: float, rtt_s: float) -> float:
    """How long to wait for a node that far away to open a swap."""
    return max(least_s, PATIENCE * OPENING_RTTS * rtt_s)


class LevelPatience:
    """Of one node. ``share``: the part of the time-out that it waits in the rounds that begin now."""

    def __init__(self) -> None:
        self.share = 1.0

    def learn(self, outcome: str, took: float) -> None:
        """A level is over. ``took``: in parts of the whole time-out.

        Two that time out bring the whole one back: whom a node has gone on without may live and be slow.
        """
        if outcome == "timed_out":
            self.share = min(1.0, 2.0 * self.share)
        elif outcome == "swapped":
            self.share = min(1.0, max(MARGIN * took, FADING * self.share, LEAST_SHARE))
