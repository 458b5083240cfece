"""What one node adds to an aggregate: whether it meets the condition, and its own value. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Constant, names
from protocols.measurement.aggregates.messages import AggregateSpec
from protocols.measurement.aggregates.partial import NOTHING, PartialAggregate, of_one
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Known
from protocols.measurement.querying.intervals import UNKNOWN, judge

TAG: Final = "tag."
Readings = Callable[[str], "Known | None"]
"""What a node knows of a measurement of its own that it has; ``None``: its source does not answer."""


class OwnPart:
    """One aggregate, asked of one node. Raises `FilterError` for a condition that is none."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        where = parse(spec.where) if spec.where else Constant(True)
        self.columns = names(where)
        self._judge = judge(where, lambda label: lambda row: row.get(label))

    def of(
        self, texts: Mapping[str, str], measured: Mapping[str, None], known: Readings, now: float
    ) -> PartialAggregate:
        """By what the node says of itself in ``texts``, and has ``measured``. A tag that has the name of a measurement
        is called ``tag.NAME``, as in statements."""
        spec = self._spec
        if spec.name and spec.name not in measured:
            return NOTHING
        found = {name: known(name) for name in dict.fromkeys((*self.columns, spec.name)) if name in measured}
        row: dict[str, Any] = {each: texts.get(each.removeprefix(TAG)) for each in self.columns}
        if self._judge({**row, **dict.fromkeys(found, UNKNOWN)}) is False:
            return NOTHING  # whatever is measured, it does not belong to the region
        row.update((name, _point(each)) for name, each in found.items())
        value = found.get(spec.name)
        basis = min((each.basis for each in found.values() if each is not None), default=now)
        certainty = self._judge(row)
        return of_one(spec.word, None if value is None else value.claim.value, certainty, basis)


def _point(known: Known | None) -> Interval:
    return UNKNOWN if known is None else Interval(known.claim.value, known.claim.value)
