"""One member that lies about its neighbours, and what that costs the others."""

from __future__ import annotations

from typing import Final

from peerd.api import Priority
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.messages import CANDIDATES_MAX, LeafSetProbe
from peerd.sim.simulation import Place
from tests.support.overlay_net import OverlayRing

LIE_S: Final = 0.2
"""Between two lies to each of the others."""
SIDE: Final = 8


def nothing(*_: object) -> None:
    """Whatever became of it."""


class LiarRing(OverlayRing):
    """Node 1 tells all others, five times a second, of neighbours of theirs that do not exist."""

    invented = 0

    def lie(self) -> None:
        """Once to everybody, and again in a moment."""
        liar = self.nodes[1]
        for place in self.live_nodes():
            if place is not liar:
                near = [self.stranger(place, side) for side in (-1, 1) for _ in range(SIDE)]
                other = [self.stranger(place, self.rng.choice((-1, 1))) for _ in range(CANDIDATES_MAX)]
                probe = LeafSetProbe(True, tuple(near[:SIDE]), tuple(near[SIDE:]), tuple(other), ())
                liar.node.hosts["overlay"].request(place.peer, probe, 3.0, nothing, nothing, Priority.URGENT)
        self.after(LIE_S, self.lie)

    def stranger(self, place: Place, side: int) -> PeerRef:
        """Somebody new who would be a neighbour of this node."""
        self.invented += 1
        nearer_each_time = 120 - int(self.now / LIE_S) % 100
        distance = self.rng.randrange(1, 1 << nearer_each_time)
        return PeerRef(NodeId((place.id + side * distance) % (1 << 128)), "192.0.2.1", 1 + self.invented % 60_000)


def has_forgotten(ring: OverlayRing, dead: Place) -> bool:
    """Whether nobody has the dead node in its leaf set any more."""
    return not any(dead.peer in place.node.overlay.leaf_set().members() for place in ring.live_nodes())


def test_invented_neighbours_hide_no_death_and_keep_no_newcomer_out() -> None:
    ring = LiarRing(seed=4)
    ring.misbehaviour_is_failure = False
    ring.grow(12)
    ring.lie()
    ring.run_for(20.0)
    dead = ring.nodes[5]
    ring.kill(dead)
    ring.run_until(lambda: has_forgotten(ring, dead), limit_s=10.0)
    silent = ring.nodes[6]
    ring.silence(silent)
    ring.run_until(lambda: has_forgotten(ring, silent), limit_s=30.0)
    newcomer = ring.add_node()
    ring.run_for(0.1)
    ring.run_until(lambda: newcomer.node.is_ready, limit_s=60.0)
    ring.run_for(60.0)
    liar = ring.nodes[1].id
    for place in ring.live_nodes():
        if place.id != liar:
            history = place.node.overlay.state.history
            doubted = [peer for peer in history.peers() for note in history.of(peer) if note.verdict == "doubted"]
            assert set(doubted) <= {liar}, "who passes on what it was told is not blamed"
            assert doubted or place is newcomer
