"""Invariants of the expected members: a node that falls silent stays expected."""

from __future__ import annotations

from typing import Final

from peerd import limits
from peerd.api import LeafSet
from peerd.ids import NodeId, short_id
from peerd.node.node import Node
from peerd.overlay.expectations import ABSENT_MAX
from peerd.sim.simulation import Checker, Place, Simulation
from peerd.telemetry.schema import Event, NodeStopped, PeerFailed

NEAR: Final = limits.LEAF_SET_SIZE // 4
"""How many members on each side are checked: those farther out may leave the leaf set for newcomers as they die."""


class ExpectedMembers(Checker):
    """A node that dies without goodbye stays expected by its near neighbours, as long as they would be its neighbours.

    It does so until it is back, or has left, or `overlay.expect_for` has passed. Nodes in ``forgotten`` are left out.
    Who is told of the goodbye of an earlier life only after the next one has begun, and ended, takes that for the end.
    """

    name = "expected members"
    holds_always = True

    def __init__(self) -> None:
        self.forgotten: set[NodeId] = set()
        self.owed = 0
        """How often a node had to be expected. Tests assert that the checker had something to check."""
        self._left: set[NodeId] = set()
        self._goodbyes: set[tuple[NodeId, int]] = set()
        """Nodes and the boot epochs of their lives that ended in order."""
        self._told: dict[tuple[int, int], set[NodeId]] = {}
        """Whose goodbye a node was told while it was true: who starts again after that is new to the node."""
        self._seen: dict[tuple[int, int], LeafSet] = {}
        self._owing: dict[tuple[int, int], set[NodeId]] = {}

    def booted(self, simulation: Simulation, place: Place, node: Node) -> str | None:
        """A new incarnation has not left, whatever the last one said."""
        self._left.discard(place.id)
        return None

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        """Note a node that stops in order, and so says goodbye, and who is told."""
        if isinstance(event, NodeStopped):
            self._left.add(place.id)
            self._goodbyes.add((place.id, place.boot_epoch))
        elif (
            isinstance(event, PeerFailed)
            and event.evidence == "left"
            and (peer := NodeId(int(event.peer, 16))) in self._left
        ):
            self._told.setdefault((place.index, place.boot_epoch), set()).add(peer)
        return None

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Check the nodes that were members at the last look and are not any more."""
        incarnation = (place.index, place.boot_epoch)
        leaf_set = place.node.overlay.leaf_set()
        owing = self._owing.setdefault(incarnation, set())
        before = self._seen.get(incarnation)
        if leaf_set is not before:
            self._seen[incarnation] = leaf_set
            if before is not None:
                owing |= {peer.id for peer in (*before.smaller[:NEAR], *before.larger[:NEAR])}
                owing -= {peer.id for peer in leaf_set.members()} | self._told.pop(incarnation, set())
        offences = []
        for node_id in sorted(owing):
            if not self._is_due(simulation, place, node_id):
                owing.discard(node_id)
                continue
            self.owed += 1
            expectations = place.node.overlay.state.expectations
            dismissed = expectations.dismissal(node_id)
            is_over = dismissed is not None and (node_id, dismissed.epoch) in self._goodbyes
            if node_id not in expectations and not is_over:
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
            return False  # it was paused until then, and may know only of an earlier goodbye
        is_in_time = simulation.now - ended < state.config.expect_for / 2
        return is_in_time and state.leaves.would_accept(node_id) and len(state.expectations) < ABSENT_MAX
