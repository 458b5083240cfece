"""Answers of aggregation rounds for Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from pydantic import TypeAdapter

from peerd.client import Client
from peerd.client.streams import on_standard_error
from peerd.errors import Unavailable
from peerd.front import RingTable, Row
from protocols.aggregation.answer import Answer
from protocols.aggregation.figures import Estimate, Figure, Figures, GroupedAnswer
from protocols.aggregation.front.client import AggregationClient

ANSWER: Final = TypeAdapter[Figure | Figures](Figure | Figures)
OPTIONS: Final = ("query", "files", "format", "pattern", "deadline")


async def _columns(client: Client, options: Mapping[str, str]) -> str:
    return "group string, value double, answer string, rest boolean, contributors bigint, expected bigint, round string"


async def _rows(client: Client, options: Mapping[str, str]) -> Sequence[Row]:
    if "query" not in options:
        raise ValueError('aggregation needs the option query, such as "count by status"')
    wanted: dict[str, Any] = dict(options)
    async with aclosing(AggregationClient(client).aggregate(**wanted)) as lines:
        async for line in lines:
            if isinstance(line, Answer):
                for warning in line.warnings:
                    on_standard_error(warning)
                return rows_of(line)
    raise Unavailable("the round ended without an answer")


def rows_of(answer: Answer) -> list[Row]:
    """A row a group, and one of the ``rest`` where groups were folded away; one without a group where there are none.

    ``value``: the number or estimate of the first function; ``answer``: all that the functions say, as JSON.
    """
    common = {"contributors": answer.contributors, "expected": answer.expected, "round": answer.round}
    value = answer.value
    if not isinstance(value, GroupedAnswer):
        return [{"group": None, **_columns_of(value), "rest": False, **common}]
    rows = [{"group": group, **_columns_of(figure), "rest": False, **common} for group, figure in value.groups.items()]
    if value.remainder_groups_max:
        rows.append({"group": None, **_columns_of(value.remainder), "rest": True, **common})
    return rows


def _columns_of(figure: Figure | Figures) -> Row:
    first = next(iter(figure.figures.values())) if isinstance(figure, Figures) else figure
    number = first.estimate if isinstance(first, Estimate) else first
    value = float(number) if isinstance(number, int | float) else None
    return {"value": value, "answer": ANSWER.dump_json(figure).decode()}


AGGREGATION: Final = RingTable("aggregation", _columns, options=OPTIONS, rows=_rows)
"""Options as of `protocols.aggregation.front.client.AggregationClient.aggregate`."""
