"""Converts the results of surveys to the admin API's models. Pure."""

from __future__ import annotations

from statistics import median
from typing import Final, Literal

from peerd.ids import NodeId, format_id
from peerd.models import admin as models
from peerd.overlay.survey.judge import judge
from peerd.overlay.survey.reach import Pair, Reachability, ReachProgress
from peerd.overlay.survey.walk import NodeView, Survey, WalkProgress

FINDINGS_MAX: Final = 200
FAILED_MAX: Final = 500
OUTLIERS_MAX: Final = 20
MATRIX_NODES_MAX: Final = 32


def walk_line(item: WalkProgress | Survey) -> models.WalkProgressView | models.RingCheck:
    """Convert one line of a walk's stream."""
    if isinstance(item, Survey):
        return ring_check(item)
    return models.WalkProgressView(
        answered=item.answered, silent=item.silent, found=item.found, expected=max(item.found, item.answered)
    )


def ring_check(survey: Survey) -> models.RingCheck:
    """The verdict on a finished walk."""
    judgement = judge(survey)
    outcome: Literal["consistent", "inconsistent", "partial"] = "consistent"
    if judgement.problems:
        outcome = "inconsistent"
    elif judgement.unanswered or judgement.missing:
        outcome = "partial"
    return models.RingCheck(
        nodes=[_ring_node(view) for _, view in sorted(survey.views.items())],
        silent=[peer.address for _, peer in sorted(survey.silent.items())],
        cycles=judgement.cycles,
        outcome=outcome,
        problems=judgement.problems[:FINDINGS_MAX],
        problems_total=len(judgement.problems),
        unanswered=judgement.unanswered[:FINDINGS_MAX],
        notes=judgement.notes,
        duration_s=survey.duration_s,
        missing=[
            models.MissingPeer(id=format_id(each.peer.id), address=each.peer.address, lost_s=each.age_s)
            for each in judgement.missing[:FINDINGS_MAX]
        ],
        missing_total=len(judgement.missing),
    )


def _ring_node(view: NodeView) -> models.RingNode:
    says = view.says
    return models.RingNode(
        id=format_id(view.peer.id),
        address=view.peer.address,
        is_ready=says.is_ready,
        may_serve=says.may_serve,
        is_leaving=says.is_leaving,
        leaf_set_members=len({peer.id for peer in (*says.smaller, *says.larger)}),
        successor=format_id(says.larger[0].id) if says.larger else None,
        ring_size=says.ring_size,
        partition_suspected=says.partition_suspected,
    )


def reach_line(item: ReachProgress | Reachability) -> models.ReachProgressView | models.ReachAnswer:
    """Convert one line of a test's stream."""
    if isinstance(item, Reachability):
        return reach_answer(item)
    return models.ReachProgressView(measured=item.measured, total=item.total)


def reach_answer(found: Reachability) -> models.ReachAnswer:
    """The verdict on a finished test. A node that this one does not reach, but another does, is a broken pair."""
    survey = found.survey
    peers = {node_id: view.peer for node_id, view in survey.views.items()} | survey.silent
    broken, dead = found.broken(), found.dead()
    outcome: Literal["all", "broken", "partial"] = "all"
    if broken:
        outcome = "broken"
    elif dead or found.untested or survey.is_truncated:
        outcome = "partial"

    def node(node_id: NodeId) -> models.ReachNode:
        return models.ReachNode(
            id=format_id(node_id), address=peers[node_id].address, reason=found.untested.get(node_id)
        )

    timed = [rtt_s for rtt_s in found.reached.values() if rtt_s is not None]
    is_small = len(peers) <= MATRIX_NODES_MAX
    tested = [*found.reached, *found.failed]
    return models.ReachAnswer(
        outcome=outcome,
        nodes=[node(node_id) for node_id in sorted(peers)],
        targets_each=found.targets_each,
        pairs_tested=len(tested),
        pairs_failed=len(found.failed),
        rtt_median_s=median(timed) if timed else None,
        rtt_max_s=max(timed, default=None),
        failed=[_pair(found, pair) for pair in broken[:FAILED_MAX]],
        dead=[node(node_id) for node_id in dead],
        outliers=[_pair(found, pair, expected_s) for pair, _, expected_s in found.outliers()[:OUTLIERS_MAX]],
        pairs=[_pair(found, pair) for pair in sorted(tested)] if is_small else [],
        duration_s=found.duration_s,
    )


def _pair(found: Reachability, pair: Pair, expected_s: float | None = None) -> models.ReachPair:
    source, target = pair
    return models.ReachPair(
        source=format_id(source),
        target=format_id(target),
        is_reached=pair in found.reached,
        rtt_s=found.reached.get(pair),
        expected_s=expected_s,
    )
