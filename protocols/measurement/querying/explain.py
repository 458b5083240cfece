"""What a statement will read and cost, and what it did cost, for people. Pure.

It can be told honestly what asking once costs at most, here and now, with the asked bounds and with bounds half as
wide. What bounds cost afterwards, in updates, depends on how the values will move, and is not told.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from peerd.ids import NodeId, short_id
from peerd.messages import encode_struct
from protocols.measurement.querying.answer import QueryAnswer
from protocols.measurement.querying.running import MESSAGES_EACH, REFINE_ROUNDS_MAX, RunningQuery

VALUE_BYTES: Final = 60
"""What a value and its bounds take in an answer, about, and how it was asked for."""
MESSAGE_BYTES: Final = 30
"""What a message has besides: its head, and that of its record of TLS."""
CACHES_SHOWN: Final = 8


def explain_plan(query: RunningQuery, *, in_tree: bool = False) -> tuple[str, ...]:
    """Lines about what is read first. To be asked before anything has been told. ``in_tree``: when it is watched, it is
    reckoned in the tree T."""
    wants, statement = query.needs(), query.statement
    here = [want for want in wants if query.cached(want.measurement, want.half_width)]
    lines = [f"nodes     {len({want.measurement.owner for want in wants})} of {len(query.known.nodes)} are read"]
    found = Counter((want.measurement.name, want.half_width) for want in here)
    for (name, half_width), count in Counter((want.measurement.name, want.half_width) for want in wants).items():
        lines.append(f"read      {name} of {count}, bounds +-{half_width:g}; {found[name, half_width]} are cached here")
    most, half = (MESSAGES_EACH * len(owners) for owners in (_asked(query, 1.0), _asked(query, 0.5)))
    lines.append(f"messages  at most {most} at first; with bounds half as wide at most {half}")
    if len(statement.tables) > 1:
        lines.append("join      then the measurements of the pairs that are left")
    if statement.goodness > 0.0:
        lines.append(f"refine    until {statement.goodness:g} of rows are certain, at most {REFINE_ROUNDS_MAX} rounds")
    if in_tree:
        lines.append("watched   it is reckoned in the tree: each node speaks for those below it, one word comes here")
    return tuple(lines) if statement.budget is None else (*lines, f"budget    {statement.budget} messages")


def _asked(query: RunningQuery, share: float) -> set[NodeId]:
    """The owners that are asked at first, with this share of the bounds."""
    wants = query.needs()
    return {want.measurement.owner for want in wants if not query.cached(want.measurement, share * want.half_width)}


def explain_cost(answer: QueryAnswer, query: RunningQuery) -> tuple[str, ...]:
    """Lines about what an answer did cost, and which caches it came from."""
    readings = list(query.known.readings.values())
    caches = Counter(each.provider for each in readings if each.provider != each.measurement.owner)
    size = sum(len(encode_struct(each.measurement)) + VALUE_BYTES for each in readings)
    size = size + MESSAGE_BYTES * answer.messages if answer.messages else 0
    named = ", ".join(f"{short_id(node)} {count}" for node, count in caches.most_common(CACHES_SHOWN))
    return (
        f"cost      {answer.messages} messages in {answer.rounds} rounds, about {size} bytes",
        f"caches    {sum(caches.values())} of {len(readings)} values came from caches{f': {named}' if named else ''}",
        f"rows      T+ {answer.sure}, T? {answer.maybe}, T- {answer.ruled_out}; {answer.goodness:.3f} certain",
        f"missing   {len(answer.missing)} values",
        *(f"not met   {clause}: {reason}" for clause, reason in answer.unmet.items()),
    )
