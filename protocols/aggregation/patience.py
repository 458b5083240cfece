"""How long a node waits at a level: the paper's time-out (section 4.3), or the part of it that levels lately needed.

A dead partner costs every node above it that time-out, which is made for a ring that nobody knows yet. From the rounds
before, a node knows how long its levels take. So it is of values that ride along, which take as long as the latencies
say. How long a large one takes depends on the links of those whom chance pairs, of which a node sees a few in a round.
"""

from __future__ import annotations

from typing import Final

LEAST_SHARE: Final = 0.25
MARGIN: Final = 4.0
"""A level may take so many times as long as those before."""
FADING: Final = 0.9
"""Each level that ends with a swap counts for so much of the one before it. A round has log2(nodes) of them."""


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
