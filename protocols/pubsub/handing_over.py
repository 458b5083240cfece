"""A node whose own events weigh on it has other nodes send them on. Pure but for time and chance, which the host has.

An event sets out over as many links as there are next hops for its cells: some dozens, where it visits hundreds of
leaves. A node that publishes much more than others would carry that for each of its events. When adaptive balancing
(`tree.heat`) finds it so, the node sends each event to a few of its next hops only, with the cells of the others, and
these send it on as if it had come by routing: one hop more for most leaves, and a few messages in place of dozens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from peerd.api import Host
from peerd.messages import PeerRef
from protocols.pubsub.spread import AttributeCell
from protocols.pubsub.tree.meter import Meter

HELPERS: Final = 4
"""An event is handed to so many nodes, each with the cells of a part of the next hops."""
LINKS_MIN: Final = 32
"""What sets out over fewer links is not handed over: the longer ways would cost others more than it saves here."""
NEAREST: Final = 8
"""The helper of a part is one of so many of its next hops, by chance: the nearest, so that the way there is short. Not
always the nearest of all, because it would have all of the work."""


class HandingOver:
    """Whether this node hands its own events over, and what they would weigh if it did not."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._own, self._spared = Meter(), Meter()
        self.is_on = False

    def note_own(self, size: int) -> None:
        """This node has sent so many bytes because of its own events."""
        self._own.add(size, self._host.now())

    def note_spared(self, size: int) -> None:
        """It would have sent so many bytes more, if nobody had helped."""
        self._own.add(size, self._host.now())
        self._spared.add(size, self._host.now())

    def own_rate(self, now: float) -> float:
        """Bytes a second that its own events take, or would take if nobody helped."""
        return self._own.rate(now)

    def spared_rate(self, now: float) -> float:
        """How much of that others send."""
        return self._spared.rate(now)

    def parts(self, ways: Mapping[PeerRef, Sequence[AttributeCell]]) -> Iterator[tuple[PeerRef, list[AttributeCell]]]:
        """Who is to be handed which cells, of these that are to go to these next hops.

        Next hops with neighbouring ids are in one part, because their ways have most in common.
        """
        hops = sorted(ways, key=lambda hop: hop.id)
        for index in range(HELPERS):
            part = hops[index * len(hops) // HELPERS : (index + 1) * len(hops) // HELPERS]
            nearest = sorted(part, key=self._distance_s)[:NEAREST]
            yield self._host.rng.choice(nearest), [place for hop in part for place in ways[hop]]

    def _distance_s(self, hop: PeerRef) -> float:
        rtt_s = self._host.estimated_rtt(hop)
        return math.inf if rtt_s is None else rtt_s
