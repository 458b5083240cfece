"""A node whose own events weigh on it has other nodes send them on. Pure but for time and chance, which the host has.

An event sets out over as many links as there are next hops for its cells: some dozens, where it visits hundreds of
leaves. A node that publishes much more than others would carry that for each of its events. When adaptive balancing
(`tree.heat`) finds it so, the node sends each event to a few neighbours on the ring only, each with a part of the
cells, and these send it on as if it had come by routing: one hop more, and a few messages in place of dozens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.publishing.spread import AttributeCell
from protocols.pubsub.tree.meter import Meter

HELPERS: Final = 4
"""An event is handed to so many nodes, each with the cells of a part of the next hops."""
LINKS_MIN: Final = 2 * HELPERS
"""What sets out over fewer links is not handed over: the longer ways would cost others more than it saves here."""
DIRECT_MIN: Final = 32
"""What can go straight to the roots of remembered leaves is handed over only where these are so many: it takes a route
then, in place of one hop."""
NEAREST: Final = 2 * HELPERS
"""Helpers are drawn from so many neighbours on the ring: the nearest by latency, so that the way there is short."""


class HandingOver:
    """Whether this node hands its own events over, and what they would weigh if it did not."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._own, self._spared = Meter(), Meter()
        self.is_on = False
        self.loads: dict[NodeId, float] = {}
        """What neighbours on the ring send, as they said when they were last asked."""

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

        Next hops with neighbouring ids are in one part, because their ways have most in common. Helpers are neighbours
        on the ring: each node is that of few others only, and there are links to them. The nearest entries of routing
        tables are so near that they are those of many, who would all ask them.
        """
        hops = sorted(ways, key=lambda hop: hop.id)
        helpers = self._helpers()
        for index, helper in enumerate(helpers):
            part = hops[index * len(hops) // len(helpers) : (index + 1) * len(hops) // len(helpers)]
            yield helper, [place for hop in part for place in ways[hop]]

    def _helpers(self) -> list[PeerRef]:
        """Of two neighbours that are drawn the one that sends less, for each part (the power of two choices)."""
        nearest = sorted(self._host.leaf_set().members(), key=self._distance_s)[:NEAREST]
        drawn = self._host.rng.sample(nearest, len(nearest))
        pairs = (drawn[index::HELPERS] for index in range(min(HELPERS, len(drawn))))
        return [min(pair, key=lambda peer: self.loads.get(peer.id, 0.0)) for pair in pairs]

    def _distance_s(self, hop: PeerRef) -> float:
        rtt_s = self._host.estimated_rtt(hop)
        return math.inf if rtt_s is None else rtt_s
