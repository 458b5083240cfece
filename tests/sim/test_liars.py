"""One member that lies about its neighbours, and what that costs the others."""

from __future__ import annotations

from typing import ClassVar

from peerd.sim.hostile.member import Party
from peerd.sim.hostile.neighbours import Colluders, InventedNeighbours
from peerd.sim.simulation import Place
from tests.support.overlay_net import OverlayRing

LIAR = 1


class TellsEverybody(InventedNeighbours):
    """Tells all others, five times a second, of neighbours of theirs that do not exist."""

    gap_s: ClassVar[float] = 0.2
    targets_max: ClassVar[int] = 64


def has_forgotten(ring: OverlayRing, dead: Place) -> bool:
    """Whether nobody has the dead node in its leaf set any more."""
    return not any(dead.peer in place.node.overlay.leaf_set().members() for place in ring.live_nodes())


def test_invented_neighbours_hide_no_death_and_keep_no_newcomer_out() -> None:
    ring = OverlayRing(seed=4)
    party = Party(ring, {LIAR: [TellsEverybody]})
    ring.grow(12)
    party.begin()
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
    for place in ring.honest_nodes():
        history = place.node.overlay.state.history
        doubted = [peer for peer in history.peers() for note in history.of(peer) if note.verdict == "doubted"]
        assert set(doubted) <= party.ids, "who passes on what it was told is not blamed"
        assert doubted or place is newcomer


def test_a_liar_at_the_far_end_of_a_side_keeps_no_leaf_set_from_being_whole() -> None:
    """Swarm seed 10253: the one node that was asked who comes next was the one that never tells."""
    ring = OverlayRing(seed=4)
    party = Party(ring, {LIAR: [Colluders]})
    ring.grow(18)
    party.begin()
    ring.run_for(60.0)
    dead = ring.nodes[2:4]
    for place in dead:
        ring.kill(place)
    ring.run_until(lambda: all(has_forgotten(ring, place) for place in dead), limit_s=30.0)
    ring.run_until(lambda: all(place.node.overlay.leaf_set().is_complete for place in ring.honest_nodes()), 60.0)
