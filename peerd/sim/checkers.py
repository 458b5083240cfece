"""Invariants of the whole cluster, checked from outside the nodes against what only the simulator knows.

A checker that ``holds_always`` may be asked at any instant; the others hold once faults are over and repair has had
its time. Each returns what does not hold, one sentence each.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from peerd import limits
from peerd.ids import NodeId, closest, format_id, short_id
from peerd.messages import PeerRef, message_type
from peerd.sim.network import State

if TYPE_CHECKING:
    from peerd.sim.simulation import Place, Simulation


@dataclass(frozen=True, slots=True)
class Delivery:
    """A routed or broadcast message that reached a plugin of ``node``."""

    node: PeerRef
    key: NodeId
    type_id: int
    source: PeerRef


class Checker:
    """Base of all checkers. Override `check`, or `delivered` with ``wants_deliveries`` set."""

    name: ClassVar[str]
    holds_always: ClassVar[bool] = False
    wants_deliveries: ClassVar[bool] = False

    def check(self, simulation: Simulation) -> list[str]:
        """What does not hold now."""
        return []

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """What is wrong with this delivery, if anything."""
        return None


class RingOracle:
    """The ring as it is: live ids in order."""

    def __init__(self, ids: list[NodeId]) -> None:
        self.ids = sorted(ids)

    @classmethod
    def of(cls, simulation: Simulation) -> RingOracle:
        """All running nodes."""
        return cls([place.id for place in simulation.live_nodes()])

    def root(self, key: NodeId) -> NodeId:
        """The live node numerically closest to ``key``. Raises ``ValueError`` for an empty ring."""
        position = bisect_left(self.ids, key)
        count = len(self.ids)
        return closest(key, {self.ids[(position + step) % count] for step in (-1, 0)} if count else ())

    def neighbours(self, node_id: NodeId, count: int) -> tuple[list[NodeId], list[NodeId]]:
        """(smaller, larger): the ``count`` nearest on each side, nearest first, without the node itself."""
        ids = self.ids
        position = bisect_left(ids, node_id)
        reach = min(count, len(ids) - 1)
        smaller = [ids[(position - step) % len(ids)] for step in range(1, reach + 1)]
        larger = [ids[(position + step) % len(ids)] for step in range(1, reach + 1)]
        return smaller, larger


class RingUnity(Checker):
    """Successor pointers of the live nodes form one cycle through all of them."""

    name = "ring unity"

    def check(self, simulation: Simulation) -> list[str]:
        """Walk the successors from the first live node."""
        live = {place.id: place for place in simulation.live_nodes()}
        if len(live) < 2:
            return []
        first = min(live)
        seen: list[NodeId] = []
        current = first
        for _ in range(len(live)):
            seen.append(current)
            larger = live[current].node.overlay.leaf_set().larger
            if not larger:
                return [f"{short_id(current)} has no successor"]
            current = larger[0].id
            if current not in live:
                return [f"{short_id(seen[-1])} has the dead successor {short_id(current)}"]
            if current in seen[:1]:
                break
        if current != first:
            return [f"successors from {short_id(first)} do not come back to it in {len(live)} steps"]
        return (
            [] if len(seen) == len(live) else [f"the cycle of {short_id(first)} has {len(seen)} of {len(live)} nodes"]
        )


class LeafSetConsistency(Checker):
    """Every leaf set is the nearest live nodes on each side, as the sorted ring says, and says that it is complete."""

    name = "leaf sets"

    def __init__(self, side: int = limits.LEAF_SET_SIZE // 2) -> None:
        self._side = side

    def check(self, simulation: Simulation) -> list[str]:
        """Compare each node with the oracle."""
        oracle = simulation.oracle()
        return [text for place in simulation.live_nodes() for text in self._check_node(place, oracle)]

    def _check_node(self, place: Place, oracle: RingOracle) -> list[str]:
        leaf_set = place.node.overlay.leaf_set()
        expected = oracle.neighbours(place.id, self._side)
        offences = []
        if not leaf_set.is_complete:
            offences.append(f"{short_id(place.id)}: its leaf set is not complete")
        if len(oracle.ids) - 1 <= self._side * 2:
            # the sides meet: which side a node is on is a matter of taste, who is in is not
            found = {peer.id for peer in leaf_set.members()}
            wanted = set(oracle.ids) - {place.id}
            return offences + _difference(place.id, "leaf set", found, wanted)
        for side, peers, wanted_ids in (
            ("smaller", leaf_set.smaller, expected[0]),
            ("larger", leaf_set.larger, expected[1]),
        ):
            offences += _difference(place.id, f"{side} side", {peer.id for peer in peers}, set(wanted_ids))
        return offences


def _difference(node_id: NodeId, what: str, found: set[NodeId], wanted: set[NodeId]) -> list[str]:
    missing = ", ".join(short_id(other) for other in sorted(wanted - found))
    extra = ", ".join(short_id(other) for other in sorted(found - wanted))
    texts = [text for text in (missing and f"misses {missing}", extra and f"has {extra} too many") if text]
    return [f"{short_id(node_id)}: {what} {' and '.join(texts)}"] if texts else []


class CorrectDelivery(Checker):
    """In a calm ring, a key is delivered by the live node closest to it and by nobody else.

    Ask for it only without loss and partition: during a repair the closest node may not be known yet.
    ``ignored`` are type ids that are delivered everywhere (broadcasts).
    """

    name = "correct delivery"
    wants_deliveries = True

    def __init__(self, ignored: frozenset[int] = frozenset(), tolerate_wrong: int = 0) -> None:
        self._ignored = ignored
        self._tolerate_wrong = tolerate_wrong
        self.deliveries = 0
        self.wrong = 0

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """Compare with the oracle."""
        if delivery.type_id in self._ignored:
            return None
        self.deliveries += 1
        root = simulation.oracle().root(delivery.key)
        if root == delivery.node.id:
            return None
        self.wrong += 1
        if self.wrong <= self._tolerate_wrong:
            return None
        kind = message_type(delivery.type_id)
        return (
            f"{kind.__name__ if kind else hex(delivery.type_id)} for {format_id(delivery.key)} was delivered at "
            f"{short_id(delivery.node.id)}, but {short_id(root)} is closer"
        )


class DeadMembers(Checker):
    """Nobody's leaf set names a node that is gone."""

    name = "no dead members"

    def check(self, simulation: Simulation) -> list[str]:
        """Paused nodes count as gone only for those who said so."""
        gone = {place.id for place in simulation.nodes if place.state in (State.STOPPED, State.SILENT)}
        offences = []
        for place in simulation.live_nodes():
            dead = [peer for peer in place.node.overlay.leaf_set().members() if peer.id in gone]
            offences += [f"{short_id(place.id)} still has the dead {short_id(peer.id)}" for peer in dead]
        return offences


