"""The requester's side of a round, pure: expected nodes, which tree's result to take, missing nodes and reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

from msgspec.structs import replace
from pydantic import AfterValidator, BeforeValidator, GetPydanticSchema, PlainSerializer

from peerd.api import LeafSet, MissingMember
from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.ids import NodeId, clockwise_distance, format_id, parse_id
from peerd.messages import PeerRef
from protocols.aggregation.messages import ABSENTEES_MAX, Absentee, NodeState

NAMED_MISSING_MAX: Final = 256
"""Missing nodes that an answer names; it counts them all."""
DIRECT_CENSUS_MAX: Final = 128
"""Up to this estimated ring size nodes enrol on links of their own, which cost no signatures. In a larger ring not all
may find a free link to the requester, and all would have to dial it at once."""
ENROLMENTS_S: Final = 5.0
"""So long in all a round waits with results for the enrolments that they lack: these may be said again meanwhile."""
LACKING_SHARE_MAX: Final = 0.125
"""A result may name so many more nodes than have enrolled, and one at least, until it is taken or not."""
ENROLMENTS_TIMER: Final = "enrolments_due"
GATHER_TIMER: Final = "gather_due"
OWN_TIMER: Final = "own_due"
NAMING_TIMER: Final = "naming_due"
CANDIDATES_MAX: Final = 256
CARRIED_MAX: Final = 16
"""Of so many candidates at once the value is kept that came along; that of another one is fetched, if it is wanted."""
ESTIMATE_RATIO_MAX: Final = 4
"""A round without a census believes a result of at most so many times the estimated number of nodes.

The estimate comes from the stretch that the 16 members of a leaf set share, which varies: one node of 1,000 in a large
ring takes the ring for less than half as large, and would refuse every honest result at 2. At 4 it is one of 5 * 10^12.
"""
NAMERS_MIN: Final = 2
"""How many nodes have to name an absent one before it is expected, so that no single node can make one up."""
NEIGHBOURS_NAMING: Final = 2
"""Live neighbours on each side up to which a node names the absent; four name each, and two of them may be silent."""
NAMED_ABSENT_MAX: Final = 4096
"""At most this many absent nodes that others name are kept in one round."""

HexId = Annotated[
    NodeId,
    GetPydanticSchema(lambda source, handler: handler(int)),
    AfterValidator(NodeId),
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
    lost_s: float | None = None
    """How long ago the ring lost it, when it was missing already as the round began."""


@dataclass(slots=True)
class Named:
    """An absent node that others have named: when it was last heard, by the requester's clock, and who named it."""

    peer: PeerRef
    lost_at: float
    namers: set[NodeId] = field(default_factory=set)


class Candidate(Frozen):
    """A node whose tree is complete."""

    peer: PeerRef
    contributors: int
    value_bytes: int
    value: bytes = b""
    """The result itself, where it came along."""


class Basis(Enum):
    """The ground on which the number of expected nodes rests."""

    LEAF_SET = "leaf set"
    """Exact: the requester's leaf set covered the whole ring when the round began."""
    CENSUS = "census"
    """The nodes that reported that they take part, those that they miss next to them, and the requester's leaf set."""
    ESTIMATE = "estimate"
    """The density of the leaf set (about +-25 %); nobody was asked to report, because the ring is too large."""


