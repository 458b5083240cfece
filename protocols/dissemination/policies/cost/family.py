"""What a node knows of its children and grandchildren, and what it tells its parent of itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.messages import ENVELOPE_BYTES, peer_bytes
from protocols.dissemination.policies.cost.measuring import is_far
from protocols.dissemination.policies.cost.messages import (
    BRANCH_BYTES,
    DELAY_BYTES,
    DELAYS_MAX,
    FAMILY_MAX,
    FIGURES_BYTES,
    RATE_MAX,
    SECONDS_MAX,
    BranchFigures,
    CostReport,
    DelayTo,
    NodeFigures,
)
from protocols.dissemination.policies.cost.model import Branch, Costs
from protocols.dissemination.policies.cost.transformations import Family, Relative
from protocols.dissemination.ports import TreeAccess

UNKNOWN_DELAY_S: Final = 0.05
"""The one-way delay between two nodes of which nobody has said anything."""


class Relations:
    """The reports of a node's children, put together."""

    def __init__(self, tree: TreeAccess) -> None:
        self._tree = tree
        self._reports: dict[NodeId, CostReport] = {}
        self._told: CostReport | None = None

    def children(self) -> list[PeerRef]:
        """The children of this moment."""
        return [child.peer for child in self._tree.children()]

    # What children say

    def report(self, child: PeerRef, report: CostReport) -> None:
        """A child's figures. Raises `ProtocolError` for those that contradict each other."""
        ids = [each.peer.id for each in report.children]
        if report.own.peer.id != child.id or ids != [each.node for each in report.own.children]:
            raise ProtocolError("bad_report", f"{child} tells of children that it does not tell the figures of")
        if len(set(ids)) != len(ids) or child.id in ids or self._tree.me.id in ids:
            raise ProtocolError("bad_report", f"{child} tells of children that it cannot have")
        self._reports[child.id] = report

    def forget(self, child: NodeId) -> None:
        """A child is gone."""
        self._reports.pop(child, None)

    def forget_told(self) -> None:
        """There is a new parent, which knows nothing."""
        self._told = None

    def peers(self) -> dict[NodeId, PeerRef]:
        """This node's children and grandchildren."""
        found = {peer.id: peer for peer in self.children()}
        for id in list(found):
            report = self._reports.get(id)
            for each in () if report is None else report.children:
                found.setdefault(each.peer.id, each.peer)
        return found

    def is_complete(self) -> bool:
        """Whether all children have told their figures."""
        return all(peer.id in self._reports for peer in self.children())

    def has_room(self, node: NodeId) -> bool:
        """Whether a child or grandchild would take another child, as far as is known."""
        if node == self._tree.me.id:
            return self._tree.room() > 0
        for report in self._reports.values():
            for each in (report.own, *report.children):
                if each.peer.id == node:
                    return each.has_room
        return False

    # What follows

    def delay_s(self, one: NodeId, other: NodeId) -> float:
        """The one-way delay between two of the family: as one of them has said, or by way of this node."""
        me = self._tree.me.id
        if me in (one, other):
            return self._from_here(other if one == me else one)
        for a, b in ((one, other), (other, one)):
            report = self._reports.get(a)
            for each in () if report is None else report.delays:
                if each.node == b:
                    return each.delay_s
        return self._from_here(one) + self._from_here(other)

    def _from_here(self, node: NodeId) -> float:
        peer = self.peers().get(node)
        return self.to_peer(peer) if peer is not None else UNKNOWN_DELAY_S

    def to_peer(self, peer: PeerRef) -> float:
        """The one-way delay from this node."""
        rtt_s = self._tree.rtt_s(peer)
        return UNKNOWN_DELAY_S if rtt_s is None else min(SECONDS_MAX, rtt_s / 2)

    def family(self, costs: Costs, rate: float) -> Family:
        """All that decisions need. A child that has told nothing yet counts as one without children."""
        relatives: dict[NodeId, Relative] = {}
        children = [peer.id for peer in self.children()]
        for id in children:
            report = self._reports.get(id)
            relatives[id] = Relative(id, costs, 0.0, ()) if report is None else _relative(report.own)
        for id in children:
            report = self._reports.get(id)
            for each in () if report is None else report.children:
                relatives.setdefault(each.peer.id, _relative(each))
        delays: dict[tuple[NodeId, NodeId], float] = {}

        def delay(one: NodeId, other: NodeId) -> float:
            found = delays.get((one, other))
            if found is None:
                found = delays[one, other] = self.delay_s(one, other)
            return found

        return Family(self._tree.me.id, costs, rate, tuple(children), relatives, delay)

    # What the parent is told

    def make_report(self, stream: NodeId, own: NodeFigures, asked: Iterable[PeerRef]) -> CostReport:
        """This node's report."""
        reports = [self._reports[peer.id].own for peer in self.children() if peer.id in self._reports]
        children = tuple(reports[:FAMILY_MAX])
        delays = [DelayTo(peer.id, self.to_peer(peer)) for peer in asked if self._tree.rtt_s(peer) is not None]
        room = CostReport.BYTES_MAX - ENVELOPE_BYTES - sum(map(_figures_bytes, (own, *children)))
        return CostReport(stream, own, children, tuple(delays[: min(DELAYS_MAX, room // DELAY_BYTES)]))

    def branches(self) -> tuple[BranchFigures, ...]:
        """This node's children, as `make_report` tells of them."""
        reports = [self._reports[peer.id] for peer in self.children() if peer.id in self._reports]
        return tuple(branch_figures(report.own) for report in reports[:FAMILY_MAX])

    def is_news(self, report: CostReport, tau: float) -> bool:
        """Whether a report differs enough from the last one to be sent; then it counts as sent."""
        told = self._told
        if told is not None and _shape(told) == _shape(report):
            pairs = zip(_numbers(report), _numbers(told), strict=True)
            if not any(is_far(new, old, tau) for new, old in pairs):
                return False
        self._told = report
        return True


def _relative(figures: NodeFigures) -> Relative:
    costs = Costs(figures.filter_s, figures.send_s, figures.collect, figures.decide)
    below = tuple(Branch(each.node, each.rate_max, each.rate_sum, each.fan_out) for each in figures.children)
    return Relative(figures.peer.id, costs, figures.rate, below)


def branch_figures(figures: NodeFigures) -> BranchFigures:
    """Return a node and all below it in three numbers."""
    branch = _relative(figures).branch
    rate_sum = min(branch.rate_sum, RATE_MAX * 1e3)
    return BranchFigures(branch.node, branch.rate_max, rate_sum, min(255, branch.fan_out))


def _figures_bytes(figures: NodeFigures) -> int:
    return FIGURES_BYTES + peer_bytes(figures.peer) + BRANCH_BYTES * len(figures.children)


def _shape(report: CostReport) -> object:
    nodes = (report.own, *report.children)
    below = tuple((each.peer, each.has_room, tuple(branch.node for branch in each.children)) for each in nodes)
    return below, tuple(each.node for each in report.delays)


def _numbers(report: CostReport) -> list[float]:
    found = [each.delay_s for each in report.delays]
    for node in (report.own, *report.children):
        found += [node.filter_s, node.send_s, node.rate]
        for branch in node.children:
            found += [branch.rate_max, branch.rate_sum, branch.fan_out]
    return found