class Boundedness(Checker):
    """No table of the simulator or of a node grows over its limit."""

    name = "boundedness"
    holds_always = True

    def __init__(self, events_per_node_max: int = 20_000) -> None:
        self._events_per_node_max = events_per_node_max

    def check(self, simulation: Simulation) -> list[str]:
        """Links, leaf sets and waiting events."""
        offences = []
        for place in simulation.live_nodes():
            members = place.node.overlay.leaf_set().members()
            if len(members) > limits.LEAF_SET_SIZE:
                offences.append(f"{short_id(place.id)}: a leaf set of {len(members)}")
            if len(place.driver.links) > max(limits.LINKS_MAX, 0):
                offences.append(f"{short_id(place.id)}: {len(place.driver.links)} links")
        if simulation.pending > self._events_per_node_max * max(len(simulation.nodes), 1):
            offences.append(f"{simulation.pending} events wait")
        return offences


class NodesValid(Checker):
    """Every node's own invariants."""

    name = "nodes"
    holds_always = True

    def check(self, simulation: Simulation) -> list[str]:
        """`Node.validate` raises with the details."""
        simulation.validate()
        return []


RING_CHECKERS: Final[tuple[Checker, ...]] = (RingUnity(), LeafSetConsistency(), DeadMembers(), Boundedness())
"""What holds in a ring that has had time to repair itself."""

BY_NAME: Final[dict[str, Checker]] = {
    "ring": RingUnity(),
    "leaf_sets": LeafSetConsistency(),
    "dead_members": DeadMembers(),
    "boundedness": Boundedness(),
    "nodes": NodesValid(),
}
"""The checkers that a scenario may name."""