@dataclass(slots=True)
class Collector:
    """The knowledge of the requester about one round. ``estimate`` is the ring's size by leaf-set density."""

    own: NodeId
    estimate: float
    basis: Basis
    with_census: bool = False
    """Whether everybody whose data can be in a result has reported itself."""
    expected: dict[NodeId, PeerRef] = field(default_factory=dict)
    enrolled: set[NodeId] = field(default_factory=set)
    """The nodes that have reported themselves: with a census, only their data can be in a result."""
    awaited: set[NodeId] = field(default_factory=set)
    """Nodes that have not reported themselves, and of which another one has said, when it did, that they come next."""
    enrolled_in_s: dict[NodeId, float] = field(default_factory=dict)
    """How long after the round's beginning each of them did so first, seconds."""
    began_at: float = 0.0
    declined: dict[NodeId, str] = field(default_factory=dict)
    absent: dict[NodeId, float] = field(default_factory=dict)
    """Expected nodes that the ring had lost when the round began, and when they were last heard."""
    named: dict[NodeId, Named] = field(default_factory=dict)
    failed: dict[NodeId, str] = field(default_factory=dict)
    fetched: set[NodeId] = field(default_factory=set)
    """Nodes whose result was fetched; none is fetched twice."""
    candidates: list[Candidate] = field(default_factory=list)

    @staticmethod
    def start(
        own: PeerRef,
        leaf_set: LeafSet,
        estimate: float,
        with_census: bool,
        missing: Iterable[MissingMember] = (),
        now: float = 0.0,
    ) -> Collector:
        """Fix whom the round expects: the leaf set, this node, the missing members, and later those that enrol."""
        expected = {peer.id: peer for peer in leaf_set.members()}
        expected[own.id] = own
        otherwise = Basis.CENSUS if with_census else Basis.ESTIMATE
        basis = Basis.LEAF_SET if leaf_set.covers_ring else otherwise
        found = Collector(own.id, estimate, basis, with_census, expected, began_at=now)
        for member in missing:
            found._expect_absent(member.peer, now - member.age_s)
        return found

    def _expect_absent(self, peer: PeerRef, lost_at: float) -> None:
        if peer.id not in self.expected:
            self.expected[peer.id] = peer
            self.absent[peer.id] = lost_at

    def enrol(
        self,
        peer: PeerRef,
        reason: str,
        absent: Iterable[Absentee] = (),
        now: float = 0.0,
        successor: NodeId | None = None,
    ) -> None:
        """A node takes part, or says why not; who is missing next to it, and who comes next in the ring."""
        self.expected[peer.id] = peer
        self.absent.pop(peer.id, None)  # it speaks itself, so the ring was wrong to miss it
        is_first = peer.id not in self.enrolled
        self.enrolled.add(peer.id)
        self.awaited.discard(peer.id)
        if is_first and successor is not None and successor not in self.enrolled:
            self.awaited.add(successor)
        self.enrolled_in_s.setdefault(peer.id, now - self.began_at)
        if reason:
            self.declined[peer.id] = reason
        for absentee in absent:
            self._name(absentee, peer.id, now)

    def _name(self, absentee: Absentee, namer: NodeId, now: float) -> None:
        peer = absentee.peer
        named = self.named.get(peer.id)
        if peer.id in self.expected or (named is None and len(self.named) >= NAMED_ABSENT_MAX):
            return
        if named is None:
            named = self.named[peer.id] = Named(peer, now - absentee.age_ms / 1000)
        # One member alone must not be able to make up nodes that an answer then lacks.
        named.namers.add(namer)
        if len(named.namers) >= NAMERS_MIN:
            del self.named[peer.id]
            self._expect_absent(peer, named.lost_at)

    @property
    def takers(self) -> list[PeerRef]:
        """Who has said that it takes part, in id order."""
        taking = self.enrolled - self.declined.keys()
        return [self.expected[node] for node in sorted(taking)]

    @property
    def have_all_enrolled(self) -> bool:
        """Whether each node's successor has reported itself, and so everybody in the ring."""
        return self.own in self.enrolled and not self.awaited

    @property
    def is_pointless(self) -> bool:
        """Whether everybody who is there has nothing to contribute, so that no tree will ever report."""
        return len(self.declined) >= len(self.expected) - len(self.absent)

    def offered(self, candidate: Candidate) -> None:
        """A tree is complete. The fullest one goes first; of equals, this node's own, then the first that came.

        Who offers again is taken at its largest word.
        """
        same = next((other for other in self.candidates if other.peer.id == candidate.peer.id), None)
        if same is not None:
            if candidate.contributors <= same.contributors:
                return
            self.candidates.remove(same)
        is_done = candidate.peer.id in self.failed or candidate.peer.id in self.fetched
        if not is_done and len(self.candidates) < CANDIDATES_MAX:
            if sum(bool(each.value) for each in self.candidates) >= CARRIED_MAX:
                candidate = replace(candidate, value=b"")
            self.candidates.append(candidate)
            self.candidates.sort(key=lambda each: (-each.contributors, each.peer.id != self.own))

    def have_fetched(self, peer: PeerRef) -> None:
        """This candidate's value was fetched."""
        self.fetched.add(peer.id)
        self.candidates = [candidate for candidate in self.candidates if candidate.peer.id != peer.id]

    def could_not_fetch(self, peer: PeerRef, reason: str) -> None:
        """This candidate's value could not be fetched; the next one is tried."""
        self.failed[peer.id] = reason
        self.candidates = [candidate for candidate in self.candidates if candidate.peer.id != peer.id]

    def best(self, more_than: int = 0) -> Candidate | None:
        """The fullest result that is offered and holds the data of more nodes than that, if any.

        One of more nodes than there can be, as far as is known yet, waits for their enrolments.
        """
        most = self.contributors_max
        best = next((each for each in self.candidates if each.contributors <= most), None)
        return best if best is not None and best.contributors > more_than else None

    @property
    def contributors_max(self) -> int:
        """How many contributors a result can have, of which some may not have enrolled yet."""
        if self.with_census:
            return self._takers + max(1, int(self._takers * LACKING_SHARE_MAX))
        return round(self.estimate * ESTIMATE_RATIO_MAX)

    @property
    def _takers(self) -> int:
        """How many nodes have enrolled and not declined."""
        return len(self.enrolled) - len(self.declined)

    def strangers(self, contributors: Iterable[NodeId]) -> list[NodeId]:
        """Those of a result's contributors that have not enrolled, so far, or have declined."""
        if not self.with_census:
            return []
        return [node for node in contributors if node not in self.enrolled or node in self.declined]

    def check_count(self, contributors: int) -> None:
        """Raises `ProtocolError` for a result of more nodes than there can be."""
        most, known = self.contributors_max, "there can be"
        if self.with_census:
            most, known = self._takers, "take part"
        if contributors > most:
            raise ProtocolError("invented_contributors", f"it has {contributors} contributors, where {most} {known}")

    def check_contributors(self, contributors: Collection[NodeId]) -> None:
        """Raises `ProtocolError` when a result names nodes that do not take part, as far as this node can know."""
        self.check_count(len(contributors))
        strangers = self.strangers(contributors)
        if strangers:
            detail = f"it names {len(strangers)} nodes that do not take part, such as {format_id(strangers[0])}"
            raise ProtocolError("invented_contributors", detail)

    def expected_count(self) -> int:
        """Return how many nodes should be in the answer."""
        known = len(self.expected)
        return max(known, round(self.estimate)) if self.basis is Basis.ESTIMATE else known

    def is_full(self, contributors: int, live: Iterable[NodeId]) -> bool:
        """Whether waiting for a fuller result is pointless: all are in, or the others are known to be dead."""
        # Without a leaf set that covers the ring nobody here knows who is alive, so it goes by numbers.
        if self.basis is not Basis.LEAF_SET:
            return contributors >= self.expected_count() - len(self.declined) - len(self.absent)
        alive = set(live) | {self.own}
        reachable = sum(1 for node_id in self.expected if node_id in alive and node_id not in self.declined)
        return contributors >= reachable

    def missing(self, contributors: Iterable[NodeId]) -> list[PeerRef]:
        """Expected nodes whose data is not in, in id order."""
        present = set(contributors)
        return [peer for node_id, peer in sorted(self.expected.items()) if node_id not in present]

    def lost_s(self, node_id: NodeId, now: float) -> float | None:
        """Return how long ago the ring lost the node; ``None`` if it was there when the round began."""
        lost_at = self.absent.get(node_id)
        return None if lost_at is None else max(0.0, now - lost_at)

    def reason(self, node_id: NodeId, state: NodeState | None, detail: str) -> str:
        """Why a node is missing. ``state`` is what it said when asked; ``None`` means that it did not answer."""
        if node_id in self.declined:
            return self.declined[node_id]
        if state is None:
            return "unreachable"
        if state is NodeState.DECLINED:
            return detail or "declined"
        return _STATE_REASONS[state] + (f" ({detail})" if detail else "")


def absentees_near(
    own: NodeId, leaf_set: LeafSet, missing: Iterable[MissingMember], count: int = ABSENTEES_MAX
) -> tuple[Absentee, ...]:
    """The missing members between this node and its `NEIGHBOURS_NAMING` nearest live neighbours on each side."""
    larger, smaller = leaf_set.larger[:NEIGHBOURS_NAMING], leaf_set.smaller[:NEIGHBOURS_NAMING]
    is_whole = len(leaf_set.members()) <= 2 * NEIGHBOURS_NAMING
    right = clockwise_distance(own, larger[-1].id) if larger else 0
    left = clockwise_distance(smaller[-1].id, own) if smaller else 0
    found = [
        member
        for member in missing
        if is_whole or clockwise_distance(own, member.peer.id) < right or clockwise_distance(member.peer.id, own) < left
    ]
    return tuple(Absentee(member.peer, max(0, round(member.age_s * 1000))) for member in found[:count])
