"""A call of every aggregation function, and records for them."""

from __future__ import annotations

from typing import Any, Final

from protocols.aggregation.functions import Input
from protocols.aggregation.numbers import Number
from protocols.aggregation.query import Query
from protocols.aggregation.registry import function_of

CALLS: Final = (
    *("count", "sum(x)", "min(x)", "max(x)", "mean(x)", "variance(x)", "stddev(x)", "median(x)", "quantile(x, 0.9)"),
    *("distinct(t)", "values(t, 3)", "histogram(x, 0, 10.5)", "top(x, 2)", "bottom(x)", "vector(v)"),
)


def record(query: Query, number: Number) -> Any:
    """What the query's functions take of a record, which is made from one number."""
    inputs = {Input.NUMBER: number, Input.TEXT: repr(number)[:9], Input.VECTOR: (number, 1), Input.NOTHING: 0}
    values = [inputs[function_of((call,)).takes] for call in query.calls]
    return values[0] if len(values) == 1 else values
