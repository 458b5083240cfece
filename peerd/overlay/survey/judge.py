"""Judges whether the views of all nodes of a ring agree with each other. Pure.

The rules are those of a converged Pastry ring: successors form one cycle through everybody, leaf sets are mutual and
hold the nearest nodes on each side, everybody that is listed answers, and every node may serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.expectations import INFORMANTS_MIN
from peerd.overlay.leafset import HALF
from peerd.overlay.messages import Absence
from peerd.overlay.survey.walk import NodeView, Survey

LISTERS_SHOWN: Final = 3


@dataclass(slots=True)
class Judgement:
    """The verdict, one sentence a finding.

    ``problems`` contradict a consistent ring; ``unanswered`` are listed nodes that did not answer (dead, or only out of
    reach from here); ``missing`` are those that the ring has given up and expects all the same; ``notes`` are worth
    knowing, and no fault.
    """

    members: list[NodeId]
    """Nodes that are in the ring, in id order."""
    cycles: list[int]
    """How many nodes each cycle of successors has, largest first; of one ring: one cycle with all of them."""
    problems: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[Absence] = field(default_factory=list)
    """Expected members that went without goodbye, in id order."""


def judge(survey: Survey) -> Judgement:
    """Compare every view with every other."""
    views = survey.views
    members = sorted(node_id for node_id, view in views.items() if view.says.is_ready and not view.says.is_leaving)
    in_ring = {node_id: _Sides.of(views[node_id], set(members)) for node_id in members}
    listers = _listers(views)
    judgement = Judgement(members, _cycles(in_ring))
    problems = judgement.problems
    problems += _outside(views, listers)
    for node_id in members:
        problems += _service(views[node_id])
    if len(judgement.cycles) > 1:
        sizes = ", ".join(str(count) for count in judgement.cycles)
        problems.append(f"not one ring: the successors form {len(judgement.cycles)} cycles, of {sizes} nodes")
    elif judgement.cycles and judgement.cycles[0] < len(members):
        problems.append(f"the cycle of successors has {judgement.cycles[0]} of {len(members)} nodes")
    problems += _leaf_sets(members, in_ring, views)
    _note_silent(survey.silent, listers, judgement)
    judgement.missing += _missing(survey)
    suspecting = sum(view.says.partition_suspected for view in views.values())
    if suspecting:
        judgement.notes.append(f"{suspecting} nodes suspect a partition: peers that they lost at once are missing")
    if survey.is_truncated:
        judgement.unanswered.append(f"more than {len(survey.views) + len(survey.silent)} nodes: the rest was not asked")
    return judgement


@dataclass(frozen=True, slots=True)
class _Sides:
    """What a node lists, nearest first, without those that are not in the ring (or did not say)."""

    smaller: tuple[NodeId, ...]
    larger: tuple[NodeId, ...]

    @classmethod
    def of(cls, view: NodeView, members: set[NodeId]) -> _Sides:
        says = view.says
        return cls(
            tuple(peer.id for peer in says.smaller if peer.id in members),
            tuple(peer.id for peer in says.larger if peer.id in members),
        )

    def members(self) -> set[NodeId]:
        return {*self.smaller, *self.larger}


def _outside(views: Mapping[NodeId, NodeView], listers: Mapping[NodeId, Sequence[PeerRef]]) -> list[str]:
    """Nodes that answered and are not in the ring; one that has left is only a problem for whoever still lists it."""
    found = []
    for node_id, view in sorted(views.items()):
        if view.says.is_leaving:
            if node_id in listers:
                found.append(f"{view.peer} has left and is still listed by {_some(listers[node_id])}")
        elif not view.says.is_ready:
            found.append(f"{view.peer} is not in the ring: still joining")
    return found


def _service(view: NodeView) -> list[str]:
    found = []
    if not view.says.may_serve:
        found.append(f"{view.peer} may not serve: it has not heard from both sides of its leaf set within its lease")
    if not view.says.is_complete:
        found.append(f"{view.peer} has an incomplete leaf set")
    return found


def _cycles(in_ring: Mapping[NodeId, _Sides]) -> list[int]:
    """Follow the successors; a node without one ends a chain that is no cycle."""
    done: set[NodeId] = set()
    cycles = []
    for first in in_ring:
        order: dict[NodeId, int] = {}
        current: NodeId | None = first
        while current is not None and current not in done and current not in order:
            order[current] = len(order)
            larger = in_ring[current].larger
            current = larger[0] if larger else None
        if current in order:
            cycles.append(len(order) - order[current])
        elif len(in_ring) == 1:
            cycles.append(1)
        done.update(order)
    return sorted(cycles, reverse=True)


def _leaf_sets(
    members: Sequence[NodeId], in_ring: Mapping[NodeId, _Sides], views: Mapping[NodeId, NodeView]
) -> list[str]:
    found: list[str] = []
    listed = {node_id: sides.members() for node_id, sides in in_ring.items()}
    for position, node_id in enumerate(members):
        peer = views[node_id].peer
        one_sided = [other for other in sorted(listed[node_id]) if node_id not in listed[other]]
        found += [f"{peer} lists {views[other].peer}, which does not list it" for other in one_sided]
        wanted = _wanted(members, position, views[node_id], in_ring[node_id]) - listed[node_id]
        strangers = [other for other in sorted(wanted) if other > node_id and node_id not in listed[other]]
        found += [f"{peer} and {views[other].peer} do not list each other, though near" for other in strangers]
    return found


def _wanted(members: Sequence[NodeId], position: int, view: NodeView, kept: _Sides) -> set[NodeId]:
    """Return the nodes that a node has to list: the nearest on each side. A silent node keeps its place among them."""
    count = len(members)
    wanted: set[NodeId] = set()
    for step, listing, answering in ((-1, view.says.smaller, kept.smaller), (1, view.says.larger, kept.larger)):
        places = min(len(answering) if len(listing) >= HALF else HALF, count - 1)
        wanted.update(members[(position + step * far) % count] for far in range(1, places + 1))
    return wanted


def _note_silent(
    silent: Mapping[NodeId, PeerRef], listers: Mapping[NodeId, Sequence[PeerRef]], judgement: Judgement
) -> None:
    unlisted = 0
    for node_id, peer in sorted(silent.items()):
        if node_id in listers:
            judgement.unanswered.append(f"{peer} does not answer, and is listed by {_some(listers[node_id])}")
        else:
            unlisted += 1
    if unlisted:
        judgement.notes.append(f"{unlisted} peers that this node knows do not answer; no leaf set has them")


def _missing(survey: Survey) -> list[Absence]:
    """Who is missing: this node says so, or two others do, and it does not answer.

    Since when is what this node says, so that all its answers agree; else what the one says that gave it up last.
    """
    named: dict[NodeId, dict[NodeId, Absence]] = {}
    for namer, view in survey.views.items():
        for absence in () if view.says.is_leaving else view.says.missing:
            named.setdefault(absence.peer.id, {})[namer] = absence
    return [
        namers.get(survey.own) or min(namers.values(), key=lambda absence: absence.age_s)
        for node_id, namers in sorted(named.items())
        if node_id not in survey.views and (survey.own in namers or len(namers) >= INFORMANTS_MIN)
    ]


def _listers(views: Mapping[NodeId, NodeView]) -> dict[NodeId, list[PeerRef]]:
    """Who has each node in its leaf set, in id order."""
    found: dict[NodeId, list[PeerRef]] = {}
    for _, view in sorted(views.items()):
        if not view.says.is_leaving:
            for node_id in {peer.id: None for peer in (*view.says.smaller, *view.says.larger)}:
                found.setdefault(node_id, []).append(view.peer)
    return found


def _some(peers: Sequence[PeerRef]) -> str:
    shown = ", ".join(str(peer) for peer in peers[:LISTERS_SHOWN])
    return shown if len(peers) <= LISTERS_SHOWN else f"{shown} and {len(peers) - LISTERS_SHOWN} more"
