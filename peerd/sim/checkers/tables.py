"""Invariants of what nodes know of each other: routing tables, addresses."""

from __future__ import annotations

from peerd.ids import DIGIT_VALUES, NodeId, digit, shared_prefix_digits, short_id
from peerd.overlay.routing import known_peers
from peerd.sim.simulation import Checker, Place, Simulation


class IdBinding(Checker):
    """Every entry of a leaf set or a table is an existing node at its own address, and is in it only once."""

    name = "id binding"
    number = 1
    holds_always = True

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Compare with the true addresses."""
        state = place.node.overlay.state
        offences = []
        for peer in known_peers(state.leaves, state.table):
            true = simulation.places.get(peer.id)
            if true is None:
                offences.append(f"{short_id(place.id)} knows {peer}, whom nobody made")
            elif true.peer != peer:
                offences.append(f"{short_id(place.id)} has {peer}, which is at {true.peer.address}")
        return offences


class TableEntries(Checker):
    """The entry of row r and column c shares exactly r digits with the node's id, and its next digit is c."""

    name = "table entries"
    number = 6
    holds_always = True

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Recompute the row and column of every entry."""
        table, own = place.node.overlay.state.table, place.id
        offences = []
        for slot, peer in table.slots():
            row, column = divmod(slot, DIGIT_VALUES)
            if peer.id == own or shared_prefix_digits(own, peer.id) != row or digit(peer.id, row) != column:
                offences.append(f"{short_id(own)} has {peer} in row {row}, column {column}")
        return offences


class TableCoverage(Checker):
    """No entry is dead, and no cell is empty that a running node could fill. Holds only long after a repair."""

    name = "table coverage"
    number = 6

    def __init__(self) -> None:
        self.fillable = 0
        self.filled = 0
        """Sums over all nodes, as of the last `check`."""

    def check(self, simulation: Simulation) -> list[str]:
        """Compare with all running nodes: N * N prefix computations."""
        self.fillable = self.filled = 0
        return super().check(simulation)

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Compare with the slots that could be filled."""
        table, own = place.node.overlay.state.table, place.id
        live = {other.id for other in simulation.live_nodes()}
        offences = [f"{short_id(own)} has the dead {short_id(peer.id)}" for peer in table if peer.id not in live]
        slots: dict[tuple[int, int], NodeId] = {}
        for other in sorted(live - {own}):
            row = shared_prefix_digits(own, other)
            slots.setdefault((row, digit(other, row)), other)
        empty = [slot for slot in slots if table.get(*slot) is None]
        self.fillable += len(slots)
        self.filled += len(slots) - len(empty)
        for row, column in empty:
            could = short_id(slots[row, column])
            offences.append(f"{short_id(own)} has nobody in row {row}, column {column}, where {could} could be")
        return offences
