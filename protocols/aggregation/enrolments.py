"""That nodes take part in a round: what each tells the requester, and what it can show of those whose data it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.collector import absentees_near
from protocols.aggregation.messages import SHOWN_MAX, Enrolled, Participation, ShownEnrolment
from protocols.aggregation.statements import enrolled_statement

GIVERS_MAX: Final = 64
"""Nodes in a round from which a node keeps what shows that those take part whose data they have given."""
SHOWS_MAX: Final = 256
"""Questions about these that a node looks at in a round: somebody may show one again and again."""


def enrolment(host: Host, round_id: bytes, reason: str, *, is_signed: bool) -> Enrolled:
    """Return what to tell the requester: this node takes part, or does not for this reason."""
    absent = absentees_near(host.id, host.leaf_set(), host.missing_members())
    larger = host.leaf_set().larger
    successor, proof = larger[0].id if larger else host.id, b""
    if is_signed:
        named = ((each.peer, each.age_ms) for each in absent)
        proof = host.sign(enrolled_statement(round_id, host.peer, reason, named, successor))
    return Enrolled(round_id, reason, absent, proof, successor)


class Participations:
    """The participations that are kept in one round, of the few nodes whose data each giver gave at first."""

    def __init__(self, host: Host, round_id: bytes) -> None:
        self._host, self._round_id = host, round_id
        self._by_giver: dict[NodeId, tuple[Participation, ...]] = {}
        """By giver; by this node, its own."""
        self._shows = 0

    def of(self, contributors: Iterable[NodeId]) -> tuple[Participation, ...]:
        """What goes with a value of these contributors, while they are few."""
        nodes = tuple(contributors)
        if len(nodes) > SHOWN_MAX:
            return ()
        own = self._host.peer
        if own.id not in self._by_giver:
            proof = self._host.sign(enrolled_statement(self._round_id, own, ""))
            self._by_giver[own.id] = (Participation(own, proof),)
        found = map(self._find, nodes)
        return tuple(each for each in found if each is not None)

    def keep(self, giver: PeerRef, participations: tuple[Participation, ...]) -> None:
        """Keep what shows that nodes take part whose data we are given."""
        if participations and (giver.id in self._by_giver or len(self._by_giver) < GIVERS_MAX):
            self._by_giver[giver.id] = participations

    def about(self, node: NodeId) -> ShownEnrolment | None:
        """What a node has shown when its own data was given to us."""
        found = self._find(node)
        return None if found is None else ShownEnrolment(self._round_id, found)

    def may_show(self) -> bool:
        """Whether to look at one more question about an enrolment."""
        self._shows += 1
        return self._shows <= SHOWS_MAX

    def _find(self, node: NodeId) -> Participation | None:
        """What shows that a node takes part, rather by its own word than by another's."""
        givers = (self._by_giver.get(node, ()), *self._by_giver.values())
        return next((each for shown in givers for each in shown if each.peer.id == node), None)
