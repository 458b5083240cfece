"""Statements that the tree T answers while they are watched: one aggregate of all nodes of a region. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from peerd.frozen import Frozen
from peerd.lib.filter import tree
from peerd.lib.filter.write import write
from protocols.measurement.aggregates.messages import STALE_MAX_S, STALE_MIN_S, WHERE_BYTES_MAX, AggregateSpec
from protocols.measurement.aggregates.partial import EXTREMES, FUNCTIONS
from protocols.measurement.aggregates.tree import AggregateAnswer
from protocols.measurement.bounds import STALE_S, usual_half_width
from protocols.measurement.querying.answer import AnswerRow, BoundedValue, QueryAnswer, Value
from protocols.measurement.querying.intervals import judge
from protocols.measurement.querying.plan import Knowledge
from protocols.measurement.querying.statement import ALL, Statement
from protocols.measurement.readings import NodeEntry


class TreePlan(Frozen):
    """What to ask T, of how many ``expected`` nodes of ``known`` ones."""

    spec: AggregateSpec
    expected: int
    known: int


def tree_plan(statement: Statement, nodes: Sequence[NodeEntry]) -> TreePlan | None:
    """How T answers it; ``None``: values have to be read. Raises `FilterError` when it names what no node has.

    WITHIN without a name is about what is shown: the aggregate.
    """
    if len(statement.selected) != 1 or not statement.selected[0].function or len(statement.tables) > 1:
        return None
    if statement.group_by or statement.sort_by or any(column.peer is not None for column in statement.columns.values()):
        return None
    if (statement.limit, statement.require, statement.budget) != (None, None, None):
        return None
    known = Knowledge(statement, nodes)
    [selected] = statement.selected
    measured = {name for entry in nodes for name in entry.measurements}
    conditions = [name for name in tree.names(statement.where) if name in measured]
    name = "" if selected.column is None else selected.column.name
    if not (conditions and not name if selected.function == "COUNT" else name in measured):
        return None
    where = "" if statement.where == tree.Constant(True) else write(statement.where)
    stale_s = STALE_S if statement.stale_s is None else min(statement.stale_s, STALE_MAX_S)
    is_mean_of_some = selected.function == "MEAN" and conditions
    if is_mean_of_some or stale_s < STALE_MIN_S or len(where.encode()) > WHERE_BYTES_MAX:
        return None
    certainty = judge(statement.where, known.accessor)
    expected = sum(certainty((entry,)) is not False and (not name or name in entry.measurements) for entry in nodes)
    width = _half_width(statement, selected.function, name, expected)
    return TreePlan(
        AggregateSpec(FUNCTIONS.index(selected.function), name, where, width, stale_s), expected, len(nodes)
    )


def _half_width(statement: Statement, function: str, name: str, nodes: int) -> float:
    """A named WITHIN, and what is usual, is of each value; a sum may be wrong by as much for each of them, rounded down
    to a power of two, so that it is the same aggregate when a node comes."""
    if ALL in statement.within or function == "COUNT":
        return statement.within.get(ALL, 0.0)
    width = statement.within.get(name, usual_half_width(name))
    return width if function in EXTREMES or function == "MEAN" else width * 2.0 ** (max(1, nodes).bit_length() - 1)


def tree_answer(statement: Statement, plan: TreePlan, found: AggregateAnswer) -> QueryAnswer:
    """What the root of T has told, as the answer to the statement."""
    spec, interval = plan.spec, found.interval
    value: Value = None
    if interval is not None:
        value = BoundedValue(interval.centre, interval.low, interval.high, found.age_s, found.is_stale)
    unmet = {}
    if interval is not None and not interval.is_within(spec.half_width):
        unmet["WITHIN"] = f"the bounds are {interval.half_width:g} from the middle"
    if found.is_stale:
        unmet["STALE"] = f"the oldest value is {found.age_s:.1f} s old"
    if found.counted != plan.expected:
        unmet["NODES"] = f"{found.counted} nodes are counted, {plan.expected} are known"
    [selected] = statement.selected
    counted = min(1.0, found.counted / plan.expected) if plan.expected else 1.0
    row = AnswerRow((value,), "yes")
    sizes = found.counted, 0, max(0, plan.known - plan.expected)
    columns = (selected.label,)
    return QueryAnswer(columns, (row,), *sizes, counted, (), 0, 0, unmet, columns)
