"""Invariants of the ring after repair: one cycle of all nodes, with right leaf sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from peerd import limits
from peerd.api import LeafSet
from peerd.ids import RING, NodeId, clockwise_distance, short_id
from peerd.sim.network import State
from peerd.sim.simulation import Checker, Place, Simulation
from peerd.sim.truth import RingOracle


class EverybodyReady(Checker):
    """Every running node has joined."""

    name = "everybody ready"

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Ask the node."""
        return [] if place.node.is_ready else [f"{short_id(place.id)} has not joined"]


class RingUnity(Checker):
    """Successor pointers of the live nodes form one cycle through all of them.

    Hostile nodes are left out, and passed over: an honest node's successor is the first honest one in its leaf set.
    """

    name = "ring unity"
    number = 5

    def check(self, simulation: Simulation) -> list[str]:
        """Walk the successors from the first live node."""
        live = {place.id: place for place in simulation.honest_nodes()}
        if len(live) < 2:
            return []
        first = min(live)
        seen: list[NodeId] = []
        current = first
        for _ in range(len(live)):
            seen.append(current)
            larger = [
                peer for peer in live[current].node.overlay.leaf_set().larger if not simulation.is_hostile(peer.id)
            ]
            if not larger:
                return [f"{short_id(current)} has no successor"]
            current = larger[0].id
            if current not in live:
                return [f"{short_id(seen[-1])} has the dead successor {short_id(current)}"]
            if current == first:
                break
        if current != first:
            return [f"successors from {short_id(first)} do not come back to it in {len(live)} steps"]
        return (
            [] if len(seen) == len(live) else [f"the cycle of {short_id(first)} has {len(seen)} of {len(live)} nodes"]
        )


class LeafSetConsistency(Checker):
    """Every leaf set is the nearest live nodes on each side, as the sorted ring says, and says that it is complete.

    Whether a hostile node is in it is left open: each honest node decides for itself whom it has to do with. In its
    place may be the next honest one. Where there is no such one, because all honest nodes are in it already, the place
    stays empty, and the set open: its far ends say truthfully that the hostile node comes next.
    """

    name = "leaf sets"
    number = 4

    def __init__(self, side: int = limits.LEAF_SET_SIZE // 2) -> None:
        self._side = side

    def check(self, simulation: Simulation) -> list[str]:
        """Compare each node with the oracle."""
        oracle = simulation.oracle()
        honest = RingOracle(place.id for place in simulation.honest_nodes())
        judge = partial(self._check_honest, oracle, honest) if simulation.hostile else partial(self._check_node, oracle)
        return [text for place in simulation.honest_nodes() for text in judge(place)]

    def _check_honest(self, oracle: RingOracle, honest: RingOracle, place: Place) -> list[str]:
        """The honest among the nearest nodes are in it; nobody honest is who is not among the nearest honest ones."""
        leaf_set = place.node.overlay.leaf_set()
        members = {peer.id for peer in leaf_set.members()}
        needed, allowed = (
            {node_id for side in ring.neighbours(place.id, self._side) for node_id in side} for ring in (oracle, honest)
        )
        needed &= set(honest.ids)
        known = members & set(honest.ids)
        is_whole = leaf_set.is_complete or (
            members >= set(honest.ids) - {place.id} and _has_in_its_gap(leaf_set, place.id, oracle.ids)
        )
        return [
            *([] if is_whole else [f"{short_id(place.id)}: its leaf set is not complete"]),
            *_difference(place.id, "leaf set", known & needed, needed),
            *_difference(place.id, "leaf set", known | allowed, allowed),
        ]

    def _check_node(self, oracle: RingOracle, place: Place) -> list[str]:
        leaf_set = place.node.overlay.leaf_set()
        expected = oracle.neighbours(place.id, self._side)
        offences = []
        if not leaf_set.is_complete:
            offences.append(f"{short_id(place.id)}: its leaf set is not complete")
        if len(oracle.ids) - 1 <= self._side * 2:
            # the sides meet: a node may be on either side, but must be in it
            found = {peer.id for peer in leaf_set.members()}
            wanted = set(oracle.ids) - {place.id}
            return offences + _difference(place.id, "leaf set", found, wanted)
        for side, peers, wanted_ids in (
            ("smaller", leaf_set.smaller, expected[0]),
            ("larger", leaf_set.larger, expected[1]),
        ):
            offences += _difference(place.id, f"{side} side", {peer.id for peer in peers}, set(wanted_ids))
        return offences


def _has_in_its_gap(leaf_set: LeafSet, own: NodeId, live: Iterable[NodeId]) -> bool:
    """Whether some node lives between the far ends of the two sides of a leaf set."""
    last = clockwise_distance(own, leaf_set.larger[-1].id) if leaf_set.larger else 0
    first = clockwise_distance(own, leaf_set.smaller[-1].id) if leaf_set.smaller else RING
    return any(last < clockwise_distance(own, node_id) < first for node_id in live)


def _difference(node_id: NodeId, what: str, found: set[NodeId], wanted: set[NodeId]) -> list[str]:
    missing = ", ".join(short_id(other) for other in sorted(wanted - found))
    extra = ", ".join(short_id(other) for other in sorted(found - wanted))
    texts = [text for text in (missing and f"misses {missing}", extra and f"has {extra} too many") if text]
    return [f"{short_id(node_id)}: {what} {' and '.join(texts)}"] if texts else []


class DeadMembers(Checker):
    """No leaf set names a node that is gone."""

    name = "no dead members"

    def check(self, simulation: Simulation) -> list[str]:
        """Check all leaf sets. A paused node counts as gone only for nodes that have declared it dead."""
        gone = {place.id for place in simulation.nodes if place.state in (State.STOPPED, State.SILENT)}
        offences = []
        for place in simulation.live_nodes():
            dead = [peer for peer in place.node.overlay.leaf_set().members() if peer.id in gone]
            offences += [f"{short_id(place.id)} still has the dead {short_id(peer.id)}" for peer in dead]
        return offences
