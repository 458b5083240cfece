"""The requester's side of a round, pure: whom to expect, which tree's result to take, who is missing and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer

from peerd.api import LeafSet
from peerd.ids import NodeId, format_id, parse_id
from peerd.messages import PeerRef
from protocols.aggregation.messages import NodeState

NAMED_MISSING_MAX: Final = 256
"""Missing nodes that an answer names; it counts them all."""
CANDIDATES_MAX: Final = 256

HexId = Annotated[
    NodeId,
    BeforeValidator(lambda value: parse_id(value) if isinstance(value, str) else value),
    PlainSerializer(format_id, return_type=str),
]
"""A node id that is 32 hexadecimal digits in JSON."""

_STATE_REASONS: Final = {
    NodeState.UNKNOWN_ROUND: "never heard of the round",
    NodeState.EXTRACTING: "still extracting its data",
    NodeState.RUNNING: "alive, but its tree was not merged in time",
    NodeState.PRUNED: "alive and pruned: the tree that had its data was lost",
    NodeState.FINISHED: "alive: only its own result holds its data",
    NodeState.LEFT: "left the round",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """A node whose data the answer lacks."""

    node: HexId
    address: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node whose tree is complete."""

    peer: PeerRef
    contributors: int
    value_bytes: int


class Basis(Enum):
    """What the number of expected nodes rests on."""

    LEAF_SET = "leaf set"
    """Exact: the requester's leaf set covered the whole ring when the round began."""
    CENSUS = "census"
    """The nodes that reported that they take part, and the requester's leaf set."""
    ESTIMATE = "estimate"
    """The density of the leaf set (about +-25 %); nobody was asked to report, because the ring is too large."""


@dataclass(slots=True)
class Collector:
    """What the requester knows of one round. ``estimate`` is the ring's size by leaf-set density."""

    own: NodeId
    estimate: float
    basis: Basis
    expected: dict[NodeId, PeerRef] = field(default_factory=dict)
    enrolled: set[NodeId] = field(default_factory=set)
    """Who has reported (for progress; nothing is decided by it)."""
    declined: dict[NodeId, str] = field(default_factory=dict)
    failed: dict[NodeId, str] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)

    @staticmethod
    def start(own: PeerRef, leaf_set: LeafSet, estimate: float, with_census: bool) -> Collector:
        """Membership is fixed now: those in the leaf set, this node, and whoever enrols."""
        expected = {peer.id: peer for peer in leaf_set.members()}
        expected[own.id] = own
        otherwise = Basis.CENSUS if with_census else Basis.ESTIMATE
        return Collector(own.id, estimate, Basis.LEAF_SET if leaf_set.covers_ring else otherwise, expected)

    def enrol(self, peer: PeerRef, reason: str) -> None:
        """A node takes part, or says why not."""
        self.expected[peer.id] = peer
        self.enrolled.add(peer.id)
        if reason:
            self.declined[peer.id] = reason

    def offered(self, candidate: Candidate) -> None:
        """A tree is complete. The fullest one goes first; of equals, the first that came."""
        known = any(candidate.peer.id == other.peer.id for other in self.candidates)
        if not known and candidate.peer.id not in self.failed and len(self.candidates) < CANDIDATES_MAX:
            self.candidates.append(candidate)
            self.candidates.sort(key=lambda each: -each.contributors)

    def could_not_fetch(self, peer: PeerRef, reason: str) -> None:
        """This candidate's value could not be had; the next one is tried."""
        self.failed[peer.id] = reason
        self.candidates = [candidate for candidate in self.candidates if candidate.peer.id != peer.id]

    def best(self) -> Candidate | None:
        """The result to take, if any."""
        return self.candidates[0] if self.candidates else None

    def expected_count(self) -> int:
        """How many nodes' data the round should hold."""
        known = len(self.expected)
        return max(known, round(self.estimate)) if self.basis is Basis.ESTIMATE else known

    def is_full(self, contributors: int, live: Iterable[NodeId]) -> bool:
        """Whether waiting for a fuller result is pointless: all are in, or the others are known to be dead."""
        if self.basis is not Basis.LEAF_SET:
            return contributors >= self.expected_count() - len(self.declined)
        alive = set(live) | {self.own}
        reachable = sum(1 for node_id in self.expected if node_id in alive and node_id not in self.declined)
        return contributors >= reachable

    def missing(self, contributors: Iterable[NodeId]) -> list[PeerRef]:
        """Expected nodes whose data is not in, in id order."""
        present = set(contributors)
        return [peer for node_id, peer in sorted(self.expected.items()) if node_id not in present]

    def reason(self, node_id: NodeId, state: NodeState | None, detail: str) -> str:
        """Why a node is missing. ``state`` is what it said when asked; ``None`` means that it did not answer."""
        if node_id in self.declined:
            return self.declined[node_id]
        if state is None:
            return "unreachable"
        if state is NodeState.DECLINED:
            return detail or "declined"
        return _STATE_REASONS[state] + (f" ({detail})" if detail else "")
