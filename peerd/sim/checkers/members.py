"""Invariants of who is expected: silence makes nobody disappear."""

from __future__ import annotations

from typing import Final

from peerd import limits
from peerd.api import LeafSet
from peerd.ids import NodeId, short_id
from peerd.node.node import Node
from peerd.overlay.expectations import ABSENT_MAX
from peerd.sim.simulation import Checker, Place, Simulation
from peerd.telemetry.schema import Event, NodeStopped

NEAR: Final = limits.LEAF_SET_SIZE // 4
"""Members on each side that are looked at: those farther out may have to make room for newcomers just as they die."""


class ExpectedMembers(Checker):
    """A node that dies in silence stays expected by its near neighbours, as long as they would be its neighbours.

    Until it is back, or has left, or `overlay.expect_for` has passed; nodes in ``forgotten`` are nobody's concern.
    """

    name = "expected members"
    holds_always = True

    def __init__(self) -> None:
        self.forgotten: set[NodeId] = set()
        self.owed = 0
        """How often somebody had to be expected: proof that the checker looks at something."""
        self._left: set[NodeId] = set()
        self._seen: dict[tuple[int, int], LeafSet] = {}
        self._owing: dict[tuple[int, int], set[NodeId]] = {}

    def booted(self, simulation: Simulation, place: Place, node: Node) -> str | None:
        """Whatever its last incarnation said, this one has not left."""
        self._left.discard(place.id)
        return None

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        """Who stops in order says goodbye."""
        if isinstance(event, NodeStopped):
            self._left.add(place.id)
        return None

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Whoever was a member since the last look, and is none any more."""
        incarnation = (place.index, place.boot_epoch)
        leaf_set = place.node.overlay.leaf_set()
        owing = self._owing.setdefault(incarnation, set())
        before = self._seen.get(incarnation)
        if leaf_set is not before:
            self._seen[incarnation] = leaf_set
            if before is not None:
                owing |= {peer.id for peer in (*before.smaller[:NEAR], *before.larger[:NEAR])}
                owing -= {peer.id for peer in leaf_set.members()}
        offences = []
        for node_id in sorted(owing):
            if not self._is_due(simulation, place, node_id):
                owing.discard(node_id)
                continue
            self.owed += 1
            if node_id not in place.node.overlay.state.expectations:
                ended = simulation.truth.ended.get(node_id)
                since = "paused" if ended is None else f"dead for {simulation.now - ended:.1f} s"
                offences.append(f"{short_id(place.id)} does not expect {short_id(node_id)}, {since}")
        return offences

    def _is_due(self, simulation: Simulation, place: Place, node_id: NodeId) -> bool:
        """Whether the former member is gone in silence, and its place is still among this node's neighbours."""
        other, state = simulation.places.get(node_id), place.node.overlay.state
        if (
            other is None
            or other.is_live
            or other.index in simulation.hostile
            or node_id in self._left
            or node_id in self.forgotten
        ):
            return False
        ended = simulation.truth.ended.get(node_id, simulation.now)
        if simulation.truth.since.get(place.id, simulation.now) >= ended:
            return False  # it was paused until then, and may have read of an earlier goodbye only
        is_in_time = simulation.now - ended < state.config.expect_for / 2
        return is_in_time and state.leaves.would_accept(node_id) and len(state.expectations) < ABSENT_MAX
