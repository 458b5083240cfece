"""Invariants of the whole cluster. They compare the nodes' state with what only the simulator knows.

A checker that ``holds_always`` may be asked at any instant; the others hold once faults are over and repair has had
its time. docs/simulator.md numbers them. A service brings its invariants by a module here, with its checkers' classes
in `CONTINUOUS` or `QUIESCENT`: scenarios, the swarm and check mode pick them up from there.
"""

from __future__ import annotations

from typing import Final

from peerd.sim.checkers.members import ExpectedMembers
from peerd.sim.checkers.nodes import Boundedness, FailureDetection, MonotoneEpochs, NodesValid, WireHygiene
from peerd.sim.checkers.ring import DeadMembers, EverybodyReady, LeafSetConsistency, RingUnity
from peerd.sim.checkers.routing import CorrectDelivery, Dedupe, Progress, SingleRoot
from peerd.sim.checkers.tables import IdBinding, TableCoverage, TableEntries
from peerd.sim.observed import Delivery
from peerd.sim.simulation import Checker, Watcher
from peerd.sim.truth import RingOracle

__all__ = [
    "BY_NAME",
    "CONTINUOUS",
    "QUIESCENT",
    "RING_CHECKERS",
    "USUAL",
    "Boundedness",
    "Checker",
    "CorrectDelivery",
    "DeadMembers",
    "Dedupe",
    "Delivery",
    "EverybodyReady",
    "ExpectedMembers",
    "FailureDetection",
    "IdBinding",
    "LeafSetConsistency",
    "MonotoneEpochs",
    "NodesValid",
    "Progress",
    "RingOracle",
    "RingUnity",
    "SingleRoot",
    "TableCoverage",
    "TableEntries",
    "Watcher",
    "WireHygiene",
]

CONTINUOUS: Final[tuple[type[Checker], ...]] = (
    NodesValid,
    IdBinding,
    SingleRoot,
    TableEntries,
    Progress,
    MonotoneEpochs,
    FailureDetection,
    ExpectedMembers,
    Boundedness,
    WireHygiene,
)
"""The checkers that a run in check mode uses. `CorrectDelivery` and `Dedupe` are not among them, as they have to be
told message types."""

QUIESCENT: Final[tuple[type[Checker], ...]] = (EverybodyReady, RingUnity, LeafSetConsistency, DeadMembers)
"""The checkers of a ring that has had time to repair itself."""

RING_CHECKERS: Final[tuple[Checker, ...]] = (RingUnity(), LeafSetConsistency(), DeadMembers(), Boundedness())
"""Instances of the checkers that tests use most for a ring that has had time to repair itself."""

BY_NAME: Final[dict[str, type[Checker]]] = {
    "ring": RingUnity,
    "leaf_sets": LeafSetConsistency,
    "dead_members": DeadMembers,
    "everybody_ready": EverybodyReady,
    "table_coverage": TableCoverage,
    "table_entries": TableEntries,
    "id_binding": IdBinding,
    "boundedness": Boundedness,
    "nodes": NodesValid,
}
"""The checkers that a scenario's ``check`` action may name."""

USUAL: Final = tuple(name for name in BY_NAME if name != "table_coverage")
"""The checkers that it uses by default. Without `TableCoverage`: filling tables takes far longer than repair."""
