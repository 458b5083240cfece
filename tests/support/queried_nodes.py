"""Nodes with true values, for tests of queries: what they answer has bounds that contain the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from peerd.ids import NodeId
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.names import full_name
from protocols.measurement.querying.answer import QueryAnswer
from protocols.measurement.querying.running import RunningQuery
from protocols.measurement.querying.statement import parse_statement
from protocols.measurement.readings import NodeEntry, NoReading, Reading


def node(
    number: int, tags: Mapping[str, str] | None = None, measurements: Sequence[str] = ("cpu", "memory")
) -> NodeEntry:
    """A node with an address from its number."""
    return NodeEntry(NodeId(number), f"10.0.0.{number}:7000", tags or {}, tuple(measurements))


def usual(name: str) -> float:
    """Half-widths of bounds where a statement does not say any."""
    return 0.005 if name.startswith("rtt") else 0.05


def running(text: str, nodes: Sequence[NodeEntry], **options: Any) -> RunningQuery:
    """A statement that is asked of these nodes."""
    return RunningQuery(parse_statement(text), nodes, usual, **options)


def rtt(number: int) -> str:
    """The name of the round-trip time to that node."""
    return full_name("rtt", NodeId(number))


@dataclass
class QueriedNodes:
    """``values``: by node's number and name. Who is not in there does not answer."""

    values: Mapping[tuple[int, str], float]
    seed: int = 0
    stale: frozenset[tuple[int, str]] = frozenset()
    narrowest: float = 0.0
    """No bounds are narrower, whatever is asked for."""
    wants: list[Want] = field(default_factory=list)

    def read(self, want: Want) -> Reading | NoReading:
        """An answer whose bounds have the asked width, the truth somewhere inside."""
        self.wants.append(want)
        key = (int(want.measurement.owner), want.measurement.name)
        if key not in self.values:
            return NoReading(want.measurement, "it does not answer", 2)
        width, true = max(want.half_width, self.narrowest), self.values[key]
        # What it does not say is the same for every width, so that narrower bounds lie inside wider ones.
        low = true - 2 * width * Random(f"{self.seed}{key}").random()
        interval = Interval(min(low, true), max(low + 2 * width, true))
        return Reading(
            want.measurement, interval.centre, interval, 1.0, key in self.stale, want.measurement.owner, 0, 2
        )

    def run(self, query: RunningQuery, rounds_max: int = 20) -> QueryAnswer:
        """Answer all that it needs."""
        for _ in range(rounds_max):
            wants = query.needs()
            if not wants:
                return query.answer()
            query.told(map(self.read, wants))
        raise AssertionError("it never ends")

    def ask(self, text: str, nodes: Sequence[NodeEntry]) -> QueryAnswer:
        """The answer to a statement."""
        return self.run(running(text, nodes))


def of(number: int, name: str) -> Measurement:
    """A node's measurement."""
    return Measurement(NodeId(number), name)
