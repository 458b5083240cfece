"""Answers to measurement queries for Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from peerd.client import Client
from peerd.client.streams import on_standard_error
from peerd.front import RingTable, Row
from peerd.words import counted
from protocols.measurement import models
from protocols.measurement.front.client import MeasurementClient
from protocols.measurement.querying.statement import parse_statement


async def _answer(client: Client, options: Mapping[str, str]) -> models.QueryView:
    text = options.get("query")
    if not text:
        raise ValueError('measurement needs the option query, such as "SELECT node, cpu FROM nodes"')
    if parse_statement(text).explain:
        raise ValueError("Spark reads the rows of an answer: leave out EXPLAIN")
    return await MeasurementClient(client).query(text)


async def _columns(client: Client, options: Mapping[str, str]) -> str:
    answer = await _answer(client, options)
    kinds = {end: "boolean" if of == "stale" else "double" for end, of in models.BOUNDED_PARTS.items()}
    found = [
        f"`{name}{end}` {kind}"
        for name in answer.columns
        for end, kind in (kinds.items() if name in answer.numeric else [("", "string")])
    ]
    return ", ".join([*found, "certainty string", "confidence double"])


async def _rows(client: Client, options: Mapping[str, str]) -> Sequence[Row]:
    answer = await _answer(client, options)
    warnings = [*answer.problems, *(f"{part} is not met: {why}" for part, why in answer.unmet.items())]
    if answer.missing:
        number, first = counted(len(answer.missing), "value"), answer.missing[0]
        warnings.append(f"{number} missing; {first.name} of {first.node}: {first.reason}")
    for warning in warnings:
        on_standard_error(warning)
    table = answer.table()
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


MEASUREMENT: Final = RingTable("measurement", _columns, options=("query",), rows=_rows)
"""The columns of `protocols.measurement.models.QueryView.table`."""
